"""Networks, data, the direct computation and the workers of test_pipeline.py and test_pipeline_distributed.py."""

import functools

import numpy as np
import paddle
import paddle.nn.functional as F
import toy_layers
from paddle.distributed import fleet
from toy_layers import Block, Embed, data_part, initialise, tensors, values

import paddle_ldopt as ldopt

VOCABULARY, HIDDEN, LENGTH, BLOCKS = 11, 6, 5, 4
MICRO_BATCHES, SIZE = 4, 2  # of this many rows
IGNORED = -100
SHAPE = {3: (0, "shape")}  # step -> (rank, fault) of another one before it
ANY_FAULT = {0: (0, "data"), 1: (-1, "loss"), **SHAPE}  # of which a pipeline would not recover
LAYERS = (Embed, VOCABULARY, HIDDEN), [(Block, HIDDEN)] * BLOCKS


def mean_loss(logits, labels):
    return F.cross_entropy(logits, labels)


def token_loss(logits, labels):
    """(sum over tokens, how many there are)."""
    counts = (labels != IGNORED).astype("float32")
    losses = F.cross_entropy(logits, labels.clip(min=0), reduction="none")
    return (losses.flatten() * counts.flatten()).sum(), counts.sum()


Whole = functools.partial(toy_layers.Whole, *LAYERS, loss=mean_loss)
Staged = functools.partial(toy_layers.Staged, *LAYERS, loss=mean_loss)


def batch(step, parts=1, ragged=False):
    """Return the tokens and labels of all processes; `ragged` rows lack more labels the later they come."""
    draw = np.random.default_rng(1000 + step)
    rows = MICRO_BATCHES * SIZE * parts
    tokens = draw.integers(0, VOCABULARY, [rows, LENGTH])
    labels = (tokens * 3 + 1) % VOCABULARY
    if ragged:
        labels[draw.random(labels.shape) < np.linspace(0.0, 0.9, rows)[:, None]] = IGNORED
        labels[SIZE : 2 * SIZE] = IGNORED  # a micro-batch without any
    return tokens, labels


# Came divides by the root of (u - m)^2, which makes much of the rounding where u is near m: its eps bounds that
ARGUMENTS = {name: {} for name in ("adamwdl", "came", "lamb", "adafactor", "adamweightdecay")}
ARGUMENTS["came"] = {"eps": (1e-8, 1e-3, 1e-3)}


def optimizer_of(name, network, rate=1e-2, **arguments):
    """Return one of ours with a schedule; "sgd" is Paddle's, which shows a gradient as it is."""
    rate = 1.0 if name == "sgd" else rate
    schedule = paddle.optimizer.lr.LambdaDecay(rate, lambda epoch: 0.9**epoch)
    if name == "sgd":
        return paddle.optimizer.SGD(schedule, network.parameters())
    return ldopt.create(name, network, learning_rate=schedule, weight_decay=0.01, **ARGUMENTS[name], **arguments)


def steps_of(name):
    """Return how many steps "sgd" needs to come far enough; the rounding of Came's grows with more."""
    return 20 if name == "sgd" else 8


def scaler():
    return ldopt.DynamicLossScaler(2**10, 2, 3)


def directly(name, steps, overflows=(), parts=1, ragged=False, max_norm=0.05, scaler=None):
    """Train `Whole` in one process on whole batches, without anything of `paddle_ldopt.parallel` but the scaler.

    Each step gives a dict of "loss", "overflow", "scale", "rate", "norm" (before clipping) and "weights" (after).
    """
    with paddle.utils.unique_name.guard("direct_"):
        network = initialise(Whole(loss=token_loss if ragged else mean_loss))
        optimizer = optimizer_of(name, network)
        clip = paddle.nn.ClipGradByGlobalNorm(max_norm)
    params, out = network.parameters(), []
    for step in range(steps):
        loss = network(*tensors(batch(step, parts, ragged)))
        loss = loss[0] / loss[1] if ragged else loss
        loss.backward()
        row = {"loss": loss.item(), "overflow": step in overflows, "rate": optimizer.get_lr()}
        row["norm"] = float(np.sqrt(sum(np.sum(p.grad.numpy().astype("float64") ** 2) for p in params)))
        row["scale"] = scaler.get_loss_scale() if scaler else 1.0
        if step not in overflows:
            for param, grad in clip([(param, param.grad) for param in params]):
                param.grad = grad
            optimizer.step()
            optimizer._learning_rate.step()
        optimizer.clear_grad()
        if scaler:
            scaler.update(step in overflows)
        out.append({**row, "weights": values(network)})
    return out


def apart(got, direct):
    """Return the greatest distance of weights from those of `directly`, by the way that these have gone."""
    return toy_layers.apart(got, values(initialise(Whole())), direct)


def build(hcg, kind, name, ragged=False, frozen=(), **arguments):
    """Return (network, step) of a part of the processes, or of this one alone; `kind` is "staged" or "whole".

    Parameters whose names start with one of `frozen` are frozen.
    """
    loss = token_loss if ragged else mean_loss
    with paddle.utils.unique_name.guard():
        stages = {"num_stages": 1} if hcg is None else {"topology": hcg.topology()}
        network = initialise(Staged(loss=loss, **stages) if kind == "staged" else Whole(loss=loss))
        for own, param in network.named_parameters():
            param.stop_gradient = toy_layers.plain_name(own).startswith(frozen)
        model, optimizer = network, optimizer_of(name, network)
        if hcg is not None:
            optimizer, model = fleet.distributed_optimizer(optimizer), fleet.distributed_model(network)
    arguments = {"max_grad_norm": 0.05, "micro_batch_num": MICRO_BATCHES, **arguments}
    return network, ldopt.PipelineWithLossScale(model, optimizer, calculate_per_token_loss=ragged, **arguments)


def inject(network, due):
    """Make the gradient of a parameter inf whenever `due()`."""
    linear = [param for name, param in network.named_parameters() if name.endswith("linear.weight")]
    param = [*linear, *network.parameters()][0]  # a last stage may have the head alone
    return param.register_hook(lambda grad: grad * float("inf") if due() else grad)


def snapshot(network, step):
    optimizer = ldopt._compat.unwrap(step._optimizer)
    state = {k: v.numpy().copy() for k, v in optimizer.state_dict().items() if isinstance(v, paddle.Tensor)}
    return {**values(network), **state, "epoch": np.array(optimizer._learning_rate.last_epoch)}


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)


FAULTS = {"loss": "a loss that fails", "data": "expected >= 0 and < 11", "shape": "multiple of `micro_batch_num`"}


def attempt(network, step, inputs, fault=None):
    """Take a step that fails in this process if there is a `fault`; return the error's type and message.

    The faults: "loss", the loss function raises in the third micro-batch; "data", a layer does, which gets a token
    outside the vocabulary; "shape", the inputs cannot be split.
    """
    calls, (tokens, labels) = [], inputs
    holder, key = (network._loss_fn, 0) if isinstance(network, toy_layers.Staged) else (vars(network), "loss")
    original = holder[key]

    def failing(*arguments):
        calls.append(arguments)
        if fault == "loss" and len(calls) == 3:
            raise KeyError("a loss that fails")
        return original(*arguments)

    if fault == "data":
        tokens = tokens + VOCABULARY * (paddle.arange(len(tokens)) == 2 * SIZE).astype(tokens.dtype).unsqueeze(1)
    holder[key] = failing
    try:
        step(*((tokens[1:], labels[1:]) if fault == "shape" else (tokens, labels)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        holder[key] = original


def train(hcg, kind, name, steps, overflows=(), ragged=False, faults=(), **arguments):
    """Train with `PipelineWithLossScale`.

    `overflows` maps a step to the rank that gets an inf; `faults` maps it to (rank, fault of `attempt`): before that
    step another one is taken, which fails.
    """
    rank, ranks, now = paddle.distributed.get_rank(), paddle.distributed.get_world_size(), [None]
    network, step = build(hcg, kind, name, ragged, **arguments)
    inject(network, lambda: now[0] in overflows and overflows[now[0]] % ranks == rank)
    rows, kept, errors, (part, parts) = [], [], [], data_part(hcg)
    for now[0] in range(steps):
        before = snapshot(network, step)
        if now[0] in faults:
            place, fault = faults[now[0]]
            inputs = tensors(batch(100, parts, ragged), part, parts)
            errors.append(attempt(network, step, inputs, fault if place % ranks == rank else None))
            kept.append(is_clear(network) and same(before, snapshot(network, step)))
        rows.append(row_of(step(*tensors(batch(now[0], parts, ragged), part, parts))))
        if now[0] in overflows:
            kept.append(is_clear(network) and same(before, snapshot(network, step)))
    return {"rows": rows, "kept": kept, "weights": values(network), "errors": errors}


def is_clear(network):
    return all(param.grad is None or not param.grad.numpy().any() for param in network.parameters())


def row_of(output):
    names = {"loss": "loss", "overflow": "overflow", "loss_scale": "scale", "learning_rate": "rate"}
    row = {short: getattr(output, name).item() for name, short in names.items()}
    return {**row, "norm": None if output.global_norm is None else output.global_norm.item()}


def check(results, name, steps, overflows, ragged=False, parts=1, scaler=None, tolerance=1e-5, faults=()):
    """Compare what each process got from `train` with `directly`."""
    for number, (place, fault) in enumerate(dict(faults).values()):
        place %= len(results)
        for rank, result in enumerate(results):
            needle = FAULTS[fault] if rank == place else f"Received: an error in process {place}"
            assert needle in result["errors"][number]
    direct = directly(name, steps, overflows, parts, ragged, scaler=scaler)
    for result in results:
        assert result["rows"] == results[0]["rows"], "the same values in all processes"
        assert result["kept"] == [True] * (len(overflows) + len(faults)), "an overflow or error leaves all as it was"
        assert apart(result["weights"], direct[-1]["weights"]) < tolerance
    for row, expected in zip(results[0]["rows"], direct):
        assert row["overflow"] == expected["overflow"]
        assert row["scale"] == expected["scale"]
        np.testing.assert_allclose(row["rate"], expected["rate"], rtol=1e-6)
        np.testing.assert_allclose(row["loss"], expected["loss"], rtol=2e-6)
        if not row["overflow"]:
            np.testing.assert_allclose(row["norm"], expected["norm"], rtol=5e-6)
    held = [name for result in results for name in result["weights"]]
    assert set(held) == set(direct[-1]["weights"])
    for name in held:
        of_it = [result["weights"][name] for result in results if name in result["weights"]]
        assert all(np.array_equal(of_it[0], other) for other in of_it), "bit for bit"
