"""A recipe's Trainer, its training with its callbacks, its results and its report; Ctrl-C and SIGTERM."""

import os
import signal
import sys
import time
from typing import NamedTuple

import numpy as np
import paddle
from paddle.nn.functional import cross_entropy
from paddlenlp.trainer import EarlyStoppingCallback, Trainer, TrainerCallback

from paddle_ldopt.config import changed_fields, json_argument
from paddle_ldopt.schedules import ON_METRIC
from paddle_ldopt.trainer import LayerLRCallback, LdoptTrainerMixin, ScheduleCallback, StopOnSigterm

from . import command
from .arguments import LOWER_IS_BETTER, NoteArguments, check_data, write_json
from .files import PREDICTED, PREDICTION
from .rows import warn_of_unknown
from .run_report import RunReport
from .start import given_in

ENCODING = ("model", "max_length", "max_target_length", "lora_rank")  # of the options that predictions need
UNSHOWN, SILENCE = ("_runtime", "_per_second", "_ppl"), 60  # seconds between two lines


def logits_of(outputs):
    """Return the logits of a model's outputs; some models also return their cache."""
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


class FineTuner(LdoptTrainerMixin, Trainer):
    """PaddleNLP's Trainer with layer-wise rates; `data` is split -> data set with a method `score(prediction)`."""

    loss = staticmethod(cross_entropy)

    def __init__(self, model, args, data, collator, tokenizer=None):
        sets = {"train_dataset": data["train"], "eval_dataset": data["validation"]}
        args.disable_tqdm |= not sys.stderr.isatty()
        super().__init__(model, args=args, data_collator=collator, tokenizer=tokenizer, **sets)
        self.data = data
        self.add_callback(ShortProgress())

    def guesses(self, model, inputs):
        labels = inputs.pop("labels")
        return logits_of(model(**inputs)), labels, None

    def compute_loss(self, model, inputs, return_outputs=False):
        logits, labels, _ = self.guesses(model, inputs)
        loss = self.loss(logits, labels)
        return (loss, (loss, logits)) if return_outputs else loss

    def evaluation_loop(self, dataloader, *args, **kwargs):
        self.compute_metrics = dataloader.dataset.score
        return super().evaluation_loop(dataloader, *args, **{**kwargs, "prediction_loss_only": None})


class TokenTrainer(FineTuner):
    """Base of Trainers whose `guesses` are logits, right tokens and row numbers of the predicted tokens."""

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return (mean loss, sums of each row, the sums again as labels: the Trainer needs labels for metrics)."""
        inputs = self._prepare_inputs(inputs)
        with paddle.no_grad():
            logits, right, rows = self.guesses(model, inputs)
            losses = cross_entropy(logits, right, reduction="none").flatten()
            hits = (logits.argmax(-1) == right).astype(losses.dtype)
            each = paddle.stack([losses, hits, paddle.ones_like(losses)], 1)
            sums = paddle.zeros([len(inputs["input_ids"]), 3]).index_add(rows, 0, each)
        return losses.mean(), sums, sums


def token_scores(prediction, lost=0):
    """Return scores from each row's sums of losses, correct guesses and guesses; `lost` tokens count as wrong."""
    loss, right, guesses = np.asarray(prediction.predictions, "float64").sum(0)
    return {"perplexity": float(np.exp(loss / guesses)), "accuracy": float(right / (guesses + lost))}


class ShortProgress(TrainerCallback):
    """Print a line after each evaluation of a training, and after a minute without one."""

    _main, _loss = False, ""

    def on_train_begin(self, args, state, control, **kwargs):
        self._main, self._began = state.is_world_process_zero, time.perf_counter()
        self._printed = self._began

    def on_log(self, args, state, control, logs, **kwargs):
        now = time.perf_counter()
        if "loss" in logs:
            self._loss = f"training loss {logs['loss']:.3f}"
        found = {k[5:]: v for k, v in logs.items() if k.startswith("eval_") and not k.endswith(UNSHOWN)}
        if self._main and (found or ("loss" in logs and now - self._printed > SILENCE)):
            metrics = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            said = "; ".join(filter(None, (self._loss, f"validation {metrics}" * bool(found))))
            print(f"step {state.global_step}/{state.max_steps}, {now - self._began:.0f} s: {said}", flush=True)
            self._printed = now


class StopWithCheckpoint(StopOnSigterm):
    """End a run on Ctrl-C as `StopOnSigterm` does on SIGTERM: after a checkpoint, with the command that resumes it."""

    number = signal.SIGTERM

    def __enter__(self):
        super().__enter__()
        self._before_interrupt = signal.signal(signal.SIGINT, self.on_signal)
        return self

    def __exit__(self, kind, *rest):
        signal.signal(signal.SIGINT, self._before_interrupt)
        if self.number == signal.SIGINT and kind is None:  # the run came to its end in the step that was interrupted
            self.asked = False
        super().__exit__(kind, *rest)

    def on_signal(self, number, *_):
        super().on_signal()
        for each in (signal.SIGINT, signal.SIGTERM):  # a second signal also ends a step that hangs
            signal.signal(each, signal.SIG_DFL)
        self.number, name = number, "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        print(f"\n{name}: saving a checkpoint after this step; {name} again ends at once", file=sys.stderr, flush=True)

    def on_save(self, args, state, control, **kwargs):
        if self._agreed:
            if args.local_rank in (-1, 0):
                again = command(args.recipe, "--resume_from_checkpoint", args.output_dir)  # also in a sweep
                print(f"resume: {again}", file=sys.stderr)
            raise SystemExit(128 + self.number)


class Score(NamedTuple):
    """A recipe's metric, and the score of a trivial baseline on the test rows."""

    metric: str
    baseline: str
    value: float

    def verdict(self, reached):
        gain = self.value - reached if self.metric in LOWER_IS_BETTER else reached - self.value
        if gain > 0:
            return f"beats the baseline ({self.baseline}) by {gain:.3f}"
        return f"does not beat the baseline ({self.baseline}): " + (f"{-gain:.3f} worse" if gain else "equal")


def rates_of(layers, args):
    """Return in words the peak rates of head, top block and embeddings, as far as they train."""
    named, rows = {}, layers.table(args.layerwise_decay, args.learning_rate).rows  # from the embeddings to the head
    for row in (row for row in rows if row.frozen < row.tensors):
        named["top block" if row.label.startswith("block") else row.label] = row.ratio[1] * args.learning_rate
    shown = ", ".join(f"{name} {named[name]:.2g}" for name in ("head", "top block", "embeddings") if name in named)
    meaning = "the mean of the blocks" if args.layerwise_preserve_mean else "that of a layer whose ratio is 1"
    return f"peak rates: {shown} (learning_rate {args.learning_rate:g} is {meaning})."


def fine_tune(trainer, score, parts, noted=None):
    """Train, evaluate on the test rows, write results and report; `noted` has further facts for predictions."""
    args, test, noted_arguments = trainer.args, trainer.data["test"], NoteArguments()
    lengths = {name: value for name, value in vars(args).items() if name in ("max_length", "max_target_length")}
    account = {split: data.account(split) for split, data in trainer.data.items() if hasattr(data, "account")}
    encoder = args.recipe not in ("seq2seq", "language_model_sft")
    said = parts.description + parts.warning + warn_of_unknown(trainer.train_dataset, trainer.tokenizer, encoder)
    if trainer.is_world_process_zero():
        print(said + f"\nresumes from {args.resume_from_checkpoint}" * bool(args.resume_from_checkpoint))
        if account:
            most = ", ".join(f"{name}={value}" for name, value in lengths.items())
            print(f"{most}: {'; '.join(map(': '.join, account.items()))}.")
        print(rates_of(trainer.layer_map, args), flush=True)
    settings = changed_settings(args)
    decay = f"decay {args.layerwise_lr_decay:g}" + " with preserve_mean" * args.layerwise_preserve_mean
    title = f"{args.model} on {args.data}, {decay}, learning rate {args.learning_rate:g}"
    report = RunReport(args.output_dir, title, trainer.layer_map)
    check_data(args, parts)
    if args.lr_scheduler_type.value not in ON_METRIC and not json_argument(args, "optim_kwargs").get("scale_parameter"):
        trainer.add_callback(ScheduleCallback(f"{args.output_dir}/schedule.png", trainer.layer_map, verbose=False))
    if args.load_best_model_at_end:
        trainer.add_callback(EarlyStoppingCallback(args.early_stopping_patience))
    for callback in (report, LayerLRCallback(trainer.layer_map), noted_arguments, stop := StopWithCheckpoint()):
        trainer.add_callback(callback)
    began = time.perf_counter()
    with stop:
        try:
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        except BaseException as error:  # also report a run that diverged or was interrupted
            report.write({"stopped by": f"{type(error).__name__}: {error}"}, settings, said)
            raise
    trainer.remove_callback(ShortProgress)  # later evaluations are of the test
    seconds, state, best = time.perf_counter() - began, trainer.state, trainer.state.best_metric
    if args.evaluation_strategy.value == "no":
        best = trainer.evaluate()[f"eval_{args.metric_for_best_model}"]
    untrained = args.resume_from_checkpoint and state.global_step == noted_arguments.first_step
    if untrained and trainer.is_world_process_zero():
        print(f"This run already ended, at step {state.global_step}: only the test is repeated.", flush=True)
    predicted = trainer.predict(test, metric_key_prefix="test")
    tested, (found, tables) = predicted.metrics, test.judge(predicted.predictions, predicted.label_ids)
    ignored = ("_runtime", "_per_second", f"test_{score.metric}", "test_ppl")
    others = {k.replace("_", " ", 1): v for k, v in tested.items() if k.startswith("test_") and not k.endswith(ignored)}
    reached = tested[f"test_{score.metric}"]
    results = {
        f"test {score.metric}": reached,
        f"{score.baseline.replace(' ', '-')} baseline": score.value,
        "verdict": score.verdict(reached),
        **others,
        f"best validation {args.metric_for_best_model}": best,
        "kept": _kept(args, state),
        **lengths,
        **{f"{split} rows": text for split, text in account.items()},
        "steps": state.global_step,
        "seconds" + (" since it was resumed" if args.resume_from_checkpoint else ""): seconds,
        **found,
    }
    trainer.save_model(args.output_dir)
    kept = {name: value for name, value in vars(args).items() if name in ENCODING}
    kept |= {"recipe": args.recipe, "columns": parts.notes.columns, **(noted or {})}
    write_json(args.output_dir, PREDICTION, kept)
    write_json(args.output_dir, "results.json", results)
    if path := report.write(results, settings, said, tables=tables, baseline=score):  # in the main process
        print(f"test {score.metric} {reached:.3f} ({score.baseline}: {score.value:.3f}), {seconds:.0f} s")
        print(", ".join(f"{name} {value:.3f}" for name, value in others.items()))
        print(f"verdict: {results['verdict']}\nkept: {results['kept']}\nreport: {path}")
        if args.recipe in PREDICTED:
            texts = ["a text", "its partner" if kept.get("pair") else "another text"]
            print(f"predict: {command('predict', args.output_dir, *(['a.png'] if 'classes' in kept else texts))}")


def _kept(args, state):
    if not args.load_best_model_at_end or state.best_model_checkpoint is None:
        return f"the last step, {state.global_step} of {state.max_steps}"
    best = f"best validation {args.metric_for_best_model} ({state.best_metric:.3f})"
    done = f"{state.global_step} of {state.max_steps} steps done"
    return f"{os.path.basename(state.best_model_checkpoint)}, {best}; {done}"


def changed_settings(args):
    given = {name for flag, _ in given_in(args.argv) for name in (flag, flag.removeprefix("no_"))}
    return {name: getattr(value, "value", value) for name, value in changed_fields(args).items() if name in given}
