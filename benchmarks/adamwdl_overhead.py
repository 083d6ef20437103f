"""What layer-wise decay costs: AdamWDL's step against `paddle.optimizer.AdamW`'s on the parameters of BERT-base.

    make bench

Both step alternately in one process, each over its own 199 tensors (109.5 M parameters, fp32); the ratio of each pair
of neighbouring steps is taken, and the median of these is the result: a slow spell of the machine hits both sides.
"""

import argparse
import platform
import statistics
import time

import paddle
from shapes import BLOCKS, bert_base_shapes, parameters

from paddle_ldopt import AdamWDL, LayerMap, apply_layerwise_decay


def contestants():
    """Return name -> optimizer, the first being what the others are compared with."""
    shapes = bert_base_shapes()

    def make(build):
        params, name_dict = parameters(shapes)
        layers = LayerMap.from_names(shapes)
        layers.name_dict.update(name_dict)
        return build(params, name_dict, layers)

    adamw = paddle.optimizer.AdamW
    return {
        "paddle.optimizer.AdamW": make(lambda p, n, m: adamw(1e-5, parameters=p)),
        "AdamWDL(name_dict=...)": make(
            lambda p, n, m: AdamWDL(1e-5, parameters=p, layerwise_decay=0.8, n_layers=BLOCKS, name_dict=n)
        ),
        "AdamWDL(layers=...)": make(lambda p, n, m: AdamWDL(1e-5, parameters=p, layerwise_decay=0.8, layers=m)),
        "apply_layerwise_decay(AdamW)": make(lambda p, n, m: apply_layerwise_decay(adamw(1e-5, parameters=p), m, 0.8)),
    }


def seconds(optimizer):
    """Return the time of one step."""
    began = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - began


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="steps of each optimizer")
    rounds = parser.parse_args().rounds
    optimizers = contestants()
    base, *others = optimizers
    for optimizer in optimizers.values():
        for _ in range(3):
            optimizer.step()
    times = {name: [] for name in optimizers}
    for i in range(rounds):
        for name in reversed(optimizers) if i % 2 else optimizers:  # no one always goes first
            times[name].append(seconds(optimizers[name]))
        print(f"\rround {i + 1} of {rounds}", end="", flush=True)
    print(f"\r{platform.machine()}, paddle {paddle.__version__}, {time.strftime('%Y-%m-%d')}, {rounds} rounds\n")
    print("| optimizer | median step | median ratio to AdamW |\n| --- | --: | --: |")
    for name in (base, *others):
        ratio = statistics.median(t / b for t, b in zip(times[name], times[base]))
        print(f"| `{name}` | {1e3 * statistics.median(times[name]):.0f} ms | {ratio:.3f} |")


if __name__ == "__main__":
    main()
