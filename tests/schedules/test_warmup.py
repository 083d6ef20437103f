"""WarmUp and create_optimizer: TensorFlow's rates and trajectories, what is decayed, resumes, and every error."""

import functools
import inspect
import math
import pickle
import time
import warnings

import numpy as np
import paddle
import pytest
from golden_cases import cases, follow, load, needs_golden
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import bert_like, llrd_ratio, make_params, take_steps
from reference_adam_weight_decay import adam_weight_decay
from test_schedules import a_million_takes

import paddle_ldopt as ldopt
from paddle_ldopt import AdamWeightDecay, LayerMap, decayed_parameter_names
from paddle_ldopt.schedules.warmup import WarmUp
from paddle_ldopt.tensorflow_recipe import create_optimizer

lr = paddle.optimizer.lr
SCHEDULES = [case for case in cases("schedule", "schedule") if case["peer"] == "tf"]
FACTORY = [case for case in cases("adamweightdecay") if case["cls"].endswith(".create_optimizer")]


pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def by_id(entry):
    return entry["id"]


def rates(schedule, steps):
    """Return the rates of the next steps, the present one first."""
    out = []
    for _ in range(steps):
        out.append(schedule())
        schedule.step()
    return out


def cosine(step, start, steps):
    """Keras' CosineDecay; it computes in float32, which shows where the cosine is near -1."""
    done = np.float32(min(step, steps)) / np.float32(steps)
    return np.float32(start) * np.float32(0.5) * (np.float32(1) + np.cos(np.float32(math.pi) * done))


def constant(step, rate):
    return rate


def one_param():
    return [paddle.create_parameter([2], "float32")]


# ---- TensorFlow's own numbers


@needs_golden
@pytest.mark.parametrize("entry", SCHEDULES, ids=by_id)
def test_rates_are_tensorflows(entry):
    options = dict(entry["options"])
    if "decay_schedule_fn" in options:
        decays = {
            "CosineDecay(1e-2, 120)": functools.partial(cosine, start=1e-2, steps=120),
            "lambda s: 0.5e-3 (jumps)": functools.partial(constant, rate=0.5e-3),
        }
        schedule = WarmUp(**{**options, "decay_schedule_fn": decays[options["decay_schedule_fn"]]})
    else:
        _, schedule = create_optimizer(**options, parameters=one_param())
    want = load(entry).arrays["lr"]
    np.testing.assert_allclose(rates(schedule, len(want)), want, **entry["tol"])


@needs_golden
def test_the_golden_schedules_are_there():
    assert len(SCHEDULES) >= 5 and len(FACTORY) >= 2


@needs_golden
@pytest.mark.parametrize("named", ["name_dict", "tensor names"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("entry", FACTORY, ids=by_id)
def test_trajectory_is_tensorflows(entry, dtype, named):
    def build(params, name_dict):
        if named == "tensor names":
            for name, param in params.items():
                param.name = name
            name_dict = None
        optimizer, schedule = create_optimizer(
            **entry["options"], parameters=list(params.values()), name_dict=name_dict
        )
        return optimizer, schedule.step

    with paddle.utils.unique_name.guard():
        follow(entry, dtype, build)


@pytest.mark.parametrize("options", [{}, {"weight_decay_rate": 0.1}, {"adam_clipnorm": 0.3}], ids=str)
def test_trajectory_under_warm_up_is_the_references(options):
    arrays, grads = bert_like(steps=12)
    params, name_dict = make_params(arrays, "float64")
    optimizer, schedule = create_optimizer(
        0.01, 10, 4, 0.1, 0.8, 0.9, 1e-3, power=2.0, parameters=params.values(), name_dict=name_dict, **options
    )
    got = take_steps(optimizer, params, grads, schedule.step)
    rate = [0.01 * k / 4 if k < 4 else 0.01 * (0.1 + 0.9 * (1 - (min(k, 10) - 4) / 6) ** 2) for k in range(12)]
    given = {"clipnorm": options.get("adam_clipnorm"), "weight_decay_rate": options.get("weight_decay_rate", 0.0)}
    decayed = {n for n in arrays if "norm" not in n and "bias" not in n}
    want = reference(arrays, grads, rate, decayed, **given)
    for name in arrays:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-11, atol=1e-13, err_msg=name)


def reference(arrays, grads, rate, decayed, **given):
    how = {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3, **given}
    return adam_weight_decay(arrays, grads, lr=lambda t: rate[t - 1], decayed=decayed.__contains__, **how)


# ---- WarmUp

DECAYS = {
    "function": functools.partial(cosine, start=1e-2, steps=40),
    "PolynomialDecay": lr.PolynomialDecay(1e-2, 40, 1e-4, 2.0),
    "StepDecay": lr.StepDecay(1e-2, 7),
    "MultiStepDecay": lr.MultiStepDecay(1e-2, [5, 11]),
    "CosineAnnealingDecay": lr.CosineAnnealingDecay(1e-2, 20),
    "LinearWarmup": lr.LinearWarmup(lr.ExponentialDecay(1e-2, 0.9), 5, 0.0, 1e-2),
    "WarmUp": WarmUp(1e-2, lr.NaturalExpDecay(1e-2, 0.1), 3),
}


class Halving(lr.LRScheduler):
    """A rate computed from the last one: step k is known only by going there."""

    def get_lr(self):
        return self.base_lr if self.last_epoch == 0 else self.last_lr * 0.5


@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_after_the_warm_up_comes_the_decay_from_its_start(decay):
    alone = [decay(k) for k in range(60)] if isinstance(decay, functools.partial) else None
    if alone is None:
        fresh = pickle.loads(pickle.dumps(decay))
        alone = rates(fresh, 60)
    schedule = WarmUp(2e-2, decay, 8, power=0.5)
    got = rates(schedule, 68)
    np.testing.assert_allclose(got, [2e-2 * (k / 8) ** 0.5 for k in range(8)] + alone, rtol=1e-12)
    np.testing.assert_allclose([schedule(k) for k in range(68)], got, rtol=1e-12)
    assert schedule.last_epoch == 68, "asking for the rate of a step changes nothing"


def test_the_scheduler_inside_is_a_copy():
    decay = lr.StepDecay(1e-2, 2)
    first, second = WarmUp(1e-2, decay, 2), WarmUp(1e-2, decay, 2)
    want = rates(first, 20)
    assert decay.last_epoch == 0 and rates(second, 20) == want
    assert rates(WarmUp.from_config(first.get_config()), 20) == want


def test_a_rate_computed_from_the_last_one():
    assert rates(WarmUp(1.0, Halving(1.0), 2), 6) == [0.0, 0.5, 1.0, 0.5, 0.25, 0.125]


@pytest.mark.parametrize("decay", [*DECAYS.values(), Halving(1e-2)], ids=[*DECAYS, "Halving"])
@pytest.mark.parametrize("stop", [0, 1, 7, 8, 9, 30])
def test_a_resume_is_exact(decay, stop):
    warnings.filterwarnings("ignore", "There are some unused values")  # Paddle's LinearWarmup, of its own state
    whole = rates(WarmUp(2e-2, decay, 8), 60)
    first = WarmUp(2e-2, decay, 8)
    assert rates(first, stop) == whole[:stop]
    second = WarmUp(2e-2, decay, 8)
    second.set_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    third = pickle.loads(pickle.dumps(first))
    for resumed in (second, third):
        assert resumed() == whole[stop] and rates(resumed, 60 - stop) == whole[stop:]
    if not isinstance(decay, Halving):
        assert rates(WarmUp(2e-2, decay, 8, last_epoch=stop - 1), 60 - stop) == pytest.approx(whole[stop:], rel=1e-12)


def test_a_resume_through_the_optimizers_state():
    params = one_param()
    optimizer, schedule = create_optimizer(1e-2, 30, 5, parameters=params)
    rates(schedule, 12)
    params[0].grad = paddle.ones([2])
    optimizer.step()
    state = optimizer.state_dict()
    again, other = create_optimizer(1e-2, 30, 5, parameters=params)
    again.set_state_dict(state)
    assert again.get_lr() == other() == schedule() and other.last_epoch == 12
    assert rates(other, 30) == rates(schedule, 30)


def test_a_million_steps_and_a_resume_there():
    _, schedule = create_optimizer(1e-3, 900_000, 1000, 0.01, power=2.0, parameters=one_param())
    start = time.process_time()
    for _ in range(10**6 - 1):
        schedule.step()
    assert time.process_time() - start < a_million_takes()
    resumed = WarmUp(**schedule.get_config(), last_epoch=10**6 - 2)
    copied = pickle.loads(pickle.dumps(schedule))
    assert resumed() == copied() == schedule() == schedule(10**6 - 1) == 1e-5
    assert rates(resumed, 3) == rates(copied, 3) == rates(schedule, 3)


@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_short_warm_ups(warmup_steps):
    schedule = WarmUp(1.0, functools.partial(cosine, start=1.0, steps=10), warmup_steps)
    assert rates(schedule, 20)[: warmup_steps + 1] == [0.0] * warmup_steps + [1.0]


def test_config_is_the_arguments_of_transformers():
    decay = functools.partial(constant, rate=1e-3)
    config = WarmUp(1e-3, decay, 10, 2.0, "mine").get_config()
    assert config == {
        "initial_learning_rate": 1e-3,
        "decay_schedule_fn": decay,
        "warmup_steps": 10,
        "power": 2.0,
        "name": "mine",
    }
    assert list(inspect.signature(WarmUp).parameters)[:5] == list(config)
    assert WarmUp(**config).get_config() == config


@settings(max_examples=60, deadline=None)
@given(
    peak=st.floats(0, 10),
    steps=st.integers(1, 60),
    part=st.floats(0, 1),
    ratio=st.floats(0, 1),
    power=st.floats(0.01, 8),
)
def test_any_schedule_of_the_factory_is_sound(peak, steps, part, ratio, power):
    warmup = int(part * steps)
    _, schedule = create_optimizer(peak, steps, warmup, ratio, power=power, parameters=one_param())
    got = np.array(rates(schedule, steps + 5))
    assert np.isfinite(got).all() and (got >= 0).all() and (got <= peak * (1 + 1e-12)).all()
    np.testing.assert_allclose(got[:warmup], [peak * k / warmup for k in range(warmup)], rtol=1e-12)
    assert (np.diff(got[warmup:]) <= 1e-12 * peak).all()
    np.testing.assert_allclose(got[steps:], peak * ratio, rtol=1e-12, atol=1e-300)
    if warmup < steps:
        assert got[warmup] == pytest.approx(peak, rel=1e-12)


GOOD = {"initial_learning_rate": 1e-3, "decay_schedule_fn": lr.StepDecay(1e-3, 2), "warmup_steps": 10}


@pytest.mark.parametrize(
    "argument, value, error",
    [
        ("initial_learning_rate", -1e-3, ValueError),
        ("initial_learning_rate", float("nan"), ValueError),
        ("initial_learning_rate", "fast", TypeError),
        ("decay_schedule_fn", 1e-3, TypeError),
        ("decay_schedule_fn", lr.StepDecay, TypeError),
        ("decay_schedule_fn", lr.ReduceOnPlateau(1e-3), TypeError),
        ("decay_schedule_fn", ldopt.ReduceLROnPlateau(1e-3), TypeError),
        ("decay_schedule_fn", ldopt.GreedyLR(1e-3), TypeError),
        ("decay_schedule_fn", lambda step: "fast", TypeError),
        ("decay_schedule_fn", lambda step: None, TypeError),
        ("decay_schedule_fn", lambda step: -1e-3, ValueError),
        ("decay_schedule_fn", lambda step: float("inf"), ValueError),
        ("warmup_steps", -1, ValueError),
        ("warmup_steps", 1.5, TypeError),
        ("warmup_steps", True, TypeError),
        ("power", 0.0, ValueError),
        ("power", -1.0, ValueError),
        ("name", 3, TypeError),
        ("last_epoch", -2, ValueError),
    ],
)
def test_bad_arguments_of_the_warm_up(argument, value, error):
    with pytest.raises(error, match=f"`{argument}`.*Received: {argument}"):
        WarmUp(**{**GOOD, argument: value})


def test_bad_rates_and_steps_are_refused_when_they_come():
    schedule = WarmUp(1.0, lambda step: 1.0 - step, 1)
    with pytest.raises(ValueError, match=r"Received: decay_schedule_fn\(2\)=-1.0"):
        rates(schedule, 5)
    for bad, error in ((-1, ValueError), (0.5, TypeError)):
        with pytest.raises(error, match="`step`"):
            schedule(bad)


def test_a_state_of_another_kind_of_decay_is_refused():
    function, scheduler = WarmUp(1.0, DECAYS["function"], 2), WarmUp(1.0, lr.StepDecay(1.0, 2), 2)
    rates(scheduler, 5)
    for one, other in ((function, scheduler), (scheduler, function)):
        before = one.state_dict()
        with pytest.raises(ValueError, match="`decay_schedule_fn`"):
            one.set_state_dict(other.state_dict())
        assert one.state_dict() == before


# ---- what the factory decays


class Block(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.q_proj = paddle.nn.Linear(4, 4)
        self.input_layernorm = paddle.nn.LayerNorm(4)
        self.ln_1 = paddle.nn.LayerNorm(4)
        self.post = paddle.nn.LayerNorm(4)  # no name tells it: its class does
        self.query = paddle.nn.Linear(4, 4, bias_attr=False)

    def forward(self, x):
        return self.query(self.post(self.ln_1(self.input_layernorm(self.q_proj(x)))))


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.embeddings = paddle.nn.Embedding(5, 4)
        self.layers = paddle.nn.LayerList([Block() for _ in range(3)])
        self.norm = paddle.nn.LayerNorm(4)
        self.classifier = paddle.nn.Linear(4, 2)

    def forward(self, x):
        x = self.embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.norm(x))


def names_of(model):
    return {param.name: name for name, param in model.named_parameters()}


def decayed(optimizer, model):
    return {name for name, param in model.named_parameters() if optimizer.has_weight_decay(param)}


def weights(model):
    return {n for n, p in model.named_parameters() if p.name in decayed_parameter_names(model)}


def test_norms_and_biases_are_not_decayed_and_nothing_is_warned_of():
    model = Net()
    given = {"model": {"model": model}}
    given["tensor names"] = {"parameters": model.parameters()}
    given["a generator"] = {"parameters": (p for p in model.parameters())}
    for how in given.values():
        optimizer, _ = create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, **how)
        assert isinstance(optimizer, AdamWeightDecay)
        assert decayed(optimizer, model) == weights(model) and len(weights(model)) == 8
    # by structured names alone, a norm that is called "post" cannot be told
    optimizer, _ = create_optimizer(
        1e-3, 10, 2, weight_decay_rate=0.1, parameters=model.parameters(), name_dict=names_of(model)
    )
    assert decayed(optimizer, model) == weights(model) | {f"layers.{i}.post.weight" for i in range(3)}


def test_include_wins():
    model = Net()
    wanted = weights(model) | {"norm.weight", "norm.bias"}
    for how in ({"model": model}, {"model": model, "layers": LayerMap.from_model(model)}):
        optimizer, _ = create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, include_in_weight_decay=[r"^norm\."], **how)
        assert decayed(optimizer, model) == wanted
    optimizer, _ = create_optimizer(
        1e-3,
        10,
        2,
        weight_decay_rate=0.1,
        include_in_weight_decay=["ln_1"],
        parameters=model.parameters(),
        name_dict=names_of(model),
    )
    assert {n for n in decayed(optimizer, model) if "ln_1" in n} == {
        f"layers.{i}.ln_1.{kind}" for i in range(3) for kind in ("weight", "bias")
    }


def test_an_idle_include_warns_and_nothing_to_exclude_does_not():
    with pytest.warns(UserWarning, match="include_in_weight_decay=.'nothing'"):
        create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, include_in_weight_decay=["nothing"], model=Net())
    plain = paddle.nn.Linear(2, 2, bias_attr=False)
    optimizer, _ = create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, parameters=plain.parameters())
    assert optimizer.has_weight_decay(plain.weight)


def test_the_decay_is_applied_where_it_is_said():
    model = Net()
    optimizer, schedule = create_optimizer(0.1, 10, 0, weight_decay_rate=0.5, model=model)
    before = {n: p.numpy() for n, p in model.named_parameters()}
    for param in model.parameters():
        param.grad = paddle.zeros_like(param)
    optimizer.step()
    for name, param in model.named_parameters():
        factor = 0.95 if name in weights(model) else 1.0
        np.testing.assert_allclose(param.numpy(), factor * before[name], rtol=1e-6, err_msg=name)
    assert optimizer._learning_rate is schedule and isinstance(schedule, WarmUp)


def test_without_decay_it_is_adam_with_tensorflows_epsilon():
    model = paddle.nn.Linear(1, 1, bias_attr=False)
    model.weight.set_value(np.zeros([1, 1], "float32"))
    optimizer, _ = create_optimizer(0.1, 10, 0, adam_epsilon=1.0, model=model)
    model.weight.grad = paddle.full([1, 1], 1.0)
    optimizer.step()
    root = math.sqrt(1 - 0.999)
    assert model.weight.item() == pytest.approx(-0.1 * root / (1 - 0.9) * 0.1 / (root + 1.0), rel=1e-5)


# ---- layers, groups and training


def test_layerwise_decay_of_a_model():
    model = Net()
    optimizer, _ = create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, layerwise_decay=0.5, model=model)
    ratios = {n: optimizer.layerwise_ratio(p) for n, p in model.named_parameters()}
    want = LayerMap.from_model(model).ratio_fn(0.5)
    assert ratios == {n: want(p) for n, p in model.named_parameters()}
    assert ratios["layers.0.q_proj.weight"] == 0.125 and ratios["classifier.weight"] == 1.0


def test_layerwise_decay_by_the_documented_rule():
    arrays, _ = bert_like()
    params, name_dict = make_params(arrays)
    optimizer, _ = create_optimizer(
        1e-3, 10, 2, parameters=list(params.values()), layerwise_decay=0.5, n_layers=3, name_dict=name_dict
    )
    for name, param in params.items():
        assert optimizer.layerwise_ratio(param) == llrd_ratio(name, 0.5, 3)


def test_parameters_may_be_a_part_of_the_model_or_groups():
    model = Net()
    head = model.classifier.parameters()
    optimizer, _ = create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, parameters=head, model=model)
    assert [p.name for p in optimizer._parameter_list] == [p.name for p in head]
    groups = [{"params": iter(head), "learning_rate": 0.5}, {"params": model.norm.parameters()}]
    optimizer, _ = create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, parameters=groups)
    assert optimizer.has_weight_decay(head[0]) and not optimizer.has_weight_decay(head[1])


def test_frozen_parameters_of_the_model_stay_until_they_are_unfrozen():
    model, moved = Net(), []
    weight = model.embeddings.weight
    weight.stop_gradient = True
    optimizer, schedule = create_optimizer(1e-3, 10, 2, model=model)
    for frozen in (True, True, False):
        weight.stop_gradient, before = frozen, weight.numpy()
        model(paddle.arange(5).reshape([5, 1])).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        moved.append(not np.array_equal(weight.numpy(), before))
    assert moved == [False, False, True]


def test_a_model_learns():
    paddle.seed(0)
    model, x = Net(), paddle.arange(5).reshape([5, 1])
    y = paddle.to_tensor([0, 1, 0, 1, 1])
    optimizer, schedule = create_optimizer(
        0.05, 40, 4, weight_decay_rate=0.01, adam_global_clipnorm=1.0, layerwise_decay=0.8, model=model
    )
    losses = []
    for _ in range(40):
        loss = paddle.nn.functional.cross_entropy(model(x)[:, 0], y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0] and schedule() == 0.0


def test_in_static_graph_mode():
    warnings.filterwarnings("ignore", "(Tensor|Value) do not have 'place'")  # Paddle, of its own doing
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            x = paddle.static.data("x", [2, 4])
            model = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.LayerNorm(3))
            loss = model(x).sum()
            optimizer, schedule = create_optimizer(0.1, 10, 0, weight_decay_rate=0.5)
            optimizer.minimize(loss)
            assert decayed(optimizer, model) == {"0.weight"}
            exe = paddle.static.Executor()
            exe.run(paddle.static.default_startup_program())
            exe.run(feed={"x": np.ones([2, 4], "float32")}, fetch_list=[loss])
            schedule.step()
    finally:
        paddle.disable_static()


# ---- arguments


def test_the_signature_is_transformers():
    names = "init_lr num_train_steps num_warmup_steps min_lr_ratio adam_beta1 adam_beta2 adam_epsilon adam_clipnorm "
    names += "adam_global_clipnorm weight_decay_rate power include_in_weight_decay"
    assert list(inspect.signature(create_optimizer).parameters)[:12] == names.split()


def test_arguments_reach_the_optimizer():
    optimizer, schedule = create_optimizer(
        1e-3, 10, 2, 0.5, 0.8, 0.95, 1e-5, 0.7, weight_decay_rate=0.1, multi_precision=True, model=Net()
    )
    config = optimizer.get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"], config["clipnorm"]) == (0.8, 0.95, 1e-5, 0.7)
    assert config["weight_decay_rate"] == 0.1 and config["multi_precision"] is True
    optimizer, _ = create_optimizer(1e-3, 10, 2, adam_global_clipnorm=0.7, model=Net())
    assert optimizer.get_config()["global_clipnorm"] == 0.7


@pytest.mark.parametrize(
    "argument, value, error",
    [
        ("init_lr", -1.0, ValueError),
        ("init_lr", None, TypeError),
        ("num_train_steps", 0, ValueError),
        ("num_train_steps", 10.0, TypeError),
        ("num_warmup_steps", -1, ValueError),
        ("min_lr_ratio", 1.5, ValueError),
        ("min_lr_ratio", -0.1, ValueError),
        ("adam_beta1", 1.0, ValueError),
        ("adam_beta2", -0.1, ValueError),
        ("adam_epsilon", -1e-8, ValueError),
        ("adam_clipnorm", 0.0, ValueError),
        ("adam_global_clipnorm", -1.0, ValueError),
        ("weight_decay_rate", -0.1, ValueError),
        ("power", 0.0, ValueError),
        ("include_in_weight_decay", "norm", TypeError),
        ("include_in_weight_decay", ["("], ValueError),
        ("include_in_weight_decay", [3], TypeError),
        ("model", "bert", TypeError),
        ("parameters", "bert", TypeError),
        ("layerwise_decay", 1.5, ValueError),
    ],
)
def test_bad_arguments_of_the_factory(argument, value, error):
    arguments = {"init_lr": 1e-3, "num_train_steps": 10, "num_warmup_steps": 2, "weight_decay_rate": 0.1}
    with pytest.raises(error, match=f"`{argument}`.*Received: .*{argument.rpartition('_')[2]}"):
        create_optimizer(**{**arguments, "model": Net(), argument: value})


def test_what_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="`parameters` or `model`"):
        create_optimizer(1e-3, 10, 2)
    with pytest.raises(ValueError, match="adam_clipnorm=1.0, adam_global_clipnorm=2.0"):
        create_optimizer(1e-3, 10, 2, adam_clipnorm=1.0, adam_global_clipnorm=2.0, model=Net())
    with pytest.raises(ValueError, match="`include_in_weight_decay` has no effect"):
        create_optimizer(1e-3, 10, 2, include_in_weight_decay=["norm"], model=Net())
    with pytest.raises(ValueError, match="`layerwise_decay` has no effect"):
        create_optimizer(1e-3, 10, 2, layerwise_decay=0.5, parameters=one_param())


def test_a_training_that_ends_within_the_warmup_of_the_factory_is_warned_of():
    with pytest.warns(UserWarning, match="Received: num_warmup_steps=8, num_train_steps=2"):
        _, schedule = create_optimizer(1.0, 2, 8, model=paddle.nn.Linear(2, 2))
    assert [schedule(step) for step in (1, 7, 8)] == [0.125, 0.875, 0.0]
