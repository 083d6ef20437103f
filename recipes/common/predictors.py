"""The model of a run, applied to new input: one class for each kind of output."""

import functools
import importlib
import types
from pathlib import Path

import numpy as np
import paddle
from paddlenlp import transformers
from paddlenlp.data import DataCollatorForTokenClassification, DataCollatorWithPadding
from paddlenlp.peft import LoRAModel
from scipy.special import expit, log_softmax, softmax

from .files import BETWEEN, PREDICTED, WORD, noted
from .fine_tuning import logits_of
from .language_data import VOCABULARY, by_bytes, by_tokenizer
from .pretrained import load_tokenizer, longest
from .rows import Encoded
from .text_data import tokens_of


class Predictor:
    """A function from a list of tuples, one for each input, to a list of dicts with outputs and probabilities."""

    def __init__(self, folder):
        options = noted(folder)
        self.kind = KINDS[options["recipe"]](str(folder), types.SimpleNamespace(**options))

    def __call__(self, inputs):
        with paddle.no_grad():
            return self.kind._apply(inputs)


def _logits(outputs):
    return logits_of(outputs).astype("float32").numpy()


class _Model:
    """A saved model with its tokenizer; `_apply` returns a dict for each input."""

    task, collator = "", DataCollatorWithPadding

    def __init__(self, folder, options):
        self.options, self.tokenizer = options, load_tokenizer(folder)
        self.model = getattr(transformers, f"AutoModelFor{self.task}").from_pretrained(folder)
        self.model.eval()
        self.collate = self.collator(self.tokenizer)

    def tokens(self, texts):
        """Return the tokens of an input, and {"tokens left out": their number} if it is cut."""
        counted = Encoded()
        ids = tokens_of(texts if len(texts) > 1 else texts[0], self.tokenizer, self.options.max_length, counted)
        return ids, {"tokens left out": counted.lost} if counted.lost else {}


class Labels(_Model):
    """The class, the set of labels or the score of each text or pair."""

    task = "SequenceClassification"

    def _apply(self, inputs):
        rows, left_out = zip(*map(self.tokens, inputs))
        names, kind = self.model.config.id2label, getattr(self.options, "kind", "classes")
        given = [{**dict(zip(("text", "text_pair"), texts)), **left} for texts, left in zip(inputs, left_out)]
        logits = _logits(self.model(**self.collate(list(rows)))).astype("float64")
        if kind == "scores":
            mean, deviation = self.options.scale
            return [{**row, "score": float(value[0] * deviation + mean)} for row, value in zip(given, logits)]
        if kind == "labels":
            each = [{names[k]: float(value) for k, value in enumerate(row)} for row in expit(logits)]
            found = [[name for name, value in shares.items() if value > 0.5] for shares in each]
            return [{**row, "labels": labels, "probabilities": p} for row, labels, p in zip(given, found, each)]
        return _labelled(given, logits, names)


def _labelled(given, logits, names):
    each = [{names[k]: float(p) for k, p in enumerate(row)} for row in softmax(logits.astype("float64"), axis=-1)]
    best = [max(shares, key=shares.get) for shares in each]
    return [{**row, "label": b, "probability": p[b], "probabilities": p} for row, b, p in zip(given, best, each)]


class Images:
    """The class of each image."""

    def __init__(self, folder, options):
        self.options = options
        recipe = self.recipe = importlib.import_module("image_classification")
        if options.model in vars(paddle.vision.models):
            self.model, self.norm = recipe.VisionModel(options.model, len(options.classes), "none"), recipe.IMAGENET
            self.model.set_state_dict(paddle.load(f"{folder}/model_state.pdparams"))
        else:
            self.model, self.norm = recipe.VisionClassifier.from_pretrained(folder), recipe.CLIP
        self.model.eval()

    def _apply(self, inputs):
        names, unreadable, read, pixels = self.options.classes, [], [], []
        for (path,) in inputs:
            try:
                data = self.recipe.Images([(Path(path), names[0])], names, self.options.size, self.norm)
                pixels.append(data[0]["pixel_values"])
                read.append({"image": path})
            except ValueError as cause:
                unreadable.append({"image": path, "unreadable": str(cause)})
        if not read:
            return unreadable
        return unreadable + _labelled(read, _logits(self.model(paddle.to_tensor(np.stack(pixels)))), names)


class Tags(_Model):
    """A tag for each word of a text, split as in the training, and the entities."""

    task, collator = "TokenClassification", DataCollatorForTokenClassification

    def _apply(self, inputs):
        recipe = importlib.import_module("token_classification")
        names, sentences = self.model.config.id2label, [self._words(text) for (text,) in inputs]
        rows = [(words, [names[0]] * len(words)) for words in sentences]
        data = recipe.TaggedWords(rows, self.tokenizer, list(names.values()), self.options.max_length)
        values, labels = [], []
        for first in range(0, len(data), 32):
            batch = self.collate(data[first : first + 32])
            labels += list(batch.pop("labels").numpy())
            values += list(softmax(_logits(self.model(**batch)).astype("float64"), axis=-1))
        out = []
        for words, row in zip(sentences, data.gathered(values, labels)):
            tags = [names[int(shares.argmax())] for shares in row]
            found = {"words": words, "tags": tags, "entities": recipe.entities_of(words, tags)}
            out.append({**found, "probabilities": [float(shares.max()) for shares in row]})
        return out

    def _words(self, text):
        if isinstance(text, list):  # the words of a tagged file
            return text
        if getattr(self.options, "texts", False):
            return WORD.findall(text)
        return list("".join(text.split())) if getattr(self.options, "characters", False) else text.split()


class Outputs(_Model):
    """A written text for each source, with the geometric mean of its tokens' probabilities."""

    task = "ConditionalGeneration"
    collator = functools.partial(DataCollatorWithPadding, return_attention_mask=True)

    def _apply(self, inputs):
        rows, left_out = zip(*map(self.tokens, inputs))
        batch = self.collate([{"input_ids": row["input_ids"]} for row in rows])
        length = self.options.max_target_length
        written = self.model.generate(**batch, max_new_tokens=length, decode_strategy="greedy_search")[0]
        logits = self.model(**batch, labels=written)[1].astype("float32").numpy()
        out = []
        for (text,), left, tokens, row in zip(inputs, left_out, written.tolist(), logits):
            found = _until(tokens, self.model.config.eos_token_id)
            decoded = BETWEEN.sub("", self.tokenizer.decode(found, skip_special_tokens=True))
            out.append({"source": text, **left, "output": decoded, "probability": _mean_probability(row, found)})
        return out


def _until(tokens, end):
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def _mean_probability(logits, tokens):
    if not tokens:
        return 1.0
    logs = log_softmax(logits[: len(tokens)].astype("float64"), axis=-1)
    return float(np.exp(logs[np.arange(len(tokens)), tokens].mean()))


class Continuations:
    """A language model's answer to each prompt, in bytes or tokens; adapters are added to their base model."""

    def __init__(self, folder, options):
        base = options.model if options.lora_rank else folder
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        self.bytes = model.config.vocab_size == VOCABULARY
        self.tokenizer = None if self.bytes else load_tokenizer(base)
        if options.lora_rank:
            model = LoRAModel.from_pretrained(model, folder)
        self.model, self.length, self.most = model, options.max_length, longest(model, self.tokenizer)
        self.tokens = by_bytes if self.bytes else by_tokenizer(self.tokenizer)
        self.model.eval()

    def _apply(self, inputs):
        return [self._one(prompt) for (prompt,) in inputs]

    def _one(self, prompt):
        turns = (("user", prompt),) if isinstance(prompt, str) else prompt
        ids = [token for part, _ in self.tokens(turns) for token in part]
        room = max(self.length + 1 - len(ids), self.length // 2)
        most = len(ids) if self.most is None else self.most - room
        left = {"tokens left out": len(ids) - most} if len(ids) > most else {}
        ids = ids[-most:]
        end = 10 if self.bytes else self.tokenizer.eos_token_id
        prompted = paddle.to_tensor([ids])
        options = {"max_new_tokens": room, "decode_strategy": "greedy_search", "eos_token_id": end}
        written = self.model.generate(prompted, attention_mask=paddle.ones_like(prompted), **options)[0]
        found = _until(written[0].tolist(), end)
        logits = _logits(self.model(paddle.to_tensor([[*ids, *found]])))[0]
        shown = found[:-1] if found[-1:] == [end] else found
        text = bytes(shown).decode(errors="replace") if self.bytes else self.tokenizer.decode(shown)
        probability = _mean_probability(logits[len(ids) - 1 :], found)
        return {"source": "\n".join(said for _, said in turns), **left, "output": text, "probability": probability}


KINDS = dict(zip(PREDICTED, (Labels, Tags, Outputs, Continuations, Images)))
