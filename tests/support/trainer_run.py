"""Trainings to be killed in processes of their own: `train_until`.

How to die: "never"; "after:<step>:<seconds>", perhaps within a save; "saving:<file>", in the middle of writing it.
"""

import os
import signal
import threading

import numpy as np
import paddle
import trainer_common as common
from paddle.distributed import fleet

STEPS = 20


def die(*_):
    """End at once, as by the kernel's out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


class KillAfter(common.TrainerCallback):
    """Dies some time after a step."""

    def __init__(self, step, seconds):
        self.step, self.timer = int(step), threading.Timer(float(seconds), die)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.timer.start()


def die_while_saving(name):
    """Let the next save but one of the file `name` be its end."""
    save, seen = paddle.save, []

    def dying_save(obj, path, *args, **kwargs):
        if os.path.basename(path) == name:
            seen.append(path)
            if len(seen) == 2:
                with open(path, "wb") as file:
                    file.write(b"half a file")
                die()
        return save(obj, path, *args, **kwargs)

    paddle.save = dying_save


def checkpoint_format(name):
    """Return the arguments that choose a format: "plain" or "unified" in PaddleNLP, "plain" or "flex" in PaddleFormers.

    (PaddleFormers has a unified one for its own kind of models; flex is its default.)
    """
    if not common.FORMERS:
        return {"unified_checkpoint": name == "unified"}
    form = {"plain": "sharding_io", "flex": "flex_checkpoint"}[name]
    return {"save_checkpoint_format": form, "load_checkpoint_format": form}


def init_fleet():
    """Do what PaddleFormers needs to read a flex checkpoint in one process."""
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)


def run(output_dir, form="plain", callbacks=None, resume=None, passed=None, **kwargs):
    """Train with dropout and a warm-up over several epochs, named as in a fresh process; return the Trainer.

    The optimizer is AdamWDL with a decay, or `passed(model)` makes (optimizer, scheduler).
    """
    if form == "flex":
        init_fleet()
    settings = {"max_steps": STEPS, "save_steps": 4, **checkpoint_format(form)}
    if passed is None and "args" not in kwargs:
        settings.update(warmup_steps=5, optim="adamwdl", layerwise_lr_decay=0.8)
    with paddle.utils.unique_name.guard():
        model = common.tiny_model(dropout=0.1)
        optimizers = (None, None) if passed is None else passed(model)
        trainer = common.trainer(output_dir, model, optimizers, callbacks=callbacks, **{**settings, **kwargs})
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def train_until(folder, form, death, resume):
    """Train and write the final weights into the folder, or die before."""
    kind, _, how = death.partition(":")
    if kind == "saving":
        die_while_saving(how)
    trainer = run(folder, form, [KillAfter(*how.split(":"))] if kind == "after" else None, resume or None)
    np.savez(os.path.join(folder, "final.npz"), **common.weights(trainer.model))
