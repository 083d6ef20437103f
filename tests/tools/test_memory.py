"""`memory`: its bytes against those that the optimizers really hold."""

import json
import math
import re

import paddle
import pytest
import tables
from paddlenlp.transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM, LlamaModel
from state_bytes import ROWS, bytes_of

import paddle_ldopt as ldopt
from paddle_ldopt.tools.cli import main
from paddle_ldopt.tools.memory import estimate

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TINY = LlamaConfig(num_hidden_layers=4, hidden_size=64, intermediate_size=96, vocab_size=100, **HEADS)
CASES = {
    **ROWS,
    "muon": ({}, ""),
    **{f"came, beta1 {beta}": ({"learning_rate": 1e-3, "beta1": beta}, "") for beta in (0.0, None)},
}


def shapes_of(model):
    return {name: tuple(param.shape) for name, param in model.named_parameters()}


def bert():
    config = BertConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=50)
    return shapes_of(BertForSequenceClassification(config))


def llama():
    return shapes_of(LlamaForCausalLM(TINY))


@pytest.mark.representatives
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("build", [bert, llama])
@pytest.mark.parametrize("name", CASES)
def test_state_and_masters_equal_the_bytes_of_real_optimizers(name, build, dtype):
    shapes, (arguments, _) = build(), CASES[name]
    zero = paddle.nn.initializer.Constant(0.0)
    params = [paddle.create_parameter(list(shape), dtype, default_initializer=zero) for shape in shapes.values()]
    for param in params:
        param.grad = paddle.full(param.shape, 1e-3, dtype)
    names = {"name_dict": {param.name: structured for param, structured in zip(params, shapes)}}
    if name == "muon":
        layers = ldopt.LayerMap.from_names(list(shapes))
        layers.name_dict.update(names["name_dict"])
        names = {"layers": layers}
    masters = {"multi_precision": True} if dtype != "float32" else {}
    cls = ldopt.optimizer_class(name.split(",")[0])
    optimizer = cls(parameters=params, **names, **masters, **arguments)
    optimizer.step()
    options = {key: value for key, value in arguments.items() if key != "learning_rate"}
    answer = estimate(shapes, name.split(",")[0], dtype, **options)
    masters = optimizer.state_dict().get("master_weights", {}).values()
    size = sum(map(math.prod, shapes.values()))
    want = dict.fromkeys(["parameters", "gradients"], size * (4 if dtype == "float32" else 2))
    want.update(masters=sum(master.size * 4 for master in masters), state=bytes_of(optimizer))
    assert answer == {**want, "total": sum(want.values())}


def test_unknown_options_and_types():
    with pytest.raises(ValueError, match="`lamb`: 'compression' is not a known option;"):
        estimate({"a": [2]}, "lamb", compression=True)
    with pytest.raises(ValueError, match="`lamb`: 'dtype' is not a known option"):
        estimate({"a": [2]}, "lamb", dtype="int8")
    with pytest.raises(ValueError, match="`dtype` must be one of .*Received: dtype='int8'"):
        estimate({"a": [2]}, "lamb", "int8")


def run(capsys, *options):
    assert main(["memory", *options]) == 0
    return capsys.readouterr().out


def test_the_command_shows_optimizers_side_by_side(capsys):
    out = run(capsys, "--model", "LlamaForCausalLM", "--optim", "came", "lamb")
    assert "6.74 B parameters" in out
    assert [line.split()[-2:] for line in out.splitlines() if line.startswith(" state")] == [["25.1", "50.2"]]


def test_json(tmp_path, capsys):
    assert estimate({"a": [2]}, "lamb", multi_precision=False)["masters"] == 0
    TINY.save_pretrained(str(tmp_path))
    options = ["--model", str(tmp_path), "--optim", "came,beta1=0", "came,compression,multi_precision=false"]
    answer = json.loads(run(capsys, *options, "--json", "--dtype", "float16"))
    shapes = shapes_of(LlamaModel(TINY))
    assert answer["size"] == sum(map(math.prod, shapes.values()))
    assert answer["bytes"] == {
        "came,beta1=0": estimate(shapes, "came", "float16", beta1=0.0),
        options[-1]: estimate(shapes, "came", "float16", multi_precision=False, compression=True),
    }


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_declarations(page):
    text = page.read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run docs/tables.py"


def test_every_table_has_a_place_in_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    assert sorted(re.findall(r"(?:<!--|\.\.) table: (.+?)(?: -->)?\n", text)) == sorted(tables.tables())
