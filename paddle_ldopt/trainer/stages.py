"""The layers of a pipeline: each process has its stage, numbered as in the whole model."""

import dataclasses
from typing import Any

import paddle
from paddle import distributed
from paddle.distributed import fleet

from .._compat import checked_model, pipeline_of
from ..layers.map import LayerMap
from ..layers.table import LayerTable


def map_layers(model: paddle.nn.Layer, rules: Any = None) -> LayerMap:
    """Return the `LayerMap` of a model, or of a pipeline's stage; all stages must call it together.

    `rules` are as in `LayerMap.from_model`.
    """
    cls = LayerMap if pipeline_of(checked_model(model)) is None else StageLayers
    return cls.from_model(model, rules=rules)


def from_all_stages(value: Any) -> list[Any]:
    """Return `value` of every stage of this pipeline, first to last; all must call it together."""
    values: list[Any] = []
    distributed.all_gather_object(values, value, group=fleet.get_hybrid_communicate_group().get_pipe_parallel_group())
    return values


class StageLayers(LayerMap):
    """The layers of one stage, numbered as in the whole model. `table` and `plot` show all stages.

    Names come from PaddleNLP's ``state_dict``, as without a pipeline. A weight that stages share is in the lowest of
    its layers, so that all copies take the same steps.
    """

    @classmethod
    def from_model(cls, model: paddle.nn.Layer, example: Any = None, rules: Any = None) -> "StageLayers":
        """Map the parameters of a stage by the names of the whole model; all stages must call it together."""
        trained = {param.name: param for param in model.parameters()}
        name_dict = {tensor.name: name for name, tensor in model.state_dict().items() if tensor.name in trained}
        shared = {}  # the common name of each shared weight -> its structured name in this stage
        for key, part in pipeline_of(model).shared_comm.items():
            attributes = part["weight_attr"]
            for attribute in [attributes] if isinstance(attributes, str) else attributes:
                shared[f"{key}.{attribute}"] = name_dict[getattr(part["layer"], attribute).name]
        stages = from_all_stages((list(name_dict.values()), shared))
        whole = LayerMap.from_names(dict.fromkeys(name for names, _ in stages for name in names), rules)
        layers = {name: whole.layer_of(name) for name in whole.names}
        for key in {key for _, shared in stages for key in shared}:
            names = [shared[key] for _, shared in stages if key in shared]
            lowest = min((layers[name] for name in names), key=lambda layer: layer.index - layer.depth)
            layers.update(dict.fromkeys(names, lowest))
        return cls(layers, whole.towers, name_dict, {name: trained[tensor] for tensor, name in name_dict.items()})

    def table(self, *args: Any, **kwargs: Any) -> LayerTable:
        """Return the table of all stages, as `LayerMap.table`; all must call it together."""
        merged: dict[tuple[str, int], Any] = {}
        for rows in from_all_stages(super().table(*args, **kwargs).rows):
            for row in rows:
                place = row.tower, row.index
                merged[place] = _added(merged[place], row) if place in merged else row
        towers = list(dict.fromkeys(tower for tower, _ in merged))
        return LayerTable([merged[place] for place in sorted(merged, key=lambda p: (towers.index(p[0]), p[1]))])


def _added(first: Any, second: Any) -> Any:
    """Return the merged row of a layer that two stages share."""
    ends = {}
    for field in ("ratio", "learning_rate", "peak_learning_rate", "multiplier"):
        both = [getattr(row, field) for row in (first, second)]
        if field == "multiplier" and any(both):
            both = [ends_of_one or (1.0, 1.0) for ends_of_one in both]
        ends[field] = None if None in both else (min(low for low, _ in both), max(high for _, high in both))
    counts = {field: getattr(first, field) + getattr(second, field) for field in ("tensors", "elements", "frozen")}
    of_both = (first.with_weight_decay, second.with_weight_decay)
    return dataclasses.replace(first, **ends, **counts, with_weight_decay=None if None in of_both else sum(of_both))
