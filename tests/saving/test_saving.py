"""`save_optimizer` and `load_optimizer`: an exact resume, with schedule and scaler, in a plain file; sharded states."""

import hashlib
import itertools
import json
import pathlib
import re
import struct

import numpy as np
import paddle
import processes
import pytest
import safetensors.paddle
from optimizer_cases import every_variant, make
from paddle.optimizer import lr
from saving_cases import ALL, CASES, HALF, PADDLES, UNTRAINED, Run, bits, digest, print_loaded, read, refused, same

import paddle_ldopt as ldopt
from paddle_ldopt._compat import create_state
from paddle_ldopt.parallel import load_checkpoint, save_checkpoint


@pytest.mark.promise("a saved optimizer resumes bit for bit, with the C library and with Paddle's operations")
@pytest.mark.parametrize(
    ("case", "fused"), [*itertools.product(CASES, (None, False)), *((case, None) for case in PADDLES)]
)
def test_a_resume_is_exact(case, fused, path):
    whole = Run(case, fused=fused).train(ALL)
    half = Run(case, fused=fused).train(HALF)
    ldopt.save_optimizer(path, half.optimizer, half.model, step=HALF)
    again = Run(case, fused=fused).with_weights_of(half)
    report = ldopt.load_optimizer(path, again.optimizer, again.model)
    assert report.step == HALF
    assert same(half.state(), again.state())
    assert same(whole.everything(), again.train(ALL).everything())


@pytest.mark.representatives
@pytest.mark.promise("loading replaces the whole state, even by a state saved before the first step")
@pytest.mark.parametrize("case", [*CASES, *PADDLES])
@pytest.mark.parametrize("done", [0, HALF])
def test_what_is_loaded_replaces_what_was_there(case, done, path):
    run, other = Run(case).train(done), Run(case, seed=1).train(ALL)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    report = ldopt.load_optimizer(path, other.with_weights_of(run).optimizer, other.model)
    assert bool(report.matched) == (done > 0 or case == "SGD")  # which has no state
    assert same(run.train(ALL).everything(), other.train(ALL).everything())


@pytest.mark.parametrize("case", ["lamb", "Adam", "adamwdl bf16", "lamb bf16", "came bf16"])
def test_a_parameter_without_state_in_the_file_starts_anew(case, path):
    groups = [{"beta1": 0.7}, {"beta1": 0.8}]
    idle, used = (Run(case, idle=name, groups=groups) for name in ("head.bias", None))
    idle.train(HALF), used.train(HALF)
    ldopt.save_optimizer(path, idle.optimizer, idle.model)
    used.with_weights_of(idle)
    assert ldopt.load_optimizer(path, used.optimizer, used.model).missing == ("head.bias",)
    idle.idle = None
    assert same(idle.train(ALL).everything(), used.train(ALL).everything())


@pytest.mark.parametrize("case", UNTRAINED)
def test_float32_masters_are_saved(case, path):
    run, other = Run(case), Run(case, seed=1)
    with paddle.utils.unique_name.guard():
        create_state(run.optimizer, run.model.parameters())  # as the first step on a GPU
    for name, tensor in run.optimizer.state_dict()["master_weights"].items():
        tensor.set_value(np.random.default_rng(len(name)).standard_normal(tensor.shape).astype("float32"))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, other.optimizer, other.model)
    assert "head.bias.master" in other.state() and same(run.state(), other.state())


@pytest.mark.parametrize("case", ["came", "Lamb"])
def test_saving_changes_nothing(case, path):
    run = Run(case).train(HALF)
    before, attributes = bits(run.everything()), dict(vars(run.optimizer))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    assert bits(run.everything()) == before
    assert all(vars(run.optimizer)[name] is value for name, value in attributes.items())


@pytest.mark.promise("an optimizer's file can be read in another process, where Paddle's parameter names differ")
def test_names_are_the_models_wherever_they_come_from(path):
    run = Run("adamwdl").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, paddle.DataParallel(run.model))
    for seed in range(2):  # in a process where Paddle's own names are others
        again = Run("adamwdl", seed=seed, guard=False).with_weights_of(run)
        assert {p.name for p in again.model.parameters()} != {p.name for p in run.model.parameters()}
        ldopt.load_optimizer(path, again.optimizer)  # built with `layers`
        assert same(run.state(), again.state())
    plain = Run("lamb", layerwise=False).train(HALF)
    ldopt.save_optimizer(path, plain.optimizer, plain.model)
    other = Run("lamb", layerwise=False, guard=False)
    with refused("give `model`", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer)
    ldopt.save_optimizer(path, plain.optimizer)
    with refused("no names for Paddle's", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    with refused("parameters was {'linear_.* and is {'linear_", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer)
    again = Run("lamb", layerwise=False)
    ldopt.load_optimizer(path, again.optimizer)
    assert same(plain.state(), again.state())


@pytest.mark.promise("an optimizer's file can be read in another process, where Paddle's parameter names differ")
def test_another_process_reads_it(path):
    run = Run("came").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    process = processes.start(print_loaded, path, log=path + ".log")
    process.join(60)
    assert pathlib.Path(path + ".log").read_text().split()[-2:] == [str(HALF), digest(run.state())]


LOSSES = [3.0, 2.7, 2.9, 3.1, 0.3, 4.0, 3.0]
SCHEDULES = {
    type(make()).__name__: make
    for make in (
        lambda: lr.NoamDecay(64, 3),
        lambda: lr.PiecewiseDecay([2, 5], [0.3, 0.2, 0.1]),
        lambda: lr.NaturalExpDecay(0.1, 0.5),
        lambda: lr.InverseTimeDecay(0.1, 0.5),
        lambda: lr.PolynomialDecay(0.1, 3, 0.01, cycle=True),
        lambda: lr.LinearWarmup(lr.CosineAnnealingWarmRestarts(0.1, 2, 2), 2, 0.0, 0.1),
        lambda: lr.ExponentialDecay(0.1, 0.9),
        lambda: lr.MultiStepDecay(0.1, [2, 5]),
        lambda: lr.StepDecay(0.1, 2),
        lambda: lr.LambdaDecay(0.1, lambda step: 0.9**step),
        lambda: lr.ReduceOnPlateau(0.1, patience=0),
        lambda: lr.CosineAnnealingDecay(0.1, 3),
        lambda: lr.MultiplicativeDecay(0.1, lambda step: 0.9),
        lambda: lr.OneCycleLR(0.1, 200),
        lambda: lr.CyclicLR(0.1, 0.4, 3),
        lambda: lr.LinearLR(0.1, 5),
        lambda: lr.CosineAnnealingWarmRestarts(0.1, 3),
        lambda: ldopt.WarmUp(0.1, lr.CosineAnnealingWarmRestarts(0.1, 2, 2), 2),
    )
}
SCHEDULES["growing cycles"] = lambda: lr.CosineAnnealingWarmRestarts(0.1, 1, 3)


def rates(schedule, steps):
    follows_metric = hasattr(schedule, "patience")
    taken = range(schedule.last_epoch, schedule.last_epoch + steps)
    return [(schedule.step(*[LOSSES[step % 7]] * follows_metric), schedule())[1] for step in taken]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_go_on(kind, path):
    run = Run("SGD", rate=SCHEDULES[kind]())
    # 3: within a ramp; step 121 begins the fifth of the growing cycles
    for steps in (3, 8, *[11] * (11 if kind == "growing cycles" else 1)):
        ldopt.save_optimizer(path, run.optimizer)
        again = Run("SGD", rate=SCHEDULES[kind]())
        ldopt.load_optimizer(path, again.optimizer)
        assert rates(again.rate, steps) == rates(run.rate, steps)


def test_every_schedule_of_paddle_is_tested():
    assert set(lr.__all__) - {"LRScheduler"} <= set(SCHEDULES)


def test_a_loss_scaler_goes_on(path):
    run, scaler = Run("adamwdl"), ldopt.DynamicLossScaler(2.0**10, scale_factor=2, scale_window=2)
    other = ldopt.DynamicLossScaler(1.0, scale_factor=2, scale_window=2)
    scaler.update(True)
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    with refused("`scaler` must be given", ValueError, run):
        ldopt.load_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, run.optimizer, run.model, scaler=other)
    assert other.state_dict() == scaler.state_dict()


def test_paddles_grad_scaler_is_saved_too(path, monkeypatch):
    scaler = paddle.amp.GradScaler(enable=False)  # on a CPU it switches itself off: its state is empty
    run = Run("lamb").train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    ldopt.load_optimizer(path, run.optimizer, run.model, scaler=scaler)
    loaded = []
    state = {"scale": np.array([65536.0], "float32"), "incr_count": 3, "use_dynamic_loss_scaling": True}
    monkeypatch.setattr(scaler, "state_dict", lambda: state)
    monkeypatch.setattr(scaler, "load_state_dict", loaded.append)
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    ldopt.load_optimizer(path, run.optimizer, run.model, scaler=scaler)
    assert loaded[0]["scale"].dtype == np.float32 and loaded == [state]


def test_lambs_own_schedule_goes_on_and_may_begin(path):
    rates = [1e-3 * i for i in range(1, ALL + 1)]
    whole, half = Run("lamb", rate=rates).train(ALL), Run("lamb", rate=rates).train(HALF)
    ldopt.save_optimizer(path, half.optimizer, half.model)
    again = Run("lamb", rate=rates).with_weights_of(half)
    assert ldopt.load_optimizer(path, again.optimizer, again.model).step == HALF
    assert again.optimizer.get_lr() == rates[HALF]
    assert same(whole.everything(), again.train(ALL).everything())
    plain = Run("lamb", rate=1e-3).train(HALF)
    ldopt.save_optimizer(path, plain.optimizer, plain.model)
    scheduled = Run("lamb", rate=rates)
    ldopt.load_optimizer(path, scheduled.optimizer, scheduled.model)
    assert scheduled.optimizer.get_lr() == rates[HALF]
    ldopt.save_optimizer(path, scheduled.optimizer, scheduled.model)
    ldopt.load_optimizer(path, plain.optimizer, plain.model)
    assert "global_step" not in "".join(plain.state())


def test_state_that_paddle_still_holds_is_saved_and_can_be_loaded_by_paddle(path):
    run = Run("came").train(HALF)
    waiting, again, third = (Run("came", seed=i).with_weights_of(run) for i in range(3))
    waiting.optimizer.set_state_dict(run.optimizer.state_dict())
    before = waiting.state()
    ldopt.save_optimizer(path, waiting.optimizer, waiting.model)
    assert same(before, waiting.state())
    with paddle.utils.unique_name.guard():  # names are taken already, as in any process that built more than one
        paddle.nn.Linear(3, 3)
        ldopt.load_optimizer(path, again.optimizer, again.model)
    third.optimizer.set_state_dict(again.optimizer.state_dict())
    assert same(run.train(ALL).everything(), third.train(ALL).everything())


@pytest.mark.parametrize("case, name, step", [("came", "Came", HALF), ("Lamb", "paddle.optimizer.Lamb", None)])
def test_the_file_is_plain_safetensors(case, name, step, path):
    if not paddle.get_flags("FLAGS_use_stride_kernel")["FLAGS_use_stride_kernel"]:
        pytest.skip("safetensors.paddle needs stride kernels")
    run = Run(case).train(HALF)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    tensors = safetensors.paddle.load_file(path)
    assert f"scale.{'exp_avg' if step else 'moment1'}" in tensors and len(tensors) == len(run.state())
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata()
    record = json.loads(metadata["record"])
    assert (metadata["format"], metadata["version"]) == ("paddle_ldopt.optimizer", "1")
    assert (record["optimizer"], record["step"], record["naming"]) == (name, step, "structured")
    assert record["decay"] == {"layerwise_decay": 0.5}
    assert record["parameters"]["blocks.0.weight"] == "float32 [4, 4]"
    assert record["layers"]["blocks.0.weight"] == ["blocks", 1, 2]
    (said,) = re.findall(rb'"sha256":"([0-9a-f]{64})"', data := read(path))
    assert hashlib.sha256(data.replace(said, b"0" * 64)).hexdigest().encode() == said
    assert struct.unpack("<Q", data[:8])[0] % 8 == 0
    assert record["packages"].keys() == {"paddle_ldopt", "paddle", "numpy", "safetensors", "python"}


def in_folder(call):
    return lambda path, optimizer, model, **kwargs: call(path, model, optimizer, **kwargs)


CALLS = {
    "one process": (ldopt.save_optimizer, ldopt.load_optimizer),
    "any layout": (in_folder(save_checkpoint), in_folder(load_checkpoint)),
}


def with_a_schedule_of_group(place, schedule=None):
    model = paddle.nn.Sequential(paddle.nn.Linear(3, 3), paddle.nn.Linear(3, 1))
    groups = [{"params": part.parameters()} for part in model]
    groups[place]["lr"] = schedule = schedule or paddle.optimizer.lr.ExponentialDecay(0.1, 0.5)
    return model, ldopt.Lamb(0.01, parameters=groups), schedule


WITHOUT = not hasattr(paddle.nn.Layer, "sharded_state_dict")
with_sharded_states = pytest.mark.skipif(WITHOUT, reason="Paddle 3.2 has it first")


@pytest.mark.parametrize("save, load", CALLS.values(), ids=CALLS)
def test_the_schedule_of_a_group_is_saved(path, save, load):
    if load is not ldopt.load_optimizer and WITHOUT:
        pytest.skip("Paddle 3.2 has it first")
    (model, opt, schedule), (other_model, other, again) = (with_a_schedule_of_group(0) for _ in range(2))
    model(paddle.ones([2, 3])).mean().backward()
    opt.step()
    schedule.step()
    save(path, opt, model)
    load(path, other, other_model)
    assert again() == schedule() == 0.05
    other_model, other, again = with_a_schedule_of_group(0, paddle.optimizer.lr.StepDecay(0.1, 1))
    with pytest.warns(UserWarning, match="group_schedules was .*ExponentialDecay.* and is .*StepDecay"):
        load(path, other, other_model, strict=False)
    assert again() == pytest.approx(0.01), "of another class: its own rate at the step"


def test_schedules_of_other_groups_are_refused_or_stay(path):
    (model, opt, schedule), (other_model, other, own) = map(with_a_schedule_of_group, (0, 1))
    schedule.step()
    ldopt.save_optimizer(path, opt, model, step=7)
    with pytest.raises(ValueError, match="group_schedules was .*group_0"):
        ldopt.load_optimizer(path, other, other_model)
    with pytest.warns(UserWarning, match="group_schedules"):
        ldopt.load_optimizer(path, other, other_model, strict=False)
    assert own() == 0.1


def test_a_schedule_that_cannot_go_on_leaves_the_others(path):
    def made(own):
        model = network()
        groups = [{"params": [model.matrix]}, {"params": [model.vector], "lr": own}]
        return model, ldopt.Lamb(ldopt.get_scheduler("linear", 0.1, 0, 9), parameters=groups)

    model, opt = made(ldopt.get_scheduler("linear", 0.1, 0, 9))
    for schedule in (opt._learning_rate, opt._param_groups[1]["lr"]):
        schedule.step(7)
    ldopt.save_optimizer(path, opt, model, step=7)
    other_model, other = made(own := ldopt.WarmUp(0.1, [0.1, 0.1].__getitem__, 2))
    with pytest.raises(ValueError, match="The state of a schedule or a scaler cannot be loaded. Received: IndexError"):
        ldopt.load_optimizer(path, other, other_model, strict=False)
    assert (other._learning_rate.last_epoch, own.last_epoch) == (0, 0)


def network():
    """Return a matrix, which is also tied to a second name, a batch of matrices, a vector, a frozen vector."""
    model = paddle.nn.Layer()
    shapes = {"matrix": [4, 6], "batch": [2, 4, 6], "vector": [5], "frozen": [3]}
    for name, shape in shapes.items():
        setattr(model, name, model.create_parameter(shape))
    model.frozen.stop_gradient = True
    model.tied = paddle.nn.Layer()
    model.tied.weight = model.matrix
    return model


def after_steps(variant, steps=1, **more):
    paddle.seed(0)
    model = network()
    opt = make(variant, model.parameters(), **more)
    for _ in range(steps):
        for param in (model.matrix, model.batch, model.vector):
            param.grad = paddle.ones_like(param) * 0.1
        opt.step()
    return model, opt


@with_sharded_states
@every_variant
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("prefix", [None, "mine"])
def test_all_state_has_its_place(name, steps, prefix):
    model, opt = after_steps(name, steps=steps, name=prefix)
    found = opt.sharded_state_dict(model.sharded_state_dict())
    expected = {}
    for key, param in (("matrix", model.matrix), ("batch", model.batch), ("vector", model.vector)):
        shape = tuple(param.shape)
        shapes = {"element": shape, "row": shape[:-1], "column": (*shape[:-2], shape[-1]), "scalar": (1,)}
        for name, state in opt.states_of(param).items():
            expected[f"{key}.{name}_0"] = shapes[state.per]
    assert {key: weight.global_shape for key, weight in found.items()} == expected
    held = {id(value) for values in opt._accumulators.values() for value in values.values()}
    for key, weight in found.items():
        assert weight.key == key and weight.local_shape == weight.global_shape
        assert weight.global_offset == (0,) * len(weight.global_shape) and not weight.is_flattened
        assert id(weight.local_tensor) in held, "a load is to fill the optimizer's own tensors"


@with_sharded_states
@every_variant
def test_shards_of_a_flattened_parameter(name):
    model, opt = after_steps(name)
    weights = model.sharded_state_dict()
    elements = [key for key, state in opt.states_of(model.vector).items() if state.per == "element"]
    for state in elements:  # what sharding makes of a slice: flat, and padded
        opt._accumulators[state][model.vector.name] = paddle.arange(4, dtype="float32")
    found = opt.sharded_state_dict(weights, {model.vector.name: (2, 5)})
    assert {key.partition(".")[0] for key in found} == {"vector"}, "of the matrix there is nothing here"
    for state in elements:
        weight = found[f"vector.{state}_0"]
        assert weight.is_flattened and weight.flattened_range == slice(2, 5)
        np.testing.assert_array_equal(weight.local_tensor.numpy(), [0.0, 1.0, 2.0])
        assert weight.global_shape == (5,)
    with pytest.raises(ValueError, match=r"Received: 4 elements, not 5"):
        opt.sharded_state_dict(weights)
