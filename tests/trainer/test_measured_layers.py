"""A Trainer measures its layers with the first row of its data; `example=` of the other interfaces."""

import random
import warnings

import numpy as np
import paddle
import pytest
import trainer_common as common
from layer_models import Parts

import paddle_ldopt as ldopt
from paddle_ldopt.trainer import map_layers


class Rows(common.Data):
    """Rows whose making draws random numbers."""

    def __getitem__(self, i):
        random.random(), np.random.random(), paddle.rand([1])  # as augmentations do
        return {"input_ids": np.arange(1, 21), "labels": self.labels[i]}


class Trainer(common.LdoptTrainer):
    """Notes the shapes of the ids."""

    shapes = ()

    def compute_loss(self, model, inputs, return_outputs=False):
        self.shapes = (*self.shapes, tuple(inputs["input_ids"].shape))
        return super().compute_loss(model, inputs, return_outputs)


def states():
    return str(random.getstate()), str(np.random.get_state()), str(paddle.get_rng_state()[0].current_seed())


def test_the_first_row_is_measured_and_leaves_no_trace(tmp_path):
    trainer = common.trainer(tmp_path, common.tiny_model(dropout=0.1), cls=Trainer, layerwise_lr_decay=0.5)
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
