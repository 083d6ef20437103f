"""Run the C library under AddressSanitizer and UndefinedBehaviorSanitizer on random shapes, options and addresses.

`make sanitize` builds it and calls this with a Python that has the sanitizers' runtimes loaded; no Paddle, only NumPy.
Every array lies between sentinels, at an offset of a few elements. Arguments: the library, seconds.
"""

import pathlib
import random
import sys
import time

import numpy as np

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent / "paddle_ldopt")]

import kernels  # noqa: E402
from kernel_cases import TYPES, VARIANTS, Optimizer  # noqa: E402

LENGTHS = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 200, 1023, 1025]
LONG = [4095, 4096, 4097, 8193, 32767, 32769, 70001]


def random_shape(rng):
    """Return a shape of up to five dimensions; now and then of a tensor that threads share."""
    if rng.random() < 0.03:
        return rng.choice([(270_000,), (600, 500), (2, 9, 17_000), (90_001, 3)])
    rank = rng.randrange(6)
    shape = [rng.choice(LENGTHS) for _ in range(rank)]
    if rank and rng.random() < 0.3:
        shape[rng.randrange(rank)] = rng.choice(LONG)
    while np.prod([max(1, n) for n in shape]) > 100_000:
        shape[rng.randrange(rank)] = rng.choice(LENGTHS[1:6])
    return tuple(shape)


def one_case(rng, numbers):
    """Take a few steps with one optimizer over some tensors; return how many elements it had."""
    rule, options = VARIANTS[rng.choice(list(VARIANTS))]
    arrays = {i: numbers.normal(size=random_shape(rng)).astype("float32") for i in range(rng.choice([1, 2, 5, 40]))}
    more = {"param_type": rng.choice(TYPES), "grad_type": rng.choice(TYPES), "masters": rng.random() < 0.5}
    if rule == "came" and rng.random() < 0.5:
        more["moment_type"] = "float16"
    optimizer = Optimizer(kernels, rule, arrays, offset=rng.randrange(9), **{**options, **more})
    for _ in range(rng.choice([1, 3])):
        grads = {i: np.float32(numbers.normal(size=a.shape) * 10.0 ** rng.uniform(-45, 20)) for i, a in arrays.items()}
        for grad in grads.values():
            if grad.size and rng.random() < 0.1:
                grad.flat[rng.randrange(grad.size)] = rng.choice([np.nan, np.inf, -np.inf])
        optimizer.step(grads, rng.randrange(1, 5))
    return sum(a.size for a in arrays.values())


def main():
    """Work through random cases until the time is over."""
    library, seconds = kernels.load(sys.argv[1]), float(sys.argv[2])
    kernels.library = lambda: library
    start, cases, elements = time.monotonic(), 0, 0
    with np.errstate(all="ignore"):
        while time.monotonic() - start < seconds:
            elements += one_case(random.Random(cases), np.random.default_rng(cases))
            cases += 1
    print(f"{cases} cases, {elements:,} elements: no error")


if __name__ == "__main__":
    main()
