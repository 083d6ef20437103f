"""Measure the effect of layer-wise decay on few-sample fine-tuning, at several learning rates, decays and seeds.

    OMP_NUM_THREADS=1 nice python benchmarks/llrd_evidence.py run --data docstrings trec/
    python benchmarks/llrd_evidence.py report    # writes the tables of both studies into docs/evidence.md

`run` fine-tunes MiniLM (recipes/common/pretrained.py) on a few rows that the seed selects. Runs with the same seed have
the same rows, order, initial head and dropout. Each run adds a line of JSON to benchmarks/results/llrd_evidence.jsonl.
Runs in this file are skipped. docs/evidence.md has the findings.
"""

import argparse
import dataclasses
import json
import math
import platform
import sys
import time
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "recipes")]

import numpy as np  # noqa: E402
import paddle  # noqa: E402
import paddlenlp  # noqa: E402
from common import start  # noqa: E402, F401 - before Paddle
from common.pretrained import load_model, load_tokenizer  # noqa: E402
from common.text_data import load_splits  # noqa: E402
from evidence_report import write_report  # noqa: E402

import paddle_ldopt as ldopt  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "llrd_evidence.jsonl"
MEANS = RESULTS.with_name("llrd_evidence_mean.jsonl")  # of llrd_evidence_mean.py
MUON = RESULTS.with_name("llrd_evidence_muon.jsonl")  # of llrd_evidence_muon.py
ARMS = {
    "uniform": 1.0,
    **{f"decay {decay:g}": decay for decay in (0.95, 0.9, 0.8, 0.65)},
    # Two rates: the floor lifts every layer of the encoder to a tenth of the head's rate.
    "encoder at 0.1": ldopt.LayerDecay(0.1, min_ratio=0.1),
}
PARTS = ("train", "validation", "test")
# optimizer -> learning rates. AdamW's are those of every arm.
LEARNING_RATES = {
    "adamwdl": (1e-4, 3e-4, 1e-3, 3e-3),
    "came": (3e-5, 1e-4, 3e-4),
    "lamb": (1e-3, 3e-3, 1e-2),
    "adafactor": (1e-4, 3e-4, 1e-3),
}


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What all runs have in common."""

    model: str = "minilm"
    examples: int = 60  # the same number of each class; None: all training rows
    epochs: int = 5
    batch_size: int = 8
    max_length: int = 16  # tokens; longer texts are cut off
    warmup_ratio: float = 0.1  # then linearly to 0
    weight_decay: float = 0.01  # not of biases and norms
    max_grad_norm: float = 1.0
    validation_rows: int = 80  # at most so many; drawn once, the same for all runs
    test_rows: int = 240
    bucket: ClassVar[int] = 3  # batches whose rows are sorted by length together


@dataclasses.dataclass(frozen=True)
class Run:
    """One training; its fields tell it from all others."""

    task: str
    optimizer: str
    arm: str
    learning_rate: float
    seed: int


def plan(tasks, seeds, optimizer_seeds):
    """Return all runs, seed by seed: what an interrupted study has is balanced."""
    runs = []
    for seed in range(seeds):
        runs += [Run(t, "adamwdl", a, lr, seed) for t in tasks for a in ARMS for lr in LEARNING_RATES["adamwdl"]]
    for seed in range(optimizer_seeds):
        others = [(name, lr) for name, rates in LEARNING_RATES.items() if name != "adamwdl" for lr in rates]
        runs += [Run(t, name, "uniform", lr, seed) for t in tasks for name, lr in others]
    return runs


class Task:
    """The rows of a data set as token ids, and a model for them.

    Args:
        source (str): what `load_splits` takes; the last part of a path is the task's name.
        protocol (Protocol): which rows, how long.
        seeds (int): how many samples of training rows are drawn.

    Raises:
        ValueError: a class has too few rows.
    """

    def __init__(self, source, protocol, seeds):
        self.name, self.protocol = Path(source).stem, protocol
        splits, draw = self.splits(source), np.random.default_rng(0)
        self.classes, self.tokenizer = len(splits.labels), load_tokenizer(protocol.model)
        self.validation = self._encode(some_rows(splits.validation, protocol.validation_rows, draw))
        self.test = self._encode(some_rows(splits.test, protocol.test_rows, draw))
        if protocol.examples is None:
            self.train = [self._encode(splits.train)] * seeds
        else:
            self.train = [self._encode(self._sample(splits.train, seed)) for seed in range(seeds)]
        used = ", ".join(
            f"{len(part)} {name}" for part, name in zip((self.train[0], self.validation, self.test), PARTS)
        )
        self.description = f"{splits.description.replace(str(source), self.name)} Used: {used}."
        counts = np.bincount([label for _, label in self.test])
        self.majority = float(counts.max() / counts.sum())
        self.used = sorted(
            {0, *(i for part in (self.validation, self.test, *self.train) for ids, _ in part for i in ids)}
        )
        self.models = {}

    def splits(self, source):
        """Return the rows of a source; a subclass may deal them out in another way."""
        return load_splits(source)

    def _sample(self, rows, seed):
        """Draws as many rows of each class, others for each seed."""
        draw, found, each = np.random.default_rng([seed, 1]), [], self.protocol.examples // self.classes
        for label in range(self.classes):
            of_class = [row for row in rows if row[1] == label]
            if not 1 <= each <= len(of_class):
                known = f"Received: examples={self.protocol.examples}, classes={self.classes}, rows={len(of_class)}"
                raise ValueError(f"`examples` must give every class one row or more, of those that it has. {known}")
            found += some_rows(of_class, each, draw)
        return found

    def _encode(self, rows):
        encode, length = self.tokenizer, self.protocol.max_length
        return [(encode(text, max_length=length, truncation=True)["input_ids"], label) for text, label in rows]

    def model(self, whole):
        """Return the model, its first state, and a map of token ids; without the unused word vectors if not `whole`.

        AdamW, which Muon uses for embeddings, treats each number by itself: leaving out the vectors of words that never
        occur changes nothing and halves its step. The other optimizers look at whole tensors: they get whole ones.
        """
        if whole not in self.models:
            paddle.seed(0)
            model = load_model(self.protocol.model, self.classes)
            words = model.get_input_embeddings()
            ids = np.arange(words.weight.shape[0])
            if not whole:
                cut = paddle.nn.Embedding(len(self.used), words.weight.shape[1])
                cut.weight.set_value(words.weight.numpy()[self.used])
                model.set_input_embeddings(cut)
                ids = np.full(len(ids), -1)
                ids[self.used] = range(len(self.used))
            self.models[whole] = model, {name: value.numpy() for name, value in model.state_dict().items()}, ids
        return self.models[whole]


def some_rows(rows, most, draw):
    """Return at most `most` rows, drawn without replacement, in their order."""
    return rows if len(rows) <= most else [rows[i] for i in sorted(draw.choice(len(rows), most, replace=False))]


def batches(rows, size):
    """Yield (token ids, labels) of neighbouring rows, padded with 0."""
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        ids = np.zeros((len(part), max(len(tokens) for tokens, _ in part)), "int64")
        for row, (tokens, _) in zip(ids, part):
            row[: len(tokens)] = tokens
        yield ids, np.array([label for _, label in part])


def epoch(rows, size, draw, bucket=Protocol.bucket):
    """Return the batches of an epoch: sorted by length within every few batches, so that there is little padding."""
    order, chunk = draw.permutation(len(rows)), bucket * size
    found = []
    for first in range(0, len(rows), chunk):
        some = sorted((rows[i] for i in order[first : first + chunk]), key=lambda row: len(row[0]))
        found += batches(some, size)
    return [found[i] for i in draw.permutation(len(found))]


@paddle.no_grad()
def accuracy(model, rows, ids):
    """Return the share of right answers."""
    model.eval()
    right = 0
    for tokens, labels in batches(sorted(rows, key=lambda row: len(row[0])), 64):
        right += int((model(paddle.to_tensor(ids[tokens])).numpy().argmax(-1) == labels).sum())
    return right / len(rows)


def train(run, task):
    """Return what a run of this study gives."""
    return train_arm(run, task, ARMS[run.arm], run.learning_rate)


def train_arm(run, task, decay, learning_rate):
    """Return what one run gives: the accuracies, the mean loss of the last epoch, whether all losses were finite."""
    began, protocol = time.process_time(), task.protocol
    model, state, ids = task.model(whole=run.optimizer not in ("adamwdl", "muon"))
    model.set_state_dict(state)
    draw = np.random.default_rng(run.seed)
    head, scale = model.classifier, model.config.initializer_range
    head.weight.set_value(draw.normal(0, scale, head.weight.shape).astype("float32"))
    head.bias.set_value(np.zeros(head.bias.shape, "float32"))
    paddle.seed(run.seed)  # of dropout
    rows = task.train[run.seed]
    steps = protocol.epochs * len(epoch(rows, protocol.batch_size, np.random.default_rng(0), protocol.bucket))
    rate = ldopt.get_linear_schedule_with_warmup(learning_rate, math.ceil(protocol.warmup_ratio * steps), steps)
    optimizer = ldopt.create(
        run.optimizer,
        model,
        layerwise_decay=decay,
        learning_rate=rate,
        weight_decay=protocol.weight_decay,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(protocol.max_grad_norm),
    )
    model.train()
    losses = []
    while len(losses) < steps and (not losses or math.isfinite(losses[-1])):
        for tokens, labels in epoch(rows, protocol.batch_size, draw, protocol.bucket):
            loss = paddle.nn.functional.cross_entropy(model(paddle.to_tensor(ids[tokens])), paddle.to_tensor(labels))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            rate.step()
            losses.append(float(loss))
    finite = all(map(math.isfinite, losses))
    return {
        "validation": round(accuracy(model, task.validation, ids), 5),
        "test": round(accuracy(model, task.test, ids), 5),
        "loss": round(float(np.mean(losses[-steps // protocol.epochs :])), 5) if finite else None,
        "finite": finite,
        "seconds": round(time.process_time() - began, 1),  # of the processor: others may be at it
    }


def about(task):
    """Return what a task's runs were made with, the first line of a task in the results."""
    versions = {module.__name__: module.__version__ for module in (paddle, paddlenlp, ldopt, np)}
    return {
        "about": task.name,
        "rows": task.description,
        "classes": task.classes,
        "majority": round(task.majority, 5),
        "protocol": dataclasses.asdict(task.protocol),
        "versions": {"python": platform.python_version(), **versions},
    }


def read(path):
    """Return (the lines about tasks by name, the results by `Run`) of a file; empty if there is none."""
    tasks, results = {}, {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        record = json.loads(line)
        if "about" in record:
            tasks[record["about"]] = record
        else:
            run = Run(**{field.name: record.pop(field.name) for field in dataclasses.fields(Run)})
            results[run] = record
    return tasks, results


def study(tasks, runs, path, train_run=None):
    """Train what is not in the results yet, one line for each run as soon as it is over.

    Args:
        tasks (dict): name -> `Task`.
        runs (list): all runs of the study, in their order.
        path (Path): the JSON lines.
        train_run (callable): `(run, task) -> dict of results`; `train` by default.

    Raises:
        ValueError: the results of a task were made with another protocol, other rows or other versions.
    """
    known, results = read(path)
    for task in tasks.values():
        if task.name in known and known[task.name] != about(task):
            was, now = known[task.name], about(task)
            changed = {key: (was.get(key), now[key]) for key in now if was.get(key) != now[key]}
            raise ValueError(f"These results are of another study; give another file. Received: {changed}")
    path.parent.mkdir(parents=True, exist_ok=True)
    todo, began = [run for run in runs if run not in results], time.perf_counter()
    with path.open("a", encoding="utf-8") as file:
        for task in tasks.values():
            if task.name not in known:
                print(json.dumps(about(task)), file=file, flush=True)
        for done, run in enumerate(todo, 1):
            with paddle.utils.unique_name.guard():
                result = (train_run or train)(run, tasks[run.task])
            print(json.dumps({**dataclasses.asdict(run), **result}), file=file, flush=True)
            left = (time.perf_counter() - began) / done * (len(todo) - done)
            name = f"{run.task}, {run.optimizer}, {run.arm}, {run.learning_rate:g}, seed {run.seed}"
            print(f"[{done}/{len(todo)}] {name}: {result}; {left / 60:.0f} min left", flush=True)


def main(argv=None):
    """Train what is missing, or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train the runs that are not in the results yet")
    run.add_argument("--data", nargs="+", default=["docstrings"], help="docstrings, .tsv files or folders of them")
    run.add_argument("--seeds", type=int, default=5, help="number of seeds of AdamWDL")
    run.add_argument(
        "--optimizer_seeds", type=int, default=3, help="number of seeds of the other optimizers; 0 omits them"
    )
    report = commands.add_parser("report", help="write the tables and the chart of docs/evidence.md")
    report.add_argument("--docs", type=Path, default=ROOT / "docs" / "evidence.md", help="the page to write into")
    report.add_argument("--means", type=Path, default=MEANS, help="JSON lines file of the second study's results")
    report.add_argument("--muon", type=Path, default=MUON, help="JSON lines file of Muon's results")
    for command in (run, report):
        command.add_argument("--results", type=Path, default=RESULTS, help="JSON lines file of the results")
    args = parser.parse_args(argv)
    if args.command == "report":
        return write_report(args.results, args.means, args.muon, args.docs)
    tasks = [Task(source, Protocol(), max(args.seeds, args.optimizer_seeds)) for source in args.data]
    for task in tasks:
        print(f"{task.name}: {task.description}", flush=True)
    tasks = {task.name: task for task in tasks}
    study(tasks, plan(tasks, args.seeds, args.optimizer_seeds), args.results)


if __name__ == "__main__":
    main()
