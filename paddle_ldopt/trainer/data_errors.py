"""Raise the errors of data sets and collators; Paddle's DataLoader would wait forever."""

import functools
import warnings
from typing import Any

import paddle

from .._paddle import MovedError, end_reading, reader_class


def raising_errors(loader: paddle.io.DataLoader) -> paddle.io.DataLoader:
    """Return a DataLoader that raises the errors of its data set and collator.

    Without workers Paddle reads in a thread, and nothing reports an error in it. A loader with workers or an iteration
    of its own is returned unchanged.
    """
    cls: Any = type(loader)
    if getattr(cls, "__iter__", None) is not paddle.io.DataLoader.__iter__ or loader.num_workers:
        return loader
    try:
        out = object.__new__(_raising_class(cls))
    except MovedError as error:
        warnings.warn(str(error), stacklevel=2)
        return loader
    vars(out).update(vars(loader))
    return out


@functools.cache
def _raising_class(cls: Any) -> Any:
    base: Any = reader_class()

    class Reader(base):
        error = None

        def _thread_loop(self, *args: Any) -> None:
            try:
                super()._thread_loop(*args)
            except BaseException as error:
                self.error = error
                end_reading(self)()

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except SystemError as error:
                raise (self.error or error) from None

    return type(cls.__name__, (cls,), {"__iter__": lambda self: Reader(self)})
