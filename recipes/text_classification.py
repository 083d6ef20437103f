"""Fine-tune a pretrained encoder to classify texts or pairs of texts, each layer at its own learning rate.

    make finetune                                                          # needs neither data nor a hub
    . .venv/bin/activate                                                   # for the commands below
    python recipes/text_classification.py --data reviews.csv --text_column review --label_column stars
    python recipes/text_classification.py --model ernie-3.0-base-zh --data paddlenlp:clue:tnews --learning_rate 5e-5
    python recipes/text_classification.py --resume_from_checkpoint runs/text_classification-20261121-140000
    python recipes/text_classification.py --compare                        # uniform against layer-wise rates

By default, MiniLM (from a package that `make` installs) learns whether a docstring of Python's standard library
describes a function, a class or a module. Labels are classes, sets of labels (lists in JSON, or `--label_separator`) or
scores (fractions). A resumed run continues in its folder; its own arguments are overridden by the command line.
"""

import dataclasses
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import predict
from common import classification
from common.arguments import LOWER_IS_BETTER, FileOptions, RecipeArguments, option, parse
from common.comparison import Study
from common.errors import error
from common.fine_tuning import entry_point, fine_tune
from common.pretrained import load_encoder, longest
from common.rows import set_length, warn_of_unknown
from common.run_folder import without
from common.text_data import TextDataset, load_splits, tokens_of
from common.trainers import FineTuner
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.trainer import set_seed

READING = ("text_column", "text_pair_column", "label_column", "has_header", "encoding", "kind", "label_separator")


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "text_classification"
    metrics = classification.METRICS


@dataclasses.dataclass
class Options(FileOptions):
    """Model, data, encoding and comparison."""

    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class (untrained)")
    data: str = option("docstrings", "docstrings, a table or JSON file or folder, paddlenlp:NAME, datasets:NAME")
    text_column: Optional[str] = option(None, "column of the text: name, or number from 0")
    text_pair_column: Optional[str] = option(None, "column of the second text of a pair: name, or number from 0")
    label_column: Optional[str] = option(None, "column of the label: name, or number from 0")
    has_header: Optional[bool] = option(None, "whether files begin with column names; detected by default")
    kind: str = option("auto", "classes, labels (several for a text) or scores; detected by default")
    label_separator: Optional[str] = option(None, "what stands between several labels of a text, such as |")
    max_length: Optional[int] = option(None, "maximum tokens per input; by default 99 % of the texts fit", least=4)
    examples_per_class: Optional[int] = option(None, "training rows per class; by default all, or 50 for docstrings")
    compare: bool = option(False, "train with uniform and with layer-wise rates; write a report, keep no model")
    compare_learning_rates: list[float] = option([1e-4, 3e-4, 1e-3], "learning rates of --compare")
    compare_seeds: int = option(3, "number of seeds of --compare; the first is --seed", least=1)


def build(args, options, splits):
    """Return a Trainer with a new model for `splits`, and the test rows as a data set."""
    set_seed(args.seed)
    tokenizer, model = load_encoder(options, classes=splits.labels)
    count = lambda row: len(tokens_of(row[0], tokenizer, 10**9)["input_ids"])  # noqa: E731
    set_length(options, splits.train, count, longest(model, tokenizer))
    by_length = {part: sorted(getattr(splits, part), key=lambda row: len(row[0])) for part in ("validation", "test")}
    rows = {"train": splits.train, **by_length}  # less padding
    data = {part: TextDataset(rows[part], tokenizer, options.max_length, splits) for part in rows}
    kind = classification.of_kind(splits)
    trainer = FineTuner(
        model=model,
        args=args,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        tokenizer=tokenizer,
        compute_metrics=lambda prediction: kind.scores(prediction.predictions, prediction.label_ids),
    )
    trainer.loss = kind.loss
    return trainer, data["test"]


def compare(argv, args, options):
    """Train with a uniform rate and with the decay, at several rates with the same seeds; write a report."""
    flags = ("compare_learning_rates", "compare_seeds", "learning_rate", "layerwise_lr_decay", "seed", "output_dir")
    given = [word for word in argv if word not in ("--compare", "--compare=True")]
    for name in flags:
        given = without(given, name)
    given += ["--evaluation_strategy=no", "--save_strategy=no", "--no_load_best_model_at_end"]
    seeds = list(range(args.seed, args.seed + options.compare_seeds))
    Study(
        "text_classification",
        given,
        options.compare_learning_rates,
        [1.0, args.layerwise_lr_decay],
        seeds,
        args.output_dir,
    ).run()


def choose_metric(args, kind, argv):
    """Have the first metric of the kind of labels choose the best model, unless the command line names another."""
    if "metric_for_best_model" not in " ".join(argv):
        args.metric_for_best_model = kind.names[0]
        args.greater_is_better = kind.names[0] not in LOWER_IS_BETTER
    elif args.metric_for_best_model not in (*kind.names, "loss"):
        valid = ", ".join((*kind.names, "loss"))
        raise error(f"These labels have the metrics {valid}.", metric_for_best_model=args.metric_for_best_model)


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    if options.compare:
        if args.layerwise_lr_decay == 1 or args.resume_from_checkpoint:
            problem = "`compare` needs a `layerwise_lr_decay` below 1; to go on, give its `output_dir` again."
            received = {name: getattr(args, name) for name in ("layerwise_lr_decay", "resume_from_checkpoint")}
            raise error(problem, **received)
        compare(argv, args, options)
        return
    if options.data == "docstrings":  # two cores learn them in minutes
        options.max_length = options.max_length or 64
        options.examples_per_class = 50 if options.examples_per_class is None else options.examples_per_class
    reading = {name: getattr(options, name) for name in READING}
    splits = load_splits(options.data, **reading, examples_per_class=options.examples_per_class, seed=args.seed)
    print(splits.description, flush=True)
    kind, pair = classification.of_kind(splits), "text_pair_column" in splits.notes.columns
    choose_metric(args, kind, argv)
    trainer, test = build(args, options, splits)
    if warning := warn_of_unknown(trainer.train_dataset, trainer.tokenizer):
        print(warning.strip(), flush=True)
    judge = classification.judge(splits.labels, [text for text, _ in test.rows], splits.kind)
    noted = {"pair": pair, "columns": splits.notes.columns, "kind": splits.kind}
    noted |= {"scale": splits.scale} if splits.kind == "scores" else {}
    fine_tune(trainer, test, kind.baseline(), options, argv, splits, judge, noted)
    if trainer.is_world_process_zero():
        print(f"label texts: {predict.command(args.output_dir, pair)}")


main = entry_point(run)

if __name__ == "__main__":
    main()
