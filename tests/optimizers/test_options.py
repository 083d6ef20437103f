"""The arguments of every optimizer: names, order and defaults, and how values outside their ranges are refused."""

import inspect
import re

import numpy as np
import paddle
import pytest
from golden.trajectories import load_index
from optimizer_cases import OPTIMIZERS, every_optimizer, make
from reference import make_params

import paddle_ldopt as ldopt
from paddle_ldopt.optimizers import Option, RuleOptimizer, register
from paddle_ldopt.optimizers.options import LAYERWISE, REGISTRY

# the positional arguments of the libraries that the optimizers are ported from, then arguments by keyword
SIGNATURES = {
    "adamwdl": "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, parameters=None, weight_decay=0.01, "
    "apply_decay_param_fun=None, grad_clip=None, lazy_mode=False, multi_precision=False, layerwise_decay=1.0, "
    "n_layers=12, set_param_lr_fun=layerwise_lr_decay, name_dict=None, name=None, *, layers=None, lr_ratio=None, "
    "fused=None",
    "came": "learning_rate=None, eps=(1e-30, 0.001, 1e-16), clip_threshold=1.0, decay_rate=0.8, beta1=0.9, beta3=0.99, "
    "weight_decay=0.0, scale_parameter=False, relative_step=False, warmup_init=False, compression=False, loss_scale=1, "
    "parameters=None, *, params=None, beta2=None",
    "lamb": "learning_rate, beta1=0.9, beta2=0.999, eps=1e-06, weight_decay=0.0, parameters=None, *, params=None",
    "adafactor": "parameters=None, lr=None, eps=(1e-30, 0.001), clip_threshold=1.0, decay_rate=-0.8, beta1=None, "
    "weight_decay=0.0, scale_parameter=True, relative_step=True, warmup_init=False, *, params=None, "
    "learning_rate=None",
    "adamweightdecay": "learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-07, amsgrad=False, "
    "weight_decay_rate=0.0, include_in_weight_decay=None, exclude_from_weight_decay=None, name='AdamWeightDecay', *, "
    "lr=None, decay=0.0, clipnorm=None, clipvalue=None, global_clipnorm=None, parameters=None, weight_decay=None, "
    "grad_clip=None",
    "muon": "learning_rate=0.001, weight_decay=0.1, momentum=0.95, nesterov=True, "
    "ns_coefficients=(3.4445, -4.775, 2.0315), ns_steps=5, adjust_lr='match_rms_adamw', beta1=0.9, beta2=0.999, "
    "epsilon=1e-08, parameters=None, *, ns_dtype=None, use_muon=None",
}
NAN, INF = float("nan"), float("inf")
EVERY_OPTION = [(name, option) for name in OPTIMIZERS for option in REGISTRY[name].cls.OPTIONS]


def one_parameter():
    return list(make_params({"w": np.ones((2, 2))})[0].values())


def text_of(parameter):
    if parameter.default is parameter.empty:
        return parameter.name
    default = parameter.default
    return f"{parameter.name}={default.__name__ if callable(default) else repr(default)}"


def test_every_registered_optimizer_is_in_the_table_of_these_tests():
    """So test_batches.py runs every rule on single parameters and on stacks of them."""
    assert OPTIMIZERS.keys() == REGISTRY.keys() == {case["ours"]["optimizer"] for case in load_index()["cases"]}
    parameters = inspect.signature(ldopt.AdamWDL).parameters
    assert {name: parameters[name].default for name in LAYERWISE} == LAYERWISE


@every_optimizer
def test_the_signature_is_the_documented_one(name):
    parameters = list(inspect.signature(REGISTRY[name].cls).parameters.values())
    positional = [text_of(p) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_keyword = [text_of(p) for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert ", ".join([*positional, "*", *by_keyword]) == SIGNATURES[name]
    opt = make(name, one_parameter())
    assert isinstance(opt, paddle.optimizer.Optimizer)
    assert opt.type == ("adamw" if name == "adamwdl" else name), "as in Paddle, whose strategies name it in messages"


@pytest.mark.parametrize("cls", [ldopt.Came, ldopt.Lamb])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_parameters_come_first_as_in_mindspore(cls, grouped):
    def trained(how):
        weight, bias = make_params({"w": np.ones((2, 2)), "b": np.ones(2)})[0].values()
        bias.stop_gradient = not grouped  # a frozen parameter is one as well
        groups = [{"params": [bias], "weight_decay": 0.1}, {"params": [weight]}, {"order_params": [weight, bias]}]
        opt = how(groups if grouped else [bias, weight])
        weight.grad = paddle.full([2, 2], 0.5)
        opt.step()
        return weight.numpy()

    want = trained(lambda params: cls(0.1, parameters=params))
    np.testing.assert_array_equal(trained(lambda params: cls(params, 0.1)), want)
    np.testing.assert_array_equal(trained(lambda params: cls(tuple(params), learning_rate=0.1)), want)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'params'"):
        trained(lambda params: cls(params, 0.1, params=params))


def bad_values(span):
    """Return [(value, error, the message up to "Received")] for an option with this range."""
    none = () if "None" in span else (None,)
    if "bool" in span:
        return [(value, TypeError, "must be a bool") for value in (1, "no", *none)]
    if "int" in span:
        wrong = [(value, TypeError, "must be an integer") for value in (1.0, True, None)]
        return [(0, ValueError, "must be at least 1"), *wrong]
    limits = re.match(r"([\[(])(\S+), (\S+)([\])])", span)
    if limits is None or "function" in span or "schedule" in span or "and" in span:
        return []
    left, low, high, right = limits.groups()
    low, high = float(low), float(high)
    outside = [NAN, INF, -INF, low - 0.1 if np.isfinite(low) else -INF, high + 0.1]
    outside += [low] * (left == "(") + [high] * (right == ")")
    refused = [(value, ValueError, f"must be in {limits.group()}") for value in outside]
    return [*refused, *((value, TypeError, "must be a number") for value in ("0.5", True, *none))]


@pytest.mark.parametrize(("name", "option"), EVERY_OPTION)
@pytest.mark.parametrize("grouped", [False, True], ids=["", "in a group"])
def test_a_bad_value_is_refused_with_its_name(name, option, grouped):
    """The ranges themselves are in docs/options.md, which tests/tools/test_cli.py compares."""
    how = REGISTRY[name].options[option]
    if grouped and not how.group:
        with pytest.raises(ValueError, match=rf"A parameter group may only have the keys .* Received: {option}$"):
            make(name, [{"params": one_parameter(), option: how.default}])
        return
    called = how.called or option
    for value, error, message in bad_values(how.span):
        if option == "weight_decay" and value is None:
            continue  # no weight decay
        with pytest.raises(error, match=f"{re.escape(message)}.*Received: {called}={re.escape(repr(value))}"):
            if grouped or not how.argument:
                make(name, [{"params": one_parameter(), option: value}])
            else:
                make(name, one_parameter(), **{called: value})


@pytest.mark.parametrize("name", ["came", "adafactor"])
@pytest.mark.parametrize(
    ("spoil", "error", "match"),
    [
        (lambda eps: eps[0], ValueError, r"`eps` must be a tuple of \d numbers. Received: eps=1e-30"),
        (lambda eps: (*eps, 1.0), ValueError, r"`eps` must be a tuple of \d numbers"),
        (lambda eps: (0.0, *eps[1:]), ValueError, r"`eps\[0\]` must be in \(0, inf\). Received: eps\[0\]=0.0"),
        (lambda eps: [eps[0], -1.0, *eps[2:]], ValueError, r"`eps\[1\]` must be in .0, inf\). Received: eps\[1\]=-1.0"),
        (lambda eps: (eps[0], "1", *eps[2:]), TypeError, r"`eps\[1\]` must be a number. Received: eps\[1\]='1'"),
    ],
)
def test_bad_eps_are_refused(name, spoil, error, match):
    with pytest.raises(error, match=match):
        make(name, one_parameter(), eps=spoil(REGISTRY[name].options["eps"].default))


@every_optimizer
def test_an_unknown_argument_is_refused_with_the_nearest(name):
    model = paddle.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="has no argument `layer_decay`; the nearest is 'layerwise_decay'. Received: "):
        ldopt.create(name, model, learning_rate=0.1, layer_decay=0.5)
    with pytest.raises(TypeError, match="has no argument `rule`; the nearest is 'rules'. Received: rule="):
        ldopt.create(name, model, learning_rate=0.1, rule={"a": 1})
    with pytest.raises(TypeError, match="mass"):
        make(name, one_parameter(), mass=0.9)


def test_the_default_of_an_option_is_the_constructors():
    class Forgetful(RuleOptimizer):
        OPTIONS = {"mass": Option(doc="decay of the momentum")}

        def __init__(self, mass=0.5, passed_on=(), **arguments):
            super().__init__(**dict(passed_on, **arguments))

    register("an example")(Forgetful)
    assert REGISTRY.pop("forgetful").options["mass"].default == 0.5
    assert Forgetful(parameters=one_parameter(), passed_on={"mass": 1})._options == {"mass": 1.0}
    with pytest.raises(TypeError, match="`mass` must be a number"):
        Forgetful(parameters=one_parameter())


def test_an_option_may_be_a_list():
    class Listed(RuleOptimizer):
        OPTIONS = {"sizes": Option(check=lambda value, name: value, default=(1,), group=True)}

        @staticmethod
        def rule(param, grad, state, lr, *, shard, sizes):
            yield []
            return param - lr * len(sizes) * grad, {}

    params = [*one_parameter(), *one_parameter()]
    opt = Listed(0.1, [{"params": params[:1], "sizes": [1, 2]}, {"params": params[1:]}], sizes=[1, 2, 3])
    opt.apply_gradients([(param, paddle.ones_like(param)) for param in params])
    for param, moved in zip(params, (0.2, 0.3)):
        np.testing.assert_allclose(1.0 - param.numpy(), moved, rtol=1e-5)
