"""Train or fine-tune LLaMA or Qwen to answer prompts: all weights or LoRA adapters, with Came and a warm-up.

    python recipes/language_model_sft.py
    python recipes/language_model_sft.py --data rows.jsonl --source_field prompt --target_field response
    python recipes/language_model_sft.py --data rows.jsonl --model runs/language_model_sft-20261121-140000 --lora_rank 8
    python recipes/language_model_sft.py --config recipes/configs/llama/language_model_sft.yaml
    python recipes/language_model_sft.py --resume_from_checkpoint runs/language_model_sft-20261121-140000

By default, a small untrained LLaMA learns to describe a function of Python's standard library, given its name. It
writes byte by byte. A file has one JSON object per line. The loss is the mean over the tokens of the answers.
"""

import dataclasses
import math

import common.fast_cpu  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common.arguments import RecipeArguments, check_least, option, parse
from common.errors import error
from common.fine_tuning import Score, entry_point, fine_tune
from common.language_data import IGNORED, VOCABULARY, by_bytes, by_tokenizer, encode_pairs, load_pairs, unigram
from common.library_data import function_names
from common.pretrained import load_model, load_tokenizer
from common.trainers import TokenTrainer, logits_of
from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.trainer import set_seed

# config of the default class; without dropout, like LLaMA
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
SMALL |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 10, "tie_word_embeddings": False}
ADAPTED = [r".*\.(q|k|v|o|gate|up|down)_proj"]  # layers of LLaMA, Qwen2 and Mistral with adapters


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "language_model_sft"
    metrics = ("perplexity", "accuracy", "loss")

    optim: str = "came"
    learning_rate: float = 2e-3
    layerwise_lr_decay: float = 0.9
    num_train_epochs: float = 2
    per_device_train_batch_size: int = 32
    metric_for_best_model: str = "perplexity"


@dataclasses.dataclass
class Options:
    """Model, data and encoding."""

    model: str = option("LlamaForCausalLM", "a PaddleNLP class (untrained), a folder or a hub name")
    lora_rank: int = option(0, "train adapters (LoRA) of this rank instead of the weights; 0 is off")
    data: str = option("docstrings", "docstrings, a .jsonl file or folder, paddlenlp:NAME, datasets:NAME")
    source_field: str = option("source", "JSON key of the prompt")
    target_field: str = option("target", "JSON key of the answer")
    max_length: int = option(64, "maximum tokens of a prompt with its answer; longer texts are cut")

    def __post_init__(self):
        check_least(self, lora_rank=0, max_length=8)


class Writer(TokenTrainer):
    """The Trainer, with a loss for the answers."""

    def guesses(self, model, inputs):
        """Return (logits, right tokens, their rows) of the answers."""
        logits = logits_of(model(inputs["input_ids"]))
        where = paddle.nonzero(inputs["labels"] != IGNORED)
        return logits.gather_nd(where), inputs["labels"].gather_nd(where), where[:, 0]


def collate(rows):
    """Return a batch, as long as its longest row."""
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    longest = 1 + np.nonzero((batch["labels"] != IGNORED).any(0))[0].max()
    return {name: paddle.to_tensor(values[:, :longest]) for name, values in batch.items()}


def named_functions():
    """Return the `Parts` of (name of a function, its description)."""
    parts = function_names()
    return dataclasses.replace(parts, **parts.each(lambda rows: [(f"{b}: ", a) for a, b in rows]))


def build(args, options, parts):
    """Return a Trainer with a model for the rows, the test rows, and the unigram perplexity of the test rows."""
    set_seed(args.seed)
    own = options.model == Options.model
    if own and options.lora_rank:
        raise error("Adapters need a trained model: give the folder of a run or a hub name.", model=options.model)
    model = load_model(options.model, task="CausalLM", config=SMALL if own else {})
    vocabulary = model.config.vocab_size
    tokens = by_bytes if vocabulary == VOCABULARY else by_tokenizer(load_tokenizer(options.model))
    if options.lora_rank:
        rank = options.lora_rank
        model = LoRAModel(model, LoRAConfig(target_modules=ADAPTED, r=rank, lora_alpha=2 * rank))
    data, labels = {}, {}
    for part in ("train", "validation", "test"):
        inputs, labels[part] = encode_pairs(getattr(parts, part), options.max_length, tokens)
        rows = zip(inputs, labels[part])
        # a prompt may fill a whole row
        data[part] = [{"input_ids": a, "labels": b} for a, b in rows if (b != IGNORED).any()]
        if not data[part]:
            raise error(f"The prompts leave no room in any row of {part}.", max_length=options.max_length)
    trainer = Writer(
        model=model,
        args=args,
        data_collator=collate,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
    )
    train, test = (labels[part][labels[part] != IGNORED] for part in ("train", "test"))
    return trainer, data["test"], math.exp(unigram(train, test, vocabulary))


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    parts = load_pairs(options, own={"docstrings": named_functions})
    print(parts.description, flush=True)
    trainer, test, baseline = build(args, options, parts)
    score = Score("perplexity", "unigram", baseline)
    fine_tune(trainer, test, score, options, argv, parts)


main = entry_point(run)

if __name__ == "__main__":
    main()
