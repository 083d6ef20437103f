"""One forward pass of a model: which sublayers ran, and the graph of their results."""

import contextlib
import functools
import inspect
import operator
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import paddle
from paddle.distributed.fleet.recompute.recompute import RecomputeFunction
from paddle.jit.dy2static.program_translator import ProgramTranslator
from paddle.nn import Layer as Sublayer

from .._checks import first_few, problem, refusal, wrong_type
from .._compat import count_writes, grad_node, random_states_kept, write_of
from .decay import STATISTICS

Example = Union[paddle.Tensor, tuple[Any, ...], list[Any], Mapping[str, Any], Callable[[Sublayer], Any]]
# names of nodes that only prepare a parameter for its use
_SAME_VALUE = ("Cast", "Reshape", "Transpose", "Scale", "Assign", "Slice", "Split", "Squeeze", "Unsqueeze", "Expand")
_RawCall = tuple[str, list[Any], list[Any]]  # path of the sublayer, ends of its arguments, of its outputs


class Call(NamedTuple):
    """The nodes of one call of a sublayer."""

    inputs: tuple[int, ...]  # of all arguments, the first with a gradient in front
    outputs: tuple[int, ...]


def from_to(first: list[Call], last: list[Call]) -> list[Call]:
    """Return the calls of a part that begins with the calls of one sublayer and ends with those of another."""
    pairs = zip(first, last) if len(first) == len(last) else [(first[0], last[-1])]
    return [Call(a.inputs, b.outputs) for a, b in pairs]


def union(bits: Iterable[int]) -> int:
    return functools.reduce(operator.or_, bits, 0)


def _ends(value: Any, depth: int = 0, seen: Optional[set[int]] = None) -> list[Any]:
    """Return the nodes of all tensors in a value, and the tensors that have none yet (under recompute)."""
    if isinstance(value, paddle.Tensor):
        node = grad_node(value)
        return [value if node is None else node]
    seen = set() if seen is None else seen
    if id(value) in seen:  # objects may refer to each other
        return []
    seen.add(id(value))
    if isinstance(value, Mapping):
        value = value.values()
    elif hasattr(value, "__dict__") and not isinstance(value, (Sublayer, type, list, tuple)):
        value = vars(value).values()  # data classes, and caches of attention
    elif not isinstance(value, (list, tuple)):
        return []
    return [end for item in value for end in _ends(item, depth + 1, seen)] if depth < 7 else []


class Graph:
    """The graph and the calls of a forward pass. Nodes are numbers, above those of the nodes they are computed from."""

    def __init__(self, raw_calls: list[_RawCall], params: Mapping[str, paddle.Tensor]) -> None:
        self.below: list[tuple[int, ...]] = []  # the nodes that each node is computed from directly
        self._same: set[int] = set()
        self.concats: set[int] = set()  # nodes that put tensors beside each other
        self._number: dict[int, int] = {}
        for _, _, results in raw_calls:
            for end in results:
                self._add(grad_node(end) if isinstance(end, paddle.Tensor) else end)
        self.above: list[list[int]] = [[] for _ in self.below]  # the reverse
        for node, lower in enumerate(self.below):
            for below in lower:
                self.above[below].append(node)
        self.calls: dict[str, list[Call]] = {}  # path of a sublayer -> its calls, in their order
        for path, ends, results in raw_calls:
            if outputs := self._known(results):
                self.calls.setdefault(path, []).append(Call(self._known(ends), outputs))
        self.results = self._known(raw_calls[-1][2])  # of the whole pass
        self.leaves = {name: node for name, param in params.items() for node in self._known([param])}  # if used

    def _add(self, root: Any) -> None:
        """Number a node behind all nodes that it is computed from; models are too deep for recursion."""
        number, lower = self._number, {}  # type: tuple[dict[int, int], dict[int, list[tuple[int, Any]]]]
        todo = [] if root is None else [(root.node_ptr(), root)]
        while todo:
            key, node = todo[-1]
            if key in number:
                todo.pop()
            elif key not in lower:
                lower[key] = [(below.node_ptr(), below) for below in node.next_functions if below is not None]
                todo += [below for below in lower[key] if below[0] not in number]
            else:
                todo.pop()
                below = {number[other] for other, _ in lower[key]}
                if node.name().startswith("Concat"):
                    self.concats.add(len(self.below))
                # a parameter, or a node with one input that only prepares it
                if not below or (len(below) == 1 and below <= self._same and node.name().startswith(_SAME_VALUE)):
                    self._same.add(len(self.below))
                number[key] = len(self.below)
                self.below.append(tuple(below))

    def _known(self, ends: list[Any]) -> tuple[int, ...]:
        nodes = [grad_node(end) if isinstance(end, paddle.Tensor) else end for end in ends]
        keys = [node.node_ptr() for node in nodes if node is not None]
        return tuple(dict.fromkeys(self._number[key] for key in keys if key in self._number))

    def uses(self, name: str) -> set[int]:
        """Return the nodes that use a parameter first, after casts, transpositions and the like."""
        found: set[int] = set()
        todo = [self.leaves[name]] if name in self.leaves else []
        while todo:
            for node in self.above[todo.pop()]:
                (todo.append if node in self._same else found.add)(node)
        return found

    def collect(self, seeds: Mapping[int, int], cut: frozenset[int] = frozenset()) -> list[int]:
        """Return for each node the union of the `seeds` (bits) of the nodes below it; none passes a node in `cut`."""
        bits: list[int] = []
        for lower in self.below:
            bits.append(union(seeds.get(node, 0) | (0 if node in cut else bits[node]) for node in lower))
        return bits


def forward_pass(
    model: Sublayer, example: Example, parts: Mapping[str, Sublayer], params: Mapping[str, paddle.Tensor]
) -> Graph:
    """Run a model on `example` in evaluation mode; `parts` are its named sublayers and itself."""
    given: Any = (example,) if isinstance(example, paddle.Tensor) else example
    if not isinstance(given, (tuple, list, Mapping)) and not callable(given):
        raise wrong_type(example, "example", "a Tensor, a tuple or list, a dict, or a callable that runs the model")
    raw_calls: list[_RawCall] = []
    hooks, started = [], defaultdict[str, list[Any]](list)  # the arguments of calls that have not ended
    enter = lambda path, _, args, kwargs: started[path].append(_ends([args, kwargs]))  # noqa: E731
    leave = lambda path, _, args, outputs: raw_calls.append((path, started[path].pop(), _ends(outputs)))  # noqa: E731
    with random_states_kept(), count_writes(), _as_it_was(parts, params), paddle.enable_grad():
        try:
            for path, part in parts.items():
                hooks.append(part.register_forward_pre_hook(functools.partial(enter, path), with_kwargs=True))
                hooks.append(part.register_forward_post_hook(functools.partial(leave, path)))
            given, named = ((), given) if isinstance(given, Mapping) else (given, {})
            result = given(model) if callable(given) else model(*given, **named)
            raw_calls.append(("", [], _ends(result)))
        except Exception as error:
            cause = f"{type(error).__name__}: {' '.join(str(error).split()[-40:])[-600:]}"
            failed = f"The forward pass that measures the model's layers failed ({cause})."
            advice = "Give an `example` that the model takes in evaluation mode, or a callable that runs the model."
            raise refusal(ValueError, f"{failed} {advice}", example=example) from error
        finally:
            for hook in hooks:
                hook.remove()
        graph = Graph(raw_calls, params)
    if not graph.leaves:
        failed = "The result of the forward pass depends on no parameter. Give another `example`."
        raise refusal(ValueError, failed, example=example)
    return graph


@contextlib.contextmanager
def _as_it_was(parts: Mapping[str, Sublayer], params: Mapping[str, paddle.Tensor]) -> Iterator[None]:
    """Put a model into evaluation mode with all gradients, without what hides its graph; restore all at the end."""
    to_static = ProgramTranslator.get_instance().enable_to_static
    modes = [(part, "training", part.training) for part in parts.values()]
    weights = [param for name, param in params.items() if param.is_floating_point() and not name.endswith(STATISTICS)]
    frozen = [(param, "stop_gradient", True) for param in weights if param.stop_gradient]
    buffers = [(of, key, buffer) for of in parts.values() for key, buffer in of.named_buffers(include_sublayers=False)]
    written = [*(p for n, p in params.items() if n.endswith(STATISTICS)), *(buffer for _, _, buffer in buffers)]
    values = [(tensor, tensor.clone()) for tensor in written if tensor._is_initialized()]
    writes = {name: write_of(p) for name, p in params.items() if p._is_initialized() and not name.endswith(STATISTICS)}
    # `recompute` passes settings between a function and its arguments
    settings = len(inspect.signature(RecomputeFunction.forward).parameters.keys() - {"ctx", "args", "kwargs"}) - 1
    RecomputeFunction.apply = lambda function, *given, **more: function(*given[settings:], **more)
    paddle.jit.enable_to_static(False)
    try:
        for part, *_ in modes:
            part.training = False
        for param, *_ in frozen:
            param.stop_gradient = False
        yield
    finally:
        del RecomputeFunction.apply  # what remains is that of PyLayer
        paddle.jit.enable_to_static(to_static)
        for owner, name, value in [*frozen, *modes, *buffers]:
            setattr(owner, name, value)
        for tensor, value in values:
            if (tensor.numpy() != value.numpy()).any():  # `equal_all` knows no half precision
                tensor.set_value(value)
    if changed := [name for name, write in writes.items() if write_of(params[name]) != write]:
        effect = "The forward pass writes parameters, such as a momentum encoder's, which have taken one such update:"
        warnings.warn(problem(f"{effect} load them again if that matters.", changed=first_few(changed)), stacklevel=6)
