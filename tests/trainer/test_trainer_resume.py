"""Resume: exact where the settings are the same, refused where they are not."""

import functools
import json
import os
import random
import re
import signal

import numpy as np
import paddle
import processes
import pytest
import trainer_common as common
from test_checkpoints import RECORD, resume

import paddle_ldopt as ldopt
from paddle_ldopt.create import OPTIMIZERS
from paddle_ldopt.trainer import ResumeMixin, StopOnSigterm, last_checkpoint, record

FORMATS = ["plain", "flex"] if common.FORMERS else ["plain", "unified"]
CONFIG = "ldopt_config.json"
DATA = common.Data
EVALUATE = {"evaluation_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}


def state_of(trainer):
    optimizer = {k: v.numpy() for k, v in trainer.optimizer.state_dict().items() if isinstance(v, paddle.Tensor)}
    return (
        {k: v.tobytes() for k, v in sorted({**common.weights(trainer.model), **optimizer}.items())},
        trainer.optimizer.get_lr(),
        str(random.getstate()),
        str(np.random.get_state()),
        re.sub("0x[0-9a-f]+", "", str(paddle.framework.core.default_cpu_generator().get_state())),  # an address
    )


@pytest.fixture(scope="module", params=FORMATS)
def whole(request, tmp_path_factory):
    """A run with checkpoints 4, 8 and 12, of which the last ends an epoch: its format, folder and final state."""
    folder = tmp_path_factory.mktemp("whole")
    return request.param, folder, state_of(common.run(folder, request.param, max_steps=14, save_steps=4))


@pytest.mark.representatives(count=1)
def test_a_resume_is_exact_from_any_checkpoint_and_twice(whole, tmp_path):
    form, folder, expected = whole

    def resumed(checkpoint, **settings):
        return state_of(common.run(tmp_path, form, resume=str(checkpoint), max_steps=14, **settings))

    assert resumed(folder / "checkpoint-4", save_steps=5) == expected
    assert resumed(folder / "checkpoint-8", save_steps=100) == expected
    assert resumed(folder / "checkpoint-12", save_steps=100) == expected
    assert resumed(tmp_path / "checkpoint-10", save_steps=100) == expected


def assert_exact(tmp_path, step, form="plain", **settings):
    """Check that a run resumed from a checkpoint ends as an uninterrupted one; return it."""
    expected = state_of(common.run(tmp_path / "whole", form, **settings))
    folder = str(tmp_path / f"whole/checkpoint-{step}")
    resumed = common.run(tmp_path / "resumed", form, resume=folder, **settings)
    assert state_of(resumed) == expected
    return resumed


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("optim", [name for name in OPTIMIZERS if name != "adamwdl"])
def test_resume_is_exact_with_every_optimizer(tmp_path, form, optim):
    resumed = assert_exact(tmp_path, 4, form, max_steps=7, optim=optim)
    assert isinstance(resumed.optimizer, OPTIMIZERS[optim].cls)
    assert resumed.optimizer.layerwise_ratio(resumed.model.parameters()[0]) < 1


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize(
    "settings, step",
    [
        ({"gradient_accumulation_steps": 2, "save_steps": 4, "max_steps": 8}, 4),  # three steps make an epoch
        ({"gradient_accumulation_steps": 4, "save_steps": 2, "max_steps": 4}, 2),  # two of six batches are left over
        ({"save_strategy": "epoch", "num_train_epochs": 3, "max_steps": -1}, 12),
        ({"save_strategy": "epoch", "num_train_epochs": 3, "max_steps": -1, "do_eval": True, **EVALUATE}, 6),
        *(({"form": form, "layerwise_freeze_below": 0.6, "max_steps": 9}, 8) for form in FORMATS),
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
        return common.run(folder, callbacks=callbacks, resume=resume, **settings)


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
        settings = {"save_strategy": "epoch", "num_train_epochs": 6, "max_steps": -1, "learning_rate": 1e-30}
        settings.update(EVALUATE)
        early = common.EarlyStoppingCallback(early_stopping_patience=2)
        return common.run(tmp_path / folder, callbacks=[early], resume=resume, **settings).state.global_step

    assert run("whole") == 18, "the first epoch is the best, then two"
    counted = json.loads((tmp_path / "whole/checkpoint-12/ldopt_epoch_rng.json").read_text())
    assert counted["evaluations_without_gain"] == [1]
    assert run("resumed", str(tmp_path / "whole/checkpoint-12")) == 18
    assert run("run's folder", str(tmp_path / "whole")) == 18
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
        settings = {"max_steps": 9, "save_steps": 3, **common.checkpoint_format(form)}
        args = common.arguments(tmp_path / folder, common.TrainingArguments, **settings)
        return common.run(folder, form, resume=resume, cls=Plain, args=args)

    expected, checkpoint = state_of(run("whole")), tmp_path / "whole/checkpoint-9"
    assert last_checkpoint(tmp_path / "whole") == str(checkpoint) and not set(os.listdir(checkpoint)) & {RECORD, CONFIG}
    for step in (3, 6):
        assert state_of(run("resumed", str(tmp_path / f"whole/checkpoint-{step}"))) == expected, step
    for step in (6, 9):
        os.truncate(next((tmp_path / f"whole/checkpoint-{step}").glob("trainer_state*")), 10)
    with pytest.raises(ValueError, match="damaged: .trainer_state.*takes the last valid one"):
        run("resumed", str(checkpoint))


def test_a_resume_that_skips_no_data_is_the_trainers(tmp_path):
    class Plain(ResumeMixin, common.Trainer):
        pass

    def run(cls, folder, resume=None, **more):
        settings = {"max_steps": 9, "save_steps": 8, **common.checkpoint_format("plain"), **more}
        args = common.arguments(tmp_path / folder, common.TrainingArguments, **settings)
        return state_of(common.run(folder, resume=resume, cls=cls, args=args))

    run(Plain, "whole")
    resume = {"resume": str(tmp_path / "whole/checkpoint-8"), "ignore_data_skip": True}  # in the middle of an epoch
    assert run(Plain, "ours", **resume) == run(common.Trainer, "theirs", **resume)


def build_passed(kind, model):
    how = {"layerwise_decay": 0.8, "layers": ldopt.LayerMap.from_model(model)}
    if kind == "came":
        return ldopt.Came(relative_step=True, parameters=model.parameters(), **how), None
    if kind == "lamb":
        return ldopt.Lamb(lambda step: 1e-2 / (step + 1), parameters=model.parameters(), **how), None
    scheduler = paddle.optimizer.lr.LambdaDecay(1e-2, lambda step: min(1.0, (step + 1) / 5))
    if kind == "hook":
        names = {param.name: name for name, param in model.named_parameters()}
        how = {"set_param_lr_fun": lambda param: 0.8 if "encoder" in names[param.name] else 1.0}
    return ldopt.AdamWDL(scheduler, parameters=model.parameters(), **how), scheduler


@pytest.mark.parametrize("kind, rate", [("layers", 1e-2), ("hook", 1e-2), ("came", 1e-2), ("lamb", 1e-2 / 10)])
def test_resume_with_a_passed_optimizer(tmp_path, kind, rate):
    resumed = assert_exact(tmp_path, 4, passed=functools.partial(build_passed, kind), max_steps=9)
    assert resumed.optimizer.get_lr() == pytest.approx(rate)
    if kind == "layers":
        with pytest.raises(ValueError, match="decay was {'layerwise_lr_decay': 0.8} and is"):
            resume(tmp_path / "whole/checkpoint-4", tmp_path / "other", layerwise_lr_decay=0.5)


@pytest.mark.promise("a killed Trainer run resumes and ends bit for bit like an uninterrupted run")
@pytest.mark.parametrize("form", [FORMATS[0], pytest.param(FORMATS[1], marks=pytest.mark.slow)])
def test_killed_and_resumed_ends_with_the_same_weights(tmp_path, form):
    # two saves, after steps 16 and 20, must remain
    step, seconds = random.SystemRandom().randint(1, 8), random.SystemRandom().uniform(0, 0.03)
    deaths = [f"after:{step}:{seconds}", "never"]
    if form == "plain":
        deaths.insert(1, "saving:optimizer.pdopt")
    expected = common.weights(common.run(tmp_path / "whole", form, save_steps=100).model)
    folder, log = tmp_path / "killed", tmp_path / "log"
    for death in deaths:
        resumes = last_checkpoint(folder) is not None
        process = processes.start(common.train_until, str(folder), form, death, resumes, log=log)
        process.join(300)
        assert process.exitcode == (0 if death == "never" else -signal.SIGKILL), log.read_text()[-2000:]
        if death.startswith("saving"):
            torn = [name for name in os.listdir(folder) if (folder / name / record.PARTIAL).exists()]
            assert torn and str(folder / torn[0]) != last_checkpoint(folder)
    assert not list(folder.glob("*/*.partial")), "the checkpoint that was cut short is to be written anew"
    with np.load(folder / "final.npz") as final:
        assert common.same(expected, dict(final)), f"killed {seconds} s after step {step}"
