"""Record what the real peers compute: `trajectories.npz` and `index.json` beside this file.

    make parity                                      # compare a fresh run with what is stored
    python tests/golden/make.py                      # write both files anew
    python tests/golden/make.py --check              # what `make parity` runs; needs `pip install -e ".[parity]"`
    make parity ARGS=--random                        # ours on random problems: see random_problems.py

Each case is eight calls of a peer's own step() in float64 over the same eight small parameters: an element, vectors,
matrices with a side of 1, a stack of matrices and a convolution. One starts at zero. The third gradient is zero, the
fifth a spike.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from trajectories import ARRAYS, INDEX, error, inputs, join, load_arrays, load_index, split

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
    """One trajectory.

    Args:
        id (str): optimizer, peer and what is special.
        peer (str): its package.
        cls (str): its class or function.
        options (dict): what that is called with.
        ours (dict): our optimizer, its arguments, and what stands for functions: see `build` in test_parity.py.
        kind (str, optional): "steps": a gradient for all in each step; "gaps": some have none.
        rates (list, optional): the peer's learning rate of each step.
        decay (float, optional): of the rate, layer by layer, given to the peer as parameter groups.
        leaves_out (tuple, optional): parameters without a counterpart.
        tolerance (tuple, optional): relative to how far the parameter moves, and the reason.
    """

    id: str
    peer: str
    cls: str
    options: dict
    ours: dict
    kind: str = "steps"
    rates: tuple = ()
    decay: float = 1.0
    leaves_out: tuple = ()
    tolerance: tuple = ROUNDING


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
    groups = param_groups_layer_decay(
        Model(), weight_decay=options.pop("weight_decay"), layer_decay=options.pop("layer_decay")
    )
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
    """Return the versions of a peer and of what it runs on."""
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES[peer])


def ours(optimizer, **arguments):
    """Return our call; `decayed`, `layerwise_decay` and `rates` are read by test_parity.py."""
    return {"optimizer": optimizer, "arguments": arguments}


def adamw_cases():
    """Return AdamW's: torch, alone and with a rate for each layer, and timm's layer-wise decay."""
    plain = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    other = {"lr": 0.003, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    mine = {"learning_rate": 0.01, "weight_decay": 0.01}
    mine_other = {"learning_rate": 0.003, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
    matrices = [name for name, shape in SHAPES.items() if len(shape) > 1]
    kernel = (1e-8, "Paddle's kernel takes epsilon, and the decay if all rates are equal, as float32")
    layerwise = {**ours("adamwdl", **mine_other), "layerwise_decay": 0.8}
    scheduled = {**ours("adamwdl", weight_decay=0.01), "layerwise_decay": 0.5, "rates": RATES}
    for name, options, our_call, more in (
        ("", plain, ours("adamwdl", **mine), {}),
        ("-gaps", other, ours("adamwdl", **mine_other), {"kind": "gaps"}),
        ("-layerwise", other, layerwise, {"decay": 0.8}),
        ("-layerwise-schedule", plain, scheduled, {"decay": 0.5, "rates": RATES}),
    ):
        yield Case(f"adamwdl-torch{name}", "torch", "torch.optim.AdamW", options, our_call, **more, tolerance=kernel)
    timm = {"lr": 0.01, "weight_decay": 0.05, "layer_decay": 0.65}
    groups = {**ours("adamwdl", learning_rate=0.01, weight_decay=0.05), "layerwise_decay": 0.65, "decayed": matrices}
    cls = "timm.optim.param_groups_layer_decay"
    yield Case("adamwdl-timm-layerwise", "timm", cls, timm, groups, tolerance=kernel)


def lamb_cases():
    """Return LAMB's: timm as the paper has it, and optax."""
    paper = {"max_grad_norm": None, "always_adapt": True}
    other = {"betas": (0.8, 0.99), "eps": 1e-4}
    mine_other = {"beta1": 0.8, "beta2": 0.99, "eps": 1e-4}
    decayed, layerwise = {"learning_rate": 0.01, "weight_decay": 0.01}, {"learning_rate": 0.02, "weight_decay": 0.1}
    for name, options, our_call, decay in (
        ("", {"lr": 0.01, "weight_decay": 0.01}, ours("lamb", **decayed), 1.0),
        ("-undecayed", {"lr": 0.01, "weight_decay": 0.0, **other}, ours("lamb", learning_rate=0.01, **mine_other), 1.0),
        ("-layerwise", {"lr": 0.02, "weight_decay": 0.1}, {**ours("lamb", **layerwise), "layerwise_decay": 0.75}, 0.75),
    ):
        yield Case(f"lamb-timm{name}", "timm", "timm.optim.Lamb", {**options, **paper}, our_call, decay=decay)
    scheduled = ours("lamb", learning_rate=RATES, weight_decay=0.01)
    yield Case("lamb-optax-schedule", "optax", "optax.lamb", {"weight_decay": 0.01}, scheduled, rates=RATES)
    gaps = {"learning_rate": 0.01, "b1": 0.8, "b2": 0.99, "eps": 1e-4, "weight_decay": 0.1}
    our_call = ours("lamb", learning_rate=0.01, weight_decay=0.1, **mine_other)
    yield Case("lamb-optax-gaps", "optax", "optax.lamb", gaps, our_call, kind="gaps")


def adafactor_cases():
    """Return Adafactor's: transformers, and optax as far as it factors the same dimensions."""
    cls, external = "transformers.optimization.Adafactor", {"scale_parameter": False, "relative_step": False}
    scaled = {"scale_parameter": True, "relative_step": False}
    for name, options, more, case in (
        ("external", {"lr": 0.01, **external}, {}, {}),
        ("external-scaled", {"lr": 0.05, **scaled, "weight_decay": 0.1}, {}, {}),
        ("relative", {}, {}, {}),
        ("relative-unscaled", {"scale_parameter": False, "weight_decay": 0.1}, {}, {}),
        ("warmup", {"warmup_init": True}, {}, {}),
        ("beta1", {"beta1": 0.9, "weight_decay": 0.1}, {}, {}),
        ("options", {"eps": (1e-8, 0.3), "clip_threshold": 0.5, "decay_rate": -0.5}, {}, {}),
        ("gaps", {"lr": 0.01, **external, "beta1": 0.8}, {}, {"kind": "gaps"}),
        ("relative-gaps", {}, {}, {"kind": "gaps"}),
        ("layerwise", {"lr": 0.05, **scaled, "weight_decay": 0.1}, {"layerwise_decay": 0.8}, {"decay": 0.8}),
        ("schedule", {"lr": RATES[0], **external, "beta1": 0.9}, {"rates": RATES}, {"rates": RATES}),
    ):
        mine = {k: v for k, v in options.items() if k != "lr" or "rates" not in more}
        our_call = {**ours("adafactor", **mine), **more}
        yield Case(f"adafactor-transformers-{name}", "transformers", cls, options, our_call, **case)
    why = "rounding alone: its least variance is below all of these, and its rate the relative one"
    tolerance = (ROUNDING[0], why)
    yield Case(
        "adafactor-torch", "torch", "torch.optim.Adafactor", {"lr": 0.01}, ours("adafactor"), tolerance=tolerance
    )
    unscaled = {"multiply_by_parameter_scale": False, "momentum": 0.9, "dtype_momentum": "float64"}
    for name, options, our_call in (
        ("scaled", {"learning_rate": 0.05}, ours("adafactor", lr=0.05, **scaled)),
        ("momentum", {"learning_rate": 0.01, **unscaled}, ours("adafactor", lr=0.01, beta1=0.9, **external)),
    ):
        yield Case(
            f"adafactor-optax-{name}",
            "optax",
            "optax.adafactor",
            {**options, "min_dim_size_to_factor": 1},
            our_call,
            leaves_out=("encoder.layers.1.conv.weight",),  # optax factors its two largest dimensions, not the last two
            tolerance=(1e-7, "optax computes 1 - t^-0.8 in float32"),
        )


def came_cases():
    """Return CAME's: the authors' package, whose decay of the second moment is constant."""
    authors = {"beta2": 0.999, "beta3": 0.9999}
    other = {"betas": (0.8, 0.99, 0.9), "clip_threshold": 0.5, "weight_decay": 0.1, "eps": (1e-8, 1e-6)}
    mine_other = {"beta1": 0.8, "beta2": 0.99, "beta3": 0.9, "clip_threshold": 0.5, "weight_decay": 0.1}
    mine_other["eps"] = (1e-8, 1e-3, 1e-6)
    for name, options, mine, more, case in (
        ("", {"lr": 2e-4}, {"learning_rate": 2e-4, **authors}, {}, {}),
        ("-options", {"lr": 0.01, **other}, {"learning_rate": 0.01, **mine_other}, {}, {}),
        ("-gaps", {"lr": 0.01, **other}, {"learning_rate": 0.01, **mine_other}, {}, {"kind": "gaps"}),
        ("-layerwise", {"lr": 2e-4}, {"learning_rate": 2e-4, **authors}, {"layerwise_decay": 0.8}, {"decay": 0.8}),
        ("-schedule", {"lr": RATES[0]}, authors, {"rates": RATES}, {"rates": RATES}),
    ):
        mine = {**ours("came", **mine), **more}
        yield Case(f"came-authors{name}", "came-pytorch", "came_pytorch.CAME", options, mine, **case)


def adam_weight_decay_cases():
    """Return AdamWeightDecay's: TensorFlow, whose rounded numbers are what ours is given."""
    why = "ours is given the rates and betas as TensorFlow's float32 has them"
    patterns = {"include_in_weight_decay": ["layers.0.norm1"], "exclude_from_weight_decay": ["norm", "bias", "conv"]}
    for name, options, kind in (
        ("", {"learning_rate": 0.01, "weight_decay_rate": 0.01}, "steps"),
        ("-patterns", {"learning_rate": 0.01, "weight_decay_rate": 0.1, **patterns}, "steps"),
        ("-amsgrad", {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.9, "amsgrad": True}, "steps"),
        ("-gaps", {"learning_rate": 0.003, "epsilon": 1e-4, "weight_decay_rate": 0.1}, "gaps"),
        ("-clipnorm", {"learning_rate": 0.01, "clipnorm": 0.5, "decay": 0.1, "weight_decay_rate": 0.1}, "steps"),
    ):
        mine = {"beta_1": 0.9, "beta_2": 0.999, **options}
        rounded = {"learning_rate", "beta_1", "beta_2", "decay"}
        mine = {key: float(np.float32(value)) if key in rounded else value for key, value in mine.items()}
        our_call = ours("adamweightdecay", **mine)
        tolerance = (ROUNDING[0], f"rounding alone: {why}")
        cls = "transformers.AdamWeightDecay"
        yield Case(
            f"adamweightdecay-tensorflow{name}", "tensorflow", cls, options, our_call, kind=kind, tolerance=tolerance
        )


def muon_cases():
    """Return Muon's: torch's Muon and AdamW, and optax's, which has both."""
    matrices = [name for name, shape in SHAPES.items() if len(shape) == 2]
    plain = {"learning_rate": 0.01, "weight_decay": 0.1}
    original = {"learning_rate": 0.003, "weight_decay": 0.01, "momentum": 0.8, "nesterov": False, "ns_steps": 3}
    for name, mine, more in (
        ("", plain, {}),
        ("-original", {**original, "adjust_lr": "original"}, {}),
        ("-gaps", original, {"kind": "gaps"}),
        ("-layerwise", plain, {"decay": 0.8}),
    ):
        adjust = {"adjust_lr_fn": mine.get("adjust_lr", "match_rms_adamw")}
        options = {k: v for k, v in mine.items() if k not in ("learning_rate", "adjust_lr")}
        options = {"lr": mine["learning_rate"], **options, **adjust}
        our_call = {**ours("muon", **mine), "muon": matrices}
        our_call = our_call if "decay" not in more else {**our_call, "layerwise_decay": more["decay"]}
        yield Case(f"muon-torch{name}", "torch", "torch.optim.Muon", options, our_call, **more)
    for name, options, adjust in (("", {}, "original"), ("-rms", {"consistent_rms": 0.2}, "match_rms_adamw")):
        # its epsilon is also added to norms, and its Nesterov momentum has a bias correction
        shared = {"learning_rate": 0.01, "weight_decay": 0.1, "nesterov": False}
        theirs = {**shared, **options, "adam_weight_decay": 0.1, "eps": 1e-30}
        our_call = {**ours("muon", **shared, epsilon=1e-30, adjust_lr=adjust), "muon": matrices}
        yield Case(f"muon-optax{name}", "optax", "optax.contrib.muon", theirs, our_call)


def cases():
    """Return all cases."""
    made = (adamw_cases(), lamb_cases(), adafactor_cases(), came_cases(), adam_weight_decay_cases(), muon_cases())
    return [case for some in made for case in some]


def entry(case):
    """Return a case's entry in the index."""
    fields = {"id": case.id, "peer": version(case.peer), "class": case.cls, "options": case.options}
    fields.update(inputs=case.kind, leaves_out=case.leaves_out, ours=case.ours)
    if case.decay != 1.0:
        fields["options"] = {**case.options, "lr of a group": f"lr times the ratio of its layer, decay {case.decay}"}
    if case.rates:
        fields["options"] = {**fields["options"], "lr of a step": case.rates}
    return {**fields, "tolerance": case.tolerance[0], "reason": case.tolerance[1]}


def make():
    """Return (index, arrays) of a fresh run of all peers."""
    arrays = make_inputs()
    entries, recorded = [], {}
    for case in cases():
        values = run(case, arrays)
        recorded[case.id] = np.stack([join({n: a[i] for n, a in values.items()}) for i in range(len(RECORDED))])
        entries.append(entry(case))
        print(f"{case.id:40} {entries[-1]['peer']}", flush=True)
    parameters = {name: list(shape) for name, shape in SHAPES.items()}
    index = {"parameters": parameters, "n_layers": N_LAYERS, "recorded_steps": RECORDED, "cases": entries}
    return json.loads(json.dumps(index)), {**arrays, **recorded}


def write(index, arrays):
    """Write all files, of the JSON one line a case."""
    lines = ",\n".join("  " + json.dumps(one) for one in index["cases"])
    head = json.dumps({key: value for key, value in index.items() if key != "cases"})
    INDEX.write_text(f'{head[:-1]},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    np.savez_compressed(ARRAYS, **arrays)
    size = sum(path.stat().st_size for path in (INDEX, ARRAYS))
    print(f"{len(index['cases'])} cases, {size} bytes in {INDEX.parent}")


def differences(index, arrays):
    """Return a line for each way in which a fresh run is not what is stored; other versions of a peer are none."""
    stored, stored_arrays = load_index(), load_arrays()
    found = [f"`{key}` differs" for key in index if key != "cases" and index[key] != stored[key]]
    found += [f"`{k}` differs" for k in make_inputs() if not np.array_equal(arrays[k], stored_arrays.get(k))]
    by_id = {one["id"]: one for one in stored["cases"]}
    found += [f"{name}: stored, but not made" for name in set(by_id) - {one["id"] for one in index["cases"]}]
    start = split(arrays["start"], SHAPES)
    for one in index["cases"]:
        old = by_id.get(one["id"])
        if old is None:
            found.append(f"{one['id']}: made, but not stored")
            continue
        if old["peer"] != one["peer"]:
            print(f"{one['id']}: stored with {old['peer']}")
        compared = ("class", "options", "inputs", "leaves_out", "ours", "tolerance")
        found += [f"{one['id']}: `{key}` differs" for key in compared if one[key] != old[key]]
        shapes = {n: s for n, s in SHAPES.items() if n not in one["leaves_out"]}
        pair = [split(a[one["id"]], shapes) for a in (arrays, stored_arrays)]
        size, where = error(*pair, start)
        if size > ROUNDING[0]:
            found.append(f"{one['id']}: {where} differs by {size:.1e} of its way")
    return found


def random_problems(count, seed, ours):
    """Run the peers on random problems and ours in a process of its own; return whether any differs."""
    tests = pathlib.Path(__file__).resolve().parents[1]
    sys.path.append(str(tests))
    from golden.random_problems import problem, save, with_gaps

    problems, values = [problem(seed, number) for number in range(count)], []
    for number, one in enumerate(problems):
        case = Case(f"random-{number}", one["peer"], one["cls"], one["options"], one["ours"], decay=one["decay"])
        values.append(list(RUNNERS.get(case.peer, run_torch)(case, one["start"], with_gaps(one))))
        if number % 100 == 99:
            print(f"{number + 1} of {count} problems by the peers, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "problems.npz")
        save(path, problems, values)
        search = os.pathsep.join(map(str, [tests, tests / "support", tests.parent]))
        command = [ours, "-m", "golden.random_problems", path]
        return bool(subprocess.run(command, env={**os.environ, "PYTHONPATH": search}).returncode)


def main():
    """Run the peers; write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the stored files instead of writing them")
    parser.add_argument("--random", type=int, nargs="?", const=1500, metavar="N", help="compare on N random problems")
    parser.add_argument("--seed", type=int, default=0, help="of the random problems")
    parser.add_argument("--ours", default=sys.executable, metavar="PYTHON", help="the Python that has Paddle")
    how = parser.parse_args()
    if how.random is not None:
        return random_problems(how.random, how.seed, how.ours)
    made = make()
    if not how.check:
        return write(*made)
    found = differences(*made)
    print("\n".join(found) or f"all {len(made[0]['cases'])} cases are what the peers compute")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
