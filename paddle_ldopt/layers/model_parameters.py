"""The parameters of a model under all their names, with the types of their sublayers and their shapes."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

from paddle.nn import Layer as Sublayer

from .._checks import refusal, wrong_type
from .._compat import checked_model, pipeline_of

if TYPE_CHECKING:
    from .map import LayerMap

_MOST_PATHS = 1_000  # paths to one sublayer: nested sharing doubles them at each level


@dataclasses.dataclass(frozen=True)
class ParameterInfo:
    """Tensor name, type of sublayer and shape of a parameter."""

    tensor: str  # ``param.name``
    sublayer: str  # type of its sublayer: "Linear", "Conv", "Norm", "Embedding" or ""
    shape: tuple[int, ...]


def check_mappable(model: Sublayer) -> None:
    """Raise for any object but a network with parameters, and for one stage of a pipeline."""
    if pipeline_of(checked_model(model)) is not None:
        how = "`paddle_ldopt.trainer.map_layers(model)` maps all stages."
        raise refusal(ValueError, f"The model is one stage of a pipeline: {how}", model=type(model).__name__)
    if not model.parameters():
        raise refusal(ValueError, "The model has no parameters to map.", model=type(model).__name__)


def parameter_infos(model: Sublayer, names: Mapping[str, str]) -> dict[str, ParameterInfo]:
    """Return structured name -> `ParameterInfo` of the parameters in `names`; a shared one under each of its names."""
    infos: dict[str, ParameterInfo] = {}
    for path, sublayer in all_paths(model):
        for key, param in sublayer._parameters.items():
            if param is not None and param.name in names:
                infos[f"{path}{key}"] = ParameterInfo(param.name, _type_of(sublayer), tuple(param.shape))
    return infos


def structured_names(name_dict: Any, layers: Optional["LayerMap"]) -> Mapping[str, str]:
    """Return the structured names of `name_dict` or a LayerMap, {} without them; raise if `name_dict` is no dict."""
    if name_dict is not None and not isinstance(name_dict, Mapping):
        raise wrong_type(name_dict, "name_dict", "a dict from each parameter's `name` to its structured name")
    return name_dict or getattr(layers, "name_dict", None) or {}


def name_before_copy(name: str, is_known: Callable[[str], bool]) -> str:
    """Return the known name of a parameter that Paddle renamed when it was copied; any other name unchanged."""
    original, is_copy = name, "_deepcopy_"
    while is_copy and not is_known(original):
        original, is_copy, _ = original.rpartition("_deepcopy_")
    return original or name


def all_paths(
    model: Sublayer,
    path: str = "",
    above: tuple[Sublayer, ...] = (),
    times: Optional[Counter[int]] = None,
) -> Iterator[tuple[str, Sublayer]]:
    """Yield (path, sublayer) in the model's order; a shared sublayer under each of its paths, 1,000 at most."""
    times = Counter() if times is None else times
    times[id(model)] += 1
    yield path, model
    above = (*above, model)
    for key, inner in model._sub_layers.items():
        if inner is not None and times[id(inner)] < _MOST_PATHS and all(inner is not parent for parent in above):
            yield from all_paths(inner, f"{path}{key}.", above, times)


def _type_of(sublayer: Sublayer) -> str:
    """Return the type of a sublayer: "Linear", "Conv", "Norm", "Embedding", or "" for any other."""
    classes = [cls.__name__ for cls in type(sublayer).__mro__]
    if "Linear" in classes:  # not ColumnParallelLinear, whose shape is a part of the whole
        return "Linear"
    classes = [name for name in classes if "Transpose" not in name]
    return next((known for known in ("Embedding", "Conv", "Norm") if any(known in name for name in classes)), "")
