"""What a data set or a collator raises, raised where it is waited for.

Paddle's DataLoader without workers reads in a thread of its own. If that ends by an error, nobody tells the training,
which waits for its next batch for ever.
"""

import contextlib
import threading

__all__ = ["errors_of_readers"]


@contextlib.contextmanager
def errors_of_readers():
    """Raise in this block what ends a thread that reads data for it.

    Examples:
        .. code-block:: python

            with errors_of_readers():
                for batch in paddle.io.DataLoader(data, collate_fn=collate):
                    ...  # a KeyError of `collate` ends this loop as a KeyError
    """
    raised, before = [], threading.excepthook

    def tell(args):
        reader = _reader_in(args.exc_traceback)
        if reader is None:
            before(args)
        else:
            raised.append(args.exc_value)
            reader._exit_thread_unexpectedly()  # wakes who waits, by a SystemError

    threading.excepthook = tell
    try:
        yield
    except SystemError as error:
        if raised:
            raise raised[0] from error
        raise
    finally:
        threading.excepthook = before


def _reader_in(traceback):
    """Return the DataLoader's iterator whose method is in a traceback, None if there is none."""
    while traceback is not None:
        reader = traceback.tb_frame.f_locals.get("self")
        if hasattr(reader, "_exit_thread_unexpectedly"):
            return reader
        traceback = traceback.tb_next
    return None
