"""`PipelineWithLossScale` in one process: numbers, overflows, several dtypes, resumes, wrong arguments."""

import math

import numpy as np
import paddle
import pipeline_cases as cases
import pytest
from reference import needs_library

import paddle_ldopt as ldopt
from paddle_ldopt import _processes
from paddle_ldopt.optimizers import step as step_module

OVERFLOWS = {1: 0, 4: 0, 5: 0}


def made(kind="whole", name="adamwdl", ragged=False, **arguments):
    network, step = cases.build(None, kind, name, ragged, **arguments)
    return network, step._optimizer, step


@pytest.mark.representatives
@pytest.mark.parametrize("kind", ["whole", "staged"])
@pytest.mark.parametrize("name", [*cases.ARGUMENTS, "ragged"])
def test_it_is_a_direct_computation_on_the_whole_batch(name, kind):
    """Also after overflows and after steps that fail."""
    ragged, case = name == "ragged", "sgd" if name == "ragged" else name
    steps = cases.steps_of(case)
    result = cases.train(None, kind, case, steps, OVERFLOWS, ragged, cases.ANY_FAULT, scale_sense=cases.scaler())
    cases.check([result], case, steps, OVERFLOWS, ragged, scaler=cases.scaler(), faults=cases.ANY_FAULT)


def test_processes_that_do_not_answer(monkeypatch):
    """The error of this process is named, or that of the communication."""
    network, optimizer, step = made()

    def lost(*args, **how):
        raise RuntimeError("TIMEOUT " * 1000)

    step._groups.processes = 2
    monkeypatch.setattr(paddle.distributed, "all_reduce", lost)
    before = cases.snapshot(network, step)
    for inputs, needle in (
        (cases.tensors(cases.batch(0)), "RuntimeError: TIMEOUT"),
        (("word",), "TypeError: Inputs must"),
    ):
        with pytest.raises(RuntimeError, match=f"restart from the last checkpoint. Received: .*{needle}") as error:
            step(*inputs)
        assert len(str(error.value)) < 500
    assert cases.same(before, cases.snapshot(network, step))


@pytest.mark.parametrize("cls", [pytest.param(ldopt.Lamb, marks=needs_library), paddle.optimizer.AdamW])
def test_an_update_that_fails_in_one_process_alone(monkeypatch, cls):
    """The others learn of it when the next step begins."""
    network, inputs = cases.Whole(), cases.tensors(cases.batch(0))
    step = ldopt.PipelineWithLossScale(network, cls(0.1, parameters=network.parameters()))
    step._groups.processes = 2
    agreed = []
    monkeypatch.setattr(step._groups, "greatest", lambda flag, error=None: agreed.append(flag) or int(flag))
    with monkeypatch.context() as patch:
        patch.setattr(step_module, "update_fused", lambda *_: {}["no memory"])
        patch.setattr(cls, "_append_optimize_op", lambda *_: {}["no memory"])
        with pytest.raises(KeyError, match="no memory"):
            step(*inputs)
    agreed.clear()
    with pytest.raises(RuntimeError, match="failed in one process alone: load the last checkpoint in all"):
        step(*inputs)
    assert agreed == [1], "the others raise, too"
    step.set_state_dict(step.state_dict())
    step(*inputs)


def test_the_tuple():
    _, _, step = made(scale_sense=paddle.to_tensor([4.0]))
    output = step(*cases.tensors(cases.batch(0)))
    assert output._fields == ("loss", "overflow", "loss_scale", "learning_rate", "global_norm")
    assert [value.shape for value in output] == [[]] * 5
    assert output.overflow.dtype == paddle.bool and output.loss_scale.item() == 4.0
    network, _, step = made(use_clip_grad=False, max_grad_norm=1.0, local_norm=True)
    output = step(*cases.tensors(cases.batch(0)))
    assert output._fields[5:] == ("local_norm", "size") and output.global_norm is None
    assert output.size.tolist() == [param.size for param in network.parameters()]


@pytest.mark.parametrize("grouped", [False, True])
def test_it_clips_all_groups_together_or_not_at_all(grouped):
    network = cases.initialise(cases.Whole())
    params = network.parameters()
    groups = [{"params": params[:3]}, {"params": params[3:]}] if grouped else params
    optimizer = paddle.optimizer.SGD(1.0, groups)
    step = ldopt.PipelineWithLossScale(network, optimizer, use_clip_grad=grouped, max_grad_norm=0.05)
    output = step(*cases.tensors(cases.batch(0)))
    direct = cases.directly("sgd", 1, max_norm=0.05 if grouped else 1e9)[0]
    assert cases.apart(cases.values(network), direct["weights"]) < 1e-5
    assert not grouped or output.global_norm.item() == pytest.approx(direct["norm"], rel=1e-6)


class Dtypes(paddle.nn.Layer):
    """A parameter of each type, whose gradients are known: the input times the weight's position."""

    def __init__(self):
        super().__init__()
        one = paddle.nn.initializer.Constant(1.0)
        for name in ("float16", "bfloat16", "float32", "float64"):
            setattr(self, f"as_{name}", self.create_parameter([3], dtype=name, attr=one))
        self.outside = self.create_parameter([1], attr=paddle.ParamAttr(need_clip=False))

    def forward(self, inputs):
        parts = [self.as_float16, self.as_bfloat16, self.as_float32, self.as_float64]
        total = sum((part.astype("float32") * (i + 1)).sum() for i, part in enumerate(parts))
        return (total + 100.0 * self.outside.sum()) * inputs.mean()


def test_parameters_of_several_dtypes():
    network = Dtypes()
    optimizer = paddle.optimizer.SGD(1.0, network.parameters(), multi_precision=True)
    step = ldopt.PipelineWithLossScale(network, optimizer, max_grad_norm=3.0, scale_sense=2.0**7, local_norm=True)
    gradients = {}

    def apply():
        gradients.update({name: p.grad.astype("float32").numpy() for name, p in network.named_parameters()})
        optimizer.clear_grad()

    optimizer.step = apply
    output = step(paddle.ones([2]))
    norm = math.sqrt(3 * (1 + 4 + 9 + 16))
    np.testing.assert_allclose(output.global_norm.item(), norm, rtol=1e-6)
    for i, name in enumerate(("float16", "bfloat16", "float32", "float64")):
        tolerance = {"float16": 1e-3, "bfloat16": 8e-3}.get(name, 1e-6)
        np.testing.assert_allclose(gradients[f"as_{name}"], 3.0 / norm * (i + 1), rtol=tolerance)
    np.testing.assert_allclose(gradients["outside"], 100.0, err_msg="need_clip=False")
    np.testing.assert_allclose(output.local_norm.tolist(), [math.sqrt(3) * i for i in range(1, 5)] + [100], rtol=1e-6)
    network.as_float16.set_value(paddle.full([3], 100.0, "float16"))
    assert step(paddle.full([2], 600.0)).overflow.item(), "128 x 600 is inf in float16"


def test_float32_master_gradients():
    """`main_grad` of mixed precision is what is scaled, checked and clipped."""
    from paddle.distributed.fleet.utils import mix_precision_utils

    network = paddle.nn.Linear(3, 1)
    inner = mix_precision_utils.MixPrecisionLayer(paddle.nn.Sequential(network, paddle.nn.Identity()), dtype="bfloat16")
    mean = paddle.nn.Sequential(inner)
    mean.forward = lambda inputs: inner(inputs).mean()
    optimizer = mix_precision_utils.MixPrecisionOptimizer(paddle.optimizer.SGD(1.0, network.parameters()))
    before = network.weight.numpy().copy()
    step = ldopt.PipelineWithLossScale(mean, optimizer, max_grad_norm=1.0, scale_sense=2.0**10, micro_batch_num=2)
    output = step(paddle.full([4, 3], 2.0))
    np.testing.assert_allclose(output.global_norm.item(), math.sqrt(13), rtol=1e-6)
    np.testing.assert_allclose(before - network.weight.numpy(), np.full([3, 1], 2 / math.sqrt(13)), rtol=1e-5)
    assert step(paddle.full([4, 3], 1e38)).overflow.item()
    assert not step(paddle.full([4, 3], 1.0)).overflow.item(), "the inf is gone"


def test_a_norm_that_overflows_is_an_overflow():
    network, optimizer, step = made(name="sgd")
    network.parameters()[0].register_hook(lambda grad: grad * 0 + 1e30)
    before = cases.snapshot(network, step)
    output = step(*cases.tensors(cases.batch(0)))
    assert output.overflow.item() and output.global_norm.item() == math.inf
    assert cases.same(before, cases.snapshot(network, step)) and optimizer.get_lr() == 1.0


def test_a_schedule_that_is_advanced_elsewhere_is_an_error():
    _, optimizer, step = made()
    inputs = cases.tensors(cases.batch(0))
    step(*inputs)
    optimizer._learning_rate.step()
    with pytest.raises(ValueError, match="Received: last_epoch=2, expected=1"):
        step(*inputs)
    optimizer.set_state_dict(optimizer.state_dict())
    step.set_state_dict(step.state_dict())
    step(*inputs)
    assert optimizer._learning_rate.last_epoch == 3
    optimizer.set_lr_scheduler(new := ldopt.get_scheduler("linear", 0.1, 0, 10))
    step(*inputs)
    assert new.last_epoch == 1, "a schedule that takes the place of another has its own count"


def test_a_schedule_that_takes_a_metric_is_left_to_the_caller():
    network = cases.Whole()
    schedule = paddle.optimizer.lr.ReduceOnPlateau(0.1)
    step = ldopt.PipelineWithLossScale(network, paddle.optimizer.SGD(schedule, network.parameters()))
    for i in range(3):
        schedule.step(step(*cases.tensors(cases.batch(i))).loss)
    assert schedule.last_epoch == 3


def test_a_resume_is_exact(tmp_path):
    path = str(tmp_path / "state.pdparams")

    def run(steps, load=False, save=False):
        with paddle.utils.unique_name.guard():  # as in a process of its own
            network, optimizer, step = made(name="lamb", scale_sense=ldopt.AdaptiveLossScaler(2**8, 2, 2, 8, 2))
            now, parts = [0], {"network": network, "optimizer": optimizer, "step": step}
            cases.inject(network, lambda: now[0] in (3, 8))
            for name, state in paddle.load(path).items() if load else ():
                parts[name].set_state_dict(state)
            rows = []
            for now[0] in steps:
                rows.append(cases.row_of(step(*cases.tensors(cases.batch(now[0])))))
            if save:
                paddle.save({name: part.state_dict() for name, part in parts.items()}, path)
            return rows, cases.snapshot(network, step)

    rows, end = run(range(12))
    first, _ = run(range(5), save=True)
    second, resumed = run(range(5, 12), load=True)
    assert first + second == rows and cases.same(end, resumed)


def test_a_state_of_another_scaler_is_an_error():
    _, _, step = made(scale_sense=cases.scaler())
    _, _, other = made(scale_sense=2.0)
    with pytest.raises(ValueError, match="Received: keys=\\['loss_scale'\\]"):
        step.set_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="Received: keys=\\['other'\\]"):
        step.set_state_dict({"other": 1})


def test_wrong_networks_and_optimizers():
    network, sgd, clip = paddle.nn.Linear(2, 1), paddle.optimizer.SGD, paddle.nn.ClipGradByNorm(1.0)
    optimizer, params = sgd(parameters=network.parameters()), network.parameters()
    lossless = cases.Staged(loss=None, num_stages=1)
    virtual = cases.Staged(num_stages=1, num_virtual_pipeline_stages=2, seg_method="layer:Block")
    for wrong, other, error, says in (
        (lambda inputs: inputs, optimizer, TypeError, "Received: network of type function"),
        (network, 0.1, TypeError, "Received: optimizer of type float"),
        (paddle.nn.Linear(2, 1), optimizer, ValueError, "parameters of the network. Received: others="),
        (network, sgd(parameters=params, grad_clip=clip), ValueError, "Received: grad_clip='ClipGradByNorm"),
        (network, sgd(parameters=[{"params": params, "grad_clip": clip}]), ValueError, "grad_clip='ClipGradByNorm"),
        (virtual, optimizer, ValueError, "leave out num_virtual_pipeline_stages.* Received: network='Staged'"),
        (lossless, optimizer, ValueError, r"one loss function. Received: loss_fn=\[None\]"),
    ):
        with pytest.raises(error, match=says):
            ldopt.PipelineWithLossScale(wrong, other)
    for name, value in {"max_grad_norm": 0.0, "micro_batch_num": 0, "global_norm_spike_threshold": -1.0}.items():
        with pytest.raises(ValueError, match=f"Received: .*{name}={value}"):
            ldopt.PipelineWithLossScale(network, optimizer, **{name: value})
    with pytest.raises(TypeError, match="Received: .*scale_sense='8'"):
        ldopt.PipelineWithLossScale(network, optimizer, scale_sense="8")


@pytest.mark.parametrize(
    ("ragged", "inputs", "error", "message"),
    [
        (False, (paddle.zeros([6, 5], "int64"),) * 2, ValueError, r"shape=\[6, 5\], micro_batch_num=4"),
        (False, (paddle.to_tensor(1.0),) * 2, ValueError, r"shape=\[\]"),
        (False, ([1, 2, 3, 4], paddle.zeros([8, 5], "int64")), TypeError, "int"),
        (False, ({"ids": paddle.zeros([8, 5])}, paddle.zeros([8, 5], "int64")), TypeError, "type='dict'"),
        (True, (paddle.zeros([8, 5], "int64"), paddle.full([8, 5], cases.IGNORED, "int64")), ValueError, "0 tokens"),
    ],
)
def test_wrong_inputs(ragged, inputs, error, message):
    _, _, step = made(ragged=ragged)
    with pytest.raises(error, match=f"Received: .*{message}"):
        step(*inputs)


@pytest.mark.parametrize(
    ("ragged", "loss", "message"),
    [
        (True, lambda total: total, "Received: type='Tensor'"),
        (True, lambda total: (total,), "Received: type='tuple'"),
        (False, lambda total: total.expand([8]), r"Received: type='Tensor', shape=.*\[8\]"),
    ],
)
def test_wrong_losses(ragged, loss, message):
    network, _, step = made(ragged=ragged, micro_batch_num=1)
    network.loss = lambda logits, labels: loss(network.embed.weight.sum())
    with pytest.raises(TypeError, match=message):
        step(*cases.tensors(cases.batch(0)))


def test_a_rate_that_the_optimizer_sets_may_differ_between_processes(monkeypatch):
    """That of Adafactor's relative step is the first parameter's here."""
    linear, rates = paddle.nn.Linear(4, 2), []
    monkeypatch.setattr(_processes, "gathered", lambda mine, _: rates.append(mine["learning_rate"]) or [mine])
    for opt in (ldopt.Adafactor(linear.parameters()), ldopt.AdamWDL(0.1, parameters=linear.parameters())):
        linear(paddle.ones([1, 4])).mean().backward()
        opt.step()
        _processes.check_same_options(opt)
    assert rates == [None, 0.1]


@pytest.mark.parametrize("eps", [[(1e-30, 1e-3), (1e-30, 1e-2)], [(1e-30, 1e-3)] * 2])
def test_options_that_are_tuples_must_be_the_same_in_all_processes(monkeypatch, eps):
    params, told = paddle.nn.Linear(4, 2).parameters(), []
    first, second = (ldopt.Adafactor(params, eps=one) for one in eps)
    monkeypatch.setattr(_processes, "gathered", lambda mine, _: told.append(mine) or [told[0], mine])
    _processes.check_same_options(first)
    if eps[0] == eps[1]:
        return _processes.check_same_options(second)
    with pytest.raises(ValueError, match=r"eps=\(1e-30, 0.001\) in process 0 and \(1e-30, 0.01\) in process 1"):
        _processes.check_same_options(second)


def test_a_schedule_that_fails_says_so_again():
    network, _, _ = made()
    schedule = paddle.optimizer.lr.LambdaDecay(0.1, [1.0, 0.5].__getitem__)
    optimizer = ldopt.AdamWDL(schedule, parameters=network.parameters())
    step = ldopt.PipelineWithLossScale(
        network, optimizer, scale_sense=ldopt.DynamicLossScaler(2.0**8), micro_batch_num=2
    )
    step(*cases.tensors(cases.batch(0)))
    for done in (2, 3):
        with pytest.raises(IndexError):
            step(*cases.tensors(cases.batch(0)))
        assert step.scaler.state_dict()["good_steps"] == done


def test_schedules_of_groups_and_warm_ups_advance():
    network, _, _ = made()
    params = network.parameters()
    schedule, own = ldopt.get_scheduler("linear", 1e-2, 0, 9), ldopt.get_scheduler("linear", 1e-3, 2, 9)
    groups = [{"params": params[:1], "lr": own}, {"params": params[1:2], "lr": own}, {"params": params[2:]}]
    warm_up = ldopt.get_scheduler("reduce_lr_on_plateau", 1e-2, 2)
    for rate, parameters in ((schedule, groups), (warm_up, params)):
        optimizer = ldopt.Lamb(rate, parameters=parameters)
        step = ldopt.PipelineWithLossScale(network, optimizer, micro_batch_num=2)
        for i in range(2):
            step(*cases.tensors(cases.batch(i)))
    assert (schedule.last_epoch, own.last_epoch, warm_up()) == (2, 2, 1e-2)


def test_an_overflow_that_another_scaler_found_is_forgotten():
    network, optimizer, step = made()
    optimizer._set_auxiliary_var("found_inf", paddle.to_tensor([True]))
    before = cases.values(network)
    step(*cases.tensors(cases.batch(0)))
    assert not cases.same(before, cases.values(network))


def test_a_part_in_evaluation_mode_stays_there():
    network, _, step = made()
    network.embed.eval()
    step(*cases.tensors(cases.batch(0)))
    assert network.training and not network.embed.training
