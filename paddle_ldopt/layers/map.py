"""Structured parameter name -> layer id, for any model: pure Python over names.

Layer 0 holds the embeddings, 1..n the blocks, n + 1 the head. A model with several towers (encoder and decoder, text
and vision) counts the layers of each by its own depth.
"""

import dataclasses
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional, Union

from .._checks import checked_steps, shown
from .._paddle import unwrap_model
from ..plots import plot_table
from .decay import LayerDecay
from .rates import planned_rates, rates_of_optimizer
from .stacks import STACK_NAMES, Stack, find_stacks, is_index
from .table import LayerTable

__all__ = ["Layer", "LayerMap"]

_EMBEDDING = re.compile(
    r"(^|[._])(embed\w*|emb|embs|wte|wpe|shared|stem|patch_proj|(cls|class|mask|dist|query|register)_tokens?|"
    r"pos\w*_enc\w*|encode_positions|rel\w*_(attention_)?bias\w*|masked_spec_embed)(?=[._]|$)",
    re.I,
)
_HEAD = re.compile(
    r"(^|[._])(heads?|pooler|attnpool|classifier|predict(ions?|or)|score|logits?|(?<!feature_)extractor|postnet|neck|"
    r"project_out|embed_out|final_(ln|norm|layer_?norm)|ln_f|norm_f|fc_norm|ln_post|post_layer_?norm|"
    r"(en|de)coder_layernorm(?=[.]|$)|cls(?=[.]|$))(?=[._]|$)",
    re.I,
)
_HEAD_ID = -1  # stands for the head's layer id until the depth is known
# Parameters whose role shows in neither name nor position.
_EXCEPTIONS: dict[re.Pattern[str], int] = {
    re.compile(r"\bbigbird\.encoder\.norm\."): 0,  # applied to the embeddings, before block 0
    re.compile(r"\bdeberta\.encoder\.(LayerNorm|conv)\."): 0,  # of the relative embeddings; added to block 0's output
    re.compile(r"\baudio_encoder\.batch_norm\."): 0,  # CLAP: of the spectrogram
    re.compile(r"\btransposed_convolution\."): _HEAD_ID,  # CLIPSeg: makes the logits
    # lists that look like blocks
    # wav2vec 2.0, HuBERT, WavLM: of the waveform
    re.compile(r"\bfeature_(extractor|encoder)\.conv_layers\.\d+\.(conv|layer_norm|\d)\b"): 0,
    re.compile(r"\bembeddings\.(\w+\.)?backbone\.bit\.(embedder|encoder)\."): 0,  # hybrid DPT, ViT: makes patches
    re.compile(r"\bpatch_embed\.backbone\.stages\."): 0,  # the same in timm
    re.compile(r"\bneck\.(reassemble|fusion)_stage\."): _HEAD_ID,  # DPT
    re.compile(r"\bspeech_decoder_postnet\.layers\."): _HEAD_ID,  # SpeechT5
}
# Names of heads and of other things too: they count for parts declared before the blocks only.
_MAYBE_HEAD = re.compile(r"(^|[._])(fc|linear|dense|outputs?|out|proj_out|out_proj|task\w*)\d*$", re.I)
_INPUT = re.compile(r"(^|[._])(conv|bn|(\w*_?)?la?ye?r?_?norm|norm|ln|pre|\w*proj|in|input|down\w*|tok|vis)", re.I)
Decay = Union[float, LayerDecay]
Place = Union[int, str]  # a layer id or "head"
Rules = Union[dict[str, Place], Callable[[str], Optional[Place]]]
_COPY = re.compile(r"(_deepcopy_\d+)+$")
_RELATIVE_BIAS = re.compile(r"(^|\.)relative_attention_bias\b")


@dataclasses.dataclass(frozen=True)
class Layer:
    """Say where one parameter sits.

    Args:
        tower (str): the name of its stack of blocks, or "" for what belongs to several.
        index (int): layer id within the tower: 0 = embeddings, 1..depth = blocks, depth + 1 = head.
        depth (int): number of blocks of the tower; of the deepest one for what belongs to several.
    """

    tower: str
    index: int
    depth: int

    @property
    def label(self) -> str:
        """Say "embeddings", "block 3" (numbered from 0, as in the model's names) or "head"."""
        return "embeddings" if self.index == 0 else "head" if self.index > self.depth else f"block {self.index - 1}"


class LayerMap:
    """The layers of a model: where each parameter sits, and what learning rate it gets there.

    Build one with `LayerMap.from_model` or `LayerMap.from_names`.

    Attributes:
        n_layers (int): blocks of the model; of its deepest tower if there are several.
        towers (dict[str, int]): name of each stack -> its number of blocks.
        name_dict (dict[str, str]): ``param.name`` -> structured name; empty when mapped from names.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt import LayerMap
            >>> names = ["embed.w", "h.0.q.w", "h.0.k.w", "h.0.v.w", "h.1.q.w", "h.1.k.w", "h.1.v.w", "norm.w"]
            >>> layers = LayerMap.from_names(names)
            >>> print(layers.n_layers, [layers.layer_of(name).index for name in names])
            2 [0, 1, 1, 1, 2, 2, 2, 3]
    """

    def __init__(
        self,
        layers: dict[str, Layer],
        towers: dict[str, int],
        name_dict: Optional[dict[str, str]] = None,
        parameters: Optional[dict[str, Any]] = None,
    ) -> None:
        self._layers = layers  # structured name -> Layer
        self._parameters = parameters or {}  # structured name -> Parameter
        self.towers = towers
        self.name_dict = name_dict or {}
        self.n_layers = max(layer.depth for layer in layers.values())

    @classmethod
    def from_names(cls, names: Iterable[str], rules: Optional[Rules] = None) -> "LayerMap":
        r"""Map structured parameter names.

        Args:
            names (Iterable[str]): the names in the model's order; all of them, for frozen parameters count too.
            rules (dict[str, int|str]|callable, optional): override the built-in rules. A dict maps a regular
                expression (`re.search`) to a layer id, to "embeddings", "head", or to a template such as ``r"\1"``
                that expands to a block's number from 0; gaps in the numbers are closed (VGG: ``features.0``,
                ``features.3``). Ids above those of the blocks that are found make a deeper tower beside them, not the
                head. A callable takes a name and returns a layer id, "embeddings", "head", or
                None to leave it to the built-in rules.

        Returns:
            LayerMap: the map.

        Raises:
            TypeError: `names` or `rules` of another type.
            ValueError: no names; no stack of blocks; half of the blocks in lists that no rule knows; an illegal rule,
                or one that leaves layers empty.
        """
        layers, towers, guesses = _assign(_checked_names(names), rules)
        _warn_of(guesses, layers)
        return cls(layers, towers)

    @classmethod
    def from_model(cls, model: Any, rules: Optional[Rules] = None) -> "LayerMap":
        """Map the parameters of a model; shared parameters count once, at the lowest of their layers.

        Args:
            model (paddle.nn.Layer): any model with numbered blocks; wrappers such as `paddle.DataParallel` are removed.
            rules (dict[str, int|str]|callable, optional): as in `from_names`.

        Returns:
            LayerMap: the map, with `name_dict`.

        Raises:
            TypeError: `model` is no `paddle.nn.Layer`.
            ValueError: as in `from_names`.
        """
        if not hasattr(model, "named_sublayers"):
            raise TypeError(f"`model` must be a paddle.nn.Layer. Received: model={type(model).__name__}")
        model = unwrap_model(model)
        parameters = dict(model.named_parameters())
        own_names = {param.name: name for name, param in parameters.items()}
        facts: dict[str, _Fact] = {}  # by structured name, all names of a shared parameter
        for path, sublayer in _all_paths(model):
            for key, param in sublayer._parameters.items():
                if param is not None and param.name in own_names:
                    name = f"{path}.{key}" if path else key
                    facts[name] = _Fact(param.name, _kind_of(sublayer), tuple(param.shape))
        found = {fact.tensor for fact in facts.values()}
        named_by_itself = {n: _Fact(tensor, "", ()) for tensor, n in own_names.items() if tensor not in found}  # ReFT
        facts.update(named_by_itself)
        layers, depths, guesses = _assign(_checked_names(facts), rules, facts, whole=not named_by_itself)
        lowest: dict[str, Layer] = {}
        for name, fact in facts.items():
            both = [lowest.get(fact.tensor, layers[name]), layers[name]]
            lowest[fact.tensor] = min(both, key=lambda layer: layer.index - layer.depth)
        mapped = {name: lowest[tensor] for tensor, name in own_names.items()}
        if not rules and all(layer.index for layer in mapped.values()):  # neither name nor place told the embeddings
            for name, fact in facts.items():
                layer = mapped.get(name)
                if fact.kind == "Embedding" and layer is not None and layer.index > layer.depth:
                    mapped[name] = Layer(layer.tower, 0, layer.depth)
        used = {layer.tower for layer in mapped.values()}  # a stack under a second name is not another tower
        _warn_of(guesses, mapped)
        towers = {tower: depth for tower, depth in depths.items() if tower in used}
        return cls(mapped, towers, own_names, parameters)

    @property
    def names(self) -> list[str]:
        """Structured names of all parameters, in the model's order."""
        return list(self._layers)

    def layer_of(self, name: str) -> Layer:
        """Return the `Layer` of a parameter.

        Args:
            name (str): its structured name, or its ``param.name`` if the map was made from a model.

        Raises:
            ValueError: no such parameter.
        """
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a string. Received: name={shown(name)}")
        known = name if name in self.name_dict else _COPY.sub("", name)  # Paddle renames parameters when it copies them
        layer = self._layers.get(self.name_dict.get(known, name))
        if layer is None:
            how = "build the map after the model is complete (LoRA, resized embeddings), from the model that is trained"
            if not self.name_dict:
                how = "a map made by `from_names` has no `name_dict`: use `from_model` to give it to an optimizer"
            raise ValueError(f"The parameter is not in the LayerMap: {how}. Received: name='{name}'")
        return layer

    def ratio_fn(self, layerwise_decay: Decay) -> Callable[[Any], float]:
        """Return the function parameter -> ratio of its learning rate, as optimizers take it.

        Args:
            layerwise_decay (float|LayerDecay): the decay in (0, 1], or a whole rule.
        """
        rule = as_rule(layerwise_decay)
        ratios = {layer: rule.ratio(layer.index, layer.depth) for layer in set(self._layers.values())}

        def ratio_of(param: Any) -> float:
            return ratios[self.layer_of(param.name)]

        # read by the table and the fused step; mypy knows no attributes of functions
        ratio_of.rule, ratio_of.layers, ratio_of.is_constant = rule, self, True  # type: ignore[attr-defined]
        return ratio_of

    def table(
        self,
        layerwise_decay: Optional[Decay] = None,
        learning_rate: Any = None,
        optimizer: Any = None,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
        num_steps: Optional[int] = None,
    ) -> LayerTable:
        """Show each layer's parameters and the rate they get; print it, or take its `rows`.

        With an `optimizer` everything is read back from it: the rate its step would use now for each parameter, the
        rate at the peak of its schedule, which parameters are decayed and trained. Without one it is what
        `layerwise_decay` and `learning_rate` would give.

        Args:
            layerwise_decay (float|LayerDecay, optional): required without `optimizer`.
            learning_rate (float|LRScheduler, optional): the rate at a ratio of 1; without it only ratios are shown.
            optimizer (paddle.optimizer.Optimizer, optional): any, layer-wise or not.
            apply_decay_param_fun (callable, optional): ``param.name`` -> decayed, without `optimizer`.
            num_steps (int, optional): how many steps ahead to look for the peak of the schedule. If None, to the end of
                a schedule of this package, and of others 10,000 or what Paddle's warm-ups say.

        Returns:
            LayerTable: with `rows`, `to_dict()`, `to_markdown()`; str() and rich render it.

        Raises:
            ValueError: neither or both of `layerwise_decay` and `optimizer`; an argument that the optimizer settles; an
                optimizer over parameters of another model.
        """
        num_steps = None if num_steps is None else checked_steps(num_steps, "num_steps")
        if (layerwise_decay is None) == (optimizer is None):
            raise ValueError(
                "`table` and `plot` take either `layerwise_decay` or `optimizer`. "
                f"Received: layerwise_decay={shown(layerwise_decay)}, optimizer={type(optimizer).__name__}"
            )
        if layerwise_decay is None:
            for name, value in (("learning_rate", learning_rate), ("apply_decay_param_fun", apply_decay_param_fun)):
                if value is not None:
                    raise ValueError(
                        f"`{name}` is read back from `optimizer`: leave it out. Received: {name}={shown(value)}"
                    )
            rates = rates_of_optimizer(optimizer, num_steps)
            for tensor_name in rates:
                self.layer_of(tensor_name)
        else:
            ratio_of = self.ratio_fn(layerwise_decay)
            rates = planned_rates(self._tensors(), ratio_of, learning_rate, apply_decay_param_fun, num_steps)
        return LayerTable.build(self._tensors(), self.layer_of, rates)

    def plot(
        self,
        path: Union[str, os.PathLike[str]],
        layerwise_decay: Optional[Decay] = None,
        learning_rate: Any = None,
        optimizer: Any = None,
    ) -> Any:
        """Draw the rate of each layer into a file.

        Args:
            path (str|os.PathLike): where to; the ending decides the format (.png, .svg, .pdf).
            layerwise_decay (float|LayerDecay, optional): as in `table`.
            learning_rate (float|LRScheduler, optional): as in `table`.
            optimizer (paddle.optimizer.Optimizer, optional): as in `table`.

        Returns:
            str: `path`.
        """
        return plot_table(self.table(layerwise_decay, learning_rate, optimizer), path)

    def fingerprint(self) -> dict[str, Any]:
        """Return what tells this map from another: per tower its depth, and the layers as (tower, id) -> names."""
        return {
            "towers": dict(self.towers),
            "layers": {name: [layer.tower, layer.index, layer.depth] for name, layer in self._layers.items()},
        }

    def _tensors(self) -> dict[str, tuple[str, Any]]:
        """Return tensor name -> (structured name, Parameter or None)."""
        if not self.name_dict:
            return {name: (name, None) for name in self._layers}
        return {tensor: (name, self._parameters.get(name)) for tensor, name in self.name_dict.items()}


def as_rule(layerwise_decay: Decay) -> LayerDecay:
    """Return a number as the `LayerDecay` with that decay, a `LayerDecay` as it is."""
    return layerwise_decay if isinstance(layerwise_decay, LayerDecay) else LayerDecay(layerwise_decay)


def _checked_names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str) or not hasattr(names, "__iter__") or getattr(names, "ndim", 1) != 1:
        raise TypeError(f"`names` must be an iterable of strings. Received: names={shown(names)}")
    names = list(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"`names` must be an iterable of strings. Received: {shown(name)}")
    if not names:
        raise ValueError("There are no parameters to map. Received: names=[]")
    return names


@dataclasses.dataclass(frozen=True)
class _Fact:
    """A parameter's ``param.name``, its layer's kind ("Linear", "Conv", "Norm", "Embedding" or "") and its shape."""

    tensor: str
    kind: str
    shape: tuple[int, ...]


def _kind_of(sublayer: Any) -> str:
    classes = [cls.__name__ for cls in type(sublayer).__mro__]
    if "Linear" in classes:  # not ColumnParallelLinear, whose shape is a part of the whole
        return "Linear"
    classes = [name for name in classes if "Transpose" not in name]
    return next((kind for kind in ("Embedding", "Conv", "Norm") if any(kind in name for name in classes)), "")


def _all_paths(layer: Any, path: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield (path, sublayer) in the model's order, a shared sublayer under each of its paths."""
    yield path, layer
    for key, sublayer in layer._sub_layers.items():
        if sublayer is not None and all(sublayer is not parent for parent in (*above, layer)):
            yield from _all_paths(sublayer, f"{path}.{key}" if path else key, (*above, layer))


def _warn_of(guesses: list[str], names: Iterable[str], most: int = 8) -> None:
    if guesses:
        more = f"; ... {len(guesses) - most} more" if len(guesses) > most else ""
        warnings.warn(
            f"Some layers of the model are guesses: {'; '.join(guesses[:most])}{more}. Where a guess is wrong, give "
            r"`rules`, such as {r'^my_head\.': 'head'} or {r'cells\.(\d+)\.': r'\1'}. "
            f"Received: names={_some(list(names), 3)}",
            stacklevel=3,
        )


def _assign(
    names: list[str], rules: Optional[Rules], facts: Optional[dict[str, _Fact]] = None, whole: bool = False
) -> tuple[dict[str, Layer], dict[str, int], list[str]]:
    """Return name -> Layer for all `names`, tower -> depth, and a sentence for each guess.

    Args:
        names (list[str]): structured names in the model's order.
        rules (dict|callable, optional): the user's.
        facts (dict[str, _Fact], optional): of the parameters, by name; None if there are names alone.
        whole (bool): whether `names` are all names of the model.
    """
    ruled, from_template = _apply_rules(names, rules)
    stacks, others = find_stacks(
        names,
        lambda name: name in ruled or _exception(name) is not None,
        _is_hinted,
        whole,
        alone=all(index < 1 for index in ruled.values()),
        shape_of=lambda name: facts[name].shape if facts else None,
    )
    depths = {stack.tower: stack.depth for stack in stacks}
    blocks = max(depths.values(), default=0)
    _close_gaps(ruled, from_template, blocks)
    ruled_blocks = {name: index for name, index in ruled.items() if index > 0}
    deepest = max([blocks, *ruled_blocks.values()])
    _check_found(names, depths, others, deepest)
    _check_no_gap(ruled_blocks, blocks, deepest)
    layers = {name: Layer("", deepest + 1 if i == _HEAD_ID else i, deepest) for name, i in ruled.items()}
    for stack in stacks:
        layers.update({n: Layer(stack.tower, number + 1, stack.depth) for n, number in stack.numbers.items()})
        shared = [n for n in stack.numbers if _RELATIVE_BIAS.search(n)]
        if len(shared) == 1 < stack.depth:  # T5 keeps the bias that all blocks share in block 0
            layers[shared[0]] = Layer(stack.tower, 0, stack.depth)
    first_ruled = next((i for i, name in enumerate(names) if name in ruled_blocks), 0)
    fronts: dict[str, _Front] = {}
    for position, name in enumerate(names):
        if name not in layers:
            layers[name] = _outside(name, position, stacks, deepest, first_ruled, ruled_blocks, fronts)
    guesses = _guesses_of_lists(stacks, others, layers, {*ruled_blocks.values()}, deepest)
    in_blocks = {facts[name].tensor for stack in stacks for name in stack.numbers} if facts else set()
    for branch, front in fronts.items():
        if facts and all(facts[name].tensor in in_blocks for name in front.names):  # shared with a block
            is_head, is_guess = True, False
        else:
            is_head, is_guess = _is_head(branch, fronts, facts)
        if is_head:
            layers.update((name, dataclasses.replace(layers[name], index=front.depth + 1)) for name in front.names)
        if is_guess:
            where = "the head" if is_head else "the embeddings"
            guesses.append(f"'{branch}' is declared before the blocks and counts as part of {where}")
    return {name: layers[name] for name in names}, depths, guesses


def _is_hinted(tower: str) -> bool:
    return bool(_HEAD.search(tower) or _EMBEDDING.search(tower))


def _exception(name: str) -> Optional[int]:
    return next((place for pattern, place in _EXCEPTIONS.items() if pattern.search(name)), None)


@dataclasses.dataclass
class _Front:
    """A part of the model that is declared before the blocks and whose name shows neither embeddings nor head."""

    names: list[str]
    stacks: list[dict[str, int]]  # name -> number of its block
    depth: int

    def ends(self, facts: dict[str, _Fact]) -> tuple[int, int]:
        """Return the input and output size of its linear and convolutional layers, (0, 0) if it has none."""
        found = [facts[name] for name in self.names if len(facts[name].shape) > 1]
        sizes = [
            fact.shape[:2] if fact.kind == "Linear" else fact.shape[1::-1]
            for fact in found
            if fact.kind in ("Linear", "Conv")
        ]
        return (sizes[0][0], sizes[-1][1]) if sizes else (0, 0)


def _outside(
    name: str,
    position: int,
    stacks: list[Stack],
    deepest: int,
    first_ruled: int,
    ruled_blocks: dict[str, int],
    fronts: dict[str, _Front],
) -> Layer:
    """Place a parameter that is in no stack: by what it is called, else by whether it precedes the blocks.

    `first_ruled` is the position of the first block that the user's rules place, which counts where there is no stack.
    Parameters placed by precedence alone are added to `fronts`.
    """
    path = name.split(".")[:-1]

    def common(stack: Stack) -> int:
        pairs = zip(path, stack.tower.split("."))
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(path), len(stack.tower.split("."))))

    near = max(map(common, stacks), default=0)
    nearest = [stack for stack in stacks if common(stack) == near]
    tower, depth = (nearest[0].tower, nearest[0].depth) if len(nearest) == 1 else ("", deepest)
    # what it is called within what it shares with the tower: `ernie_embed.classifier` is no embedding
    local = ".".join(name.split(".")[near:])
    exception = _exception(name)
    if exception == _HEAD_ID or (exception is None and _HEAD.search(local)):
        return Layer(tower, depth + 1, depth)
    if exception == 0 or _EMBEDDING.search(local):
        return Layer(tower, 0, depth)
    # parameters of a model itself (`logit_scale`) come before all its sublayers' and their place says nothing
    first = min((stack.first for stack in nearest), default=first_ruled)
    before = bool(path) and len(path) > near and position < first
    if before:
        numbers = [stack.numbers for stack in nearest] or [ruled_blocks]
        fronts.setdefault(".".join(path[: near + 1]), _Front([], numbers, depth)).names.append(name)
    return Layer(tower, 0 if before else depth + 1, depth)


def _is_head(branch: str, fronts: dict[str, _Front], facts: Optional[dict[str, _Fact]]) -> tuple[bool, bool]:
    """Return whether a part that is declared before the blocks is a head nevertheless, and whether that is a guess.

    Layers from the blocks' width to another size are a head, those from another size to the width feed the blocks.
    Where the sizes do not tell, the name does.
    """
    front, called_head = fronts[branch], bool(_MAYBE_HEAD.search(branch))
    kinds = {facts[name].kind for name in front.names} if facts else set()
    start, end = front.ends(facts) if facts else (0, 0)
    if not facts or not end or "Embedding" in kinds:
        is_input = bool(kinds & {"Embedding", "Norm"})
        called_head = called_head and not is_input
        return called_head, called_head or not (is_input or _INPUT.search(branch.rpartition(".")[2]))
    entry, exit_ = _widths(front.stacks, facts, min), _widths(front.stacks, facts, max)
    beside = [ends for name, other in fronts.items() if name != branch for ends in [other.ends(facts)] if ends[1]]
    chained = False  # several parts may follow one another: Linear(8, 32) and Linear(32, 8), or Linear(32, 2)
    for _ in beside:
        after = [] if end in entry else [ends[1] for ends in beside if ends[0] == end]
        before = [] if start in exit_ else [ends[0] for ends in beside if ends[1] == start]
        chained = chained or bool(after or before)
        start, end = (before or [start])[0], (after or [end])[0]
    if (start in exit_) != (end in entry):
        return start in exit_, chained and start in exit_
    return called_head and "Conv" not in kinds, "Conv" not in kinds


def _widths(stacks: list[dict[str, int]], facts: dict[str, _Fact], end: Callable[[Iterable[int]], int]) -> set[int]:
    """Return the sizes that the first or last blocks normalise over, else the most common size in them."""
    widths: set[int] = set()
    for numbers in stacks:
        block = end(numbers.values())
        inside = [facts[name] for name, number in numbers.items() if number == block]
        norms = {fact.shape[0] for fact in inside if fact.kind == "Norm" and len(fact.shape) == 1}
        sizes = Counter(size for fact in inside for size in fact.shape)
        widths |= norms or {size for size, _ in sizes.most_common(1)}
    return widths


def _guesses_of_lists(
    stacks: list[Stack], others: dict[str, int], layers: dict[str, Layer], ruled_ids: set[int], deepest: int
) -> list[str]:
    """Return a sentence for each list of blocks that counts as one layer and each head-like list that is a tower."""
    said = [
        f"the numbers of '{s.tower}' are too large for positions and count in their order" for s in stacks if s.keyed
    ]
    sure = max((stack.depth for stack in stacks if not stack.doubted), default=0)
    said += [
        f"'{stack.tower}' is called like a head or an embedding and counts as a tower of {stack.depth} blocks"
        for stack in stacks
        if stack.doubted and stack.depth < sure
    ]
    for tower, length in others.items():
        if length >= 3:
            inside = (layer.label for name, layer in layers.items() if name.startswith(f"{tower}."))
            where = next(inside, "one layer")
            said.append(f"'{tower}' is a list of {length} items that count as one layer ({where})")
    if not stacks and ruled_ids and len(ruled_ids) <= deepest - min(ruled_ids):
        said.append(f"`rules` place {len(ruled_ids)} blocks in {deepest} layers and leave the others empty")
    return said


def _check_found(names: list[str], depths: dict[str, int], others: dict[str, int], deepest: int) -> None:
    """Raise if there are no blocks, or half of them are in lists that no rule knows."""
    if not deepest:
        raise ValueError(
            "Found no stack of blocks (a numbered list called layers, layer, h, block, blocks, resblocks or stages): "
            f"give `rules`, such as {{r'cells\\.(\\d+)\\.': r'\\1'}}. Received: names={_some(names)}"
        )
    unknown = {
        tower: length
        for tower, length in others.items()
        if tower.rpartition(".")[2] not in STACK_NAMES and not _is_hinted(tower)
    }
    missed = sum(unknown.values())
    if missed >= sum(depths.values()) and missed and depths:
        raise ValueError(
            f"{missed} numbered blocks are in lists of unknown kind ({', '.join(sorted(unknown))}) and only "
            f"{sum(depths.values())} in known ones ({', '.join(depths)}): give `rules`, such as "
            f"{{r'{sorted(unknown)[0]}\\.(\\d+)\\.': r'\\1'}}. Received: names={_some(names)}"
        )


def _close_gaps(ruled: dict[str, int], from_template: set[str], blocks: int) -> None:
    """Number the blocks that templates place without gaps, in place, unless other blocks would move."""
    fixed = {index for name, index in ruled.items() if index > 0 and name not in from_template}
    fixed |= {*range(1, blocks + 1)}
    ranks = {index: rank for rank, index in enumerate(sorted({ruled[name] for name in from_template} | fixed), 1)}
    if all(ranks[index] == index for index in fixed):
        ruled.update({name: ranks[ruled[name]] for name in from_template})


def _check_no_gap(ruled_blocks: dict[str, int], blocks: int, deepest: int) -> None:
    """Raise if rules place something behind the blocks that were found, and nothing in between."""
    beyond = next((name for name, index in ruled_blocks.items() if index > blocks), None)
    if blocks and beyond is not None and not {*range(blocks + 1, deepest + 1)} <= {*ruled_blocks.values()}:
        raise ValueError(
            f"`rules` must leave no layer empty behind the {blocks} blocks that were found; the head is 'head'. "
            f"Received: layer {ruled_blocks[beyond]} for '{beyond}', layer {deepest} the last"
        )


def _some(names: list[str], most: int = 8) -> str:
    return f"[{', '.join(names[:most])}{f', ... {len(names) - most} more' if len(names) > most else ''}]"


def _apply_rules(names: list[str], rules: Optional[Rules]) -> tuple[dict[str, int], set[str]]:
    """Return name -> layer id for the names that `rules` places, and the names that a template numbers."""
    if rules is None:
        return {}, set()
    if not callable(rules) and not isinstance(rules, dict):
        raise TypeError(f"`rules` must be a dict of regular expressions or a callable. Received: rules={shown(rules)}")
    from_template: set[str] = set()
    place = rules if callable(rules) else _rules_from_dict(rules, from_template)
    out = {}
    for name in names:
        layer = place(name)
        if layer is not None:
            out[name] = _checked_layer(layer, name)
    if not out:
        raise ValueError(f"`rules` match no parameter. Received: rules={shown(rules)}, names={_some(names)}")
    return out, from_template


def _rules_from_dict(rules: dict[str, Place], from_template: set[str]) -> Callable[[str], Optional[Place]]:
    compiled = []
    for pattern, layer in rules.items():
        try:
            compiled.append((re.compile(pattern), layer))
        except (re.error, TypeError) as error:
            raise ValueError(f"`rules` must map regular expressions ({error}). Received: {shown(pattern)}") from error

    def place(name: str) -> Optional[Place]:
        for pattern, layer in compiled:
            match = pattern.search(name)
            if match:
                if not isinstance(layer, str):
                    return layer
                try:
                    number = match.expand(layer)
                except (re.error, IndexError) as error:
                    raise ValueError(f"`rules` has a bad template ({error}). Received: {shown(layer)}") from error
                if not is_index(number):
                    return number
                from_template.add(name)
                return int(number) + 1
        return None

    return place


def _checked_layer(layer: Any, name: str) -> int:
    if layer in ("embeddings", "head"):
        return 0 if layer == "embeddings" else _HEAD_ID
    if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
        raise ValueError(
            "A rule must give a layer id from 0, 'embeddings', 'head' or a template that expands to a block's number. "
            f"Received: {shown(layer)} for '{name}'"
        )
    return layer
