"""Files of another optimizer and bad arguments are refused, and nothing changes."""

import contextlib
import functools
import os
import types

import paddle
import pytest
from optimizer_cases import static_graph
from saving_cases import ALL, HALF, Run, load_refused, refused, same

import paddle_ldopt as ldopt
from paddle_ldopt import _compat
from paddle_ldopt.parallel import save_checkpoint

CAME = {"case": "came"}
TOWER, STEP = ldopt.LayerDecay(0.5, towers={"blocks": 0.6}), paddle.optimizer.lr.StepDecay
# what was saved, what it meets, what both say; None if it cannot be loaded by strict=False either
OTHERS = {
    "class": (CAME, {"case": "adafactor"}, None, "optimizer was 'Came' and is 'Adafactor' now"),
    "Paddle's class": ({"case": "Lamb"}, {"case": "lamb"}, None, "was 'paddle.optimizer.Lamb' and is 'Lamb'"),
    "width": (CAME, {"case": "came", "width": 5}, 2, r"parameters was {'scale'.*|'float32 \[4, 4\]'.*\[5, 5\]"),
    "blocks": (CAME, {"case": "came", "blocks": 3}, 9, "layers was .*parameters was {} and is {'blocks.2"),
    "type": (CAME, {"case": "came bf16"}, 0, "'float32.* and is .*'bfloat16"),
    "weights": ({"case": "came bf16"}, {"case": "came bf16"}, 9, "masters of .* do not fit the weights: load"),
    "decay": (CAME, {"case": "came", "decay": 0.6}, 9, r"decay was {'layerwise_decay': 0.5} and is .*: 0.6} now"),
    "no decay": (CAME, {"case": "came", "layerwise": False}, 9, "decay was {'layerwise_decay': 0.5} and is {} now"),
    "towers": ({"case": "SGD", "decay": TOWER}, {"case": "SGD"}, 9, "decay was {'towers': {'blocks': 0.6}} and is"),
    "schedule": (CAME, {"case": "came", "rate": STEP(1e-3, 2)}, 9, "schedule was None and is 'StepDecay'"),
    "constant": ({"case": "lamb", "rate": STEP(1e-3, 2)}, {"case": "lamb"}, 9, "schedule was 'StepDecay' and is None"),
}


@pytest.mark.promise("`load_optimizer` refuses a file of another optimizer class, model, decay or schedule class")
@pytest.mark.parametrize("what", OTHERS)
def test_another_optimizer_is_refused_unless_it_is_meant(what, path):
    was, now, matched, says = OTHERS[what]
    run, other = Run(**was).train(1), Run(seed=1, **now).train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    load_refused(f"is of another optimizer: .*({says}).* strict=False", other, path)
    if matched is None:
        load_refused("must consist of", other, path, strict=False)
        return
    with pytest.warns(UserWarning, match=f"(?s)is of another optimizer: .*({says}).*strict=False"):
        report = ldopt.load_optimizer(path, other.optimizer, other.model, strict=False)
    assert len(report.matched) == matched
    for name, value in run.state().items():
        assert name.rpartition(".")[0] not in report.matched or (other.state()[name] == value).all()


LRS = paddle.optimizer.lr
LINEAR = functools.partial(ldopt.get_scheduler, "linear", 0.1, 0, 20)
SCHEDULED = {  # the schedule that was saved after 3 steps, the new one, its rate at step 3
    "rate": (lambda: ldopt.get_scheduler("linear", 1e-3, 0, 10), LINEAR, 0.085),
    "Paddle's": (lambda: LRS.CosineAnnealingDecay(1e-3, 10), lambda: LRS.CosineAnnealingDecay(0.1, 4), 0.0146446609),
    "class": (lambda: LRS.StepDecay(1e-3, 2), LINEAR, 0.085),
    "plateau": (lambda: ldopt.ReduceLROnPlateau(0.1), lambda: ldopt.ReduceLROnPlateau(0.2), 0.2),
    "of a plateau": (lambda: ldopt.ReduceLROnPlateau(0.1), lambda: LRS.StepDecay(0.1, 2), 0.01),
}


@pytest.mark.parametrize("what", SCHEDULED)
def test_the_next_step_has_the_new_schedules_rate_at_the_resumed_step(what, path):
    was, now, rate = SCHEDULED[what]
    run, other = (Run("came", rate=schedule()) for schedule in (was, now))
    run.train(3)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    strict = type(run.rate) is type(other.rate)
    with contextlib.nullcontext() if strict else pytest.warns(UserWarning, match="schedule was"):
        ldopt.load_optimizer(path, other.optimizer, other.model, strict=strict)
    assert other.optimizer.get_lr() == pytest.approx(rate)


def test_a_model_with_a_new_head_keeps_the_rest(path):
    run, other = Run("lamb").train(HALF), Run("lamb", seed=1)
    with paddle.utils.unique_name.guard("new_"):
        other.model.head = type(run.model.head)(4, 7)
    layers = ldopt.LayerMap.from_model(other.model, rules={"^scale$": "head"})
    other.optimizer = ldopt.Lamb(1e-3, parameters=other.model.parameters(), layers=layers, layerwise_decay=0.5)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with pytest.warns(UserWarning, match=r"'head.weight': 'float32 \[4, 2\]'.*'float32 \[4, 7\]'"):
        report = ldopt.load_optimizer(path, other.optimizer, other.model, strict=False)
    assert report.missing == ("head.weight", "head.bias") == report.unexpected[::-1]
    assert str(report) == (
        f"{path}: step 3, 7 matched, 2 missing ('head.weight', 'head.bias'), 2 unexpected ('head.bias', 'head.weight')"
    )
    assert same({k: v for k, v in run.state().items() if "head" not in k}, other.state())
    other.train(1)


@pytest.mark.parametrize(
    "case, now",
    [
        ("adamwdl", {"weight_decay": 0.3, "beta1": 0.8, "grad_clip": paddle.nn.ClipGradByNorm(1.0), "rate": 2e-3}),
        ("Momentum", {"momentum": 0.5, "weight_decay": paddle.regularizer.L1Decay(0.1)}),
    ],
)
def test_other_options_keep_their_present_values(case, now, path):
    run, other = Run(case).train(HALF), Run(case, seed=1, **now)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, other.with_weights_of(run).optimizer, other.model)
    assert same(run.everything(), other.everything())
    assert not same(run.train(ALL).everything(), other.train(ALL).everything())


@pytest.mark.parametrize(
    "case, option", [("Adam", "amsgrad"), ("SGD bf16", "multi_precision"), ("came", "compression")]
)
def test_an_option_that_changes_the_states_is_refused(case, option, path):
    runs = [Run(case, **{option: value}).train(1) for value in (False, True)]
    for run, other in (runs, runs[::-1]):
        ldopt.save_optimizer(path, run.optimizer, run.model)
        for strict in (True, False):
            load_refused(r"must (consist of \[|be float)", other, path, strict=strict)


def test_hooks_are_compared_by_their_arguments(path):
    def build(decay, n_layers):
        run = Run("lamb", layerwise=False)
        hooks = {"layerwise_decay": decay, "n_layers": n_layers, "name_dict": _compat.name_dict_of(run.model)}
        hooks["set_param_lr_fun"] = lambda decay, names, n, param: decay / (n + param.ndim)
        run.optimizer = ldopt.AdamWDL(1e-3, parameters=run.model.parameters(), **hooks)
        return run

    run, same_again, *others = build(0.5, 2), build(0.5, 2), build(0.6, 2), build(0.5, 3)
    ldopt.save_optimizer(path, run.optimizer)
    ldopt.load_optimizer(path, same_again.optimizer)
    for other in others:
        with refused("decay was", ValueError, other):
            ldopt.load_optimizer(path, other.optimizer)


def test_arguments_are_checked(saved, tmp_path, victim):
    model, optimizer, foreign = victim.model, victim.optimizer, paddle.optimizer.Adam(parameters=[])
    load, save = ldopt.load_optimizer, ldopt.save_optimizer
    for says, call in {
        r"paddle.optimizer after `apply_layerwise_decay`; `paddle.save\(optimizer": lambda: load(saved, foreign, model),
        "must be a paddle.nn.Layer": lambda: load(saved, optimizer, "model"),
        "^`model` .* give the whole model": lambda: load(saved, optimizer, paddle.nn.Linear(2, 2)),
        "^`model` .* after the model is complete": lambda: save(saved, optimizer, model.head),
        "`strict` must be": lambda: load(saved, optimizer, strict="no"),
        "`scaler` must be a loss scaler": lambda: save(saved, optimizer, model, scaler=1.0),
        "`step` must be an int": lambda: save(saved, optimizer, model, step=1.5),
        "`step` must be at least 0": lambda: save(saved, optimizer, model, step=-1),
        "must be a regular file": lambda: save(tmp_path, optimizer, model),
        "Received: path=None": lambda: load(None, optimizer, model),
        "Received: path=b'a'": lambda: load(b"a", optimizer, model),
        "Received: path=b'b'": lambda: save(b"b", optimizer, model),
    }.items():
        with refused(says, (TypeError, ValueError), victim):
            call()


def test_a_state_that_is_not_whole_in_this_process_is_refused(saved, victim, monkeypatch):
    """The file would have this process's part alone."""
    layout = dict.fromkeys(("get_sharding_parallel_world_size", "get_model_parallel_world_size"), lambda: 2)
    monkeypatch.setattr(_compat, "topology", lambda: types.SimpleNamespace(**layout))
    monkeypatch.setattr(_compat, "is_group_sharded", lambda optimizer: True)
    monkeypatch.setattr(paddle.distributed, "get_world_size", lambda: 4)
    for call in (ldopt.save_optimizer, ldopt.load_optimizer):
        with refused("Received: sharding=2, tensor_parallel=2, group_sharded=4$", ValueError, victim):
            call(saved, victim.optimizer, victim.model)


def test_two_parameters_of_one_name_are_refused(path):
    """The file would have the state of one of them."""
    run = Run("adamwdl", layerwise=False)
    names = {param.name: "weight" for param in run.model.parameters()}
    optimizer = ldopt.AdamWDL(1e-3, parameters=run.model.parameters(), name_dict=names, set_param_lr_fun=lambda *_: 1.0)
    with refused("must not have the same name. Received: 'weight'", ValueError, run):
        ldopt.save_optimizer(path, optimizer)
    assert not os.path.exists(path)


def test_an_optimizer_of_a_static_graph_is_refused(saved, victim):
    says = "use `paddle.static.save`. Received: optimizer="
    with static_graph():
        without_parameters = ldopt.Lamb(1e-3)
        with pytest.raises(ValueError, match=says):
            ldopt.load_optimizer(saved, victim.optimizer)
    with pytest.raises(ValueError, match=says):
        ldopt.load_optimizer(saved, without_parameters)


def test_a_scaler_that_refuses_leaves_the_schedule_as_it_was(path):
    class Refusing:
        def state_dict(self):
            return {"scale": 1.0}

        def set_state_dict(self, state):
            if state["scale"] > 1.0:
                raise RuntimeError("no")

    good, bad = Refusing(), Refusing()
    good.state_dict = lambda: {"scale": 2.0}
    run, other = (Run("adamwdl", rate=STEP(1e-3, 2), seed=i).train(HALF - i) for i in range(2))
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=good)
    load_refused("cannot be loaded", other, path, scaler=bad)


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


def test_state_that_would_be_lost_is_refused(path):
    class OfAUser(paddle.optimizer.SGD):
        """It might keep state anywhere."""

    run = Run("SGD")
    layers = ldopt.LayerMap.from_model(run.model, rules={"^scale$": "head"})
    plain, own = (cls(0.1, parameters=run.model.parameters()) for cls in (paddle.optimizer.SGD, OfAUser))
    ldopt.apply_layerwise_decay(own, layers, 0.5)
    for optimizer in (plain, own):
        with refused("paddle.optimizer after `apply_layerwise_decay`", TypeError, run):
            ldopt.save_optimizer(path, optimizer, run.model)
    with refused("one of paddle_ldopt; `paddle.save", TypeError, run):
        save_checkpoint(path, run.model, run.optimizer)
    wrapped = paddle.incubate.LookAhead(ldopt.AdamWDL(parameters=run.model.parameters()))
    for call in (ldopt.save_optimizer, ldopt.load_optimizer, lambda p, opt, m: save_checkpoint(p, m, opt)):
        with refused("LookAhead keeps state of its own.*Received: optimizer=LookAhead", TypeError, run):
            call(path, wrapped, run.model)
    ldopt.save_optimizer(path, ldopt.apply_layerwise_decay(plain, layers, 1.0), run.model)


@pytest.mark.parametrize("case", ["Momentum", "lamb"])
def test_a_parameter_that_was_cast_after_its_first_step_is_refused(case, path):
    fresh, run = Run(case, multi_precision=True), Run(case, multi_precision=True).train(1)
    for one in (fresh, run):
        one.model.head.to(dtype="bfloat16")
    ldopt.save_optimizer(path, fresh.optimizer, fresh.model)
    for call in (ldopt.save_optimizer, ldopt.load_optimizer):
        with refused("'linear_3.w_0' had another type when its state was created", ValueError, run):
            call(path, run.optimizer, run.model)
