"""Numbers that are none, overflow or vanish: the table of docs/numerics.md, fused and by Paddle's operations."""

import numpy as np
import paddle
import pytest
from optimizer_cases import OF_ARITHMETIC, OPTIMIZERS, VARIANTS, make, same, states
from reference import bert_like, make_params, take_steps

from paddle_ldopt import kernels

pytestmark = pytest.mark.promise(
    "NaN, inf, overflow, denormal gradients and extreme rates behave as in [numerics.md](numerics.md#bad-numbers)"
)

# of 8 elements and more Paddle takes another way than of fewer, and of the last ones
SHAPES = {"matrix": [3, 13], "vector": [19], "matrices": [2, 3, 4], "scalar": [], "one": [1], "one by one": [1, 1]}
SHAPES.update({"empty": [0], "empty matrix": [0, 3]})
FILLED = [n for n, shape in SHAPES.items() if 0 not in shape]
FUSED = [None, False] if kernels.library() else [False]
EVERY = [name for name in (*VARIANTS, *OF_ARITHMETIC) if name != "muon"]  # whose whole matrix NaN and inf fill
every_variant = pytest.mark.parametrize("name", EVERY)
either_path = pytest.mark.parametrize("fused", FUSED, ids=["fused", "operations"][-len(FUSED) :])


def problem(steps, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {n: np.array(rng.normal(size=s) + 3.0) for n, s in SHAPES.items()}
    return arrays, [{n: np.array(scale * rng.normal(size=s)) for n, s in SHAPES.items()} for _ in range(steps)]


def spoilt(grad, value, everywhere=False):
    out = {n: np.array(g) for n, g in grad.items()}
    for g in out.values():
        if everywhere:
            g[...] = value
        elif g.size:
            g.flat[min(2, g.size - 1)] = value
    return out


def undecayed(name):
    return {"weight_decay_rate" if name.startswith("adamweightdecay") else "weight_decay": 0.0}


def run(name, fused, arrays, grads, **more):
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()), fused=fused, **more)
        return {n: a.copy() for n, a in take_steps(opt, params, grads).items()}, opt


@pytest.mark.representatives
@either_path
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@every_variant
def test_nan_and_inf(name, value, fused):
    arrays, grads = problem(steps=4)
    bad = spoilt(grads[1], value)
    clean, _ = run(name, fused, arrays, grads)
    for hit in (FILLED[::2], FILLED[1::2]):
        got, _ = run(name, fused, arrays, [grads[0], {**grads[1], **{n: bad[n] for n in hit}}, *grads[2:]])
        same({n: got[n] for n in arrays if n not in hit}, {n: clean[n] for n in arrays if n not in hit})
        for what in hit:
            place = np.arange(got[what].size) == min(2, got[what].size - 1)
            if name.startswith(("adafactor", "came")):
                assert np.isnan(got[what]).all(), what
            else:
                np.testing.assert_array_equal(np.isnan(got[what]).ravel(), place, err_msg=what)
                if not name.startswith("lamb"):  # whose rate is that of the whole tensor, its norm
                    np.testing.assert_array_equal(got[what].ravel()[~place], clean[what].ravel()[~place], err_msg=what)


@pytest.mark.representatives
@either_path
@pytest.mark.parametrize("everywhere", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("value", [-1e38, 1e22])
@every_variant
def test_squares_that_overflow(name, value, everywhere, fused):
    arrays, grads = problem(steps=4)
    grads[0] = spoilt(grads[0], value, everywhere)
    got, _ = run(name, fused, arrays, grads, **undecayed(name))
    for what in FILLED:
        now, start = got[what].ravel(), arrays[what].astype("float32").ravel()
        place = np.arange(now.size) == min(2, now.size - 1)
        if name.startswith(("adafactor", "came")) and len(SHAPES[what]) > 1:
            assert np.isnan(now).all(), what
        else:
            stays = np.ones_like(place) if everywhere else place
            np.testing.assert_array_equal(now[stays], start[stays], err_msg=what)
            assert np.isfinite(now).all() and (now != start)[~stays].all(), what


@pytest.mark.representatives
@either_path
@pytest.mark.parametrize("value", [1e-40, 1e-45])
@every_variant
def test_denormal_gradients_are_zeros(name, value, fused):
    arrays, grads = problem(steps=3)
    tiny, zero = ([grads[0], *(spoilt(g, v, everywhere=True) for g in grads[1:])] for v in (value, 0.0))
    for start in (0, 1):
        got, want = run(name, fused, arrays, tiny[start:])[0], run(name, fused, arrays, zero[start:])[0]
        same(got, want)
        assert all(np.isfinite(got[n]).all() for n in got)


@either_path
@pytest.mark.parametrize("large", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("name", [n for n in EVERY if n.startswith(("adafactor", "came"))])
def test_rows_and_columns_without_a_gradient_beside_large_ones(name, large, fused):
    arrays = {n: np.ones((16, 16)) for n in ("row", "column", "one")}
    grad = {n: np.full((16, 16), large) for n in arrays}
    grad["row"][0], grad["column"][:, 0], grad["one"][...] = 0.0, 0.0, 0.0
    grad["one"][3, 3] = large
    got, _ = run(name, fused, arrays, [grad] * 2, **undecayed(name))
    for n, array in got.items():
        assert np.isfinite(array).all(), n
        np.testing.assert_array_equal(array != 1.0, grad[n] != 0.0, err_msg=n)


@either_path
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_global_clipping_of_bad_gradients(name, fused):
    arrays, grads = problem(steps=1)
    clip = {"grad_clip": paddle.nn.ClipGradByGlobalNorm(1.0)}
    still, _ = run(name, fused, arrays, [{n: np.zeros_like(g) for n, g in grads[0].items()}], **clip)
    bad = {**grads[0], "vector": spoilt(grads[0], np.nan)["vector"]}
    got, _ = run(name, fused, arrays, [bad], **clip)
    assert all(np.isnan(got[n]).all() for n in FILLED), "the norm is NaN, and so are all gradients"
    bad["vector"] = spoilt(grads[0], 1e30)["vector"]  # its square is inf, and so is the norm
    same(run(name, fused, arrays, [bad], **clip)[0], still)
    bad["vector"] = spoilt(grads[0], np.inf)["vector"]
    got, _ = run(name, fused, arrays, [bad], **clip)
    assert np.isnan(got["vector"].flat[2])
    same({**got, "vector": 0}, {**still, "vector": 0})


@pytest.mark.representatives(count=4)
@either_path
@every_variant
def test_a_thousand_zero_gradients(name, fused):
    arrays, grads = problem(steps=1)
    arrays, grads = {"vector": arrays["vector"]}, [{"vector": grads[0]["vector"]}]
    if name.startswith(("adafactor", "came")):
        arrays["matrix"], grads[0]["matrix"] = np.ones((3, 13)), np.arange(39.0).reshape(3, 13)
    zero = {n: np.zeros_like(g) for n, g in grads[0].items()}
    got, _ = run(name, fused, arrays, [zero] * 20, **undecayed(name))
    same(got, {n: a.astype("float32") for n, a in arrays.items()})
    with paddle.utils.unique_name.guard():  # what an earlier gradient left comes to rest
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()), fused=fused, **undecayed(name))
        at_rest = {n: a.copy() for n, a in take_steps(opt, params, [*grads, *[zero] * 1000]).items()}
        assert all(np.isfinite(a).all() for a in (*at_rest.values(), *states(opt).values()))
        still = take_steps(opt, params, [zero] * 5)
    same(still, at_rest)


@either_path
@pytest.mark.parametrize("name", ["adamwdl", "adamweightdecay"])
def test_without_an_epsilon_a_zero_gradient_is_0_by_0(name, fused):
    arrays, grads = problem(steps=2)
    zero = {n: np.zeros_like(g) for n, g in grads[0].items()}
    got, _ = run(name, fused, arrays, [zero], epsilon=0.0)
    assert all(np.isnan(got[n]).all() for n in FILLED)
    got, _ = run(name, fused, arrays, [grads[0], zero], epsilon=0.0)
    assert all(np.isfinite(got[n]).all() for n in FILLED)


@pytest.mark.representatives
@either_path
@every_variant
def test_a_rate_of_0(name, fused):
    if "relative" in name:  # it takes no rate
        with pytest.raises(ValueError, match="relative_step"):
            run(name, fused, *problem(1), learning_rate=0.0)
        return
    arrays, grads = problem(steps=3)
    got, opt = run(name, fused, arrays, grads, learning_rate=0.0)
    same(got, {n: a.astype("float32") for n, a in arrays.items()})
    _, moving = run(name, fused, arrays, grads)
    key = "beta1_pow_acc"
    assert states(opt).keys() == states(moving).keys()
    for n, value in states(opt).items():
        if key in n:
            np.testing.assert_array_equal(value, states(moving)[n])


@either_path
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_layerwise_decays_at_their_limits(name, fused):
    arrays, grads = bert_like()
    arrays = {n: a.astype("float32") for n, a in arrays.items()}
    embeddings = "bert.embeddings.word_embeddings.weight"

    def at(decay):
        with paddle.utils.unique_name.guard():
            params, names = make_params(arrays)
            more = {} if decay is None else {"layerwise_decay": decay, "name_dict": names, "n_layers": 3}
            opt = make(name, list(params.values()), fused=fused, **more)
            values = {n: a.copy() for n, a in take_steps(opt, params, grads).items()}
            moments = {k: v for k, v in states(opt).items() if "moment" in k or "exp_avg" in k}
            return values, {k: v for k, v in moments.items() if k.startswith(f"{params[embeddings].name}_")}

    plain, _ = at(None)
    same(at(1.0)[0], plain)
    for decay in (1e-6, 1e-100):  # 1e-100^4 is 0, and a ratio of 0 freezes
        got, moments = at(decay)
        assert any(value.any() for value in moments.values()) == (decay == 1e-6)
        np.testing.assert_array_equal(got[embeddings], arrays[embeddings])
        np.testing.assert_array_equal(got["classifier.weight"], plain["classifier.weight"])
        assert all(np.isfinite(a).all() for a in got.values())


def after(name, fused, counters, arrays, grads):
    """Return what a step does to an optimizer some of whose state is set first: end of the key -> value."""
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()), fused=fused)
        take_steps(opt, params, grads[:1])
        state = opt.state_dict()
        for end, number in counters.items():
            state.update({key: paddle.full_like(value, number) for key, value in state.items() if key.endswith(end)})
        opt.set_state_dict(state)
        before = states(opt)
        idle = [params[n].name for n in arrays if n not in FILLED]  # which have a counter that stays
        got, names = take_steps(opt, params, grads[1:]), {n: p.name for n, p in params.items()}
        after = {k: v for k, v in states(opt).items() if not k.startswith(tuple(f"{i}_" for i in idle))}
        return got, names, before, after


def taken(name, count):
    """Return the counters of an optimizer that has taken so many steps."""
    if name == "adamwdl":  # has the powers of the coming step
        return {f"beta{i}_pow_acc_0": np.float32(beta ** (count + 1.0)) for i, beta in ((1, 0.9), (2, 0.999))}
    return {"beta1_pow_acc_0": count, "global_step_0": count}


@pytest.mark.representatives
@either_path
@pytest.mark.parametrize("count", [10**5, 10**6, 2**24])
@every_variant
def test_a_million_steps(name, count, fused):
    arrays, grads = problem(steps=2)
    want, *_ = after(name, fused, taken(name, 10**5), arrays, grads)
    got, names, before, state = after(name, fused, taken(name, count), arrays, grads)
    # a float32 counts to 2^24, and there it stays
    assert all(np.isfinite(a).all() for a in (*got.values(), *state.values()))
    for key, value in state.items():
        if "beta1_pow_acc" in key and value.size and name != "adamwdl":
            np.testing.assert_array_equal(value, np.float32(min(count + 1, 2**24)))
    if name.startswith(("adamwdl", "adamweightdecay", "lamb")):  # nothing is left to correct
        same(got, want)
        return
    used = next((v for k, v in state.items() if "used_lr" in k), None)
    if name == "adafactor, relative" and used is not None:
        scale = np.sqrt(np.mean(np.square(got["matrix"])))
        np.testing.assert_allclose(used, scale / np.sqrt(float(min(count + 1, 2**24))), rtol=0.02)
    if name == "came, relative":
        return
    rate = min(count + 1, 2**24) ** -0.8  # what a step adds to the second moment; Came's operations round 1 - rate
    rounding = 2.0**-25 if name.startswith("came") and fused is False else 0.0
    for what in ("vector", "scalar", "one"):
        (key,) = (k for k in state if k.startswith(f"{names[what]}_") and k.endswith("exp_avg_sq_0"))
        added = grads[1][what].reshape(state[key].shape) ** 2 - before[key]
        allowed = 4 * 2.0**-24 * np.maximum(before[key], state[key]) + rounding * np.abs(added)  # of four roundings
        assert (np.abs(state[key] - before[key] - rate * added) <= allowed).all()


@either_path
@pytest.mark.parametrize("power", [1e-30, 1e-38, 1e-40, 1e-45, 0.0])
def test_powers_of_beta_that_vanish_correct_nothing(power, fused):
    arrays, grads = problem(steps=2)
    got, *_ = after("adamwdl", fused, {"_pow_acc_0": power}, arrays, grads)
    for n in arrays:
        m = 0.9 * 0.1 * grads[0][n] + 0.1 * grads[1][n]
        v = 0.999 * 0.001 * grads[0][n] ** 2 + 0.001 * grads[1][n] ** 2
        start = run("adamwdl", fused, arrays, grads[:1])[0][n].astype("float64")
        want = start * (1 - 0.01 * 0.1) - 0.01 * m / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(got[n], want, rtol=1e-6, atol=1e-6)


@pytest.mark.representatives
@either_path
@pytest.mark.parametrize("how", ["frozen", "without a gradient"])
@every_variant
def test_parameters_that_come_go_and_come_back(name, how, fused):
    arrays, grads = problem(steps=6)
    late = ("matrix", "vector", "scalar")

    def without(grad):
        return {n: None if n in late else g for n, g in grad.items()}

    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()), fused=fused)

        def phase(part, there):
            for n in late:
                params[n].stop_gradient = how == "frozen" and not there
            steps = [g if there else without(g) for g in part]
            return {n: a.copy() for n, a in take_steps(opt, params, steps).items()}

        first = phase(grads[:2], there=False)
        same({n: first[n] for n in late}, {n: arrays[n].astype("float32") for n in late})
        second = phase(grads[2:4], there=True)
        kept = {k: v for k, v in states(opt).items() if any(params[n].name in k for n in late)}
        assert kept
        third = phase(grads[4:5], there=False)
        same({n: third[n] for n in late}, {n: second[n] for n in late})
        same({k: v for k, v in states(opt).items() if k in kept}, kept)
        last = phase(grads[5:], there=True)
    assert all(np.isfinite(a).all() for a in last.values())
    rest = {n: a for n, a in arrays.items() if n not in late}
    want, _ = run(name, fused, rest, [{n: g[n] for n in rest} for g in grads])
    same({n: last[n] for n in rest}, want)
    if not name.startswith("adamweightdecay"):  # which has one count for all
        own, part = {n: arrays[n] for n in late}, [*grads[2:4], grads[5]]
        want, _ = run(name, fused, own, [{n: g[n] for n in late} for g in part])
        same({n: last[n] for n in late}, want)
