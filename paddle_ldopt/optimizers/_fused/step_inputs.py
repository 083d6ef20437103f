"""Reads all parameters and gradients for a step in one pass."""

import operator
from typing import Any, NamedTuple, Optional

import paddle

from ... import _paddle
from .memory import addresses, same_shapes

_Tensor = paddle.Tensor
_frozen, _dtype = _Tensor.stop_gradient.__get__, _Tensor.dtype.__get__
_BLOCK = 64  # number of parameters read at a time


class StepInputs(NamedTuple):
    """The properties of parameters and gradients that a step depends on; the gradients must live until its end."""

    frozen: list[bool]  # of all parameters; the lists below are of the live ones
    live: list[int]  # indices of parameters with a gradient that are not frozen
    params: list[Any]
    grads: list[Any]
    grads_at: list[int]  # addresses
    grad_bytes: list[int]  # allocated for each of the gradients
    params_at: list[int]
    factors: list[Any]  # of the parameters' own `optimize_attr`
    sizes: list[int]  # bytes of an element of each parameter
    types: list[Any]  # of the gradients

    @classmethod
    def of(cls, every: list[Any]) -> "Optional[StepInputs]":
        """Return the inputs of a step; None if it is empty, or if only Paddle's step supports a parameter or gradient.

        It reads blocks that fit into the cache: with 10,000 tensors this is most of a step's time.
        """
        seen, sharded = cls(*([] for _ in cls._fields)), _paddle.SHARDS_ITSELF
        try:
            for begin in range(0, len(every), _BLOCK):
                block = every[begin : begin + _BLOCK]
                frozen, found = list(map(_frozen, block)), list(map(_paddle.grad_of, block))
                live = [i for i, grad in enumerate(found) if grad is not None and not frozen[i]]
                grads_at = addresses([found[i] for i in live])
                if 0 in grads_at:  # empty gradients
                    live = [i for i, address in zip(live, grads_at) if address != 0]
                    grads_at = [address for address in grads_at if address != 0]
                params, grads = [block[i] for i in live], [found[i] for i in live]
                params_at = addresses(params)
                if None in grads_at or None in params_at:  # a sparse gradient, or a cleared parameter
                    return None
                if any(map(_Tensor.is_dist, params)) or not same_shapes(grads, params):
                    return None
                if not all(map(_Tensor.is_contiguous, grads + params)):
                    return None
                settings = [param.__dict__ for param in params]
                for own in settings:  # `in` is much faster than a call of `get`
                    if own["regularizer"] is not None or ("main_grad" in own and own["main_grad"] is not None):
                        return None
                    if sharded in own and own[sharded] is not None:
                        return None
                factors = [own["optimize_attr"]["learning_rate"] for own in settings]
                sizes, types = map(_Tensor.element_size, params), map(_dtype, grads)
                numbers = [begin + i for i in live]
                grad_bytes = map(operator.sub, map(_paddle.bytes_behind, grads), map(_paddle.bytes_before, grads))
                new: Any = frozen, numbers, params, grads, grads_at, grad_bytes, params_at, factors, sizes, types
                for all_seen, of_block in zip(seen, new):
                    all_seen += of_block
        except (AttributeError, KeyError, TypeError):  # not parameters of Paddle's layers
            return None
        return seen if seen.live and set(map(type, seen.factors)) <= {int, float} else None
