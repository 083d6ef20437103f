"""Fine-tune a pretrained encoder to tag words (named entities, parts of speech), each layer at its own learning rate.

    python recipes/token_classification.py
    python recipes/token_classification.py --data ner/ --model ernie-3.0-base-zh    # train.conll, dev.conll...
    python recipes/token_classification.py --data paddlenlp:msra_ner --model ernie-3.0-base-zh --learning_rate 5e-5

By default, MiniLM (from a package that `make` installs) learns which words of a docstring are arguments of its
function, exceptions or constants. Files have a word and its tag per line (BIO, BIOES, BMES or CoNLL-U), or JSON with
tokens and tags or with a text and spans. All words of long sentences are learnt and scored, in overlapping windows.
"""

import bisect
import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import numpy as np
from common import error, silent
from common.arguments import RecipeArguments, choose_metric, option, parse
from common.classification import shown, table_of_scores
from common.files import BETWEEN, CJK, TAG_FIELDS, TAGGED, placed, read_tagged, tagged_rows
from common.fine_tuning import FineTuner, Score, fine_tune
from common.library_data import tagged_docstrings
from common.pretrained import load_encoder
from common.rows import Encoded, load_parts, split_files
from common.start import entry_point
from paddlenlp.data import DataCollatorForTokenClassification
from seqeval.metrics import classification_report, f1_score
from seqeval.metrics.sequence_labeling import get_entities

IGNORED = -100  # the label of tokens that are not the first of a word, and of words that another window has


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """The recipe's own arguments and PaddleNLP's."""

    metrics = ("f1", "accuracy", "loss")
    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class (untrained)")
    data: str = option("docstrings", "docstrings, a CoNLL or JSON file or folder, paddlenlp:NAME, datasets:NAME")
    word_column: int = option(0, "number of the word's column, from 0; negative numbers count from the end")
    tag_column: int = option(-1, "number of the tag's column")
    max_length: Optional[int] = option(None, "maximum tokens per window; by default 99 % of the sentences fit", least=4)
    encoding: Optional[str] = option(None, "encoding of the files, such as cp1252 or big5; by default detected")
    num_train_epochs: float = 2
    metric_for_best_model: str = "f1"


class TaggedWords(Encoded):
    """Sentences in windows that overlap by a quarter; a word's tag is at its first token, in one window."""

    unit = "words"

    def __init__(self, rows, tokenizer, tags, max_length):
        super().__init__()
        self.rows, self.tags, self.places = rows, tags, []  # place: sentence, its words in a window
        number = {tag: i for i, tag in enumerate(tags)}
        room = max_length - tokenizer.num_special_tokens_to_add()
        before = tokenizer.build_inputs_with_special_tokens([-1]).index(-1)  # [CLS]
        for index, (words, word_tags) in enumerate(rows):
            pieces = pieces_of(words, tokenizer)
            self.count(len(words), 0)
            for first, last, own in windows([min(len(one), room) for one in pieces], room):
                ids, labels = [], []
                for i in range(first, last):
                    piece = pieces[i][:room]
                    ids += piece
                    labels += [number[word_tags[i]] if i in own else IGNORED] + [IGNORED] * (len(piece) - 1)
                row = tokenizer.prepare_for_model(ids, return_attention_mask=False, verbose=False)
                after = len(row["input_ids"]) - before - len(ids)
                self.append({**row, "labels": [IGNORED] * before + labels + [IGNORED] * after})
                self.places.append((index, own))

    def gathered(self, values, labels):
        """Return the values of each word of each sentence, from values [window, token]."""
        out = [[] for _ in self.rows]
        for (index, _), row, here in zip(self.places, values, labels):
            out[index] += list(row[here != IGNORED])
        return out

    def predicted(self, logits, labels):
        found = self.gathered(np.argmax(logits, axis=-1), labels)
        return [[self.tags[i] for i in row] for row in found], [tags for _, tags in self.rows]

    def score(self, prediction):
        return tag_scores(*self.predicted(prediction.predictions, prediction.label_ids))

    @silent()
    def judge(self, logits, labels):
        """Return the scores of each type of entity and sentences with mistakes, as results and as tables."""
        if not has_entities(self.tags):
            return {}, {}
        found, expected = map(bioes, self.predicted(logits, labels))
        report = classification_report(expected, found, output_dict=True, zero_division=0)
        types = {name: scores for name, scores in report.items() if not name.endswith(" avg")}
        types = {name: {key: float(value) for key, value in scores.items()} for name, scores in types.items()}
        tables = {"Entities by type": table_of_scores("type", types, ("precision", "recall", "f1-score", "support"))}
        mistakes = []
        for (words, _), tags, other in zip(self.rows, expected, found):
            right, got = entities_of(words, tags), entities_of(words, other)
            if right != got:
                missed, wrong = ([e for e in one if e not in two] for one, two in ((right, got), (got, right)))
                mistakes.append(tuple(map(shown, (joined(words), named(missed), named(wrong)))))
        if mistakes:
            tables["Sentences with mistakes"] = (("sentence", "missed", "wrongly found"), mistakes[:10])
        return {"entities": types}, tables

    def account(self, split):
        long = sum(count > 1 for count in Counter(index for index, _ in self.places).values())
        whole = "0 words lost" if split == "train" else f"scores cover {self.units} of {self.units} words"
        return f"{whole}, {long} of {len(self.rows)} sentences in several windows"


def joined(words):
    """Return words as a text; without spaces between characters of Chinese, or if all words are single characters."""
    return "".join(words) if all(len(word) == 1 for word in words) else BETWEEN.sub("", " ".join(words))


def pieces_of(words, tokenizer):
    return [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word) or [tokenizer.unk_token]) for word in words]


def windows(sizes, room):
    """Yield (first, end, own) of windows over words with these numbers of tokens; each word is one window's own."""
    before = list(itertools.accumulate(sizes, initial=0))  # tokens before a word
    first = begin = 0
    while begin < len(sizes):
        end = bisect.bisect_right(before, before[first] + room) - 1
        if end == len(sizes):
            yield first, end, range(begin, end)
            return
        if end <= begin:  # a long word left no room for its neighbours
            first = begin
            continue
        shared = max(bisect.bisect_left(before, before[end] - room // 4), first + 1)  # with the next window
        middle = max((shared + end) // 2, begin + 1)
        yield first, end, range(begin, middle)
        first, begin = min(shared, middle), middle


def bioes(rows):
    """Return lists of tags as seqeval reads them: M- of BMES is I-."""
    return [[re.sub("^[Mm]-", "I-", tag) for tag in tags] for tags in rows]


def has_entities(tags):
    return all(re.fullmatch("O|[BIMESLU]-.+", tag) for tag in tags)


def tag_scores(predicted, expected):
    """Return the accuracy of lists of tags, and for tags of entities also their F1."""
    flat = [(a, b) for one, other in zip(predicted, expected) for a, b in zip(one, other)]
    scores = {"accuracy": sum(a == b for a, b in flat) / max(len(flat), 1)}
    if has_entities({b for _, b in flat}):
        scores["f1"] = float(f1_score(bioes(expected), bioes(predicted), zero_division=0))
    return scores


def named(entities):
    return ", ".join(f"{entity['text']} ({entity['type']})" for entity in entities)


def entities_of(words, tags):
    """Return the entities of a tagged sentence: text, type, first word and the word after the last."""
    found = get_entities(*bioes([tags])) if has_entities(tags) else []
    return [{"text": joined(words[a : b + 1]), "type": t, "begin": a, "end": b + 1} for t, a, b in found]


def most_frequent_tags(train, test):
    tags_of = defaultdict(Counter)
    for words, tags in train:
        for word, tag in zip(words, tags):
            tags_of[word][tag] += 1
    usual = {word: counts.most_common(1)[0][0] for word, counts in tags_of.items()}
    majority = sum(tags_of.values(), Counter()).most_common(1)[0][0]
    return [[usual.get(word, majority) for word in words] for words, _ in test]


def build(args, parts):
    counts = Counter(tag for rows in parts.each(list).values() for _, row in rows for tag in row)
    tags, odd = sorted(counts), [tag for tag in counts if not has_entities([tag])]
    if len(tags) < 2:
        raise error(f"A tagger needs at least two tags; the rows have {tags}.", data=args.data)
    if odd and {*tags} - {"O", *odd} and sum(map(counts.get, odd)) < 0.1 * sum(counts.values()):
        problem = f"Most tags are O or of entities, such as B-PER, but {len(odd)} are not: {odd[:10]}."
        raise error(f"{problem} Correct them, or choose another `--tag_column`.", data=args.data)

    def count(row, tokenizer):
        return tokenizer.num_special_tokens_to_add() + sum(map(len, pieces_of(row[0], tokenizer)))

    tokenizer, model = load_encoder(args, parts.train, count, "TokenClassification", tags)
    data = parts.each(lambda rows: TaggedWords(rows, tokenizer, tags, args.max_length))
    return FineTuner(model, args, data, DataCollatorForTokenClassification(tokenizer), tokenizer)


def run(argv):
    args = parse(argv, Arguments)
    parts = load_parts(
        args.data,
        own={"docstrings": tagged_docstrings},
        find=lambda path: split_files(path, TAGGED),
        read=lambda path, notes: read_tagged(path, args.word_column, args.tag_column, args.encoding, notes),
        rows_of=lambda records, split, notes: tagged_rows(placed(records), split, notes),
        key=lambda row: " ".join(row[0]),
        labels=TAG_FIELDS,
    )
    baseline = tag_scores(most_frequent_tags(parts.train, parts.test), [tags for _, tags in parts.test])
    choose_metric(args, list(baseline)[::-1])  # F1, if the tags are those of entities
    score = Score(list(baseline)[-1], "each word's usual tag", list(baseline.values())[-1])
    words = [word for words, _ in parts.train for word in words]
    characters = all(len(word) == 1 for word in words)
    chinese = [len(word) == 1 for word in words if re.match(f"[{CJK}]", word)]
    single = sum(chinese) > 0.9 * len(chinese) and not characters  # beside words such as 2010
    tags = sorted({tag for _, row in parts.train for tag in row}) if parts.notes.columns else []  # of a tag per line
    noted = {"characters": characters, "texts": parts.notes.texts or single, "tags": tags}
    fine_tune(build(args, parts), score, parts, noted)


main = entry_point(run)

if __name__ == "__main__":
    main()
