"""The table of optimizers, and `create`."""

import copy
import json

import numpy as np
import paddle
import pytest
import tables
import trainer_common as common
from optimizer_cases import Net, same

import paddle_ldopt as ldopt
from paddle_ldopt._checks import checked_bool
from paddle_ldopt.optimizers import ELEMENT, Option, RuleOptimizer, State, register
from paddle_ldopt.optimizers.options import REGISTRY
from paddle_ldopt.tools.cli import main
from paddle_ldopt.tools.memory import estimate

RATES = {"came": {"learning_rate": 0.01}, "lamb": {"learning_rate": 0.01}}


def step(model, opt):
    model(paddle.to_tensor([[1, 2, 3]])).square().mean().backward()
    opt.step()
    opt.clear_grad()


def test_the_table_holds_every_optimizer_once():
    assert ldopt.list_optimizers() == ["adamwdl", "came", "lamb", "adafactor", "adamweightdecay", "muon"]
    assert [ldopt.optimizer_class(name).__name__.lower() for name in REGISTRY] == list(REGISTRY)
    assert all(info.summary for info in REGISTRY.values())
    with pytest.raises(ValueError, match="must be one of 'adamwdl', .*nearest is 'adamwdl'. Received: name='adamwld'"):
        ldopt.optimizer_class("adamwld")


@pytest.mark.parametrize("name", list(REGISTRY))
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_create_trains_each_layer_at_its_rate_and_what_was_frozen_once_it_is_unfrozen(name, decay):
    model, moved = Net(), []
    for param in model.blocks.parameters():
        param.stop_gradient = True
    opt = ldopt.create(name, model, decay, **RATES.get(name, {}))
    assert opt.layerwise_ratio(model.embed.weight) == decay**3
    assert opt.layerwise_ratio(model.blocks[1].linear1.weight) == decay
    for _ in range(2):
        before = {n: p.numpy().copy() for n, p in model.named_parameters()}
        step(model, opt)
        moved.append({n for n, p in model.named_parameters() if not np.array_equal(p.numpy(), before[n])})
        for param in model.blocks.parameters():
            param.stop_gradient = False
    assert moved[0] == {"embed.weight", "head.weight", "head.bias"}
    assert {*moved[0], "blocks.0.linear1.weight"} <= moved[1]


@pytest.mark.parametrize("name", [*REGISTRY, "adamw"])
def test_create_decays_neither_biases_nor_norms_and_a_deep_copy_decays_the_same(name):
    model, ends = Net(), []
    for param in model.parameters():
        param.set_value(paddle.full_like(param, 2.0))
    opt = ldopt.create(name, model, learning_rate=0.1, weight_decay=0.5)
    for network, optimizer in ((model, opt), copy.deepcopy(copy.deepcopy((model, opt)))):
        for param in network.parameters():
            param.grad = paddle.zeros_like(param)
        optimizer.step()
        ends.append({n: p.numpy() for n, p in network.named_parameters()})
    assert {n for n, end in ends[0].items() if (end != 2.0).any()} == {n for n, end in ends[0].items() if end.ndim > 1}
    same(*ends)


def test_the_decay_of_the_rate_is_no_layerwise_decay():
    model = Net()
    opt = ldopt.create("adamweightdecay", model, layerwise_decay=0.5, learning_rate=0.1, decay=0.25)
    assert opt.lr_divisor(ahead=4) == 2.0 and opt.layerwise_ratio(model.blocks[1].norm1.bias) == 0.5
    opt, _ = ldopt.LdoptConfig("adamweightdecay", {"decay": 0.25}).build(model, 10)
    assert opt.lr_divisor(ahead=4) == 2.0 and opt.layerwise_ratio(model.blocks[1].norm1.bias) == 1.0


def test_create_takes_rules_a_whole_decay_and_a_hook_which_gets_the_models_names():
    model = Net()
    rule = ldopt.LayerDecay(0.5, min_ratio=0.3, head_ratio=2.0)
    opt = ldopt.create("adamwdl", model, layerwise_decay=rule, rules={"embed": "head"})
    assert [opt.layerwise_ratio(p) for p in (model.embed.weight, model.blocks[0].norm1.bias)] == [2.0, 0.3]
    hook = lambda decay, names, n_layers, param: decay if "embed" in names[param.name] else 1.0  # noqa: E731
    opt = ldopt.create("lamb", model, 0.5, learning_rate=0.1, set_param_lr_fun=hook)
    assert [opt.layerwise_ratio(part.weight) for part in (model.embed, model.head)] == [0.5, 1.0]


HOOK = {"name": "lamb", "set_param_lr_fun": lambda param: 1.0}
LINEAR, IGNORED = paddle.nn.Linear(2, 2).parameters(), "A parameter group may only have the keys.*Received: "


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"name": "camel"}, ValueError, "the nearest is 'came'.*call `apply_layerwise_decay`. Received: name='camel'"),
        ({"name": "AdamWDL"}, ValueError, "the nearest is 'adamwdl'.*Received: name='AdamWDL'"),
        ({"name": None}, ValueError, "Received: name=None"),
        ({"layerwise_decay": 2.0}, ValueError, "Received: layerwise_decay=2.0"),
        ({"max_grad_norm": 1.0, "grad_clip": paddle.nn.ClipGradByValue(0.1)}, ValueError, "leave|give one"),
        ({"parameters": [], "groups": []}, ValueError, "leave|give one"),
        ({"layerwise_decay": 0.5, "layers": "given", "rules": {"head": 0}}, ValueError, "leave|give one"),
        ({**HOOK, "rules": {"x": "head"}}, ValueError, "have no effect beside a hook"),
        ({**HOOK, "example": paddle.ones([1, 2])}, ValueError, "have no effect beside a hook"),
        ({**HOOK, "name": "adamw"}, TypeError, "AdamW has no argument `set_param_lr_fun`"),
        ({"rules": {"nothing_like_it": "head"}}, ValueError, "rules"),
        ({"model": {"critic": 1}}, TypeError, "`model` must be a paddle.nn.Layer"),
        ({"model": {1: Net(), "1": Net()}}, ValueError, "Two networks of `model` have one name"),
        ({"model": [Net(), Net()], "example": paddle.ones([1, 2])}, TypeError, "`example` must be a function"),
        ({"name": "adamw", "groups": [{"params": LINEAR}, *LINEAR]}, TypeError, "`groups` must be"),
        *(
            ({"name": "adamw", "groups": [{"params": LINEAR, key: value}]}, ValueError, f"{IGNORED}{key}$")
            for key, value in (("lr", 1e-5), ("betas", (0.9, 0.99)), ("wd", 0.1))
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_calls(arguments, error, match):
    with pytest.raises(error, match=match):
        ldopt.create(**{"name": "adamwdl", "model": Net(), "learning_rate": 0.1, **arguments})


def test_create_leaves_exclusion_to_patterns():
    model, patterns = Net(), {"include_in_weight_decay": ["head.bias"], "exclude_from_weight_decay": ["bias", "norm"]}
    opt = ldopt.create("adamweightdecay", model, weight_decay_rate=0.1, **patterns)
    assert opt.has_weight_decay(model.head.bias) and not opt.has_weight_decay(model.blocks[0].linear1.bias)
    opt = ldopt.create("adamweightdecay", model, weight_decay=0.1, include_in_weight_decay=[r"head\.bias"])
    more = {param.name for param in model.parameters() if opt.has_weight_decay(param)}
    assert more == ldopt.decayed_parameter_names(model) | {model.head.bias.name}


def test_create_builds_paddles_own_adamw_with_layerwise_rates():
    model = Net()
    opt = ldopt.create("adamw", model, 0.5, learning_rate=0.1, weight_decay=0.5, max_grad_norm=2.0)
    assert isinstance(opt, paddle.optimizer.AdamW) and opt.get_lr() == 0.1 and opt._grad_clip.clip_norm == 2.0
    ratios = [opt.layerwise_ratio(param) for param in (model.embed.weight, model.head.weight)]
    assert ratios == [0.5 ** (len(model.blocks) + 1), 1.0]
    assert type(ldopt.create("adamw", model)) is paddle.optimizer.AdamW
    layers = ldopt.LayerMap.from_model(model)
    assert ldopt.create("adamw", model, layers=layers).layers is layers, "for its table and file"
    with pytest.raises(TypeError, match="`layers` must be a LayerMap"):
        ldopt.create("adamw", None, 0.5, parameters=model.parameters(), learning_rate=0.1)


def test_the_defaults_of_create_are_the_classes_and_those_of_the_configuration_the_trainers():
    model = Net()
    opt, (configured, _) = ldopt.create("adamwdl", model), ldopt.LdoptConfig().build(model, 9)
    found = [(each.get_lr(), each.values_now({})[0]["weight_decay"], each._grad_clip) for each in (opt, configured)]
    assert found[0] == (1e-3, 0.01, None) and found[1][:2] == (5e-5, 0.0) and found[1][2].clip_norm == 1.0


def test_create_with_a_rate_or_without_and_with_layers_or_params_of_its_own():
    model = Net()
    assert ldopt.create("adafactor", model, learning_rate=1e-3).get_lr() == 1e-3
    assert ldopt.create("adafactor", model).get_lr() == 0.0  # relative_step: no step yet
    assert ldopt.create("adafactor", model, learning_rate=None).get_lr() == 0.0
    layers = ldopt.LayerMap.from_model(model)
    opt = ldopt.create("came", model, 0.5, learning_rate=1e-3, layers=layers, params=model.head.parameters())
    assert opt.layerwise_ratio(model.head.weight) == 1.0 and len(opt._parameter_list) == 2
    opt = ldopt.create("adamwdl", model, 1.0, learning_rate=1e-3, example=paddle.to_tensor([[1, 2, 3]]))
    assert opt.layers.source == "measured" and set(opt.ratios.values()) == {1.0}


@pytest.fixture
def momentum():
    @register("an example; 4 bytes")
    class Momentum(RuleOptimizer):
        """Gradient descent with a momentum."""

        OPTIONS = {"mass": Option(0.9, "decay of the momentum", high=1.0, ends="[)")}

        @staticmethod
        def states(options, shape):
            return {"moment": State(ELEMENT)} if options["mass"] else {}

        @staticmethod
        def rule(param, grad, state, lr, *, shard, mass):
            moment = mass * state["moment"] + grad
            return param - lr * moment, {"moment": moment}

    yield Momentum
    del REGISTRY["momentum"]


def moved(opt, model):
    before = model.weight.numpy()
    model(paddle.ones([1, 2])).sum().backward()
    opt.step()
    return np.abs(model.weight.numpy() - before).max() > 0


def test_an_optimizer_of_ten_lines_is_known_everywhere(momentum, tmp_path, capsys):
    model = paddle.nn.Linear(2, 2)
    opt = ldopt.create("momentum", model, learning_rate=0.1, mass=0.5)
    assert moved(opt, model)
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 2)
    opt = ldopt.create("momentum", encoder, 0.5, learning_rate=0.1)
    assert [row.with_weight_decay for row in ldopt.LayerMap.from_model(encoder).table(optimizer=opt).rows] == [0, 0]
    config = ldopt.LdoptConfig("momentum", {"mass": 0.5}, lr_scheduler_type="constant")
    assert type(config.build(model)[0]) is momentum and moved(config.build(model)[0], model)
    with pytest.raises(ValueError, match=r"`mass` must be in \[0, 1\)"):
        ldopt.LdoptConfig("momentum", {"mass": 1})
    trainer = common.trainer(tmp_path, optim="momentum", optim_kwargs='{"mass": 0.5}', weight_decay=0.0, max_steps=1)
    trainer.train()
    assert type(trainer.optimizer) is momentum
    assert estimate({"w": [2, 2]}, "momentum")["state"] == 4 * 4 + 4
    capsys.readouterr()
    assert main(["memory", "--model", "BertModel", "--optim", "momentum", "momentum,mass=0", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["bytes"]) == 2
    assert "| `mass` | decay of the momentum | momentum: `0.9` | [0, 1) | class |" in tables.options_table()
    assert "| momentum | `moment`, `beta1_pow_acc` | 4 R C + 4 | 4 n + 4 |" in tables.states_table()
    with pytest.raises(ValueError, match='The name "adamw" is that of Paddle.* Received: cls='):
        register("another")(type("AdamW", (RuleOptimizer,), {}))


@pytest.mark.parametrize(
    "name, own, setting, value", [("adamweightdecay", "beta_1", "beta1", 0.5), ("lamb", "eps", "epsilon", 1e-3)]
)
def test_an_option_may_be_given_by_either_name_of_it(name, own, setting, value):
    model, rate = Net(), {"learning_rate": 0.1}
    for given in (own, setting):
        assert ldopt.create(name, model, **rate, **{given: value}).values_now({})[0][own] == value
        config = ldopt.LdoptConfig(name, {given: value})
        assert config.optim_kwargs == {setting: value} and config.build(model, 9)[0].values_now({})[0][own] == value
        with pytest.raises(ValueError, match=f"`{given}` must be in .*Received: {given}=-1"):
            ldopt.create(name, model, **rate, **{given: -1})
        with pytest.raises(ValueError, match=f"`{setting}` must be in .*Received: {setting}=-1"):
            ldopt.LdoptConfig(name, {given: -1})
    both = {own: value, setting: value}
    twice = f"`{own}` is another name for `{setting}`: give one of them. Received: {setting}={value}, {own}={value}"
    with pytest.raises(ValueError, match=twice):
        ldopt.create(name, model, **rate, **both)
    with pytest.raises(ValueError, match="two names for one option. Received: optim_kwargs="):
        ldopt.LdoptConfig(name, both)


@pytest.mark.parametrize("name", list(REGISTRY))
def test_every_option_says_what_it_may_be_and_has_a_valid_default(name):
    assert not {"beta_1", "beta_2", "eps", "lr", "weight_decay_rate"} & REGISTRY[name].settings.keys()
    for option, declared in REGISTRY[name].options.items():
        assert declared.doc and (declared.check in (None, checked_bool) or declared.values), option
        declared.checked(declared.default, option)


@pytest.mark.filterwarnings("ignore:Some layers of the model")
@pytest.mark.parametrize("kind", [dict, list])
def test_several_models_are_towers_of_one_optimizer(kind):
    networks = {"critic": Net(), "generator": Net()}
    opt = ldopt.create("adamwdl", networks if kind is dict else list(networks.values()), 0.5, learning_rate=0.1)
    for network in networks.values():
        assert [opt.layerwise_ratio(network.blocks[i].linear1.weight) for i in range(2)] == [0.25, 0.5]
    assert len(opt._parameter_list) == 2 * len(Net().parameters())
    many = [paddle.nn.Linear(2, 2) for _ in range(28)]
    opt = ldopt.create("lamb", many, learning_rate=0.1)
    assert [opt.structured_name(many[i].weight) for i in (0, 27)] == ["network_a.weight", "network_ab.weight"]


def test_groups_may_be_a_generator_have_either_name_and_keys_that_paddle_reads():
    model = paddle.nn.Linear(2, 2)
    opt = ldopt.create("lamb", model, learning_rate=0.1, groups=({"params": [p]} for p in model.parameters()))
    assert [group["params"] for group in opt._param_groups] == [[p] for p in model.parameters()]
    opt = ldopt.create("lamb", model, learning_rate=0.1, parameters=[{"params": model.parameters()}], weight_decay=0.1)
    assert all(map(opt.has_nonzero_weight_decay, model.parameters())), "as with `groups`"
    keys = {"beta1": 0.5, "weight_decay": 0.0, "group": "decay", "lr_scale": 1.0}
    opt = ldopt.create("adamw", model, learning_rate=0.1, groups=[{"params": model.parameters(), **keys}])
    assert opt._param_groups[0]["beta1"] == 0.5
