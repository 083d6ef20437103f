"""LayerMap: the layer of each parameter of a model, and its learning rate by a decay or in an optimizer."""

import dataclasses
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional, Union

from .._checks import checked_steps
from .._files import Path
from .._messages import first_few, refusal, shown
from .._paddle import checked_model, name_dict_of, own_parameters, pipeline_of, sublayers, unwrap_model
from ..plots import plot_table
from .before_blocks import ParameterInfo
from .decay import LayerDecay, as_decay
from .granularity import Granularity, checked_granularity
from .places import Layer, place
from .rates import planned_rates, rates_of_optimizer
from .ratios import LayerRatios, ratios_of
from .table import LayerTable
from .user_rules import Rules

__all__ = ["Layer", "LayerMap"]

Decay = Union[float, LayerDecay]
_COPY = re.compile(r"(_deepcopy_\d+)+$")
_MOST_PATHS = 1_000  # paths to one sublayer: nested sharing doubles them at each level


class LayerMap:
    """The layer of each parameter of a model; made by `LayerMap.from_model` or `LayerMap.from_names`.

    Attributes:
        n_layers (int): number of blocks; of the deepest tower if there are several.
        towers (dict[str, int]): name of each stack -> its number of blocks.
        name_dict (dict[str, str]): ``param.name`` -> structured name; empty when mapped from names.

    Examples:
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
    def from_names(
        cls, names: Iterable[str], rules: Optional[Rules] = None, granularity: Granularity = "block"
    ) -> "LayerMap":
        r"""Map structured parameter names.

        Args:
            names: all names in the model's order, including frozen parameters.
            rules: override the built-in rules. A dict maps a regular expression (`re.search`) to a layer id,
                "embeddings", "head", or a template such as ``r"\1"`` that expands to a block number from 0. Gaps in the
                numbers are closed (VGG: ``features.0``, ``features.3``). Ids above the number of blocks found form a
                deeper tower of their own. A callable takes a name and returns a layer id, "embeddings", "head", or None
                for the built-in rules.
            granularity: one layer per "block"; per "stage" in towers whose blocks are in stages (ConvNeXt, Swin,
                ResNet); or a number k of groups of about equal depth in each deeper tower. `rules` count blocks.

        Raises:
            TypeError, ValueError: `names` or `rules` of another type; no names; no stack of blocks; half of the blocks
                in lists of unknown kind; a rule that is invalid or leaves layers empty; a granularity without effect.

        Warns:
            UserWarning: layers that are guesses.
        """
        layers, towers, guesses = place(_checked_names(names), rules, {}, checked_granularity(granularity))
        _warn_of(guesses, layers)
        return cls(layers, towers)

    @classmethod
    def from_model(cls, model: Any, rules: Optional[Rules] = None, granularity: Granularity = "block") -> "LayerMap":
        """Map the parameters of a model, also inside a wrapper such as `paddle.DataParallel`.

        Shared parameters count once, in the lowest of their layers. A single pipeline stage raises ValueError; use
        `trainer.stages.map_layers`, which numbers the blocks of all stages. Other arguments, errors and warnings as in
        `from_names`.
        """
        if pipeline_of(checked_model(model)) is not None:
            why = (
                "The model is one stage of a pipeline: `paddle_ldopt.trainer.stages.map_layers(model)` maps all stages."
            )
            raise refusal(ValueError, why, model=type(model).__name__)
        model, granularity = unwrap_model(checked_model(model)), checked_granularity(granularity)
        parameters = dict(model.named_parameters())
        own_names = name_dict_of(model)
        infos: dict[str, ParameterInfo] = {}  # by structured name; a shared parameter under all its names
        for path, sublayer in _all_paths(model):
            for key, param in own_parameters(sublayer).items():
                if param is not None and param.name in own_names:
                    infos[f"{path}{key}"] = ParameterInfo(param.name, _kind_of(sublayer), tuple(param.shape))
        found = {info.tensor for info in infos.values()}
        others = {name: tensor for tensor, name in own_names.items() if tensor not in found}
        named_by_itself = {name: ParameterInfo(tensor, "", ()) for name, tensor in others.items()}  # ReFT
        infos.update(named_by_itself)
        layers, depths, guesses = place(_checked_names(infos), rules, infos, granularity, whole=not named_by_itself)
        lowest: dict[str, Layer] = {}
        for name, info in infos.items():
            both = [lowest.get(info.tensor, layers[name]), layers[name]]
            lowest[info.tensor] = min(both, key=lambda layer: layer.index - layer.depth)
        mapped = {name: lowest[tensor] for tensor, name in own_names.items()}
        if not rules and all(layer.index for layer in mapped.values()):  # no name or position shows the embeddings
            for name, there in mapped.items():
                if name in infos and infos[name].kind == "Embedding" and there.index > there.depth:
                    mapped[name] = dataclasses.replace(there, index=0)
        _warn_of(guesses, mapped)
        used = {layer.tower for layer in mapped.values()}  # a stack under a second name is not another tower
        towers = {tower: depth for tower, depth in depths.items() if tower in used}
        return cls(mapped, towers, own_names, parameters)

    @property
    def names(self) -> list[str]:
        """Structured names of all parameters, in the model's order."""
        return list(self._layers)

    def layer_of(self, name: str) -> Layer:
        """Return the `Layer` of a parameter by its structured name, or by ``param.name`` in a map from a model.

        Raise ValueError if the parameter is unknown.
        """
        return self._layers[self.name_of(name)]

    def name_of(self, name: str) -> str:
        """Return the structured name for a ``param.name`` or structured name; raise as `layer_of`."""
        if not isinstance(name, str):
            raise refusal(TypeError, "`name` must be a string.", name=name)
        known = name if name in self.name_dict else _COPY.sub("", name)  # Paddle renames parameters when it copies them
        structured = self.name_dict.get(known, name)
        if structured not in self._layers:
            how = "build the map after the model is complete (LoRA, resized embeddings), from the model that is trained"
            if not self.name_dict:
                how = "a map made by `from_names` has no `name_dict`: use `from_model` to give it to an optimizer"
            raise refusal(ValueError, f"The parameter is not in the LayerMap: {how}.", name=name)
        return structured

    def ratio_fn(self, layerwise_decay: Decay) -> LayerRatios:
        """Return a decay's function parameter -> ratio of its learning rate, as optimizers take it.

        Raises:
            ValueError: a tower without blocks in this map; an option or a multiplier that changes no ratio.

        Warns:
            UserWarning: a multiplier whose parameters are all frozen.
        """
        ratios = LayerRatios(self, as_decay(layerwise_decay))
        ratios.check_effects()
        return ratios

    def is_trainable(self, name: str) -> bool:
        """Return whether a parameter is trainable now, by its structured name; True in a map made from names."""
        return name not in self._parameters or not self._parameters[name].stop_gradient

    def table(
        self,
        layerwise_decay: Optional[Decay] = None,
        learning_rate: Any = None,
        optimizer: Any = None,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
        num_steps: Optional[int] = None,
    ) -> LayerTable:
        """Return the rates of each layer as a table to print, or to read (`rows`).

        With an `optimizer` the table has the rates of its next step and of the peak of its schedule, weight decay and
        frozen parameters, all read from the optimizer. Otherwise it has the rates planned by `layerwise_decay`.

        Args:
            layerwise_decay: required without `optimizer`.
            learning_rate (float|LRScheduler): rate of a ratio of 1; without it the table has ratios only.
            optimizer: any optimizer of Paddle or of this package, layer-wise or not.
            apply_decay_param_fun: ``param.name`` -> whether weight decay applies, without `optimizer`.
            num_steps: number of steps to search for the peak of the schedule. None: to the end of a schedule of this
                package or of Paddle's warm-up, 10,000 steps of any other.

        Raises:
            ValueError: neither or both of `layerwise_decay` and `optimizer`; an argument that is read from
                `optimizer`; an optimizer of another model.
        """
        num_steps = None if num_steps is None else checked_steps(num_steps, "num_steps")
        if (layerwise_decay is None) == (optimizer is None):
            raise ValueError(
                "`table` and `plot` take either `layerwise_decay` or `optimizer`. "
                f"Received: layerwise_decay={shown(layerwise_decay)}, optimizer={type(optimizer).__name__}"
            )
        names = self.name_dict or {name: name for name in self._layers}
        tensors = {tensor: (self.layer_of(name), name, self._parameters.get(name)) for tensor, name in names.items()}
        if layerwise_decay is None:
            for argument, value in (("learning_rate", learning_rate), ("apply_decay_param_fun", apply_decay_param_fun)):
                if value is not None:
                    left_out = f"`{argument}` is read from `optimizer`: leave it out."
                    raise refusal(ValueError, left_out, **{argument: value})
            rates = rates_of_optimizer(optimizer, num_steps)
            for tensor in rates:
                self.layer_of(tensor)
        else:
            rates = planned_rates(
                tensors, self.ratio_fn(layerwise_decay), learning_rate, apply_decay_param_fun, num_steps
            )
        return LayerTable.build(tensors, rates)

    def plot(
        self, path: Path, layerwise_decay: Optional[Decay] = None, learning_rate: Any = None, optimizer: Any = None
    ) -> str:
        """Draw the rate of each layer into a .png, .svg or .pdf file and return its path; arguments as in `table`."""
        return plot_table(self.table(layerwise_decay, learning_rate, optimizer), path)

    def fingerprint(self) -> dict[str, Any]:
        """Return the identity of the map: tower -> depth, and structured name -> [tower, layer id, depth]."""
        return {
            "towers": dict(self.towers),
            "layers": {name: [layer.tower, layer.index, layer.depth] for name, layer in self._layers.items()},
        }


def layers_of(optimizer: Any) -> Optional[LayerMap]:
    """Return the LayerMap of an optimizer's ratios; None for a hook's, or without layer-wise rates."""
    ratios = ratios_of(optimizer)
    return None if ratios is None else ratios.layers


def _checked_names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str) or not hasattr(names, "__iter__") or getattr(names, "ndim", 1) != 1:
        raise refusal(TypeError, "`names` must be an iterable of strings.", names=names)
    names = list(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"`names` must be an iterable of strings. Received: {shown(name)}")
    if not names:
        raise ValueError("There are no parameters to map. Received: names=[]")
    return names


def _kind_of(sublayer: Any) -> str:
    """Return the kind of a sublayer: "Linear", "Conv", "Norm", "Embedding", or "" for any other."""
    classes = [cls.__name__ for cls in type(sublayer).__mro__]
    if "Linear" in classes:  # not ColumnParallelLinear, whose shape is a part of the whole
        return "Linear"
    classes = [name for name in classes if "Transpose" not in name]
    return next((kind for kind in ("Embedding", "Conv", "Norm") if any(kind in name for name in classes)), "")


def _all_paths(
    model: Any, path: str = "", above: tuple[Any, ...] = (), times: Optional[Counter[int]] = None
) -> Iterator[tuple[str, Any]]:
    """Yield (path, sublayer) in the model's order; a shared sublayer under each of its paths, 1,000 at most."""
    times = Counter() if times is None else times
    times[id(model)] += 1
    yield path, model
    above = (*above, model)
    for key, inner in sublayers(model).items():
        if inner is not None and times[id(inner)] < _MOST_PATHS and all(inner is not parent for parent in above):
            yield from _all_paths(inner, f"{path}{key}.", above, times)


def _warn_of(guesses: list[str], names: Iterable[str]) -> None:
    if guesses:
        warnings.warn(
            f"Some layers of the model are guesses: {first_few(guesses, 8, '; ')}. Where a guess is wrong, give "
            r"`rules`, such as {r'^my_head\.': 'head'} or {r'cells\.(\d+)\.': r'\1'}. "
            f"Received: names=[{first_few(names, 3)}]",
            stacklevel=3,
        )
