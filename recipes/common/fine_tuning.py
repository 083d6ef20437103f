"""A recipe's training with its callbacks, its results and its report."""

import dataclasses
import os
import time
from dataclasses import MISSING

from paddlenlp.trainer import EarlyStoppingCallback

from paddle_ldopt.trainer import LayerLRCallback

from . import command
from .arguments import LOWER_IS_BETTER
from .files import PREDICTED, PREDICTION
from .rows import warn_of_unknown
from .run_folder import NoteArguments, check_data, write_json
from .run_report import RunReport
from .start import given_in
from .trainers import StopWithCheckpoint

ENCODING = ("model", "max_length", "max_target_length", "lora_rank")  # of the options that predictions need


@dataclasses.dataclass(frozen=True)
class Score:
    """A recipe's metric, and the score of a trivial baseline on the test rows."""

    metric: str
    baseline: str
    value: float

    def verdict(self, reached):
        gain = self.value - reached if self.metric in LOWER_IS_BETTER else reached - self.value
        if gain > 0:
            return f"beats the baseline ({self.baseline}) by {gain:.3f}"
        how = f"{-gain:.3f} worse" if gain else "equal"
        return f"does not beat the baseline ({self.baseline}): {how}"


def rates_of(layers, args):
    """Return in words the peak rates of head, top block and embeddings, as far as they train."""
    named, rows = {}, layers.table(args.layerwise_decay, args.learning_rate).rows  # from the embeddings to the head
    for row in (row for row in rows if row.frozen < row.tensors):
        named["top block" if row.label.startswith("block") else row.label] = row.ratio[1] * args.learning_rate
    shown = ", ".join(f"{name} {named[name]:.2g}" for name in ("head", "top block", "embeddings") if name in named)
    meaning = "the mean of the blocks" if args.layerwise_preserve_mean else "that of a layer whose ratio is 1"
    return f"peak rates: {shown} (learning_rate {args.learning_rate:g} is {meaning})."


def fine_tune(trainer, score, argv, parts, noted=None):
    """Train, evaluate on the test rows, write results and report; print the score and the baseline.

    `argv` is the command line for a resume, `noted` has further facts for predictions.
    """
    args, test, noted_arguments = trainer.args, trainer.data["test"], NoteArguments(argv)
    lengths = {name: value for name, value in vars(args).items() if name in ("max_length", "max_target_length")}
    account = {split: data.account(split) for split, data in trainer.data.items() if hasattr(data, "account")}
    encoder = args.recipe not in ("seq2seq", "language_model_sft")
    said = parts.description + parts.warning + warn_of_unknown(trainer.train_dataset, trainer.tokenizer, encoder)
    if trainer.is_world_process_zero():
        print(said)
        if account:
            most = ", ".join(f"{name}={value}" for name, value in lengths.items())
            print(f"{most}: {'; '.join(map(': '.join, account.items()))}.")
        print(rates_of(trainer.layer_map, args), flush=True)
    settings = changed_settings(argv, args)
    decay = f"decay {args.layerwise_lr_decay:g}" + " with preserve_mean" * args.layerwise_preserve_mean
    title = f"{args.model} on {args.data}, {decay}, learning rate {args.learning_rate:g}"
    report = RunReport(args.output_dir, title, trainer.layer_map)
    check_data(args, parts)
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
    seconds, best = time.perf_counter() - began, trainer.state.best_metric
    if args.evaluation_strategy.value == "no":
        best = trainer.evaluate()[f"eval_{args.metric_for_best_model}"]
    state = trainer.state
    untrained = args.resume_from_checkpoint and state.global_step == noted_arguments.first_step
    if untrained and trainer.is_world_process_zero():
        print(f"This run already ended, at step {state.global_step}: only the test is repeated.", flush=True)
    predicted = trainer.predict(test, metric_key_prefix="test")
    tested, (found, tables) = predicted.metrics, test.judge(predicted.predictions, predicted.label_ids)
    ignored = ("_runtime", "_per_second", f"test_{score.metric}", "test_ppl")
    others = {key: value for key, value in tested.items() if key.startswith("test_") and not key.endswith(ignored)}
    baseline, reached = f"{score.baseline.replace(' ', '-')} baseline", tested[f"test_{score.metric}"]
    results = {
        f"test {score.metric}": reached,
        baseline: score.value,
        "verdict": score.verdict(reached),
        **{key.replace("_", " ", 1): value for key, value in others.items()},
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
    line = (score.metric, score.baseline, score.value)
    path = report.write(results, settings, said, tables=tables, baseline=line)
    if path:  # in the main process
        print(f"test {score.metric} {reached:.3f} ({score.baseline}: {score.value:.3f}), {seconds:.0f} s")
        print(", ".join(f"{key.replace('_', ' ', 1)} {value:.3f}" for key, value in others.items()))
        print(f"verdict: {results['verdict']}\nkept: {results['kept']}\nreport: {path}")
        if args.recipe in PREDICTED:
            texts = ["a text", "its partner" if kept.get("pair") else "another text"]
            inputs = ["a.png"] if "classes" in kept else texts
            print(f"predict: {command('predict', args.output_dir, *inputs)}")


def _kept(args, state):
    if not args.load_best_model_at_end or state.best_model_checkpoint is None:
        return f"the last step, {state.global_step} of {state.max_steps}"
    best = f"best validation {args.metric_for_best_model} ({state.best_metric:.3f})"
    done = f"{state.global_step} of {state.max_steps} steps done"
    return f"{os.path.basename(state.best_model_checkpoint)}, {best}; {done}"


def changed_settings(argv, args):
    """Return the settings on the command line with other values than their defaults."""
    changed = {}
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in dict(given_in(argv)) and value != default:
            changed[field.name] = getattr(value, "value", value)
    return changed
