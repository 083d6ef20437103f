"""Train or fine-tune T5 or BART to write short texts, such as summaries, with Adafactor.

    python recipes/seq2seq.py
    python recipes/seq2seq.py --data news.jsonl --source_field article --target_field summary --model t5-small
    python recipes/seq2seq.py --resume_from_checkpoint runs/seq2seq-20261121-140000

By default, a small untrained T5 learns to convert dates in words to digits. A file has columns or JSON objects with a
source and a target, such as `article` and `summary`, or `instruction`, `input` and `output`.
"""

import dataclasses
import re
from collections import Counter
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import paddle
from common.arguments import RecipeArguments, option, parse
from common.files import CJK
from common.fine_tuning import FineTuner, Score, fine_tune
from common.language_data import IGNORED, load_pairs
from common.library_data import written_dates
from common.pretrained import load_model, load_tokenizer, longest
from common.rows import Encoded, set_length
from common.start import entry_point
from paddlenlp.data import DataCollatorForSeq2Seq
from paddlenlp.trainer import set_seed


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """The recipe's own arguments and PaddleNLP's."""

    metrics = ("rouge_1", "rouge_l", "loss")
    model: str = option("T5ForConditionalGeneration", "a PaddleNLP class (untrained), a folder or a hub name")
    data: str = option("dates", "dates, a .csv, .tsv, .json or .jsonl file or folder, paddlenlp:NAME, datasets:NAME")
    source_field: Optional[str] = option(None, "column of the source text")
    target_field: Optional[str] = option(None, "column of the target text")
    max_length: Optional[int] = option(None, "maximum tokens of a source; by default 99 % of them fit", least=4)
    max_target_length: Optional[int] = option(None, "maximum tokens of a target; by default 99 % fit", least=3)
    encoding: Optional[str] = option(None, "encoding of the files, such as cp1252 or big5; by default detected")
    optim: str = "adafactor"
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    num_train_epochs: float = 6
    per_device_train_batch_size: int = 32
    metric_for_best_model: str = "rouge_1"


class Pairs(Encoded):
    """Tokenized sources and targets, with the score of a model's outputs."""

    unit = "target tokens"

    def __init__(self, rows, tokenizer, args):
        super().__init__()
        self.tokenizer, self.targets = tokenizer, [target for _, target in rows]
        for row in rows:
            source, target = (tokenizer(text, verbose=False)["input_ids"] for text in row)
            self.also["sources cut"] += len(source) > args.max_length
            self.count(len(target), max(len(target) - args.max_target_length, 0))
            source, target = _cut(source, args.max_length), _cut(target, args.max_target_length)
            self.append({"input_ids": source, "attention_mask": [1] * len(source), "labels": target})

    def score(self, prediction):
        """Return ROUGE of the outputs against the whole targets, also those that training cuts."""
        written = prediction.predictions
        written[written == IGNORED] = self.tokenizer.pad_token_id
        return rouge(self.tokenizer.batch_decode(written.tolist(), skip_special_tokens=True), self.targets)


def _cut(ids, length):
    """Return the first tokens, with the token that ends a text."""
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


class Writer(FineTuner):
    """The Trainer; it evaluates texts that the model writes by greedy search."""

    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        return (outputs[0], outputs) if return_outputs else outputs[0]

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        with paddle.no_grad():
            loss = self.compute_loss(model, inputs)
            read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            greedily = {"max_new_tokens": self.args.max_target_length, "decode_strategy": "greedy_search"}
            written = self.model.generate(**read, **greedily)[0]
        return loss, written, inputs["labels"]


def words(text):
    """Return the words that ROUGE compares, without punctuation, around which some tokenizers put spaces."""
    return re.findall(rf"[{CJK}]|[^\W{CJK}]+", text.casefold())


def rouge(texts, references):
    """Return the mean F1 of common words, ROUGE-1, and of the longest common subsequence, ROUGE-L; 1 is best."""
    both = [(words(a), words(b)) for a, b in zip(texts, references)]
    counts = {"rouge_1": _in_common, "rouge_l": _longest_common}
    return {name: sum(_f1(count, a, b) for a, b in both) / len(both) for name, count in counts.items()}


def best_lead(rows):
    """Return the number of first words of a source that have the highest ROUGE-1 with its target."""
    split = [(words(source), words(target)) for source, target in rows[:300]]
    most = 4 * max(len(target) for _, target in split) + 2
    return max(range(1, most), key=lambda n: sum(_f1(_in_common, source[:n], target) for source, target in split))


def _in_common(a, b):
    return sum((Counter(a) & Counter(b)).values())


def _f1(count, a, b):
    """Return the F1 of two texts whose common words are counted by `count`; 1 if both are empty."""
    return 2 * count(a, b) / (len(a) + len(b)) if a or b else 1.0


def _longest_common(a, b):
    best = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for j, other in enumerate(b, 1):
            before, best[j] = best[j], before + 1 if word == other else max(best[j], best[j - 1])
    return best[-1]


def build(args, parts):
    set_seed(args.seed)
    tokenizer = load_tokenizer(args.model)
    small = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_decoder_layers": 2, "bos_token_id": 0}
    model = load_model(args.model, task="ConditionalGeneration", config=small if args.model == Arguments.model else {})
    for column, name in enumerate(("max_length", "max_target_length")):
        count = lambda row: len(tokenizer(row[column], verbose=False)["input_ids"])  # noqa: B023, E731
        set_length(args, parts.train, count, longest(model, tokenizer), name)
    data = parts.each(lambda rows: Pairs(rows, tokenizer, args))
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=IGNORED)
    return Writer(model, args, data, collator, tokenizer)


def run(argv):
    args = parse(argv, Arguments)
    parts = load_pairs(args, own={"dates": written_dates})
    first = best_lead(parts.train)
    leads = [" ".join(words(source)[:first]) for source, _ in parts.test]
    baseline = rouge(leads, [target for _, target in parts.test])["rouge_1"]
    fine_tune(build(args, parts), Score("rouge_1", f"the first {first} words", baseline), parts)


main = entry_point(run)

if __name__ == "__main__":
    main()
