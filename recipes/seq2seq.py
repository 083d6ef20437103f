"""Train or fine-tune T5 or BART to write short texts, with Adafactor, which can set its own learning rate.

    python recipes/seq2seq.py
    python recipes/seq2seq.py --relative_step           # Adafactor sets its own learning rate
    python recipes/seq2seq.py --data news.jsonl --source_field article --target_field summary --model t5-small
    python recipes/seq2seq.py --config recipes/configs/t5/seq2seq.yaml
    python recipes/seq2seq.py --resume_from_checkpoint runs/seq2seq-20261121-140000

By default, a small untrained T5 learns to convert dates in words to digits. A file has one JSON object per line.
"""

import dataclasses
from typing import Optional

import common.fast_cpu  # noqa: F401 - before Paddle
import paddle
from common.arguments import RecipeArguments, check_least, option, parse
from common.errors import error
from common.fine_tuning import Score, entry_point, fine_tune
from common.language_data import IGNORED, load_pairs
from common.library_data import written_dates
from common.pretrained import load_model, load_tokenizer
from common.run_folder import names_in
from common.text_scores import best_lead, rouge, words
from common.trainers import ScoringTuner
from paddlenlp.data import DataCollatorForSeq2Seq
from paddlenlp.trainer import set_seed

from paddle_ldopt import LdoptConfig

SCHEDULE = ("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "num_cycles", "lr_end", "power")
SCHEDULE += ("warmup_steps", "warmup_ratio")


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "seq2seq"
    metrics = ("rouge_1", "rouge_l", "loss")

    optim: str = "adafactor"
    learning_rate: float = 3e-3
    layerwise_lr_decay: float = 1.0
    weight_decay: float = 0.0
    num_train_epochs: float = 6
    per_device_train_batch_size: int = 32
    metric_for_best_model: str = "rouge_1"


@dataclasses.dataclass
class Options:
    """Model, data and encoding."""

    model: str = option("T5ForConditionalGeneration", "a PaddleNLP class (untrained), a folder or a hub name")
    data: str = option("dates", "dates, a .jsonl file or folder, paddlenlp:NAME, datasets:NAME")
    source_field: str = option("source", "JSON key of the source text")
    target_field: str = option("target", "JSON key of the target text")
    relative_step: bool = option(False, "Adafactor sets its own rate: leave out learning_rate, warm-up and schedule")
    max_length: Optional[int] = option(None, "maximum tokens of a source; by default 512, or 32 for dates")
    max_target_length: Optional[int] = option(None, "maximum tokens of a target; by default 64, or 8 for dates")

    def __post_init__(self):
        lengths = (32, 8) if self.data == "dates" else (512, 64)
        for name, length in zip(("max_length", "max_target_length"), lengths):
            if getattr(self, name) is None:
                setattr(self, name, length)
        check_least(self, max_length=4, max_target_length=3)


class Pairs(list):
    """Tokenized sources and targets, with the score of a model's outputs."""

    def __init__(self, rows, tokenizer, options):
        self.tokenizer, self.targets = tokenizer, [target for _, target in rows]
        lengths = (options.max_length, options.max_target_length)
        cut = [[tokenizer(t, max_length=n, truncation=True)["input_ids"] for t, n in zip(r, lengths)] for r in rows]
        super().__init__({"input_ids": x, "attention_mask": [1] * len(x), "labels": y} for x, y in cut)

    def score(self, prediction):
        """Return ROUGE of the outputs against the whole targets, also those that training cuts."""
        written = prediction.predictions
        written[written == IGNORED] = self.tokenizer.pad_token_id
        return rouge(self.tokenizer.batch_decode(written.tolist(), skip_special_tokens=True), self.targets)


class Writer(ScoringTuner):
    """The Trainer; it evaluates texts that the model writes by greedy search."""

    max_new_tokens = 8  # tokens of an output

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the cross entropy of the targets."""
        outputs = model(**inputs)
        return (outputs[0], outputs) if return_outputs else outputs[0]

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return (loss, tokens of the outputs, tokens of the targets)."""
        inputs = self._prepare_inputs(inputs)
        with paddle.no_grad():
            loss = self.compute_loss(model, inputs)
            read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            greedily = {"max_new_tokens": self.max_new_tokens, "decode_strategy": "greedy_search"}
            written = self.model.generate(**read, **greedily)[0]
        return loss, written, inputs["labels"]


def build(args, options, parts):
    """Return a Trainer with a model for the rows, and the test rows as a data set."""
    set_seed(args.seed)
    tokenizer = load_tokenizer(options.model)
    small = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_decoder_layers": 2, "bos_token_id": 0}
    model = load_model(
        options.model, task="ConditionalGeneration", config=small if options.model == Options.model else {}
    )
    data = parts.each(lambda rows: Pairs(rows, tokenizer, options))
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=IGNORED)
    optimizers = (None, None)
    if options.relative_step:
        if str(args.optim) != "adafactor":
            raise error("`relative_step` is an option of Adafactor.", optim=str(args.optim))
        settings = LdoptConfig.from_arguments(args).to_dict()
        ours = {"learning_rate": None, "optim_kwargs": {**settings["optim_kwargs"], "relative_step": True}}
        no_schedule = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio")
        kept = {name: value for name, value in settings.items() if name not in no_schedule}
        optimizers = LdoptConfig.from_dict({**kept, **ours}).build(model, example=collator([data["train"][0]]))

    limits = {"input_ids": ("Sources", options.max_length), "labels": ("Targets", options.max_target_length)}
    for name, (texts, limit) in limits.items():
        full = sum(len(row[name]) >= limit for row in data["train"])
        rows = f"{full} of {len(parts.train)} training rows have as many or more"
        print(f"{texts} are cut off after {limit} tokens; {rows}.", flush=True)
    sets = {"train_dataset": data["train"], "eval_dataset": data["validation"]}
    trainer = Writer(model, args=args, data_collator=collator, tokenizer=tokenizer, optimizers=optimizers, **sets)
    trainer.max_new_tokens = options.max_target_length
    return trainer, data["test"]


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    without_effect = {name: getattr(args, name) for name in SCHEDULE if name in names_in(argv)}
    if options.relative_step and without_effect:
        problem = "With `relative_step` Adafactor sets its own learning rate: leave these arguments out."
        raise error(problem, **without_effect)
    parts = load_pairs(options, own={"dates": written_dates})
    print(parts.description, flush=True)
    first = best_lead(parts.train)
    lead = [" ".join(words(source)[:first]) for source, _ in parts.test]
    trainer, test = build(args, options, parts)
    score = Score("rouge_1", f"the first {first} words", rouge(lead, test.targets)["rouge_1"])
    fine_tune(trainer, test, score, options, argv, parts)


main = entry_point(run)

if __name__ == "__main__":
    main()
