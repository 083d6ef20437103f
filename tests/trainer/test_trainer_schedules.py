"""`lr_scheduler_type` and `lr_scheduler_kwargs` in the Trainer."""

import json
from dataclasses import dataclass

import numpy as np
import paddle
import pytest
import trainer_common as common

from paddle_ldopt.config import BUILT_IN, settings_of_arguments
from paddle_ldopt.schedules import ON_METRIC, ReduceLROnPlateau, SchedulerType, get_scheduler
from paddle_ldopt.schedules.factory import SCHEDULES

STEPS = 10
EXTRA = {  # what a kind cannot do without
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 4},
}
KINDS = [kind.value for kind in SchedulerType if kind.value not in ON_METRIC]


def train(folder, **kwargs):
    trainer, watch = common.watched(folder, **{"max_steps": STEPS, **common.checkpoint_format("plain"), **kwargs})
    return trainer, watch.rates


@pytest.mark.parametrize(
    "kind, given, fields",
    [*((kind, EXTRA.get(kind, {}), {}) for kind in KINDS), ("polynomial", {"power": 2.0}, {"lr_end": 1e-3})],
)
def test_every_kind_is_what_get_scheduler_gives(tmp_path, kind, given, fields):
    warmup = {} if kind == "constant" else {"warmup_steps": 3}
    extra = {"lr_scheduler_kwargs": json.dumps(given)} if given else {}
    trainer = common.trainer(tmp_path, max_steps=STEPS, lr_scheduler_type=kind, **warmup, **fields, **extra)
    assert trainer.args.lr_scheduler_type.value == kind
    got = trainer.create_scheduler(STEPS)
    fields = {"num_cycles", "lr_end", "power"} & SCHEDULES[kind].options.keys() if kind in BUILT_IN else ()
    kwargs = {**{field: getattr(trainer.args, field) for field in fields}, **given}
    expected = get_scheduler(kind, 1e-2, warmup.get("warmup_steps"), STEPS, kwargs or None)
    for _ in range(STEPS):
        np.testing.assert_allclose(got.last_lr, expected.last_lr, rtol=1e-12, atol=1e-20)
        got.step()
        expected.step()


@pytest.mark.parametrize("kind", sorted(BUILT_IN))
def test_the_trainers_own_kinds_stay_its_own(tmp_path, kind):
    trainer = common.trainer(tmp_path, max_steps=STEPS, lr_scheduler_type=kind)
    args = common.arguments(tmp_path, cls=common.TrainingArguments, lr_scheduler_type=kind)
    plain = common.trainer(tmp_path, cls=common.Trainer, args=args)
    assert trainer.args.lr_scheduler_type is plain.args.lr_scheduler_type
    assert type(trainer.create_scheduler(STEPS)) is type(plain.create_scheduler(STEPS))


class Scripted(common.LdoptTrainer):
    """Its evaluations find what the script says."""

    script, key = [5.0, 4.0, 4.0, 4.0, 1.0], "eval_loss"

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        number = self.state.global_step // 2 - 1
        output.metrics[self.key] = self.script[number] if number < len(self.script) else 0.0
        return output


class Accuracy(Scripted):
    script, key = [0.5, 0.6, 0.5, 0.4, 0.3], "eval_accuracy"


class Equal(Scripted):
    script = [1.0] * 7


PLATEAU = {
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "lr_scheduler_kwargs": '{"patience": 1, "factor": 0.5}',
    "evaluation_strategy": "steps",
    "eval_steps": 2,
}
EPOCHS = {"lr_scheduler_kwargs": '{"patience": 0, "factor": 0.5}', "evaluation_strategy": "epoch", "max_steps": 14}


@pytest.mark.parametrize("cls, metric", [(Scripted, None), (Accuracy, "accuracy")], ids=["falls", "rises"])
def test_a_plateau_lowers_the_rate_after_evaluations_only(tmp_path, cls, metric):
    _, rates = train(tmp_path, cls=cls, metric_for_best_model=metric, **PLATEAU)
    # the third evaluation in a row without a gain is the second bad one, at step 8: more than `patience`
    assert rates == [1e-2] * 8 + [5e-3] * 2


@pytest.mark.promise(
    "a run resumed after SIGTERM has the evaluations, metric-driven rates and best model of an uninterrupted run"
)
@pytest.mark.parametrize(
    "cls, settings, lowered, step",
    [(Scripted, {}, 8, 6), (Equal, EPOCHS, 12, 6), (Equal, EPOCHS, 12, 12)],
    ids=["within an epoch", "end of an epoch", "end of the next"],
)
def test_a_plateau_resumes_exactly(tmp_path, cls, settings, lowered, step):
    settings = {**PLATEAU, "save_steps": 3, **settings}
    whole, rates = train(tmp_path / "whole", cls=cls, **settings)
    assert rates == [1e-2] * lowered + [5e-3] * 2, "six steps make an epoch, whose evaluation counts from the next on"
    checkpoint = str(tmp_path / f"whole/checkpoint-{step}")
    rest, later = train(tmp_path / "rest", resume=checkpoint, cls=cls, **settings)
    assert later == rates[step:]
    assert common.same(common.weights(rest.model), common.weights(whole.model))
    assert rest.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()


def test_an_evaluation_without_the_metric(tmp_path):
    with pytest.raises(ValueError, match="one of .*eval_loss.*Received: metric_for_best_model='f1'"):
        train(tmp_path, metric_for_best_model="f1", **PLATEAU)

    class Own(common.LdoptTrainer):
        def evaluate(self, *args, **kwargs):
            return {"eval_loss": 1.0}

    with pytest.raises(ValueError, match="to one of those of `super\\(\\).evaluate`"):
        train(tmp_path, cls=Own, **PLATEAU)


LINEAR = {"lr_scheduler_type": "linear"}
COSINE = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr_rate": 0.1}'}
FOLLOWS_METRIC = {"lr_scheduler_type": "reduce_lr_on_plateau", "evaluation_strategy": "steps", "eval_steps": 4}


@pytest.mark.parametrize(
    "was, now, rates",
    [
        (LINEAR, {**LINEAR, "max_steps": 10}, [6e-3, 5e-3]),
        (COSINE, {**COSINE, "learning_rate": 2e-2}, [0.0065, 0.00320577]),
        (LINEAR, FOLLOWS_METRIC, [1e-2, 1e-2]),
        ({**LINEAR, "optim": "lamb"}, {**FOLLOWS_METRIC, "optim": "lamb"}, [1e-2, 1e-2]),
        (FOLLOWS_METRIC, LINEAR, [2 / 6 * 1e-2, 1 / 6 * 1e-2]),
        (FOLLOWS_METRIC, {**FOLLOWS_METRIC, "learning_rate": 2e-2}, [2e-2, 2e-2]),
    ],
    ids=["longer", "rate", "to a plateau", "of ours to a plateau", "from a plateau", "rate of a plateau"],
)
def test_the_first_step_after_a_resume_has_the_new_schedules_rate(tmp_path, monkeypatch, was, now, rates):
    train(tmp_path, **{"max_steps": 6, "save_steps": 4, **was})
    said = common.messages(monkeypatch)
    _, got = train(tmp_path / "resumed", resume=str(tmp_path / "checkpoint-4"), **{"max_steps": 6, **now})
    assert got[:2] == pytest.approx(rates, rel=1e-4)
    is_other = ("eval_steps" in was) != ("eval_steps" in now)
    assert any("another kind of schedule, which is not used" in line for line in said) == is_other


@pytest.mark.parametrize("settings", [LINEAR, COSINE, {**FOLLOWS_METRIC, "warmup_steps": 3}])
def test_each_training_has_a_schedule_of_its_own(tmp_path, settings):
    trainer, first = train(tmp_path, max_steps=4, **settings)
    trainer.train()  # the callback goes on with the list
    assert first[:4] == first[4:] and first[0] != first[3]


def test_the_trainers_arguments_reach_a_kind_of_ours(tmp_path):
    settings = {"lr_scheduler_type": "cosine_with_restarts", "num_cycles": 2, "max_steps": 8}
    _, rates = train(tmp_path, **settings)
    expected = get_scheduler("cosine_with_restarts", 1e-2, 0, 8, {"num_cycles": 2})
    assert rates == pytest.approx([1e-2 * expected.curve(step) for step in range(8)])

    @dataclass
    class Formers(common.Arguments):
        min_lr: float = 0.0

    args = common.arguments(tmp_path, Formers, lr_scheduler_type="cosine", num_cycles=2, min_lr=1e-3)
    found = settings_of_arguments(args)
    assert found["lr_scheduler_type"] == "cosine_with_min_lr"
    assert found["lr_scheduler_kwargs"] == {"num_cycles": 2, "min_lr": 1e-3}


def test_a_given_plateau_follows_the_evaluations(tmp_path):
    trainer = common.trainer(tmp_path, cls=Scripted, max_steps=8, evaluation_strategy="steps", eval_steps=2)
    schedule = ReduceLROnPlateau(1e-2, factor=0.5, patience=1)
    optimizer = paddle.optimizer.SGD(schedule, parameters=trainer.model.parameters())
    trainer.optimizer, trainer.lr_scheduler = optimizer, schedule
    for _ in range(2):
        trainer.train()
    assert schedule() < 1e-2
    trainer.lr_scheduler = paddle.optimizer.lr.ReduceOnPlateau(1e-2)
    optimizer.set_lr_scheduler(trainer.lr_scheduler)
    with pytest.raises(TypeError, match="without a metric"):
        trainer.train()


def test_the_schedule_of_a_group_is_refused(tmp_path):
    trainer = common.trainer(tmp_path, optim="lamb", max_steps=2)
    named = dict(trainer.model.named_parameters())
    head = [named.pop(name) for name in [*named] if "classifier" in name]
    schedule = get_scheduler("linear", 1e-3, 1, 4)
    trainer.set_optimizer_grouped_parameters([{"params": head, "lr": schedule}, {"params": [*named.values()]}])
    with pytest.raises(ValueError, match="steps one schedule.*Received: groups"):
        trainer.train()
