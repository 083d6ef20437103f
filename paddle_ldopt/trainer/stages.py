"""The layers of a Trainer's model, and of a pipeline, in which each process has a stage."""

import re
import warnings
from typing import Any, Optional

import paddle
from paddle.distributed import fleet

from .._checks import first_few, problem, refusal
from .._compat import checked_model, pipeline_of, random_states_kept
from .._processes import gathered, together
from ..layers.decay import lowest
from ..layers.map import LayerMap
from ..layers.measure import Example
from ..layers.table import Entry
from ..rates import Rate
from . import resume


def map_layers(model: paddle.nn.Layer, rules: Any = None, example: Optional[Example] = None) -> LayerMap:
    """Map a model or a pipeline's stage; all stages must call it together.

    `rules` and `example` are as in `LayerMap.from_model`. The layers of a pipeline are found by names.
    """
    if pipeline_of(checked_model(model)) is None:
        return LayerMap.from_model(model, example, rules)
    if example is not None:
        wrong = "The layers of a pipeline are found by names: no stage can run the `example` alone."
        warnings.warn(problem(wrong, example=type(example).__name__), stacklevel=2)
    return StageLayers.from_model(model, rules=rules)


def layers_of_trainer(trainer: Any, rules: Any) -> LayerMap:
    """Measure the layers with the first row of the data in all processes, or find them by names."""
    cause = "the model is one stage of a pipeline"
    if pipeline_of(checked_model(trainer.model)) is None:
        try:
            batch, _ = together(lambda: (_first_batch(trainer), None))  # a pass in tensor parallel waits for all
            layers, places = together(lambda: _measured(trainer, batch, rules))
            if all(other == places[0] for other in places):
                return layers
            cause = "the processes find different layers"
        except Warning:  # the user's filter makes errors of them
            raise
        except Exception as error:  # of the user's data set, collator or model
            cause = f"{type(error).__name__}: {error}"
    if trainer.is_world_process_zero():
        how = f"The layers are found by names, without a forward pass of the first row: {cause}"
        resume.logger_of(trainer).warning(how)
    return map_layers(trainer.model, rules)


def _first_batch(trainer: Any) -> dict[str, Any]:
    rows = trainer.train_dataset
    if rows is None or not hasattr(rows, "__getitem__") or not hasattr(rows, "__len__"):
        raise TypeError("the training data has no numbered rows")
    with random_states_kept():
        if hasattr(rows, "remove_columns"):  # a `datasets.Dataset`
            rows = trainer._remove_unused_columns(rows, description="training")
        return dict(trainer._prepare_inputs(trainer.data_collator([rows[0]])))


def _measured(trainer: Any, batch: dict[str, Any], rules: Any) -> tuple[LayerMap, dict[str, Any]]:
    def run(model: paddle.nn.Layer) -> Any:
        with trainer.autocast_smart_context_manager():
            return trainer.compute_loss(model, dict(batch))

    layers = LayerMap.from_model(trainer.model, run, rules)
    return layers, layers.fingerprint()


def from_all_stages(value: Any) -> list[Any]:
    """Return the values of all stages of this pipeline; all must call it together."""
    return gathered(value, fleet.get_hybrid_communicate_group().get_pipe_parallel_group())


class StageLayers(LayerMap):
    """The layers of one stage, numbered as in the whole model.

    `table` and `plot` show all stages; all must call them together. Names come from PaddleNLP's ``state_dict``. A
    shared weight is in its lowest layer, so all copies take the same steps.
    """

    @classmethod
    def from_model(cls, model: paddle.nn.Layer, example: Any = None, rules: Any = None) -> "StageLayers":
        """Map a stage by the names of the whole model; all stages must call it together."""
        by_chunk = [name for name, _ in model.named_parameters() if re.match(r"\d+\.\d+\.", name)]
        if by_chunk and pipeline_of(model).get_num_virtual_stages() > 1:
            wrong = "Paddle names the layers of an interleaved pipeline by chunk and place, not by their number: build"
            advice = "the model from PaddleNLP's classes, or leave out `num_virtual_pipeline_stages`."
            raise refusal(ValueError, f"{wrong} {advice}", names=first_few(by_chunk))
        trained = {param.name: param for param in model.parameters()}
        name_dict = {tensor.name: name for name, tensor in model.state_dict().items() if tensor.name in trained}
        shared = {}  # the common name of each shared weight -> its structured name in this stage
        for key, part in pipeline_of(model).shared_comm.items():
            for attribute in part["weight_attr"]:
                shared[f"{key}.{attribute}"] = name_dict[getattr(part["layer"], attribute).name]
        stages = from_all_stages((list(name_dict.values()), shared))
        whole = LayerMap.from_names(dict.fromkeys(name for names, _ in stages for name in names), rules)
        layers = {name: whole.layer_of(name) for name in whole.names}
        for key in {key for _, shared in stages for key in shared}:
            names = [shared[key] for _, shared in stages if key in shared]
            layers.update(dict.fromkeys(names, lowest(layers[name] for name in names)))
        return cls(layers, {name: trained[tensor] for tensor, name in name_dict.items()})

    def _entries(self, rates: dict[str, Rate]) -> list[Entry]:
        return [entry for entries in from_all_stages([*super()._entries(rates)]) for entry in entries]
