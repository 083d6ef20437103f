"""Pretrain an encoder on your own texts as a masked language model, in large batches with Lamb.

    python recipes/masked_lm_pretraining.py
    python recipes/masked_lm_pretraining.py --data texts.txt --model ernie-3.0-base-zh      # one text per line
    python recipes/masked_lm_pretraining.py --data datasets:imdb --text_column text --max_length 128

By default, MiniLM (from a package that `make` installs) trains on sentences from the docstrings of Python's library.
`--model BertForMaskedLM` trains a small new model. Other recipes accept the folder of the run as `--model`.
"""

import dataclasses
import inspect
import zlib
from collections import Counter
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common.arguments import RecipeArguments, option, parse
from common.fine_tuning import Score, TokenTrainer, fine_tune, logits_of, token_scores
from common.library_data import docstring_texts
from common.pretrained import load_encoder
from common.rows import Encoded, load_tables, rows_of_columns
from common.start import entry_point
from paddlenlp.data import DataCollatorWithPadding

MASKED = 0.15  # share of the tokens


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """The recipe's own arguments and PaddleNLP's."""

    metrics = ("accuracy", "perplexity", "loss")
    model: str = option("minilm", "minilm, a folder, a hub name or a PaddleNLP class (untrained)")
    data: str = option("docstrings", "docstrings, a text, table or JSON file or folder, paddlenlp:NAME, datasets:NAME")
    text_column: Optional[str] = option(None, "column of the text, in tables; in a .txt each line is a text")
    max_length: Optional[int] = option(None, "tokens per row, else a text is several; by default 99 % fit", least=8)
    encoding: Optional[str] = option(None, "encoding of the files, such as cp1252 or big5; by default detected")
    optim: str = "lamb"
    learning_rate: float = 3e-3
    layerwise_head_ratio: float = 4.0
    num_train_epochs: float = 3
    per_device_train_batch_size: int = 64


class Rows(Encoded):
    """Tokenized texts; a text that is too long is split into several rows."""

    unit, score = "texts", staticmethod(token_scores)

    def __init__(self, texts, tokenizer, max_length):
        super().__init__()
        special = set(tokenizer.all_special_ids)
        room = max_length - tokenizer.num_special_tokens_to_add()
        for text in texts:
            ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            self.count(1, 0, sum(token not in special for token in ids))
            self.also["texts in several rows"] += len(ids) > room
            for part in (ids[at : at + room] for at in range(0, len(ids), room)):
                if not special.issuperset(part):
                    self.append(dict(tokenizer.prepare_for_model(part, return_attention_mask=False, verbose=False)))


class Guesser(TokenTrainer):
    """The Trainer: it masks tokens as BERT does, anew in each step."""

    @property
    def takes_places(self):
        return "masked_positions" in inspect.signature(self.model.forward).parameters

    def hide(self, ids, step):
        """Return (tokens after masking, mask); each row has at least one masked token, and each step another mask."""
        draw = np.random.default_rng([self.args.seed, step, zlib.crc32(ids.tobytes())])
        special = np.isin(ids, self.tokenizer.all_special_ids)
        chance = np.where(special, 2.0, draw.random(ids.shape))
        hidden = (chance < MASKED) | (chance == chance.min(axis=1, keepdims=True)) & ~special
        kind = draw.random(ids.shape)
        shown = np.where(hidden & (kind < 0.8), self.tokenizer.mask_token_id, ids)
        return np.where(hidden & (kind >= 0.9), draw.integers(len(self.tokenizer), size=ids.shape), shown), hidden

    def guesses(self, model, inputs):
        ids = inputs["input_ids"].numpy()
        shown, hidden = self.hide(ids, 1 + self.state.global_step if model.training else 0)
        places = paddle.to_tensor(np.flatnonzero(hidden))
        batch = {**inputs, "input_ids": paddle.to_tensor(shown)}
        # the head computes a logit for each word of the vocabulary: only for masked tokens if it can
        logits = logits_of(model(**batch, masked_positions=places) if self.takes_places else model(**batch))
        logits = logits.reshape([-1, logits.shape[-1]])
        return logits if self.takes_places else logits[places], paddle.to_tensor(ids[hidden]), places // ids.shape[1]


def begin_with_shares(model, counts):
    """Set the bias of a new head, if it has one, to log(1 + count), so that it predicts the tokens' shares."""
    # 0 for tokens that never occur, as Lamb's steps are in proportion to the norm
    logs = np.log1p([float(counts[token]) for token in range(model.config.vocab_size)])
    for bias in [value for value in model.parameters() if value.shape == [len(logs)]][:1]:
        bias.set_value(logs.astype("float32"))


def build(args, parts):
    """Return a Trainer, and the share of the most frequent token in the test rows."""
    count = lambda text, tokenizer: len(tokenizer(text, verbose=False)["input_ids"])  # noqa: E731
    tokenizer, model = load_encoder(args, parts.train, count, "MaskedLM")
    special = set(tokenizer.all_special_ids)
    data = parts.each(lambda texts: Rows(texts, tokenizer, args.max_length))
    tokens = lambda rows: Counter(t for row in rows for t in row["input_ids"] if t not in special)  # noqa: E731
    trained, tested = tokens(data["train"]), tokens(data["test"])
    if args.model == "minilm" or args.model.endswith("ForMaskedLM"):
        begin_with_shares(model, trained)
    trainer = Guesser(model, args, data, DataCollatorWithPadding(tokenizer), tokenizer)
    return trainer, tested[trained.most_common(1)[0][0]] / sum(tested.values())


def run(argv):
    args = parse(argv, Arguments)
    wanted = {"text_column": args.text_column}

    def texts(names, table, source, notes):
        return [text for (text,) in rows_of_columns(names, table, wanted, source, notes)]

    parts = load_tables(args, wanted, texts, own={"docstrings": docstring_texts}, key=str)
    trainer, baseline = build(args, parts)
    fine_tune(trainer, Score("accuracy", "most frequent token", baseline), parts)


main = entry_point(run)

if __name__ == "__main__":
    main()
