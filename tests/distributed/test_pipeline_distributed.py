"""`PipelineWithLossScale` in several processes: the numbers of one process, the same decisions everywhere."""

import math
import os
import signal

import numpy as np
import paddle
import pipeline_cases as cases
import pytest
from distributed_launch import LaunchError, launch
from distributed_setup import LAYOUTS, start_fleet
from paddle.distributed import fleet
from pipeline_cases import ANY_FAULT, SHAPE, scaler, steps_of
from toy_layers import plain_name, refusal

import paddle_ldopt as ldopt
from paddle_ldopt.parallel import save_checkpoint

OVERFLOWS = {1: 0, 4: 1, 5: 1}  # step -> rank


def faults_of(name, degrees):
    """Return what else goes wrong in the training of a case."""
    return ({} if name != "ragged" else SHAPE if "pp" in degrees else ANY_FAULT), name == "ragged"


def several(kinds, **degrees):
    """A worker: for each kind of network the optimizers that are named, and a loss per token ("ragged")."""
    hcg = start_fleet(**degrees, accumulate_steps=cases.MICRO_BATCHES, micro_batch_size=cases.SIZE)
    runs = {}
    for kind, name in [(kind, name) for kind, names in kinds.items() for name in names]:
        (faults, ragged), case = faults_of(name, degrees), "sgd" if name == "ragged" else name
        runs[kind, name] = cases.train(hcg, kind, case, steps_of(case), OVERFLOWS, ragged, faults, scale_sense=scaler())
    return runs


ALL = [*cases.ARGUMENTS, "ragged"]
SHARDED = LAYOUTS["sharding v2"]
SLOW = [{"pp": 2}, {"sharding": 2}, {"pp": 2, "dp": 2}, {"pp": 2, "sharding": 2}, {"pp": 2, **SHARDED}, {"pp": 4}]
SLOW += [{"dp": 2, "sharding": 2}, {"dp": 2, **SHARDED}, {"dp": 4}, {"sharding": 4}]


def slow(degrees):
    kinds = {"staged": ALL} if "pp" in degrees else {"staged": ALL, "whole": ALL}
    return pytest.param(kinds, degrees, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kinds", "degrees"),
    [
        ({"staged": ["came", "adafactor", "ragged"]}, {"pp": 2}),
        ({"staged": ["lamb", "ragged"]}, {"pp": 2, "delay_scale_loss": True}),
        ({"staged": ["lamb", "ragged"], "whole": ["came", "ragged"]}, {"dp": 2}),
        # slices of parameters: the norm is that of all, and update rules are answered with sums over all
        ({"whole": ["came", "ragged"]}, SHARDED),
        ({"staged": ["lamb", "ragged"]}, {"pp": 2, **SHARDED}),
        pytest.param({"whole": ALL}, SHARDED, marks=pytest.mark.slow),
        *map(slow, SLOW),
    ],
    ids=str,
)
def test_several_processes_are_one(kinds, degrees):
    ranks = math.prod(degree for degree in degrees.values() if isinstance(degree, int))
    results = launch(several, ranks=ranks, timeout=300, kinds=kinds, **degrees)
    for kind, name in [(kind, name) for kind, names in kinds.items() for name in names]:
        (faults, ragged), case = faults_of(name, degrees), "sgd" if name == "ragged" else name
        runs = [result[kind, name] for result in results]
        parts = ranks // degrees.get("pp", 1)
        cases.check(runs, case, steps_of(case), OVERFLOWS, ragged, parts, scaler(), faults=faults)


def interrupted(folder, steps, dies=None, also_whole=False):
    """A worker: go on from the last checkpoint in a folder; process 1 kills itself in the backward of step `dies`."""
    hcg = start_fleet(pp=2, accumulate_steps=cases.MICRO_BATCHES, micro_batch_size=cases.SIZE)
    rank = paddle.distributed.get_rank()

    def run(path, dies=None):
        network, step = cases.build(hcg, "staged", "came", scale_sense=scaler())
        optimizer, now, first = ldopt._compat.unwrap(step._optimizer), [0], 0
        if path and os.path.exists(path):
            saved = paddle.load(path)
            network.set_state_dict(saved["network"])
            optimizer.set_state_dict(saved["optimizer"])
            step.set_state_dict(saved["step"])
            first = saved["done"]
        cases.inject(network, lambda: now[0] in (2, 5) and rank == 0)

        def die(gradient):
            if now[0] == dies and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        network.parameters()[0].register_hook(die)
        rows = []
        for now[0] in range(first, steps):
            rows.append(cases.row_of(step(*cases.tensors(cases.batch(now[0])))))
            if path:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                paddle.save({**state, "step": step.state_dict(), "done": now[0] + 1}, f"{path}.part")
                os.replace(f"{path}.part", path)
        return {"rows": rows, "first": first, "weights": cases.values(network), "state": step.state_dict()}

    resumed = run(os.path.join(folder, f"rank{rank}.pdparams"), dies)
    return (resumed, run(None)) if also_whole else resumed


@pytest.mark.promise(
    "if a process is killed during a step, the others end with an error, and a relaunch resumes bit for bit"
)
def test_a_killed_process_ends_the_others_and_a_relaunch_goes_on(tmp_path):
    with pytest.raises(LaunchError) as error:
        launch(interrupted, ranks=2, timeout=90, grace=30, folder=str(tmp_path), steps=9, dies=6)
    assert error.value.returncodes[1] == -signal.SIGKILL
    assert error.value.returncodes[0] not in (0, -signal.SIGKILL), "an error of its own, in time"
    assert error.value.killed == []
    for resumed, whole in launch(interrupted, ranks=2, timeout=90, folder=str(tmp_path), steps=9, also_whole=True):
        assert resumed["first"] == 6 and whole["first"] == 0
        assert resumed["rows"] == whole["rows"][6:]
        assert cases.same(resumed["weights"], whole["weights"]) and resumed["state"] == whole["state"]


def failing(place, fault):
    """A worker: two stages, one of which fails."""
    hcg = start_fleet(pp=2, accumulate_steps=cases.MICRO_BATCHES, micro_batch_size=cases.SIZE)
    network, step = cases.build(hcg, "staged", "lamb")
    mine = fault if paddle.distributed.get_rank() == place else None
    raise RuntimeError(cases.attempt(network, step, cases.tensors(cases.batch(0)), mine))


@pytest.mark.parametrize("place, fault", [(0, "data"), (1, "loss")])
def test_a_failing_stage_raises_and_ends_the_other(place, fault):
    with pytest.raises(LaunchError) as error:
        launch(failing, ranks=2, timeout=90, grace=30, place=place, fault=fault)
    assert cases.FAULTS[fault] in error.value.outputs[place]
    assert 0 not in error.value.returncodes and error.value.killed == []


def trained(names, frozen, **degrees):
    """A worker: steps of each optimizer with frozen parameters; return the weights, and those frozen that moved."""
    hcg = start_fleet(**degrees, accumulate_steps=cases.MICRO_BATCHES, micro_batch_size=cases.SIZE) if degrees else None
    found = {}
    for name in names:
        network, step = cases.build(hcg, "staged" if degrees else "whole", name, frozen=frozen, local_norm=True)
        start = cases.values(network)
        for number in range(3):
            output = step(*cases.tensors(cases.batch(number)))
        assert output.local_norm.shape == output.size.shape == [sum(not p.stop_gradient for p in network.parameters())]
        end = cases.values(network)
        moved = [key for key in end if key.startswith(frozen) and not np.array_equal(start[key], end[key])]
        found[name] = end, moved
    return found


def test_a_stage_may_have_nothing_to_train():
    """The optimizer of this stage once refused its parameters, and the other stages waited for it in vain."""
    names, frozen = [*cases.ARGUMENTS], ("embed", "inner.2", "inner.3")
    alone, stages = trained(names, frozen), launch(trained, ranks=2, timeout=120, names=names, frozen=frozen, pp=2)
    assert all(key.startswith(frozen) for key in stages[1]["lamb"][0])
    for name in names:
        weights = {**stages[0][name][0], **stages[1][name][0]}
        assert weights.keys() == alone[name][0].keys()
        assert cases.apart(weights, alone[name][0]) < 1e-5
        assert not stages[0][name][1] + stages[1][name][1]


def refused(function, *needles):
    """Return whether a call raises a ValueError or TypeError whose message has all of these."""
    message = refusal(function, (ValueError, TypeError)) or "no error"
    return all(needle in message for needle in (*needles, "Received: ")) or message


def two_stages():
    hcg = start_fleet(pp=2, accumulate_steps=cases.MICRO_BATCHES, micro_batch_size=cases.SIZE)
    found = {}
    network, step = cases.build(hcg, "staged", "adamwdl", local_norm=True, scale_sense=2.0**8)
    model, optimizer = step._groups.network, step._optimizer
    inputs = cases.tensors(cases.batch(0))
    loss_fn = network._loss_fn[0]
    before = model.eval_batch(list(inputs), compute_loss=True).item()
    middle = step(*inputs)
    found["eval"] = [before, middle.loss.item()]
    found["restored"] = network._loss_fn[0] is loss_fn
    names = {id(param): plain_name(name) for name, param in network.named_parameters()}
    found["local"] = [
        (names[id(param)], norm, size)
        for param, norm, size in zip(optimizer._parameter_list, middle.local_norm.tolist(), middle.size.tolist())
    ]
    skips = {"use_skip_data_by_global_norm": True, "global_norm_spike_threshold": 1e-3}
    network, skipping = cases.build(hcg, "staged", "lamb", **skips)
    kept = cases.snapshot(network, skipping)
    output = skipping(*inputs)
    unchanged = cases.same(kept, cases.snapshot(network, skipping))
    found["skipped"] = unchanged and not output.overflow.item() and output.global_norm.item() > 1e-3

    make, inner = ldopt.PipelineWithLossScale, ldopt._compat.unwrap(optimizer)
    found["refused"] = [
        refused(lambda: make(model, optimizer, micro_batch_num=2), "accumulate_steps", "micro_batch_num=2"),
        refused(lambda: make(model, inner, micro_batch_num=4), "fleet.distributed_optimizer"),
        refused(lambda: make(network, inner, micro_batch_num=4), "fleet.distributed_model"),
        refused(lambda: make(cases.Whole(), optimizer, micro_batch_num=4), "fleet.distributed_model"),
        refused(lambda: make(model, skipping._optimizer, micro_batch_num=4), "parameters of the network"),
        refused(lambda: step(*(tensor[:4] for tensor in inputs)), "same shapes", "[4, 5]"),
        refused(lambda: step(inputs[0]), "inputs and labels"),
    ]
    model._dp_comm_overlap = True
    found["refused"].append(refused(lambda: make(model, optimizer, micro_batch_num=4), "pp_configs", "dp_comm_overlap"))
    model._dp_comm_overlap = False
    with paddle.utils.unique_name.guard():
        clipped = paddle.optimizer.SGD(1.0, network.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))
        clipped = fleet.distributed_optimizer(clipped)
    says = "leave out the optimizer's `grad_clip`", "max_grad_norm"
    found["refused"].append(refused(lambda: make(model, clipped, micro_batch_num=4), *says))
    return found


def test_two_stages():
    results = launch(two_stages, ranks=2, timeout=120)
    direct = cases.Whole()
    cases.initialise(direct)
    direct(*cases.tensors(cases.batch(0))).backward()
    norms = {name: (param.grad.norm().item(), param.size) for name, param in direct.named_parameters()}
    for found in results:
        np.testing.assert_allclose(found["eval"][0], found["eval"][1], rtol=1e-6)
        assert found["restored"] and found["skipped"] and found["refused"] == [True] * 9
        assert "embed.weight" in [name for name, _, _ in found["local"]]
        for name, norm, size in found["local"]:
            np.testing.assert_allclose(norm, norms[name][0], rtol=1e-5)
            assert size == norms[name][1]
    assert {name for found in results for name, _, _ in found["local"]} == set(norms)


def frozen_in_one(network, step, name, inputs):
    """Freeze a parameter in process 1, then in both; return the errors and whether a step with it changed it."""
    param = dict(network.named_parameters())[name]
    before, found = cases.snapshot(network, step), {}
    param.stop_gradient = paddle.distributed.get_rank() == 1
    found["step"] = refused(lambda: step(*inputs), f"'{name}' trained in process 0 and not in process 1")
    found["construction"] = refused(
        lambda: ldopt.PipelineWithLossScale(step._groups.network, step._optimizer, micro_batch_num=cases.MICRO_BATCHES),
        f"'{name}' trained in process 0 and not in process 1",
    )
    found["unchanged"] = cases.same(before, cases.snapshot(network, step)) and cases.is_clear(network)
    param.stop_gradient = True
    step(*inputs)
    after = cases.snapshot(network, step)
    key = plain_name(name)
    found["frozen in both"] = np.array_equal(before[key], after[key]) and not cases.same(before, after)
    return found


def other_refusals():
    """A worker: a parameter frozen in one process only, settings that are not served, under several layouts."""
    found = {}
    for degrees in ({"dp": 2}, {"sharding": 2}, SHARDED, {"pp": 2}):
        hcg = start_fleet(**degrees, accumulate_steps=cases.MICRO_BATCHES, micro_batch_size=cases.SIZE)
        part, parts = cases.data_part(hcg)
        network, step = cases.build(hcg, "staged" if "pp" in degrees else "whole", "lamb")
        name = "shared_layers.tied.weight" if "pp" in degrees else "inner.1.linear.weight"
        inputs = cases.tensors(cases.batch(0, parts), part, parts)
        found[str(degrees)] = frozen_in_one(network, step, name, inputs)
    for configs in ({"comm_overlap": True}, {"split_param": True, "comm_overlap": True}, {"tensor_fusion": True}):
        hcg = start_fleet(sharding=2, sharding_configs={**configs, "accumulate_steps": cases.MICRO_BATCHES})
        found[str(configs)] = refused_setting(hcg, list(configs)[-1])
    return found


def refused_setting(hcg, setting):
    found = {
        "step": refused(lambda: cases.build(hcg, "whole", "adamwdl"), f"{setting}=False", f"{setting}=True"),
        "accumulator": refused(lambda: ldopt.GradientAccumulator()([paddle.ones([1])]), f"{setting}=False"),
    }
    with paddle.utils.unique_name.guard():
        network = cases.initialise(cases.Whole())
        optimizer = fleet.distributed_optimizer(cases.optimizer_of("adamwdl", network))
        model = fleet.distributed_model(network)
    if not hasattr(optimizer._inner_opt, "_slice_params"):  # slices can be saved
        found["save"] = refused(lambda: save_checkpoint("nowhere", model, optimizer), f"{setting}=False")
    return found


def test_other_refusals():
    for found in launch(other_refusals, ranks=2, timeout=240):
        assert len(found) == 7
        for what, results in found.items():
            assert set(results.values()) == {True}, (what, results)


def sometimes():
    """Return a network of whose two parts each process uses one."""
    network = paddle.nn.LayerList([paddle.nn.Linear(3, 1), paddle.nn.Linear(3, 1)])
    network.forward = lambda inputs, part: network[int(part[0])](inputs).mean()
    return network


def experts(use):
    """Return what a step of SGD subtracts from a shared weight and from an expert, whose gradient is the rank + 1."""
    network = paddle.nn.LayerList([paddle.nn.Linear(1, 1, bias_attr=False) for _ in range(2)])
    network.forward = lambda x: sum(part(x) for part in network).mean()
    network[1].weight.no_sync = True  # as paddle.incubate's MoELayer marks it
    for param in network.parameters():
        param.set_value(paddle.ones_like(param))
    before = [1.0, 1.0]
    optimizer = paddle.optimizer.SGD(1.0, network.parameters())
    inputs = paddle.full([2, 1], paddle.distributed.get_rank() + 1.0)
    if use == "step":
        ldopt.PipelineWithLossScale(paddle.DataParallel(network), optimizer, use_clip_grad=False)(inputs)
    else:
        accumulator = ldopt.GradientAccumulator("mean")
        for _ in range(2):
            network(inputs).backward()
            accumulator(network)
        accumulator.synchronize()
        accumulator.apply(optimizer)
    return [b - param.item() for b, param in zip(before, network.parameters())]


def failing_update():
    """Return the error of a step whose update fails in process 1 alone, and whether anything moved."""
    ratio = [1.0]
    with paddle.utils.unique_name.guard():
        network = sometimes()
        inner = ldopt.AdamWDL(0.1, parameters=network.parameters(), set_param_lr_fun=lambda param: ratio[0])
    step = ldopt.PipelineWithLossScale(fleet.distributed_model(network), fleet.distributed_optimizer(inner))
    inputs = paddle.ones([4, 3]), paddle.zeros([4], "int64")
    step(*inputs)
    before = [param.numpy().copy() for param in network.parameters()]
    ratio[0] = math.nan if paddle.distributed.get_rank() == 1 else 1.0
    try:
        step(*inputs)
    except Exception as error:
        same = [np.array_equal(a, param.numpy()) for a, param in zip(before, network.parameters())]
        return type(error).__name__, all(same)


def data_parallel():
    start_fleet(dp=2)
    rank, found = paddle.distributed.get_rank(), {}

    def made(wrapped, optimizer=None, **arguments):
        with paddle.utils.unique_name.guard():
            network = sometimes()
            for param in network.parameters():
                param.set_value(paddle.ones_like(param))
            cls = paddle.optimizer.SGD if optimizer is None else ldopt.AdamWDL
            optimizer = cls(**{"learning_rate": 1.0, "parameters": network.parameters(), **(optimizer or {})})
        if wrapped == "fleet":
            model, optimizer = fleet.distributed_model(network), fleet.distributed_optimizer(optimizer)
        else:
            model = paddle.DataParallel(network)
        return network, ldopt.PipelineWithLossScale(model, optimizer, max_grad_norm=100.0, **arguments)

    for wrapped in ("fleet", "plain"):
        network, step = made(wrapped)
        output = step(paddle.full([4, 3], 2.0 + rank), paddle.full([4], rank, "int64"))
        found[wrapped] = [param.numpy().ravel().tolist() for param in network.parameters()], cases.row_of(output)

    # an overflow that only one process sees, after the reduction
    network, step = made("fleet", scale_sense=ldopt.DynamicLossScaler(8.0, 2, 5))
    reduce = step._gradients.reduce

    def reduce_with_inf():
        reduce()
        if rank == 1:
            network.parameters()[0].grad[0] = float("inf")

    step._gradients.reduce = reduce_with_inf
    kept = [param.numpy().copy() for param in network.parameters()]
    output = step(paddle.ones([4, 3]), paddle.zeros([4], "int64"))
    unchanged = all(np.array_equal(a, b.numpy()) for a, b in zip(kept, network.parameters()))
    found["reduction"] = cases.row_of(output), unchanged

    found["unused"] = []
    for layout in ("sharding v1", "sharding v2"):  # zeros for a parameter that no process uses: it would decay
        start_fleet(**LAYOUTS[layout])
        with paddle.utils.unique_name.guard():
            network = sometimes()
            inner = ldopt.AdamWDL(0.1, parameters=network.parameters(), weight_decay=0.5)
        model, optimizer = fleet.distributed_model(network), fleet.distributed_optimizer(inner)
        kept = [param.numpy().copy() for param in network.parameters()]
        ldopt.PipelineWithLossScale(model, optimizer)(paddle.ones([4, 3]), paddle.zeros([4]))
        found["unused"].append([np.array_equal(a, b.numpy()) for a, b in zip(kept, network.parameters())])

    hcg = start_fleet(dp=2)
    found["experts"] = [experts(use) for use in ("step", "accumulator")]
    found["update"] = failing_update()
    for option, values in (("weight_decay", (0.1, 0.5)), ("learning_rate", (0.01, 0.02))):
        says = f"{option}={values[0]} in process 0 and {values[1]} in process 1"
        found[option] = refused(lambda given={option: values[rank]}: made("fleet", optimizer=given), says)
    network, step = cases.build(hcg, "whole", "sgd", ragged=True)
    labels = paddle.full([8, cases.LENGTH], cases.IGNORED, "int64")
    found["no token"] = refused(lambda: step(paddle.zeros_like(labels), labels), "0 tokens")
    found["cleared"] = all(param.grad is None for param in network.parameters())
    return found


def test_data_parallel():
    results = launch(data_parallel, ranks=2, timeout=120)
    for found in results:
        for wrapped in ("fleet", "plain"):
            weights, row = found[wrapped]
            assert row == results[0][wrapped][1] and row["loss"] == (7 + 10) / 2
            np.testing.assert_allclose(sum(weights, []), [*[0.0] * 3, 0.5, *[-0.5] * 3, 0.5])
            np.testing.assert_allclose(row["norm"], math.sqrt(3 * 1.0 + 0.25 + 3 * 1.5**2 + 0.25), rtol=1e-6)
        row, unchanged = found["reduction"]
        assert row["overflow"] and row["scale"] == 8.0 and row["norm"] == math.inf and unchanged
        assert found["unused"] == [[False, False, True, True]] * 2
        assert found["no token"] is True and found["cleared"]
        assert found["weight_decay"] is True and found["learning_rate"] is True
    for rank, found in enumerate(results):
        np.testing.assert_allclose(found["experts"], [[1.5, rank + 1.0]] * 2, rtol=1e-6)
        assert found["update"] == ("ValueError" if rank else "RuntimeError", True)
