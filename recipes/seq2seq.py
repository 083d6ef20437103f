"""Train or fine-tune T5 or BART to write short texts, with Adafactor under a schedule or with its relative step.

    python recipes/seq2seq.py
    python recipes/seq2seq.py --relative_step           # Adafactor sets its own learning rate
    python recipes/seq2seq.py --data news.jsonl --source_field article --target_field summary --model t5-small
    python recipes/seq2seq.py --config recipes/configs/t5/seq2seq.yaml
    python recipes/seq2seq.py --resume_from_checkpoint runs/seq2seq-20261121-140000

By default a small untrained T5 learns to write dates in digits that it reads in words. A file has a JSON object a line.
"""

import dataclasses
from typing import Optional

import common.fast_cpu  # noqa: F401 - before Paddle
import paddle
from common.arguments import RecipeArguments, check_least, option, parse
from common.fine_tuning import Score, entry_point, fine_tune
from common.library_data import written_dates
from common.parts import load_parts
from common.pretrained import load_model, load_tokenizer
from common.text_scores import ScoringTuner, best_lead, rouge, words
from common.text_sources import error, read_jsonl
from paddlenlp.data import DataCollatorForSeq2Seq
from paddlenlp.trainer import PdArgumentParser, set_seed

from paddle_ldopt import LdoptConfig

IGNORED = -100  # label or prediction of padding
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
    source_field: str = option("source", "name of the source text")
    target_field: str = option("target", "name of the target text")
    relative_step: bool = option(False, "Adafactor sets its own rate; excludes learning_rate, warm-up and schedule")
    max_length: Optional[int] = option(None, "longest source in tokens; by default 512, or 32 for dates")
    max_target_length: Optional[int] = option(None, "longest target in tokens; by default 64, or 8 for dates")

    def __post_init__(self):
        lengths = (32, 8) if self.data == "dates" else (512, 64)
        for name, length in zip(("max_length", "max_target_length"), lengths):
            if getattr(self, name) is None:
                setattr(self, name, length)
        check_least(self, max_length=4, max_target_length=3)


def pairs(records, options, source):
    """Return [(source, target), ...] of dicts."""
    rows = []
    for number, record in enumerate(records, 1):
        row = tuple(record.get(field) for field in (options.source_field, options.target_field))
        if not all(isinstance(text, str) and text.strip() for text in row):
            fields = {"source_field": options.source_field, "target_field": options.target_field}
            raise error(f"Row {number} lacks a text: it has {list(record)}.", source=source, **fields)
        rows.append(row)
    return rows


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

    most = 8  # tokens of an output

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
            written = self.model.generate(**read, max_new_tokens=self.most, decode_strategy="greedy_search")[0]
        return loss, written, inputs["labels"]


def check_rate_is_left_out(argv):
    """Raise ValueError if a command line sets a learning rate or a schedule, which would have no effect."""
    parser = PdArgumentParser((Options, Arguments))
    parser.set_defaults(**dict.fromkeys(SCHEDULE))
    line = vars(parser.parse_known_args(argv)[0])
    given = {name: line[name] for name in SCHEDULE if line[name] is not None}
    if given:
        raise error("With `relative_step` Adafactor sets its own learning rate: leave these arguments out.", **given)


def build(args, options, parts):
    """Return a Trainer with a model for the rows, and the test rows as a data set."""
    set_seed(args.seed)
    tokenizer = load_tokenizer(options.model)
    small = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_decoder_layers": 2, "bos_token_id": 0}
    model = load_model(
        options.model, task="ConditionalGeneration", config=small if options.model == Options.model else {}
    )
    optimizers = (None, None)
    if options.relative_step:
        if str(args.optim) != "adafactor":
            raise error("`relative_step` is an option of Adafactor.", optim=str(args.optim))
        given = LdoptConfig.from_arguments(args).to_dict()
        ours = {"learning_rate": None, "optim_kwargs": {**given["optim_kwargs"], "relative_step": True}}
        no_schedule = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio")
        kept = {name: value for name, value in given.items() if name not in no_schedule}
        optimizers = LdoptConfig.from_dict({**kept, **ours}).build(model)

    data = {part: Pairs(getattr(parts, part), tokenizer, options) for part in ("train", "validation", "test")}
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=IGNORED)
    for what, name, most in (("Sources", "input_ids", "max_length"), ("Targets", "labels", "max_target_length")):
        full = sum(len(row[name]) >= getattr(options, most) for row in data["train"])
        cut = f"{what} are cut off after {getattr(options, most)} tokens"
        print(f"{cut}; {full} of {len(parts.train)} training rows have as many or more.", flush=True)
    sets = {"train_dataset": data["train"], "eval_dataset": data["validation"]}
    trainer = Writer(model, args=args, data_collator=collator, tokenizer=tokenizer, optimizers=optimizers, **sets)
    trainer.most = options.max_target_length
    return trainer, data["test"]


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    if options.relative_step:
        check_rate_is_left_out(argv)
    parts = load_parts(
        options.data,
        own={"dates": written_dates},
        suffixes=(".jsonl",),
        read=lambda path: pairs(read_jsonl(path), options, path),
        rows_of=lambda data, split: pairs(data, options, split),
        key=lambda row: row[0],
    )
    print(parts.description, flush=True)
    first = best_lead(parts.train)
    lead = [" ".join(words(source)[:first]) for source, _ in parts.test]
    trainer, test = build(args, options, parts)
    score = Score("rouge_1", f"the first {first} words", rouge(lead, test.targets)["rouge_1"])
    fine_tune(trainer, test, score, options, argv, parts)


main = entry_point(run)

if __name__ == "__main__":
    main()
