"""A training without a Trainer that has what one with it has: progress, checkpoints, exact resumes, SIGTERM, a report.

A recipe derives its loop from `PlainLoop` and writes `train_step`, `evaluate` and `states`.
"""

import dataclasses
import json
import os
import shutil
import time
import types
from typing import ClassVar, Optional

import numpy as np
import paddle
from tqdm import tqdm

import paddle_ldopt as ldopt
from paddle_ldopt.trainer import StopOnSigterm
from paddle_ldopt.trainer.folders import check_complete, list_files, set_aside

from .arguments import check_least, option
from .run_folder import write_json


@dataclasses.dataclass
class LoopArguments:
    """What a loop needs to be told."""

    recipe: ClassVar[str] = "recipe"

    output_dir: Optional[str] = option(None, "folder of the run; runs/<recipe>-<time> by default")
    resume_from_checkpoint: Optional[str] = option(None, "folder of a run, or a checkpoint in it")
    batch_size: int = option(16, "rows of a step in each process")
    epochs: int = option(1, "times that all rows are seen")
    max_steps: int = option(-1, "steps, instead of the epochs; -1 is off")
    save_steps: int = option(50, "steps between two checkpoints; the validation rows are evaluated then, too")
    seed: int = option(42, "of the head, of dropout and of the order")

    def __post_init__(self):
        self.output_dir = self.output_dir or time.strftime(f"runs/{self.recipe}-%Y%m%d-%H%M%S")
        check_least(self, batch_size=1, epochs=1, save_steps=1)


class PlainLoop:
    """A training that can be gone on with from any of its checkpoints, bit for bit.

    Args:
        model (paddle.nn.Layer): the model.
        rows (int): number of the training rows.
        args (LoopArguments): the rest.
    """

    def __init__(self, model, rows, args):
        self.args, self.model, self.rows, self.step = args, model, rows, 0
        self.ranks, self.rank = paddle.distributed.get_world_size(), paddle.distributed.get_rank()
        self.batches = max(rows // (args.batch_size * self.ranks), 1)
        self.steps = args.max_steps if args.max_steps > 0 else args.epochs * self.batches

    def rows_of_step(self):
        """Return the numbers of the rows of the step that comes: those of this process, in an order of the epoch's."""
        epoch, at = divmod(self.step, self.batches)
        order = np.random.default_rng([self.args.seed, epoch]).permutation(self.rows)
        together = self.args.batch_size * self.ranks
        return order[at * together : (at + 1) * together][self.rank :: self.ranks]

    def save(self):
        """Write a checkpoint, whole or not at all."""
        if self.rank == 0:
            folder = os.path.join(self.args.output_dir, f"checkpoint-{self.step}")
            unfinished = folder + ".unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)  # what a kill has left
            os.makedirs(unfinished)
            for name, part in self.states().items():
                if isinstance(part, paddle.optimizer.Optimizer):
                    ldopt.save_optimizer(os.path.join(unfinished, name), part, self.model, step=self.step)
                else:
                    paddle.save(part.state_dict(), os.path.join(unfinished, name))
            write_json(unfinished, "trainer_state.json", {"global_step": self.step})
            list_files(unfinished)
            # before it has its name: of a run that goes on from before them, later checkpoints are never the last
            for was, now in set_aside(self.args.output_dir, self.step - 1):
                print(f"{was} is called {now} from now on: it was there before step {self.step} was taken again.")
            shutil.rmtree(folder, ignore_errors=True)  # a damaged one
            os.replace(unfinished, folder)

    def load(self, folder):
        """Go on from a checkpoint; raise ValueError if it is damaged."""
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
        """Take all steps that are left; with a checkpoint and an evaluation now and then, and on SIGTERM."""
        main, steps = self.rank == 0, range(self.step, self.steps)
        state = types.SimpleNamespace(is_world_process_zero=main, global_step=self.step, max_steps=self.steps)
        report.on_train_begin(self.args, state, None, optimizer=self.optimizer)
        with StopOnSigterm() as stop:
            for _ in tqdm(steps, initial=self.step, total=self.steps, disable=not main):
                report.on_step_begin(self.args, state, None, optimizer=self.optimizer)
                # dropout does not depend on what came before
                paddle.seed(self.args.seed + 1000 * self.step + self.rank)
                logs = {"loss": self.train_step()}
                self.step += 1
                state.global_step = self.step
                due = self.step % self.args.save_steps == 0 or self.step == self.steps
                if due:  # on SIGTERM, too: a resume begins with the next step
                    logs.update(self.evaluate())
                report.on_log(self.args, state, None, logs=logs)
                if due or stop.asked:
                    self.save()
                    stop.on_save(self.args, state, None)
        report.on_train_end(self.args, state, None)
