"""Steps by Paddle's operations: parameters of a kind together, and what that must not change."""

import gc
import math
import zlib
from typing import ClassVar

import numpy as np
import paddle
import pytest
from optimizer_cases import VARIANTS, every_variant, make, states
from paddle.profiler import Profiler, ProfilerTarget
from reference import make_params

import paddle_ldopt as ldopt
from paddle_ldopt import kernels
from paddle_ldopt.optimizers import ELEMENT, RuleOptimizer, State
from paddle_ldopt.trainer import LayerLRCallback

BATCHED = [name for name in VARIANTS if name != "adamwdl"]
every_rule = pytest.mark.parametrize("name", BATCHED)
SHAPES = [[3, 4], [4], [2, 3, 4], [4, 3], [], [6], [2, 2, 3, 3], [1, 5]]
READS = ["item", "numpy", "tolist", "__float__", "__int__", "__bool__", "__array__", "__index__", "cpu"]


def parameters(shapes, dtype="float32", seed=0):
    draw = np.random.default_rng(seed)
    arrays = {str(i): np.asarray(draw.standard_normal(shape)) for i, shape in enumerate(shapes)}
    return list(make_params(arrays, dtype)[0].values())


def give_gradients(params, draw, missing=0.0):
    for param in params:
        param.clear_gradient(False)  # Paddle 3.1 refuses `param.grad = None`
        if draw.uniform() >= missing:
            grad = draw.standard_normal(param.shape).astype("float32") * 0.1
            param.grad = paddle.to_tensor(grad).reshape(param.shape).astype(param.dtype)


def random_options(name, draw, dtype):
    """Return some of the optimizer's options; a CPU clips no 16-bit gradients."""
    decay = "weight_decay_rate" if name.startswith("adamweightdecay") else "weight_decay"
    options = {decay: float(draw.choice([0.0, 0.1]))}
    if name.startswith("came"):
        options.update(beta2=[None, 0.99][draw.integers(2)], scale_parameter=bool(draw.integers(2)), beta1=0.5)
    if name == "adafactor":
        options.update(scale_parameter=bool(draw.integers(2)), beta1=[None, 0.8][draw.integers(2)])
    if name.startswith("adamweightdecay"):
        options.update(clipnorm=[None, 0.3][draw.integers(2)], decay=float(draw.choice([0.0, 0.1])))
    clips = [None, paddle.nn.ClipGradByGlobalNorm(0.5), paddle.nn.ClipGradByValue(0.1)]
    return {**options, "grad_clip": clips[draw.integers(3) if "16" not in dtype else 0]}


def run(name, seed, dtype, batch_bytes):
    """Take some steps with everything chosen at random, and return the values and the state after each."""
    draw = np.random.default_rng(seed)
    shapes = [SHAPES[i] for i in draw.integers(len(SHAPES), size=12)]
    masters = bool(draw.integers(2))
    with paddle.utils.unique_name.guard():
        params = parameters(shapes, dtype, seed)
        options, grouped, hook = random_options(name, draw, dtype), bool(draw.integers(2)), bool(draw.integers(2))
        given = params
        if grouped:
            lr = {} if name.startswith("adamweightdecay") or "relative" in name else {"lr": 0.02}
            given = [{"params": params[:5], "learning_rate": 0.5}, {"params": params[5:], "weight_decay": 0.3, **lr}]
        ratios = {param.name: float(draw.choice([0.0, 0.25, 1.0])) for param in params}
        more = {"set_param_lr_fun": lambda param: ratios[param.name]} if hook else {}
        if draw.integers(2):
            more["apply_decay_param_fun"] = lambda known: zlib.crc32(known[-3:].encode()) % 2 == 0
        opt = make(name, given, fused=False, batch_bytes=batch_bytes, multi_precision=masters, **options, **more)
        seen = []
        for step in range(6):
            give_gradients(params, draw, missing=0.3 if step in (2, 4) else 0.0)
            params[3].stop_gradient = step == 3
            if step == 5:
                state = opt.state_dict()
                opt.set_state_dict({k: v.clone() if isinstance(v, paddle.Tensor) else v for k, v in state.items()})
            opt.step()
            seen.append([param.astype("float64").numpy() for param in params])
        return seen, {key: np.asarray(value, "float64") for key, value in states(opt).items()}


# 16-bit values without masters are rounded in each step, to one side here and to the other there
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}


@pytest.mark.representatives
@every_rule
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(6))
def test_parameters_of_a_kind_together_are_updated_as_each_alone(name, dtype, seed):
    alone, alone_state = run(name, seed, dtype, 0)
    for batch_bytes in (None, 200):  # all of a kind, or a few
        together, state = run(name, seed, dtype, batch_bytes)
        tolerance = max(TOLERANCE[dtype], 2e-3 if "compressed" in name else 0)
        for want, got in zip(alone, together):
            for one, other in zip(want, got):
                np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
        assert state.keys() == alone_state.keys()
        for key, value in state.items():
            size = np.abs(alone_state[key]).max(initial=1e-12)
            np.testing.assert_allclose(value, alone_state[key], rtol=tolerance, atol=tolerance * size, err_msg=key)


class Late(RuleOptimizer):
    """Steps along the gradient before the last."""

    OPTIONS: ClassVar = {}

    @staticmethod
    def states(options, shape):
        return {"last": State(ELEMENT), "late": State(ELEMENT)}

    @staticmethod
    def rule(param, grad, state, lr, *, shard):
        yield []
        return param - lr * state["late"], {"last": grad, "late": state["last"]}


class Swapped(Late):
    """Has the last parameter as the next one."""

    @staticmethod
    def rule(param, grad, state, lr, *, shard):
        yield []
        return state["last"], {"last": param + 1.0, "late": state["late"]}


@pytest.mark.parametrize("batch_bytes", [None, 0])
def test_a_rule_may_return_old_values_under_other_names(batch_bytes):
    for cls, want in ((Late, [0.0, 0.0, -1.0, -3.0]), (Swapped, [0.0, 1.0, 1.0, 2.0])):
        param, seen = paddle.create_parameter([2, 3], "float32"), []
        param.set_value(np.zeros([2, 3], "float32"))
        opt = cls(1.0, parameters=[param], batch_bytes=batch_bytes, fused=False)
        for step in range(4):
            param.grad = paddle.full([2, 3], step + 1.0)
            opt.step()
            seen.append(float(param[1, 2]))
        assert seen == want


@every_rule
def test_parameters_that_share_memory_are_updated_in_turn(name):
    results = []
    for batch_bytes in (None, 0):
        params, draw = parameters([[3, 4]] * 3), np.random.default_rng(0)
        params[0]._share_buffer_to(params[1])
        opt = make(name, params, fused=False, batch_bytes=batch_bytes)
        for _ in range(2):
            give_gradients(params, draw)
            opt.step()
        results.append(params[1].numpy())
    np.testing.assert_allclose(*results, rtol=1e-6)


class DroppingClip(paddle.nn.ClipGradByValue):
    """Drops a gradient and computes others in float64."""

    def _dygraph_clip(self, params_grads):
        clipped = super()._dygraph_clip(params_grads[1:])
        return [(param, grad.astype("float64") if i % 2 else grad) for i, (param, grad) in enumerate(clipped)]


@every_variant
@pytest.mark.parametrize("in_group", [True, False])
def test_a_clipping_class_of_the_user_may_drop_gradients_and_change_types(name, in_group):
    seen = []
    for fused in (False, None):
        with paddle.utils.unique_name.guard():
            params, draw, clip = parameters([[3, 4]] * 4), np.random.default_rng(0), DroppingClip(0.1)
            given = [{"params": params, "grad_clip": clip}] if in_group else params
            opt = make(name, given, fused=fused, grad_clip=None if in_group else clip)
        first = params[0].numpy()
        for _ in range(3):
            give_gradients(params, draw)
            opt.step()
        np.testing.assert_array_equal(params[0].numpy(), first)
        seen.append([param.numpy() for param in params])
    np.testing.assert_allclose(*seen, rtol=2e-5, atol=1e-6)


@pytest.fixture
def reads(monkeypatch):
    """Note each read of a Tensor on the host."""
    found, within = [], []

    def noting(name, original):
        def read(self, *args, **how):
            if not within:
                found.append(name)
            within.append(name)  # one may call another
            try:
                return original(self, *args, **how)
            finally:
                within.pop()

        return read

    for name in READS:
        monkeypatch.setattr(paddle.Tensor, name, noting(name, getattr(paddle.Tensor, name)))
    return found


def scheduled(name, params, grouped, **more):
    """Return an optimizer with all that may depend on numbers: layer rates, a schedule, clipping, decay of some."""
    scheduler = paddle.optimizer.lr.LinearWarmup(0.01, 10, 0.0, 0.01)
    rate = {} if "relative" in name else {"learning_rate": scheduler}
    ratios = {param.name: 0.5 ** (i % 3) for i, param in enumerate(params)}
    clip = paddle.nn.ClipGradByGlobalNorm(1.0) if params[0].dtype == paddle.float32 else None
    how = {"grad_clip": clip, "set_param_lr_fun": lambda param: ratios[param.name]}
    how["apply_decay_param_fun"] = lambda known: known in list(ratios)[::2]
    given = [{"params": params[:4], "learning_rate": 0.5}, {"params": params[4:]}] if grouped else params
    return make(name, given, **rate, **how, **more), scheduler


@pytest.mark.representatives
@pytest.mark.filterwarnings("ignore:Optimizers use Paddle's operations:UserWarning")
@every_variant
@pytest.mark.parametrize("how", ["operations", "no library", "alone", "groups"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_reads_nothing_on_the_host(name, how, dtype, reads, monkeypatch):
    if how == "no library":
        monkeypatch.setattr(kernels, "library", lambda: None)
        monkeypatch.setattr(kernels, "found", lambda: (None, "there is none"))
    params, draw = parameters([[3, 4]] * 3 + [[4]] * 3 + [[2, 5]], dtype), np.random.default_rng(0)
    more = {} if how == "no library" else {"fused": False}
    if how == "alone" and name != "adamwdl":
        more["batch_bytes"] = 0
    opt, scheduler = scheduled(name, params, how == "groups", **more, multi_precision=True)
    callback = LayerLRCallback()
    for step in range(4):
        give_gradients(params, draw, missing=0.3 if step == 2 else 0.0)
        reads.clear()
        callback.on_optimizer_begin(None, None, None, optimizer=opt)
        opt.step()
        assert not reads, step
        scheduler.step()


@every_variant
def test_an_overflow_is_the_only_thing_that_is_read(name, reads):
    params, draw = parameters([[3, 4]] * 3), np.random.default_rng(0)
    opt = make(name, params, fused=False)
    before = [param.numpy() for param in params]
    for value in (1.0, 0.0, 0.0):
        give_gradients(params, draw)
        opt._set_auxiliary_var("found_inf", paddle.to_tensor([bool(value)]))
        reads.clear()
        opt.step()
        assert set(reads) <= {"__bool__"} and len(reads) <= 2
        same = [np.array_equal(param.numpy(), old) for param, old in zip(params, before)]
        assert all(same) if value else not any(same)
        before = [param.numpy() for param in params]


def test_lambs_own_schedules_count_without_reading(reads):
    params, draw = parameters([[3, 4]] * 3), np.random.default_rng(0)
    opt = ldopt.Lamb(lambda step: 0.1 / (step + 1), parameters=params, fused=False)
    rates = []
    for step in range(4):
        give_gradients(params, draw)
        reads.clear()
        opt.step()
        assert not reads or step == 0
        rates.append(opt.get_lr())
    assert rates == [0.1 / 2, 0.1 / 3, 0.1 / 4, 0.1 / 5]
    for key, value in opt.state_dict().items():
        if key.endswith("global_step_0"):
            value.set_value(paddle.full([1], 9.0))
    assert opt.get_lr() == 0.1 / 10, "what is written from outside counts"


def bert(hidden=8):
    """Return the shapes of BERT-base's parameters with another hidden size."""
    shapes = [[30, hidden], [512, hidden], [2, hidden], [hidden], [hidden]]
    for _ in range(12):
        shapes += [[hidden, hidden], [hidden]] * 4 + [[hidden], [hidden], [4 * hidden, hidden], [4 * hidden]]
        shapes += [[hidden, 4 * hidden], [hidden], [hidden], [hidden]]
    return shapes


def launches(step):
    profiler = Profiler(targets=[ProfilerTarget.CPU], on_trace_ready=lambda p: None)
    profiler.start()
    step()
    profiler.stop()

    def count(node):
        return str(node.type).endswith(".Operator") + sum(map(count, node.children_node))

    return sum(map(count, profiler.profiler_result.get_data().values()))


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("name", ["came", "lamb", "adafactor", "adamweightdecay"])
def test_a_tenth_of_the_launches(name):
    params, draw, counts = parameters(bert()), np.random.default_rng(0), {}
    for batch_bytes in (0, None):
        opt = make(name, params, fused=False, batch_bytes=batch_bytes)
        give_gradients(params, draw)
        opt.step()
        counts[batch_bytes] = launches(opt.step)
    assert len(params) == 197 and counts[None] <= counts[0] / 10, counts


@pytest.mark.parametrize("ratios", [1, 3])
def test_adamwdl_launches_one_operation_for_each_parameter_and_rate(ratios):
    params, draw = parameters(bert()), np.random.default_rng(0)
    opt = make("adamwdl", params, fused=False, set_param_lr_fun=lambda param: 0.5 ** (len(param.shape) % ratios))
    give_gradients(params, draw)
    opt.step()
    assert launches(opt.step) <= len(params) + ratios + 1


@pytest.mark.representatives(count=2)
@every_rule
def test_the_memory_of_a_step_is_bounded(name):
    params, draw, most = parameters([[128, 128]] * 32), np.random.default_rng(0), 4 * 128 * 128 * 4
    peaks, core = {}, paddle.base.core
    for batch_bytes in (most, 2**25):
        opt = make(name, params, fused=False, batch_bytes=batch_bytes)
        give_gradients(params, draw)
        opt.step()
        core.host_memory_stat_reset_peak_value("Allocated", 0)
        before = core.host_memory_stat_current_value("Allocated", 0)
        opt.step()
        peaks[batch_bytes] = core.host_memory_stat_peak_value("Allocated", 0) - before
    assert peaks[most] <= 12 * most < peaks[2**25] <= 12 * math.prod([32, 128, 128, 4])


def test_a_step_keeps_no_gradient():
    core, params = paddle.base.core, parameters([[64, 64]] * 8 + [[5]])
    for batch_bytes in (0, None):
        opt, draw = make("lamb", params, fused=False, batch_bytes=batch_bytes), np.random.default_rng(0)
        sizes = []
        for _ in range(3):
            give_gradients(params, draw)
            opt.step()
            for param in params:
                param.clear_gradient(False)
            sizes.append(core.host_memory_stat_current_value("Allocated", 0))
        assert sizes[2] - sizes[0] < 64 * 64 * 4
        empty = sizes[2]
        give_gradients(params, draw)
        assert core.host_memory_stat_current_value("Allocated", 0) - empty >= 8 * 64 * 64 * 4, "gradients are seen here"


@every_rule
def test_batches_that_change_in_each_step_leak_nothing(name):
    """Paddle's `_slice` and constructors of Tensors leak a list each."""
    if not paddle.get_flags("FLAGS_use_stride_kernel")["FLAGS_use_stride_kernel"]:
        pytest.skip("without stride kernels, views are made by `_slice`")
    params, draw, lists = parameters([[3, 2]] * 6), np.random.default_rng(0), []
    opt, grad = make(name, params, fused=False), paddle.ones([3, 2])
    for step in range(60):
        for param in params:
            param.clear_gradient(False)
            if draw.uniform() < 0.5:
                param.grad = grad
        opt.step()
        if step in (19, 59):
            lists.append(sum(type(one) is list for one in gc.get_objects()))
    assert lists[1] - lists[0] < 20


def test_paddles_check_for_nan_reads_no_memory_that_is_not_set(monkeypatch):
    if paddle.get_device() != "cpu":
        pytest.skip("Paddle's check crashes on a plug-in device")
    params = parameters([[64]] * 6, "bfloat16")
    give_gradients(params, np.random.default_rng(0))
    monkeypatch.setattr(paddle, "empty", lambda shape, dtype: paddle.full(shape, math.nan, dtype))  # as it may be
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        ldopt.Came(1e-3, parameters=params, fused=False).step()
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})
    assert all(bool(param.isfinite().all()) for param in params)
