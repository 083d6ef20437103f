"""Fine-tune a pretrained encoder to classify texts or pairs of texts, each layer at its own learning rate.

    make finetune                                                          # needs neither data nor a hub
    . .venv/bin/activate                                                   # for the commands below
    python recipes/text_classification.py --data reviews.csv --text_column review --label_column stars
    python recipes/text_classification.py --model ernie-3.0-base-zh --data paddlenlp:clue:tnews --learning_rate 5e-5
    python recipes/text_classification.py --compare                        # uniform against layer-wise rates

By default, MiniLM (from a package that `make` installs) learns whether a docstring of Python's standard library
describes a function, a class or a module. Labels are classes, sets of labels (lists in JSON, or `--label_separator`) or
scores (decimals).
"""

import dataclasses
from typing import Optional

import common.start  # noqa: F401 - before Paddle
from common import classification
from common.arguments import RecipeArguments, choose_metric, option, parse
from common.comparison import Study
from common.fine_tuning import FineTuner, fine_tune
from common.pretrained import load_encoder
from common.rows import Encoded
from common.start import entry_point
from common.text_data import READING, load_splits, sample, tokens_of
from paddlenlp.data import DataCollatorWithPadding


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """The recipe's own arguments and PaddleNLP's."""

    metrics = ("accuracy", "macro_f1", "matthews", "micro_f1", "exact", "rmse", "pearson", "loss")
    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class (untrained)")
    data: str = option("docstrings", "docstrings, a table or JSON file or folder, paddlenlp:NAME, datasets:NAME")
    text_column: Optional[str] = option(None, "column of the text: name, or number from 0")
    text_pair_column: Optional[str] = option(None, "column of the second text of a pair: name, or number from 0")
    label_column: Optional[str] = option(None, "column of the label: name, or number from 0")
    has_header: Optional[bool] = option(None, "whether files begin with column names; detected by default")
    kind: str = option("auto", "classes, labels (several for a text) or scores; detected by default")
    label_separator: Optional[str] = option(None, "what stands between several labels of a text, such as |")
    max_length: Optional[int] = option(None, "maximum tokens per input; by default 99 % of the texts fit", least=4)
    compare: bool = option(False, "train with uniform and with layer-wise rates; write a report, keep no model")
    compare_learning_rates: list[float] = option([1e-4, 3e-4, 1e-3], "learning rates of --compare")
    compare_seeds: int = option(3, "number of seeds of --compare; the first is --seed", least=1)
    encoding: Optional[str] = option(None, "encoding of the files, such as cp1252 or big5; by default detected")


class Texts(Encoded):
    """Tokenized rows of `Splits`, with the scores of a model's logits; what `max_length` cuts is counted."""

    def __init__(self, rows, tokenizer, max_length, splits):
        super().__init__()
        self.rows, self.splits = rows, splits
        for text, label in rows:
            self.append({**tokens_of(text, tokenizer, max_length, self), "labels": splits.target(label)})

    def score(self, prediction):
        return classification.scores(self.splits, prediction.predictions, prediction.label_ids)

    def judge(self, logits, labels):
        return classification.judge(logits, labels, self.splits.labels, self.rows, self.splits.kind)


def build(args, splits):
    count = lambda row, tokenizer: len(tokens_of(row[0], tokenizer)["input_ids"])  # noqa: E731
    tokenizer, model = load_encoder(args, splits.train, count, classes=splits.labels)
    rows = splits.each(lambda rows: sorted(rows, key=lambda row: len(str(row[0]))))  # less padding
    rows["train"] = splits.train
    data = {part: Texts(rows[part], tokenizer, args.max_length, splits) for part in rows}
    trainer = FineTuner(model, args, data, DataCollatorWithPadding(tokenizer), tokenizer)
    trainer.loss, _ = classification.KINDS[splits.kind]
    return trainer


def run(argv):
    args = parse(argv, Arguments)
    if args.compare:
        unsaved = ["--evaluation_strategy=no", "--save_strategy=no", "--no_load_best_model_at_end"]
        decays, seeds = [1.0, args.layerwise_lr_decay], range(args.seed, args.seed + args.compare_seeds)
        given = [*args.argv, "--compare=False", *unsaved]  # each run adds its own rate, decay, seed and folder
        Study(args.recipe, given, args.compare_learning_rates, decays, seeds, args.output_dir).run()
        return
    splits = load_splits(args.data, **{name: getattr(args, name) for name in READING})
    if args.data == "docstrings":  # two cores learn them in minutes; 99 % of the rows would be twice the tokens
        args.max_length = args.max_length or 64
        splits = dataclasses.replace(splits, train=sample(splits.train, 50, args.seed))
    choose_metric(args, classification.KINDS[splits.kind][1])
    trainer = build(args, splits)
    noted = {"pair": "text_pair_column" in splits.notes.columns, "kind": splits.kind}
    noted |= {"scale": splits.scale} if splits.kind == "scores" else {}
    fine_tune(trainer, classification.baseline(splits), splits, noted)


main = entry_point(run)

if __name__ == "__main__":
    main()
