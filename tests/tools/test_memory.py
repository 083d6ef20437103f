"""`memory`: its formulas against the bytes that the optimizers and Paddle's wrappers really hold and send."""

import json
import re
import types

import paddle
import pytest
import tables
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer import (
    DygraphShardingOptimizer,
)
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_optimizer_stage2 import GroupShardedOptimizerStage2
from paddle.distributed.fleet.utils import tensor_fusion_helper
from paddlenlp.transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM
from state_bytes import ROWS, bytes_of

import paddle_ldopt as ldopt
from paddle_ldopt.optimizers._shards import Shard
from paddle_ldopt.optimizers.states import rule_shape
from paddle_ldopt.tools.cli import main
from paddle_ldopt.tools.memory import ITEMSIZE, Layout, OptimizerSpec, Transformer, Weight, calculation, estimate

CASES = {**ROWS, **{f"came, beta1 {beta}": ({"learning_rate": 1e-3, "beta1": beta}, "") for beta in (0.0, None)}}
SMALL = Transformer(hidden=64, layers=4, vocab=100, intermediate=96, heads=4, kv_heads=2)


def bert():
    config = BertConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=50)
    return shapes_of(BertForSequenceClassification(config))


def llama():
    config = LlamaConfig(
        num_hidden_layers=SMALL.layers,
        hidden_size=SMALL.hidden,
        num_attention_heads=SMALL.heads,
        num_key_value_heads=SMALL.kv_heads,
        intermediate_size=SMALL.intermediate,
        vocab_size=SMALL.vocab,
    )
    return shapes_of(LlamaForCausalLM(config))


def parameter(shape, dtype):
    zero = paddle.nn.initializer.Constant(0.0)
    return paddle.create_parameter(list(shape), dtype, default_initializer=zero)


def parameters(shapes, dtype="float32"):
    """Return parameters with gradients, and their name_dict."""
    params = [parameter(shape, dtype) for shape in shapes.values()]
    for param in params:
        param.grad = paddle.full(param.shape, 1e-3, dtype)
    return params, {param.name: name for param, name in zip(params, shapes)}


def optimizer_of(name, arguments, shapes, dtype="float32"):
    params, name_dict = parameters(shapes, dtype)
    masters = {"multi_precision": True} if dtype != "float32" else {}
    cls = ldopt.optimizer_class(name.split(",")[0])
    return cls(parameters=params, name_dict=name_dict, **masters, **arguments)


def spec(name, arguments, dtype="float32"):
    telling = {key: value for key, value in arguments.items() if key != "learning_rate"}
    return OptimizerSpec(name.split(",")[0], dtype=dtype, **telling)


def shapes_of(model):
    return {name: list(param.shape) for name, param in model.named_parameters()}


# ---- one device


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("build", [bert, llama])
@pytest.mark.parametrize("name", CASES)
def test_state_and_masters_equal_the_bytes_of_real_optimizers(name, build, dtype):
    shapes, (arguments, _) = build(), CASES[name]
    optimizer = optimizer_of(name, arguments, shapes, dtype)
    optimizer.step()
    answer = estimate(shapes, spec(name, arguments, dtype), Layout())
    masters = optimizer.state_dict().get("master_weights", {}).values()
    assert answer.state == bytes_of(optimizer)
    assert answer.masters == sum(master.size * 4 for master in masters)
    size = sum(paddle.to_tensor(shape).prod().item() for shape in shapes.values())
    assert answer.parameters == answer.gradients == size * (4 if dtype == "float32" else 2)
    assert answer.total == answer.parameters + answer.gradients + answer.state + answer.masters
    assert (answer.sent_gradients, answer.sent_parameters, answer.sent_sums, answer.sent_activations) == (0, 0, 0, 0)


def test_a_transformer_is_a_llama():
    weights = SMALL.weights()
    assert [list(weight.shape) for weight in weights] == list(llama().values())
    assert all(
        weight.name in name
        for weight, name in zip(weights, [n.replace(".self_attn", "").replace(".mlp", "") for n in llama()])
    )
    assert SMALL.size == sum(weight.size for weight in weights)


@pytest.mark.parametrize("params", [1e9, 7e9, 70e9, 400e9, 1e12])
def test_sizes_are_near_the_requested_number(params):
    model = Transformer.of_size(params)
    assert abs(model.size / params - 1) < 0.06
    assert model.weights(mp=8, pp=4), "and can be cut"


@pytest.mark.parametrize("name", ["lamb", "adafactor", "came", "adamweightdecay"])
@pytest.mark.parametrize("shape", [[6], [4, 6], [2, 4, 6]])
def test_sums_are_those_that_the_rules_request(name, shape):
    optimizer = optimizer_of(name, ROWS[name][0], {"weight": shape})
    (param,) = optimizer._parameter_list
    state = {key: paddle.ones(rule_shape(kind, shape)) for key, kind in optimizer.state_kinds(param).items()}
    state["beta1_pow_acc"] = paddle.ones([])
    options = optimizer.step_options(param)
    rule = optimizer.rule(param.detach(), param.grad, state, paddle.ones([]), shard=Shard(list(shape)), **options)
    asked = []
    try:
        request = next(rule)
        while True:
            asked.append([part.size for part in request])
            request = rule.send(request)
    except StopIteration:
        pass
    weight = Weight("weight", tuple(shape))
    assert [[weight.count(kind) for kind in kinds] for kinds in OptimizerSpec(name).sums(tuple(shape))] == asked


# ---- several devices


def test_stages_and_tensor_parallel_share_the_model():
    stages = [SMALL.weights(pp=2, stage=stage) for stage in range(2)]
    assert stages[0] + stages[1] == SMALL.weights()
    whole, cut = SMALL.weights(), SMALL.weights(mp=2)
    for one, half in zip(whole, cut):
        if half.split is None:
            assert one == half and len(one.shape) == 1
        else:
            assert one.shape[half.split] == 2 * half.shape[half.split] and one.size == 2 * half.size
    assert {w.name.split(".")[-1] for w in cut if w.split == 0} == {"embed_tokens", "o_proj", "down_proj"}


def params_of(weights, dtype="float32"):
    return [parameter(weight.shape, dtype) for weight in weights]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("stage", [1, 2])
def test_whole_parameters_are_assigned_as_in_paddle(stage, ranks):
    weights = SMALL.weights()
    params = params_of(weights)
    if stage == 1:
        wrapper = types.SimpleNamespace(_parameter_list=params, _sharding_world_size=ranks)
        dealt = list(DygraphShardingOptimizer._partition_parameters(wrapper).values())
    else:
        wrapper = types.SimpleNamespace(_local_params=params, world_size=ranks)
        wrapper._GroupShardedOptimizerStage2__segment_params = []
        dealt = GroupShardedOptimizerStage2._segment_params(wrapper)
    names = {param.name: weight.name for param, weight in zip(params, weights)}
    owned = calculation._owned(tuple(weights), Layout(sharding=ranks, stage=stage), 4)
    assert [[held.weight.name for held in share] for share in owned] == [
        [names[p.name] for p in share] for share in dealt
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_slices_are_those_of_paddles_buffers(ranks, dtype, monkeypatch):
    monkeypatch.setattr(calculation, "_BUFFER", 30_000)
    monkeypatch.setitem(tensor_fusion_helper.alignment, "cpu", 256)
    monkeypatch.setattr(tensor_fusion_helper, "__current_device_type__", "cpu")
    weights = SMALL.weights()
    params = params_of(weights, dtype)
    names = {param.name: weight.name for param, weight in zip(params, weights)}
    groups = tensor_fusion_helper.assign_group_by_size(params, 30_000).values()
    assert len(groups) > 3
    for rank, share in enumerate(calculation._slices(weights, ranks, ITEMSIZE[dtype])):
        expected = []
        for group in groups:
            views = tensor_fusion_helper.build_reduce_scatter_buffer(group, ranks, rank)[0]
            for name, view in views.items():
                begin, end = view._param_begin - view._index, view._param_end - view._index
                if begin < end:
                    expected.append((names[name], end - begin, max(0, min(end, view._param.size) - begin)))
        assert [(held.weight.name, held.elements, held.real) for held in share] == expected


def test_volumes_by_hand():
    shapes = {"a": [4, 6], "b": [6]}  # 30 elements

    def sent(name, **layout):
        answer = estimate(shapes, OptimizerSpec(name, dtype="float32"), Layout(**layout))
        return answer.sent_gradients, answer.sent_parameters, answer.sent_sums

    assert sent("came", dp=4) == (2 * 120 * 3 / 4, 0, 0)
    assert sent("came", sharding=2) == (60, 60, 0)
    assert sent("came", dp=2, sharding=2) == (60 + 60, 60, 0)
    assert sent("adamwdl", sharding=2, stage=3) == (120, 0, 0), "small parameters stay whole"


def test_slices_send_the_sums_of_split_parameters():
    shapes = {"cut": [64, 6], "whole": [6]}  # 384 and 128 elements with padding: 256 on each device

    def sent(name):
        answer = estimate(shapes, OptimizerSpec(name, dtype="float32"), Layout(sharding=2, split_param=True))
        assert answer.sent_gradients == answer.sent_parameters == 512 * 4 / 2
        assert answer.parameters == answer.gradients == 512 * 4
        return answer.sent_sums

    assert sent("came") == 4 * (64 + 6 + 1 + 64 + 6), "row and column sums twice, a square sum"
    assert sent("adafactor") == 4 * (1 + 64 + 6 + 1)
    assert sent("lamb") == 4 * 2
    assert sent("adamwdl") == sent("adamweightdecay") == 0


def test_tensor_parallel_sends_the_sums_of_split_parameters():
    model = Transformer(hidden=8, layers=1, vocab=6, intermediate=16, heads=2)
    lines = (6 + 8) + 4 * (8 + 8) + 3 * (8 + 16) + (8 + 6)  # all nine matrices are cut, by rows or by columns
    answer = estimate(model, OptimizerSpec("came", dtype="float32"), Layout(mp=2))
    assert answer.sent_sums == 4 * (2 * lines + 9)
    elements = sum(weight.size for weight in model.weights(mp=2))
    vectors = 3 * 8  # have a second moment of their own
    assert answer.state == 4 * (elements + vectors + 2 * lines + 12), "rows and columns of the whole"
    shared = estimate(model, OptimizerSpec("came", dtype="float32"), Layout(mp=2, sharding=2))
    assert shared.sent_sums == answer.sent_sums / 2, "each device of the two updates half of the parameters"


def test_a_pipeline_sends_activations():
    for pp, neighbours in ((2, 1), (4, 2)):
        answer = estimate(SMALL, OptimizerSpec("lamb"), Layout(pp=pp), tokens=1000)
        assert answer.sent_activations == 1000 * 64 * 2 * neighbours
    assert estimate(SMALL, OptimizerSpec("lamb"), Layout(pp=2)).sent_activations is None


def test_the_heaviest_device_is_shown():
    model = Transformer(hidden=64, layers=2, vocab=1000, heads=4)
    answer = estimate(model, OptimizerSpec("adamwdl"), Layout(pp=2))
    assert answer.parameters == 2 * sum(weight.size for weight in model.weights(pp=2, stage=1)), "the head and its norm"
    shapes = {"large": [100, 10], "small": [10, 10]}
    for stage in (1, 2):
        answer = estimate(shapes, OptimizerSpec("adamwdl"), Layout(sharding=2, stage=stage))
        assert answer.state == 8 * 1000 + 8 and answer.masters == 4000
        assert answer.gradients == (2200 if stage == 1 else 2000)


def test_stage_3_cuts_large_parameters():
    shapes = {"large": [1024, 1026], "small": [1024, 1024]}
    answer = estimate(shapes, OptimizerSpec("adamwdl"), Layout(sharding=2, stage=3))
    half, whole = 1024 * 1026 // 2, 1024 * 1024
    assert answer.parameters == answer.gradients == 2 * (half + whole)
    assert answer.state == 8 * (half + whole) + 16 and answer.masters == 4 * (half + whole)
    assert answer.sent_parameters == 2 * 2 * half * 2 / 2, "once forward, once backward"


# ---- errors


@pytest.mark.parametrize(
    "build, says",
    [
        (lambda: Transformer(8, 1, 1, heads=3), "Received: heads=3"),
        (lambda: Transformer(8, 1, 1, heads=4, kv_heads=3), "Received: kv_heads=3"),
        (lambda: SMALL.weights(mp=3), "Received: mp=3, vocab=100"),
        (lambda: SMALL.weights(pp=3), "Received: pp=3, layers=4"),
        (lambda: Layout(sharding=2, stage=4), "stage=4"),
        (lambda: Layout(stage=2), "Received: sharding=1, stage=2, split_param=False"),
        (lambda: Layout(split_param=True), "Received: sharding=1, stage=1, split_param=True"),
        (lambda: Layout(sharding=2, stage=2, split_param=True), "stage=2, split_param=True"),
        (lambda: Layout(sharding=2, stage=2, pp=2), "stage=2, split_param=False, pp=2"),
        (lambda: OptimizerSpec("lamb", beta1=0.9), "Received: beta1=0.9, name='lamb'"),
        (lambda: OptimizerSpec("lamb", compression=True), "Received: compression=True, name='lamb'"),
        (lambda: OptimizerSpec("came", amsgrad=True), "Received: amsgrad=True, name='came'"),
        (lambda: OptimizerSpec("came", beta1=0.0, compression=True), "Received: beta1=0.0"),
        (lambda: OptimizerSpec("came", dtype="float32", multi_precision=True), "dtype='float32'"),
        (lambda: estimate(SMALL, OptimizerSpec("came"), Layout(sharding=2, stage=3)), "Received: stage=3, name='came'"),
        (lambda: estimate({"a": [2]}, OptimizerSpec("came"), Layout(mp=2)), "Received: mp=2, pp=1"),
    ],
)
def test_errors(build, says):
    with pytest.raises(ValueError) as error:
        build()
    assert says in str(error.value)


# ---- the command


def run(capsys, *options):
    assert main(["memory", *options]) == 0
    return capsys.readouterr().out


def test_the_command_shows_plans_side_by_side(capsys):
    out = run(capsys, "--params", "7e9", "--sharding", "8", "--optimizer", "came", "lamb")
    assert "6.74 B parameters" in out and "sharding 8 v1" in out and "…" not in out
    assert [line.split()[-2:] for line in out.splitlines() if line.startswith(" state")] == [["3.17", "6.34"]]


def test_json_and_markdown(capsys):
    layouts = ["--layout", "dp=2", "sharding=2,split_param,pp=2", "--tokens", "1000"]
    shape = ["--hidden", "64", "--layers", "4", "--heads", "4"]
    options = [*shape, *layouts, "--optimizer", "came,beta1=0", "adafactor,beta1=0.9"]
    answer = json.loads(run(capsys, *options, "--json", "--no-masters", "--grad-dtype", "float32"))
    expected = [
        estimate(
            Transformer(64, 4, heads=4),
            OptimizerSpec(name, beta1=beta1, grad_dtype="float32", multi_precision=False),
            layout,
            tokens=1000,
        ).to_dict()
        for layout in (Layout(dp=2), Layout(sharding=2, split_param=True, pp=2))
        for name, beta1 in (("came", 0.0), ("adafactor", 0.9))
    ]
    assert answer["plans"] == expected and answer["size"] == Transformer(64, 4, heads=4).size
    assert "| GiB | came, beta1 0, dp 2 |" in run(capsys, *options, "--markdown")


def test_a_flag_can_be_unset(capsys):
    options = ["--params", "1e9", "--sharding", "2", "--split-param", "--json", "--optimizer"]
    plans = json.loads(run(capsys, *options, "adafactor", "adafactor,scale_parameter=false"))["plans"]
    assert plans[1]["optimizer"]["options"] == {"scale_parameter": False}
    assert plans[1]["sent_sums"] < plans[0]["sent_sums"]


def test_a_model_by_its_name(capsys):
    answer = json.loads(run(capsys, "--model", "BertForSequenceClassification", "--dtype", "float32", "--json"))
    assert answer["size"] == 109_494_530
    assert answer["plans"][0]["parameters"] == 4 * answer["size"]


@pytest.mark.parametrize(
    "options, says",
    [
        ([], "Received: --params=None, --model=None, shape={}"),
        (["--params", "7e9", "--hidden", "8"], "shape={'hidden': 8}"),
        (["--hidden", "8"], "Received: shape={'hidden': 8}"),
        (["--params", "7e9", "--layout", "dp=2", "--mp", "2"], "Received: --layout=['dp=2'], --mp=2"),
        (["--params", "7e9", "--layout", "dp"], "Received: --layout='dp'"),
        (["--params", "7e9", "--layout", "split_param=1"], "Received: --layout='split_param=1'"),
        (["--params", "7e9", "--layout", "dp=x"], "Received: --layout='dp=x'"),
        (["--params", "7e9", "--optimizer", "came,name=lamb"], "Received: --optimizer='came,name=lamb'"),
        (
            ["--params", "7e9", "--optimizer", "came,dtype=3"],
            "one of beta1=NUMBER, scale_parameter[=false], compression[=false]. Received: --optimizer='came,dtype=3'",
        ),
        (
            ["--params", "7e9", "--no-masters", "--optimizer", "came,multi_precision=0"],
            "Received: --optimizer='came,multi_preci",
        ),
        (["--params", "7e9", "--optimizer", "adam"], "the nearest is 'adamwdl'. Valid: "),
        (["--params", "7e9", "--dp", "0"], "Received: --dp=0"),
    ],
)
def test_errors_of_the_command(options, says, capsys):
    assert main(["memory", *options]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and says in shown.err and not shown.out


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_declarations(page):
    text = page.read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run docs/tables.py"


def test_every_table_has_a_place_in_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    assert sorted(re.findall(r"(?:<!--|\.\.) table: (.+?)(?: -->)?\n", text)) == sorted(tables.tables())
