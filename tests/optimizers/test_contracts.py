"""What every optimizer of ours keeps to: one table, each optimizer crossed with each feature."""

import copy
import sys

import numpy as np
import paddle
import pytest
from optimizer_cases import VARIANTS, every_optimizer, every_variant, low_precision, make, run_static, same, states
from reference import bert_like, llrd_ratio, make_params, take_steps

import paddle_ldopt as ldopt
from paddle_ldopt.rates import rates_of_optimizer

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
def test_layers_hooks_and_the_documented_hook_agree(name):
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

    with paddle.utils.unique_name.guard():
        params, name_dict = make_params(arrays)
        opt = make(name, list(params.values()), **by_hook(params, name_dict))
        got = take_steps(opt, params, grads)
    np.testing.assert_array_equal(got[frozen], arrays[frozen].astype("float32"))
    assert np.abs(got["classifier.weight"] - arrays["classifier.weight"]).max() > 1e-3
    own = {key: value for key, value in states(opt).items() if key.startswith(f"{params[frozen].name}_")}
    assert not [key for key, value in own.items() if ("moment" in key or "exp_avg" in key) and value.any()]


@every_optimizer
def test_lr_ratio_is_another_name_of_the_hook(name):
    arrays, grads = bert_like(steps=2)
    half = {"set_param_lr_fun": lambda param: 0.5}
    same(run(name, arrays, grads, lr_ratio=lambda param: 0.5), run(name, arrays, grads, **half))
    with pytest.raises(ValueError, match="give one of them. Received: set_param_lr_fun=.*lr_ratio="):
        run(name, arrays, grads, lr_ratio=lambda param: 0.5, **half)
    with pytest.raises(TypeError, match="Received: (lr_ratio|set_param_lr_fun)=0.5"):
        run(name, arrays, grads, lr_ratio=0.5)


# ---- groups, exclusion, missing gradients


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


MOMENTS = {"beta1": 0.5, "beta2": 0.7, "weight_decay": 0.3}
FACTORED = {"clip_threshold": 0.1, "beta1": 0.5, "weight_decay": 0.3}
RELATIVE = {"scale_parameter": False, "warmup_init": True}
KERAS = {"beta_1": 0.5, "beta_2": 0.7, "weight_decay": 0.3}
OF_GROUPS = {  # all options that a group may override, except for sparse gradients
    "adamwdl": {**MOMENTS, "epsilon": 0.1},
    "came": {**FACTORED, "eps": (0.1,) * 3, "decay_rate": 0.3, "beta2": 0.9, "beta3": 0.9, "scale_parameter": True},
    "lamb": {**MOMENTS, "eps": 0.1},
    "adafactor, relative": {**FACTORED, "eps": (0.1, 2.0), "decay_rate": -0.3, **RELATIVE},
    "adamweightdecay": {**KERAS, "epsilon": 0.1, "clipnorm": 0.3, "clipvalue": 0.3},
}


@pytest.mark.parametrize("name", OF_GROUPS)
def test_a_group_may_override_every_option(name):
    options, rng = OF_GROUPS[name], np.random.default_rng(0)
    declared = ldopt.optimizer_class(name.split(",")[0]).OPTIONS.items()
    assert {o.called or n for n, o in declared if o.group and o.argument} - {"lazy_mode"} == options.keys()
    arrays = {option: rng.normal(size=(3, 4)) for option in options}
    grads = [{option: rng.normal(size=(3, 4)) for option in options} for _ in range(4)]
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        groups = [{"params": [params[option]], option: value} for option, value in options.items()]
        opt = make(name, groups)
        assert [list(group) for group in groups] == [["params", option] for option in options], "left alone"
        got = take_steps(opt, params, grads)
    plain = run(name, arrays, grads)
    for option, value in options.items():
        want = run(name, {option: arrays[option]}, [{option: grad[option]} for grad in grads], **{option: value})
        np.testing.assert_allclose(got[option], want[option], rtol=1e-6, atol=1e-7, err_msg=option)
        assert np.abs(got[option] - plain[option]).max() > 1e-4, f"{option} changes something"


@every_variant
def test_apply_decay_param_fun(name):
    arrays, grads = bert_like()
    decay = "weight_decay_rate" if "weight_decay_rate" in VARIANTS[name] else "weight_decay"
    alone = {} if name == "adamwdl" else {"batch_bytes": 0}  # by operations, rounding depends on the batch
    chosen = {"by_name": lambda p, names: {"apply_decay_param_fun": lambda t: "bias" not in names[t]}}
    got, decayed, undecayed = (run(name, arrays, grads, **alone, **more) for more in (chosen, {}, {decay: 0.0}))
    for n in arrays:
        np.testing.assert_array_equal(got[n], (undecayed if "bias" in n else decayed)[n], err_msg=n)


@every_optimizer
@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_an_optimizer_knows_which_parameters_it_decays(name, value):
    decayed, other = paddle.create_parameter([2], "float32"), paddle.create_parameter([2], "float32")
    key = "weight_decay_rate" if name == "adamweightdecay" else "weight_decay"
    opt = make(name, [decayed, other], **{key: value}, apply_decay_param_fun=lambda known: known == decayed.name)
    assert [opt.has_nonzero_weight_decay(decayed), opt.has_nonzero_weight_decay(other)] == [value != 0.0, False]


@every_variant
def test_a_parameter_without_a_gradient_stays_and_counts_its_own_steps(name):
    arrays, grads = bert_like(steps=3)
    skipped = "bert.pooler.dense.weight"
    grads[1] = {**grads[1], skipped: None}
    before = run(name, arrays, grads[:1])
    np.testing.assert_array_equal(run(name, arrays, grads[:2])[skipped], before[skipped])
    after = run(name, arrays, grads)[skipped]
    assert np.abs(after - before[skipped]).max() > 0
    if not name.startswith("adamweightdecay"):  # whose parameters share the count of steps
        alone = run(name, {skipped: arrays[skipped]}, [{skipped: grads[step][skipped]} for step in (0, 2)])
        np.testing.assert_allclose(after, alone[skipped], rtol=1e-6, atol=1e-7, err_msg="counts its own steps")


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


@pytest.mark.representatives
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
def test_a_state_in_memory_stays_as_it_was_loaded(name):
    arrays, _ = bert_like(steps=1)
    params, _ = low_precision(arrays, "bfloat16")

    def after_a_step(state=None):
        with paddle.utils.unique_name.guard():
            opt = make(name, list(params.values()), multi_precision=True)
            if state is not None:
                opt.set_state_dict(state)
            for param in params.values():
                if state is not None:
                    param.set_value(state["master_weights"][param.name].astype("bfloat16"))
                param.grad = paddle.ones(param.shape, "bfloat16")
            opt.step()
        return opt.state_dict()

    saved = after_a_step()
    masters = {key: master.numpy() for key, master in saved["master_weights"].items()}
    one, other = after_a_step(saved)["master_weights"], after_a_step(saved)["master_weights"]
    assert len(masters) == len(arrays) and one.keys() == other.keys() == masters.keys()
    for key, master in one.items():
        np.testing.assert_array_equal(master.numpy(), other[key].numpy())
        np.testing.assert_array_equal(saved["master_weights"][key].numpy(), masters[key])
        assert (master.numpy() != masters[key]).any() and master.name == saved["master_weights"][key].name


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


# ---- schedules, several models, copies


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


@pytest.mark.representatives(count=2)
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


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "muon"])  # which refuses
def test_static_program(name):
    start, want = dygraph_result(name)

    def program():
        model = TinyModel()
        loss = model(paddle.static.data("batch", [2, 3], "int64")).square().mean()
        make(name, None, set_param_lr_fun=lambda p: 0.5 if len(p.shape) == 1 else 1.0).minimize(loss)
        return model, loss

    got = run_static(program, {"batch": np.array([[0, 1, 2], [3, 4, 5]])}, start, 3)
    for n, value in got.items():
        np.testing.assert_allclose(value, want[n], rtol=1e-4, atol=1e-5, err_msg=n)


@pytest.mark.representatives(count=2)
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


# ---- bad calls: an error that says what was received, and nothing changed


def hook(function):
    return {"layerwise_decay": 1.0, "set_param_lr_fun": function}


@every_optimizer
@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"layerwise_decay": 0.0}, ValueError, "Received: layerwise_decay=0.0"),
        ({"layerwise_decay": 1.2}, ValueError, "Received: layerwise_decay=1.2"),
        ({"layerwise_decay": NAN}, ValueError, "Received: layerwise_decay=nan"),
        ({"layerwise_decay": "0.8"}, TypeError, "Received: layerwise_decay='0.8'"),
        ({"layerwise_decay": True}, TypeError, "Received: layerwise_decay=True"),
        ({"layerwise_decay": ldopt.LayerDecay(0.5)}, TypeError, "as `layerwise_decay` also needs `layers`"),
        ({"name_dict": None}, ValueError, "no effect without `layers`.*Received: .*name_dict=None, set_param_lr_fun="),
        ({"name_dict": ["a"]}, TypeError, "`name_dict` must be a dict .*Received: name_dict of type list"),
        ({"name_dict": {}}, ValueError, "lacks '"),
        ({"n_layers": 2}, ValueError, "Received: n_layers=2"),
        ({"n_layers": 2.5}, TypeError, "`n_layers` must be an integer. Received: n_layers=2.5"),
        ({"set_param_lr_fun": None}, ValueError, "no effect without `layers`"),
        ({"set_param_lr_fun": 0.5}, TypeError, "Received: set_param_lr_fun=0.5"),
        ({"set_param_lr_fun": lambda a, b: 1.0}, TypeError, r"must take.*\(param\). Received: set_param_lr_fun=<f"),
        (hook(lambda p: -0.5), ValueError, "not negative. Received: -0.5"),
        (hook(lambda p: NAN), ValueError, "finite and not negative. Received: nan"),
        (hook(lambda p: float("inf")), ValueError, "finite and not negative. Received: inf"),
        (hook(lambda p: paddle.ones([2])), TypeError, "must return a number"),
        (hook(lambda p: np.ones(0)), TypeError, "must return a number"),
        (hook(lambda p: "0.5"), TypeError, "must return a number"),
        (hook(lambda p: True), TypeError, "must return a number"),
        (
            {"name_dict": None, "n_layers": 12, "layers": {"a": 1}},
            TypeError,
            "`layers` must be a LayerMap. Received: layers=dict",
        ),
        ({"name_dict": None, "n_layers": 12, "layers": ldopt.LayerMap}, TypeError, "Received: layers=type"),
        ({"apply_decay_param_fun": {"a"}}, TypeError, "must be callable. Received: apply_decay_param_fun"),
        ({"grad_clip": 1.0}, TypeError, "grad_clip"),
    ],
)
def test_bad_calls_are_refused_before_anything_changes(name, arguments, error, match):
    arrays, _ = bert_like()
    params, name_dict = make_params(arrays)
    groups = [{"params": list(params.values()), "learning_rate": 0.3}]
    with pytest.raises(error, match=match):
        make(name, groups, **{"layerwise_decay": 0.8, "n_layers": N, "name_dict": name_dict, **arguments})
    assert all(p.optimize_attr["learning_rate"] == 1.0 for p in params.values())
    same({n: p.numpy() for n, p in params.items()}, {n: a.astype("float32") for n, a in arrays.items()})


@every_optimizer
def test_no_trainable_parameter(name):
    arrays, _ = bert_like()
    params, _ = make_params(arrays)
    for p in params.values():
        p.stop_gradient = True
    frozen = list(params.values())
    for parameters, received in ((frozen, f"{len(frozen)} parameters, all frozen"), ([], r"parameters=\[\]")):
        with pytest.raises(ValueError, match=f"no trainable parameter. Received: {received}$"):
            make(name, parameters)


@every_optimizer
@pytest.mark.parametrize(
    "spoil, error, match",
    [
        (lambda p: [{"params": p, "betas": (0.9, 0.99)}], ValueError, "may only have the keys .*Received: betas"),
        (lambda p: [{"learning_rate": 1.0}], ValueError, "must have 'params'"),
        (lambda p: [{"params": p, "learning_rate": -1.0}], ValueError, r"in \[0, inf\). Received: learning_rate=-1.0"),
        (lambda p: [{"params": p, "learning_rate": NAN}], ValueError, r"in \[0, inf\). Received: learning_rate=nan"),
        (lambda p: [{"params": p, "learning_rate": "x"}], TypeError, "a multiplier.*Received: learning_rate='x'"),
        (lambda p: [{"params": p, "lr_scale": 0.5}], ValueError, "'lr_scale' is a label.*Received: lr_scale=0.5"),
        (lambda p: [{"params": p, "lr_scale": "x"}], TypeError, "Received: lr_scale='x'"),
        (lambda p: [{"params": p, "grup": "a"}], ValueError, "may only have the keys .*Received: grup"),
        (lambda p: [{"params": p, "weight_decay": -1.0}], ValueError, "weight_decay.*Received: .*-1.0"),
        (lambda p: [{"params": p[:1]}, *p[1:]], TypeError, "Received: both"),
        (lambda p: [{"params": set(p)}], TypeError, "ordered collection. Received: set"),
        (lambda p: [*p, p[0]], ValueError, "twice. Received: '"),
        (lambda p: [(q.name, q) for q in p], TypeError, "must hold parameters( or dicts)?. Received: "),
        (lambda p: [q.name for q in p], TypeError, "must hold parameters( or dicts)?. Received: "),
        (lambda p: [{"params": p}, {"params": p[:1]}], ValueError, "twice. Received: '"),
        (lambda p: {"params": p}, TypeError, "must be a list of parameters or of parameter groups. Received: "),
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
def test_sparse_gradients_are_refused_before_anything_changes(name):
    dense, sparse = paddle.nn.Linear(3, 3), paddle.nn.Embedding(5, 3, sparse=True)
    opt = make(name, [*dense.parameters(), *sparse.parameters()])
    before = dense.weight.numpy().copy()
    dense(sparse(paddle.to_tensor([1, 2]))).sum().backward()
    with pytest.raises(TypeError, match="needs dense gradients.*Received: a sparse gradient of"):
        opt.step()
    np.testing.assert_array_equal(dense.weight.numpy(), before)


@pytest.mark.representatives(count=3)
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


@every_optimizer
def test_its_type_is_the_kind_of_optimizer(name):
    """As in Paddle, whose strategies name it in their messages."""
    opt = make(name, [paddle.create_parameter([2], "float32")])
    assert opt.type == ("adamw" if name == "adamwdl" else name)


@every_variant
def test_minimize_and_apply_gradients_are_steps(name):
    arrays, ends = {"w": np.ones([3, 2]), "b": np.ones([2])}, []
    for how in ("step", "minimize", "apply_gradients", "apply_gradients of an iterator"):
        with paddle.utils.unique_name.guard():
            params, _ = make_params(arrays)
            opt = make(name, list(params.values()))
            for _ in range(2):
                loss = sum((param * param).sum() for param in params.values())
                loss.backward()
                pairs = ((param, param.grad) for param in params.values())
                given = {"step": [], "minimize": [loss], "apply_gradients": [list(pairs) if how[-1] == "s" else pairs]}
                method = how.split()[0]
                getattr(opt, method)(*given[method])
                opt.clear_grad()
            ends.append({n: param.numpy() for n, param in params.items()})
    for n, want in ends[0].items():
        assert (want != arrays[n]).all()
        for end in ends[1:]:
            np.testing.assert_allclose(end[n], want, rtol=1e-6)


@pytest.mark.parametrize("cls", [ldopt.AdamWDL, ldopt.Lamb])
def test_names_from_before_sharding_are_refused(cls):
    """`dist.shard_tensor` renames parameters: none of them would be decayed."""
    network, mesh = paddle.nn.Linear(4, 3), paddle.distributed.ProcessMesh([0], dim_names=["x"])

    before = {network.weight.name}.__contains__
    for key in ("weight", "bias"):
        shard = [paddle.distributed.Shard(0)]
        setattr(network, key, paddle.distributed.shard_tensor(getattr(network, key), mesh, shard))
    with pytest.raises(ValueError, match=r"shard the model first.*Received: '[\w.]+\.dist'"):
        cls(0.1, parameters=network.parameters(), apply_decay_param_fun=before)
    cls(0.1, parameters=network.parameters(), apply_decay_param_fun={network.weight.name}.__contains__)


@every_optimizer
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("clip", [None, paddle.nn.ClipGradByGlobalNorm(1.0)])
def test_apply_gradients_skips_pairs_without_a_gradient_and_frozen_parameters(name, fused, clip):
    params, _ = make_params({"a": np.ones([2, 2]), "b": np.ones([2]), "c": np.ones([2])})
    params["c"].stop_gradient = True
    opt = make(name, list(params.values()), fused=fused, **({"grad_clip": clip} if clip else {}))
    opt.apply_gradients([(params["a"], paddle.ones([2, 2])), (params["b"], None), (params["c"], paddle.ones([2]))])
    assert [bool((param.numpy() != 1.0).all()) for param in params.values()] == [True, False, False]


@every_optimizer
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("half", [False, True])
def test_deep_copies_of_an_optimizer_and_of_its_state_go_on_as_the_original(name, fused, half):
    model = paddle.nn.Linear(4, 3)
    if half:
        model.to(dtype="bfloat16")

    def build():
        return make(name, model.parameters(), fused=fused, multi_precision=half)

    def steps(model, opt):
        for seed in range(3):
            draw = np.random.default_rng(seed).normal
            for param in model.parameters():
                param.grad = paddle.to_tensor(draw(size=param.shape)).astype(param.dtype)
            opt.step()
        return [param.astype("float32").numpy().copy() for param in model.parameters()]

    opt = build()
    steps(model, opt)
    values, state = copy.deepcopy((model.state_dict(), opt.state_dict()))
    copied = copy.deepcopy(copy.deepcopy((model, opt)))
    want = steps(model, opt)
    for found in [steps(*copied), *(_resumed(model, other, values, state, steps) for other in (opt, build()))]:
        assert all((a == b).all() for a, b in zip(found, want))


def _resumed(model, opt, values, state, steps):
    model.set_state_dict(values)
    opt.set_state_dict(copy.deepcopy(state))
    return steps(model, opt)


@pytest.mark.parametrize("fused", [None, False])
def test_the_norm_of_bfloat16_gradients_includes_layers_of_ratio_0(fused):
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2))
    model.to(dtype="bfloat16")  # `bfloat16()` does nothing on a CPU without AVX-512
    still = {param.name for param in model[0].parameters()}
    opt = ldopt.AdamWDL(
        0.1,
        parameters=model.parameters(),
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1e-3),
        set_param_lr_fun=lambda param: float(param.name not in still),
        fused=fused,
        epsilon=1.0,
        weight_decay=0.0,
        multi_precision=True,
    )
    before = [param.numpy() for param in model.parameters()]
    for param in model.parameters():
        param.grad = paddle.ones_like(param)
    opt.step()
    moved = [master.numpy() for master in opt._master_weights.values()]
    part = 1e-3 / 12**0.5  # of 12 gradients of 1; Adam's first update with epsilon 1 is g / (g + 1)
    assert all((param.numpy() == old).all() for param, old in zip(model[0].parameters(), before))
    start = [paddle.to_tensor(old).astype("float32").numpy() for old in before[2:]]
    for master, old in zip(moved, start):
        np.testing.assert_allclose(old - master, 0.1 * part / (1 + part), rtol=0.02)
