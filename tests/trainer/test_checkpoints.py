"""The Trainer's checkpoints: refused where settings differ, complete or none, the best and the last kept."""

import json
import os
import re
import shutil

import paddle
import pytest
import trainer_common as common

from paddle_ldopt.trainer import GradualUnfreezeCallback, last_checkpoint, record

RECORD = "ldopt_layerwise.json"
EPOCH_RNG = "ldopt_epoch_rng.json"
FILES = "ldopt_files.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two steps with a decay of 0.8, and their checkpoint."""
    folder = tmp_path_factory.mktemp("saved")
    common.run(folder, max_steps=2, save_steps=2)
    return str(folder / "checkpoint-2")


@pytest.fixture
def checkpoint(saved, tmp_path):
    """A copy of `saved` to tamper with."""
    shutil.copytree(saved, tmp_path / "checkpoint-2")
    return tmp_path / "checkpoint-2"


def resume(folder, output_dir, **kwargs):
    return common.run(output_dir, resume=str(folder), **{"max_steps": 4, "save_steps": 100, **kwargs})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"layerwise_lr_decay": 0.9}, "decay was {'layerwise_lr_decay': 0.8} and is {'layerwise_lr_decay': 0.9} now"),
        ({"layerwise_lr_decay": 1.0}, "decay was {'layerwise_lr_decay': 0.8} and is {} now"),
        ({"layerwise_convention": "electra"}, "{'layerwise_convention': 'electra'} now"),
        ({"layerwise_multipliers": '{"classifier": 0.1}'}, "and is {'layerwise_multipliers': {'classifier': 0.1}} now"),
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


@pytest.mark.parametrize("optim, allowed", [("adamwdl", True), ("adamwdl", False), ("adamw", True)])
def test_unfreezing_at_a_resume_needs_leave_and_an_optimizer_of_ours(tmp_path, monkeypatch, optim, allowed):
    """There is no state of the unfrozen parameters: they start with a new one, which Paddle's own optimizers refuse."""
    settings = {"layerwise_lr_decay": 0.5, "allow_layerwise_change": True, "max_steps": 2, "save_steps": 2}
    settings["optim"] = optim
    common.run(tmp_path, layerwise_freeze_below=0.3, **settings)
    more = {**settings, "layerwise_freeze_below": 0.6, "max_steps": 4}
    assert resume(tmp_path / "checkpoint-2", tmp_path / "more", **more).state.global_step == 4
    less = {**settings, "layerwise_freeze_below": 0.2, "max_steps": 4, "allow_layerwise_change": allowed}
    said = common.messages(monkeypatch)
    if optim == "adamw" or not allowed:
        with pytest.raises(ValueError, match="such as 'bert.*were frozen and have no optimizer state in it"):
            resume(tmp_path / "checkpoint-2", tmp_path / "less", **less)
        return
    model = resume(tmp_path / "checkpoint-2", tmp_path / "less", **less).model
    assert any("were frozen and have no optimizer state in it" in line for line in said)
    saved = paddle.load(str(tmp_path / "checkpoint-2" / "model_state.pdparams"))
    moved = {common.layer_of(name) for name, x in common.weights(model).items() if (x != saved[name].numpy()).any()}
    assert moved == {1, 2, 3}


def test_a_checkpoint_without_a_record(checkpoint, tmp_path, monkeypatch):
    for name in (RECORD, FILES):
        os.remove(checkpoint / name)
    with pytest.raises(ValueError, match="decay was {} and is {.*`allow_layerwise_change`"):
        resume(checkpoint, tmp_path)
    said = common.messages(monkeypatch)
    assert resume(checkpoint, tmp_path, allow_layerwise_change=True).state.global_step == 4
    assert any("decay was {}" in line for line in said)
    said.clear()
    assert resume(checkpoint, tmp_path, layerwise_lr_decay=1.0).state.global_step == 4  # nothing to be mistaken about
    assert not said


def test_an_incomplete_checkpoint_is_refused(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoint-3")
    (tmp_path / "checkpoint-3" / record.PARTIAL).touch()
    os.mkdir(tmp_path / "checkpoint-9")  # killed even before the record
    os.mkdir(tmp_path / "checkpoint-notes")
    (tmp_path / "checkpoint-11").touch()
    record.finish_checkpoint(str(checkpoint))  # again, as by another machine with the same folder
    assert last_checkpoint(tmp_path) == str(checkpoint)
    for change in ({}, {"allow_layerwise_change": True}):
        with pytest.raises(ValueError, match="while saving: train.resume_from_checkpoint=True. takes the last valid"):
            resume(tmp_path / "checkpoint-3", tmp_path, **change)
    shutil.rmtree(checkpoint)
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "name, text, message",
    [
        *((RECORD, text, "settings cannot be read") for text in ("{", "[]", "{}", '{"format": 3}')),
        (RECORD, '{"format": 1}', "Another version of paddle_ldopt .*reads format 3. Received: format=1"),
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
    written = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    (folder / RECORD).write_text(json.dumps({**written, "layout": {**written["layout"], "sharding": 2}}))
    os.remove(folder / FILES)
    with pytest.raises(ValueError, match="saved in the layout {'sharding': 2, "):
        resume(folder, tmp_path)


def test_a_new_checkpoint_is_complete_before_an_old_one_is_deleted(tmp_path, monkeypatch):
    rotate, seen = common.Trainer._rotate_checkpoints, []

    def rotated(self, *args, **kwargs):
        seen.append(last_checkpoint(tmp_path))
        rotate(self, *args, **kwargs)

    monkeypatch.setattr(common.Trainer, "_rotate_checkpoints", rotated)
    common.run(tmp_path, max_steps=4, save_steps=2, save_total_limit=1)
    newest = [str(tmp_path / f"checkpoint-{step}") for step in (2, 4)]
    assert sorted(set(seen)) == newest and seen == sorted(seen)
    assert [name for name in os.listdir(tmp_path) if name.startswith("checkpoint-")] == ["checkpoint-4"]


ROTATED = {"save_strategy": "epoch", "max_steps": -1, "save_total_limit": 2, "evaluation_strategy": "epoch"}
ROTATED.update(load_best_model_at_end=True, metric_for_best_model="eval_loss")


def script_losses(monkeypatch, *losses):
    """Let each evaluation find the next of the losses."""
    values = iter(losses)
    monkeypatch.setattr(common.Trainer, "evaluate", lambda self, *args, **kwargs: {"eval_loss": next(values)})


def test_the_best_and_the_last_checkpoint_are_kept(tmp_path, monkeypatch):
    script_losses(monkeypatch, 3.0, 1.0, 2.0, 4.0, 5.0)
    trainer = common.run(f"{tmp_path}/", num_train_epochs=5, **ROTATED)
    kept = sorted(name for name in os.listdir(tmp_path) if name.startswith("checkpoint-"))
    assert kept == ["checkpoint-12", "checkpoint-30"]
    assert os.path.basename(trainer.state.best_model_checkpoint) == "checkpoint-12"


@pytest.mark.parametrize("end", [{"max_steps": 8}, {"num_train_epochs": 1.5, "max_steps": -1}], ids=str)
def test_a_run_that_ended_within_an_epoch_is_over(tmp_path, end):
    whole = common.run(tmp_path, save_steps=1, **end)
    step = whole.state.global_step
    again = common.run(tmp_path, save_steps=1, resume=str(tmp_path / f"checkpoint-{step}"), **end)
    assert again.state.global_step == step and step % 6 != 0
    assert common.same(common.weights(again.model), common.weights(whole.model))
    assert not os.path.exists(tmp_path / f"checkpoint-{step + 1}")
    longer = common.run(tmp_path, resume=str(tmp_path / f"checkpoint-{step}"), max_steps=step + 1)
    assert longer.state.global_step == step + 1, "unless more is asked for"


def test_the_best_model_of_a_run_that_was_moved(tmp_path, monkeypatch):
    script_losses(monkeypatch, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)

    def run(folder, epochs, checkpoint=None):
        resume = checkpoint and str(tmp_path / "second" / checkpoint)
        return common.run(tmp_path / folder, resume=resume, num_train_epochs=epochs, **ROTATED)

    run("first", 3)
    model = common.tiny_model(dropout=0.1)
    model.set_state_dict(paddle.load(str(next((tmp_path / "first/checkpoint-6").glob("model_state*.pdparams")))))
    best = common.weights(model)
    shutil.move(tmp_path / "first", tmp_path / "second")
    done = run("second", 4, "checkpoint-18")
    assert done.state.best_model_checkpoint == str(tmp_path / "second/checkpoint-6")
    assert common.same(best, common.weights(done.model)), "the best model is loaded at the end"
    copied = run("third", 5, "checkpoint-24")
    assert copied.state.best_model_checkpoint == str(tmp_path / "second/checkpoint-6")
    assert sorted(os.listdir(tmp_path / "third"))[0].startswith("checkpoint-"), "none of another folder is deleted"
    assert (tmp_path / "second/checkpoint-6").exists()


def test_other_gradual_unfreezing_is_refused(tmp_path):
    def run(k, **kwargs):
        callbacks = [GradualUnfreezeCallback(k)] if k else None
        return common.run(tmp_path, callbacks=callbacks, max_steps=4, save_steps=2, **kwargs)

    run(1)
    folder = str(tmp_path / "checkpoint-2")
    for k in (2, None):
        with pytest.raises(ValueError, match=f"unfreeze_every_k_steps was 1 and is {k} now"):
            run(k, resume=folder)
    assert run(1, resume=folder).state.global_step == 4


def test_a_checkpoint_without_the_order_of_batches_warns(tmp_path, monkeypatch):
    common.run(tmp_path, max_steps=8, save_steps=8)
    for name in ("ldopt_epoch_rng.json", FILES):
        os.remove(tmp_path / "checkpoint-8" / name)
    said = common.messages(monkeypatch)
    common.run(tmp_path / "resumed", max_steps=9, resume=str(tmp_path / "checkpoint-8"))
    assert any("has no random state of its epoch" in line for line in said)


def test_weights_alone_are_resumed_with_any_settings(checkpoint, tmp_path):
    others = {"optim": "lamb", "layerwise_lr_decay": 0.9, "ignore_load_lr_and_optim": True}
    assert type(resume(checkpoint, tmp_path, **others).optimizer).__name__ == "Lamb"
