"""Fine-tune a pretrained encoder to classify text, each layer at its own learning rate.

    make finetune                                                          # needs neither data nor a hub
    . .venv/bin/activate                                                   # for the commands below
    python recipes/sequence_classification.py --data reviews.csv --text_column review --label_column stars
    python recipes/sequence_classification.py --model ernie-3.0-base-zh --data paddlenlp:clue:tnews --learning_rate 5e-5
    python recipes/sequence_classification.py --resume_from_checkpoint runs/sequence_classification-20261121-140000
    python recipes/sequence_classification.py --compare                    # uniform against layer-wise rates

By default, MiniLM (from a package that `make` installs) learns whether a docstring of Python's standard library
describes a function, a class or a module. A resumed run continues in its folder with its own arguments; arguments on
the command line override them.
"""

import dataclasses
import functools
from typing import Optional

import common.fast_cpu  # noqa: F401 - before Paddle
import predict
from common import classification
from common.arguments import RecipeArguments, check_least, option, parse
from common.comparison import compare
from common.errors import error
from common.fine_tuning import entry_point, fine_tune
from common.pretrained import load_encoder
from common.progress import silence
from common.text_data import TextDataset, say_cut
from common.text_options import TextOptions
from common.trainers import FineTuner
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.trainer import set_seed


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "sequence_classification"
    metrics = classification.METRICS

    layerwise_lr_decay: float = 0.8  # chosen by the second study of docs/evidence.md, with the mean preserved
    layerwise_preserve_mean: Optional[bool] = dataclasses.field(
        default=None,
        metadata={"help": "divide all ratios by their mean over the blocks; by default true for a decay other than 1"},
    )

    def __post_init__(self):
        if self.layerwise_preserve_mean is None:
            self.layerwise_preserve_mean = self.layerwise_lr_decay != 1
        super().__post_init__()


@dataclasses.dataclass
class Options(TextOptions):
    """Model, data, encoding and comparison."""

    examples_per_class: Optional[int] = option(None, "training rows per class; by default all, or 50 for docstrings")
    compare: bool = option(False, "train with uniform and with layer-wise rates; write a report, keep no model")
    compare_learning_rates: list[float] = option([1e-4, 3e-4, 1e-3], "learning rates of --compare")
    compare_seeds: int = option(3, "number of seeds of --compare; the first is --seed")

    def __post_init__(self):
        super().__post_init__()
        check_least(self, compare_seeds=1)


def build(args, options, splits):
    """Return a Trainer with a new model for `splits`."""
    set_seed(args.seed)
    tokenizer, model = load_encoder(options, classes=splits.labels)
    by_length = {part: sorted(getattr(splits, part), key=lambda row: len(row[0])) for part in ("validation", "test")}
    data = {part: TextDataset(rows, tokenizer, options.max_length) for part, rows in by_length.items()}  # less padding
    trainer = FineTuner(
        model=model,
        args=args,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=TextDataset(splits.train, tokenizer, options.max_length),
        eval_dataset=data["validation"],
        tokenizer=tokenizer,
        compute_metrics=classification.class_scores,
    )
    return trainer, data["test"]


def scores(args, options, splits):
    """Train once; return the accuracies on the validation and test split, and keep no file."""
    trainer, test = build(args, options, splits)
    silence(trainer)
    trainer.train()
    on_validation, on_test = trainer.evaluate(), trainer.evaluate(test, metric_key_prefix="test")
    return on_validation["eval_accuracy"], on_test["test_accuracy"]


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    if options.compare and (args.layerwise_lr_decay == 1 or args.resume_from_checkpoint):
        received = {name: getattr(args, name) for name in ("layerwise_lr_decay", "resume_from_checkpoint")}
        raise error("`compare` needs a `layerwise_lr_decay` below 1, and cannot resume.", **received)
    if options.compare and args.early_stopping_patience != Arguments.early_stopping_patience:
        raise error(
            "`compare` does not stop early: leave this out.", early_stopping_patience=args.early_stopping_patience
        )
    if options.examples_per_class is None and options.data == "docstrings":
        options.examples_per_class = 50
    splits = options.load(examples_per_class=options.examples_per_class, seed=args.seed)
    print(splits.description, flush=True)
    if options.compare:
        rates, seeds = options.compare_learning_rates, options.compare_seeds
        train = functools.partial(scores, options=options, splits=splits)
        compare(args, rates, seeds, train, splits.description)
    else:
        trainer, test = build(args, options, splits)
        print(say_cut(trainer.train_dataset), flush=True)
        judge = classification.judge(splits.labels, [text for text, _ in test.rows])
        score, pair = classification.majority_score(splits.test), "text_pair_column" in splits.columns
        fine_tune(trainer, test, score, options, argv, splits, judge, {"pair": pair, "columns": splits.columns})
        if trainer.is_world_process_zero():
            print(f"label texts: {predict.command(args.output_dir, pair)}")


main = entry_point(run)

if __name__ == "__main__":
    main()
