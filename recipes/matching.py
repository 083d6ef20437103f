"""Fine-tune a pretrained encoder to classify pairs of texts, in a training loop without a Trainer.

    python recipes/matching.py
    python recipes/matching.py --data pairs.tsv --text_column 0 --text_pair_column 1 --label_column 2
    python recipes/matching.py --data paddlenlp:clue:afqmc          # columns sentence1, sentence2, label are recognized
    python recipes/matching.py --config recipes/configs/minilm/matching.yaml
    python recipes/matching.py --resume_from_checkpoint runs/matching-20261121-140000
    python -m paddle.distributed.launch --nproc_per_node 2 recipes/matching.py --output_dir runs/two

By default, MiniLM (from a package that `make` installs) learns whether a sentence and a text are parts of the same
docstring of Python's standard library. The loop follows PaddleNLP's matching examples. It creates the optimizer before
it wraps the model in DataParallel, because the names of the bare model determine the layers.
"""

import dataclasses
import time
from typing import Optional

import common.fast_cpu  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common import classification
from common.arguments import check_least, option, parse
from common.errors import error
from common.fine_tuning import conclude, defaults_of, entry_point
from common.library_data import docstring_pairs
from common.plain_loop import LoopArguments, PlainLoop
from common.pretrained import load_encoder
from common.run_folder import check_data, note_arguments, note_for_predictions
from common.run_report import RunReport
from common.text_data import Splits, TextDataset, say_cut
from common.text_options import TextOptions
from common.trainers import logits_of
from paddlenlp.data import DataCollatorWithPadding

from paddle_ldopt import LayerMap, LdoptConfig, list_optimizers
from paddle_ldopt.schedules import ON_METRIC


@dataclasses.dataclass
class Options(TextOptions):
    """Model, data and encoding."""

    def __post_init__(self):
        check_least(self, max_length=8)


@dataclasses.dataclass(frozen=True)
class Optimization(LdoptConfig):
    """Optimizer, layers and schedule."""

    learning_rate: Optional[float] = 3e-4
    layerwise_lr_decay: float = 0.65
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if self.optim not in list_optimizers():
            known = ", ".join(list_optimizers())
            raise error(f"The loop saves checkpoints with `save_optimizer`, which supports {known}.", optim=self.optim)
        if self.lr_scheduler_type in ON_METRIC or self.learning_rate is None:
            received = {"lr_scheduler_type": self.lr_scheduler_type, "learning_rate": self.learning_rate}
            raise error("The loop needs a learning rate, and a schedule that needs no metric.", **received)


@dataclasses.dataclass
class Arguments(LoopArguments):
    """Arguments of the training loop."""

    recipe = "matching"

    loss_scale: float = option(1.0, "initial loss scale; a value above 1 trains in float16, on a GPU only")


class Loop(PlainLoop):
    """The training loop: a step and its scores."""

    def __init__(self, model, splits, tokenizer, options, optimization, args):
        self.data = splits.each(lambda rows: TextDataset(rows, tokenizer, options.max_length))
        super().__init__(model, len(self.data["train"]), args)
        self.collate = DataCollatorWithPadding(tokenizer)
        # from the bare model, because DataParallel adds "_layers." to the names
        first = self.collate([self.data["train"][0]])
        self.example = {name: value for name, value in first.items() if name != "labels"}
        self.optimizer, self.schedule = optimization.build(model, self.steps, self.example)
        self.parallel = paddle.DataParallel(model) if self.ranks > 1 else model
        self.half = args.loss_scale > 1
        self.scaler = paddle.amp.GradScaler(enable=self.half, init_loss_scaling=args.loss_scale)

    def batch(self, rows):
        """Return (logits, labels) of some rows."""
        batch = self.collate(rows)
        labels = batch.pop("labels")
        with paddle.amp.auto_cast(enable=self.half):
            return logits_of(self.parallel(**batch)), labels

    def train_step(self):
        """Take the next step; return the loss."""
        here = self.rows_of_step()
        self.parallel.train()
        logits, labels = self.batch([self.data["train"][i] for i in here])
        loss = paddle.nn.functional.cross_entropy(logits, labels)
        scaled = self.scaler.scale(loss)
        scaled.backward()
        self.scaler.minimize(self.optimizer, scaled)
        self.optimizer.clear_grad()
        self.schedule.step()
        return float(loss)

    def states(self):
        """Return the parts of a checkpoint by file name."""
        parts = {"model_state.pdparams": self.model, "scaler.pdparams": self.scaler}
        return {**parts, "optimizer.safetensors": self.optimizer}  # last, to copy masters from the model

    def evaluate(self):
        """Return the metrics to log."""
        return {f"eval_{name}": value for name, value in self.scores("validation").items()}

    def scores(self, part):
        """Return the scores of a split."""
        logits, labels = self.predictions(part)
        return classification.scores_of(logits.argmax(-1), labels)

    def predictions(self, part):
        """Return (logits, labels) of a split."""
        self.parallel.eval()
        rows = self.data[part]
        with paddle.no_grad():
            found = [
                self.batch([rows[i] for i in range(at, min(at + 64, len(rows)))]) for at in range(0, len(rows), 64)
            ]
        return [np.concatenate([part.numpy() for part in parts]) for parts in zip(*found)]


def own_splits():
    """Return the `Splits` of pairs from docstrings."""
    parts = docstring_pairs()
    rows = parts.each(lambda rows: [((a, b), label) for a, b, label in rows])
    return Splits(**rows, labels=["another's", "goes on"], description=parts.description)


def run(argv):
    """Run a command line."""
    options, optimization, args, argv = parse(argv, Options, Optimization, Arguments)
    splits = own_splits() if options.data == "docstrings" else options.load(pairs=True)
    print(splits.description, flush=True)
    if paddle.distributed.ParallelEnv().world_size > 1:
        paddle.distributed.init_parallel_env()
    paddle.seed(args.seed)
    tokenizer, model = load_encoder(options, classes=splits.labels)
    loop = Loop(model, splits, tokenizer, options, optimization, args)
    print(say_cut(loop.data["train"]), flush=True)
    report = RunReport(args.output_dir, f"{options.model} on {options.data}", LayerMap.from_model(model, loop.example))
    report.config = optimization
    check_data(args, splits)
    if args.resume_from_checkpoint:
        loop.load(args.resume_from_checkpoint)
    note_arguments(args.output_dir, argv)
    began = time.perf_counter()
    loop.train(report)
    seconds = time.perf_counter() - began
    if loop.rank == 0:
        model.save_pretrained(args.output_dir)
        tokenizer.save_pretrained(args.output_dir)
        note_for_predictions(args.output_dir, args.recipe, options, pair=True, columns=splits.columns)
    settings = {**dataclasses.asdict(options), **dataclasses.asdict(args)}
    logits, labels = loop.predictions("test")
    judge = classification.judge(splits.labels, [text for text, _ in splits.test])
    found, tables = judge(logits, labels)
    tested = classification.scores_of(logits.argmax(-1), labels)
    more = {f"test {name}": value for name, value in tested.items() if name != "accuracy"}
    more |= {"steps": loop.step, "seconds": seconds, "validation accuracy": loop.scores("validation")["accuracy"]}
    about = {"settings": settings, "description": splits.description, "tables": tables}
    about["defaults"] = defaults_of(settings, argv, options, args)
    score = classification.majority_score(splits.test)
    conclude(args.output_dir, score, tested["accuracy"], {**more, **found}, report, **about)


main = entry_point(run)

if __name__ == "__main__":
    main()
