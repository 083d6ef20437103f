"""Optimizers and schedulers that are passed to the Trainer, or made by a subclass."""

import re

import paddle
import pytest
import trainer_common as common
from test_trainer import train

import paddle_ldopt as ldopt
from paddle_ldopt.trainer import LayerLRCallback, LdoptTrainerMixin, ScheduleCallback


def passed(kind="adamw", decay=0.5):
    model = common.tiny_model()
    scheduler = paddle.optimizer.lr.LambdaDecay(1e-2, lambda step: 1.0 if step else 0.5)
    if kind == "adamwdl":
        return model, ldopt.create("adamwdl", model, decay, learning_rate=scheduler), scheduler
    if kind == "constant":
        return model, paddle.optimizer.AdamW(1e-2, parameters=model.parameters()), None
    cls = paddle.optimizer.Momentum if kind == "momentum" else paddle.optimizer.AdamW
    opt = cls(scheduler, parameters=model.parameters())
    if kind == "applied":
        ldopt.apply_layerwise_decay(opt, ldopt.LayerMap.from_model(model), ldopt.LayerDecay(decay))
    return model, opt, scheduler


@pytest.mark.parametrize(
    "kind, decay", [("adamw", 1.0), ("momentum", 1.0), ("adamwdl", 1.0), ("adamwdl", 0.5), ("applied", 0.5)]
)
def test_a_passed_optimizer_trains_at_its_schedule(tmp_path, kind, decay):
    model, opt, scheduler = passed(kind)
    trainer, watch = common.watched(tmp_path, model=model, optimizers=(opt, scheduler), layerwise_lr_decay=decay)
    assert trainer.optimizer is opt
    assert watch.rates == [0.5e-2, 1e-2, 1e-2, 1e-2]
    assert not common.same(common.weights(model), common.weights(common.tiny_model()))


def own_rate(kind, decay=0.5):
    model = common.tiny_model()
    how = {"layers": ldopt.LayerMap.from_model(model), "layerwise_decay": decay, "parameters": model.parameters()}
    if kind == "came":
        return model, ldopt.Came(relative_step=True, **how)
    if kind == "adafactor":
        return model, ldopt.Adafactor(relative_step=True, scale_parameter=False, **how)
    return model, ldopt.Lamb([1e-2, 2e-2, 3e-2, 4e-2] if kind == "lamb, sequence" else lambda s: 1e-2 * (s + 1), **how)


@pytest.mark.parametrize("kind", ["came", "adafactor", "lamb, sequence", "lamb, callable"])
def test_an_optimizer_that_sets_its_rate_itself_trains_without_a_scheduler(tmp_path, kind):
    model, opt = own_rate(kind)
    _, watch = common.watched(tmp_path, LayerLRCallback(), model=model, optimizers=(opt, None), logging_steps=1)
    rates = [1e-2 * (step + 1) if "lamb" in kind else 1e-2 for step in range(4)]
    assert [line["lr/head"] for line in watch.logs[:4]] == pytest.approx(rates)
    assert [line["lr/embeddings"] for line in watch.logs[:4]] == pytest.approx([rate / 8 for rate in rates])
    assert not common.same(common.weights(model), common.weights(common.tiny_model()))


@pytest.mark.parametrize("kind", ["came", "lamb, callable"])
def test_a_schedule_beside_an_optimizer_that_sets_its_rate_itself_is_refused(tmp_path, kind):
    model, opt = own_rate(kind)
    show = ScheduleCallback(str(tmp_path / "schedule.png"))
    for scheduler, callbacks, message in (
        (OTHER, None, "if it sets its own rate.*learning_rate='its own'"),
        (None, [show], "use LayerLRCallback, which logs them"),
    ):
        with pytest.raises(ValueError, match=message):
            common.trainer(tmp_path, model=model, optimizers=(opt, scheduler), callbacks=callbacks).train()


OTHER = paddle.optimizer.lr.LambdaDecay(1e-2, lambda step: 1.0)


@pytest.mark.parametrize(
    "kind, scheduler, kwargs, message",
    [
        ("adamw", None, {}, "Received: optimizers=('AdamW', None), learning_rate='LambdaDecay'"),
        ("constant", None, {}, "the scheduler it was built with), or optimizers=(opt, None) if"),
        ("adamw", OTHER, {}, "Received: optimizers=('AdamW', 'LambdaDecay')"),
        ("constant", OTHER, {}, "The Trainer would step a scheduler that the optimizer does not use: "),
        ("momentum", "own", {"optim": "adamwdl"}, "Received: optim='adamwdl', layerwise_decay="),
        ("momentum", "own", {"layerwise_lr_decay": 0.8}, "optimizer='Momentum', its_decay=None"),
        ("adamwdl", "own", {"layerwise_lr_decay": 0.8}, "its_decay=LayerDecay(layerwise_decay=0.5, conv"),
    ],
)
def test_passed_optimizers_that_contradict_the_arguments(tmp_path, kind, scheduler, kwargs, message):
    model, opt, own = passed(kind)
    before = common.weights(model)
    optimizers = opt, own if scheduler == "own" else scheduler
    trainer = common.trainer(tmp_path, model=model, optimizers=optimizers, **kwargs)
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer.train()
    with pytest.raises(ValueError):
        trainer.create_optimizer_and_scheduler(num_training_steps=4)
    assert common.same(before, common.weights(model))


def test_an_optimizer_of_a_layer_that_was_replaced_is_refused(tmp_path):
    model = common.tiny_model()
    opt = ldopt.create("adamwdl", model, learning_rate=paddle.optimizer.lr.LambdaDecay(1e-2, lambda step: 1.0))
    model.classifier = paddle.nn.Linear(16, 2)
    trainer = common.trainer(tmp_path, model, optimizers=(opt, opt._learning_rate))
    with pytest.raises(ValueError, match="must train the model's own parameters: build it after a layer was replaced"):
        trainer.train()


def test_a_decay_that_changed_between_two_trainings_is_refused(tmp_path):
    trainer = common.trainer(tmp_path, layerwise_lr_decay=0.8, max_steps=1)
    trainer.train()
    trainer.args.layerwise_lr_decay = 0.5
    with pytest.raises(ValueError, match="The decay has changed since the optimizer was built"):
        trainer.train()
    trainer.optimizer = None
    trainer.train()
    assert trainer.optimizer.decay.layerwise_decay == 0.5


def test_an_optimizer_made_by_the_trainers_own_method_is_refused(tmp_path):
    """As `create_optimizer_and_scheduler` of PaddleMIX's BLIP2Trainer and MiniGPT4Trainer."""

    class Past(common.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            self.lr_scheduler = self.create_scheduler(num_training_steps)
            self.optimizer = paddle.optimizer.AdamW(self.lr_scheduler, parameters=self.model.parameters())

    both = type("Both", (LdoptTrainerMixin, Past), {})
    train(tmp_path, cls=both)
    for asked in ({"layerwise_lr_decay": 0.5}, {"optim": "came"}):
        with pytest.raises(ValueError, match="The Trainer already has an optimizer, so .* would be ignored"):
            train(tmp_path, cls=both, **asked)
