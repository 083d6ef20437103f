"""A recipe in a process of its own (see `processes`), to be killed at any moment."""

import importlib
import os
import signal
import sys
import threading

import processes
import pytest
import test_recipes
from common.run_folder import NoteArguments

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def watch(folder, moment):
    """Count what this process does to the files of a folder; die in time. Return the list that counts.

    `moment` is (which of these events, seconds after it), or None.
    """
    seen = []

    def hook(event, args):
        opens = event == "open" and isinstance(args[0], (str, bytes)) and args[2] & WRITING
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
        if (opens or changes) and os.fsdecode(args[0]).startswith(folder):
            seen.append(event)
            if moment is not None and len(seen) == moment[0]:
                threading.Timer(moment[1], die).start() if moment[1] else die()

    sys.addaudithook(hook)
    return seen


def child(name, argv, folder, moment, log):
    """Run a recipe; write "s" for each step that begins, and at the end "e" for each event, into the file `log`."""
    with open(log, "wb", buffering=0) as said:
        test_recipes.shorten(pytest.MonkeyPatch())
        step_begins = NoteArguments.on_step_begin

        def counted(*args, **kwargs):
            said.write(b"s")
            return step_begins(*args, **kwargs)

        NoteArguments.on_step_begin = counted
        seen = watch(folder, moment)
        importlib.import_module(name).main(argv)
        said.write(b"e" * len(seen))


def run(name, argv, folder, moment=None):
    """Run a recipe in a process of its own: return whether it was killed, its steps, its file events.

    The events are those of `folder`; `moment` is that of `watch`.
    """
    log, out = (folder.parent / f"{folder.name}.{kind}" for kind in ("log", "out"))
    process = processes.start(child, name, argv, str(folder), moment, str(log), log=out)
    process.join(600)
    if process.exitcode is None:
        process.kill()
        pytest.fail(f"{name} {argv} hangs")
    assert process.exitcode in (0, -signal.SIGKILL), out.read_text()[-3000:]
    said = log.read_bytes()
    return process.exitcode != 0, said.count(b"s"), said.count(b"e")
