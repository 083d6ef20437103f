"""Processes that tests start, forked off a server that has imported Paddle and PaddleNLP: each begins at once.

    process = start(work, arguments, log=path, env={...})    # a multiprocessing.Process, the leader of a session
    ended = run(["recipe.py", "--lr", "1"], timeout=60)      # as subprocess.run([sys.executable, ...], text=True)

A test that depends on a cold start (what an import does, `FLAGS_...`, the number of threads) uses `subprocess` instead.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback

__all__ = ["run", "search_path", "start"]

# Paddle reads these when it is imported, so they are the same in all forks
_SERVER = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def search_path():
    """Return a PYTHONPATH with which a process finds the modules that this one finds."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in [*given, *sys.path] if path))


def _context():
    """Return the context of multiprocessing that forks; start its server, once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    before = dict(os.environ)
    os.environ.update(_SERVER, PYTHONPATH=search_path())
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def start(work, *arguments, log, errors=None, env=None, cwd=None):
    """Start ``work(*arguments)``, a function at the top of a module, in a fork; return its `Process`.

    It ends with 0 when `work` returns and with 1 when it raises. `log` and `errors` (by default the same) are the files
    of what it writes, `env` are variables beside those of this process.
    """
    place = (str(log), str(errors or log), {**os.environ, "PYTHONPATH": search_path(), **(env or {})}, cwd)
    process = _context().Process(target=_child, args=(work, arguments, *place))
    process.start()
    return process


def _child(work, arguments, log, errors, env, cwd):
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd or os.getcwd())
    for path, stream in ((log, sys.stdout), (errors, sys.stderr)):
        with open(path, "ab") as file:
            os.dup2(file.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True)
    try:
        work(*arguments)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
        _end(code if isinstance(code, int) else int(code is not None))
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)


def _end(code):
    """Leave at once: threads of Paddle or gloo may wait for other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(command, timeout=300, env=None, cwd=None):
    """Run ``python *command`` (a file, or ``-m`` and a module) in a fork; return its `subprocess.CompletedProcess`."""
    command = [str(part) for part in command]
    with tempfile.TemporaryDirectory() as folder:
        log, errors = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        process = start(_interpret, command, log=log, errors=errors, env=env, cwd=cwd)
        process.join(timeout)
        if process.exitcode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, log.read_text(), errors.read_text())
        return subprocess.CompletedProcess(command, process.exitcode, log.read_text(), errors.read_text())


def _interpret(command):
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        runpy.run_path(command[0], run_name="__main__")
