"""Train or fine-tune LLaMA or Qwen to answer prompts: all weights or LoRA adapters, with Came and a warm-up.

    python recipes/language_model_sft.py
    python recipes/language_model_sft.py --data rows.jsonl --source_field prompt --target_field response
    python recipes/language_model_sft.py --data rows.jsonl --model runs/language_model_sft-20261121-140000 --lora_rank 8

By default, a small untrained LLaMA learns to describe a function of Python's standard library, given its name, byte by
byte. A file has prompts with answers (`source` and `target`, or Alpaca's `instruction`, `input` and `output`), or
conversations as in ShareGPT. The loss is the mean over the tokens of the answers.
"""

import dataclasses
import math
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common import error
from common.arguments import RecipeArguments, option, parse
from common.fine_tuning import Score, TokenTrainer, fine_tune, logits_of, token_scores
from common.language_data import IGNORED, VOCABULARY, Messages, by_bytes, by_tokenizer, load_pairs, padded, unigram
from common.library_data import named_functions
from common.pretrained import load_model, load_tokenizer, longest
from common.rows import set_length
from common.start import entry_point
from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.trainer import set_seed

SMALL = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
SMALL |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 10, "tie_word_embeddings": False}
ADAPTED = [r".*\.(q|k|v|o|gate|up|down)_proj"]  # layers of LLaMA, Qwen2 and Mistral with adapters


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """The recipe's own arguments and PaddleNLP's."""

    metrics = ("perplexity", "accuracy", "loss")
    model: str = option("LlamaForCausalLM", "a PaddleNLP class (untrained), a folder or a hub name")
    lora_rank: int = option(0, "train adapters (LoRA) of this rank instead of the weights; 0 is off", least=0)
    data: str = option("docstrings", "docstrings, a JSON or table file or folder, paddlenlp:NAME, datasets:NAME")
    source_field: Optional[str] = option(None, "column of the prompt")
    target_field: Optional[str] = option(None, "column of the answer")
    max_length: Optional[int] = option(None, "maximum tokens of a row; by default 99 % of the rows fit", least=8)
    encoding: Optional[str] = option(None, "encoding of the files, such as cp1252 or big5; by default detected")
    optim: str = "came"
    learning_rate: float = 1.5e-3
    num_train_epochs: float = 2
    per_device_train_batch_size: int = 32
    metric_for_best_model: str = "perplexity"


class Writer(TokenTrainer):
    """The Trainer, with a loss for the answers."""

    def guesses(self, model, inputs):
        logits = logits_of(model(inputs["input_ids"]))
        where = paddle.nonzero(inputs["labels"] != IGNORED)
        return logits.gather_nd(where), inputs["labels"].gather_nd(where), where[:, 0]


class Answers(Messages):
    """Rows of tokens with the scores of their answers; tokens that are cut count as wrong."""

    def score(self, prediction):
        return token_scores(prediction, self.lost)


def collate(rows):
    inputs, labels = padded(rows, max(len(row["labels"]) for row in rows))
    return {"input_ids": paddle.to_tensor(inputs), "labels": paddle.to_tensor(labels)}


def build(args, parts):
    """Return a Trainer with a model for the rows, and the unigram perplexity of the test rows."""
    set_seed(args.seed)
    own = args.model == Arguments.model
    if own and args.lora_rank:
        raise error("Adapters need a trained model: give the folder of a run or a hub name.", model=args.model)
    model = load_model(args.model, task="CausalLM", config=SMALL if own else {})
    vocabulary = model.config.vocab_size
    tokenizer = None if vocabulary == VOCABULARY else load_tokenizer(args.model)
    tokens = by_bytes if tokenizer is None else by_tokenizer(tokenizer)
    if args.lora_rank:
        model = LoRAModel(model, LoRAConfig(target_modules=ADAPTED, r=args.lora_rank, lora_alpha=2 * args.lora_rank))
    count = lambda row: sum(len(ids) for ids, _ in tokens(row)) - 1  # noqa: E731
    set_length(args, parts.train, count, longest(model, tokenizer))
    data = parts.each(lambda rows: Answers(rows, args.max_length, tokens))
    if empty := [part for part, rows in data.items() if not rows]:
        raise error(f"No row of {empty[0]} has an answer to learn.", max_length=args.max_length)
    trainer = Writer(model, args, data, collate, tokenizer)
    train, test = (np.concatenate([row["labels"] for row in data[part]]) for part in ("train", "test"))
    train, test = train[train != IGNORED], test[test != IGNORED]
    return trainer, math.exp(unigram(train, test, vocabulary))


def run(argv):
    args = parse(argv, Arguments)
    parts = load_pairs(args, own={"docstrings": named_functions}, conversations=True)
    trainer, baseline = build(args, parts)
    fine_tune(trainer, Score("perplexity", "unigram", baseline), parts)


main = entry_point(run)

if __name__ == "__main__":
    main()
