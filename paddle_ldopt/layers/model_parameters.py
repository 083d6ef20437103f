"""A network as the layer map sees it: its parameters under all their names, with kinds and shapes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .._paddle import own_parameters, sublayers
from .head_or_embeddings import ParameterInfo

_MOST_PATHS = 1_000  # paths to one sublayer: nested sharing doubles them at each level


def parameter_infos(model: Any, names: Mapping[str, str]) -> dict[str, ParameterInfo]:
    """Return structured name -> `ParameterInfo` of the parameters in `names`; a shared one under each of its names."""
    infos: dict[str, ParameterInfo] = {}
    for path, sublayer in all_paths(model):
        for key, param in own_parameters(sublayer).items():
            if param is not None and param.name in names:
                infos[f"{path}{key}"] = ParameterInfo(param.name, _kind_of(sublayer), tuple(param.shape))
    return infos


def all_paths(
    model: Any, path: str = "", above: tuple[Any, ...] = (), times: Optional[Counter[int]] = None
) -> Iterator[tuple[str, Any]]:
    """Yield (path, sublayer) in the model's order; a shared sublayer under each of its paths, 1,000 at most."""
    times = Counter() if times is None else times
    times[id(model)] += 1
    yield path, model
    above = (*above, model)
    for key, inner in sublayers(model).items():
        if inner is not None and times[id(inner)] < _MOST_PATHS and all(inner is not parent for parent in above):
            yield from all_paths(inner, f"{path}{key}.", above, times)


def _kind_of(sublayer: Any) -> str:
    """Return the kind of a sublayer: "Linear", "Conv", "Norm", "Embedding", or "" for any other."""
    classes = [cls.__name__ for cls in type(sublayer).__mro__]
    if "Linear" in classes:  # not ColumnParallelLinear, whose shape is a part of the whole
        return "Linear"
    classes = [name for name in classes if "Transpose" not in name]
    return next((kind for kind in ("Embedding", "Conv", "Norm") if any(kind in name for name in classes)), "")
