"""Networks, data and the workers of test_distributed_optimizers.py: the same training in one process and in several.

The network has an embedding that is tied to the head, a convolution, matrices and vectors. Its parameters are of such
sizes that the slices of sharding version 2 end inside a matrix (2 and 4 processes) and inside the padding behind the
embedding (4). No gradient is zero by symmetry: CAME would make a step of the rounding.
"""

import functools

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from distributed_setup import LAYOUTS, each_started, start_fleet
from paddle import nn
from paddle.distributed import fleet
from toy_layers import Block, Embed, Mix, Run, Staged, Whole, initialise, plain_name, refusal, tensors, values

from paddle_ldopt import Adafactor, AdamWDL, AdamWeightDecay, Came, GradientAccumulator, Lamb, Muon
from paddle_ldopt.parallel import save_checkpoint

VOCABULARY, HIDDEN, LENGTH, ROWS = 25, 18, 5, 8
STEPS, LR, CLIP = 20, 4e-2, 0.1
LAYERS = (Embed, VOCABULARY, HIDDEN), [(Mix,), (Block, HIDDEN), (Block, HIDDEN)]


def network_of(staged=False, **arguments):
    return initialise((Staged if staged else Whole)(*LAYERS, **arguments))


def names_of(network):
    """Return {parameter's own name: name in `Whole`}."""
    return {param.name: plain_name(name) for name, param in network.named_parameters()}


def tokens_of(step, rows=ROWS):
    """Return the tokens of a step and their labels."""
    tokens = np.random.default_rng(1000 + step).integers(0, VOCABULARY, [rows, LENGTH])
    return tokens, (tokens * 3 + 1) % VOCABULARY


def batch(step, part=0, parts=1):
    return tensors(tokens_of(step), part, parts)


RATIOS = {"embed": 0.25, "inner.0": 0.5, "inner.1": 0.7}  # 1 elsewhere


def rate(step):
    return LR * 0.9**step


OPTIMIZERS = {
    "adamwdl": (AdamWDL, {"learning_rate": LR, "weight_decay": 0.1}),
    "lamb": (Lamb, {"learning_rate": LR, "weight_decay": 0.1}),
    "lamb, scheduled": (Lamb, {"learning_rate": rate, "weight_decay": lambda step: 0.1 / (step + 1)}),
    "adafactor": (Adafactor, {"lr": LR, "scale_parameter": False, "relative_step": False, "weight_decay": 0.1}),
    "adafactor, relative": (Adafactor, {"beta1": 0.9}),
    "came": (Came, {"learning_rate": LR, "weight_decay": 0.1}),
    "came, relative": (Came, {"relative_step": True, "scale_parameter": True, "beta2": 0.99, "beta3": 0.9}),
    "came, no momentum": (Came, {"learning_rate": LR, "beta1": 0.0}),
    "adamweightdecay": (AdamWeightDecay, {"learning_rate": LR, "weight_decay_rate": 0.1, "clipnorm": 0.02}),
    "amsgrad": (AdamWeightDecay, {"learning_rate": LR, "amsgrad": True, "clipvalue": 1e-3, "decay": 0.1}),
}


def layerwise(cls, params, names, ratios, **options):
    """Return an optimizer with a rate of its own for each part of the network and a decay by name."""
    decayed = {own for own, name in names.items() if not name.endswith(("bias", "scale"))}

    def ratio(param):
        return next((ratio for part, ratio in ratios.items() if names[param.name].startswith(part)), 1.0)

    how = {"parameters": params, "name_dict": names, "set_param_lr_fun": ratio}
    return cls(apply_decay_param_fun=decayed.__contains__, **how, **options)


def optimizer_of(case, params, names):
    """Return an optimizer with a rate for each layer and global-norm clipping."""
    if case == "muon":
        return Muon(learning_rate=LR, parameters=params, name_dict=names, use_muon=lambda param: len(param.shape) == 2)
    cls, options = OPTIMIZERS[case]
    if cls is AdamWeightDecay:
        options = {**options, "exclude_from_weight_decay": ["bias", "norm"]}
    return layerwise(cls, params, names, RATIOS, grad_clip=nn.ClipGradByGlobalNorm(CLIP), **options)


def run_of(case, hcg=None):
    def build(network):
        return optimizer_of(case, network.parameters(), names_of(network)), None

    return Run(network_of, build, batch, hcg)


def alone(case):
    """Train in one process; return the parameters by name before and after."""
    run = run_of(case)
    return values(run.plain), values(run.train(0, STEPS).plain)


def trained(hcg, case):
    """Train the network under `fleet`; return the parameters by name."""
    run = run_of(case, hcg).train(0, STEPS)
    if hasattr(run.optimizer._inner_opt, "_slice_params"):  # sharding version 2
        cut = [own for own, shard in run.inner.finder.find(run.inner._parameter_list).items() if shard.groups]
        assert [names_of(run.plain)[own] for own in cut] == ["inner.1.linear.weight"], "the network is built for it"
    return values(run.plain)


# name -> (shape, axis that is split or None)
PARTS = {
    "inner.0.weight": ([6, 8], 1),
    "inner.1.weight": ([10, 6], 0),
    "inner.1.bias": ([12], 0),
    "inner.2.weight": ([4, 2, 3, 3], 0),
    "inner.2.conv": ([4, 6, 3, 3], 1),
    "inner.2.norm": ([7], None),
    "embed.weight": ([5, 9], None),
}


def centralized(params, names):
    """Return LAMB with two groups, the convolutions' gradients centralized."""
    convolutions = [param for param in params if len(param.shape) == 4]
    others = [param for param in params if len(param.shape) < 4]
    groups = [{"params": convolutions, "grad_centralization": True}, {"params": others, "weight_decay": 0.1}]
    return Lamb(LR, parameters=groups, grad_clip=nn.ClipGradByGlobalNorm(CLIP))


def given(hcg, case, mesh=None, wrap=lambda optimizer: optimizer):
    """Train `PARTS` with random gradients, whole or this process's parts; return them and their start by name.

    With a `mesh` they are DistTensors on it, sharded along the axis that is split; `wrap` is given the optimizer.
    """
    mp, rank = (1, 0) if hcg is None else (hcg.get_model_parallel_world_size(), hcg.get_model_parallel_rank())

    def part(name, array):
        axis = PARTS[name][1]
        array = array if axis is None else np.split(array, mp, axis)[rank]
        return paddle.to_tensor(array.astype("float32"))

    def placed(name, tensor):
        axis = PARTS[name][1]
        if mesh is None:
            return tensor
        return dist.shard_tensor(tensor, mesh, [dist.Replicate() if axis is None else dist.Shard(axis)])

    draw, params = np.random.default_rng(7), {}
    for name, (shape, axis) in PARTS.items():
        start = part(name, draw.standard_normal(shape))
        params[name] = nn.Linear(1, 1).create_parameter(start.shape)
        params[name].set_value(start)
        params[name] = placed(name, params[name])
        if mp > 1 and axis is not None:
            params[name].is_distributed, params[name].split_axis = True, axis
    names = {param.name: name for name, param in params.items()}
    build = centralized if case == "lamb, centralized" else lambda *given: optimizer_of(case, *given)
    optimizer = wrap(build(list(params.values()), names))
    start = _whole(params)
    if hcg is not None:
        optimizer = fleet.distributed_optimizer(optimizer)
    for _ in range(STEPS):
        grads = {name: placed(name, part(name, draw.standard_normal(shape))) for name, (shape, _) in PARTS.items()}
        sum((params[name] * grads[name]).sum() for name in PARTS).backward()
        optimizer.step()
        optimizer.clear_grad()
    return start, _whole(params)


def _whole(params):
    whole = {n: dist.unshard_dtensor(param) if param.is_dist() else param for n, param in params.items()}
    return {name: param.numpy().copy() for name, param in whole.items()}


def auto_parallel(cases):
    """Return what becomes of `PARTS` as DistTensors on all processes, by case; and messages of what is refused."""
    if paddle.distributed.get_world_size() > 1:
        dist.init_parallel_env()
    mesh = dist.ProcessMesh(list(range(dist.get_world_size())), dim_names=["x"])
    out = {case: given(None, case, mesh=mesh)[1] for case in cases}
    out["adamwdl, wrapped"] = given(None, "adamwdl", mesh=mesh, wrap=dist.shard_optimizer)[1]

    def one_step(wrap=lambda optimizer: optimizer):
        weight = dist.shard_tensor(nn.Linear(4, 4).weight, mesh, [dist.Shard(0)])
        before = weight.numpy()
        optimizer = wrap(AdamWDL(LR, parameters=[weight], fused=True))
        weight.sum().backward()
        try:
            optimizer.step()
        finally:
            assert (weight.numpy() == before).all()

    out["fused"], out["fused, wrapped"] = refusal(one_step), refusal(lambda: one_step(dist.shard_optimizer))

    def with_several(save):
        network = nn.Linear(4, 4)
        network.weight = dist.shard_tensor(network.weight, mesh, [dist.Shard(0)])
        if save:
            save_checkpoint("nowhere", network, AdamWDL(LR, parameters=network.parameters()))
        network.weight.sum().backward()
        accumulator = GradientAccumulator()
        accumulator([network.weight.grad])
        accumulator.synchronize()

    if dist.get_world_size() > 1:
        out["synchronized"], out["saved"] = (refusal(lambda save=save: with_several(save)) for save in (False, True))
    wrapped = refusal(lambda: given(None, "lamb", mesh=mesh, wrap=dist.shard_optimizer), AssertionError)
    return {**out, "lamb, wrapped": wrapped}


def auto_static(cases):
    """Return by case how far off `dist.to_static` is on a mesh of this process alone, or why it is refused."""
    mesh, out = dist.ProcessMesh([0], dim_names=["x"]), {}
    dist.auto_parallel.set_mesh(mesh)
    draw = np.random.default_rng(3)
    inputs, outputs = (draw.standard_normal([16, size]).astype("float32") for size in (6, 4))
    rows = paddle.io.TensorDataset([paddle.to_tensor(inputs), paddle.to_tensor(outputs)])
    data = paddle.io.DataLoader(rows, batch_size=4)

    def train(case, static):
        with paddle.utils.unique_name.guard():
            network = nn.Linear(6, 4)
        network.weight.set_value(0.1 * inputs[:6, :1] * outputs[:1])
        start = network.weight.numpy()
        network.weight = dist.shard_tensor(network.weight, mesh, [dist.Shard(0)])
        cls, options = OPTIMIZERS.get(case, (Lamb, {"learning_rate": 0.01}))
        parameters = network.parameters() if case in OPTIMIZERS else [{"params": network.parameters()}]
        optimizer = cls(parameters=parameters, **options)
        if static:
            loader = dist.shard_dataloader(data, [mesh])
            model = dist.to_static(network, loader, F.mse_loss, optimizer)
            model.train()
            for x, y in loader():
                model(x, y)
            paddle.disable_static()
            return start, dist.unshard_dtensor(model.state_dict("param")["weight"]).numpy()
        for x, y in data():
            F.mse_loss(network(dist.shard_tensor(x, mesh, [dist.Replicate()])), y).backward()
            optimizer.step()
            optimizer.clear_grad()
        return start, dist.unshard_dtensor(network.weight).numpy()

    for case in cases:
        try:
            (start, want), (_, got) = train(case, False), train(case, True)
            out[case] = np.abs(got - want).max() / np.abs(want - start).max()
        except ValueError as error:
            out[case] = str(error)
        paddle.disable_static()
    return out


def joined(parts):
    """Return the whole parameters, given those of each process of a tensor-parallel group."""
    return {
        name: parts[0][name] if axis is None else np.concatenate([part[name] for part in parts], axis)
        for name, (_, axis) in PARTS.items()
    }


def worker(runs):
    """Train each (layout, case) in these processes; return the parameters."""
    return {
        (layout, case): given(hcg, case)[1] if layout == "mp" else trained(hcg, case)
        for hcg, layout, case in each_started(runs)
    }


def three_parts():
    """Return a network with a layer that is always used, one from the second step on, one never."""
    network = nn.Layer()
    network.parts = nn.LayerList([nn.Linear(6, 5) for _ in range(3)])
    network.forward = lambda inputs, used: sum(paddle.tanh(part(inputs)) for part in list(network.parts)[:used])
    return network


def sometimes(case, freeze_one=False, **of_one):
    """Train it, under `fleet` if that was started; return the parameters by name before and after."""
    with paddle.utils.unique_name.guard():
        network = initialise(three_parts())
        cls, options = OPTIMIZERS[case]
        options = {**options, **(of_one if dist.is_initialized() and dist.get_rank() == 1 else {})}
        optimizer = cls(parameters=network.parameters(), grad_clip=nn.ClipGradByGlobalNorm(CLIP), **options)
    start, model = values(network), network
    if dist.is_initialized():
        optimizer, model = fleet.distributed_optimizer(optimizer), fleet.distributed_model(network)
        network.parts[0].bias.stop_gradient = freeze_one and dist.get_rank() == 1
    for step in range(STEPS):
        inputs = paddle.to_tensor(np.random.default_rng(step).standard_normal([4, 6]).astype("float32"))
        (model(inputs, min(step + 1, 2)) ** 2).mean().backward()
        try:
            optimizer.step()
        except ValueError as error:
            return str(error), all((value == start[name]).all() for name, value in values(network).items())
        optimizer.clear_grad()
    return start, values(network)


def sometimes_sharded(runs):
    """Return what becomes of it for each (layout, case), and of processes that freeze different parameters."""
    start_fleet(**LAYOUTS["sharding v1"])
    if dist.get_rank() == 0:  # the others must not be waited for: fleet does not wrap this optimizer
        probe = nn.Linear(2, 2)
        probe(paddle.ones([1, 2])).mean().backward()
        Lamb(LR, parameters=probe.parameters()).step()
    out = {"frozen on one": sometimes("lamb", freeze_one=True)}
    out["other options on one"] = sometimes("lamb", weight_decay=0.5)
    return {**out, **{(layout, case): sometimes(case)[1] for _, layout, case in each_started(runs)}}


def refusals():
    out = {}
    start_fleet(sharding=2)
    params = network_of().parameters()
    for cls in (Lamb, AdamWDL):
        grouped = cls(LR, parameters=[{"params": params[:2]}, {"params": params[2:]}])
        out["groups", cls.__name__] = refusal(lambda grouped=grouped: fleet.distributed_optimizer(grouped), TypeError)
    for what, setting in (
        ("fused buffers", {"tensor_fusion": True}),
        ("comm_overlap", {"comm_overlap": True, "accumulate_steps": 1}),
        ("tensor_fusion", {"tensor_fusion": True, "fuse_optimizer": False, "accumulate_steps": 1}),
    ):
        hcg = start_fleet(sharding=2, sharding_configs=setting)
        for case in ("lamb", "adamwdl"):
            out[what, case] = refusal(lambda hcg=hcg, case=case: run_of(case, hcg).train(0, 1))
        if what == "fused buffers":
            run = run_of("came", hcg)
            before, out[what, "came"] = values(run.plain), refusal(lambda run=run: run.train(0, 1))
            out["unchanged"] = all((value == before[name]).all() for name, value in values(run.plain).items())
    start_fleet(mp=2)
    param = nn.Linear(4, 4).weight
    param.is_distributed = True
    optimizer = fleet.distributed_optimizer(Lamb(LR, parameters=[param]))
    param.sum().backward()
    out["no split axis"] = refusal(optimizer.step)
    before, adam = param.numpy(), fleet.distributed_optimizer(AdamWDL(LR, parameters=[param]))
    adam.step()  # needs no sums
    out["no split axis, adamwdl"] = bool((param.numpy() != before).all())
    for hcg, layout, case in each_started([("mp", "muon"), ("sharding v2", "muon")]):
        out[case, layout] = refusal(functools.partial(given if layout == "mp" else trained, hcg, case))
    return out
