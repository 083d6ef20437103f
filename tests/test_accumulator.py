"""GradientAccumulator: reductions, two processes, and every error."""

import re
import warnings

import numpy as np
import paddle
import pytest
from distributed_launch import launch

from paddle_ldopt import AdamWDL, GradientAccumulator


def tensor(*values, dtype="float32"):
    return paddle.to_tensor(values, dtype=dtype)


def test_none_stays_and_a_later_gradient_is_ignored_with_a_warning():
    accumulator, gradient = GradientAccumulator(), tensor(1.0)
    accumulator([None, gradient])
    gradient.zero_(), accumulator.gradients[1].zero_()  # nothing is shared with the caller
    accumulator([None, None])
    with pytest.warns(UserWarning, match=r"first call are ignored.*Received: indexes=\[0\]$"):
        accumulator([tensor(1.0), tensor(2.0)])
    assert accumulator.gradients[0] is None and accumulator.gradients[1].tolist() == [3.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions(dtype):
    rng = np.random.default_rng(0)
    grads, weights = rng.normal(size=(3, 4)), [3, 0.5, 7]
    want = {"sum": grads.sum(0), "mean": grads.mean(0), "token": np.average(grads, axis=0, weights=weights)}
    for reduction, expected in want.items():
        accumulator = GradientAccumulator(reduction)
        for g, w in zip(grads, weights):
            accumulator([paddle.to_tensor(g, dtype=dtype)], *([w] if reduction == "token" else []))
        (got,) = accumulator.gradients
        assert got.dtype == getattr(paddle, dtype)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-14 if dtype == "float64" else 2e-6)
        accumulator.reset()
        assert accumulator.gradients[0].tolist() == [0.0] * 4


def test_a_weight_of_0_ignores_nan_gradients():
    accumulator = GradientAccumulator("token")
    accumulator([tensor(float("nan"))], weight=0)
    with pytest.raises(ValueError, match="weight=0 in all of 1 calls"):
        accumulator.gradients  # noqa: B018 - it raises
    accumulator([tensor(3.0)], weight=paddle.to_tensor(2))
    accumulator([tensor(6.0)], weight=np.int64(1))
    assert accumulator.gradients[0].tolist() == [4.0] and accumulator.step == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_gradients_are_summed_in_float32(dtype):
    accumulator = GradientAccumulator()
    big, small = {"bfloat16": (256.0, 1.0), "float16": (60000.0, 16.0)}[dtype]
    accumulator([tensor(big, dtype=dtype)])
    for _ in range(8):
        accumulator([tensor(small, dtype=dtype)])  # each alone would be lost, or overflow
    accumulator([tensor(big, dtype=dtype)])
    (got,) = accumulator.gradients
    assert got.dtype == paddle.float32
    start = tensor(big, dtype=dtype).astype("float32").item()
    assert got.tolist() == [2 * start + 8 * small]


def net():
    paddle.seed(0)
    return paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 2))


def batches():
    rng = np.random.default_rng(0)
    return [(np.float32(rng.normal(size=(n, 4))), np.float32(rng.normal(size=(n, 2)))) for n in [3, 5, 2, 6] * 3]


def backward(model, batch):
    x, y = batch
    (model(paddle.to_tensor(x)) - paddle.to_tensor(y)).square().mean().backward()


def arrays(model):
    return {name: param.numpy() for name, param in model.named_parameters()}


def changed(model, before):
    """Return the names of the parameters that are not what they were."""
    return [name for name, value in arrays(model).items() if (value != before[name]).any()]


def make():
    model = net()
    return model, paddle.optimizer.AdamW(0.05, parameters=model.parameters(), weight_decay=0.1)


def test_token_weighted_steps_are_those_of_the_large_batch():
    model, optimizer = make()
    whole, other = make()
    accumulator = GradientAccumulator("token")
    for start in range(0, 12, 4):
        part = batches()[start : start + 4]
        for batch in part:
            backward(model, batch)
            accumulator(model, weight=len(batch[0]))
            assert all(p.grad is None for p in model.parameters()), "it takes them"
        accumulator.apply(optimizer)
        assert accumulator.step == 0 and all(p.grad is None for p in model.parameters())
        backward(whole, tuple(np.concatenate(arrays) for arrays in zip(*part)))
        other.step()
        other.clear_grad()
    for name, value in arrays(whole).items():
        np.testing.assert_allclose(arrays(model)[name], value, rtol=0, atol=2e-6)


def test_parameters_without_a_gradient():
    model = net()
    optimizer = paddle.optimizer.AdamW(0.1, parameters=model.parameters(), weight_decay=0.5)
    accumulator, before = GradientAccumulator("mean"), arrays(model)
    model[0](paddle.ones([2, 4])).sum().backward()
    accumulator(model)
    assert [g is None for g in accumulator.gradients] == [False, False, True, True]
    accumulator.apply(optimizer)
    assert changed(model, before) == ["0.weight", "0.bias"], "no gradient, no decay"
    backward(model, batches()[0])  # one that comes later has its place
    accumulator(model)
    assert all(g is not None for g in accumulator.gradients)
    accumulator.apply(optimizer)
    before = arrays(model)
    model[2](paddle.ones([2, 8])).sum().backward()
    accumulator(model)
    accumulator.apply(optimizer)  # the sums of 0.* are zeros now, and still nothing moves them
    assert changed(model, before) == ["2.weight", "2.bias"]


def test_the_trainable_parameters_may_change_between_cycles_only():
    model = net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    accumulator = GradientAccumulator()
    for param in model[0].parameters():
        param.stop_gradient = True
    backward(model, batches()[0])
    accumulator(model)
    for param in model[0].parameters():
        param.stop_gradient = False
    backward(model, batches()[1])
    with pytest.raises(ValueError, match="parameters=.'0.weight'.*before=.'2.weight'"):
        accumulator(model)
    accumulator.reset()
    accumulator(model)
    assert len(accumulator.gradients) == 4
    accumulator.apply(optimizer)
    model[0], model[2] = paddle.nn.Linear(model[0].weight.shape[0], 9), paddle.nn.Linear(9, 2)  # of another width
    backward(model, batches()[0])
    accumulator(model)
    assert accumulator.gradients[0].shape[1] == 9
    accumulator.reset()
    accumulator([tensor(1.0)])  # a list has slots of its own
    assert [gradient.tolist() for gradient in accumulator.gradients] == [[1.0]]


def test_written_gradients_are_the_parameters_own_in_their_type():
    layer = paddle.nn.Linear(2, 2).to(dtype="bfloat16")
    accumulator = GradientAccumulator("mean")
    accumulator([paddle.ones([2, 2], "bfloat16"), None])
    accumulator.write_gradients(layer.parameters())  # for an optimizer or a scaler
    accumulator.reset()
    assert layer.weight.grad.dtype == paddle.bfloat16 and layer.bias.grad is None
    assert layer.weight.grad.astype("float32").tolist() == [[1.0, 1.0]] * 2


def test_lists_step_the_optimizers_parameters():
    model = net()
    optimizer = AdamWDL(0.1, parameters=[{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    accumulator, before = GradientAccumulator(), arrays(model)
    accumulator([None if i == 1 else paddle.ones_like(p) for i, p in enumerate(model.parameters())])
    accumulator.apply(optimizer)
    assert changed(model, before) == ["0.weight", "2.weight", "2.bias"]


def test_bad_calls_are_refused_and_change_nothing():
    model, optimizer = make()
    accumulator = GradientAccumulator()
    with pytest.raises(ValueError, match=r"should be called first to initialize the gradients\. Received: step=0"):
        accumulator.gradients  # noqa: B018 - it raises, with transformers' sentence
    for call in (lambda: accumulator.apply(optimizer), lambda: accumulator.write_gradients(model)):
        with pytest.raises(ValueError, match="Received: step=0"):
            call()
    accumulator([tensor(1.0), None, tensor(2.0)])
    sparse = paddle.nn.Embedding(4, 2, sparse=True)
    sparse(paddle.to_tensor([1])).sum().backward()
    bad = [
        (accumulator, [tensor(1.0), None], ValueError, "Expected 3 gradients, but got 2"),
        (accumulator, [tensor(1.0), None, tensor(2.0, 3.0)], ValueError, r"shape=\[2\] at 2"),
        (accumulator, [tensor(1.0), None, np.ones(1)], TypeError, "ndarray at 2"),
        (accumulator, [tensor(1.0), None, paddle.to_tensor([1])], TypeError, "paddle.int64 at 2"),
        (accumulator, [sparse.weight.grad, None, None], TypeError, r"sparse gradient .*sparse=False\) at 0"),
        (accumulator, tensor(1.0, 2.0, 3.0), TypeError, "gradients of type Tensor"),
        (accumulator, None, TypeError, "gradients of type NoneType"),
        (accumulator, model, ValueError, "none with a gradient"),
        (accumulator.apply, optimizer, ValueError, "`target` must fit the gradients"),
        (accumulator.apply, model, TypeError, "`optimizer`.*Received: optimizer of type Sequential"),
        (accumulator.write_gradients, [model[0].weight], ValueError, r"target=\[\[4, 8\]\], gradients=\[\[1\], None"),
        (accumulator.write_gradients, None, TypeError, "`target`.*Received: target of type NoneType"),
        (accumulator.synchronize, 3, TypeError, "`group`.*Received: group=3"),
    ]
    for call, argument, error, message in bad:
        with pytest.raises(error, match=message):
            call(argument)
    backward(model, batches()[0])
    with pytest.raises(ValueError, match="must be for the same parameters.*before=None"):
        accumulator(model)
    assert model.parameters()[0].grad is not None
    assert accumulator.step == 1 and accumulator.gradients[0].tolist() == [1.0]
    with pytest.raises(ValueError, match="`reduction` must be one of 'sum', 'mean', 'token'. Received: reduc.*='max'"):
        GradientAccumulator("max")
    for reduction, weight in (("token", None), ("token", -1), ("sum", 1.0), ("mean", 1.0)):
        with pytest.raises(ValueError, match="`weight`.*Received: weight="):
            GradientAccumulator(reduction)([tensor(1.0)], weight)


def test_another_model_is_refused():
    model, other = paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2)
    accumulator = GradientAccumulator()
    model(paddle.ones([1, 2])).sum().backward()
    accumulator(model)
    with pytest.raises(ValueError, match=r"must train the model.*Received: parameters="):
        accumulator.apply(AdamWDL(0.1, parameters=other.parameters()))
    before = model.weight.numpy()
    accumulator.apply(AdamWDL(0.1, parameters=[model.weight]))  # a part of the model is all right
    assert not np.array_equal(model.weight.numpy(), before)


def test_one_process_has_nothing_to_add_but_the_order_is_checked():
    accumulator = GradientAccumulator("mean")
    with pytest.raises(ValueError, match="Call the accumulator first"):
        accumulator.synchronize()
    for values, mean in (((1.0, 3.0), 2.0), ((5.0,), 5.0)):
        for value in values:
            accumulator([tensor(value)])
        accumulator.synchronize()
        assert accumulator.gradients[0].tolist() == [mean]
        with pytest.raises(ValueError, match="must be called once"):
            accumulator.synchronize()
        with pytest.raises(ValueError, match="call `reset` or `apply` first"):
            accumulator([tensor(1.0)])
        accumulator.reset()


def train(reduction, mine, wrap=lambda model: model):
    """Take three steps on those of each cycle's micro-batches that are ours."""
    model, optimizer = make()
    wrapped, accumulator = wrap(model), GradientAccumulator(reduction)
    for cycle in range(3):
        for batch in [b for i, b in enumerate(batches()[4 * cycle : 4 * cycle + 4]) if mine(i)]:
            if wrapped is model:
                backward(model, batch)
            else:
                with wrapped.no_sync():
                    backward(wrapped, batch)
            accumulator(wrapped, *([len(batch[0])] if reduction == "token" else []))
        accumulator.synchronize()
        accumulator.apply(optimizer)
    return arrays(model)


def worker():
    """Run as one of two processes; return what it makes, and what it sees of errors."""
    warnings.simplefilter("ignore")
    dist = paddle.distributed
    dist.init_parallel_env()
    rank = dist.get_rank()
    out, seen = {}, {}
    for reduction in ("sum", "mean", "token"):  # one and three micro-batches: ranks may differ
        out[reduction] = train(reduction, lambda i: (i == 0) == (rank == 0))
    out["wrapped"] = train("token", lambda i: i % 2 == rank, paddle.DataParallel)
    out["empty"] = train("token", lambda i: rank == 0)

    # a parameter that has a gradient on one process only
    model = net()
    accumulator = GradientAccumulator("mean")
    (model[0](paddle.ones([2, 4])).sum() if rank == 0 else model(paddle.ones([2, 4])).sum()).backward()
    accumulator(model)
    accumulator.synchronize()
    accumulator.write_gradients()
    out["part"] = {name: param.grad.numpy() for name, param in model.named_parameters()}
    accumulator = GradientAccumulator("mean")
    for frozen in (True, False):  # in the second cycle, a process without micro-batches knows the first alone
        model[2].weight.stop_gradient = frozen
        if frozen or rank == 0:
            backward(model, batches()[0])
            accumulator(model)
        accumulator.synchronize()
        accumulator.write_gradients(model)
        out["unfrozen"] = model[2].weight.grad is not None
        accumulator.reset()
    accumulator = GradientAccumulator()
    accumulator([tensor(40000.0 + 64 * rank, dtype="float16")])
    accumulator.synchronize()
    out["float16"] = accumulator.gradients[0].tolist()
    accumulator = GradientAccumulator("token")
    accumulator([tensor(3.0)], weight=0 if rank else 2)  # rank 1 has padding alone
    accumulator.synchronize()
    out["padding"] = accumulator.gradients[0].tolist()

    model[2].weight.stop_gradient = rank == 1
    backward(model, batches()[0])
    accumulator = GradientAccumulator("mean")
    accumulator(model)
    with pytest.raises(ValueError) as error:
        accumulator.synchronize()
    seen["frozen"] = str(error.value)
    assert accumulator.step == 1

    for what, reduction, gradients in (
        ("no call", "sum", None),
        ("length", "sum", [tensor(1.0)] * (1 + rank)),
        ("shape", "sum", [tensor(*[1.0] * (1 + rank))]),
        ("none", "sum", [tensor(1.0), tensor(1.0) if rank else None]),
        ("reduction", "mean" if rank else "sum", [tensor(1.0)]),
    ):
        accumulator = GradientAccumulator(reduction)
        if gradients:
            accumulator(gradients)
        with pytest.raises(ValueError) as error:
            accumulator.synchronize()
        seen[what] = str(error.value)
        assert not gradients or accumulator.gradients[0].tolist() == gradients[0].tolist()
    return out, seen


@pytest.fixture(scope="module")
def two_processes():
    return launch(worker, ranks=2, timeout=120)


@pytest.mark.parametrize("way", ["sum", "mean", "token", "wrapped", "empty"])
def test_two_processes_are_one_on_the_global_batch(two_processes, way):
    """Also if one has no micro-batch at all."""
    reduction = way if way in ("sum", "mean") else "token"
    want, alone = train(reduction, lambda i: True), train(reduction, lambda i: i == 0)
    first, second = (out[way] for out, _ in two_processes)
    for name, value in want.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], value, rtol=0, atol=2e-6)
    assert max(np.abs(alone[name] - want[name]).max() for name in want) > 1e-3, "without the others it is not that"


def test_two_processes_that_differ(two_processes):
    """A gradient of one process counts for all, float16 does not overflow, other differences raise in all."""
    model = net()
    model[0](paddle.ones([2, 4])).sum().backward()
    model(paddle.ones([2, 4])).sum().backward()
    for out, seen in two_processes:
        for name, param in model.named_parameters():
            np.testing.assert_allclose(out["part"][name], param.grad.numpy() / 2, rtol=1e-5, atol=1e-6)
        assert out["unfrozen"] and out["float16"] == [80064.0]
        assert out["padding"] == [3.0]
        assert "Call the accumulator first" in seen["no call"]
        assert re.search("same gradients.*'2.weight' in one only of processes 0 and 1", seen["frozen"])
        for what in ("length", "shape", "none", "reduction"):
            assert re.search("with the same reduction, shapes and types. .*processes 0 and 1", seen[what])


def test_parameters_of_other_optimizers_keep_no_gradient():
    model, grads = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 1)), []
    first, second = (paddle.optimizer.SGD(0.0, parameters=part.parameters()) for part in model)
    accumulator = GradientAccumulator()
    for optimizers in (first, first, [first, second]):
        model(paddle.ones([1, 2])).sum().backward()
        accumulator(model)
        grads.append(accumulator.gradients[2].numpy())
        accumulator.apply(optimizers)
        assert all(param.grad is None for param in model.parameters())
    np.testing.assert_array_equal(grads[1:], grads[:1] * 2)


def test_a_parameter_beside_the_model_with_an_unreduced_gradient_is_refused():
    model, criterion = paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=[*model.parameters(), *criterion.parameters()])
    accumulator = GradientAccumulator("mean")
    criterion(model(paddle.ones([1, 2]))).sum().backward()
    accumulator(model)
    before = [param.numpy() for param in model.parameters()]
    with pytest.raises(ValueError, match="accumulate a Layer that contains all.*Received: others='linear"):
        accumulator.apply(optimizer)
    assert all((param.numpy() == value).all() for param, value in zip(model.parameters(), before))


def test_a_process_without_micro_batches_has_the_gradients_of_its_present_parameters(monkeypatch):
    """Another process has replaced a part, too, and accumulated it."""
    model = net()
    mine, others = GradientAccumulator(), GradientAccumulator()
    backward(model, batches()[0])
    mine(model)
    mine.apply(paddle.optimizer.SGD(0.1, parameters=model.parameters()))
    model[2] = paddle.nn.Linear(*model[2].weight.shape)
    backward(model, batches()[0])
    others(model)
    sums, parts = others.gradients, []
    monkeypatch.setattr("paddle_ldopt.accumulator.gathered", lambda part, group: parts.append(part) or parts)
    others.synchronize()
    mine.synchronize()
    mine._sums = sums
    before = model[2].weight.numpy()
    mine.apply(paddle.optimizer.SGD(0.1, parameters=model.parameters()))
    assert (model[2].weight.numpy() != before).all()


def test_a_process_without_tokens_has_no_gradient_of_its_experts():
    model = paddle.nn.Linear(2, 1)
    model.weight.no_sync = True
    accumulator = GradientAccumulator("token")
    model(paddle.ones([1, 2])).sum().backward()
    accumulator(model, weight=0)
    accumulator.synchronize()
    accumulator._weight = 3.0  # of other processes
    assert not accumulator.gradients[0].numpy().any()
