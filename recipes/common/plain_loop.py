"""A training without a Trainer, with its features: progress, checkpoints, exact resumes, Ctrl-C, a report.

A recipe derives its loop from `PlainLoop` and writes `train_step`, `evaluate` and `states`.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import time
import types
from typing import ClassVar, Optional

import numpy as np
import paddle

import paddle_ldopt as ldopt
from paddle_ldopt.trainer.record import check_complete, list_files, set_aside

from .arguments import check_least, option
from .fine_tuning import say_over
from .progress import ShortProgress
from .run_folder import write_json
from .stopping import StopWithCheckpoint


@dataclasses.dataclass
class LoopArguments:
    """Arguments of a loop."""

    recipe: ClassVar[str] = "recipe"

    output_dir: Optional[str] = option(None, "folder of the run; runs/<recipe>-<time> by default")
    resume_from_checkpoint: Optional[str] = option(None, "folder of the run to resume, or a checkpoint in it")
    batch_size: int = option(16, "rows per step in each process")
    epochs: int = option(1, "number of epochs")
    max_steps: int = option(-1, "number of steps, instead of epochs; -1 is off")
    save_steps: int = option(50, "steps between two checkpoints, each with an evaluation")
    save_total_limit: int = option(1, "number of newest checkpoints to keep")
    seed: int = option(42, "seed of new weights, dropout and the order of the rows")
    verbose: bool = option(False, "print PaddleNLP's log")

    def __post_init__(self):
        self.output_dir = self.output_dir or time.strftime(f"runs/{self.recipe}-%Y%m%d-%H%M%S")
        check_least(self, batch_size=1, epochs=1, save_steps=1, save_total_limit=1)


class PlainLoop:
    """A training on a number of rows that resumes from any of its checkpoints, bit for bit."""

    def __init__(self, model, rows, args):
        self.args, self.model, self.rows, self.step = args, model, rows, 0
        self.ranks, self.rank = paddle.distributed.get_world_size(), paddle.distributed.get_rank()
        self.batches = max(rows // (args.batch_size * self.ranks), 1)
        self.steps = args.max_steps if args.max_steps > 0 else args.epochs * self.batches

    def rows_of_step(self):
        """Return the row numbers of the next step for this process, in an order drawn for the epoch."""
        epoch, at = divmod(self.step, self.batches)
        order = np.random.default_rng([self.args.seed, epoch]).permutation(self.rows)
        together = self.args.batch_size * self.ranks
        return order[at * together : (at + 1) * together][self.rank :: self.ranks]

    def save(self):
        """Write a checkpoint, whole or not at all; remove older ones."""
        if self.rank == 0:
            folder = os.path.join(self.args.output_dir, f"checkpoint-{self.step}")
            unfinished = folder + ".unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a kill
            os.makedirs(unfinished)
            for name, part in self.states().items():
                if isinstance(part, paddle.optimizer.Optimizer):
                    ldopt.save_optimizer(os.path.join(unfinished, name), part, self.model, step=self.step)
                else:
                    paddle.save(part.state_dict(), os.path.join(unfinished, name))
            write_json(unfinished, "trainer_state.json", {"global_step": self.step})
            list_files(unfinished)
            # before the rename: `last_checkpoint` must not find checkpoints of later steps
            for was, now in set_aside(self.args.output_dir, self.step - 1):
                print(f"{was} is renamed {now}: step {self.step} was trained again.")
            shutil.rmtree(folder, ignore_errors=True)  # a damaged one
            os.replace(unfinished, folder)
            names = re.findall(r"^checkpoint-\d+$", "\n".join(os.listdir(self.args.output_dir)), re.M)
            for name in sorted(names, key=lambda name: int(name[11:]))[: -self.args.save_total_limit]:
                shutil.rmtree(os.path.join(self.args.output_dir, name))

    def load(self, folder):
        """Resume from a checkpoint; raise ValueError if it is damaged."""
        check_complete(folder)
        for name, part in self.states().items():
            if isinstance(part, paddle.optimizer.Optimizer):
                ldopt.load_optimizer(os.path.join(folder, name), part, self.model)
            else:
                load = getattr(part, "set_state_dict", None) or part.load_state_dict
                load(paddle.load(os.path.join(folder, name)))
        with open(os.path.join(folder, "trainer_state.json"), encoding="utf-8") as file:
            self.step = json.load(file)["global_step"]

    def train(self, report):
        """Take the remaining steps, with checkpoints and evaluations; on Ctrl-C and SIGTERM save a checkpoint."""
        main, progress = self.rank == 0, ShortProgress()
        state = types.SimpleNamespace(is_world_process_zero=main, global_step=self.step, max_steps=self.steps)
        if main and self.step >= self.steps:
            say_over(self.step)
        for listener in (report, progress):
            listener.on_train_begin(self.args, state, None, optimizer=self.optimizer)
        with StopWithCheckpoint() as stop, contextlib.closing(progress):
            for _ in range(self.step, self.steps):
                report.on_step_begin(self.args, state, None, optimizer=self.optimizer)
                # dropout does not depend on earlier steps
                paddle.seed(self.args.seed + 1000 * self.step + self.rank)
                logs = {"loss": self.train_step()}
                self.step += 1
                state.global_step = self.step
                due = self.step % self.args.save_steps == 0 or self.step == self.steps
                if due:  # also on SIGTERM, because a resume begins with the next step
                    logs.update(self.evaluate())
                for listener in (report, progress):
                    listener.on_log(self.args, state, None, logs=logs)
                progress.on_step_end(self.args, state, None)
                if due or stop.asked:
                    self.save()
                    stop.on_save(self.args, state, None)
        for listener in (report, progress):
            listener.on_train_end(self.args, state, None)
