"""LayerMap: the layer of each parameter of a model, and its learning rate, planned or read from an optimizer."""

import contextlib
import warnings
from collections.abc import Iterable
from typing import Any, Callable, Optional

import paddle
from paddle.optimizer import Optimizer

from .._checks import nearest, refusal
from .._compat import checked_model, name_before_copy, pipeline_of, unwrap_model
from .._files import Path
from ..plots import plot_table
from ..rates import Rate, RateOrSchedule, planned_rates, rates_of_optimizer
from .decay import STATISTICS, Decay, Layer, LayerDecay, NoBlocksError, as_decay
from .find import Rules, find_layers
from .measure import Example
from .table import Entry, LayerTable


class LayerMap:
    """The layer of each parameter of a model. Build it with `LayerMap.from_model` or `LayerMap.from_names`.

    Attributes:
        n_layers (int): number of blocks; of the deepest tower if there are several.
        towers (dict[str, int]): name of each stack -> its number of blocks.
        name_dict (dict[str, str]): ``param.name`` -> structured name; empty when mapped from names.
        source (str): how the layers were found: "measured" or "by names".

    Examples:
        >>> from paddle_ldopt import LayerMap
        >>> names = ["embed.w", "h.0.q.w", "h.0.k.w", "h.0.v.w", "h.1.q.w", "h.1.k.w", "h.1.v.w", "norm.w"]
        >>> layers = LayerMap.from_names(names)
        >>> print(layers.n_layers, [layers.layer_of(name).index for name in names])
        2 [0, 1, 1, 1, 2, 2, 2, 3]
    """

    def __init__(
        self, layers: dict[str, Layer], parameters: Optional[dict[str, paddle.Tensor]] = None, source: str = "by names"
    ) -> None:
        self._layers, self.source = layers, source  # keys are structured names
        self._parameters: dict[str, Any] = {**(parameters or dict.fromkeys(layers))}  # None if only names are known
        self.towers = {layer.tower: layer.depth for layer in layers.values() if layer.tower}
        self.name_dict: dict[str, str] = {}
        for name, param in self._parameters.items():
            other = name if param is None else self.name_dict.setdefault(param.name, name)
            if layers[other] != layers[name]:
                advice = "build all parts of the model in one `paddle.utils.unique_name.guard()`, or in none."
                raise refusal(ValueError, f"Parameters need different names: {advice}", names=[other, name])
        self.n_layers = max(layer.depth for layer in layers.values())

    def __repr__(self) -> str:
        return f"LayerMap(towers={self.towers}, {len(self._layers)} parameters)"

    def __deepcopy__(self, memo: Any) -> "LayerMap":
        return self  # a copied optimizer shares the map, which holds the model's parameters

    @classmethod
    def from_names(cls, names: Iterable[str], rules: Optional[Rules] = None) -> "LayerMap":
        r"""Map structured parameter names. Names tell little: `from_model` with an `example` knows the layers.

        Args:
            names: all names in the model's order, including frozen parameters.
            rules: override the layers found. A dict maps a regular expression (`re.search`) to a layer id,
                "embeddings", "head", or a template such as ``r"\1"`` that expands to a block number from 0, with an
                offset for a stack behind another one: ``r"\1 + 12"``. Gaps in the numbers are closed. A callable takes
                a name and returns one of these or None. Blocks placed by rules alone leave their tower.

        Raises ValueError if no blocks are found or a rule is invalid. A warning lists the layers that are guesses.
        """
        no_names = isinstance(names, str) or not hasattr(names, "__iter__") or getattr(names, "shape", None) == ()
        listed = [] if no_names else list(names)
        if not listed or not all(isinstance(name, str) for name in listed):
            raise refusal(TypeError, "`names` must be an iterable of strings, at least one.", names=names)
        return cls(find_layers(dict.fromkeys(listed), rules)[0])

    @classmethod
    def from_model(
        cls, model: paddle.nn.Layer, example: Optional[Example] = None, rules: Optional[Rules] = None
    ) -> "LayerMap":
        """Map the parameters of a model, also inside a wrapper such as `paddle.DataParallel`.

        With an `example` the layers are measured in one forward pass: blocks are alike, each computed from the previous
        one; the embeddings feed the first block, the head feeds none. The pass runs in evaluation mode and restores the
        model and random states. Without an `example` the layers are found by names. Shared parameters count once, in
        the lowest of their layers.

        Args:
            model: the network to train.
            example: a batch as the model takes it: a Tensor, a tuple or list (positional arguments), a dict (keyword
                arguments), or a callable that takes the model and runs it. One row is enough.
            rules: as in `from_names`.
        """
        if pipeline_of(checked_model(model)) is not None:
            how = "`paddle_ldopt.trainer.map_layers(model)` maps all stages."
            raise refusal(ValueError, f"The model is one stage of a pipeline: {how}", model=type(model).__name__)
        model = unwrap_model(model)
        params = dict(model.named_parameters())
        if not params:
            raise refusal(ValueError, "`model` has no parameters to map.", model=type(model).__name__)
        layers, source = find_layers(params, rules, model, example)
        return cls(layers, params, source)

    @classmethod
    def for_decay(cls, decay: LayerDecay, model: paddle.nn.Layer, find: Callable[[], "LayerMap"]) -> "LayerMap":
        """Return `find()`; for multipliers alone, which need no blocks, a map without blocks if it finds none."""
        if decay != LayerDecay(1.0, scale=decay.scale, multipliers=decay.multipliers):
            return find()
        with warnings.catch_warnings(), contextlib.suppress(NoBlocksError):
            warnings.filterwarnings("ignore", "Some layers of the model")
            return find()
        params = dict(unwrap_model(model).named_parameters())
        return cls({name: Layer("", 1, 0) for name in params}, params)

    def frozen_blocks(self, ratios: dict[str, float]) -> list[str]:
        """Return the labels of blocks without a trainable parameter whose ratio is not 0."""
        frozen = {name for name, param in self._parameters.items() if param is not None and param.stop_gradient}
        trained = {layer for name, layer in self._layers.items() if name not in frozen or ratios[name] == 0}
        layers = dict.fromkeys(self._layers.values())
        return [f"{layer.tower} {layer.label}" for layer in layers if layer.is_block and layer not in trained]

    @property
    def names(self) -> list[str]:
        """Structured names of all parameters, in the model's order."""
        return list(self._layers)

    def layer_of(self, name: str) -> Layer:
        """Return the `Layer` of a parameter by its structured name or its ``param.name``; raise if it is unknown."""
        return self._layers[self.name_of(name)]

    def name_of(self, name: str) -> str:
        structured = self.name_dict.get(name_before_copy(str(name), self.name_dict.__contains__), name)
        if not isinstance(structured, str) or structured not in self._layers:
            how = "build the map after the model is complete (LoRA, resized embeddings), from the model that is trained"
            if not self.name_dict:
                how = "a map made by `from_names` has no `name_dict`: use `from_model` to give it to an optimizer"
            near = nearest(name, self._layers)
            raise refusal(ValueError, f"The parameter is not in the LayerMap{near}: {how}.", name=name)
        return structured

    def ratios(self, layerwise_decay: Decay) -> dict[str, float]:
        """Return structured name -> ratio of the parameter's learning rate to the optimizer's; 0 is frozen."""
        return as_decay(layerwise_decay).ratios(self._layers)

    def table(
        self,
        layerwise_decay: Optional[Decay] = None,
        learning_rate: RateOrSchedule = None,
        optimizer: Optional[Optimizer] = None,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
    ) -> LayerTable:
        """Return a table of the rates of each layer: planned by a decay, or read from an optimizer.

        Args:
            layerwise_decay: required without `optimizer`.
            learning_rate (float|LRScheduler): rate of a layer whose ratio is 1; without it the table has ratios only.
            optimizer: any optimizer of Paddle or of this package. The table has the rates of its next step and at the
                peak of its schedule, past or to come, if known, weight decay and frozen parameters.
            apply_decay_param_fun: ``param.name`` -> whether weight decay applies, without `optimizer`.
        """
        if (layerwise_decay is None) == (optimizer is None):
            given = {"layerwise_decay": layerwise_decay, "optimizer": type(optimizer).__name__}
            raise refusal(ValueError, "`table` and `plot` take either `layerwise_decay` or `optimizer`.", **given)
        plan: dict[str, Any] = {"learning_rate": learning_rate, "apply_decay_param_fun": apply_decay_param_fun}
        if layerwise_decay is not None:
            rates = planned_rates(self, self._parameters, as_decay(layerwise_decay), **plan)
        else:
            if given := {argument: value for argument, value in plan.items() if value is not None}:
                raise refusal(ValueError, f"`{[*given][0]}` is read from `optimizer`: leave it out.", **given)
            rates = {self.name_of(tensor): rate for tensor, rate in rates_of_optimizer(optimizer).items()}
        return LayerTable.build(self._entries(rates), self.source)

    def _entries(self, rates: dict[str, Rate]) -> Iterable[Entry]:
        for name, param in self._parameters.items():
            statistic = name.split(".")[-1] in STATISTICS and (param is None or param.stop_gradient)
            if name in rates and not statistic:
                yield self._layers[name], None if param is None else int(param.size), rates[name]

    def plot(self, path: Path, *plan: Any, **options: Any) -> str:
        """Draw a `table` of the other arguments as boxes, coloured by rate, into a .png, .svg or .pdf file."""
        return plot_table(self.table(*plan, **options), path)

    def fingerprint(self) -> dict[str, list[Any]]:
        """Return structured name -> [tower, layer id, depth]: the identity of the map, for JSON."""
        return {name: [layer.tower, layer.index, layer.depth] for name, layer in self._layers.items()}
