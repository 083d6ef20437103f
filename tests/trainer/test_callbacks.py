"""The callbacks: the rates that are logged, the schedule that is shown, the layers that are opened one by one."""

import csv
import types
from unittest import mock

import numpy as np
import paddle
import pytest
import trainer_common as common
from optimizer_cases import near
from trainer_common import layer_of

import paddle_ldopt as ldopt
from paddle_ldopt import rates
from paddle_ldopt.rates import layerwise_interface
from paddle_ldopt.schedules.factory import peak_of
from paddle_ldopt.trainer import GradualUnfreezeCallback, LayerLRCallback, ScheduleCallback
from paddle_ldopt.trainer.mixin import check_given_optimizer

LAYERS = ["embeddings", "block 0", "block 1", "head"]
DECAYED = {"layerwise_lr_decay": 0.5, "optim": "adamwdl"}
RATIOS = [0.125, 0.25, 0.5, 1.0]


def changed(before, after):
    """Return the layers of which any parameter is another."""
    return {layer_of(name) for name in before if before[name].tobytes() != after[name].tobytes()}


def train(folder, *callbacks, **kwargs):
    return common.watched(folder, *callbacks, **{**DECAYED, **common.checkpoint_format("plain"), **kwargs})


def test_events_and_callbacks_are_the_plain_trainers(tmp_path):
    """As PaddleNLP's `test_event_flow` asks: the last callback but one is the user's, also after a failed training."""
    settings = {"logging_steps": 3, "save_steps": 2, "eval_steps": 2, "evaluation_strategy": "steps"}
    if common.FORMERS:  # its checkpoints fail with the second of Paddle's own AdamW in a process
        settings["save_strategy"] = "no"
    flows, events = [], [name for name in dir(common.TrainerCallback) if name.startswith("on_")]
    for cls in (common.Trainer, common.LdoptTrainer):
        listener = mock.Mock(common.TrainerCallback, **{f"{event}.return_value": None for event in events})
        trainer = common.trainer(tmp_path / cls.__name__, cls=cls, callbacks=[listener], **settings)
        before = list(trainer.callback_handler.callbacks)
        trainer.train()
        assert trainer.callback_handler.callbacks == before and before[-2] is listener
        flows.append([event for event, *_ in listener.method_calls])
        listener.on_step_end.side_effect = RuntimeError("stopped")
        with pytest.raises(RuntimeError, match="stopped"):
            trainer.train()
        assert trainer.callback_handler.callbacks == before
    assert flows[0] == flows[1] and flows[0].count("on_epoch_begin") == 1


def test_the_rates_of_the_layers_are_logged(tmp_path):
    evaluations = {"evaluation_strategy": "steps", "eval_steps": 2}
    _, watch = train(tmp_path, LayerLRCallback(), max_steps=4, warmup_steps=2, logging_steps=1, **evaluations)
    shown = [{key: value for key, value in logs.items() if key.startswith("lr/")} for logs in watch.logs]
    evaluated = ["eval_loss" in logs for logs in watch.logs]
    assert any(evaluated) and not any(logged for logged, end in zip(shown, evaluated) if end), "evaluations log none"
    for logged, rate in zip(filter(None, shown), [0.0, 5e-3, 1e-2, 5e-3]):  # of the step itself, not of the one after
        assert list(logged) == ["lr/embeddings", "lr/block_0", "lr/block_1", "lr/head"]
        np.testing.assert_allclose(list(logged.values()), [ratio * rate for ratio in RATIOS], rtol=1e-5)


def test_frozen_layers_are_at_zero_and_uniform_rates_are_logged_too(tmp_path):
    _, watch = train(tmp_path / "a", LayerLRCallback(), logging_steps=1, layerwise_freeze_below=0.2)
    assert watch.logs[0]["lr/embeddings"] == 0.0 < watch.logs[0]["lr/block_0"]
    _, watch = train(tmp_path / "b", LayerLRCallback(), logging_steps=1, layerwise_lr_decay=1.0, optim="adamw")
    assert watch.logs[0]["lr/embeddings"] == watch.logs[0]["lr/head"] == 1e-2


def read(path):
    with open(path) as file:
        header, *rows = csv.reader(file)
    return header, np.array(rows, float)


def test_the_schedule_is_shown_before_the_first_step(tmp_path, capsys):
    picture = tmp_path / "shown" / "schedule.png"
    train(tmp_path, ScheduleCallback(picture), max_steps=6, warmup_steps=2)
    assert picture.read_bytes().startswith(b"\x89PNG")
    header, rows = read(tmp_path / "shown" / "schedule.csv")
    assert header == ["step", *LAYERS]
    rates = np.array([0, 0.5, 1, 0.75, 0.5, 0.25]) * 1e-2
    np.testing.assert_allclose(rows[:, 1:], np.outer(rates, RATIOS), rtol=1e-12)
    out = capsys.readouterr().out
    assert "* head   . embeddings" in out and str(picture) in out


def test_a_resume_shows_the_whole_schedule_again(tmp_path):
    train(tmp_path, ScheduleCallback(tmp_path / "a.png"), max_steps=6, save_steps=3)
    train(tmp_path, ScheduleCallback(tmp_path / "b.png"), max_steps=6, resume=str(tmp_path / "checkpoint-3"))
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_a_schedule_on_a_metric_cannot_be_shown(tmp_path):
    settings = {"lr_scheduler_type": "reduce_lr_on_plateau", "evaluation_strategy": "steps", "eval_steps": 2}
    with pytest.raises(ValueError, match="cannot show the rates before training.*lr_scheduler='ReduceLROnPlateau'"):
        train(tmp_path, ScheduleCallback(tmp_path / "schedule.png"), **settings)


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("optim", ["adamwdl", "adamw", "came"])
def test_one_more_layer_from_the_top_every_k_steps(tmp_path, optim):
    _, watch = train(tmp_path, GradualUnfreezeCallback(2), LayerLRCallback(), max_steps=9, logging_steps=1, optim=optim)
    for step, (before, after) in enumerate(zip(watch.weights, watch.weights[1:])):
        assert changed(before, after) == {layer for layer in range(4) if step >= 2 * (3 - layer)}, step
    for step, logs in enumerate(watch.logs[:8]):
        shown = [logs["lr/" + name.replace(" ", "_")] > 0 for name in LAYERS]
        assert shown == [step >= 2 * (3 - layer) for layer in range(4)]


def test_closed_layers_do_not_count_in_clipping(tmp_path):
    """The head alone, clipped, moves as if the rest were frozen by `stop_gradient`."""
    first, _ = train(tmp_path / "a", GradualUnfreezeCallback(3), max_steps=3, max_grad_norm=0.01, optim="adamw")
    with paddle.utils.unique_name.guard():
        model = common.tiny_model()
        for name, param in model.named_parameters():
            param.stop_gradient = layer_of(name) != 3
        trainer = common.trainer(tmp_path / "b", model, max_steps=3, max_grad_norm=0.01)
        trainer.train()
    got, expected = common.weights(first.model), common.weights(model)
    assert changed(common.weights(common.tiny_model()), got) == {3}
    near(got, {name: value for name, value in expected.items() if layer_of(name) == 3}, rtol=1e-5, atol=1e-7)


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("optim", ["adamwdl", "adamw", "adafactor"])
def test_a_resume_is_exact(tmp_path, optim):
    """At the very step that opens a layer, and in between."""
    settings = {"max_steps": 8, "optim": optim, "warmup_steps": 2, "save_steps": 1}
    whole, _ = train(tmp_path, GradualUnfreezeCallback(2), **settings)
    for step in (4, 5):
        checkpoint = str(tmp_path / f"checkpoint-{step}")
        rest, watch = train(tmp_path / "rest", GradualUnfreezeCallback(2), resume=checkpoint, **settings)
        assert len(watch.weights) == 8 - step
        assert common.same(common.weights(rest.model), common.weights(whole.model)), step


@pytest.mark.parametrize("form", ["plain"] if common.FORMERS else ["plain", "unified"])
def test_a_second_training_goes_on_from_an_earlier_checkpoint(tmp_path, form):
    """The parameters that were closed at the checkpoint have states by then."""
    settings = {**common.checkpoint_format(form), "max_steps": 6, "save_steps": 1}
    made, _ = train(tmp_path, GradualUnfreezeCallback(2), **settings)
    whole = common.weights(made.model)
    with paddle.utils.unique_name.guard():
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert made.state.global_step == 6 and common.same(common.weights(made.model), whole)


def test_steps_count_before_any_parameter_moves(tmp_path):
    """As in a pipeline's first stages: there is no state to count in, neither after a save nor after a resume."""

    def weights(folder, save_steps, resume=None):
        with paddle.utils.unique_name.guard():
            model = common.tiny_model()
            for name, param in model.named_parameters():
                param.stop_gradient = layer_of(name) == 3
            settings = {**DECAYED, "optim": "adamweightdecay", **common.checkpoint_format("plain")}
            settings.update(max_steps=5, save_steps=save_steps)
            common.trainer(folder, model, callbacks=[GradualUnfreezeCallback(3)], **settings).train(resume)
        return common.weights(model)

    whole = weights(tmp_path / "whole", 100)
    assert common.same(weights(tmp_path, 1), whole)
    assert common.same(weights(tmp_path / "rest", 100, str(tmp_path / "checkpoint-2")), whole)


def begin(optimizer, layers):
    callback, state = GradualUnfreezeCallback(2, layers), types.SimpleNamespace(global_step=0, max_steps=9)
    callback.on_train_begin(None, state, None, optimizer=optimizer)
    return callback, state


def test_layers_come_from_the_optimizer_or_from_the_callback():
    model = common.tiny_model()
    layers, params = ldopt.LayerMap.from_model(model), model.parameters()
    plain = ldopt.Lamb(1e-3, parameters=params)
    begin(plain, layers)
    assert [plain.layerwise_ratio(param) for param in (params[0], params[-1])] == [0.0, 1.0]
    needs = "needs an optimizer with layers, or `layers` and one without any. Received: optimizer="
    for optimizer, given, received in (
        (paddle.optimizer.AdamW(parameters=params), None, "'AdamW'"),
        (ldopt.create("adamwdl", model, 0.5), layers, "'AdamWDL', layers=LayerMap"),
        (ldopt.Lamb(1e-3, parameters=params, set_param_lr_fun=lambda param: 0.5), layers, "'Lamb'"),
    ):
        with pytest.raises(ValueError, match=f"{needs}{received}"):
            begin(optimizer, given)


def test_accumulated_gradients_of_closed_layers_are_zeros():
    model = common.tiny_model()
    params = model.parameters()
    for param in params:
        param.main_grad = paddle.ones_like(param)
    optimizer = ldopt.AdamWDL(1e-3, parameters=params, layers=ldopt.LayerMap.from_model(model), layerwise_decay=0.5)
    callback, state = begin(optimizer, None)
    callback.on_optimizer_begin(None, state, None, optimizer=optimizer)
    assert [float(param.main_grad.max()) for param in (params[0], params[-1])] == [0.0, 1.0]


def test_the_schedule_shows_the_opening(tmp_path):
    callbacks = [GradualUnfreezeCallback(2), ScheduleCallback(tmp_path / "schedule.png"), LayerLRCallback()]
    trainer, watch = train(tmp_path, *callbacks, max_steps=8, lr_scheduler_type="constant", logging_steps=1)
    _, rows = read(tmp_path / "schedule.csv")
    for layer, ratio in enumerate(RATIOS):
        expected = [ratio * 1e-2 if step >= 2 * (3 - layer) else 0.0 for step in range(8)]
        np.testing.assert_allclose(rows[:, 1 + layer], expected)
    logged = [[line[f"lr/{name.replace(' ', '_')}"] for name in LAYERS] for line in watch.logs[:8]]
    np.testing.assert_allclose(logged, rows[:, 1:], rtol=1e-5)
    assert trainer.optimizer.layerwise_ratio(trainer.model.parameters()[0]) == 0.125, "left as it was"


OPTIMIZERS = [*ldopt.list_optimizers(), "applied", "opening"]


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize("name, stepped", [*((n, True) for n in OPTIMIZERS), ("adamwdl", False), ("applied", False)])
def test_reading_writes_nothing(tmp_path, name, stepped):
    model = common.tiny_model()
    layers = ldopt.LayerMap.from_model(model)
    schedule = ldopt.get_scheduler("polynomial", 0.1, 0, 20)
    if name == "applied":
        adam = paddle.optimizer.Adam(schedule, parameters=[{"params": model.parameters(), "learning_rate": 0.5}])
        optimizer = ldopt.apply_layerwise_decay(adam, layers, 0.5)
    else:
        built = "adamwdl" if name == "opening" else name
        optimizer = ldopt.create(built, model, 0.5, learning_rate=schedule, layers=layers)
    state = types.SimpleNamespace(global_step=0, max_steps=9, is_world_process_zero=True)
    if name == "opening":
        GradualUnfreezeCallback(2).on_train_begin(None, state, None, optimizer=optimizer)
    if stepped:
        for param in model.parameters():
            param.grad = paddle.ones_like(param)
        optimizer.step()

    def seen():
        attributes = {**vars(optimizer), "_groups": 0}, dict(vars(schedule))
        states = {key: dict(value) for key, value in optimizer._accumulators.items()}
        return attributes, states, [dict(param.optimize_attr or {}) for param in model.parameters()]

    before = seen()

    layers.table(optimizer=optimizer)
    layers.plot(tmp_path / "rates.png", optimizer=optimizer)
    rates.applied_rates(optimizer), rates.applied_rates(optimizer, 0.1)
    rates.next_rate(optimizer)
    layerwise_interface(optimizer).lr_divisor(3)
    peak_of(schedule)
    given, logs = {"optimizer": optimizer, "lr_scheduler": schedule}, LayerLRCallback(layers)
    for event in ("on_train_begin", "on_step_begin", "on_optimizer_begin", "on_step_end"):
        getattr(logs, event)(None, state, None, model=model, **given)
    logs.extra_logs(), layerwise_interface(optimizer).sets_own_lr
    if name != "opening":  # whose layers the callback opens while it reads
        ScheduleCallback(tmp_path / "schedule.png", layers).on_train_begin(None, state, None, model=model, **given)
    check_given_optimizer(optimizer, schedule, common.arguments(tmp_path))
    [optimizer.layerwise_ratio(param) for param in model.parameters()]
    assert seen() == before


def test_the_schedule_of_a_group_with_its_own_rate_is_not_shown(tmp_path):
    model, schedule = common.tiny_model(), ldopt.get_scheduler("linear", 1e-2, 0, 4)
    groups = [{"params": model.parameters()[:-2]}, {"params": model.parameters()[-2:], "lr": 1e-4}]
    given = {"model": model, "optimizers": (ldopt.Lamb(schedule, parameters=groups), schedule)}
    with pytest.raises(ValueError, match="use LayerLRCallback"):
        common.watched(tmp_path, ScheduleCallback(tmp_path / "schedule.svg"), **given)
