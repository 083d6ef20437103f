"""Declares the optional C library; the metadata is in setup.cfg, the settings of tools in pyproject.toml.

Without a compiler the package is installed without the library.
"""

import glob
import pathlib
import zlib

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# No flag here may assume that there are no NaNs or infinities, or contract a * b + c, which rounds differently from one
# processor to the next.
FLAGS = ["-std=gnu11", "-O3", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
SOURCES = "paddle_ldopt/kernels/csrc/"
CHECKSUM = zlib.crc32(b"".join(pathlib.Path(path).read_bytes() for path in sorted(glob.glob(f"{SOURCES}*.[ch]"))))


class BuildLibrary(build_ext):
    """Builds with OpenMP, or without where the compiler has none."""

    def build_extension(self, ext):
        """Build the library, which is loaded by ctypes and knows nothing of Python."""
        try:
            ext.extra_compile_args, ext.extra_link_args = [*FLAGS, "-fopenmp"], ["-fopenmp"]
            super().build_extension(ext)
        except Exception:
            ext.extra_compile_args, ext.extra_link_args = [*FLAGS, "-fopenmp-simd"], []
            super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "paddle_ldopt.kernels.libstep",
            sorted(glob.glob(f"{SOURCES}*.c")),
            depends=sorted(glob.glob(f"{SOURCES}*.h")),
            define_macros=[("LDOPT_SOURCES", str(CHECKSUM))],
            libraries=["m"],
            optional=True,
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
