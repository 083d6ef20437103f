"""Parameters without a gradient under sharding, and the check that all processes freeze the same ones."""

import functools
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor

from ..._paddle import is_sharded, topology


class MissingGradients:
    """Parameters that never had a gradient in any process: sharding gives them zeros, and they would be decayed."""

    def __init__(self, params: list[Tensor]) -> None:
        self._params = params if is_sharded() else []
        self._here: set[str] = set()  # names of parameters that had a gradient in this process
        self.names = [param.name for param in self._params]  # of the last `drop_from`
        for param in self._params:
            if param.stop_gradient:  # counts as having a gradient if it is unfrozen later
                self._here.add(param.name)
            else:
                param.register_hook(functools.partial(self._note, param.name))

    def __deepcopy__(self, memo: Any) -> "MissingGradients":
        return MissingGradients([])

    def _note(self, name: str, grad: Tensor) -> None:
        self._here.add(name)

    def drop_from(self, params_grads: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the pairs without parameters that never had a gradient; raise if processes freeze different ones.

        All processes must call this.
        """
        if not self.names:
            return params_grads
        self._here |= {
            p.name for p, grad in params_grads if p.name not in self._here and grad is not None and grad.any()
        }
        frozen = [param.stop_gradient for param in self._params]
        seen = [param.name in self._here for param in self._params]
        flags = paddle.to_tensor([seen, frozen, [not idle for idle in frozen]], "int32")
        for group in (topology().get_sharding_parallel_group(), topology().get_data_parallel_group()):
            if group.nranks > 1:
                dist.all_reduce(flags, dist.ReduceOp.MAX, group)
        seen, frozen, trained = flags.numpy()
        for param, differs in zip(self._params, frozen & trained):
            if differs:
                raise ValueError(
                    "Processes that share parameters must freeze the same ones: set `stop_gradient` equally in all. "
                    f"Received: '{param.name}' with stop_gradient={param.stop_gradient} here, the opposite elsewhere"
                )
        self.names = [param.name for param, has in zip(self._params, seen) if not has]
        return [(param, grad) for param, grad in params_grads if param.name not in self.names]

    def others_may_have_updates(self) -> bool:
        """Return whether some parameters never had a gradient and others did: a process may have no updates."""
        return 0 < len(self.names) < len(self._params)
