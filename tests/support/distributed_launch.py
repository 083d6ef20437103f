"""Run a function in several local processes that can talk to each other (gloo on a CPU, or a device each), from a test.

The function (`worker`) is at the top of a module in this folder or of a test. It starts `fleet` by
`distributed_setup.start_fleet` and returns anything that can be pickled: `first, second = launch(worker, ranks=2)`. The
processes are forks (see `processes`). All are killed when one has failed or the time is up; `LaunchError` then shows
what each wrote. A process that is done waits for the others, because process 0 holds the store they meet in.
"""

import contextlib
import importlib
import os
import pathlib
import pickle
import random
import signal
import socket
import tempfile
import time

from processes import start

__all__ = ["LaunchError", "free_ports", "launch"]

_PORTS = range(15000, 32000)  # no system gives these to a client, as it may with ports above


class LaunchError(AssertionError):
    """A rank failed, or the time was up: exit code and output of each rank, and those that had to be killed."""

    def __init__(self, why, returncodes, outputs, killed):
        self.returncodes, self.outputs, self.killed = returncodes, outputs, killed
        ranks = (
            f"---- rank {rank}: exit code {code}{', killed by the launcher' if rank in killed else ''}\n{text[-4000:]}"
            for rank, (code, text) in enumerate(zip(returncodes, outputs))
        )
        super().__init__("\n".join([why, *ranks]))


def launch(function, ranks=2, timeout=120, grace=10, **config):
    """Run `function(**config)` in `ranks` processes at once and return what each returned, by rank.

    It raises `LaunchError` after `timeout` seconds, starting the processes included, or if a rank ended with an error
    or without a result; the others then have `grace` seconds to end by themselves.
    """
    with tempfile.TemporaryDirectory() as folder:
        task = pathlib.Path(folder, "task")
        module = pathlib.Path(function.__code__.co_filename).stem
        task.write_bytes(pickle.dumps((module, function.__name__, config)))
        logs = [pathlib.Path(folder, f"log{rank}") for rank in range(ranks)]
        processes = []
        try:
            for variables, log in zip(_environments(ranks), logs):
                processes.append(start(_rank, folder, log=log, env=variables))
            why = _wait(processes, pathlib.Path(folder), timeout, grace)
        finally:
            killed = _kill(processes)
        codes = [process.exitcode for process in processes]
        results = [pathlib.Path(folder, f"result{rank}") for rank in range(ranks)]
        if why is None and not all(result.exists() for result in results):
            why = "A rank ended without a result."
        if why is not None:
            raise LaunchError(why, codes, [log.read_text(errors="replace") for log in logs], killed)
        return [pickle.loads(result.read_bytes()) for result in results]


def _environments(ranks):
    """Return the environment of each rank: all that `paddle.distributed.launch` sets and gloo reads."""
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(ranks + 1)]
    device = os.environ.get("LDOPT_DEVICE", "cpu").partition(":")[0]
    common = {
        "PADDLE_DISTRI_BACKEND": "gloo" if device == "cpu" else "xccl",
        "PADDLE_XCCL_BACKEND": device,
        "PADDLE_MASTER": endpoints.pop(),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_TRAINERS_NUM": str(ranks),
    }
    return [
        {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_CURRENT_ENDPOINT": endpoint,
            **common,
            f"FLAGS_selected_{device}s": str(rank),
        }
        for rank, endpoint in enumerate(endpoints)
    ]


def free_ports(count):
    """Return some ports that nobody listens to, drawn so that two launches at the same time get others."""
    ports = []
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError("200 ports are in use")


def _wait(processes, folder, timeout, grace):
    """Wait until all processes have ended; return None, or what went wrong."""
    end, why = time.monotonic() + timeout, None
    while any(process.exitcode is None for process in processes):
        if all((folder / f"result{rank}").exists() or one.exitcode is not None for rank, one in enumerate(processes)):
            (folder / "over").touch()
        failed = [rank for rank, process in enumerate(processes) if process.exitcode]
        if failed and why is None:
            why, end = f"Rank {failed[0]} failed.", min(end, time.monotonic() + grace)
        if time.monotonic() > end:
            return why or f"The ranks did not end within {timeout} seconds."
        time.sleep(0.05)
    failed = [rank for rank, process in enumerate(processes) if process.exitcode]
    return why or (f"Rank {failed[0]} failed." if failed else None)


def _kill(processes):
    """Kill what is still running, its children too; return the ranks."""
    running = [rank for rank, process in enumerate(processes) if process.exitcode is None]
    for rank in running:
        os.killpg(processes[rank].pid, signal.SIGKILL)  # each is the leader of a session of its own
        processes[rank].join()
    return running


def _rank(folder):
    import paddle
    from paddle.base import core

    paddle.distributed.parallel._global_parallel_env = None  # of the fork server, where the variables were others
    if int(os.environ["PADDLE_TRAINER_ID"]):
        connect = core.create_or_get_global_tcp_store
        core.create_or_get_global_tcp_store = lambda: (_wait_for_store(), connect())[1]
    module, name, config = pickle.loads(pathlib.Path(folder, "task").read_bytes())
    paddle.set_device(os.environ.get("LDOPT_DEVICE", "cpu").partition(":")[0])
    result = getattr(importlib.import_module(module), name)(**config)
    part = pathlib.Path(folder, f"part{os.environ['PADDLE_TRAINER_ID']}")
    part.write_bytes(pickle.dumps(result))
    part.rename(part.with_name(part.name.replace("part", "result")))
    while not pathlib.Path(folder, "over").exists():
        time.sleep(0.02)


def _wait_for_store():
    """Wait until process 0 listens: Paddle, if it comes too early, tries again after 3 seconds only."""
    port, end = int(os.environ["PADDLE_MASTER"].rpartition(":")[2]), time.monotonic() + 60
    tables = [path for path in map(pathlib.Path, ("/proc/net/tcp", "/proc/net/tcp6")) if path.exists()]
    while tables and time.monotonic() < end:
        rows = [row.split() for table in tables for row in table.read_text().splitlines()]
        if any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows):  # its state is LISTEN
            return
        time.sleep(0.01)
