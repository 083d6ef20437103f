"""Start Paddle's `fleet` in a process of `distributed_launch`, with what Paddle lacks on CPU and gloo made good.

`start_fleet(dp=, sharding=, pp=, mp=)` does it all. Nothing here changes a number: what is missing is put in its
plainest form (a reduce_scatter is an all_reduce and a slice), what is broken is gone around (each group of processes
gets a store of its own). Only for tests: on GPU none of this is needed.

A pipeline needs two things more from its caller, with the `hcg` that is returned: `topology=hcg.topology()` for
`PipelineLayer`, and the inputs of the same shape in all micro-batches.
"""

import itertools

import paddle
import paddle.distributed as dist
from distributed_launch import free_ports
from paddle.base import core
from paddle.distributed import collective, fleet
from paddle.distributed.fleet.base import topology
from paddle.distributed.fleet.meta_parallel import tensor_parallel
from paddle.distributed.fleet.utils import tensor_fusion_helper

__all__ = ["LAYOUTS", "V2", "complete_cpu", "each_started", "mend_paddle", "start_fleet"]

V2 = {"sharding_configs": {"split_param": True}}
LAYOUTS = {  # of two processes and 8 rows
    "dp": {"dp": 2},
    "sharding v1": {"sharding": 2},
    "sharding v2": {"sharding": 2, **V2},
    "pp": {"pp": 2, "accumulate_steps": 2, "micro_batch_size": 4},
    "mp": {"mp": 2},
}

_SECONDS = 60  # that a process waits for the others when a group is made
_stores = []  # a group's store must live as long as the group
_new_group = collective._new_process_group_impl
_messages = {name: getattr(dist, name) for name in ("send", "recv", "isend", "irecv")}


def start_fleet(dp=1, sharding=1, pp=1, mp=1, accumulate_steps=1, micro_batch_size=1, sharding_configs=(), **pipeline):
    """Start `fleet` with these degrees, which multiply to the number of processes; return the communicate group.

    It can be started again, with other degrees.

    `sharding_configs` are those of the strategy; `pipeline` are further ``pp_configs``.
    """
    complete_cpu()
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": dp, "mp_degree": mp, "pp_degree": pp, "sharding_degree": sharding}
    strategy.pipeline_configs = {"accumulate_steps": accumulate_steps, "micro_batch_size": micro_batch_size}
    for key, value in {"use_batch_p2p_comm": False, **pipeline}.items():
        setattr(strategy.hybrid_configs["pp_configs"], key, value)
    for key, value in dict(sharding_configs).items():
        setattr(strategy.hybrid_configs["sharding_configs"], key, value)
    topology._HYBRID_PARALLEL_GROUP = None
    fleet.init(is_collective=True, strategy=strategy)
    if pp > 1 and dist.get_world_size() > 2:
        _send_in_pairs()
    return fleet.get_hybrid_communicate_group()


def each_started(runs):
    """Yield (communicate group, layout, case) for each (layout, case); `fleet` is started once in a layout."""
    for layout, cases in itertools.groupby(sorted(runs), lambda run: run[0]):
        hcg = start_fleet(**LAYOUTS[layout])
        yield from ((hcg, layout, case) for _, case in cases)


def mend_paddle(hcg, network, optimizer):
    """Go around two faults of Paddle's own step, which docs/scaling.md names.

    A weight tied over stages counts twice in the norm (pp_layers.py compares the wrong names), and the first step of
    sharding version 2 leaves out data parallelism.
    """
    slices = getattr(optimizer._inner_opt, "_slice_params", {})
    if hcg.get_pipe_parallel_world_size() > 1:
        for shared in network.shared_comm.values():
            weight = shared["layer"].weight
            for param in (weight, slices.get(weight.name, weight)):
                param.is_firstly_shared = dist.get_rank() == min(shared["ranks"])
    if slices and hcg.get_data_parallel_world_size() > 1:
        optimizer._inner_opt._collect_comm_buffers()
        optimizer._inner_opt._assign_slice_grad()


def complete_cpu():
    """Make good what Paddle lacks on CPU and gloo, for those who start `fleet` themselves (a Trainer)."""
    if paddle.get_device() != "cpu":
        tensor_fusion_helper.alignment["fake"] = 256  # Paddle names the devices that it knows
        _keep_gradients_in_buffers()
        return
    _complete_gloo()
    _complete_sharding()
    dist.ParallelEnv._device_id = 0  # a pipeline asks for it, and on CPU there is none
    paddle.Tensor.cuda = lambda self, *args, **kwargs: self  # called by `load_state_dict`
    tensor_parallel.broadcast_input_data = lambda hcg, *inputs, **options: (inputs, options)  # all have the same


def _complete_gloo():
    collective._new_process_group_impl = _group_with_its_own_store
    # one stream on a CPU: what runs "on the calculation stream" is the plain blocking call
    group = core.ProcessGroupGloo
    group.all_reduce_on_calc_stream = lambda self, tensor, op: self.all_reduce(tensor, op, True)
    group.broadcast_on_calc_stream = lambda self, tensor, root: self.broadcast(tensor, root, True)
    group.send_on_calc_stream = lambda self, tensor, peer: self.send(tensor, peer, True)
    group.recv_on_calc_stream = lambda self, tensor, peer: self.recv(tensor, peer, True)
    group.all_gather_into_tensor_on_calc_stream = _all_gather_into
    dist.reduce_scatter = _reduce_scatter


def _all_gather_into(self, out, tensor):
    parts = [paddle.empty_like(tensor) for _ in range(out.shape[0] // tensor.shape[0])]
    self.all_gather(tensor, parts).wait()
    paddle.assign(paddle.concat(parts), out)


class _Done:
    def wait(self):
        pass

    def is_completed(self):
        return True


def _reduce_scatter(tensor, tensor_or_tensor_list, op=dist.ReduceOp.SUM, group=None, sync_op=True):
    given = tensor_or_tensor_list
    whole = paddle.concat(given) if isinstance(given, (list, tuple)) else given.clone()
    dist.all_reduce(whole, op=op, group=group)
    ranks = dist.get_world_size() if group is None else group.nranks
    rank = dist.get_rank() if group is None else group.rank
    part = whole.shape[0] // ranks
    paddle.assign(whole[rank * part : (rank + 1) * part].reshape(tensor.shape), tensor)
    return _Done()


def _group_with_its_own_store(backend, store, rank, world_size, group_name, pg_options, group_id=0, *args, **kwargs):
    """Make a group: Paddle has all those of gloo meet under the same keys, where they read each other's addresses."""
    if backend != "gloo" or group_id == 0:
        return _new_group(backend, store, rank, world_size, group_name, pg_options, group_id, *args, **kwargs)
    key = f"test_store/{group_id}"
    if rank == 0:  # one that waits for nobody, and is told when it is open: who finds it shut sleeps for 3 seconds
        (port,) = free_ports(1)
        own = core.TCPStore("127.0.0.1", port, True, 1, _SECONDS)
        store.set(key, str(port))
    else:
        own = core.TCPStore("127.0.0.1", int(store.get(key).decode()), False, 1, _SECONDS)
    _stores.append(own)
    return core.ProcessGroupGloo.create(own, rank, world_size, group_id)


def _send_in_pairs():
    """Send and receive in groups of two: gloo counts messages by group, and a middle stage has twice as many."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    pairs = {(i, j): dist.new_group([i, j]) for i in range(ranks) for j in range(i + 1, ranks)}

    def paired(function):
        def call(tensor, *args, **kwargs):
            args = list(args)
            peer = args.pop(0) if args else kwargs.pop("dst", kwargs.pop("src", 0))
            args = args[1:]
            kwargs.pop("group", None)
            return function(tensor, peer, pairs[min(me, peer), max(me, peer)], *args, **kwargs)

        return call

    for name, function in _messages.items():
        setattr(dist, name, paired(function))


def _complete_sharding():
    from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_storage

    tensor_fusion_helper.alignment["cpu"] = 256
    tensor_fusion_helper.__current_device_type__ = "cpu"
    _keep_gradients_in_buffers()
    # buffers are filled from copies on the CPU: elsewhere they are copies
    paddle.Tensor.cpu = paddle.Tensor.clone
    group_sharded_storage.cvt_to_device = lambda tensor, *args, **kwargs: tensor


def _keep_gradients_in_buffers():
    from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import dygraph_sharding_optimizer

    dygraph_sharding_optimizer.DygraphShardingOptimizerV2.clear_grad = _clear_grad


def _clear_grad(self, set_to_zero=True):
    """Zero gradients in place: Paddle's own way lets the next backward replace them, and so leave the buffer."""
    for param in self._parameter_list:
        grad = param.main_grad if hasattr(param, "main_grad") else param.grad
        if grad is not None:
            grad.zero_()
