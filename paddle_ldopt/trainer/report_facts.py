"""Facts of a run for its report: date, versions, machine, command, batch, seed and length."""

import datetime
import os
import platform
import shlex
import sys
from typing import Any

import paddle


def run_facts(args: Any) -> dict[str, Any]:
    """Return date, versions, machine, command, batch, seed and length of the run with these Trainer's arguments."""
    facts = {
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "versions": _versions(),
        "machine": f"{_processor()}, {os.cpu_count()} cores; {platform.platform(terse=True)}",
        "device": paddle.get_device(),
        "command": shlex.join([os.path.basename(sys.executable), *sys.argv]),
    }
    processes = paddle.distributed.get_world_size()
    batch = getattr(args, "per_device_train_batch_size", getattr(args, "batch_size", None))
    if batch is not None:
        accumulated = getattr(args, "gradient_accumulation_steps", 1)
        facts["batch"] = batch * accumulated * processes
        if accumulated * processes > 1:
            facts["batch"] = f"{facts['batch']}: {batch} rows, {accumulated} accumulated, {processes} process(es)"
    epochs = "num_train_epochs" if hasattr(args, "num_train_epochs") else "epochs"
    length = {"steps": "max_steps"} if getattr(args, "max_steps", -1) > 0 else {"epochs": epochs}
    fields = {"seed": "seed", **length, "logging folder": "logging_dir"}
    facts.update({name: getattr(args, field) for name, field in fields.items() if hasattr(args, field)})
    return facts


def _versions() -> str:
    names = [name for name in ("paddle_ldopt", "paddle", "paddlenlp", "paddleformers") if name in sys.modules]
    versions = [f"{name} {sys.modules[name].__version__}" for name in names]
    return ", ".join([*versions, f"Python {platform.python_version()}"])


def _processor() -> str:
    """Return the name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux
        return platform.processor() or platform.machine()
