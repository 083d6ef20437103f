"""Resume: exact where the settings are the same, refused where they are not."""

import json
import os
import pathlib
import random
import re
import shutil
import signal

import numpy as np
import paddle
import processes
import pytest
import trainer_common as common
import trainer_run

import paddle_ldopt as ldopt
from paddle_ldopt.create import OPTIMIZERS
from paddle_ldopt.trainer import (
    GradualUnfreezeCallback,
    ResumeMixin,
    StopOnSigterm,
    last_checkpoint,
    record,
)

FORMATS = ["plain", "flex"] if common.FORMERS else ["plain", "unified"]
RECORD = "ldopt_layerwise.json"
EPOCH_RNG = "ldopt_epoch_rng.json"
FILES = "ldopt_files.json"
CONFIG = "ldopt_config.json"
DATA = common.Data
EVALUATE = {"evaluation_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two steps with a decay of 0.8, and their checkpoint."""
    folder = tmp_path_factory.mktemp("saved")
    trainer_run.run(folder, max_steps=2, save_steps=2)
    return str(folder / "checkpoint-2")


@pytest.fixture
def checkpoint(saved, tmp_path):
    """A copy of `saved` to tamper with."""
    shutil.copytree(saved, tmp_path / "checkpoint-2")
    return tmp_path / "checkpoint-2"


def resume(folder, output_dir, **kwargs):
    return trainer_run.run(output_dir, resume=str(folder), **{"max_steps": 4, "save_steps": 100, **kwargs})


def record_in(checkpoint):
    return json.loads((pathlib.Path(checkpoint) / RECORD).read_text(encoding="utf-8"))


def state_of(trainer):
    """Return all that training goes on from."""
    optimizer = {k: v.numpy() for k, v in trainer.optimizer.state_dict().items() if isinstance(v, paddle.Tensor)}
    return (
        {k: v.tobytes() for k, v in sorted({**common.weights(trainer.model), **optimizer}.items())},
        trainer.optimizer.get_lr(),
        str(random.getstate()),
        str(np.random.get_state()),
        re.sub("0x[0-9a-f]+", "", str(paddle.framework.core.default_cpu_generator().get_state())),  # an address
    )


# --- exact ---


@pytest.fixture(scope="module", params=FORMATS)
def whole(request, tmp_path_factory):
    """A run with checkpoints 4, 8 and 12, of which the last ends an epoch: its format, folder and final state."""
    folder = tmp_path_factory.mktemp("whole")
    return request.param, folder, state_of(trainer_run.run(folder, request.param, max_steps=14, save_steps=4))


@pytest.mark.representatives(count=1)
def test_a_resume_is_exact_from_any_checkpoint_and_twice(whole, tmp_path):
    form, folder, expected = whole

    def resumed(checkpoint, **settings):
        return state_of(trainer_run.run(tmp_path, form, resume=str(checkpoint), max_steps=14, **settings))

    assert resumed(folder / "checkpoint-4", save_steps=5) == expected
    assert resumed(folder / "checkpoint-8", save_steps=100) == expected
    assert resumed(folder / "checkpoint-12", save_steps=100) == expected
    assert resumed(tmp_path / "checkpoint-10", save_steps=100) == expected


def assert_exact(tmp_path, step, form="plain", **settings):
    """Check that a run resumed from a checkpoint ends as an uninterrupted one; return it."""
    expected = state_of(trainer_run.run(tmp_path / "whole", form, **settings))
    folder = str(tmp_path / f"whole/checkpoint-{step}")
    resumed = trainer_run.run(tmp_path / "resumed", form, resume=folder, **settings)
    assert state_of(resumed) == expected
    return resumed


@pytest.mark.representatives
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("optim", [name for name in OPTIMIZERS if name != "adamwdl"])
def test_resume_is_exact_with_every_optimizer(tmp_path, form, optim):
    resumed = assert_exact(tmp_path, 4, form, max_steps=7, optim=optim)
    assert isinstance(resumed.optimizer, OPTIMIZERS[optim].cls)
    assert resumed.optimizer.layerwise_ratio(resumed.model.parameters()[0]) < 1


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("form", FORMATS)
def test_resume_with_frozen_layers_is_exact(tmp_path, form):
    resumed = assert_exact(tmp_path, 8, form, layerwise_lr_decay=0.5, layerwise_freeze_below=0.2, max_steps=9)
    start, end = common.weights(common.tiny_model(dropout=0.1)), common.weights(resumed.model)
    name = next(name for name in start if "embeddings" in name)
    assert start[name].tobytes() == end[name].tobytes()


@pytest.mark.parametrize(
    "settings, step",
    [
        ({"gradient_accumulation_steps": 2, "save_steps": 4, "max_steps": 8}, 4),  # three steps make an epoch
        ({"gradient_accumulation_steps": 4, "save_steps": 2, "max_steps": 4}, 2),  # two of six batches are left over
        ({"save_strategy": "epoch", "num_train_epochs": 3, "max_steps": -1}, 12),
        ({"save_strategy": "epoch", "num_train_epochs": 3, "max_steps": -1, "do_eval": True, **EVALUATE}, 6),
    ],
)
def test_resume_is_exact_with_other_ways_to_train(tmp_path, settings, step):
    if common.FORMERS and "gradient_accumulation_steps" in settings:
        pytest.skip("the Trainer of PaddleFormers accumulates gradients on GPUs only")
    assert_exact(tmp_path, step, **settings)


class Stops(common.TrainerCallback):
    """Has a checkpoint saved after a step and ends, or has SIGTERM come in it; notes the evaluations."""

    def __init__(self, step, evaluations, signalled=False):
        self.step, self.evaluations, self.signalled = step, evaluations, signalled

    def on_step_end(self, args, state, control, **kwargs):
        if self.signalled and state.global_step == self.step:
            signal.raise_signal(signal.SIGTERM)
        control.should_save = not self.signalled and state.global_step == self.step

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.evaluations.append((state.global_step, metrics["eval_loss"]))

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step and not self.signalled:
            raise SystemExit


def run_and_stop(folder, step, evaluations, signalled=False, resume=None):
    settings = {"save_strategy": "epoch", "max_steps": 14, **EVALUATE}
    with StopOnSigterm() as stop:
        callbacks = [Stops(step, evaluations, signalled), stop]
        return trainer_run.run(folder, callbacks=callbacks, resume=resume, **settings)


def outcome(trainer):
    state = trainer.state
    return os.path.basename(state.best_model_checkpoint), state.best_metric, state_of(trainer)[:2]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """The outcome of a run, and its evaluations."""
    evaluations = []
    trainer = run_and_stop(tmp_path_factory.mktemp("never"), None, evaluations)
    assert [at for at, _ in evaluations] == [6, 12, 14], "the last epoch is cut short"
    return outcome(trainer), evaluations


@pytest.mark.promise(
    "a run resumed after SIGTERM has the evaluations, metric-driven rates and best model of an uninterrupted run"
)
@pytest.mark.representatives
@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("step", [6, 9, 12, 14])
def test_a_run_that_is_stopped_in_any_step_has_the_same_evaluations_and_best_model(
    never_stopped, tmp_path, step, signalled
):
    found = []
    with pytest.raises(SystemExit):
        run_and_stop(tmp_path, step, found, signalled)
    resumed = run_and_stop(tmp_path, None, found, signalled, resume=True)
    assert (outcome(resumed), found) == never_stopped


@pytest.mark.promise("`ResumeMixin` alone makes the plain Trainer's resume exact, early stopping included")
def test_early_stopping_counts_on_after_a_resume(tmp_path):
    def run(folder, resume=None):
        settings = {
            "save_strategy": "epoch",
            "num_train_epochs": 6,
            "max_steps": -1,
            "learning_rate": 1e-30,
            **EVALUATE,
        }
        early = common.EarlyStoppingCallback(early_stopping_patience=2)
        return trainer_run.run(tmp_path / folder, callbacks=[early], resume=resume, **settings).state.global_step

    assert run("whole") == 18, "the first epoch is the best, then two"
    assert run("resumed", str(tmp_path / "whole/checkpoint-12")) == 18
    assert run("over", str(tmp_path / "whole/checkpoint-18")) == 18 and not os.listdir(tmp_path / "over")


class Stream(paddle.io.IterableDataset):
    """Data of unknown length."""

    def __iter__(self):
        data = DATA()
        while True:
            yield from (data[i] for i in range(len(data)))


@pytest.mark.parametrize("step", [4, 6])
def test_resume_is_exact_with_data_of_unknown_length(tmp_path, monkeypatch, step):
    monkeypatch.setattr(common, "Data", Stream)
    assert_exact(tmp_path, step, max_steps=9, save_steps=2)


@pytest.mark.promise("`ResumeMixin` alone makes the plain Trainer's resume exact, early stopping included")
@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("form", FORMATS)
def test_the_resume_mixin_alone_makes_the_plain_trainer_exact(tmp_path, form):
    class Plain(ResumeMixin, common.Trainer):
        pass

    def run(folder, resume=None):
        settings = {"max_steps": 9, "save_steps": 3, **trainer_run.checkpoint_format(form)}
        args = common.arguments(tmp_path / folder, common.TrainingArguments, **settings)
        return trainer_run.run(folder, form, resume=resume, cls=Plain, args=args)

    expected, checkpoint = state_of(run("whole")), tmp_path / "whole/checkpoint-9"
    assert last_checkpoint(tmp_path / "whole") == str(checkpoint) and not set(os.listdir(checkpoint)) & {RECORD, CONFIG}
    for step in (3, 6):
        assert state_of(run("resumed", str(tmp_path / f"whole/checkpoint-{step}"))) == expected, step
    for step in (6, 9):
        os.truncate(next((tmp_path / f"whole/checkpoint-{step}").glob("trainer_state*")), 10)
    with pytest.raises(ValueError, match="damaged: .trainer_state.*whole/checkpoint-3"):
        run("resumed", str(checkpoint))


def build_passed(model, hook):
    scheduler = paddle.optimizer.lr.LambdaDecay(1e-2, lambda step: min(1.0, (step + 1) / 5))
    how = {"layerwise_decay": 0.8, "layers": ldopt.LayerMap.from_model(model)}
    if hook:
        names = {param.name: name for name, param in model.named_parameters()}
        how = {"set_param_lr_fun": lambda param: 0.8 if "encoder" in names[param.name] else 1.0}
    return ldopt.AdamWDL(scheduler, parameters=model.parameters(), **how), scheduler


@pytest.mark.parametrize("hook", [False, True])
def test_resume_with_a_passed_optimizer(tmp_path, hook):
    assert_exact(tmp_path, 4, passed=lambda model: build_passed(model, hook), max_steps=9)
    if not hook:
        with pytest.raises(ValueError, match="decay was {'layerwise_lr_decay': 0.8} and is"):
            resume(tmp_path / "whole/checkpoint-4", tmp_path / "other", layerwise_lr_decay=0.5)


def mortal(folder, form, death, resume):
    """Train in a process of its own (`trainer_run.train_until`); return how it ended."""
    log = folder.parent / "log"
    process = processes.start(trainer_run.train_until, str(folder), form, death, resume, log=log)
    process.join(300)
    assert process.exitcode in (0, -signal.SIGKILL), log.read_text()[-2000:]
    return process.exitcode


@pytest.mark.promise("a killed Trainer run resumes and ends bit for bit like an uninterrupted run")
@pytest.mark.parametrize("form", [FORMATS[0], pytest.param(FORMATS[1], marks=pytest.mark.slow)])
def test_killed_and_resumed_ends_with_the_same_weights(tmp_path, form):
    step, seconds = random.SystemRandom().randint(1, 12), random.SystemRandom().uniform(0, 0.03)
    deaths = [f"after:{step}:{seconds}", "never"]
    if form == "plain":
        deaths.insert(1, "saving:optimizer.pdopt")
    expected = common.weights(trainer_run.run(tmp_path / "whole", form, save_steps=100).model)
    folder = tmp_path / "killed"
    for death in deaths:
        resumes = last_checkpoint(folder) is not None
        assert mortal(folder, form, death, resumes) == (0 if death == "never" else -signal.SIGKILL)
        if death.startswith("saving"):
            torn = [name for name in os.listdir(folder) if (folder / name / record.PARTIAL).exists()]
            assert torn and str(folder / torn[0]) != last_checkpoint(folder)
    assert not list(folder.glob("*/*.partial")), "the checkpoint that was cut short is to be written anew"
    with np.load(folder / "final.npz") as final:
        assert common.same(expected, dict(final)), f"killed {seconds} s after step {step}"


# --- refused ---


@pytest.mark.parametrize(
    "change, message",
    [
        ({"layerwise_lr_decay": 0.9}, "decay was {'layerwise_lr_decay': 0.8} and is {'layerwise_lr_decay': 0.9} now"),
        ({"layerwise_lr_decay": 1.0}, "'layerwise_lr_decay': 0.8, 'layerwise_min_ratio': 0.0, "),
        ({"layerwise_convention": "electra"}, "{'layerwise_convention': 'electra'} now"),
        ({"layerwise_multipliers": '{"classifier": 0.1}'}, "decay was {'layerwise_multipliers': None} and is "),
        ({"layerwise_rules": '{"layers.1.linear1": "head"}'}, "linear1.weight': ['bert.encoder.layers', 2, 2]"),
        ({"optim": "adamw"}, "optimizer was 'AdamWDL' and is 'AdamW' now"),
    ],
)
def test_resume_with_other_settings_is_refused(saved, tmp_path, change, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        resume(saved, tmp_path, **change)
    assert "`allow_layerwise_change` resumes with the present settings" in str(caught.value)
    assert str(caught.value).endswith(f"Received: resume_from_checkpoint={saved!r}")


def test_resume_with_another_depth_is_refused_before_anything_changes(saved, tmp_path):
    model = common.tiny_model(layers=3)
    before = common.weights(model)
    trainer = common.trainer(tmp_path, model=model, optim="adamwdl", layerwise_lr_decay=0.8)
    with pytest.raises(ValueError, match=r"layers was {'bert.*2\], .* and is {'bert.*3\], "):
        trainer.train(resume_from_checkpoint=saved)
    assert common.same(before, common.weights(model))
    assert trainer.optimizer is None


def test_a_change_can_be_allowed(saved, tmp_path, monkeypatch):
    said = common.messages(monkeypatch)
    trainer = resume(saved, tmp_path, layerwise_lr_decay=0.5, allow_layerwise_change=True)
    assert any("despite a difference: decay was {'layerwise_lr_decay': 0.8} and is" in line for line in said)
    assert trainer.state.global_step == 4
    classifier, block = trainer.model.classifier.weight, trainer.model.bert.encoder.layers[0].linear1.weight
    assert trainer.optimizer.layerwise_ratio(classifier) == 1.0
    assert trainer.optimizer.layerwise_ratio(block) == 0.25


@pytest.mark.parametrize("allowed", [False, True])
def test_another_optimizers_state_is_refused(saved, tmp_path, allowed):
    with pytest.raises(ValueError, match="the state of AdamWDL cannot be loaded into Came.*Received: resume_from"):
        resume(saved, tmp_path, optim="came", allow_layerwise_change=allowed)


def test_adamwdl_goes_on_with_adamws_state_if_allowed(saved, tmp_path):
    trainer = resume(saved, tmp_path, optim="adamw", allow_layerwise_change=True)
    assert type(trainer.optimizer).__name__ == "AdamW" and trainer.state.global_step == 4


def test_unfreezing_at_a_resume_is_refused_because_there_is_no_state(tmp_path):
    settings = {"layerwise_lr_decay": 0.5, "allow_layerwise_change": True, "max_steps": 2, "save_steps": 2}
    trainer_run.run(tmp_path, layerwise_freeze_below=0.3, **settings)
    with pytest.raises(ValueError, match="such as 'bert.*were frozen and have no optimizer state in it"):
        resume(tmp_path / "checkpoint-2", tmp_path, **{**settings, "layerwise_freeze_below": 0.2})
    more = {**settings, "layerwise_freeze_below": 0.6, "max_steps": 4}
    assert resume(tmp_path / "checkpoint-2", tmp_path, **more).state.global_step == 4


def test_a_checkpoint_without_a_record(checkpoint, tmp_path, monkeypatch):
    for name in (RECORD, FILES):
        os.remove(checkpoint / name)
    with pytest.raises(ValueError, match="decay was None and is {.*`allow_layerwise_change`"):
        resume(checkpoint, tmp_path)
    said = common.messages(monkeypatch)
    assert resume(checkpoint, tmp_path, allow_layerwise_change=True).state.global_step == 4
    assert any("decay was None" in line for line in said)
    said.clear()
    assert resume(checkpoint, tmp_path, layerwise_lr_decay=1.0).state.global_step == 4  # nothing to be mistaken about
    assert not said


def test_an_incomplete_checkpoint_is_refused(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoint-3")
    (tmp_path / "checkpoint-3" / record.PARTIAL).touch()
    os.mkdir(tmp_path / "checkpoint-9")  # killed even before the record
    os.mkdir(tmp_path / "checkpoint-notes")
    assert last_checkpoint(tmp_path) == str(checkpoint)
    for change in ({}, {"allow_layerwise_change": True}):
        with pytest.raises(ValueError, match="while saving: train.resume_from_checkpoint=True. takes the last valid"):
            resume(tmp_path / "checkpoint-3", tmp_path, **change)
    shutil.rmtree(checkpoint)
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "nowhere") is None


def test_resume_from_the_last_complete_checkpoint(checkpoint, tmp_path):
    trainer = trainer_run.run(tmp_path, max_steps=4, save_steps=100, resume=True)
    assert trainer.state.global_step == 4
    shutil.rmtree(checkpoint)
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory: .*=True, output_dir="):
        trainer_run.run(tmp_path, resume=True)


@pytest.mark.parametrize(
    "name, text, message",
    [
        *((RECORD, text, "settings cannot be read") for text in ("{", "[]", "{}", '{"format": 2}')),
        (RECORD, '{"format": 1}', "Another version of paddle_ldopt .*reads format 2. Received: format=1"),
        *((EPOCH_RNG, text, f"generators cannot be read.*{EPOCH_RNG}") for text in ("{", "{}")),
        (EPOCH_RNG, '{"numpy": ["MT19937", [1], 0, 0, 0.0], "python": [3, [1], null]}', "generators cannot be read"),
    ],
)
def test_a_file_of_ours_that_cannot_be_read(checkpoint, tmp_path, name, text, message):
    (checkpoint / name).write_text(text)
    os.remove(checkpoint / FILES)  # which would tell
    with pytest.raises(ValueError, match=message):
        resume(checkpoint, tmp_path)


def test_another_layout_is_refused_in_a_folder_with_any_name(saved, tmp_path):
    folder = tmp_path / "run[1]" / "checkpoint-2"
    shutil.copytree(saved, folder)
    written = record_in(folder)
    (folder / RECORD).write_text(json.dumps({**written, "layout": {**written["layout"], "sharding": 2}}))
    os.remove(folder / FILES)
    with pytest.raises(ValueError, match="saved in the layout {'sharding': 2, "):
        resume(folder, tmp_path)


# --- written ---


def test_a_checkpoint_being_overwritten_is_incomplete(checkpoint):
    record.begin_checkpoint(str(checkpoint), {RECORD: {"optimizer": "AdamWDL"}})
    assert not (checkpoint / EPOCH_RNG).exists()
    assert last_checkpoint(checkpoint.parent) is None
    record.finish_checkpoint(str(checkpoint))
    record.finish_checkpoint(str(checkpoint))
    assert last_checkpoint(checkpoint.parent) == str(checkpoint)


def test_a_new_checkpoint_is_complete_before_an_old_one_is_deleted(tmp_path, monkeypatch):
    rotate, seen = common.Trainer._rotate_checkpoints, []

    def rotated(self, *args, **kwargs):
        seen.append(last_checkpoint(tmp_path))
        rotate(self, *args, **kwargs)

    monkeypatch.setattr(common.Trainer, "_rotate_checkpoints", rotated)
    trainer_run.run(tmp_path, max_steps=4, save_steps=2, save_total_limit=1)
    newest = [str(tmp_path / f"checkpoint-{step}") for step in (2, 4)]
    assert sorted(set(seen)) == newest and seen == sorted(seen)
    assert [name for name in os.listdir(tmp_path) if name.startswith("checkpoint-")] == ["checkpoint-4"]


ROTATED = {"save_strategy": "epoch", "max_steps": -1, "save_total_limit": 2, **EVALUATE}


def script_losses(monkeypatch, *losses):
    """Let each evaluation find the next of the losses."""
    values = iter(losses)
    monkeypatch.setattr(common.Trainer, "evaluate", lambda self, *args, **kwargs: {"eval_loss": next(values)})


def test_the_best_and_the_last_checkpoint_are_kept(tmp_path, monkeypatch):
    script_losses(monkeypatch, 3.0, 1.0, 2.0, 4.0, 5.0)
    trainer = trainer_run.run(f"{tmp_path}/", num_train_epochs=5, **ROTATED)
    kept = sorted(name for name in os.listdir(tmp_path) if name.startswith("checkpoint-"))
    assert kept == ["checkpoint-12", "checkpoint-30"]
    assert os.path.basename(trainer.state.best_model_checkpoint) == "checkpoint-12"


@pytest.mark.parametrize("end", [{"max_steps": 8}, {"num_train_epochs": 1.5, "max_steps": -1}], ids=str)
def test_a_run_that_ended_within_an_epoch_is_over(tmp_path, end):
    whole = trainer_run.run(tmp_path, save_steps=1, **end)
    step = whole.state.global_step
    again = trainer_run.run(tmp_path, save_steps=1, resume=str(tmp_path / f"checkpoint-{step}"), **end)
    assert again.state.global_step == step and step % 6 != 0
    assert common.same(common.weights(again.model), common.weights(whole.model))
    assert not os.path.exists(tmp_path / f"checkpoint-{step + 1}")
    longer = trainer_run.run(tmp_path, resume=str(tmp_path / f"checkpoint-{step}"), max_steps=step + 1)
    assert longer.state.global_step == step + 1, "unless more is asked for"


def test_the_best_model_of_a_run_that_was_moved(tmp_path, monkeypatch):
    script_losses(monkeypatch, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)

    def run(folder, epochs, checkpoint=None):
        resume = checkpoint and str(tmp_path / "second" / checkpoint)
        return trainer_run.run(tmp_path / folder, resume=resume, num_train_epochs=epochs, **ROTATED)

    run("first", 3)
    best = dict(np.load(one_array(tmp_path / "first/checkpoint-6")))
    shutil.move(tmp_path / "first", tmp_path / "second")
    done = run("second", 4, "checkpoint-18")
    assert done.state.best_model_checkpoint == str(tmp_path / "second/checkpoint-6")
    assert common.same(best, common.weights(done.model)), "the best model is loaded at the end"
    copied = run("third", 5, "checkpoint-24")
    assert copied.state.best_model_checkpoint == str(tmp_path / "second/checkpoint-6")
    assert sorted(os.listdir(tmp_path / "third"))[0].startswith("checkpoint-"), "none of another folder is deleted"
    assert (tmp_path / "second/checkpoint-6").exists()


def one_array(folder):
    """Write the weights of a checkpoint as arrays beside it; return the file's name."""
    model = common.tiny_model(dropout=0.1)
    model.set_state_dict(paddle.load(str(next(folder.glob("model_state*.pdparams")))))
    np.savez(folder.parent / "arrays.npz", **common.weights(model))
    return folder.parent / "arrays.npz"


def test_only_the_process_that_saves_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(common.Arguments, "should_save", False)
    trainer = common.trainer(tmp_path, layerwise_lr_decay=0.5)
    monkeypatch.setattr(common.Trainer, "_save_checkpoint", lambda *args, **kwargs: None)
    trainer._save_checkpoint(trainer.model)
    assert not os.path.exists(tmp_path / "checkpoint-0")


def test_other_gradual_unfreezing_is_refused(tmp_path):
    def run(k, **kwargs):
        callbacks = [GradualUnfreezeCallback(k)] if k else None
        return trainer_run.run(tmp_path, callbacks=callbacks, max_steps=4, save_steps=2, **kwargs)

    run(1)
    folder = str(tmp_path / "checkpoint-2")
    for k in (2, None):
        with pytest.raises(ValueError, match=f"unfreeze_every_k_steps was 1 and is {k} now"):
            run(k, resume=folder)
    assert run(1, resume=folder).state.global_step == 4


@pytest.mark.parametrize("kind", ["came", "lamb"])
def test_resume_is_exact_with_an_optimizer_that_sets_its_rate_itself(tmp_path, kind):
    def build(model):
        how = {"layers": ldopt.LayerMap.from_model(model), "layerwise_decay": 0.8, "parameters": model.parameters()}
        if kind == "came":
            return ldopt.Came(relative_step=True, **how), None
        return ldopt.Lamb(lambda step: 1e-2 / (step + 1), **how), None

    resumed = assert_exact(tmp_path, 4, passed=build, max_steps=7)
    assert resumed.optimizer.get_lr() == pytest.approx(1e-2 if kind == "came" else 1e-2 / 8)


def test_a_checkpoint_without_the_order_of_batches_warns(tmp_path, monkeypatch):
    trainer_run.run(tmp_path, max_steps=8, save_steps=8)
    for name in ("ldopt_epoch_rng.json", FILES):
        os.remove(tmp_path / "checkpoint-8" / name)
    said = common.messages(monkeypatch)
    trainer_run.run(tmp_path / "resumed", max_steps=9, resume=str(tmp_path / "checkpoint-8"))
    assert any("has no random state of its epoch" in line for line in said)
