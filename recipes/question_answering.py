"""Fine-tune a pretrained encoder to find the answer to a question in a text, each layer at its own learning rate.

    python recipes/question_answering.py
    python recipes/question_answering.py --data train-v1.1.json --model bert-base-uncased --max_length 384
    python recipes/question_answering.py --data datasets:squad --model bert-base-uncased --learning_rate 5e-5
    python recipes/question_answering.py --config recipes/configs/minilm/question_answering.yaml
    python recipes/question_answering.py --resume_from_checkpoint runs/question_answering-20261121-140000

By default, MiniLM (from a package that `make` installs) answers questions about signatures of functions of Python's
standard library. Files have the format of SQuAD 1.1, in which each answer is part of its context. Long contexts are
split into overlapping windows.
"""

import dataclasses
import json
import re
from collections import Counter

import common.fast_cpu  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common.arguments import RecipeArguments, check_least, option, parse
from common.errors import error
from common.fine_tuning import Score, entry_point, fine_tune
from common.library_data import signature_questions
from common.parts import load_parts, warn_of_unknown
from common.pretrained import load_encoder
from common.text_scores import answer_scores
from common.trainers import ScoringTuner
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.trainer import set_seed


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "question_answering"
    metrics = ("exact_match", "f1", "loss")

    learning_rate: float = 1e-3
    num_train_epochs: float = 2
    metric_for_best_model: str = "exact_match"


@dataclasses.dataclass
class Options:
    """Model, data and encoding."""

    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class (untrained)")
    data: str = option("signatures", "signatures, a SQuAD .json file or a folder, paddlenlp:NAME, datasets:NAME")
    max_length: int = option(64, "maximum tokens of a question with a window of its context")
    overlap: int = option(16, "tokens that neighbouring windows share")
    max_answer_length: int = option(30, "maximum tokens of an answer")

    def __post_init__(self):
        check_least(self, max_length=16, overlap=0, max_answer_length=1)


def read_squad(path):
    """Return [(question, context, answers, begin of the first answer), ...] of a SQuAD 1.1 file."""
    try:
        articles = json.loads(path.read_text(encoding="utf-8-sig"))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        asked = [(qa, paragraph["context"]) for paragraph in paragraphs for qa in paragraph["qas"]]
        return [_row(qa["question"], context, qa["answers"], path) for qa, context in asked]
    except (KeyError, TypeError, json.JSONDecodeError) as cause:
        raise error(f"The file is not SQuAD 1.1 ({type(cause).__name__}: {cause}).", source=path) from cause


def hub_rows(data, split):
    """Return the rows of a hub's data set, as `read_squad` does."""
    rows = []
    for row in data:  # Hugging Face's answers are a dict of two lists, PaddleNLP's the lists
        found = row["answers"] if isinstance(row["answers"], dict) else {"text": row["answers"], **row}
        begins = found.get("answer_start", found.get("answer_starts"))
        answers = [{"text": text, "answer_start": begin} for text, begin in zip(found["text"], begins)]
        rows.append(_row(row["question"], row["context"], answers, split))
    return rows


def _row(question, context, answers, source):
    if not answers:
        raise error("The question has no answer: remove the question.", source=source, question=question)
    text, begin = answers[0]["text"], answers[0]["answer_start"]
    if context[begin : begin + len(text)] != text:
        problem = "The context does not have the answer at `answer_start`."
        raise error(problem, source=source, answer=text, answer_start=begin)
    return question, context, tuple(answer["text"] for answer in answers), begin


class Windows(list):
    """Tokenized questions, each with one or several windows of its context, and their score."""

    def __init__(self, rows, tokenizer, options):
        super().__init__()
        self.rows, self.max_answer_length, self.places = rows, options.max_answer_length, []
        for index, (question, context, answers, begin) in enumerate(rows):
            asked, spans = tokenizer(question)["input_ids"], _spans(context, tokenizer)
            first = len(asked)  # [CLS] question [SEP], then the window
            room = options.max_length - first - 1
            if room <= options.overlap:
                raise error("The question leaves no room for the context: raise `max_length`.", question=question)
            inside = [i for i, (_, (a, b)) in enumerate(spans) if a < begin + len(answers[0]) and b > begin]
            for at in range(0, max(len(spans) - options.overlap, 1), room - options.overlap):
                window = spans[at : at + room]
                whole = bool(inside) and at <= inside[0] and inside[-1] < at + len(window)
                ends = (inside[0] - at + first, inside[-1] - at + first) if whole else (0, 0)  # else [CLS]
                row = {"input_ids": [*asked, *(token for token, _ in window), tokenizer.sep_token_id]}
                if "token_type_ids" in tokenizer.model_input_names:
                    row["token_type_ids"] = [0] * first + [1] * (len(window) + 1)
                row.update(start_positions=ends[0], end_positions=ends[1])
                self.append(row)
                self.places.append((index, first, [span for _, span in window]))

    def answers(self, logits):
        """Return the best (score, answer) of each question over its windows; scores are sums of both ends' logits."""
        best = dict.fromkeys(range(len(self.rows)), (-np.inf, ""))
        for begin, end, (index, first, spans) in zip(*logits, self.places):
            inside = slice(first, first + len(spans))
            sums = np.add.outer(begin[inside], end[inside])
            length = np.subtract.outer(np.arange(len(spans)), np.arange(len(spans))).T  # the length minus one
            sums[(length < 0) | (length >= self.max_answer_length)] = -np.inf
            a, b = np.unravel_index(np.argmax(sums), sums.shape)
            best[index] = max(best[index], (float(sums[a, b]), self.rows[index][1][spans[a][0] : spans[b][1]]))
        return list(best.values())

    def score(self, prediction):
        """Return SQuAD's exact match and F1 of the answers."""
        return answer_scores([text for _, text in self.answers(prediction.predictions)], [row[2] for row in self.rows])


def _spans(context, tokenizer):
    """Return (token id, (begin, end)) of each token of a context, found word by word."""
    out = []
    for word in re.finditer(r"\w+|[^\w\s]", context):
        tokens = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word.group()) or [tokenizer.unk_token])
        out += [(token, word.span()) for token in tokens]
    return out


class Answerer(ScoringTuner):
    """The Trainer for spans: the mean of two cross entropies, of the begin and the end of an answer."""

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the loss; with `return_outputs` also (loss, logits of begins, logits of ends)."""
        ends = [inputs.pop(name) for name in ("start_positions", "end_positions")]
        logits = model(**inputs)[:2]
        loss = sum(paddle.nn.functional.cross_entropy(one, end) for one, end in zip(logits, ends)) / 2
        return (loss, (loss, *logits)) if return_outputs else loss


def build(args, options, parts):
    """Return a Trainer with a new model for the rows, and the test rows as a data set."""
    set_seed(args.seed)
    tokenizer, model = load_encoder(options, "QuestionAnswering")
    data = parts.each(lambda rows: Windows(rows, tokenizer, options))
    sets = {"train_dataset": data["train"], "eval_dataset": data["validation"]}
    collator = DataCollatorWithPadding(tokenizer)
    trainer = Answerer(model=model, args=args, data_collator=collator, tokenizer=tokenizer, **sets)
    trainer.label_names = ["start_positions", "end_positions"]
    return trainer, data["test"]


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    reading = {"suffixes": (".json",), "read": read_squad, "rows_of": hub_rows, "key": lambda row: row[1]}
    parts = load_parts(options.data, own={"signatures": signature_questions}, **reading)
    usual = Counter(answers[0] for _, _, answers, _ in parts.train).most_common(1)[0][0]
    baseline = answer_scores([usual] * len(parts.test), [row[2] for row in parts.test])["exact_match"]
    trainer, test = build(args, options, parts)
    print(f"{parts.description}{warn_of_unknown(trainer.train_dataset, trainer.tokenizer)}", flush=True)
    score = Score("exact_match", "the most frequent answer", baseline)
    fine_tune(trainer, test, score, options, argv, parts)


main = entry_point(run)

if __name__ == "__main__":
    main()
