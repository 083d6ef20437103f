"""Take two steps with every optimizer of the installed package: ``python smoke.py library`` or ``... none``.

The argument says whether the C library must be there. Prints each optimizer and the sum of the weights then.
"""

import pathlib
import subprocess
import sys
import warnings

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Paddle's
    import paddle

import paddle_ldopt as ldopt
from paddle_ldopt import kernels


def two_steps():
    """Yield the name of each optimizer and the sum of the weights after two steps."""
    for name in ldopt.list_optimizers():
        layer = paddle.nn.Linear(4, 3)
        layer.weight.set_value(np.linspace(-1, 2, 12, dtype="float32").reshape(4, 3))  # no gradient near 0
        routes = {"use_muon": lambda param: len(param.shape) == 2} if name == "muon" else {}
        optimizer = ldopt.create(name, layer, learning_rate=0.1, **routes)
        for _ in range(2):
            (layer(paddle.ones([2, 4])) ** 2).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        yield name, float(layer.weight.sum())


def main(wanted):
    """Raise SystemExit with what is wrong, if anything."""
    if (kernels.library() is not None) != (wanted == "library"):
        raise SystemExit(f"wanted {wanted}, there is {kernels.library()}: {kernels.found()[1]}")
    if pathlib.Path(ldopt.__file__).parent.parent == pathlib.Path(__file__).resolve().parents[2]:
        raise SystemExit("this is the package in the sources, not the installed one")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name, total in two_steps():
            print(name, total)
    texts = [str(warning.message) for warning in said]
    once = len(texts) == 1 and "the C library was not built: install a C compiler" in texts[0]
    if texts if wanted == "library" else not once:
        raise SystemExit(f"warned of: {texts}")
    subprocess.run([sys.executable, "-m", "paddle_ldopt", "--help"], stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
