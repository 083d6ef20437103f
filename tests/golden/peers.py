"""A step of each peer, in float64, and the inputs that all take."""

import dataclasses
import functools
import importlib.metadata
import os
import sys

import numpy as np
from trajectories import inputs

os.environ.update(JAX_ENABLE_X64="1", JAX_PLATFORMS="cpu", TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3")
os.environ.update(CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0")
SHAPES = {  # BERT's names, so that the layer-wise rule finds its layers
    "embeddings.word_embeddings.weight": (4, 3),
    "embeddings.scale": (),
    "encoder.layers.0.norm1.bias": (5,),
    "encoder.layers.0.linear1.weight": (1, 4),
    "encoder.layers.1.conv.weight": (3, 2, 2, 2),
    "encoder.layers.1.linear1.weight": (2, 3, 4),
    "encoder.layers.1.gate": (1,),
    "classifier.weight": (4, 1),
}
N_LAYERS = 2
N_STEPS = 8
RECORDED = (1, 2, 3, 5, 6, 8)  # steps, from 1
ZERO, SPIKE = 3, 5
RATES = [0.0005, 0.001, 0.0015, 0.002, 0.0016, 0.0012, 0.0008, 0.0004]  # a warm-up, and down again
ROUNDING = (1e-12, "rounding of float64 alone")


@dataclasses.dataclass(frozen=True)
class Case:
    id: str  # optimizer, peer and what is special
    peer: str  # its package
    cls: str  # its class or function
    options: dict  # what that is called with
    ours: dict  # our optimizer, its arguments, and what stands for functions: see `build` in optimizer_cases.py
    kind: str = "steps"  # a gradient for all in each step; "gaps": some have none
    rates: tuple = ()  # the peer's learning rate of each step
    decay: float = 1.0  # of the rate, layer by layer, given to the peer as parameter groups
    leaves_out: tuple = ()  # parameters without a counterpart
    tolerance: tuple = ROUNDING  # relative to how far the parameter moves, and the reason


def layer_ratio(name, decay):
    """Return the ratio of a parameter's rate: PaddleNLP's documented hook, written down by hand."""
    if name.startswith("embeddings."):
        return decay ** (N_LAYERS + 1)
    return decay ** (N_LAYERS - int(name.split(".")[2])) if name.startswith("encoder.layers.") else 1.0


def integers(seed, size):
    """Return integers in [-32768, 32767] from the generator's raw bits, which no version of NumPy changes."""
    return (np.random.PCG64(seed).random_raw(size) >> np.uint64(48)).astype("float64") - 32768.0


def make_inputs():
    """Return the start, the gradients and which of them are absent in "gaps"; all exact in float32."""
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    scales = np.repeat([2.0**e for e in (0, -4, -10, 3, -7, 6, 0, -13)], sizes)  # one for each parameter
    start = integers(1, sum(sizes)) / 2.0**16
    start[sum(sizes[:2]) : sum(sizes[:3])] = 0.0  # the bias: a norm of 0 is LAMB's special case, and Adafactor's
    grads = np.stack([integers(100 + step, sum(sizes)) / 2.0**15 * scales for step in range(1, N_STEPS + 1)])
    grads[ZERO - 1] = 0.0
    grads[SPIKE - 1] *= 2.0**10
    absent = [[(step + 3 * i) % 4 == 0 for i in range(len(SHAPES))] for step in range(1, N_STEPS + 1)]
    absent = np.array(absent)
    absent[:, 6] = True  # never has a gradient
    absent[:2, 0] = True  # has none at first
    return {"start": start, "gradients": grads, "absent": absent}


def torch_optimizer(case, params):
    """Build a PyTorch optimizer over name -> parameter."""
    if case.peer == "timm" and "layer_decay" in case.options:
        return timm_layer_decay(case, params)
    groups = [{"params": [p]} for p in params.values()]
    if case.decay != 1.0:
        groups = [{**g, "lr": case.options["lr"] * layer_ratio(n, case.decay)} for g, n in zip(groups, params)]
    return find(case)(groups, **case.options)


def timm_layer_decay(case, params):
    """Build AdamW over the groups of timm's own layer-wise decay."""
    import torch

    param_groups_layer_decay = find(case)

    class Model(torch.nn.Module):
        def named_parameters(self, *args, **kwargs):
            return iter(params.items())

        def group_matcher(self, coarse=False):
            return {"stem": r"^embeddings", "blocks": r"^encoder\.layers\.(\d+)"}

    options = dict(case.options)
    decays = {name: options.pop(name) for name in ("weight_decay", "layer_decay")}
    groups = param_groups_layer_decay(Model(), **decays)
    for group in groups:
        group["lr"] = options["lr"] * group.pop("lr_scale")  # as timm's schedulers do
    return torch.optim.AdamW(groups, **options)


def run_torch(case, start, grads):
    """Take the steps with a PyTorch optimizer."""
    import torch

    params = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in start.items()}
    optimizer = torch_optimizer(case, params)
    groups = optimizer.param_groups
    first = [group["lr"] for group in groups]
    for step, grad in enumerate(grads):
        for group, lr in zip(groups, first):
            if case.rates:
                group["lr"] = lr * case.rates[step] / case.options["lr"]
        for name, param in params.items():
            param.grad = None if grad[name] is None else torch.tensor(grad[name])
        # timm's Lamb counts a step of a group that has no gradient too
        optimizer.param_groups = [g for g in groups if any(param.grad is not None for param in g["params"])]
        optimizer.step()
        optimizer.param_groups = groups
        yield {name: param.detach().numpy().copy() for name, param in params.items()}


def run_torch_muon(case, start, grads):
    """Take the steps with torch's Muon for the matrices of ours, which torch has as [out, in], and AdamW for the rest.

    Muon casts to bfloat16; without that cast it computes in float64.
    """
    import torch

    torch.Tensor.bfloat16 = torch.Tensor.clone
    mine, turned = case.ours["muon"], lambda array, name: array.T if name in case.ours["muon"] else array
    params = {n: torch.nn.Parameter(torch.tensor(turned(a, n).copy())) for n, a in start.items()}
    groups = [{"params": [p], "lr": case.options["lr"] * layer_ratio(n, case.decay)} for n, p in params.items()]
    for_muon = [group for group, name in zip(groups, params) if name in mine]
    for_adamw = [group for group, name in zip(groups, params) if name not in mine]
    rest = {"weight_decay": case.options["weight_decay"]}
    optimizers = [find(case)(for_muon, **case.options), torch.optim.AdamW(for_adamw, **rest)]
    for grad in grads:
        for name, param in params.items():
            param.grad = None if grad[name] is None else torch.tensor(turned(grad[name], name).copy())
        for optimizer in optimizers:
            optimizer.step()
        yield {name: turned(param.detach().numpy(), name).copy() for name, param in params.items()}


def run_optax(case, start, grads):
    """Take the steps with an optax transformation; each parameter has its own, which waits where it has no gradient."""
    import jax.numpy as jnp
    import optax

    options = dict(case.options)
    if case.rates:
        options["learning_rate"] = lambda count: jnp.asarray(case.rates)[count]
    tx = find(case)(**options)
    params = {name: jnp.asarray(a) for name, a in start.items()}
    states = {name: tx.init(param) for name, param in params.items()}
    for grad in grads:
        for name, g in grad.items():
            if g is not None:
                updates, states[name] = tx.update(jnp.asarray(g), states[name], params[name])
                params[name] = optax.apply_updates(params[name], updates)
        yield {name: np.asarray(param) for name, param in params.items()}


def run_tensorflow(case, start, grads):
    """Take the steps with a Keras optimizer."""
    import tensorflow as tf

    options = dict(case.options)
    if "weight_decay_rate" in options:  # a plain float would become a float32 tensor, for which float64 has no product
        options["weight_decay_rate"] = np.float64(options["weight_decay_rate"])
    optimizer = find(case)(**options)
    params = {name: tf.Variable(a, name=name) for name, a in start.items()}
    tf.get_logger().setLevel("ERROR")  # it warns of absent gradients
    for grad in grads:
        pairs = [(None if grad[n] is None else tf.constant(grad[n]), param) for n, param in params.items()]
        optimizer.apply_gradients(pairs)
        yield {name: param.numpy() for name, param in params.items()}


def find(case):
    """Return the peer's class or function."""
    if case.peer == "timm":
        mend_torchvision()
    module, _, name = case.cls.rpartition(".")
    return getattr(importlib.import_module(module), name)


@functools.lru_cache  # what it returns must live on
def mend_torchvision():
    """Let timm import PyPI's torchvision beside a CPU-only PyTorch, where the operators, unused here, do not load."""
    import torch

    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        return operators


RUNNERS = {"optax": run_optax, "tensorflow": run_tensorflow, "torch.optim.Muon": run_torch_muon}
PACKAGES = {"torch": ("torch",), "timm": ("timm", "torch"), "transformers": ("transformers", "torch")}
PACKAGES.update({"came-pytorch": ("came-pytorch", "torch"), "optax": ("optax", "jax")})
PACKAGES["tensorflow"] = ("transformers", "tf_keras", "tensorflow")


def run(case, arrays):
    """Return name -> the peer's values after each recorded step."""
    names = [name for name in SHAPES if name not in case.leaves_out]
    start, grads = inputs(arrays, SHAPES, case.kind, names)
    values = list(RUNNERS.get(case.cls, RUNNERS.get(case.peer, run_torch))(case, start, grads))
    assert all(a.dtype == np.float64 for value in values for a in value.values()), case.id
    return {n: np.stack([values[step - 1][n] for step in RECORDED]) for n in names}


def version(peer):
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES[peer])
