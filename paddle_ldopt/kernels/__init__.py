"""The fused step on CPU: a C library that updates all tensors of an optimizer in one call.

This package handles addresses, shapes and numbers, which `optimizers._step` takes from a Paddle optimizer. It imports
only NumPy. The library is optional: `library()` is None if the package was installed without a compiler, and
`unsupported_reason()` gives the reason.
"""

import ctypes
import functools
import math
import pathlib
import zlib
from typing import Any, Optional

from numpy.typing import NDArray

from .layout import PLACES, RULE_FLAGS, RULES, TENSOR, TYPES

__all__ = [
    "PLACES",
    "RULES",
    "RULE_FLAGS",
    "TENSOR",
    "TYPES",
    "largest_step",
    "library",
    "load",
    "norm",
    "outside",
    "step",
    "unsupported_reason",
]

_FOLDER = pathlib.Path(__file__).absolute().parent


def load(path: str) -> ctypes.CDLL:
    """Return the C library in a file; raise OSError if it was built from other sources."""
    library = ctypes.CDLL(path)
    library.ldopt_layout.restype = library.ldopt_sources.restype = ctypes.c_int64
    for call in (library.ldopt_step, library.ldopt_square_sum, library.ldopt_outside, library.ldopt_largest_step):
        call.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.ldopt_outside.restype = ctypes.c_int64
    library.ldopt_square_sum.restype = library.ldopt_largest_step.restype = ctypes.c_double
    sources = b"".join(source.read_bytes() for source in sorted(_FOLDER.glob("csrc/*.[ch]")))  # none in a wheel
    other_sources = sources and library.ldopt_sources() not in (0, zlib.crc32(sources))
    if library.ldopt_layout() != TENSOR.itemsize or other_sources:
        raise OSError(f"'{path}' belongs to another version of the package: install it again")
    return library


@functools.cache
def _found() -> tuple[Optional[ctypes.CDLL], Optional[str]]:
    """Return (library, None), or (None, reason) if it is unavailable."""
    paths = sorted(_FOLDER.glob("libstep*.so"))
    if not paths:
        return None, "the C library was not built: install a C compiler, then paddle_ldopt again"
    try:
        return load(str(paths[0])), None
    except (OSError, AttributeError) as error:
        return None, f"the C library cannot be loaded: {error}"


def library() -> Any:
    """Return the C library of this package, or None."""
    return _found()[0]


def unsupported_reason() -> Optional[str]:
    """Return why there is no library, None if there is one."""
    return _found()[1]


def step(tensors: NDArray[Any]) -> None:
    """Update all tensors in place; raise MemoryError, or ValueError if a shape exceeds its memory, with none changed.

    `tensors` is contiguous and of dtype `TENSOR`; the memory that it points to must live until this returns.
    OMP_NUM_THREADS sets the number of threads.
    """
    failed = library().ldopt_step(tensors.ctypes.data, len(tensors))
    if failed == 1:
        raise MemoryError("The fused step cannot allocate its buffers: nothing was updated")
    if failed:
        _refuse_outside(tensors)


def norm(tensors: NDArray[Any]) -> float:
    """Return the norm of all gradients together; for arguments and errors see `step`."""
    squares = library().ldopt_square_sum(tensors.ctypes.data, len(tensors))
    if squares == -1:
        raise MemoryError("The norm of the gradients cannot be computed")
    if squares < 0:
        _refuse_outside(tensors)
    return math.sqrt(squares)


def outside(tensors: NDArray[Any]) -> Optional[int]:
    """Return the index of the first tensor whose shape exceeds its memory, None if all fit."""
    index = int(library().ldopt_outside(tensors.ctypes.data, len(tensors)))
    return None if index < 0 else index


def _refuse_outside(tensors: NDArray[Any]) -> None:
    index = outside(tensors)
    shape = [tensors[index][name].item() for name in ("batch", "rows", "cols")]
    raise ValueError(
        "A tensor's shape needs more memory than is allocated for it; this process may have only a part of the "
        "parameter. Nothing was updated. "
        f"Received: tensor {index} of shape {shape}, bytes allocated={tensors[index]['held'].tolist()}"
    )


def largest_step(tensors: NDArray[Any]) -> float:
    """Return the largest step counter of the tensors, 0 without any."""
    return float(library().ldopt_largest_step(tensors.ctypes.data, len(tensors)))
