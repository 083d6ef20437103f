"""The C library of the fused step: one call updates all tensors of an optimizer on a CPU.

`library()` is None if the package was installed without a compiler.
"""

import ctypes
import functools
import math
import pathlib
import zlib
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

_FOLDER = pathlib.Path(__file__).absolute().parent

# The structs and enumerations of csrc/step.h; a flag of an option has the name of the option
_FLAGS = ["factored", "momentum", "scale_parameter", "relative_step", "warmup_init", "constant_beta2", "amsgrad"]
_FLAGS += ["clipnorm", "clipvalue", "grad_centralization"]
TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
RULES = {name: i for i, name in enumerate(("adamw", "adam_weight_decay", "lamb", "adafactor", "came"))}
RULE_FLAGS = {name: 1 << i for i, name in enumerate(_FLAGS)}
TENSOR = np.dtype(
    [
        *((name, "u8") for name in ("param", "copy", "grad")),
        ("state", "u8", 5),
        *((name, "u8") for name in ("step", "aux")),
        *((name, "i8") for name in ("batch", "rows", "cols")),
        *((name, "f8") for name in ("lr", "weight_decay", "beta1", "beta2", "beta3")),
        ("eps", "f8", 3),
        *((name, "f8") for name in ("clip", "clip_value", "decay_rate", "count", "grad_scale")),
        *((name, "i4") for name in ("rule", "flags", "param_type", "copy_type", "grad_type", "moment_type")),
    ],
    align=True,
)


def load(path: str) -> ctypes.CDLL:
    """Load the C library; raise OSError if it was built from other sources."""
    library = ctypes.CDLL(path)
    library.ldopt_layout.restype = library.ldopt_sources.restype = ctypes.c_int64
    for call in (library.ldopt_step, library.ldopt_square_sum):
        call.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.ldopt_square_sum.restype = ctypes.c_double
    sources = b"".join(source.read_bytes() for source in sorted(_FOLDER.glob("csrc/*.[ch]")))  # none in a wheel
    other_sources = sources and library.ldopt_sources() not in (0, zlib.crc32(sources))
    if library.ldopt_layout() != TENSOR.itemsize or other_sources:
        raise OSError(f"'{path}' belongs to another version of the package: install it again")
    return library


@functools.cache
def library() -> Any:
    return found()[0]


@functools.cache
def found() -> tuple[Optional[ctypes.CDLL], Optional[str]]:
    paths = sorted(_FOLDER.glob("libstep*.so"))
    if not paths:
        return None, "the C library was not built: install a C compiler, then paddle_ldopt again"
    try:
        return load(str(paths[0])), None
    except (OSError, AttributeError) as error:
        return None, f"the C library cannot be loaded: {error}"


def norm(tensors: NDArray[Any]) -> float:
    squares = library().ldopt_square_sum(tensors.ctypes.data, len(tensors))
    if squares < 0:
        raise MemoryError("The norm of the gradients cannot be computed")
    return math.sqrt(squares)
