"""Compare Muon with AdamWDL, without a decay and with decay 0.8 whose mean is kept, each at its tuned rate.

    OMP_NUM_THREADS=1 nice python benchmarks/llrd_evidence_muon.py --data docstrings trec/
    python benchmarks/llrd_evidence.py report                   # writes the tables of all studies

Tasks, rows, model and schedule are those of llrd_evidence_mean.py; both optimizers have the same grid of rates.
"""

import argparse
from pathlib import Path

import llrd_evidence as evidence
import llrd_evidence_mean as means

RESULTS = evidence.MUON
OPTIMIZERS = ("adamwdl", "muon")
ARMS = ("uniform", "0.8 by blocks")
LEARNING_RATES = (1e-4, 3e-4, 9e-4, 2.7e-3)
TASKS = ("trec, 60 rows", "docstrings, 60 rows")


def plan(names, seeds):
    """Return all runs, seed by seed."""
    return [
        evidence.Run(name, optimizer, arm, rate, seed)
        for seed in range(seeds)
        for name in names
        for optimizer in OPTIMIZERS
        for arm in ARMS
        for rate in LEARNING_RATES
    ]


def main(argv=None):
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["docstrings"], help="docstrings, and the path of the folder trec")
    parser.add_argument("--seeds", type=int, default=means.SEEDS, help="number of seeds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines file of the results")
    args = parser.parse_args(argv)
    sources, tasks = {Path(source).stem: source for source in args.data}, {}
    for name in TASKS:
        source, protocol, _ = means.TASKS[name]
        if source in sources:
            tasks[name] = means.Task(name, sources[source], protocol, args.seeds)
    evidence.study(tasks, plan(list(tasks), args.seeds), args.results, means.train)


if __name__ == "__main__":
    main()
