"""The table of optimizers that tests of several folders share, and the ones that follow the recorded peers."""

import contextlib

import numpy as np
import paddle
import pytest
from golden.trajectories import load_index
from reference import make_params

import paddle_ldopt as ldopt

SHAPES = {name: tuple(shape) for name, shape in load_index()["parameters"].items()}
FLOAT32 = {"adamwdl": 1e-5}  # Paddle's kernel keeps the powers of the betas in float32: 1 - 0.999 loses four digits
_MUON = {"use_muon": lambda param: len(param.shape) in (2, 4), "ns_dtype": "float32"}  # on an accelerator, too
# name -> arguments that make it an optimizer with an external rate of 0.01, a decay of 0.1
OPTIMIZERS = {
    "adamwdl": {"learning_rate": 0.01, "weight_decay": 0.1},
    "came": {"learning_rate": 0.01, "weight_decay": 0.1},
    "lamb": {"learning_rate": 0.01, "weight_decay": 0.1},
    "adafactor": {"learning_rate": 0.01, "weight_decay": 0.1, "relative_step": False, "scale_parameter": False},
    "adamweightdecay": {"learning_rate": 0.01, "weight_decay_rate": 0.1},
    "muon": {"learning_rate": 0.01, "weight_decay": 0.1, **_MUON},
}
VARIANTS = {
    **OPTIMIZERS,
    "came, compressed": {**OPTIMIZERS["came"], "compression": True},
    "adafactor, relative": {"weight_decay": 0.1},
    "adafactor, momentum": {**OPTIMIZERS["adafactor"], "beta1": 0.9},
    "adamweightdecay, amsgrad": {**OPTIMIZERS["adamweightdecay"], "amsgrad": True},
}
OF_ARITHMETIC = {  # what has arithmetic of its own
    "came, plain": {**OPTIMIZERS["came"], "beta1": 0.0},
    "came, relative": {"relative_step": True, "scale_parameter": True},
    "lamb, decayed": {**OPTIMIZERS["lamb"], "weight_decay": 0.5},
    "adamweightdecay, plain Adam": {"learning_rate": 0.01},
}
OF_LIBRARY = {  # what the C library computes in a way of its own
    "adamwdl, other betas": {**VARIANTS["adamwdl"], "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3},
    "came, no momentum": {**VARIANTS["came"], "beta1": None},
    "came, authors": {**VARIANTS["came"], "beta2": 0.999, "beta3": 0.9999, "scale_parameter": True, "loss_scale": 4},
    "came, relative warm-up": {"relative_step": True, "warmup_init": True, "clip_threshold": 0.5},
    "lamb, scheduled": {"learning_rate": lambda step: 0.1 / (step + 1), "weight_decay": lambda step: 0.1 * step},
    "adafactor, warm-up": {"warmup_init": True, "beta1": 0.5, "decay_rate": -0.5, "eps": (1e-20, 1e-2)},
    "adamweightdecay, clipped": {**VARIANTS["adamweightdecay"], "clipnorm": 0.5, "clipvalue": 0.3, "decay": 0.1},
    "adamweightdecay, globally clipped": {**VARIANTS["adamweightdecay"], "global_clipnorm": 0.5},
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_variant = pytest.mark.parametrize("name", VARIANTS)


def make(name, parameters, /, **more):
    """Build the optimizer of a row of the table."""
    arguments = {**VARIANTS, **OF_ARITHMETIC, **OF_LIBRARY}[name]
    return ldopt.optimizer_class(name.split(",")[0])(parameters=parameters, **{**arguments, **more})


def alone(name):
    """Return arguments without batches: by operations, rounding depends on the place of a parameter in its batch."""
    return {} if name.startswith("adamwdl") else {"batch_bytes": 0}


def same(got, want):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def near(got, want, rtol, atol=0.0):
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=rtol, atol=atol, err_msg=name)


def close(got, want, start, rtol=1e-5):
    """Allow `rtol` of how far a parameter moved, plus 32 roundings of its size: one that hardly moves must be right."""
    for name in want:
        rounding = 32 * np.finfo(got[name].dtype).eps * np.abs(want[name]).max()
        moved = np.abs(want[name] - start[name]).max()
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=rtol * moved + rounding, err_msg=name)


@contextlib.contextmanager
def static_graph():
    """Build static graphs, in a new program; run them too."""
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            yield
    finally:
        paddle.disable_static()


def run_static(program, feed, start, steps):
    """Train a static program and return structured name -> array.

    `program` builds it and returns (model, loss); `start` is structured name -> array.
    """
    scope = paddle.static.Scope()
    with static_graph(), paddle.utils.unique_name.guard(), paddle.static.scope_guard(scope):
        model, loss = program()
        names = {n: p.name for n, p in model.named_parameters()}
        executor = paddle.static.Executor()
        executor.run(paddle.static.default_startup_program())
        for n, tensor in names.items():
            scope.find_var(tensor).get_tensor().set(start[n], paddle.CPUPlace())
        for _ in range(steps):
            executor.run(feed=feed, fetch_list=[loss])
        return {n: np.array(scope.find_var(tensor).get_tensor()) for n, tensor in names.items()}


def states(opt):
    return {k: v.numpy().copy() for k, v in opt.state_dict().items() if hasattr(v, "numpy")}


def low_precision(arrays, dtype):
    """Return parameters of `dtype` by name, and what the arrays are once rounded to it."""
    params, _ = make_params(arrays, dtype)
    assert all(str(p.dtype).endswith(dtype) for p in params.values())
    return params, {n: p.astype("float32").numpy() for n, p in params.items()}


def build(ours, params, name_dict):
    """Return (optimizer, what to call after each step) of an index entry's "ours"."""
    arguments = dict(ours["arguments"])
    scheduler = None
    if "rates" in ours:
        scheduler = paddle.optimizer.lr.LambdaDecay(1.0, lambda step: [*ours["rates"], 0.0][step])
        arguments["learning_rate"] = scheduler
    if "layerwise_decay" in ours:
        arguments.update(layerwise_decay=ours["layerwise_decay"], n_layers=load_index()["n_layers"])
    if "decayed" in ours:
        arguments["apply_decay_param_fun"] = lambda tensor_name: name_dict[tensor_name] in ours["decayed"]
    if "muon" in ours:
        arguments["use_muon"] = lambda param: name_dict[param.name] in ours["muon"]
        arguments["ns_dtype"] = "float32"  # on an accelerator, too
    cls = ldopt.optimizer_class(ours["optimizer"])
    optimizer = cls(parameters=list(params.values()), name_dict=name_dict, **arguments)
    return optimizer, scheduler.step if scheduler else lambda: None


class Net(paddle.nn.Sequential):
    """An embedding, two blocks with norms, a head."""

    def __init__(self):
        blocks = paddle.nn.Sequential(*(paddle.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0) for _ in range(2)))
        super().__init__(("embed", paddle.nn.Embedding(6, 4)), ("blocks", blocks), ("head", paddle.nn.Linear(4, 3)))
