"""What every optimizer of ours keeps to: one table, each optimizer crossed with each feature."""

import copy
import itertools
import sys

import numpy as np
import paddle
import pytest
from optimizer_cases import VARIANTS, every_optimizer, every_variant, low_precision, make, near, same, states
from reference import bert_like, llrd_ratio, make_params, take_steps

import paddle_ldopt as ldopt
from paddle_ldopt.rates import rates_of_optimizer

N = 3  # blocks of bert_like()


def run(name, arrays, grads, dtype="float32", by_name=None, **more):
    """Train new parameters and return what they become; `by_name` makes arguments out of the name_dict."""
    with paddle.utils.unique_name.guard():
        params, name_dict = make_params(arrays, dtype)
        opt = make(name, list(params.values()), **more, **(by_name(params, name_dict) if by_name else {}))
        return {n: a.copy() for n, a in take_steps(opt, params, grads).items()}


def by_rule(params, name_dict):
    return {"layerwise_decay": 0.6, "n_layers": N, "name_dict": name_dict}


@every_variant
def test_layers_hooks_the_documented_hook_and_rates_set_by_hand_agree(name):
    arrays, grads = bert_like()
    layers = ldopt.LayerMap.from_names(arrays)

    def by_layers(params, name_dict):
        layers.name_dict.update(name_dict)
        return {"layerwise_decay": 0.6, "layers": layers}

    def by_hook(params, name_dict):
        return {"set_param_lr_fun": lambda param: llrd_ratio(name_dict[param.name], 0.6, N), "name_dict": name_dict}

    def by_hand(params, name_dict):
        for n, p in params.items():  # Paddle's own way to give one parameter another rate
            p.optimize_attr["learning_rate"] = llrd_ratio(n, 0.6, N)
        return {}

    want = run(name, arrays, grads, by_name=by_rule)
    same(run(name, arrays, grads, by_name=by_layers), want)
    same(run(name, arrays, grads, by_name=by_hook), want)
    near(run(name, arrays, grads, by_name=by_hand), want, rtol=2e-6, atol=1e-7)
    uniform = run(name, arrays, grads)
    assert any(np.abs(uniform[n] - want[n]).max() > 1e-4 for n in want), "the decay changes something"


@every_optimizer
def test_lr_ratio_is_another_name_of_the_hook(name):
    arrays, grads = bert_like(steps=2)
    half = {"set_param_lr_fun": lambda param: 0.5}
    same(run(name, arrays, grads, lr_ratio=lambda param: 0.5), run(name, arrays, grads, **half))
    with pytest.raises(ValueError, match="give one of them. Received: set_param_lr_fun=.*lr_ratio="):
        run(name, arrays, grads, lr_ratio=lambda param: 0.5, **half)
    with pytest.raises(TypeError, match="Received: (lr_ratio|set_param_lr_fun)=0.5"):
        run(name, arrays, grads, lr_ratio=0.5)


@pytest.mark.parametrize(
    "name, base", [*itertools.product(["came", "lamb", "adafactor"], [0.5, 0.0, "schedule"]), ("adafactor", None)]
)
def test_a_group_may_have_a_rate_of_its_own_which_is_scaled_by_the_layer(name, base):
    arrays, grads = bert_like(steps=3)
    rates = {n: 0.001 * (i + 1) for i, n in enumerate(arrays)}
    with paddle.utils.unique_name.guard():
        params, name_dict = make_params(arrays)
        groups = [{"params": [param], "lr": rates[n]} for n, param in params.items()]
        rate = paddle.optimizer.lr.StepDecay(0.5, step_size=1) if base == "schedule" else base
        opt = make(name, groups, learning_rate=rate, set_param_lr_fun=lambda p: 0.5)
        got = take_steps(opt, params, grads)
    for n, own in rates.items():
        want = run(name, {n: arrays[n]}, [{n: grad[n]} for grad in grads], learning_rate=own * 0.5)
        np.testing.assert_allclose(got[n], want[n], rtol=1e-5, atol=1e-7, err_msg=n)
    assert base is None or opt.get_lr() == (0.5 if base == "schedule" else base)


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
    declared = ldopt.optimizer_class(name.split(",")[0]).OPTIONS
    assert {n for n, o in declared.items() if o.group and o.argument} - {"lazy_mode"} == options.keys()
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
        own = {declared[option].called or option: value}
        want = run(name, {option: arrays[option]}, [{option: grad[option]} for grad in grads], **own)
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


@every_variant
def test_grad_clip(name):
    arrays, grads = bert_like()
    clipped = []
    for grad in grads:
        norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
        clipped.append({n: g * 0.1 / max(norm, 0.1) for n, g in grad.items()})
    got = run(name, arrays, grads, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.1))
    want = run(name, arrays, clipped)
    near(got, want, rtol=1e-4, atol=1e-6)


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
def test_no_weight_decay_is_0_and_an_optimizer_knows_what_it_decays(name):
    arrays, grads = bert_like(steps=2)
    key = "weight_decay_rate" if name == "adamweightdecay" else "weight_decay"
    want = run(name, arrays, grads, **{key: 0.0})
    for none in (None, 0, np.float32(0)):
        same(run(name, arrays, grads, **{key: none}), want)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, [{"params": list(params.values()), "weight_decay": None}])
        same({n: a.copy() for n, a in take_steps(opt, params, grads).items()}, want)
    first, *others = params.values()
    for value in (0.0, 0.1, 1.0):
        opt = make(name, [first, *others], **{key: value}, apply_decay_param_fun=lambda known: known == first.name)
        assert [opt.has_nonzero_weight_decay(param) for param in (first, others[0])] == [value != 0.0, False]


@every_variant
@pytest.mark.parametrize("clipped", [False, True])
def test_minimize_and_apply_gradients_are_steps(name, clipped):
    """Also if a group has a clipping of its own."""
    arrays, ends = {"w": np.ones([3, 2]), "b": np.ones([2])}, []
    ways = ("step", "minimize", "apply_gradients", "apply_gradients of an iterator")
    for how in ways[::2] if clipped else ways:  # Paddle's `minimize` takes no groups
        with paddle.utils.unique_name.guard():
            params, _ = make_params(arrays)
            group = {"params": list(params.values()), "grad_clip": paddle.nn.ClipGradByNorm(1e-3)}
            opt = make(name, [group] if clipped else group["params"])
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


@every_optimizer
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("clip", [None, paddle.nn.ClipGradByGlobalNorm(1.0)])
def test_apply_gradients_skips_pairs_without_a_gradient_and_frozen_parameters(name, fused, clip):
    params, _ = make_params({"a": np.ones([2, 2]), "b": np.ones([2]), "c": np.ones([2])})
    params["c"].stop_gradient = True
    opt = make(name, list(params.values()), fused=fused, **({"grad_clip": clip} if clip else {}))
    opt.apply_gradients([(params["a"], paddle.ones([2, 2])), (params["b"], None), (params["c"], paddle.ones([2]))])
    assert [bool((param.numpy() != 1.0).all()) for param in params.values()] == [True, False, False]


@every_variant
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("half", [False, True])
def test_copies_of_an_optimizer_and_of_its_state_go_on_as_the_original(name, fused, half):
    model = paddle.nn.Linear(4, 3)
    if half:
        model.to(dtype="bfloat16")
    ratios = {model.weight.name: 0.25, model.bias.name: 0.5}
    of_name = lambda param: ratios[param.name]  # noqa: E731

    def build():
        decays = {"apply_decay_param_fun": lambda name: name != model.bias.name, "set_param_lr_fun": of_name}
        return make(name, model.parameters(), fused=fused, multi_precision=half, **decays)

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
    clones = {key: value.clone() for key, value in state.items() if isinstance(value, paddle.Tensor)}
    clones["master_weights"] = {key: master.clone() for key, master in state.get("master_weights", {}).items()}
    for masters in [{}, {key: master.numpy() for key, master in state.get("master_weights", {}).items()}] * half:
        with pytest.raises((TypeError, ValueError), match="lacks a|must be Tensors"):
            opt.set_state_dict({**state, "master_weights": masters})
    copied = copy.deepcopy(copy.deepcopy((model, opt)))
    want, found = steps(model, opt), [steps(*copied)]
    cloned = {**state, **clones}
    for other, given in [(opt, state), (build(), state), (build(), state), (opt, cloned), (build(), cloned)]:
        model.set_state_dict(values)
        other.set_state_dict(given)  # which stays as it is
        found.append(steps(model, other))
    for end in found:
        assert all((a == b).all() for a, b in zip(end, want))
