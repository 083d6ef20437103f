"""One forward pass of a model: which sublayers ran, and the graph of what each result was computed from."""

import contextlib
import ctypes
import functools
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple, Union

import numpy as np
import paddle
from paddle.nn import Layer as Sublayer

from .._checks import refusal, wrong_type
from .layer import STATISTICS

Example = Union[paddle.Tensor, tuple[Any, ...], list[Any], Mapping[str, Any], Callable[[Sublayer], Any]]
_SAME_VALUE = ("Cast", "Reshape", "Transpose", "Scale", "Assign")  # nodes that only prepare a parameter for its use


class Call(NamedTuple):
    """One call of a sublayer: the nodes of its first argument with a gradient, of all arguments, and of its outputs."""

    main: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@functools.cache
def _surplus() -> int:
    """Return how many references too many the getter of `grad_fn` takes (one on Paddle 3.3.1)."""
    leaf = paddle.ones([1])
    leaf.stop_gradient = False
    result = leaf * 2
    node = result.grad_fn
    before = sys.getrefcount(node)
    for _ in range(4):
        result.grad_fn  # noqa: B018
    return (sys.getrefcount(node) - before) // 4


def _node(tensor: paddle.Tensor) -> Any:
    """Return `tensor.grad_fn` without the surplus references, which would keep the graph for ever."""
    node = tensor.grad_fn
    for _ in range(_surplus() if node is not None else 0):
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(node))
    return node


class Pass:
    """The calls and the graph of a forward pass. Nodes are numbers; a node's number is above those it is computed from.

    Attributes:
        calls: path of a sublayer -> its calls, in their order.
        below: the nodes that each node is computed from directly.
        above: the reverse.
        leaves: structured name -> node of a parameter that the pass used.
        results: nodes of what the model, or the callable, returned.
    """

    def __init__(self, records: list["_Record"], params: dict[str, paddle.Tensor]) -> None:
        self.below: list[tuple[int, ...]] = []
        self._same: set[int] = set()
        self._number: dict[int, int] = {}
        for record in records:
            for node in record.nodes(record.outputs):
                self._add(node)
        self.above: list[list[int]] = [[] for _ in self.below]
        for node, lower in enumerate(self.below):
            for below in lower:
                self.above[below].append(node)
        self.calls: dict[str, list[Call]] = {}
        for record in records:
            parts = [self._known(record.nodes(values)) for values in (record.main, record.inputs, record.outputs)]
            if parts[2]:
                self.calls.setdefault(record.path, []).append(Call(*parts))
        self.results = self._known(records[-1].nodes(records[-1].outputs))  # of the whole pass
        ends = {name: self._known([_node(param)]) for name, param in params.items() if not param.stop_gradient}
        self.leaves = {name: nodes[0] for name, nodes in ends.items() if nodes}

    def _add(self, root: Any) -> None:
        """Number a node behind all nodes that it is computed from; models are too deep for recursion."""
        lower: dict[int, list[Any]] = {}
        todo = [root]
        while todo:
            node = todo[-1]
            key = node.node_ptr()
            if key in self._number:
                todo.pop()
            elif key not in lower:
                lower[key] = [below for below in node.next_functions if below is not None]
                todo.extend(lower[key])
            else:
                todo.pop()
                self._number[key] = len(self.below)
                if node.name().startswith(_SAME_VALUE):
                    self._same.add(len(self.below))
                self.below.append(tuple({self._number[below.node_ptr()] for below in lower[key]}))

    def _known(self, nodes: list[Any]) -> tuple[int, ...]:
        numbers = [self._number.get(node.node_ptr()) for node in nodes if node is not None]
        return tuple(dict.fromkeys(number for number in numbers if number is not None))

    def uses(self, name: str) -> set[int]:
        """Return the nodes that use a parameter first, after casts, transpositions and the like."""
        found, todo = set(), [self.leaves[name]] if name in self.leaves else []
        while todo:
            for node in self.above[todo.pop()]:
                if node in self._same and len(self.below[node]) == 1:
                    todo.append(node)
                else:
                    found.add(node)
        return found

    def collect(self, seeds: Mapping[int, int], cut: frozenset[int] = frozenset()) -> list[int]:
        """Return for each node the union of the `seeds` (bits) of the nodes below it; none passes a node in `cut`."""
        bits: list[int] = []
        for lower in self.below:
            union = 0
            for node in lower:
                union |= seeds.get(node, 0)
                if node not in cut:
                    union |= bits[node]
            bits.append(union)
        return bits


class _Record:
    """A call while the pass runs."""

    def __init__(self, path: str, inputs: Any) -> None:
        self.path, self.inputs = path, _ends(inputs)
        self.outputs: list[Any] = []
        self.main = self.inputs[:1]

    @staticmethod
    def nodes(ends: list[Any]) -> list[Any]:
        """Return nodes; the outputs under recompute get theirs after the call."""
        found = [(None if end.stop_gradient else _node(end)) if isinstance(end, paddle.Tensor) else end for end in ends]
        return [node for node in found if node is not None]


def _ends(value: Any, depth: int = 0) -> list[Any]:
    """Return the nodes of all tensors in a value, and the tensors that have none yet."""
    if isinstance(value, paddle.Tensor):
        node = None if value.stop_gradient else _node(value)
        return [value if node is None else node]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif hasattr(value, "__dict__") and not isinstance(value, (Sublayer, type, list, tuple)):
        value = list(vars(value).values())  # data classes, and caches of attention
    if not isinstance(value, (list, tuple)) or depth > 6:
        return []
    return [end for item in value for end in _ends(item, depth + 1)]


def forward_pass(model: Sublayer, example: Example) -> Pass:
    """Run a model on `example` in evaluation mode and return the graph; the model stays as it was.

    Raises:
        TypeError: `example` is neither a tensor, a tuple, a list, a dict nor a callable.
        ValueError: the pass failed, or has no result with a gradient.
    """
    if isinstance(example, paddle.Tensor):
        example = (example,)
    if not isinstance(example, (tuple, list, Mapping)) and not callable(example):
        raise wrong_type(example, "example", "a Tensor, a tuple or list, a dict, or a callable that runs the model")
    open_calls: dict[str, list[_Record]] = {}
    records: list[_Record] = []
    hooks = []

    def enter(path: str) -> Callable[..., None]:
        return lambda layer, args, kwargs: open_calls.setdefault(path, []).append(_Record(path, [args, kwargs]))

    def leave(path: str) -> Callable[..., None]:
        def record(layer: Any, args: Any, outputs: Any) -> None:
            call = open_calls[path].pop()
            call.outputs = _ends(outputs)
            records.append(call)

        return record

    params = dict(model.named_parameters())
    with random_states_kept(), _as_it_was(model), paddle.enable_grad():
        try:
            for path, layer in model.named_sublayers(include_self=True):
                hooks.append(layer.register_forward_pre_hook(enter(path), with_kwargs=True))
                hooks.append(layer.register_forward_post_hook(leave(path)))
            end = _Record("", None)
            if callable(example):
                end.outputs = _ends(example(model))
            else:
                result = model(**example) if isinstance(example, Mapping) else model(*example)
                end.outputs = _ends(result)
            records.append(end)
        except Exception as error:
            cause = f"{type(error).__name__}: {str(error).strip()[-300:]}"
            problem = (
                f"The forward pass that measures the model's layers failed ({cause}). Give an `example` that the model "
                "takes in evaluation mode: a Tensor, a tuple, a dict of keywords, or a callable that runs the model."
            )
            raise refusal(ValueError, problem, example=example) from error
        finally:
            for hook in hooks:
                hook.remove()
        measured = Pass(records, params)
    if not measured.leaves:
        problem = "The result of the forward pass depends on no parameter. Give another `example`."
        raise refusal(ValueError, problem, example=example)
    return measured


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of Paddle, NumPy and Python at the end."""
    states = paddle.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        paddle.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextlib.contextmanager
def _as_it_was(model: Sublayer) -> Iterator[None]:
    """Put a model into evaluation mode with all gradients; restore modes and buffers at the end."""
    modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
    frozen = [param for name, param in model.named_parameters() if param.stop_gradient]
    frozen = [param for param in frozen if param.is_floating_point()]
    statistics = {id(param) for name, param in model.named_parameters() if name.endswith(STATISTICS)}
    owners = dict(model.named_sublayers(include_self=True))
    buffers = [
        (owners[path], key, buffer, buffer.inplace_version, buffer.clone())
        for name, buffer in model.named_buffers()
        for path, _, key in [name.rpartition(".")]
        if buffer._is_initialized()
    ]
    try:
        for layer, _ in modes:
            layer.training = False
        for param in frozen:
            param.stop_gradient = id(param) in statistics
        yield
    finally:
        for param in frozen:
            param.stop_gradient = True
        for layer, training in modes:
            layer.training = training
        for layer, name, buffer, version, value in buffers:
            if getattr(layer, name, None) is not buffer:
                setattr(layer, name, buffer)
            if buffer.inplace_version != version:
                buffer.set_value(value)
