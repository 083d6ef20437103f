"""The state of every optimizer: its size, a resume, and states that are refused."""

import contextlib
import itertools

import numpy as np
import paddle
import pytest
from optimizer_cases import OF_LIBRARY, OPTIMIZERS, VARIANTS, alone, every_optimizer, every_variant, make, same
from reference import bert_like, make_params, take_steps

from paddle_ldopt.optimizers.states import unified_name


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("name", ["adafactor", "came"])
def test_the_factored_state_of_the_first_step_is_the_mean_of_rows_and_columns(name, fused):
    """Steps do not depend on a constant factor of this state, but other programs read it from files."""
    grad = np.random.default_rng(0).normal(size=(2, 3, 4))
    with paddle.utils.unique_name.guard():
        params, _ = make_params({"batch of matrices": grad})
        opt = make(name, list(params.values()), fused=fused)
        take_steps(opt, params, [{"batch of matrices": grad}])
    for kind, axis in (("row", -1), ("col", -2)):
        (got,) = (value.numpy() for key, value in opt.state_dict().items() if f"exp_avg_sq_{kind}" in key)
        np.testing.assert_allclose(got, (grad**2).mean(axis), rtol=1e-6)


@every_optimizer
def test_what_is_no_state_is_refused(name):
    with paddle.utils.unique_name.guard():
        (param,) = make_params({"a": np.ones((2, 3))})[0].values()
        schedule = paddle.optimizer.lr.StepDecay(0.1, 2)
        plain, scheduled = make(name, [param]), make(name, [param], learning_rate=schedule)
    for state in ([], {1: 2.0}, {"LR_Scheduler": 3}, {"master_weights": 3}):
        with pytest.raises(TypeError, match="`state_dict`.* must be a dict.*Received: "):
            plain.set_state_dict(state)
    for state in ({}, {"LR_Scheduler": {"last_epoch": 3}}):
        with pytest.raises(ValueError, match="state of the optimizer's StepDecay.*Received: a state without .*last_lr"):
            scheduled.set_state_dict(state)
    assert schedule.last_epoch == 0
    for own, prefix in ((None, ""), ("mine", "mine_")):
        with pytest.raises(TypeError, match="must hold Tensors. Received: '3' as "):
            make(name, [param], name=own).set_state_dict({f"{param.name}_{prefix}beta1_pow_acc_0": "3"})


def saved_state(name, built_with, updated):
    """Return the state, after one step of the layers `updated`, of an optimizer of the layers `built_with` of three."""
    with paddle.utils.unique_name.guard():
        model, opt = layers_of_three(name, built_with)
        for p in (p for i in updated for p in model[i].parameters()):
            p.grad = paddle.ones(p.shape)
        opt.step()
        return {key: x.clone() if isinstance(x, paddle.Tensor) else x for key, x in opt.state_dict().items()}


def layers_of_three(name, built_with, stepped=False, named=False):
    with paddle.utils.unique_name.guard():  # but not of the steps: the names of the states have any numbers
        model = [paddle.nn.Linear(2, 2) for _ in range(3)]
        names = {p.name: f"{i}.{n}" for i, layer in enumerate(model) for n, p in layer.named_parameters()}
        parameters = [p for i in built_with for p in model[i].parameters()]
        opt = make(name, parameters, **({"name_dict": names} if named else {}))
    if stepped:
        step(model, opt, built_with)
    return model, opt


def step(model, opt, layers):
    for i in layers:
        model[i](paddle.ones([1, 2])).sum().backward()
    opt.step()


@every_optimizer
@pytest.mark.parametrize(("saved", "loads_into"), [([0, 1], [2]), ([0, 1], [1, 2])], ids=["all other", "some other"])
def test_a_state_of_other_parameters_is_refused_unless_they_are_the_models(name, saved, loads_into):
    model, opt = layers_of_three(name, loads_into)
    with pytest.raises(ValueError, match=r"other parameters.* Received: .*unknown.*linear_0.*nothing.*linear_2"):
        opt.set_state_dict(saved_state(name, saved, saved))
    step(model, opt, loads_into)  # nothing waits for it
    model, opt = layers_of_three(name, [1, 2], named=True)
    opt.set_state_dict(saved_state(name, [0, 1], [0, 1]))  # of a layer of the model that is not trained here, too
    step(model, opt, [1])
    assert any(key.startswith("linear_1.") for key in opt.state_dict())


SAME = {"lamb", "adamweightdecay"}  # have states of the same names and meanings


@pytest.mark.parametrize(
    ("name", "other"), [pair for pair in itertools.permutations(OPTIMIZERS, 2) if not {*pair} <= SAME]
)
@pytest.mark.parametrize("stepped", [False, True], ids=["new", "stepped"])
def test_the_state_of_another_optimizer_is_refused(name, other, stepped):
    _, opt = layers_of_three(name, [0], stepped=stepped)
    with pytest.raises(ValueError, match="that this .* lacks: build|all state of a parameter or none|lacks a state"):
        opt.set_state_dict(saved_state(other, [0], [0]))


@every_optimizer
@pytest.mark.parametrize(
    ("built_with", "updated", "loads_into", "first"),
    [
        ([0, 1, 2], [1, 2], [0, 1, 2], [0, 1, 2]),  # the first layer had no gradient when it was saved
        ([0, 1, 2], [1, 2], [0, 1, 2], [0, 1]),
        ([1, 2], [1, 2], [0, 1, 2], [0]),
        ([0, 1, 2], [0, 1, 2], [1, 2], [2]),  # the first layer is not trained any more
    ],
)
def test_a_state_of_a_part_is_loaded(name, built_with, updated, loads_into, first):
    state = saved_state(name, built_with, updated)
    model, opt = layers_of_three(name, loads_into)
    opt.set_state_dict(state)
    for layers in (first, loads_into):
        step(model, opt, layers)
        opt.clear_grad()
    counts = {int(key[7]): x.item() for key, x in opt.state_dict().items() if "beta1_pow_acc" in key}
    if name != "adamwdl":  # which counts in powers
        one_count = name == "adamweightdecay"
        taken = {i: (i in updated) + (i in first) + (i in loads_into) for i in range(3)}
        assert counts == {i: 3 if one_count and i in loads_into else taken[i] for i in {*built_with, *loads_into}}


@every_optimizer
@pytest.mark.parametrize("stepped", [False, True], ids=["new", "stepped"])
@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda x: x * 0 - 1, "of at least 0.* Received: .*-1"),
        (lambda x: x * float("nan"), "of at least 0.* Received: .*nan"),
        (lambda x: paddle.concat([x, x]), r"must be float32 of shape \[1\].* Received: .*\[2\]"),
        (lambda x: x[:0], r"must be float32 of shape \[1\].* Received: .*\[0\]"),
        (lambda x: x.astype("float64"), r"must be float32 of shape.* Received: dtype='float64'"),
        (None, "all state of a parameter or none|lacks a state"),
    ],
    ids=["negative", "NaN", "long", "short", "float64", "missing"],
)
def test_counters_that_are_none_are_refused(name, spoil, match, stepped):
    state = saved_state(name, [0], [0])
    _, opt = layers_of_three(name, [0], stepped=stepped)
    before = {key: x.numpy() for key, x in opt.state_dict().items()}
    (key,) = (key for key in state if key.startswith("linear_0.b_0") and key.endswith("beta1_pow_acc_0"))
    if spoil is None:
        del state[key]
    else:
        state[key] = spoil(state[key])
    with pytest.raises(ValueError, match=match):
        opt.set_state_dict(state)
    same({key: x.numpy() for key, x in opt.state_dict().items()}, before)


@pytest.mark.parametrize("name", [*VARIANTS, *OF_LIBRARY])
@pytest.mark.parametrize("reverse", [False, True], ids=["same order", "other order"])
def test_a_resume_is_exact(name, reverse, tmp_path):
    arrays, grads = bert_like(steps=6)
    path = str(tmp_path / "state.pdopt")
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()), **alone(name))
        half = {n: a.copy() for n, a in take_steps(opt, params, grads[:3]).items()}
        paddle.save(opt.state_dict(), path)
        want = {n: a.copy() for n, a in take_steps(opt, params, grads[3:]).items()}
    with paddle.utils.unique_name.guard():
        params, _ = make_params(half)
        ordered = list(params.values())
        opt = make(name, ordered[::-1] if reverse else ordered, **alone(name))
        opt.set_state_dict(paddle.load(path))
        if reverse and name in ("muon", "adamweightdecay, globally clipped"):
            return  # the product of a stack, and a norm of all gradients, round by their order
        if not name.startswith("adamwdl"):  # before the first step: the loaded state, under the names of PaddleNLP
            paddle.save(opt.state_dict(), path)
            assert all("_fp32_master_0_" in key for key in paddle.load(path))
            opt.set_state_dict(paddle.load(path))
        same(take_steps(opt, params, grads[3:]), want)


def test_the_name_of_a_state_may_end_anothers():
    for names in (["v", "row_v"], ["row_v", "v"]):
        assert unified_name("w_row_v_0", names) == "w_fp32_master_0_row_v_0"


@every_optimizer
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loaded_state_of_a_parameter_without_a_gradient_is_saved_again(name, dtype):
    ends = []
    for resumes in (0, 2):
        with paddle.utils.unique_name.guard():
            model = paddle.nn.LayerList(paddle.nn.Linear(2, 2) for _ in range(2)).to(dtype=dtype)
            idle, trained = model[0].weight, model[1].weight
            for weight in (idle, trained):
                weight.set_value(paddle.ones([2, 2], dtype))
            opt = make(name, [idle, trained], multi_precision=True)
        for step in range(4):
            if step in (1, 2)[:resumes]:
                state = {k: v.clone() if k != "master_weights" else v for k, v in opt.state_dict().items()}
                with paddle.utils.unique_name.guard():
                    opt = make(name, [idle, trained], multi_precision=True)
                opt.set_state_dict(state)
            for weight in [trained] if step == 1 else [idle, trained]:
                weight.grad = paddle.full([2, 2], 0.1 + step, dtype)
            opt.step()
            opt.clear_grad(set_to_zero=False)
        ends.append([weight.astype("float32").numpy() for weight in (idle, trained)])
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("name", ["lamb", "came"])
def test_the_state_of_a_second_optimizer_without_schedule_goes_on_with_one(name):
    param = paddle.nn.Linear(2, 2).weight
    make(name, [param])
    second = make(name, [param])  # Paddle counts the names of states
    for _ in range(3):
        param.grad = paddle.ones([2, 2])
        second.step()
    scheduled = make(name, [param], learning_rate=lambda step: 0.1 * (step + 1))
    scheduled.set_state_dict(second.state_dict())
    assert scheduled.get_lr() == pytest.approx(0.4)
    linear = paddle.nn.Linear(2, 2)  # and back, where a parameter had no gradient
    scheduled = make(name, linear.parameters(), learning_rate=lambda step: 0.1)
    linear.weight.grad = paddle.ones([2, 2])
    scheduled.step()
    plain = make(name, linear.parameters())
    plain.set_state_dict(scheduled.state_dict())
    plain.step()
    assert plain.steps_taken() == 2


WAYS = {
    "set_value": lambda param, value: param.set_value(value),
    "in place": paddle.no_grad()(lambda param, value: paddle.assign(value, param)),
    "copy": lambda param, value: param.copy_(value, True),
    "detached": lambda param, value: param.detach().copy_(value, True),
    "data": lambda param, value: param.data.set_value(value),
    "other memory": lambda param, value: setattr(param, "data", value),
    "initializer": lambda param, value: paddle.nn.initializer.Assign(value.astype("float32").numpy())(param),
}


@every_optimizer
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("way", WAYS)
def test_masters_follow_weights_that_were_written(name, fused, way):
    grads = np.random.default_rng(0).normal(size=(3, 4, 3))

    def step(opt, param, grad):
        param.grad = paddle.to_tensor(grad).astype("bfloat16")
        opt.step()

    ends = []
    for by_hand in (False, True):
        with paddle.utils.unique_name.guard():
            param = paddle.nn.Linear(4, 3).to(dtype="bfloat16").weight
            param.set_value(paddle.ones([4, 3], "bfloat16"))
            opt = make(name, [param], multi_precision=True, fused=fused)
        step(opt, param, grads[0])
        value = param.clone()
        value[0] = 5.0  # the other elements keep what the rounded weights lack
        name_before = param.name
        WAYS[way](param, value)
        if param.name != name_before:
            pytest.skip("this Paddle renames a parameter that gets other memory")
        master = opt.state_dict()["master_weights"][param.name]
        assert (master.astype("bfloat16") != param).any()
        if by_hand:
            master[0] = 5.0
        for grad in grads[1:]:
            step(opt, param, grad)
        ends.append(opt.state_dict()["master_weights"][param.name].numpy())
        assert (param.astype("float32").numpy() == master.astype("bfloat16").astype("float32").numpy()).all()
    np.testing.assert_array_equal(*ends)


@every_variant
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_between_two_backward_passes_is_allowed_as_in_paddle(name, fused, dtype):
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 4))
    grads = [paddle.ones(param.shape, dtype) for param in model.to(dtype=dtype).parameters()]
    before = [param.inplace_version for param in model.parameters()]
    opt = make(name, model.parameters(), fused=fused)
    for param, grad in zip(model.parameters(), grads):
        param.grad = grad
    opt.step()
    assert [param.inplace_version for param in model.parameters()] == before


@every_optimizer
def test_16_bit_weights_without_masters_are_warned_of(name):
    param = paddle.nn.Linear(2, 2).to(dtype="bfloat16").weight
    for multi_precision in (True, False):
        opt = make(name, [param], multi_precision=multi_precision)
        param.grad = paddle.ones([2, 2], "bfloat16")
        with pytest.warns(UserWarning) if not multi_precision else contextlib.nullcontext() as warned:
            opt.step()
    assert "multi_precision" in str(warned[0].message)
