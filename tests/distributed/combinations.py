"""Every combination of a parallel layout, a way to step, an optimizer and a feature, compared with one process.

A combination is (layout, way, optimizer, features). `outcomes` trains each in as many processes as its layout has and
says whether the weights are those of one process, or which error refused it; `table` makes a page of that.

The network has an embedding that may be tied to the head, a convolution, a pair of tensor-parallel matrices and two
blocks. The sizes are such that slices of sharding version 2 end inside a matrix. bfloat16 parameters get gradients that
bfloat16 holds exactly, in any order of summation: each layer adds `(parameter * number).sum()` with numbers of few bits
to the loss. So the float32 masters can be compared as closely as float32 parameters.

    export PYTHONPATH=tests/support:tests
    python tests/distributed/combinations.py               # all; writes docs/combinations.json (15 minutes on 2 cores)
    python tests/distributed/combinations.py --layout "dp x sharding v2" --feature tied
"""

import argparse
import contextlib
import functools
import itertools
import json
import math
import pathlib
import random
import signal
import sys
import tempfile
import traceback

import numpy as np
import paddle
import paddle.distributed as dist
import toy_layers
from combination_networks import ROWS, axis_of, build, loss_of, plain_name
from distributed_cases import layerwise, tokens_of
from distributed_launch import LaunchError, launch
from distributed_setup import V2, start_fleet
from paddle import nn
from paddle.distributed import fleet
from toy_layers import apart, data_part, gathered, joined, tensors

import paddle_ldopt as ldopt
from paddle_ldopt._compat import is_sharded

STEPS, LR, CLIP = 8, 4e-2, 0.5
RATIOS = {"embed": 0.5, "inner.0": 2.0, "inner.1": 1.5}  # 1 elsewhere
OVERFLOWS = (1, 4)  # steps in which one process gets an infinite gradient
TOLERANCE = 1e-5  # of the way that a parameter goes, which is at least LEAST_WAY of its float32 roundings
LEAST_WAY = 3 / TOLERANCE
SECONDS = 90  # for one combination
RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "combinations.json"

AXES = {"dp": {"dp": 2}, "sharding v1": {"sharding": 2}, "sharding v2": {"sharding": 2, **V2}}
AXES.update({"pp": {"pp": 2}, "mp": {"mp": 2}})
PAIRS = [pair for pair in itertools.combinations(AXES, 2) if pair != ("sharding v1", "sharding v2")]
LAYOUTS = {**AXES, **{" x ".join(pair): {**AXES[pair[0]], **AXES[pair[1]]} for pair in PAIRS}}
WAYS = ("plain", "PipelineWithLossScale", "GradientAccumulator")
OPTIMIZERS = {  # with an epsilon that keeps the rounding of a gradient near zero from deciding an update
    "adamwdl": (ldopt.AdamWDL, {"weight_decay": 0.1, "epsilon": 1e-3}),
    "came": (ldopt.Came, {"weight_decay": 0.1}),
    "lamb": (ldopt.Lamb, {"weight_decay": 0.1, "eps": 1e-3}),
    "adafactor": (ldopt.Adafactor, {"weight_decay": 0.1, "scale_parameter": False, "relative_step": False}),
    "adamweightdecay": (ldopt.AdamWeightDecay, {"weight_decay_rate": 0.1, "epsilon": 1e-3}),
}
RATES = {"adafactor": LR / 3}  # with LR, one process too makes 4e-5 of a rounding of the start, with "all" features
FEATURES = ("none", "clip", "tied", "frozen", "overflow", "accumulation", "bfloat16", "schedule", "all")
EVERYTHING = ("clip", "tied", "frozen", "overflow", "accumulation", "schedule")  # rounds bfloat16 in any order


def combinations():
    """Return all; a loss scale belongs to `PipelineWithLossScale` alone, Paddle's GradScaler is off on a CPU."""
    every = itertools.product(LAYOUTS, WAYS, OPTIMIZERS, FEATURES)
    return [key for key in every if key[3] != "overflow" or key[1] == "PipelineWithLossScale"]


def sample(layout, count, seed):
    return random.Random(f"{seed}{layout}").sample([key for key in combinations() if key[0] == layout], count)


def features_of(key):
    if key[3] == "none":
        return frozenset()
    return frozenset(EVERYTHING if key[3] == "all" else [key[3]]) - ({"overflow"} if key[1] != WAYS[1] else set())


def batch(features, step, part=0, parts=1):
    """Return a process's part of the tokens and labels of a step."""
    tokens, labels = tokens_of(step, ROWS)
    if "bfloat16" in features:
        tokens[:, 0] = step * ROWS + np.arange(ROWS)
    return tensors((tokens, labels), part, parts)


def optimizer_of(case, features, clips, network):
    """Return (optimizer with a rate of its own for each layer, its schedule or None)."""
    names = {param.name: plain_name(own) for own, param in network.named_parameters()}
    cls, options = OPTIMIZERS[case]
    rate = RATES.get(case, LR)
    schedule = paddle.optimizer.lr.LambdaDecay(rate, lambda step: 0.8**step) if "schedule" in features else None
    how = {
        "lr" if case == "adafactor" else "learning_rate": schedule or rate,
        "grad_clip": nn.ClipGradByGlobalNorm(CLIP) if clips and "clip" in features else None,
        "multi_precision": "bfloat16" in features,
    }
    params = [p for p in network.parameters() if not (is_sharded() and p.stop_gradient)]
    return layerwise(cls, params, names, RATIOS, **how, **options), schedule


def parts_of(case, features, clips=True):
    """Return the first arguments of `toy_layers.Run`: what builds network and optimizer, and the data."""
    own_optimizer = functools.partial(optimizer_of, case, features, clips)
    return functools.partial(build, features), own_optimizer, functools.partial(batch, features)


def alone(case, features):
    """Train in one process; return the float32 parameters or masters by name before and after."""
    run = toy_layers.Run(*parts_of(case, features), loss=loss_of)
    start = values(run.plain, run.inner)
    skipped = OVERFLOWS if "overflow" in features else ()
    for step in [step for step in range(STEPS) if step not in skipped]:
        run.train(step, step + 1)
    return start, values(run.plain, run.inner)


def values(network, optimizer, hcg=None):
    """Return the whole parameters of this process by name; of bfloat16 ones with a master, that."""
    masters = ldopt._compat.unwrap(optimizer)._master_weights
    mine = {name: master.numpy().ravel() for name, master in masters.items()}
    everyone = [mine]
    if hcg is not None and hcg.get_sharding_parallel_world_size() > 1:  # each process has some, or a slice of each
        everyone = gathered(mine, hcg.get_sharding_parallel_group())
    out = {}
    for own, param in network.named_parameters():
        shards = [held[param.name] for held in everyone if param.name in held]
        master = np.concatenate(shards)[: param.size].reshape(param.shape) if shards else None
        out[plain_name(own)] = param.astype("float32").numpy().copy() if master is None else master
    return joined(out, axis_of)


def worker(layout, keys, references, folder):
    """Train each combination of a layout, write its outcome into a file as soon as it is known."""
    log = pathlib.Path(folder, f"outcomes{dist.get_rank()}")
    hcg = start_fleet(**LAYOUTS[layout])
    for index, key in keys:
        start, end = references[key[2], features_of(key)]
        signal.alarm(SECONDS)  # ends a process that waits for another
        outcome = outcome_of(hcg, key, start, end)
        signal.alarm(0)
        with log.open("a") as file:
            file.write(json.dumps([index, outcome]) + "\n")


def outcome_of(hcg, key, start, end):
    """Return a dict: "distance", or "error" with "message", "when" and "changed" if it was refused."""
    when = "construction"
    try:
        run = Run(hcg, key)
        before = values(run.plain, run.optimizer, hcg)
        when = "first step"
        for step in range(STEPS):
            run.take(step)
            when = f"step {step + 1}"
        got = values(run.plain, run.optimizer, hcg)
        return {"distance": apart(got, start, end), "names": sorted(got)}
    except Exception as error:
        changed = when != "construction" and any(
            not np.array_equal(before[plain_name(own)], param.astype("float32").numpy())
            for own, param in run.plain.named_parameters()
            if axis_of(plain_name(own)) is None
        )
        where = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{pathlib.Path(where.filename).name}:{where.lineno}"
        said = {"error": type(error).__name__, "message": str(error)[:600]}
        return {**said, "when": when, "changed": changed, "where": where}


class Run(toy_layers.Run):
    """A training of a combination under `fleet`."""

    def __init__(self, hcg, key):
        _, self.way, case, _ = key
        self.features = features_of(key)
        # calls of backward (or of the pipeline) in a step, and micro-batches of each
        many = 4 if "accumulation" in self.features else 2
        self.calls = many if self.way == "GradientAccumulator" else 1
        self.micro = 2 if hcg.get_pipe_parallel_world_size() > 1 else 1
        if self.way != "GradientAccumulator" and "accumulation" in self.features:
            self.micro = 4
        micro = {
            "accumulate_steps": self.micro,
            "micro_batch_size": ROWS // data_part(hcg)[1] // self.calls // self.micro,
        }
        # sending parts needs a kernel that CPUs lack
        fleet.fleet._user_defined_strategy.pipeline_configs = {**micro, "enable_partial_send_recv": False}
        ours = self.way == "PipelineWithLossScale"
        super().__init__(*parts_of(case, self.features, clips=not ours), hcg, loss_of, mends=not ours)
        if ours:
            self.step = ldopt.PipelineWithLossScale(
                self.network,
                self.optimizer,
                use_clip_grad="clip" in self.features,
                scale_sense=ldopt.DynamicLossScaler(2**10, 2, 3) if "overflow" in self.features else 1.0,
                micro_batch_num=self.micro,
                **({"max_grad_norm": CLIP} if "clip" in self.features else {}),
            )
            hit = {OVERFLOWS[0]: 0, OVERFLOWS[1]: dist.get_world_size() - 1}
            if "overflow" in self.features:
                param = next(param for param in self.plain.parameters() if not param.stop_gradient)
                inf, me = float("inf"), dist.get_rank()
                param.register_hook(lambda grad: grad * inf if hit.get(self.now) == me else grad)
        self.accumulator = ldopt.GradientAccumulator("mean")

    def take(self, step):
        self.now, inputs = step, self.batch(step, *data_part(self.hcg))
        if self.way == "PipelineWithLossScale":
            self.step(*inputs)
            return
        if self.way == "GradientAccumulator":
            self.accumulate(inputs)
        elif self.staged:
            self.network.train_batch(inputs, self.optimizer)
        else:
            for i, micro in enumerate(split(inputs, self.micro)):
                with self.silent(i < self.micro - 1):
                    (self.network(*micro) / self.micro).backward()
            self.optimizer.step()
            self.optimizer.clear_grad()
        if self.schedule is not None:
            self.schedule.step()

    def silent(self, wanted=True):
        return self.network.no_sync() if wanted and hasattr(self.network, "no_sync") else contextlib.nullcontext()

    def accumulate(self, inputs):
        for micro in split(inputs, self.calls):
            if self.staged:
                data = self.network._prepare_training(micro, self.optimizer, None)
                self.network.forward_backward_pipeline(data)
            else:
                with self.silent():
                    self.network(*micro).backward()
            self.accumulator(self.plain)
        groups = {"data": self.hcg.get_data_parallel_group(), "sharding": self.hcg.get_sharding_parallel_group()}
        groups = [group for group in groups.values() if group.nranks > 1]
        if groups:
            self.accumulator.synchronize(groups[0] if len(groups) == 1 else None)
        self.accumulator.apply(self.optimizer)


def split(inputs, parts):
    return list(zip(*(paddle.split(value, parts) for value in inputs)))


@functools.cache
def reference(case, features):
    """Return `alone`; raise if a parameter moves too little for float32 to resolve the tolerance."""
    start, end = alone(case, features)
    for name, value in end.items():
        way, rounding = np.abs(value - start[name]).max(), np.spacing(np.abs(value).max())
        exact = "bfloat16" in features or not way
        assert exact or way > LEAST_WAY * rounding, (case, sorted(features), name, way / rounding)
    return start, end


def outcomes(keys, folder, timeout=600, quiet=True):
    """Return {combination: outcome of each process}; "stuck" for one that did not end."""
    found = {}
    for layout in LAYOUTS:  # in processes of its own: each process group has a thread that polls until its process ends
        ranks = math.prod(degree for degree in LAYOUTS[layout].values() if isinstance(degree, int))
        left = [(index, key) for index, key in enumerate(keys) if key[0] == layout]
        while left:
            place = pathlib.Path(folder, f"{layout}-{len(left)}")
            place.mkdir(parents=True)
            wanted = {(key[2], features_of(key)) for _, key in left}
            references = {(case, features): reference(case, features) for case, features in wanted}
            why = None
            try:
                launch(worker, ranks, timeout, layout=layout, keys=left, references=references, folder=str(place))
            except LaunchError as error:
                why = str(error)[-2000:]
            logs = [place / f"outcomes{rank}" for rank in range(ranks)]
            read = [dict(map(json.loads, log.read_text().splitlines())) if log.exists() else {} for log in logs]
            done = [index for index, _ in left if all(index in one for one in read)]
            found.update({keys[index]: [one[index] for one in read] for index in done})
            left = [item for item in left if item[0] not in set(done)]
            if left and not done and why and "outcomes" not in str(list(place.iterdir())):
                raise RuntimeError(why)
            if left:  # the first that is not done is the one that got stuck
                index, key = left.pop(0)
                found[key] = [one.get(index, {"error": "stuck", "message": why}) for one in read]
            if not quiet:
                print(f"{layout}: {len(left)} left", flush=True)
    return found


def verdict(key, ranks):
    """Return "match", or "refused" with the message; raise AssertionError if it is neither."""
    if all("distance" in one for one in ranks):
        expected = set(reference(key[2], features_of(key))[1])
        assert set().union(*(one["names"] for one in ranks)) == expected, key
        worst = max(one["distance"] for one in ranks)
        assert worst < TOLERANCE, (key, worst)
        return "match"
    for one in ranks:
        assert one.get("error") in ("ValueError", "TypeError"), (key, ranks)
        assert "Received:" in one["message"] and not one["changed"], (key, one)
        assert one["when"] in ("construction", "first step"), (key, one)
    return f"refused: {ranks[0]['message']}"


def rows_of(keys, folder, **options):
    """Return (combination -> "match" or "refused: ...", combination -> why it is wrong)."""
    found, rows, wrong = outcomes(keys, folder, **options), {}, {}
    for key in keys:
        try:
            rows[key] = verdict(key, found[key])
        except AssertionError as error:
            wrong[key] = str(error)[:1000]
    return rows, wrong


def summary(rows):
    """Return what docs/combinations.json holds: of each layout and way how many match, and what is refused."""
    out = {}
    for (layout, way, case, feature), row in rows.items():
        cell = out.setdefault(layout, {}).setdefault(way, {"match": 0, "refused": {}})
        if row == "match":
            cell["match"] += 1
        else:
            cell["refused"].setdefault(row.removeprefix("refused: "), []).append(f"{case}, {feature}")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for number, name in enumerate(("layout", "way", "optimizer", "feature")):
        known = sorted({key[number] for key in combinations()})
        parser.add_argument(f"--{name}", action="append", choices=known, default=[], metavar=name.upper())
    chosen = list(vars(parser.parse_args()).values())
    keys = [key for key in combinations() if all(value in some or not some for value, some in zip(key, chosen))]
    with tempfile.TemporaryDirectory() as folder:
        rows, wrong = rows_of(keys, folder, timeout=3600, quiet=False)
    for key, why in wrong.items():
        print("WRONG", *key, why, sep=" | ", flush=True)
    match = sum(row == "match" for row in rows.values())
    print(f"{len(keys)} combinations: {match} match, {len(rows) - match} are refused, {len(wrong)} are wrong")
    if keys == combinations() and not wrong:
        RESULTS.write_text(json.dumps(summary(rows), indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
