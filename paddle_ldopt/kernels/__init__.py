"""The fused step on CPU: a C library that updates all tensors of an optimizer in one call.

This package knows addresses, shapes and numbers; how they come out of a Paddle optimizer is `optimizers._fused`'s part.
It imports nothing but NumPy. The library is optional: `library()` is None where the package was installed without a
compiler, and `why_not()` says so.
"""

import ctypes
import functools
import math
import pathlib
import zlib

from .layout import FLAGS, RULES, TENSOR, TYPES

__all__ = ["FLAGS", "RULES", "TENSOR", "TYPES", "library", "load", "norm", "step", "threads", "why_not"]

_FOLDER = pathlib.Path(__file__).absolute().parent


def load(path):
    """Return the C library in the file `path`.

    Raises:
        OSError: it cannot be loaded, or was built from other sources than those of this package.
    """
    library = ctypes.CDLL(path)
    library.ldopt_layout.restype = library.ldopt_sources.restype = ctypes.c_int64
    library.ldopt_step.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    library.ldopt_square_sum.argtypes = library.ldopt_step.argtypes
    library.ldopt_square_sum.restype = ctypes.c_double
    if library.ldopt_layout() != TENSOR.itemsize or not _fits(library.ldopt_sources()):
        raise OSError(f"'{path}' belongs to another version of the package: install it again")
    return library


def _fits(checksum):
    """Say whether a library was built from the sources beside this file, if that can be known."""
    paths = sorted(_FOLDER.glob("csrc/*.[ch]"))
    sources = b"".join(path.read_bytes() for path in paths)  # none of an installed wheel
    return not sources or checksum in (0, zlib.crc32(sources))


@functools.cache
def _found():
    """Return (library, None) or (None, why there is none)."""
    paths = sorted(_FOLDER.glob("libstep*.so"))
    if not paths:
        return None, "the C library was not built: install a C compiler, then paddle_ldopt again"
    try:
        return load(str(paths[0])), None
    except (OSError, AttributeError) as error:
        return None, f"the C library cannot be loaded: {error}"


def library():
    """Return the C library of this package, or None."""
    return _found()[0]


def why_not():
    """Return why there is no library, or None if there is one."""
    return _found()[1]


def step(tensors, most_threads=0, using=None):
    """Update all tensors, in place.

    Args:
        tensors (ndarray): of dtype `TENSOR`, contiguous; whatever they point to must live until this returns.
        most_threads (int): at most so many threads; 0: as many as OpenMP has (OMP_NUM_THREADS).
        using (CDLL, optional): the library, if not the package's own.

    Raises:
        MemoryError: there is no memory for the sums of rows and columns. Nothing is changed by then.
    """
    if (using or library()).ldopt_step(tensors.ctypes.data, len(tensors), most_threads):
        raise MemoryError("The fused step cannot allocate its buffers: nothing was updated")


def norm(tensors, most_threads=0, using=None):
    """Return the norm of all gradients together.

    Args:
        tensors (ndarray): as in `step`.
        most_threads (int): as in `step`.
        using (CDLL, optional): as in `step`.

    Raises:
        MemoryError: there is no memory for the partial sums.
    """
    squares = (using or library()).ldopt_square_sum(tensors.ctypes.data, len(tensors), most_threads)
    if squares < 0:
        raise MemoryError("The norm of the gradients cannot be computed")
    return math.sqrt(squares)


def threads():
    """Return how many threads a step uses at most."""
    return library().ldopt_threads()
