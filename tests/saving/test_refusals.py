"""Files of another optimizer and bad arguments are refused, and nothing changes."""

import os
import types

import numpy as np
import paddle
import pytest
from saving_cases import HALF, Run, refused, same

import paddle_ldopt as ldopt
from paddle_ldopt import _paddle
from paddle_ldopt.saving.state import check_state, state_of

WRONG = {
    "class": ({"case": "adafactor"}, "is of Came"),
    "size": ({"width": 5}, "build the same model"),
    "blocks": ({"blocks": 3}, "of another model: it lacks 'blocks.2.bias', 'blocks.2.weight'. Received"),
    "precision": ({"case": "came bf16"}, "build the same model"),
    "options": ({"beta3": 0.98}, r"changed=\['beta3'\].*beta3=0.98 \(in the file 0.99\)"),
    "argument": ({"loss_scale": 2}, r"changed=\['loss_scale'\]"),
    "stored type": ({"compression": True}, "must be float16 .*with the same options"),
    "rate": ({"rate": 2e-3}, r"changed=\['learning_rate'\]"),
    "ratios": ({"decay": 0.6}, r"changed=\['layerwise_decay'\]. Received: ratio=0.21"),
    "decayed": ({"apply_decay_param_fun": lambda name: False}, r"changed=\['apply_decay_param_fun'\]. .*decayed=False"),
    "clipping": ({"grad_clip": paddle.nn.ClipGradByNorm(1.0)}, r"changed=\['grad_clip'\]"),
    "schedule": ({"rate": paddle.optimizer.lr.StepDecay(1e-3, 2)}, r"changed=\['learning_rate', 'schedule'\]"),
}


@pytest.mark.promise("`load_optimizer` refuses a file of another optimizer, model or schedule")
@pytest.mark.parametrize("what", WRONG)
def test_another_optimizer_is_refused(what, saved):
    arguments, says = WRONG[what]
    other = Run(**{"case": "came", "seed": 1, **arguments}).train(1)
    with refused(f"(?s)^(?!The file's record cannot be read).*{says}", ValueError, other):
        ldopt.load_optimizer(saved, other.optimizer, other.model)
    allowed = says.partition("changed=\\[")[2].partition("\\]")[0].replace("'", "").split(", ")
    if allowed != [""]:
        ldopt.load_optimizer(saved, other.optimizer, other.model, changed=allowed)
        assert other.optimizer.state_dict()


@pytest.mark.parametrize(
    "case, option", [("Adam", "amsgrad"), ("SGD bf16", "multi_precision"), ("came", "compression")]
)
def test_an_option_that_changes_the_states_is_not_offered(case, option, path):
    runs = [Run(case, **{option: value}).train(1) for value in (False, True)]
    for run, other in (runs, runs[::-1]):
        ldopt.save_optimizer(path, run.optimizer, run.model)
        for changed in ((), [option]):
            with refused(r"must (consist of \[|be float).* the same options", ValueError, other):
                ldopt.load_optimizer(path, other.optimizer, other.model, changed=changed)


def test_ratios_of_a_hook_are_compared(path):
    run = Run("lamb", layerwise=False, set_param_lr_fun=lambda param: 0.5).train(1)
    other = Run("lamb", layerwise=False, set_param_lr_fun=lambda param: 0.25)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with refused(r"changed=\['layerwise_decay'\].*ratio of a hook=0.25 \(in the file 0.5\)", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    assert ldopt.load_optimizer(path, other.optimizer, other.model, changed=["layerwise_decay"]).step == 1


@pytest.mark.parametrize("case", ["adamwdl", "AdamW"])
def test_options_of_groups_are_compared(case, path):
    def build(decay):
        return Run(case, groups=[{"weight_decay": decay, "learning_rate": 0.5}, {}])

    run, same_again, other = build(0.1).train(1), build(0.1), build(0.2).train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, same_again.optimizer, same_again.model)
    assert same(run.state(), same_again.state())
    with refused(r"weight_decay=0.2 \(in the file 0.1\) of 'scale'", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)


def test_the_rate_of_a_group_is_compared(path):
    run, other = (Run("AdamW", groups=[{"learning_rate": rate}, {}]) for rate in (0.5, 0.6))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    says = r"changed=\['learning_rate'\]. Received: learning_rate of the group or ParamAttr=0.6 \(in the file 0.5\) of"
    with refused(says, ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    ldopt.load_optimizer(path, other.optimizer, other.model, changed=["learning_rate"])


def test_a_schedule_is_shown_with_its_present_names(path):
    run, other = Run("lamb"), Run("lamb", rate=ldopt.get_scheduler("constant_with_warmup", 1e-3, 2))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with refused("{'class': 'CurveSchedule', 'curve': {'class': 'Constant'", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)


def test_a_folder_that_is_not_there_is_named(tmp_path, victim):
    with pytest.raises(FileNotFoundError, match="The folder does not exist: '.*/missing'"):
        ldopt.save_optimizer(tmp_path / "missing" / "optimizer.safetensors", victim.optimizer, victim.model)


def test_arguments_are_checked(saved, tmp_path, victim):
    model, optimizer, foreign = victim.model, victim.optimizer, paddle.optimizer.Adam(parameters=[])
    load, save = ldopt.load_optimizer, ldopt.save_optimizer
    for says, call in {
        r"paddle.optimizer after `apply_layerwise_decay`; `paddle.save\(optimizer": lambda: load(saved, foreign, model),
        "must be a paddle.nn.Layer": lambda: load(saved, optimizer, "model"),
        "`changed` may name": lambda: load(saved, optimizer, model, changed=["bta1"]),
        "`changed` must be a list": lambda: load(saved, optimizer, changed="beta1"),
        "`changed` must be a list of": lambda: load(saved, optimizer, changed=np.array("beta1")),
        "^`model` .* give the whole model": lambda: load(saved, optimizer, paddle.nn.Linear(2, 2)),
        "^`model` .* after the model is complete": lambda: save(saved, optimizer, model.head),
        "`step` must be an int": lambda: save(saved, optimizer, model, step=1.5),
        "`step` must be at least 0": lambda: save(saved, optimizer, model, step=-1),
        "a folder": lambda: save(tmp_path, optimizer, model),
        "Received: path=None": lambda: load(None, optimizer, model),
        "Received: path=b'a'": lambda: load(b"a", optimizer, model),
        "Received: path=b'b'": lambda: save(b"b", optimizer, model),
        "one of Paddle's own files": lambda: save(tmp_path / "a.pdopt", optimizer, model),
        "leave out `model`": lambda: load(tmp_path / "a.pdopt", optimizer, model),
    }.items():
        with refused(says, (TypeError, ValueError), victim):
            call()


def test_a_state_that_is_not_whole_in_this_process_is_refused(saved, victim, monkeypatch):
    """The file would have this process's part alone."""
    layout = dict.fromkeys(("get_sharding_parallel_world_size", "get_model_parallel_world_size"), lambda: 2)
    monkeypatch.setattr(_paddle, "topology", lambda: types.SimpleNamespace(**layout))
    monkeypatch.setattr(_paddle, "is_group_sharded", lambda optimizer: True)
    monkeypatch.setattr(paddle.distributed, "get_world_size", lambda: 4)
    for call in (ldopt.save_optimizer, ldopt.load_optimizer):
        with refused("Received: sharding 2, tensor parallel 2, group_sharded 4$", ValueError, victim):
            call(saved, victim.optimizer, victim.model)


def test_the_states_behind_a_parameter_without_state_are_checked(victim):
    states = state_of(victim.optimizer)
    first, *_, last = names = list(states)
    del states[first], states[last]["exp_avg"]
    with pytest.raises(ValueError, match=f"The state of '{last}' must consist of .*Received: state="):
        check_state(victim.optimizer, states, dict(zip(names, names)))


def test_two_parameters_of_one_name_are_refused(path):
    """The file would have the state of one of them."""
    run = Run("adamwdl", layerwise=False)
    names = {param.name: "weight" for param in run.model.parameters()}
    optimizer = ldopt.AdamWDL(1e-3, parameters=run.model.parameters(), name_dict=names, set_param_lr_fun=lambda *_: 1.0)
    with refused("must not have the same name. Received: 'weight'", ValueError, run):
        ldopt.save_optimizer(path, optimizer)
    assert not os.path.exists(path)


def test_an_optimizer_of_a_static_graph_is_refused(saved, victim):
    says = "use `paddle.static.save`. Received: an optimizer"
    paddle.enable_static()
    try:
        without_parameters = ldopt.Lamb(1e-3)
        with pytest.raises(ValueError, match=f"{says} in static graph mode"):
            ldopt.load_optimizer(saved, victim.optimizer)
    finally:
        paddle.disable_static()
    with pytest.raises(ValueError, match=f"{says} without parameters"):
        ldopt.load_optimizer(saved, without_parameters)


def warmed_up(steps):
    return paddle.optimizer.lr.LinearWarmup(paddle.optimizer.lr.PolynomialDecay(1e-3, steps), 2, 0.0, 1e-3)


SCHEDULES = {  # two schedules, each as a function and its arguments, and what is shown of both
    "kind": (ldopt.get_scheduler, ("cosine", 1e-3, 2, 10), ("linear", 1e-3, 2, 10), "'Linear'.*'class': 'Cosine'"),
    "steps": (ldopt.get_scheduler, ("linear", 1e-3, 2, 10), ("linear", 1e-3, 2, 20), "'decay': 18.*'decay': 8"),
    "within a warm-up": (warmed_up, (10,), (20,), "'decay_steps': 20.*'decay_steps': 10"),
    "peak": (
        ldopt.get_scheduler,
        ("reduce_lr_on_plateau", 1e-3),
        ("reduce_lr_on_plateau", 2e-3),
        "'base_lr': 0.002.*'base_lr': 0.001",
    ),
}


@pytest.mark.promise("`load_optimizer` refuses a file of another optimizer, model or schedule")
@pytest.mark.parametrize("case", SCHEDULES)
def test_a_schedule_with_other_numbers_is_refused_unless_it_is_meant(case, path):
    make, was, now, shown = SCHEDULES[case]
    run, same_again, other = (Run("adamwdl", rate=make(*arguments)) for arguments in (was, was, now))
    schedule = run.optimizer._learning_rate
    for _ in range(2):
        schedule.step(*([0.5] if hasattr(schedule, "patience") else []))
    run.train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, same_again.optimizer, same_again.model)
    assert same_again.optimizer.get_lr() == run.optimizer.get_lr()
    with refused(rf"changed=\['schedule'\].*{shown}", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    ldopt.load_optimizer(path, other.optimizer, other.model, changed=["schedule"])
    assert other.optimizer._learning_rate.last_epoch == run.optimizer._learning_rate.last_epoch


def test_a_scaler_that_refuses_leaves_the_schedule_as_it_was(path):
    class Refusing:
        def state_dict(self):
            return {"scale": 1.0}

        def set_state_dict(self, state):
            if state["scale"] > 1.0:
                raise RuntimeError("no")

    scaler = Refusing()
    run = Run("adamwdl", rate=paddle.optimizer.lr.StepDecay(1e-3, 2)).train(HALF)
    scaler.state_dict = lambda: {"scale": 2.0}
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    other = Run("adamwdl", rate=paddle.optimizer.lr.StepDecay(1e-3, 2), seed=1).train(1)
    with refused("cannot be loaded", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model, scaler=Refusing())


def test_a_state_that_is_no_data_is_not_saved(path):
    class Odd(paddle.optimizer.lr.LRScheduler):
        def get_lr(self):
            return self.base_lr

        def state_keys(self):
            self.keys = ["last_epoch", "last_lr", "odd"]

    rate = Odd(1e-3)
    rate.odd = object()
    run = Run("lamb", rate=rate)
    with refused("must be numbers, text, arrays.*Received: object", ValueError, run):
        ldopt.save_optimizer(path, run.optimizer, run.model)
    assert not os.listdir(os.path.dirname(path))
