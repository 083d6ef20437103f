"""Measure time and memory of a step of every optimizer and of its peers (other implementations of the algorithm).

    make bench                                               # everything, into benchmarks/README.md (20 minutes)
    python benchmarks/bench.py --models bert-base --optimizers lamb --threads 2

Our optimizer and a peer run in two processes, which take steps in turn, with a memory test (the triad) between two
steps. A ratio is the median of the ratios of neighbouring steps: a slow phase of the machine affects both steps. The
page names the peers that are left out because they are not installed.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import pathlib
import statistics
import sys
import time

import page
from contestants import CONTESTANTS, FLOOR_BYTES, OPTIMIZERS, STATE_BYTES
from machine import available_memory, describe, load
from process import AbsentError, Process
from shapes import HIDDEN, MODELS, bert_base_shapes, count, matrices, stack

WARM_UP = 2
FEWEST, LONGEST = 3, 10.0  # rounds after which a pair ends once it has taken so many seconds
SECTIONS = ("models", "launches", "layerwise", "muon", "denormal", "growth", "state")
GROWTH = {
    "elements": [matrices(100, n // 100_000, 1000) for n in (10**6, 10**7, 10**8, 3 * 10**8, 10**9)],
    "tensors": [matrices(n, 10**6 // n // 10, 10) for n in (10, 100, 1000, 10000)],
    "blocks": [stack(n, 64) for n in (4, 40, 400)],
}
LAUNCHES = {"small": 30, "whole": 30522}  # words of the vocabulary
QUICK_ELEMENTS = 10**7
BESIDE_GROWTH = [("adamwdl", "paddle.optimizer.AdamW"), ("adamwdl", "torch.optim.AdamW(fused=True)")]
LIBRARIES = 3 << 29  # bytes that a process takes beside its tensors


def in_turn(processes, rounds, warm_up=WARM_UP):
    """Return what each process's steps gave, by its place; all step once in a round, forwards and backwards in turn."""
    taken, began = [[] for _ in processes], time.monotonic()
    places = list(range(len(processes)))
    for i in range(warm_up + rounds):
        for place in reversed(places) if i % 2 else places:
            value = processes[place].ask("step")
            if i >= warm_up:
                taken[place].append(value)
        if i + 1 >= warm_up + FEWEST and time.monotonic() - began > LONGEST:
            break
    return taken


def median_ratio(above, below):
    """Return the median of the ratios of neighbouring steps."""
    return statistics.median(a / b for a, b in zip(above, below))


def floor_seconds(optimizer, elements, bandwidth):
    """Return the time in which the memory moves the bytes that the algorithm must move."""
    return FLOOR_BYTES[optimizer] * elements / bandwidth


class Bench:
    """Runs the sections and gathers their rows.

    Args:
        rounds (int): steps of each that count.
        say (callable): takes a line on how it goes on.
    """

    def __init__(self, rounds, say):
        self.rounds = rounds
        self.say = say
        self.absent = {}
        self.bandwidths = {}

    @contextlib.contextmanager
    def started(self, optimizer, labels, threads):
        """Yield label -> process of those that are installed, and a triad; they import side by side."""
        with contextlib.ExitStack() as stack_:
            processes = {label: Process("optimizer", optimizer, label, threads=threads) for label in labels}
            triad = Process("triad", threads, threads=threads)
            for process in (*processes.values(), triad):
                stack_.callback(process.close)
            for label in labels:
                try:
                    processes[label].ready()
                except AbsentError as error:
                    self.absent[label] = str(error)
                    processes.pop(label).close()
            triad.ready()
            yield processes, triad

    def family(self, optimizer, shapes, threads, labels=None, warm_up=WARM_UP):
        """Return rows of the first of `labels` and of the others, each measured in turn with it, over the shapes.

        Args:
            optimizer (str): key of `CONTESTANTS`.
            shapes (dict): name -> shape.
            threads (int): how many they may use.
            labels (list, optional): which of them; None: all.
            warm_up (int): steps that do not count; 0 is for steps of minutes, of which one counts.
        """
        rounds = self.rounds if warm_up else 1
        first, *others = labels or CONTESTANTS[optimizer]
        with self.started(optimizer, [first, *others], threads) as (processes, triad):
            rows, first_taken, bandwidths = [], [], []
            built = processes[first].ask("build", shapes=shapes)
            for label in [label for label in others if label in processes]:
                facts = processes[label].ask("build", shapes=shapes)
                taken = in_turn([processes[first], triad, processes[label]], rounds, warm_up)
                row = self._row(optimizer, label, processes[label], taken[2], taken[1], facts)
                rows.append({**row, "ratio": median_ratio(taken[0], taken[2])})
                first_taken += taken[0]
                bandwidths += taken[1]
                processes.pop(label).close()
                self.say(f"{label}: {row['ms']:.1f} ms; {first} takes {rows[-1]['ratio']:.3f} of it")
            if not rows:
                first_taken, bandwidths = in_turn([processes[first], triad], rounds, warm_up)
            row = self._row(optimizer, first, processes[first], first_taken, bandwidths, built)
            self.bandwidths.setdefault(str(threads), []).extend(bandwidths)
            return [{**row, "ratio": 1.0}, *rows]

    def _row(self, optimizer, label, process, seconds, bandwidths, facts):
        row = {"label": label, "ms": 1e3 * statistics.median(seconds), **facts, "path": process.path}
        if optimizer in FLOOR_BYTES:
            floors = [floor_seconds(optimizer, facts["elements"], bandwidth) for bandwidth in bandwidths]
            row["of_floor"] = median_ratio(seconds, floors)
        return {**row, "transient_bytes": process.ask("transient")}

    def models(self, plan, optimizers):
        """Return the rows of all (model, threads) of the plan; ours without its kernel on the first model alone."""
        rows = []
        for (model, threads), optimizer in itertools.product(plan, optimizers):
            self.say(f"-- {model}, {threads} threads, {optimizer}")
            first = model == plan[0][0]
            labels = [label for label in CONTESTANTS[optimizer] if first or not label.endswith("(fused=False)")]
            key = {"model": model, "threads": threads, "optimizer": optimizer}
            rows += [{**key, **row} for row in self.family(optimizer, MODELS[model](), threads, labels)]
        return rows

    def launches(self, optimizers):
        """Return what a step costs where the arithmetic costs nothing: BERT-base's parameters at a hidden size of 8.

        A GPU's step is limited by how fast operations are launched. Each takes steps in turn with Paddle's AdamW in
        one process, in processor time, over a small vocabulary and over the whole one (embeddings of 244,176 numbers).
        """
        self.say("-- launches")
        adamw = ("adamwdl", "paddle.optimizer.AdamW")
        ours = [(o, label) for o in optimizers for label, row in CONTESTANTS[o].items() if row.in_paddle]
        rows = []
        for optimizer, label in dict.fromkeys([adamw, *(each for each in ours if each[1] != adamw[1])]):
            with contextlib.closing(Process("optimizer", optimizer, label, threads=1)) as process:
                row = {"label": label}
                for name, vocabulary in LAUNCHES.items():
                    shapes = bert_base_shapes(hidden=8, vocab=vocabulary)
                    taken = process.ask("in_turn_with", other=adamw, shapes=shapes, rounds=WARM_UP + 5 * self.rounds)
                    first, own = (each[WARM_UP:] for each in taken)
                    row[name] = {"ms": 1e3 * statistics.median(own), "ratio": median_ratio(own, first)}
                rows.append({**row, "path": process.path, "launches": process.ask("launches")})
                self.say(f"{label}: {rows[-1]['launches']} operations, {row['small']['ms']:.1f} ms")
        return rows

    def layerwise(self, threads):
        """Return what a layer-wise decay costs beside AdamW without it, over BERT-base."""
        self.say("-- layer-wise decay")
        return self.family("layer-wise decay", bert_base_shapes(), threads)

    def muon(self, threads):
        """Return the rows of Muon over the matrices of a block of BERT-base.

        Without bfloat16 products, a CPU takes minutes for the step of a peer, which has no others.
        """
        self.say("-- Muon")
        shapes = {name: shape for name, shape in stack(1, HIDDEN).items() if len(shape) == 2}
        shapes["encoder.layers.1.linear1.weight"] = [8, 8]  # one block alone is no stack
        return self.family("muon", shapes, threads, warm_up=0)

    def denormal(self, optimizers, threads):
        """Return by how much denormal gradients slow a step of ours, over 10 M elements."""
        rows, shapes = [], matrices(100, 100, 1000)
        self.say("-- denormal gradients")
        for optimizer in optimizers:
            label = next(iter(CONTESTANTS[optimizer]))
            with contextlib.ExitStack() as stack_:
                pair = [Process("optimizer", optimizer, label, threads=threads) for _ in range(2)]
                for process, gradient in zip(pair, (1e-3, 1e-41)):
                    stack_.callback(process.close)
                    process.ask("build", shapes=shapes, gradient=gradient)
                normal, denormal = in_turn(pair, self.rounds)
            rows.append({"label": label, "ratio": median_ratio(denormal, normal), "path": pair[0].path})
            self.say(f"{label}: {rows[-1]['ratio']:.3f} of a normal step")
        return rows

    def growth(self, optimizers, threads, quick):
        """Return how the step's time grows with elements, tensors and blocks."""
        ours = [(optimizer, next(iter(CONTESTANTS[optimizer]))) for optimizer in optimizers]
        rows = []
        for optimizer, label in ours + BESIDE_GROWTH:
            self.say(f"-- growth, {label}")
            with self.started(optimizer, [label], threads) as (processes, triad):
                if label not in processes:
                    continue
                for axis, all_shapes in GROWTH.items():
                    for shapes in all_shapes:
                        if not (quick and count(shapes) > QUICK_ELEMENTS):
                            row = self._grown(optimizer, label, processes[label], triad, shapes)
                            blocks = len({name.split(".")[2] for name in shapes})
                            rows.append({"axis": axis, "blocks": blocks, **row})
        return rows

    def _grown(self, optimizer, label, process, triad, shapes):
        """Return one row, without a time if the memory does not suffice."""
        facts = {"label": label, "tensors": len(shapes), "elements": count(shapes)}
        need = 1.1 * count(shapes) * (8 + STATE_BYTES[optimizer]) + LIBRARIES
        if need > available_memory():
            self.say(f"{facts['elements']:,} elements: not run, {need / 2**30:.1f} GiB are not there")
            return {**facts, "lacks_bytes": need}
        process.ask("build", shapes=shapes)
        seconds, bandwidths = in_turn([process, triad], min(self.rounds, 5))
        floors = [floor_seconds(optimizer, facts["elements"], bandwidth) for bandwidth in bandwidths]
        ms, floor = 1e3 * statistics.median(seconds), 1e3 * statistics.median(floors)
        self.say(f"{facts['elements']:,} elements in {facts['tensors']:,} tensors: {ms:.2f} ms, floor {floor:.2f} ms")
        return {**facts, "ms": ms, "floor_ms": floor, "of_floor": median_ratio(seconds, floors)}


def state_rows():
    """Return the state of each optimizer of ours over BERT-base, counted in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_state_rows).result()


def _state_rows():
    from state_bytes import rows

    return list(rows(bert_base_shapes()))


def arguments(argv):
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="default: all")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS, help="default: all")
    parser.add_argument("--threads", nargs="+", type=int, help="default: all cores; the first model also runs with 1")
    rounds = f"measured steps per optimizer (7); after {LONGEST:.0f} s, {FEWEST} steps are enough"
    parser.add_argument("--rounds", type=int, default=7, help=rounds)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="default: all")
    parser.add_argument(
        "--quick", action="store_true", help="only the first model, all threads, 3 rounds; growth up to 10 M elements"
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/README.md, results.json and the charts")
    parsed = parser.parse_args(argv)
    if parsed.rounds < 1 or min(parsed.threads or [1]) < 1:
        parser.error(
            f"--threads and --rounds must be at least 1. Received: threads={parsed.threads}, rounds={parsed.rounds}"
        )
    if parsed.quick:
        parsed.models, parsed.threads, parsed.rounds = parsed.models[:1], [max(parsed.threads or [cores])], 3
    parsed.plan = list(itertools.product(parsed.models, parsed.threads or [cores]))
    if not parsed.threads and cores > 1:
        parsed.plan.insert(0, (parsed.models[0], 1))
    return parsed


def measure(options, say):
    """Run the sections; yield everything that the page says, after each of them: the next may fail, hours later."""
    threads = max(threads for _, threads in options.plan)
    about, began = {**describe(), "load_before": load(), "rounds": options.rounds, "threads": threads}, time.time()
    bench = Bench(options.rounds, say)
    sections = {
        "models": lambda: bench.models(options.plan, options.optimizers),
        "launches": lambda: bench.launches(options.optimizers),
        "layerwise": lambda: bench.layerwise(threads),
        "muon": lambda: bench.muon(threads),
        "denormal": lambda: bench.denormal(options.optimizers, threads),
        "growth": lambda: bench.growth(options.optimizers, threads, options.quick),
        "state": state_rows,
    }
    results = {}
    for name in options.sections:
        results[name] = sections[name]()
        about.update(absent=bench.absent, load_after=load(), minutes=(time.time() - began) / 60)
        about["triad"] = {used: statistics.median(values) for used, values in bench.bandwidths.items()}
        yield {"about": dict(about), **results}


def main(argv=None):
    """Measure, print, and write if asked to."""
    options, began = arguments(argv), time.time()
    results: dict = {}

    def say(line):
        print(f"[{time.time() - began:5.0f} s] {line}", file=sys.stderr, flush=True)

    for results in measure(options, say):
        if options.write:
            page.write(page.with_others(results, pathlib.Path(__file__).parent), pathlib.Path(__file__).parent)
    print(page.text(results))
    return results


if __name__ == "__main__":
    main()
