"""What changes between the steps of an optimizer: the fused step sees it, or leaves the step to Paddle's operations."""

import contextlib

import numpy as np
import paddle
import pytest
from optimizer_cases import OPTIMIZERS, every_optimizer, every_variant, make
from reference import needs_library

import paddle_ldopt as ldopt
from paddle_ldopt import kernels
from paddle_ldopt.optimizers import RuleOptimizer

pytestmark = [
    needs_library,
    pytest.mark.promise(
        "after a change between two steps (shapes, freed memory, regularizers, groups), a step is right or is refused"
    ),
]


def parameters(*shapes, dtype="float32"):
    constant = paddle.nn.initializer.Constant(1.0)
    return [paddle.create_parameter(list(shape), dtype, default_initializer=constant) for shape in shapes]


def give_gradients(params, value=0.1):
    for param in params:
        param.grad = paddle.full(param.shape, value, param.dtype)


def both_ways(name, shapes, change, steps=4, **more):
    """Return what the parameters are with and without the library; `change(step, params)` comes before each step."""
    ends = []
    for fused in (None, False):
        params = parameters(*shapes)
        opt = make(name, params, fused=fused, **more)
        for step in range(steps):
            give_gradients(params)
            change(step, params)
            opt.step()
            opt.clear_grad(set_to_zero=False)
        ends.append([param.numpy() for param in params])
    return ends


@every_variant
@pytest.mark.parametrize("shape", [[2, 3], [6, 4], [40, 60]], ids=str)
def test_a_parameter_of_another_shape_is_refused(name, shape):
    (param,) = parameters([4, 6])
    opt = make(name, [param])
    give_gradients([param])
    opt.step()
    param.get_tensor().set(np.ones(shape, "float32"), paddle.CPUPlace())
    give_gradients([param])
    with pytest.raises(ValueError, match=r"another shape.* Received: "):
        opt.step()
    np.testing.assert_array_equal(param.numpy(), np.ones(shape, "float32"))


both_backends = pytest.mark.parametrize("fused", [None, False], ids=["fused", "operations"])


@every_optimizer
@both_backends
def test_a_gradient_of_another_shape_is_reshaped_and_one_of_another_size_refused(name, fused):
    ends = []
    for shape in ([2, 3], [3, 2], [6]):
        params = parameters([2, 3], [2, 3])
        opt = make(name, params, fused=fused)
        give_gradients(params)
        params[0].grad = paddle.arange(1.0, 7.0).reshape(shape)
        opt.step()
        ends.append(params[0].numpy())
    np.testing.assert_allclose(ends[1:], [ends[0]] * 2, rtol=2e-6)
    for shape in ([12], [1]):
        params = parameters([2, 3], [2, 3])
        opt = make(name, params, fused=fused)
        give_gradients(params)
        params[0].grad = paddle.ones(shape)
        with pytest.raises(ValueError, match=r"size of its parameter.* of shape \[2, 3\], gradient of shape \["):
            opt.step()
        assert all((param.numpy() == 1.0).all() for param in params)


TRANSPOSED = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: paddle.transpose_(x, [1, 0]),
    "data": lambda x: setattr(x, "data", x.detach().t()),
    "copied": lambda x: setattr(x, "data", x.t().contiguous()),  # what it is to equal
}


@every_variant
@pytest.mark.parametrize("of", ["parameter", "state", "master"])
def test_a_square_that_was_transposed_in_place(name, of):
    ends = []
    for transpose in [way for how, way in TRANSPOSED.items() if how != "data" or of == "parameter"]:
        with paddle.utils.unique_name.guard():
            (param,) = parameters([4, 4])
            param.set_value(paddle.arange(16.0).reshape([4, 4]))
            param = param.astype("bfloat16").detach() if of == "master" else param
            param.stop_gradient = False
            opt = make(name, [param], multi_precision=of == "master")
            for step in range(4):
                if step in (1, 3):
                    states = [x for held in opt._accumulators.values() for x in held.values() if x.ndim > 1]
                    with paddle.no_grad():
                        for x in {"parameter": [param], "state": states, "master": opt._master_weights.values()}[of]:
                            transpose(x)
                param.grad = paddle.sin(paddle.arange(16.0) + step).reshape([4, 4])
                opt.step()
            ends.append(param.astype("float32").numpy())
    np.testing.assert_allclose(ends, [ends[-1]] * len(ends), rtol=2e-6)


@every_optimizer
@both_backends
def test_a_parameter_that_was_cast_in_place(name, fused):
    ends = []
    for cast in (paddle.cast_, lambda x, dtype: setattr(x, "data", x.astype(dtype))):
        with paddle.utils.unique_name.guard():
            (param,) = parameters([5, 1])
            opt = make(name, [param], fused=fused)
            for step in range(3):
                if step == 1:
                    param.clear_gradient(False)
                    with paddle.no_grad():
                        cast(param, "float16")
                give_gradients([param])
                opt.step()
            ends.append(param.astype("float32").numpy())
    np.testing.assert_array_equal(*ends)


@every_variant
@pytest.mark.parametrize("how", ["assigned", "set", "replaced"])
def test_a_state_that_was_changed_from_outside(name, how):
    """Roll back to the state of step 2 after step 4, as Paddle's `load_state_dict` does, and in other ways."""

    def put(opt, saved):
        opt.state_dict()  # as a caller that writes into it
        for kind, held in list(opt._accumulators.items()):
            for key, tensor in list(held.items()):
                if how == "assigned":
                    paddle.assign(saved[kind][key], tensor)
                elif how == "set":
                    tensor.set_value(saved[kind][key].numpy())
                elif how == "replaced":
                    held[key] = saved[kind][key].clone()

    ends = []
    for fused in (None, False):
        with paddle.utils.unique_name.guard():
            params = parameters([3, 2], [4])
            opt = make(name, params, fused=fused)
            for step in range(7):
                if step == 2:
                    start = [param.clone() for param in params]
                    saved = {k: {n: x.clone() for n, x in held.items()} for k, held in opt._accumulators.items()}
                elif step == 4:
                    middle = [param.numpy() for param in params]
                    put(opt, saved)
                    for param, value in zip(params, start):
                        param.set_value(value)
                give_gradients(params, 0.1 + step % 2)
                opt.step()
                if step == 5:
                    for param, value in zip(params, middle):
                        np.testing.assert_array_equal(param.numpy(), value)
            ends.append([param.numpy() for param in params])
    for got, want in zip(*ends):
        np.testing.assert_allclose(got, want, rtol=2e-6)


@every_optimizer
@both_backends
@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")], ids=" to ".join)
def test_a_parameter_that_was_cast_is_refused_where_it_has_or_lacks_a_master(name, fused, dtypes, tmp_path):
    model = paddle.nn.Linear(4, 6)
    model.to(dtype=dtypes[0])
    opt = make(name, model.parameters(), fused=fused, multi_precision=True)
    give_gradients(model.parameters())
    opt.step()
    opt.clear_grad(set_to_zero=False)
    model.to(dtype=dtypes[1])
    give_gradients(model.parameters())
    before = model.weight.astype("float32").numpy()
    says = rf"another type.* Received: dtype {dtypes[1]}, {'no' if dtypes[1] == 'bfloat16' else 'a'} float32 master"
    with pytest.raises(ValueError, match=says):
        opt.step()
    np.testing.assert_array_equal(model.weight.astype("float32").numpy(), before)
    with pytest.raises(ValueError, match=rf"another type.* Received: dtype='{dtypes[1]}', missing=\["):
        ldopt.save_optimizer(tmp_path / "optimizer.safetensors", opt, model)


@every_optimizer
@both_backends
def test_an_idle_frozen_part_may_be_cast(name, fused):
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 6), paddle.nn.Linear(6, 2))
    opt = make(name, model.parameters(), fused=fused, multi_precision=True)
    give_gradients(model.parameters())
    opt.step()
    opt.clear_grad(set_to_zero=False)
    for param in model[0].parameters():
        param.stop_gradient = True
    model[0].to(dtype="bfloat16")
    give_gradients(model[1].parameters())
    before = model[1].weight.numpy()
    opt.step()
    assert (model[1].weight.numpy() != before).any()


@pytest.mark.filterwarnings("ignore:Optimizers use Paddle's operations:UserWarning")
@every_optimizer
@pytest.mark.parametrize("fused", [None, True])
def test_paddles_check_for_nan_sees_a_step_or_is_refused_with_fused_true(name, fused):
    if name == "muon" and fused:
        pytest.skip("the library has no rule of Muon")
    params = parameters([3, 1])
    opt = make(name, params, fused=fused)
    give_gradients(params)
    opt.step()
    before = params[0].numpy()
    give_gradients(params, float("nan"))
    error, says = (ValueError, "FLAGS_check_nan_inf.* Received: fused=True") if fused else (RuntimeError, "NAN or INF")
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(error, match=says):
            opt.step()
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})
    assert not fused or (params[0].numpy() == before).all()
    opt.step()
    assert np.isnan(params[0].numpy()).all(), "the flag is off: a step by the library raises nothing"


@every_optimizer
@both_backends
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_16_bits_are_clipped_though_paddle_has_no_norm_of_them_on_a_cpu(name, dtype, fused):
    ends = []
    for of in (dtype, "float32"):
        params = parameters([3, 2], [2], dtype=of)
        opt = make(name, params, fused=fused, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.25), multi_precision=True)
        for _ in range(3):
            give_gradients(params, 0.5)
            opt.step()
        ends.append([opt._master_weights.get(param.name, param).numpy() for param in params])
    for got, want in zip(*ends):
        assert (want != 1.0).all()
        np.testing.assert_allclose(got, want, rtol=1e-6)


OTHER_TYPES = ["float64", "float16", "bfloat16", "int64", "int32", "bool"]


@pytest.mark.representatives
@every_optimizer
@pytest.mark.parametrize(("dtype", "clipped"), [*((kind, False) for kind in OTHER_TYPES), ("int32", True)])
def test_a_gradient_of_another_type_is_that_of_its_numbers(name, dtype, clipped):
    clip = paddle.nn.ClipGradByValue(9.0) if clipped else None
    value = 0.5 if "float" in dtype else 1

    def change(step, params):
        params[0].clear_gradient(False)
        params[0].grad = paddle.full([3, 2], value, dtype if step < 2 else "float32")

    def want(step, params):
        params[0].grad = paddle.full([3, 2], float(value))

    found = both_ways(name, [[3, 2], [2]], change, steps=3, grad_clip=clip)
    for got in found:
        for one, other in zip(got, both_ways(name, [[3, 2], [2]], want, steps=3, grad_clip=clip)[1]):
            assert (other != 1.0).all()
            np.testing.assert_allclose(one, other, rtol=2e-6)


@every_optimizer
@both_backends
@pytest.mark.parametrize(("dtype", "of_grad"), [("float32", "complex64"), ("int32", "float32"), ("complex64",) * 2])
def test_complex_and_integer_tensors_are_refused_before_anything_changes(name, fused, dtype, of_grad):
    params = parameters([3, 1], [3, 1])
    with paddle.no_grad():
        params[1].cast_(dtype)
    opt = make(name, params, fused=fused)
    params[0].grad, params[1].grad = paddle.ones([3, 1]), paddle.ones([3, 1], of_grad)
    with pytest.raises(TypeError, match=f"floating-point.* Received: .*{dtype}.*{of_grad}"):
        opt.step()
    assert (params[0].numpy() == 1.0).all()


@every_optimizer
@pytest.mark.parametrize("attribute", ["regularizer", "main_grad"])
def test_what_a_parameter_gets_late(name, attribute):
    def change(step, params):
        if step == 2:
            late = {"regularizer": paddle.regularizer.L2Decay(0.5), "main_grad": paddle.full([3, 2], -0.3)}[attribute]
            setattr(params[0], attribute, late)

    plain = both_ways(name, [[3, 2], [2]], lambda step, params: None)[0]
    got, want = both_ways(name, [[3, 2], [2]], change)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=2e-6)
    assert name in ("came", "adafactor", "muon") or (got[0] != plain[0]).any()


def test_a_clip_that_skips_itself():
    def change(step, params):
        params[1].grad = paddle.full([2], float("nan"))

    clip = paddle.nn.ClipGradByGlobalNorm(1.0, auto_skip_clip=True)
    got, want = both_ways("adamwdl", [[3, 2], [2]], change, grad_clip=clip)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-6)
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


@pytest.mark.parametrize("extra", ["regularized", "float64"])
def test_a_resume_has_the_same_bits_whatever_had_a_gradient_before(extra):
    clip = paddle.nn.ClipGradByGlobalNorm(0.05)

    def train(steps, start=None, state=None):
        with paddle.utils.unique_name.guard():
            paddle.seed(0)
            body = paddle.create_parameter([64, 64], "float32")
            odd = paddle.create_parameter([3], "float64" if extra == "float64" else "float32")
            odd.regularizer = paddle.regularizer.L2Decay(0.1) if extra == "regularized" else None
            opt = make("lamb", [body, odd], grad_clip=clip)
            for param, value in zip([body, odd], start or []):
                param.set_value(value)
            if state is not None:
                opt.set_state_dict(state)
            for step in steps:
                body.grad = paddle.sin(body * (step + 1.0)).detach()
                odd.clear_gradient(False)
                if step == 0:
                    odd.grad = paddle.ones([3], odd.dtype)
                opt.step()
            return [body, odd], opt.state_dict()

    through, _ = train(range(20))
    second, _ = train(range(1, 20), *train(range(1)))
    for got, want in zip(second, through):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "muon"])  # of which the library has no rule
def test_groups_are_updated_in_one_call(name, monkeypatch):
    calls, step = [], kernels.library().ldopt_step
    monkeypatch.setattr(kernels.library(), "ldopt_step", lambda at, count: calls.append(count) or step(at, count))
    params = parameters([3], [2, 2], [4])
    opt = make(name, [{"params": [param], "learning_rate": 0.5} for param in params])
    for _ in range(2):
        give_gradients(params)
        opt.step()
    assert calls == [3, 3]


def test_steps_in_which_all_ratios_are_0_count():
    ratio = {"now": 0.0}
    got = []
    for fused in (None, False):
        (param,) = parameters([3])
        opt = make("adamweightdecay", [param], fused=fused, set_param_lr_fun=lambda param: ratio["now"])
        for step in range(6):
            ratio["now"] = float(step == 5)
            give_gradients([param])
            opt.step()
            opt.state_dict()  # after which the count is read anew
        assert opt.steps_taken() == 6
        opt.set_state_dict(opt.state_dict())
        ratio["now"] = 0.0
        opt.step()
        opt.state_dict()
        assert opt.steps_taken() == 7
        got.append(param.numpy())
        fresh = make(
            "lamb", [param], learning_rate=lambda step: 1.0 / (step + 1), fused=fused, lr_ratio=lambda param: 0.0
        )
        fresh.step()  # it has no state yet
        fresh.set_state_dict(fresh.state_dict())
        assert fresh.get_lr() == 0.5
    np.testing.assert_allclose(*got, rtol=1e-6)


@pytest.mark.parametrize("name", ["came", "adafactor"])
def test_a_momentum_without_a_state_is_refused(name):
    (param,) = parameters([3, 2])
    opt = make(name, [{"params": [param]}], beta1=None)
    for beta1 in (None, 0.9):
        opt._param_groups[0]["beta1"] = beta1
        give_gradients([param])
        with pytest.raises(ValueError, match="no momentum.*Received: beta1=0.9") if beta1 else contextlib.nullcontext():
            opt.step()


class Constant(ldopt.Lamb):
    @staticmethod
    def rule(param, grad, state, lr, **options):
        yield []
        return param * 0.0 + 42.0, {name: state[name] for name in ("moment1", "moment2")}


@both_backends
@pytest.mark.parametrize("grouped", [False, True], ids=["list", "groups"])
@every_optimizer
def test_a_step_calls_a_hook_once_for_each_parameter(name, grouped, fused):
    params, asked = parameters([3], [2, 2], [4]), []
    given = [{"params": params[:1]}, {"params": params[1:]}] if grouped else params
    opt = make(name, given, fused=fused, set_param_lr_fun=lambda param: asked.append(param.name) or 0.5)
    for _ in range(3):
        give_gradients(params)
        asked.clear()
        opt.step()
        assert asked == [param.name for param in params]


class Descent(RuleOptimizer):
    @staticmethod
    def rule(param, grad, state, lr, **options):
        yield []
        return param - lr * grad, {}


def test_a_rule_of_a_subclass_is_the_one_that_is_used():
    (param,) = parameters([3])
    give_gradients([param])
    Constant(0.1, parameters=[param]).step()
    np.testing.assert_array_equal(param.numpy(), [42.0] * 3)
    with pytest.raises(ValueError, match="the C library has no rule of"):
        Constant(0.1, parameters=[param], fused=True).step()
    descent = Descent(1.0, [param])
    descent.step()
    np.testing.assert_allclose(param.numpy(), [41.9] * 3)
    assert not descent.has_nonzero_weight_decay(param), "it has no such option"
    default = Descent(parameters=[param])
    assert default.get_lr() == 0.001 and not default._multi_precision


@pytest.mark.parametrize("name", ["came", "adafactor"])
def test_an_epsilon_that_the_library_takes_for_0_is_left_to_paddles_operations(name):
    (param,) = parameters([2, 2])
    eps = (1e-40, 1e-3, 1e-16) if name == "came" else (1e-40, 1e-3)
    opt = make(name, [param], eps=eps, weight_decay=0.0)
    give_gradients([param], 0.0)
    opt.step()
    np.testing.assert_array_equal(param.numpy(), np.ones([2, 2], "float32"))
