"""Optimizers and schedulers that are passed to the Trainer or made by a subclass; the layers that it measures."""

import random
import re
import warnings

import numpy as np
import paddle
import pytest
import trainer_common as common
from layer_models import Parts
from test_trainer import train

import paddle_ldopt as ldopt
from paddle_ldopt.trainer import LayerLRCallback, LdoptTrainerMixin, ScheduleCallback, map_layers


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


def test_rules_given_after_a_look_at_the_layers_apply(tmp_path):
    trainer = common.trainer(tmp_path, layerwise_lr_decay=0.5, max_steps=1)
    looked = trainer.layer_map
    trainer.train()
    assert trainer.layer_map is looked
    trainer = common.trainer(tmp_path / "other", layerwise_lr_decay=0.5, max_steps=1)
    assert trainer.layer_map.layer_of("bert.pooler.dense.weight").label == "head"
    trainer.args.layerwise_rules = '{"pooler": "embeddings"}'
    trainer.train()
    assert trainer.layer_map.layer_of("bert.pooler.dense.weight").label == "embeddings"


@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_settings_that_changed_between_two_trainings_are_refused(tmp_path, decay):
    trainer = common.trainer(tmp_path, layerwise_lr_decay=0.8, layerwise_freeze_below=0.6, max_steps=1)
    trainer.train()
    assert any(param.stop_gradient for param in trainer.model.parameters())
    trainer.args.layerwise_lr_decay, trainer.args.layerwise_freeze_below = decay, 0.0
    with pytest.raises(ValueError, match="Settings have changed since the optimizer was built"):
        trainer.train()
    trainer.optimizer = None
    trainer.train()
    assert not any(param.stop_gradient for param in trainer.model.parameters())
    trainer.args.weight_decay, trainer.args.layerwise_rules = 0.25, '{"pooler": "embeddings"}'
    with pytest.raises(ValueError, match="Received: weight_decay=0.25, layerwise_rules="):
        trainer.train()
    trainer.optimizer = None
    trainer.train()
    assert trainer.optimizer._default_dict["weight_decay"] == 0.25
    assert decay == 1.0 or trainer.optimizer.decay.layerwise_decay == decay
    assert trainer.layer_map.layer_of("bert.pooler.dense.weight").label == "embeddings"


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


class Rows(common.Data):
    """Rows whose making draws random numbers."""

    def __getitem__(self, i):
        random.random(), np.random.random(), paddle.rand([1])  # as augmentations do
        return {"input_ids": np.arange(1, 21), "labels": self.labels[i]}


class Noting(common.LdoptTrainer):
    """Notes the shapes of the ids."""

    shapes = ()

    def compute_loss(self, model, inputs, return_outputs=False):
        self.shapes = (*self.shapes, tuple(inputs["input_ids"].shape))
        return super().compute_loss(model, inputs, return_outputs)


def states():
    return str(random.getstate()), str(np.random.get_state()), str(paddle.get_rng_state()[0].current_seed())


def test_the_first_row_is_measured_and_leaves_no_trace(tmp_path):
    trainer = common.trainer(tmp_path, common.tiny_model(dropout=0.1), cls=Noting, layerwise_lr_decay=0.5)
    trainer.train_dataset = Rows()
    before, drawn = states(), []
    assert trainer.layer_map.source == "measured" and trainer.shapes == ((1, 20),)
    assert states() == before and trainer.model.training
    for look in (False, True):
        paddle.seed(3)
        if look:
            del trainer.layer_map
            trainer.layer_map  # noqa: B018
        drawn.append(paddle.rand([4]).numpy().tolist())
    assert drawn[0] == drawn[1]


def test_a_pass_that_fails_falls_back_to_names(tmp_path, monkeypatch):
    said = common.messages(monkeypatch)

    class Failing(common.LdoptTrainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            raise RuntimeError("no loss here")

    trainer = common.trainer(tmp_path, cls=Failing, layerwise_lr_decay=0.5)
    assert trainer.layer_map.source == "by names" and len(said) == 1 and "no loss here" in said[0]
    trainer = common.trainer(tmp_path, layerwise_lr_decay=0.5)
    trainer.train_dataset = iter(())
    assert trainer.layer_map.source == "by names" and "has no numbered rows" in said[1]


@pytest.mark.parametrize("example, source", [(None, "by names"), (paddle.to_tensor([[1, 2, 3]]), "measured")])
def test_example_of_the_other_interfaces(example, source):
    model = common.tiny_model()
    config = ldopt.LdoptConfig(layerwise_lr_decay=0.5, lr_scheduler_type="constant")
    optimizers = ldopt.create("adamwdl", model, 0.5, example=example), config.build(model, example=example)[0]
    found = [*(opt.layers for opt in optimizers), map_layers(model, example=example)]
    assert [layers.source for layers in found] == [source] * 3
    assert f"layers: {source}" in str(found[0].table(0.5))


def test_multipliers_need_no_blocks():
    model = Parts(backbone=paddle.nn.Linear(2, 2), head=paddle.nn.Linear(2, 2))
    opt = ldopt.create("adamw", model, ldopt.LayerDecay(1.0, multipliers={r"^backbone\.": 0.1}))
    assert [opt.layerwise_ratio(part.weight) for part in (model.backbone, model.head)] == [0.1, 1.0]


def test_a_hook_without_effect_and_an_absolute_rate_in_a_group_are_said():
    model = paddle.nn.Linear(2, 2)
    names = {param.name: name for name, param in model.named_parameters()}
    with pytest.warns(UserWarning, match="gives all 2 parameters the same ratio.*Received: layerwise_decay=0.5"):
        hook = lambda decay, names, n, param: 1.0  # noqa: E731
        ldopt.AdamWDL(parameters=model.parameters(), layerwise_decay=0.5, name_dict=names, set_param_lr_fun=hook)
    groups = [{"params": [model.weight], "learning_rate": 1e-5}, {"params": [model.bias]}]
    for name in ("adamwdl", "adamw"):
        with pytest.warns(UserWarning, match="is a multiplier of the optimizer's rate.*Received: learning_rate=1e-05"):
            ldopt.create(name, model, groups=[dict(group) for group in groups])
        with warnings.catch_warnings(record=True) as caught:  # rates in all groups, as PaddleMIX's: the optimizer has 1
            warnings.simplefilter("always")
            rates = [{**group, "learning_rate": rate} for group, rate in zip(groups, (1e-5, 2e-4))]
            ldopt.create(name, model, learning_rate=1.0, groups=rates)
        assert not [one for one in caught if "is a multiplier" in str(one.message)]
