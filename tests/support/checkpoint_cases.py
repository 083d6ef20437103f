"""The network, the training and the worker of test_parallel_checkpoints.py."""

import os
import pathlib
import shutil
import types

import distributed_setup
import numpy as np
import paddle
import toy_layers
from distributed_setup import V2, start_fleet
from paddle import nn
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

import paddle_ldopt as ldopt
from paddle_ldopt._compat import parameters_of, unwrap
from paddle_ldopt.layers import Layer, LayerMap
from paddle_ldopt.parallel import checkpoint as checkpoints
from paddle_ldopt.trainer.callbacks import GradualUnfreezeCallback, all_layers_open

HALF, STEPS, ROWS = 3, 6, 8
SIZES = [(8, 24), (24, 24), (24, 4)]  # the second is cut by two processes of sharding v2
LAYOUTS = {**distributed_setup.LAYOUTS, "sharding v2 of 4": {"sharding": 4, **V2}}


def is_matrix(param):
    return param.ndim == 2


def square_loss(out, target):
    return ((out - target) ** 2).mean()


def batch(step, part, parts):
    draw = np.random.default_rng(100 + step)
    return toy_layers.tensors([draw.standard_normal([ROWS, n]).astype("float32") for n in (8, 4)], part, parts)


class Run(toy_layers.Run):
    """A network and its optimizer in a layout."""

    def __init__(self, name, hcg=None, dtype="float32", rate=None, **arguments):
        def build(staged, **stages):
            layers = [one for sizes in SIZES for one in ((toy_layers.Linear, *sizes), (nn.Tanh,))][:-1]
            if staged:
                network = PipelineLayer([LayerDesc(*one) for one in layers], loss_fn=square_loss, **stages)
            else:
                network = nn.Sequential(*map(toy_layers.made, layers))
            toy_layers.initialise(network)
            network.to(dtype=dtype)
            return network

        def optimizer_of(network):
            schedule = paddle.optimizer.lr.ExponentialDecay(1e-2, 0.9) if rate is None else rate
            given = {"learning_rate": schedule, "parameters": network.parameters(), **arguments}
            if dtype != "float32":
                given["multi_precision"] = True
            return ldopt.create(name, network, **given), schedule

        super().__init__(build, optimizer_of, batch, hcg, square_loss)

    def values(self):
        """Return name -> value of the parameters that are here."""
        return {name: param.astype("float32").numpy() for name, param in self.plain.named_parameters()}

    def save(self, folder):
        checkpoints.save_checkpoint(folder, self.network, self.optimizer)

    def load(self, folder, **kwargs):
        checkpoints.load_checkpoint(folder, self.network, self.optimizer, **kwargs)
        return self

    def refusal(self, folder, **kwargs):
        """Return what `load` raises, and the keys of what it has changed by then."""

        def everything():
            return {**self.values(), **{key: value for key, value, _ in self.shards()}, "epoch": self.epoch()}

        before, message = everything(), "accepted"
        try:
            self.load(folder, **kwargs)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        after = everything()
        return message, [key for key in before if not np.array_equal(before[key], after[key])]

    def epoch(self):
        return getattr(self.schedule, "last_epoch", None)

    def shards(self):
        """Return [(key, value, range of the flattened whole or None)] of all state that is here."""
        weights = self.plain.sharded_state_dict()
        state = unwrap(self.optimizer).sharded_state_dict(weights, checkpoints.shards_of(self.optimizer))
        found = []
        for key, weight in state.items():
            span = weight.flattened_range and (weight.flattened_range.start, weight.flattened_range.stop)
            found.append((key, weight.local_tensor.astype("float32").numpy().copy(), span))
        return found


def place(root, layout, case):
    return os.path.join(root, layout.replace(" ", "-"), case)


def work(root, layouts, cases):
    """Train half of the way in each layout and save; then go on from what others saved.

    `layouts` maps each to those whose checkpoints it goes on from, in float32: gradients that are added up in bfloat16
    are others than those of one process. `cases` maps names to arguments of `Run`. Returns layout -> case -> {"saved":
    shards of state, "values": of the parameters then, source: (values, rate) at the end}.
    """
    out = {layout: {} for layout in layouts}
    for layout, sources in layouts.items():
        hcg = start_fleet(**LAYOUTS[layout])
        for case, arguments in cases.items():
            run = Run(hcg=hcg, **arguments).train(0, HALF)
            run.save(place(root, layout, case))
            found = out[layout][case] = {"saved": run.shards(), "values": run.values()}
            for source in sources if run.plain.parameters()[0].dtype == paddle.float32 else ():
                again = Run(hcg=hcg, **arguments).load(place(root, source, case))
                found[source] = again.train(HALF, STEPS).values(), again.schedule.last_lr
    return out


def work_refused(folder):
    """Return what is said to what cannot be saved, in each process."""
    run = Run("adamwdl", start_fleet(sharding=2))
    run.optimizer._inner_opt.tensor_fusion = True  # set, not done: that needs a GPU
    fused = toy_layers.refusal(lambda: run.save(folder))
    if paddle.distributed.get_rank() == 1:  # a process alone has a problem: the other must not wait for it
        run.plain.sharded_state_dict = lambda: {}
    run.optimizer = unwrap(run.optimizer)
    return (fused, toy_layers.refusal(lambda: run.save(folder))), os.path.exists(folder)


def unfrozen_one_by_one(hcg=None):
    """Train with clipping while layers are unfrozen; return the values, and how many parameters the callbacks see."""
    places = {f"{number}.{part}": Layer("", i, 1) for i, number in enumerate((0, 2, 4)) for part in ("weight", "bias")}
    run = Run("adamwdl", hcg, grad_clip=nn.ClipGradByGlobalNorm(0.05), epsilon=0.1)
    callback, seen = GradualUnfreezeCallback(2, LayerMap(places, dict(run.plain.named_parameters()))), 0
    for step in range(STEPS):
        state = types.SimpleNamespace(global_step=step)
        if step == 0:
            callback.on_train_begin(None, state, None, optimizer=run.optimizer)
            seen = len(parameters_of(all_layers_open(run.optimizer)[0]))
        inputs, labels = run.batch(step, *toy_layers.data_part(hcg))
        run.loss(run.network(inputs), labels).backward()
        callback.on_optimizer_begin(None, state, None, optimizer=run.optimizer)
        run.optimizer.step()
        run.optimizer.clear_grad()
    return run.values(), seen


def work_unfreezing(layouts):
    return {layout: unfrozen_one_by_one(start_fleet(**LAYOUTS[layout])) for layout in layouts}


def work_own_state(folder, layouts):
    """Go on from Paddle's own files of the weights and of `state_dict`; return (layout, case) -> equal bits."""
    out = {}
    for layout in layouts:
        hcg = start_fleet(**LAYOUTS[layout])
        for name, dtype in (("adamwdl", "bfloat16"), ("came", "bfloat16"), ("came", "float32")):
            run = Run(name, hcg, dtype).train(0, HALF)
            place = os.path.join(folder, f"{layout}-{name}-{dtype}-{paddle.distributed.get_rank()}")
            files = [f"{place}.pdparams", f"{place}.pdopt"]
            for part, file in zip((run.plain, run.optimizer), files):
                paddle.save(part.state_dict(), file)
            again = Run(name, hcg, dtype)
            again.plain.set_state_dict(paddle.load(files[0]))
            again.optimizer.set_state_dict(paddle.load(files[1]))
            got, whole = (one.train(HALF, STEPS).values() for one in (again, run))
            out[layout, name, dtype] = all(np.array_equal(got[key], value) for key, value in whole.items())
    return out


def swap(folder):
    os.rename(folder / "0_0.distcp", folder / "part")
    os.rename(folder / "1_0.distcp", folder / "0_0.distcp")
    os.rename(folder / "part", folder / "1_0.distcp")


DAMAGE = {  # what becomes of a checkpoint of two processes
    "missing": lambda folder: os.remove(folder / "1_0.distcp"),
    "cut short": lambda folder: os.truncate(folder / "1_0.distcp", 2000),
    "swapped": swap,
    "no metadata": lambda folder: os.remove(folder / "0.metadata"),
    "metadata": lambda folder: (folder / "0.metadata").write_bytes(b"x"),
    "record": lambda folder: (folder / checkpoints.RECORD).write_text("{"),
    "schedule": lambda folder: (folder / checkpoints.SCHEDULE).write_bytes(b"x"),
}


def work_loads(root):
    """Load a checkpoint in two processes of sharding v2, damaged and by others; return case -> (said, changed)."""
    hcg, rank, root = start_fleet(**LAYOUTS["sharding v2"]), paddle.distributed.get_rank(), pathlib.Path(root)
    run = Run("came", hcg).train(0, HALF)
    run.save(root / "now")
    if rank == 0:
        for name, damage in DAMAGE.items():
            damage(pathlib.Path(shutil.copytree(root / "now", root / name)))
    paddle.distributed.barrier()
    out = {name: Run("came", hcg).refusal(root / name) for name in DAMAGE}
    out["type"] = Run("came", hcg, dtype="bfloat16").refusal(root / "now")
    out["compression"] = Run("came", hcg, compression=True).refusal(root / "now", strict=False)
    # one process alone has a problem: the other must not go on
    other = paddle.optimizer.lr.OneCycleLR(1e-2, 100) if rank else None
    out["alone"] = Run("came", hcg, rate=other).refusal(root / "now")
    out["argument"] = Run("came", hcg).refusal(root / "now", rename=5 if rank else None)
    saved = run.shards()
    run.train(HALF, HALF + 1).save(root / "later")
    out["folders"] = Run("came", hcg).refusal(root / ("later" if rank else "now"))
    try:
        run.save(root / f"of {rank}")
    except ValueError as error:
        out["apart"] = f"ValueError: {error}", os.listdir(root / f"of {rank}").count(checkpoints.RECORD) * ["record"]
    SIZES[2] = (24, 5)
    out["new head"] = Run("came", hcg).refusal(root / "now", strict=False)
    SIZES[2] = (24, 4)
    out["options"] = saved, Run("came", hcg, beta3=0.98).load(root / "now").shards()
    return out
