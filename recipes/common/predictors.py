"""The model of a run, applied to new input: one class for each kind of output.

predictor = Predictor("runs/sequence_classification-20261121-140000")
predictor([("a text",), ("another text",)])   # [{"text": ..., "label": ..., "probability": ..., "probabilities": {}}]
"""

import functools
import importlib
import json
import os
import types
from pathlib import Path

import numpy as np
import paddle
from paddlenlp import transformers
from paddlenlp.data import DataCollatorForTokenClassification, DataCollatorWithPadding
from scipy.special import log_softmax, softmax

from .errors import error
from .language_data import VOCABULARY, by_bytes, by_tokenizer
from .pretrained import check_length, load_tokenizer
from .run_folder import PREDICTION
from .trainers import logits_of


class Predictor:
    """A function from a list of tuples, one for each input, to a list of dicts with outputs and probabilities.

    `folder` is a run or a checkpoint in it. Texts are cut to `max_length` tokens, by default as in the training.
    """

    def __init__(self, folder, max_length=None):
        paths = [path for path in (Path(folder, PREDICTION), Path(folder).parent / PREDICTION) if path.is_file()]
        if not paths:
            raise error("This folder has no model of a finished run.", folder=str(folder))
        self.noted = json.loads(paths[0].read_text(encoding="utf-8"))
        if self.noted["recipe"] not in KINDS:
            problem = f"Predictions need a run of {', '.join(KINDS)}: train one of these with this folder as `--model`."
            raise error(problem, folder=str(folder), recipe=self.noted["recipe"])
        if max_length is not None:
            self.noted["max_length"] = max_length
        self.kind = KINDS[self.noted["recipe"]](str(folder), types.SimpleNamespace(**self.noted))

    def check(self, pair):
        """Raise ValueError if single texts are given to a model of pairs, or pairs to a model of single texts."""
        expected = self.noted.get("pair", self.noted["recipe"] == "question_answering")
        if expected != pair:
            trained_on = "pairs of texts: pass `--pair`" if expected else "single inputs: leave `--pair` out"
            raise error(f"The model was trained on {trained_on}.", pair=pair)

    def __call__(self, inputs):
        """Return a dict for each input."""
        with paddle.no_grad():
            return self.kind._apply(inputs)


def _logits(outputs):
    return logits_of(outputs).astype("float32").numpy()


class _Model:
    """A saved model with its tokenizer; `_apply` returns a dict for each input."""

    recipe, task, collator = "", "", DataCollatorWithPadding

    def __init__(self, folder, options):
        self.options, self.tokenizer = options, load_tokenizer(folder)
        self.model = getattr(transformers, f"AutoModelFor{self.task}").from_pretrained(folder)
        check_length(self.model, options.max_length)
        self.model.eval()
        self.collate = self.collator(self.tokenizer)
        self.module = importlib.import_module(self.recipe) if self.recipe else None


class Labels(_Model):
    """The class of each text or pair."""

    task = "SequenceClassification"

    def _apply(self, inputs):
        rows = [dict(self.tokenizer(*texts, max_length=self.options.max_length, truncation=True)) for texts in inputs]
        names = dict(zip(("text", "text_pair"), zip(*inputs)))
        return _labelled(names, _logits(self.model(**self.collate(rows))), self.model.config.id2label)


def _labelled(inputs, logits, names):
    """Return a dict for each input: its columns in `inputs`, its label and the probabilities of all classes."""
    out, probabilities = [], softmax(logits.astype("float64"), axis=-1)
    for i, row in enumerate(probabilities):
        label, best = names[int(row.argmax())], float(row.max())
        each = {names[k]: float(value) for k, value in enumerate(row)}
        given = {name: values[i] for name, values in inputs.items()}
        out.append({**given, "label": label, "probability": best, "probabilities": each})
    return out


class Images:
    """The class of each image."""

    def __init__(self, folder, options):
        self.recipe = importlib.import_module("image_classification")
        self.model = self.recipe.VisionClassifier.from_pretrained(folder)
        self.model.eval()

    def _apply(self, inputs):
        paths = [path for (path,) in inputs]
        missing = [path for path in paths if not os.path.isfile(path)]
        if missing:
            raise error("The image does not exist.", image=missing[0])
        names = list(self.model.config.id2label.values())
        rows = self.recipe.encode([(Path(p), names[0]) for p in paths], names, self.model.config.image_size)
        batch = self.recipe.collate(rows)
        batch.pop("labels")
        return _labelled({"image": paths}, _logits(self.model(**batch)), self.model.config.id2label)


class Tags(_Model):
    """A tag for each word of a text, or each character if it was trained on these; words that are cut off have none."""

    recipe, task, collator = "token_classification", "TokenClassification", DataCollatorForTokenClassification

    def _apply(self, inputs):
        names, sentences = self.model.config.id2label, [text.split() for (text,) in inputs]
        if getattr(self.options, "characters", False):
            sentences = [list("".join(words)) for words in sentences]
        rows = [(words, [names[0]] * len(words)) for words in sentences]
        batch = self.collate(
            self.module.TaggedWords(rows, self.tokenizer, list(names.values()), self.options.max_length)
        )
        first = batch.pop("labels").numpy() != self.module.IGNORED
        probabilities = softmax(_logits(self.model(**batch)).astype("float64"), axis=-1)
        out = []
        for words, row, kept in zip(sentences, probabilities, first):
            row = row[kept]
            tags = [names[int(i)] for i in row.argmax(-1)]
            out.append({"words": words[: len(tags)], "tags": tags, "probabilities": row.max(-1).tolist()})
        return out


class Answers(_Model):
    """The answer to each question in its text, with the probability of its beginning times that of its end."""

    recipe, task = "question_answering", "QuestionAnswering"

    def _apply(self, inputs):
        rows = [(question, context, ("",), 0) for question, context in inputs]
        data = self.module.Windows(rows, self.tokenizer, self.options)
        batch = self.collate(data)
        for name in ("start_positions", "end_positions"):
            batch.pop(name)
        logits = [part.astype("float32").numpy() for part in self.model(**batch)[:2]]
        shares = [np.log(softmax(part.astype("float64"), axis=-1)) for part in logits]
        return [
            {"question": question, "context": context, "answer": answer, "probability": float(np.exp(score))}
            for (question, context), (score, answer) in zip(inputs, data.answers(shares))
        ]


class Outputs(_Model):
    """A written text for each source, with the geometric mean of its tokens' probabilities."""

    task = "ConditionalGeneration"
    collator = functools.partial(DataCollatorWithPadding, return_attention_mask=True)

    def _apply(self, inputs):
        texts = [text for (text,) in inputs]
        ids = [self.tokenizer(t, max_length=self.options.max_length, truncation=True)["input_ids"] for t in texts]
        batch = self.collate([{"input_ids": one, "attention_mask": [1] * len(one)} for one in ids])
        length = self.options.max_target_length
        written = self.model.generate(**batch, max_new_tokens=length, decode_strategy="greedy_search")[0]
        logits = self.model(**batch, labels=written)[1].astype("float32").numpy()
        out = []
        for text, tokens, row in zip(texts, written.tolist(), logits):
            found = _until(tokens, self.model.config.eos_token_id)
            decoded = self.tokenizer.decode(found, skip_special_tokens=True)
            out.append({"source": text, "output": decoded, "probability": _mean_probability(row, found)})
        return out


def _until(tokens, end):
    """Return the tokens up to and including the end of the text."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def _mean_probability(logits, tokens):
    """Return the geometric mean of the tokens' probabilities; 1 without tokens."""
    if not tokens:
        return 1.0
    logs = log_softmax(logits[: len(tokens)].astype("float64"), axis=-1)
    return float(np.exp(logs[np.arange(len(tokens)), tokens].mean()))


class Continuations:
    """A language model's answer to each prompt, in bytes or tokens; adapters are added to their base model."""

    def __init__(self, folder, options):
        self.length = options.max_length
        base = options.model if options.lora_rank else folder
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        self.bytes = model.config.vocab_size == VOCABULARY
        self.tokenizer = None if self.bytes else load_tokenizer(base)
        if options.lora_rank:
            from paddlenlp.peft import LoRAModel

            model = LoRAModel.from_pretrained(model, folder)
        self.model = model
        self.model.eval()

    def _apply(self, inputs):
        return [self._one(prompt) for (prompt,) in inputs]

    def _one(self, prompt):
        tokens = by_bytes if self.bytes else by_tokenizer(self.tokenizer)
        ids, _ = tokens(prompt, "")
        room = self.length + 1 - len(ids)
        if room < 1:
            raise error("The prompt leaves no room for an answer: raise `--max_length`.", max_length=self.length)
        end = 10 if self.bytes else self.tokenizer.eos_token_id
        prompted = paddle.to_tensor([ids])
        options = {"max_new_tokens": room, "decode_strategy": "greedy_search", "eos_token_id": end}
        written = self.model.generate(prompted, attention_mask=paddle.ones_like(prompted), **options)[0]
        found = _until(written[0].tolist(), end)
        logits = _logits(self.model(paddle.to_tensor([[*ids, *found]])))[0]
        shown = found[:-1] if found[-1:] == [end] else found
        text = bytes(shown).decode(errors="replace") if self.bytes else self.tokenizer.decode(shown)
        return {"source": prompt, "output": text, "probability": _mean_probability(logits[len(ids) - 1 :], found)}


KINDS = {
    "sequence_classification": Labels,
    "matching": Labels,
    "token_classification": Tags,
    "question_answering": Answers,
    "seq2seq": Outputs,
    "language_model_sft": Continuations,
    "image_classification": Images,
}
