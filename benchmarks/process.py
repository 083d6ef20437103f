"""A process that holds one optimizer and steps when it is told to: the half that runs there, and the half that asks.

Whoever is not asked is stopped (SIGSTOP): OpenMP's threads would go on spinning and take a core from the others.
"""

import contextlib
import ctypes
import gc
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

from contestants import CONTESTANTS, Triad
from machine import memory, trim
from shapes import count

TIMEOUT = 600  # seconds for one answer
SMALL = {
    f"encoder.layers.{block}.{name}.weight": shape
    for block in range(2)
    for name, shape in {"linear": [256, 256], "norm": [64], "conv": [8, 8, 3, 3]}.items()
}


# ---- in the process


class Worker:
    """One contestant: builds it over any shapes, takes single steps.

    Args:
        optimizer (str): key of `CONTESTANTS`.
        label (str): which one.
    """

    def __init__(self, optimizer, label):
        self.contestant = CONTESTANTS[optimizer][label]
        self.contestant.find()
        if "fused" in self.contestant.options and not self.contestant.has("fused"):
            raise ImportError("this version has no argument `fused`")
        self.options = {}
        self.path = self._choose_path()

    def _choose_path(self):
        """Take a step over small tensors, which loads what steps load; return what ours runs on, "" for a peer."""
        chooses = self.contestant.package == "paddle_ldopt" and self.contestant.has("fused")
        if chooses and "fused" not in self.contestant.options:
            with contextlib.suppress(ValueError, TypeError, RuntimeError):
                self.options = {"fused": True}
                self.build(SMALL)
                return "C library"
            self.options = {}
        self.build(SMALL)
        return "Paddle operations" if self.contestant.package == "paddle_ldopt" else ""

    def build(self, shapes, gradient=1e-3):
        """Make the tensors, with gradients of a scale, and the optimizer; take the first step (it makes the state)."""
        self.optimizer = None
        gc.collect()
        params, name_dict = self.contestant.tensors(shapes, gradient)
        trim()
        self.resident = memory("VmRSS")
        self.optimizer = self.contestant.build(params, name_dict, self.options)
        self.optimizer.step()
        self.state = self.contestant.state_bytes(self.optimizer)
        return {"tensors": len(shapes), "elements": count(shapes), "state_bytes": self.state}

    def step(self):
        """Return the seconds of one step."""
        began = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - began

    def in_turn_with(self, other, shapes, rounds):
        """Return the processor seconds of each step of another contestant and of this one, in turn."""
        pair, taken = [Worker(*other), self], [[], []]
        for each in pair:
            each.build(shapes)
        for i in range(rounds):
            for place in (0, 1) if i % 2 else (1, 0):
                began = time.process_time()
                pair[place].optimizer.step()
                taken[place].append(time.process_time() - began)
        return taken

    def launches(self):
        """Return how many operations of Paddle a step launches, as its profiler counts them."""
        from paddle import profiler

        with profiler.Profiler(targets=[profiler.ProfilerTarget.CPU], on_trace_ready=lambda trace: None) as trace:
            self.optimizer.step()
        ahead, count = list(trace.profiler_result.get_data().values()), 0
        while ahead:
            event = ahead.pop()
            count += event.name.endswith(" kernel launch")
            ahead += event.children_node
        return count

    def transient(self):
        """Return by how many bytes the resident memory of a step peaks above tensors and state; None if not known."""
        if self.resident is None:
            return None
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is resident
        self.optimizer.step()
        return memory("VmHWM") - self.resident - self.state


class TriadWorker:
    """The triad, asked like an optimizer.

    Args:
        threads (int): how many of them.
    """

    path = ""

    def __init__(self, threads):
        self.triad = Triad(threads)

    def step(self):
        """Return the bytes a second of one triad."""
        began = time.perf_counter()
        self.triad.step()
        return Triad.bandwidth(time.perf_counter() - began)


def _die_with_parent():
    """Ask Linux to end this process with its parent: a stopped one would not notice that its pipe has closed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def serve(kind, arguments):
    """Answer what is asked on standard input, one JSON a line."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers

    def answer(value):
        channel.write(json.dumps(value) + "\n")
        channel.flush()

    try:
        worker = {"optimizer": Worker, "triad": TriadWorker}[kind](*arguments)
    except ImportError as error:
        return answer({"absent": str(error)})
    answer({"path": worker.path})
    for line in sys.stdin:
        method, keywords = json.loads(line)
        answer(getattr(worker, method)(**keywords))


# ---- outside


class AbsentError(Exception):
    """A package that is not installed."""


class Process:
    """A worker in a process of its own, stopped unless it is asked.

    Args:
        kind (str): "optimizer" or "triad".
        *arguments: of the worker.
        threads (int): what OpenMP, MKL and Paddle may use.
    """

    def __init__(self, kind, *arguments, threads):
        numbers = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads")
        environment = {**os.environ, **dict.fromkeys(numbers, str(threads)), "CUDA_VISIBLE_DEVICES": ""}
        root = str(pathlib.Path(__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- open as long as the process runs
        self.process = subprocess.Popen(
            [sys.executable, __file__, kind, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
        )
        self.path = None

    def ready(self):
        """Wait until it has imported what it needs; raise AbsentError if that is not installed."""
        if self.path is None:
            answer = self._answer()
            if "absent" in answer:
                raise AbsentError(answer["absent"])
            self.path = answer["path"]
            self.process.send_signal(signal.SIGSTOP)

    def ask(self, method, **keywords):
        """Return what a method of the worker does."""
        self.ready()
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps([method, keywords]).encode() + b"\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def _answer(self):
        waited, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        line = self.process.stdout.readline() if waited else b""
        if not line:
            said = self.close()
            raise RuntimeError(f"no answer from {self.process.args[2:]}:\n{said[-2000:]}")
        return json.loads(line)

    def close(self):
        """End the process; return what it wrote to stderr, "" the second time."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        if self.errors.closed:
            return ""
        self.errors.seek(0)
        with self.errors:
            return self.errors.read()


if __name__ == "__main__":
    _die_with_parent()
    serve(sys.argv[1], json.loads(sys.argv[2]))
