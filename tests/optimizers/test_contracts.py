"""What every optimizer of ours keeps to: one table, each optimizer crossed with each feature."""

import copy
import sys

import numpy as np
import paddle
import pytest
from optimizer_cases import VARIANTS, every_optimizer, every_variant, low_precision, make, same, states
from reference import bert_like, llrd_ratio, make_params, take_steps

import paddle_ldopt as ldopt
from paddle_ldopt.layers.rates import rates_of_optimizer

NAN = float("nan")
N = 3  # blocks of bert_like()


def run(name, arrays, grads, dtype="float32", by_name=None, **more):
    """Train new parameters and return what they become; `by_name` makes arguments out of the name_dict."""
    with paddle.utils.unique_name.guard():
        params, name_dict = make_params(arrays, dtype)
        opt = make(name, list(params.values()), **more, **(by_name(params, name_dict) if by_name else {}))
        return {n: a.copy() for n, a in take_steps(opt, params, grads).items()}


def by_rule(params, name_dict):
    return {"layerwise_decay": 0.6, "n_layers": N, "name_dict": name_dict}


# ---- layer-wise rates


@every_variant
def test_layerwise_decay_equals_rates_set_by_hand(name):
    arrays, grads = bert_like()
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        for n, p in params.items():  # Paddle's own way to give one parameter another rate
            p.optimize_attr["learning_rate"] = llrd_ratio(n, 0.6, N)
        want = take_steps(make(name, list(params.values())), params, grads)
    got = run(name, arrays, grads, by_name=by_rule)
    for n in want:
        np.testing.assert_allclose(got[n], want[n], rtol=2e-6, atol=1e-7, err_msg=n)
    uniform = run(name, arrays, grads)
    assert any(np.abs(uniform[n] - want[n]).max() > 1e-4 for n in want), "the decay changes something"


@every_optimizer
def test_layers_hooks_and_the_documented_rule_agree(name):
    arrays, grads = bert_like()
    layers = ldopt.LayerMap.from_names(arrays)

    def by_layers(params, name_dict):
        layers.name_dict.update(name_dict)
        return {"layerwise_decay": 0.6, "layers": layers}

    def by_hook(params, name_dict):
        return {"set_param_lr_fun": lambda param: llrd_ratio(name_dict[param.name], 0.6, N), "name_dict": name_dict}

    want = run(name, arrays, grads, by_name=by_rule)
    same(run(name, arrays, grads, by_name=by_layers), want)
    same(run(name, arrays, grads, by_name=by_hook), want)


@every_optimizer
def test_a_ratio_of_0_freezes(name):
    arrays, grads = bert_like()
    frozen = "bert.embeddings.word_embeddings.weight"

    def by_hook(params, name_dict):
        return {"set_param_lr_fun": lambda param: float(name_dict[param.name] != frozen)}

    got = run(name, arrays, grads, by_name=by_hook)
    np.testing.assert_array_equal(got[frozen], arrays[frozen].astype("float32"))
    assert np.abs(got["classifier.weight"] - arrays["classifier.weight"]).max() > 1e-3


# ---- groups, exclusion, frozen and unused parameters


@every_variant
def test_groups_equal_optimizers_of_their_own(name):
    arrays, grads = bert_like()
    encoder = {n: a for n, a in arrays.items() if "encoder" in n}
    rest = {n: a for n, a in arrays.items() if "encoder" not in n}
    decay = "weight_decay_rate" if "weight_decay_rate" in VARIANTS[name] else "weight_decay"
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        groups = [
            {"params": [params[n] for n in encoder], "weight_decay": 0.0, "learning_rate": 0.5},
            {"params": [params[n] for n in rest]},
        ]
        got = take_steps(make(name, groups), params, grads)
    part = [{n: g[n] for n in encoder} for g in grads]
    want = run(name, encoder, part, **{decay: 0.0}, set_param_lr_fun=lambda p: 0.5)
    want.update(run(name, rest, [{n: g[n] for n in rest} for g in grads]))
    for n in want:
        np.testing.assert_allclose(got[n], want[n], rtol=1e-6, atol=1e-7, err_msg=n)


@every_variant
def test_apply_decay_param_fun(name):
    arrays, grads = bert_like()
    decay = "weight_decay_rate" if "weight_decay_rate" in VARIANTS[name] else "weight_decay"
    got = run(name, arrays, grads, by_name=lambda p, names: {"apply_decay_param_fun": lambda t: "bias" not in names[t]})
    decayed, undecayed = run(name, arrays, grads), run(name, arrays, grads, **{decay: 0.0})
    for n in arrays:
        np.testing.assert_array_equal(got[n], (undecayed if "bias" in n else decayed)[n], err_msg=n)


@every_optimizer
def test_frozen_and_unused_parameters_stay(name):
    arrays, grads = bert_like()
    grads = [{n: None if "pooler" in n else g for n, g in grad.items()} for grad in grads]
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        params["classifier.weight"].stop_gradient = True
        got = take_steps(make(name, list(params.values())), params, [{**g, "classifier.weight": None} for g in grads])
    for n in ("bert.pooler.dense.weight", "classifier.weight"):
        np.testing.assert_array_equal(got[n], arrays[n].astype("float32"))


@every_variant
def test_a_parameter_without_a_gradient_in_one_step_stays_in_that_step(name):
    arrays, grads = bert_like(steps=3)
    skipped = "bert.pooler.dense.weight"
    grads[1] = {**grads[1], skipped: None}
    before = run(name, arrays, grads[:1])
    np.testing.assert_array_equal(run(name, arrays, grads[:2])[skipped], before[skipped])
    assert np.abs(run(name, arrays, grads)[skipped] - before[skipped]).max() > 0


# ---- shapes and types


SHAPES = [[], [1], [7], [1, 5], [5, 1], [1, 1], [4, 3], [2, 3, 4], [1, 3, 1], [3, 2, 2, 2], [0], [0, 3], [3, 0]]


@every_variant
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(name, shape):
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=shape), "other": rng.normal(size=(2, 2))}
    grads = [{n: rng.normal(size=a.shape) for n, a in arrays.items()} for _ in range(3)]
    got = run(name, arrays, grads)["w"]
    assert list(got.shape) == shape and np.isfinite(got).all()
    if got.size:
        assert (got != arrays["w"].astype("float32")).all()


def rounded(array, dtype):
    return paddle.to_tensor(array).astype(dtype).astype("float32").numpy()


@every_variant
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("masters", [True, False], ids=["masters", "no masters"])
def test_low_precision(name, dtype, masters):
    arrays, grads = bert_like(steps=5)
    with paddle.utils.unique_name.guard():
        params, start = low_precision(arrays, dtype)
        grads = [{n: rounded(g.astype("float32"), dtype) for n, g in grad.items()} for grad in grads]
        opt = make(name, list(params.values()), multi_precision=masters)
        for grad in grads:
            for n, g in grad.items():
                params[n].grad = paddle.to_tensor(g).astype(dtype)
            opt.step()
            opt.clear_grad(set_to_zero=False)
        got = {n: p.astype("float32").numpy() for n, p in params.items()}
    want = run(name, start, grads)
    for n in want:
        one_rounding = np.abs(want[n] - rounded(want[n], dtype)).max()
        # with masters the result is rounded once; without, each of the five steps rounds, by at most one unit
        unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype] * np.abs(want[n]).max()
        allowed = one_rounding * 1.01 + 1e-6 if masters else 5 * unit + 1e-6
        assert np.abs(got[n] - want[n]).max() <= allowed, n


@every_optimizer
def test_a_rate_that_is_set(name):
    (param,) = make_params({"a": np.ones((2, 3))})[0].values()
    opt = make(name, [param])
    opt.set_lr(0.0)
    param.grad = paddle.ones([2, 3])
    opt.step()
    assert (param.numpy() == 1.0).all() and opt.get_lr() == 0.0
    for value, error in ((-0.1, ValueError), (float("inf"), ValueError), (float("nan"), ValueError), ("1", TypeError)):
        with pytest.raises(error, match="Received: (value|lr)="):  # Adafactor calls it lr everywhere
            opt.set_lr(value)
    opt.set_lr(0.01)
    opt.step()
    assert (param.numpy() < 1.0).all()


@every_optimizer
@pytest.mark.parametrize("state", [[], {1: 2.0}, {"LR_Scheduler": 3}, {"master_weights": 3}], ids=str)
def test_what_is_no_state_is_refused(name, state):
    opt = make(name, list(make_params({"a": np.ones((2, 3))})[0].values()))
    with pytest.raises(TypeError, match="`state_dict`.* must be a dict.*Received: "):
        opt.set_state_dict(state)


@every_optimizer
def test_a_state_without_the_schedules_is_refused(name):
    schedule = paddle.optimizer.lr.StepDecay(0.1, 2)
    opt = make(name, list(make_params({"a": np.ones((2, 3))})[0].values()), learning_rate=schedule)
    for state in ({}, {"LR_Scheduler": {"last_epoch": 3}}):
        with pytest.raises(ValueError, match="state of the optimizer's StepDecay.*Received: a state without .*last_lr"):
            opt.set_state_dict(state)
    assert schedule.last_epoch == 0


@every_optimizer
@pytest.mark.parametrize("own", [None, "mine"])
def test_a_state_that_is_no_tensor_is_refused(name, own):
    with paddle.utils.unique_name.guard():
        (param,) = make_params({"a": np.ones((2, 3))})[0].values()
        state = {f"{param.name}_{own + '_' if own else ''}beta1_pow_acc_0": "3"}
        with pytest.raises(TypeError, match="must hold Tensors. Received: '3' as "):
            make(name, [param], name=own).set_state_dict(state)


def saved_state(name, built_with, updated, **more):
    """Return the state, after one step of the layers `updated`, of an optimizer of the layers `built_with` of three."""
    with paddle.utils.unique_name.guard():
        model = [paddle.nn.Linear(2, 2) for _ in range(3)]
        opt = make(name, [p for i in built_with for p in model[i].parameters()], **more)
        for p in (p for i in updated for p in model[i].parameters()):
            p.grad = paddle.ones(p.shape)
        opt.step()
        return {key: x.clone() if isinstance(x, paddle.Tensor) else x for key, x in opt.state_dict().items()}


def layers_of_three(name, built_with):
    with paddle.utils.unique_name.guard():  # but not of the steps: the names of the states have any numbers
        model = [paddle.nn.Linear(2, 2) for _ in range(3)]
        return model, make(name, [p for i in built_with for p in model[i].parameters()])


@every_optimizer
@pytest.mark.parametrize(("saved", "loads_into"), [([0, 1], [2]), ([0, 1], [1, 2])], ids=["all other", "some other"])
def test_a_state_of_other_parameters_is_refused(name, saved, loads_into):
    model, opt = layers_of_three(name, loads_into)
    with pytest.raises(ValueError, match=r"other parameters.* Received: .*unknown.*linear_0.*nothing.*linear_2"):
        opt.set_state_dict(saved_state(name, saved, saved))
    for i in loads_into:
        model[i](paddle.ones([1, 2])).sum().backward()
    opt.step()  # nothing waits for it


@every_optimizer
@pytest.mark.parametrize(
    ("built_with", "updated", "loads_into", "first"),
    [
        ([0, 1, 2], [1, 2], [0, 1, 2], [0, 1, 2]),  # the first layer had no gradient when it was saved
        ([0, 1, 2], [1, 2], [0, 1, 2], [0, 1]),
        ([1, 2], [1, 2], [0, 1, 2], [0]),
        ([0, 1, 2], [0, 1, 2], [1, 2], [2]),  # the first layer is not trained any more
    ],
)
def test_a_state_of_a_part_is_loaded(name, built_with, updated, loads_into, first):
    state = saved_state(name, built_with, updated)
    model, opt = layers_of_three(name, loads_into)
    opt.set_state_dict(state)
    for layers in (first, loads_into):
        for i in layers:
            model[i](paddle.ones([1, 2])).sum().backward()
        opt.step()
        opt.clear_grad()
    counts = {int(key[7]): x.item() for key, x in opt.state_dict().items() if "beta1_pow_acc" in key}
    if name != "adamwdl":  # which counts in powers
        one_count, taken = (
            name == "adamweightdecay",
            {i: (i in updated) + (i in first) + (i in loads_into) for i in range(3)},
        )
        assert counts == {i: 3 if one_count and i in loads_into else taken[i] for i in {*built_with, *loads_into}}


@every_optimizer
def test_a_second_optimizer_of_a_model_resumes(name):
    ends = []
    for anew in (False, True):
        model, opt = layers_of_three(name, [0])
        model[0].weight.set_value(paddle.ones([2, 2]))
        for step in range(3):
            if anew and step == 2:
                state = {key: x.clone() for key, x in opt.state_dict().items()}
                opt = make(name, model[0].parameters())
                opt.set_state_dict(state)
            for p in model[0].parameters():
                p.grad = paddle.full(p.shape, 0.1 + step)
            opt.step()
        ends.append(model[0].weight.numpy())
    np.testing.assert_array_equal(*ends)


@every_optimizer
@pytest.mark.parametrize("stepped", [False, True], ids=["new", "stepped"])
@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda x: x * 0 - 1, "from 0 on.* Received: .*-1"),
        (lambda x: x * float("nan"), "from 0 on.* Received: .*nan"),
        (lambda x: paddle.concat([x, x]), r"must be float32 of shape \[1\].* Received: .*\[2\]"),
        (lambda x: x[:0], r"must be float32 of shape \[1\].* Received: .*\[0\]"),
        (lambda x: x.astype("float64"), r"must be float32 of shape.* Received: dtype='float64'"),
        (None, "all state of a parameter or none|lacks what"),
    ],
    ids=["negative", "NaN", "long", "short", "float64", "missing"],
)
def test_counters_that_are_none_are_refused(name, spoil, match, stepped):
    state = saved_state(name, [0], [0])
    model, opt = layers_of_three(name, [0])
    if stepped:
        model[0](paddle.ones([1, 2])).sum().backward()
        opt.step()
    before = {key: x.numpy() for key, x in opt.state_dict().items()}
    (key,) = (key for key in state if key.startswith("linear_0.b_0") and key.endswith("beta1_pow_acc_0"))
    if spoil is None:
        del state[key]
    else:
        state[key] = spoil(state[key])
    with pytest.raises(ValueError, match=match):
        opt.set_state_dict(state)
    same({key: x.numpy() for key, x in opt.state_dict().items()}, before)


@every_variant
def test_a_name_goes_before_the_names_of_the_state(name):
    def train(steps, state=None):
        with paddle.utils.unique_name.guard():
            param = paddle.create_parameter([3, 4], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
            opt = make(name, [param], name="mine")
            if state is not None:
                param.set_value(state.pop("param"))
                opt.set_state_dict(state)
            for step in steps:
                param.grad = paddle.full([3, 4], 0.1 * step)
                opt.step()
            return {**opt.state_dict(), "param": param.clone()}

    whole, halves = train([1, 2, 3]), train([3], train([1, 2]))
    states = [key for key in whole if "moment" in key or "exp_avg" in key]
    assert states and all("_mine_" in key for key in states)
    assert whole.keys() == halves.keys()
    for key, value in whole.items():
        assert not isinstance(value, paddle.Tensor) or (value == halves[key]).all(), key


# ---- clipping, found_inf, bad numbers


@every_variant
def test_grad_clip(name):
    arrays, grads = bert_like()
    clipped = []
    for grad in grads:
        norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
        clipped.append({n: g * 0.1 / max(norm, 0.1) for n, g in grad.items()})
    got = run(name, arrays, grads, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.1))
    want = run(name, arrays, clipped)
    for n in want:
        np.testing.assert_allclose(got[n], want[n], rtol=1e-4, atol=1e-6, err_msg=n)


@every_variant
def test_found_inf_skips_everything_counters_included(name):
    arrays, grads = bert_like(steps=3)
    want = run(name, arrays, [grads[0], grads[2]])
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()))
        take_steps(opt, params, grads[:1])
        before, weights = states(opt), {n: p.numpy().copy() for n, p in params.items()}
        opt._set_auxiliary_var("found_inf", paddle.to_tensor([True]))
        take_steps(opt, params, grads[1:2])
        same(states(opt), before)
        same({n: p.numpy() for n, p in params.items()}, weights)
        opt._set_auxiliary_var("found_inf", paddle.to_tensor([False]))
        same(take_steps(opt, params, grads[2:]), want)


@every_variant
def test_a_nan_gradient_stays_in_its_parameter(name):
    arrays, grads = bert_like(steps=2)
    bad = "bert.pooler.dense.weight"
    grads[0] = {**grads[0], bad: np.full_like(grads[0][bad], np.nan)}
    got = run(name, arrays, grads)
    want = run(name, arrays, [{**g, bad: None} for g in grads])
    assert np.isnan(got[bad]).all()
    for n in set(arrays) - {bad}:
        np.testing.assert_array_equal(got[n], want[n], err_msg=n)


@every_variant
def test_zero_gradients_leave_only_the_decay(name):
    arrays, grads = bert_like(steps=3)
    zero = [{n: np.zeros_like(g) for n, g in grad.items()} for grad in grads]
    got = run(name, arrays, zero)
    for n in arrays:
        assert np.isfinite(got[n]).all()
        assert (np.abs(got[n]) <= np.abs(arrays[n].astype("float32")) + 1e-7).all()


# ---- state


def train_and_save(name, arrays, grads, path, save_after):
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()))
        half = {n: a.copy() for n, a in take_steps(opt, params, grads[:save_after]).items()}
        paddle.save(opt.state_dict(), path)
        return half, {n: a.copy() for n, a in take_steps(opt, params, grads[save_after:]).items()}


@every_variant
@pytest.mark.parametrize("reverse", [False, True], ids=["same order", "other order"])
def test_a_resume_is_exact(name, reverse, tmp_path):
    arrays, grads = bert_like(steps=6)
    path = str(tmp_path / "state.pdopt")
    half, want = train_and_save(name, arrays, grads, path, 3)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(half)
        ordered = list(params.values())
        opt = make(name, ordered[::-1] if reverse else ordered)
        opt.set_state_dict(paddle.load(path))
        same(take_steps(opt, params, grads[3:]), want)


@every_variant
def test_state_loads_into_an_optimizer_that_has_stepped(name, tmp_path):
    arrays, grads = bert_like(steps=6)
    path = str(tmp_path / "state.pdopt")
    half, want = train_and_save(name, arrays, grads, path, 3)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()))
        take_steps(opt, params, grads[:1])
        for n, p in params.items():
            p.set_value(half[n])
        opt.set_state_dict(paddle.load(path))
        same(take_steps(opt, params, grads[3:]), want)


@every_variant
def test_with_a_schedule(name):
    if "relative" in name:  # it has no external rate
        return
    arrays, grads = bert_like(steps=4)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        schedule = paddle.optimizer.lr.ExponentialDecay(0.01, 0.5)
        got = take_steps(make(name, list(params.values()), learning_rate=schedule), params, grads, schedule.step)
    factor = {"now": 1.0}
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()), set_param_lr_fun=lambda p: factor["now"])
        want = take_steps(opt, params, grads, lambda: factor.update(now=factor["now"] / 2))
    for n in want:
        np.testing.assert_allclose(got[n], want[n], rtol=1e-6, atol=1e-7, err_msg=n)


@every_variant
def test_two_models_in_one_process(name):
    arrays, grads = bert_like(seed=0)
    others, other_grads = bert_like(seed=1)
    want, other_want = run(name, arrays, grads), run(name, others, other_grads)
    params, _ = make_params(arrays)
    other_params, _ = make_params(others)
    opt, other = make(name, list(params.values())), make(name, list(other_params.values()))
    for grad, other_grad in zip(grads, other_grads):
        take_steps(opt, params, [grad])
        take_steps(other, other_params, [other_grad])
    same({n: p.numpy() for n, p in params.items()}, want)
    same({n: p.numpy() for n, p in other_params.items()}, other_want)


@every_variant
def test_gradient_accumulation_is_a_sum(name):
    model, tokens = tiny_model()
    opt = make(name, model.parameters())
    for part in (tokens[:1], tokens[1:]):
        (model(paddle.to_tensor(part)).square().sum()).backward()
    opt.step()
    whole, _ = tiny_model()
    opt = make(name, whole.parameters())
    whole(paddle.to_tensor(tokens)).square().sum().backward()
    opt.step()
    for a, b in zip(model.parameters(), whole.parameters()):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=2e-5)


@every_variant
def test_a_deep_copy_where_paddles_own_optimizers_have_one(name):
    arrays, grads = bert_like(steps=2)
    want = run(name, arrays, grads)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = copy.deepcopy(make(name, list(params.values())))
        mine = dict(zip(params, opt._parameter_list))
        same(take_steps(opt, mine, grads), want)
        same({n: p.numpy() for n, p in params.items()}, {n: a.astype("float32") for n, a in arrays.items()})


# ---- to_static and static graphs


class TinyModel(paddle.nn.Layer):
    """An embedding, two linear blocks, a norm: gradients of every parameter are well away from zero."""

    def __init__(self):
        super().__init__()
        self.embed = paddle.nn.Embedding(6, 4)
        self.blocks = paddle.nn.LayerList([paddle.nn.Linear(4, 4) for _ in range(2)])
        self.norm = paddle.nn.LayerNorm(4)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + paddle.tanh(block(x))
        return self.norm(x) * paddle.arange(1.0, 5.0)


def tiny_model():
    with paddle.utils.unique_name.guard():
        paddle.seed(1)
        return TinyModel(), np.array([[0, 1, 2], [3, 4, 5]])


def dygraph_result(name, steps=3):
    model, tokens = tiny_model()
    start = {n: p.numpy().copy() for n, p in model.named_parameters()}
    opt = make(name, model.parameters(), set_param_lr_fun=lambda p: 0.5 if p.ndim == 1 else 1.0)
    for _ in range(steps):
        model(paddle.to_tensor(tokens)).square().mean().backward()
        opt.step()
        opt.clear_grad()
    return start, {n: p.numpy().copy() for n, p in model.named_parameters()}


@every_variant
def test_to_static(name):
    _, want = dygraph_result(name)
    model, tokens = tiny_model()
    opt = make(name, model.parameters(), set_param_lr_fun=lambda p: 0.5 if p.ndim == 1 else 1.0)

    @paddle.jit.to_static
    def train(batch):
        model(batch).square().mean().backward()
        opt.step()
        opt.clear_grad()

    for _ in range(3):
        train(paddle.to_tensor(tokens))
    for n, p in model.named_parameters():
        np.testing.assert_allclose(p.numpy(), want[n], rtol=1e-4, atol=1e-5, err_msg=n)


@every_variant
def test_static_program(name):
    start, want = dygraph_result(name)
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            batch = paddle.static.data("batch", [2, 3], "int64")
            model = TinyModel()
            loss = model(batch).square().mean()
            names = {p.name: n for n, p in model.named_parameters()}
            make(name, None, set_param_lr_fun=lambda p: 0.5 if len(p.shape) == 1 else 1.0).minimize(loss)
        executor, scope = paddle.static.Executor(), paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            executor.run(startup)
            for tensor_name, n in names.items():
                scope.find_var(tensor_name).get_tensor().set(start[n], paddle.CPUPlace())
            for _ in range(3):
                executor.run(main, feed={"batch": np.array([[0, 1, 2], [3, 4, 5]])}, fetch_list=[loss])
            got = {n: np.array(scope.find_var(t).get_tensor()) for t, n in names.items()}
    finally:
        paddle.disable_static()
    for n, value in got.items():
        np.testing.assert_allclose(value, want[n], rtol=1e-4, atol=1e-5, err_msg=n)


@every_variant
def test_found_inf_of_a_static_program_skips_everything(name):
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            batch = paddle.static.data("batch", [2, 3], "int64")
            overflow = paddle.static.data("overflow", [1], "bool")
            model = TinyModel()
            opt = make(name, None)
            opt._set_auxiliary_var("found_inf", overflow)  # as Paddle's static AMP does
            opt.minimize(model(batch).square().mean())
            weights = [param.name for param in model.parameters()]
        executor, scope = paddle.static.Executor(), paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            executor.run(startup)
            states = [tensor.name for held in opt._accumulators.values() for tensor in held.values()]
            batch = np.array([[0, 1, 2], [3, 4, 5]])
            ends = []
            for found in (True, False):
                begun = {n: np.array(scope.find_var(n).get_tensor()) for n in weights + states}
                executor.run(main, feed={"batch": batch, "overflow": np.array([found])})
                ends.append([n for n, old in begun.items() if (np.array(scope.find_var(n).get_tensor()) != old).any()])
    finally:
        paddle.disable_static()
    assert ends[0] == []
    assert set(weights) <= set(ends[1]) and len(ends[1]) > len(weights)


@every_optimizer
def test_a_second_loss_of_a_static_program_trains_the_same_parameters(name):
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            layer, batch = paddle.nn.Linear(3, 2), paddle.static.data("batch", [4, 3])
            moved = []
            for power in (1.0, 2.0):
                _, pairs = make(name, None).minimize(layer(batch).pow(power).mean())
                moved.append(len(pairs))
        assert moved == [2, 2]
    finally:
        paddle.disable_static()


# ---- bad calls


@every_optimizer
@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"layerwise_decay": 0.0}, ValueError, "Received: layerwise_decay=0.0"),
        ({"layerwise_decay": 0.5}, ValueError, "no effect without `layers`"),
        ({"set_param_lr_fun": lambda p: -1.0}, ValueError, "Received: -1.0"),
        ({"set_param_lr_fun": lambda a, b: 1.0}, TypeError, "must take"),
        ({"layers": {}}, TypeError, "must be a LayerMap"),
        ({"layers": ldopt.LayerMap}, TypeError, "must be a LayerMap. Received: layers=type"),
        ({"layerwise_decay": ldopt.LayerDecay(0.5)}, TypeError, "needs `layers` beside it"),
        (
            {"name_dict": ["a"], "layerwise_decay": 0.5},
            TypeError,
            "`name_dict` must be a dict .*Received: name_dict of type list",
        ),
        ({"apply_decay_param_fun": {"a"}}, TypeError, "must be callable. Received: apply_decay_param_fun"),
        ({"grad_clip": 1.0}, TypeError, "grad_clip"),
    ],
)
def test_bad_calls(name, arguments, error, match):
    arrays, _ = bert_like()
    params, _ = make_params(arrays)
    with pytest.raises(error, match=match):
        make(name, list(params.values()), **arguments)


@every_optimizer
def test_no_trainable_parameter(name):
    arrays, _ = bert_like()
    params, _ = make_params(arrays)
    for p in params.values():
        p.stop_gradient = True
    with pytest.raises(ValueError, match="no trainable parameter"):
        make(name, list(params.values()))


@every_optimizer
@pytest.mark.parametrize(
    "spoil, error, match",
    [
        (lambda p: [{"params": p, "betas": (0.9, 0.99)}], ValueError, "has one of the keys .*Received: betas"),
        (lambda p: [{"learning_rate": 1.0}], ValueError, "must have 'params'"),
        (lambda p: [{"params": p, "learning_rate": -1.0}], ValueError, r"in \[0, inf\). Received: learning_rate=-1.0"),
        (lambda p: [{"params": p, "learning_rate": NAN}], ValueError, r"in \[0, inf\). Received: learning_rate=nan"),
        (lambda p: [{"params": p, "learning_rate": "x"}], TypeError, "a multiplier.*Received: learning_rate='x'"),
        (lambda p: [{"params": p, "lr_scale": 0.5}], ValueError, "'lr_scale' is a label.*Received: lr_scale=0.5"),
        (lambda p: [{"params": p, "lr_scale": "x"}], TypeError, "Received: lr_scale='x'"),
        (lambda p: [{"params": p, "grup": "a"}], ValueError, "has one of the keys .*Received: grup"),
        (lambda p: [{"params": p, "weight_decay": -1.0}], ValueError, "weight_decay.*Received: .*-1.0"),
        (lambda p: [{"params": p[:1]}, *p[1:]], TypeError, "Received: both"),
        (lambda p: [{"params": set(p)}], TypeError, "ordered collection. Received: set"),
        (lambda p: [*p, p[0]], ValueError, "twice. Received: '"),
        (lambda p: [(q.name, q) for q in p], TypeError, "must hold parameters( or dicts)?. Received: "),
        (lambda p: [q.name for q in p], TypeError, "must hold parameters( or dicts)?. Received: "),
        (lambda p: p[0], TypeError, "must be a list of parameters|Received: parameters of type"),
        (lambda p: 1e-3, TypeError, "must be a list of parameters or of parameter groups. Received"),
    ],
)
def test_bad_parameters_are_refused_before_anything_changes(name, spoil, error, match):
    arrays, _ = bert_like()
    params, _ = make_params(arrays)
    with pytest.raises(error, match=match):
        make(name, spoil(list(params.values())))
    assert all(p.optimize_attr["learning_rate"] == 1.0 and p.regularizer is None for p in params.values())


@every_optimizer
def test_labels_of_groups_change_nothing(name):
    arrays, grads = bert_like()
    label = {"group": "visual", "lr_scale": 0.5, "name": "block", "dygraph_key_name": "a"}

    def trained(more):
        with paddle.utils.unique_name.guard():
            params, _ = make_params(arrays)
            groups = [{"params": [p], "learning_rate": 0.5, **more} for p in params.values()]
            return {n: a.copy() for n, a in take_steps(make(name, groups), params, grads[:2]).items()}

    same(trained(label), trained({}))


@every_optimizer
def test_no_weight_decay_is_0_and_a_regularizer_is_refused(name):
    arrays, grads = bert_like()
    key = "weight_decay_rate" if name == "adamweightdecay" else "weight_decay"
    want = run(name, arrays, grads[:2], **{key: 0.0})
    for none in (None, 0, np.float32(0)):
        same(run(name, arrays, grads[:2], **{key: none}), want)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, [{"params": list(params.values()), "weight_decay": None}])
        same({n: a.copy() for n, a in take_steps(opt, params, grads[:2]).items()}, want)
    for regularizer in (paddle.regularizer.L2Decay(0.01), paddle.regularizer.L1Decay(0.01)):
        with pytest.raises(TypeError, match=f"a number such as 0.01.*Received: .*={type(regularizer).__name__}"):
            make(name, list(params.values()), **{key: regularizer})
        with pytest.raises(TypeError, match="a number such as 0.01"):
            make(name, [{"params": list(params.values()), "weight_decay": regularizer}])


@every_optimizer
def test_an_iterator_in_a_group_is_read_once(name):
    arrays, grads = bert_like(steps=2)
    want = run(name, arrays, grads)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        same(take_steps(make(name, iter([{"params": iter(list(params.values()))}])), params, grads), want)


@every_optimizer
def test_sparse_gradients_are_refused_before_anything_changes(name):
    dense, sparse = paddle.nn.Linear(3, 3), paddle.nn.Embedding(5, 3, sparse=True)
    opt = make(name, [*dense.parameters(), *sparse.parameters()])
    before = dense.weight.numpy().copy()
    dense(sparse(paddle.to_tensor([1, 2]))).sum().backward()
    with pytest.raises(TypeError, match="needs dense gradients.*Received: a sparse gradient of"):
        opt.step()
    np.testing.assert_array_equal(dense.weight.numpy(), before)


@every_variant
@pytest.mark.parametrize(("fused", "grouped"), [(None, False), (None, True), (False, False)])
def test_work_grows_no_faster_than_the_parameters(name, fused, grouped):
    calls = {}
    for n in (25, 100):
        with paddle.utils.unique_name.guard():
            params, _ = make_params({f"part{i}.weight": np.ones([2, 2], "float32") for i in range(n)})
            for param in params.values():
                param.grad = paddle.ones([2, 2])
            given = [{"params": [param]} for param in params.values()] if grouped else list(params.values())
            opt = make(name, given, fused=fused, set_param_lr_fun=lambda param: 0.5)
            count = [0]

            def on_event(frame, event, argument, count=count):
                count[0] += event in ("call", "c_call")

            sys.setprofile(on_event)
            try:
                opt.step()
                opt.set_state_dict(opt.state_dict())
                rates_of_optimizer(opt)
            finally:
                sys.setprofile(None)
            calls[n] = count[0]
    assert calls[100] < 5 * calls[25]


@every_variant
def test_minimize_is_a_step(name):
    arrays, ends = {"w": np.ones([3, 2]), "b": np.ones([2])}, []
    for by_minimize in (False, True):
        with paddle.utils.unique_name.guard():
            params, _ = make_params(arrays)
            opt = make(name, list(params.values()))
            for _ in range(2):
                loss = sum((param * param).sum() for param in params.values())
                loss.backward()
                opt.minimize(loss) if by_minimize else opt.step()
                opt.clear_grad()
            ends.append({n: param.numpy() for n, param in params.items()})
    for n, want in ends[0].items():
        assert (want != arrays[n]).all()
        np.testing.assert_allclose(ends[1][n], want, rtol=1e-6)


@pytest.mark.parametrize("cls", [ldopt.AdamWDL, ldopt.Lamb])
@pytest.mark.parametrize("how", ["in", "not in", "getitem", "name_dict"])
def test_names_from_before_sharding_are_refused(cls, how):
    """`dist.shard_tensor` renames parameters: look-ups would miss, and all parameters be decayed, or none."""
    network, mesh = paddle.nn.Linear(4, 3), paddle.distributed.ProcessMesh([0], dim_names=["x"])

    def collected():
        weight, bias = (param.name for param in network.parameters())
        by_name = {
            "in": {weight}.__contains__,
            "not in": lambda name: name not in {bias},
            "getitem": {weight: True, bias: False}.__getitem__,
        }
        names = {weight: "weight", bias: "bias"}
        return {"name_dict": names} if how == "name_dict" else {"apply_decay_param_fun": by_name[how]}

    before = collected()
    for key in ("weight", "bias"):
        shard = [paddle.distributed.Shard(0)]
        setattr(network, key, paddle.distributed.shard_tensor(getattr(network, key), mesh, shard))
    with pytest.raises(ValueError, match=r"shard the model first.*Received: '[\w.]+' is known, '[\w.]+dist' is not"):
        cls(0.1, parameters=network.parameters(), **before)
    cls(0.1, parameters=network.parameters(), **collected())
