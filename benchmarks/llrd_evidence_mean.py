"""Compare uniform training with decays that keep the mean learning rate: their ratios are divided by the mean ratio.

    OMP_NUM_THREADS=1 nice python benchmarks/llrd_evidence_mean.py run --data docstrings trec/
    python benchmarks/llrd_evidence.py report                   # writes the tables of both studies

`run` adds a line of JSON per run to benchmarks/results/llrd_evidence_mean.jsonl and skips runs in this file. It trains
the tasks whose data are in --data. `docstrings` needs no files: its texts come with Python. `trec` is a folder with
train.tsv and test.tsv (question, tab, type), which we do not distribute.

To divide all ratios by a constant, the runs divide the learning rate by it, which has the same effect. The results of
each run contain the mean ratio. `LayerDecay(preserve_mean=True)` divides the ratios themselves by their mean over the
blocks. Model, optimizer and schedule are the same as in llrd_evidence.py.
"""

import argparse
import dataclasses
import functools
from pathlib import Path
from typing import ClassVar

import llrd_evidence as evidence
import numpy as np

import paddle_ldopt as ldopt

RESULTS = evidence.MEANS
SEEDS = 10
DECAYS = (0.9, 0.8, 0.65)
MEANS = ("blocks", "parameters")
# arm -> (decay, what the mean of its ratios is taken over)
ARMS = {"uniform": (1.0, "blocks"), **{f"{decay:g} by {mean}": (decay, mean) for mean in MEANS for decay in DECAYS}}


@dataclasses.dataclass(frozen=True)
class Protocol(evidence.Protocol):
    """What all runs of a task have in common."""

    max_length: int = 32
    test_rows: int = 500
    bucket: int = 8
    balanced: ClassVar[bool] = True  # whether `examples` has the same number of each class
    tuned: float = 3e-4  # the rate that the validation rows choose for uniform training, of the three below

    @property
    def learning_rates(self):
        """The nominal rates: a third of the tuned one, the tuned one, and three times it."""
        return tuple(float(f"{self.tuned * factor:.3g}") for factor in (1 / 3, 1, 3))


@dataclasses.dataclass(frozen=True)
class LongProtocol(Protocol):
    """More rows than the rarest class allows for a balanced sample: rows are drawn without regard to their class."""

    balanced: ClassVar[bool] = False


# task -> (source, protocol, short seeds that are trained for one seed of it)
TASKS = {
    "trec, 60 rows": ("trec", Protocol(), 1),
    "docstrings, 60 rows": ("docstrings", Protocol(max_length=48), 1),
    # Its tuned rate is from a pilot with seed 0 on all 4,917 training rows: 94.0 % of the validation rows at 1e-4,
    # 91.0 at 3e-4, 82.5 at 9e-4. A run on all rows takes 97 seconds; 210 of them were not affordable.
    "trec, 2000 rows": (
        "trec",
        LongProtocol(examples=2000, epochs=1, batch_size=16, validation_rows=200, bucket=16, tuned=1e-4),
        2,
    ),
}


class Task(evidence.Task):
    """A task whose test split has `protocol.test_rows` rows, and the mean ratio of each decay in its model.

    Args:
        name (str): one of `TASKS`.
        source (str): as in `evidence.Task`.
        protocol (Protocol): which rows, how long.
        seeds (int): how many samples of training rows are drawn.
    """

    def __init__(self, name, source, protocol, seeds):
        self.cut = {}
        super().__init__(source, protocol, seeds)
        self.name = name
        self.description += f" {100 * self.cut_off:.1f} % of their texts are longer than {protocol.max_length} tokens."

    def splits(self, source):
        """Return the rows; validation rows join test rows that are too few, and training rows replace them."""
        splits, wanted = super().splits(source), self.protocol
        if len(splits.test) >= wanted.test_rows:
            return splits
        order = np.random.default_rng(0).permutation(len(splits.train))
        validation, train = (
            [splits.train[i] for i in sorted(some)] for some in np.split(order, [wanted.validation_rows])
        )
        note = f"; the {len(splits.validation)} validation rows are added to the test rows"
        source = f"{splits.source}{note}, and {len(validation)} of the training rows serve as validation rows"
        test = splits.test + splits.validation
        return dataclasses.replace(splits, train=train, validation=validation, test=test, source=source)

    def _sample(self, rows, seed):
        if self.protocol.balanced:
            return super()._sample(rows, seed)
        return evidence.some_rows(rows, self.protocol.examples, np.random.default_rng([seed, 1]))

    def _encode(self, rows):
        length = self.protocol.max_length
        for text, _ in rows:
            self.cut.setdefault(text, len(self.tokenizer(text)["input_ids"]) > length)
        return super()._encode(rows)

    @property
    def cut_off(self):
        """The share of the texts, of all seeds and splits, that `max_length` cuts."""
        return sum(self.cut.values()) / len(self.cut)

    @functools.cached_property
    def sizes(self):
        """The number of parameters of each layer: the embeddings, the blocks, the head."""
        model = evidence.load_model(self.protocol.model, self.classes)
        layers = ldopt.LayerMap.from_model(model)
        sizes = [0] * (layers.n_layers + 2)
        for name, parameter in model.named_parameters():
            sizes[layers.layer_of(name).index] += int(parameter.size)
        return sizes

    def mean_ratio(self, decay, mean):
        """Return the mean of a decay's ratios over the blocks, or weighted by the parameters of all layers."""
        n = len(self.sizes) - 2
        ratios = [ldopt.LayerDecay(decay).ratio(layer, n) for layer in range(n + 2)]
        weights = self.sizes if mean == "parameters" else [0, *[1] * n, 0]
        return float(np.average(ratios, weights=weights))


def plan(names, seeds):
    """Return all runs: every arm of a seed before the next seed, long tasks among the short ones."""
    order = sorted((TASKS[name][2] * (seed + 1), i, seed) for i, name in enumerate(names) for seed in range(seeds))
    return [
        evidence.Run(names[i], "adamwdl", arm, rate, seed)
        for _, i, seed in order
        for arm in ARMS
        for rate in TASKS[names[i]][1].learning_rates
    ]


def train(run, task):
    """Return what a run gives, and the mean ratio that its learning rate was divided by."""
    decay, mean = ARMS[run.arm]
    ratio = task.mean_ratio(decay, mean)
    return {"mean_ratio": round(ratio, 6), **evidence.train_arm(run, task, decay, run.learning_rate / ratio)}


def main(argv=None):
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train the runs that are not in the results yet")
    run.add_argument("--data", nargs="+", default=["docstrings"], help="docstrings, and the path of the folder trec")
    run.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to train")
    run.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds")
    run.add_argument("--results", type=Path, default=RESULTS, help="JSON lines file of the results")
    args = parser.parse_args(argv)
    sources = {Path(source).stem: source for source in args.data}
    tasks = {}
    for name in args.tasks:
        source, protocol, _ = TASKS[name]
        if source in sources:
            tasks[name] = Task(name, sources[source], protocol, args.seeds)
            print(f"{name}: {tasks[name].description}", flush=True)
        else:
            print(f"{name}: left out, --data does not name {source}", flush=True)
    evidence.study(tasks, plan(list(tasks), args.seeds), args.results, train)


if __name__ == "__main__":
    main()
