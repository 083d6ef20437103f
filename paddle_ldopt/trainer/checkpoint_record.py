"""The record of a Trainer's layer-wise settings in its checkpoints: written, read and checked at a resume."""

import os
from typing import Any, Optional

import paddle
from paddle.optimizer import Optimizer

from .._files import file_errors, read_json
from .._messages import refusal
from .._paddle import name_dict_of, parameters_of, unwrap
from ..config import decay_from, name_of, settings_of
from ..create import OFF
from ..layers.layer import Layer
from ..layers.rates import layerwise_interface
from ..optimizers.registry import REGISTRY
from ..saving.layerwise_record import ALLOW, LayerwiseSettings, changes, check_changes
from .folders import FORMAT, LAYERWISE
from .types import Trainer
from .unfreezing import GradualUnfreezeCallback

Record = dict[str, Any]
DECAY_KEY = "rule"  # key of the decay; version 0.1 called it a rule, and its checkpoints can still be read
_DEGREES = [(axis, f"{axis}_parallel_degree") for axis in ("sharding", "tensor", "pipeline")]  # the Trainer's arguments
_SAME_STATE = {"AdamW", "AdamWDL"}  # each can load the state of the other


def record_of(trainer: Trainer, constant: Record) -> Record:
    """Return the record for a checkpoint, from the `constant_settings` of the Trainer."""
    callbacks = trainer.callback_handler.callbacks
    unfreezing = (c.every_k_steps for c in callbacks if isinstance(c, GradualUnfreezeCallback))
    layout = {name: max(getattr(trainer.args, field, 1), 1) for name, field in _DEGREES}
    return {**constant, "unfreeze_every_k_steps": next(unfreezing, None), "layout": layout}


def constant_settings(trainer: Trainer) -> Record:
    """Return the constant part of the record: of the optimizer that will be built, or of a given one."""
    if trainer.optimizer is None:
        name, decay, ratios = _optimizer_name(trainer), trainer._decay, None
        layers = None if decay == OFF else trainer.layer_map
    else:
        optimizer = unwrap(trainer.optimizer)
        name, decay = type(optimizer).__name__, layerwise_interface(optimizer).decay or OFF
        ratios = _hook_ratios(optimizer, trainer.model)
        layers = None if decay == OFF else layerwise_interface(optimizer).layers
    fingerprint = {"towers": None, "layers": None} if layers is None else layers.fingerprint()
    return {"optimizer": name, DECAY_KEY: settings_of(decay), "ratios": ratios, **fingerprint}


def _optimizer_name(trainer: Trainer) -> str:
    """Return the class name of the optimizer that a Trainer will build."""
    optim = name_of(trainer.args.optim)
    if optim in REGISTRY:
        return REGISTRY[optim].cls.__name__
    try:
        return str(trainer.get_optimizer_cls_and_kwargs(trainer.args)[0].__name__)
    except ValueError:  # only the `create_optimizer` of a subclass knows this optimizer
        return optim


def _hook_ratios(optimizer: Optimizer, model: paddle.nn.Layer) -> Optional[dict[str, float]]:
    """Return structured name -> ratio if the ratios come from a user's hook, else None."""
    if layerwise_interface(optimizer).hook is None:
        return None
    names = name_dict_of(model)
    trained = [param for param in parameters_of(optimizer) if not param.stop_gradient]
    return {names.get(param.name, param.name): float(optimizer.layerwise_ratio(param)) for param in trained}


def check_record(folder: str, record: Record, allowed: bool, new_optimizer: bool) -> list[str]:
    """Return the allowed changes between a checkpoint's record and `record`; raise if they are refused."""
    saved = _read_record(folder)
    if saved is None:
        return _without_record(folder, record, allowed)
    was = {**{key: record[key] for key in ("layout", "unfreeze_every_k_steps")}, **saved}  # version 0.1 lacks both
    differences = changes(comparable(was), comparable(record))
    _check_layout(folder, was, record)
    _check_optimizer(folder, was, record)
    if not allowed:
        check_changes(differences, f"give `{ALLOW}`", resume_from_checkpoint=folder)
    if new_optimizer:
        _check_frozen(folder, was, record)
    return differences


def _read_record(folder: str) -> Optional[Record]:
    path = os.path.join(folder, LAYERWISE)
    if not os.path.exists(path):
        return None
    content = "The layer-wise settings"
    record = read_json(path, content)
    with file_errors(path, content):
        is_readable = record["format"] == FORMAT
        if is_readable:
            comparable(record)
    if not is_readable:
        message = f"Another version of paddle_ldopt wrote the layer-wise settings; this version reads format {FORMAT}."
        raise refusal(ValueError, message, format=record["format"], path=path)
    return dict(record)


def comparable(record: Record) -> LayerwiseSettings:
    """Return the settings in a record."""
    layers = {name: Layer(*place) for name, place in (record["layers"] or {}).items()}
    unfreezing = record.get("unfreeze_every_k_steps") or "not used"
    return LayerwiseSettings(
        decay=settings_of(decay_from(record[DECAY_KEY])),
        optimizer={"the optimizer": record["optimizer"], "every_k_steps of GradualUnfreezeCallback": unfreezing},
        towers=record["towers"] or {},
        layers={name: f"{layer.label} of {layer.tower or 'all towers'}" for name, layer in layers.items()},
        ratios=record["ratios"] or {},
    )


def _without_record(folder: str, record: Record, allowed: bool) -> list[str]:
    """Return the message for a checkpoint without a record; raise if there are layer-wise rates to compare."""
    ratios, unfreezes = record["ratios"] or {}, record["unfreeze_every_k_steps"] is not None
    if decay_from(record[DECAY_KEY]) == OFF and set(ratios.values()) <= {1.0} and not unfreezes:
        return []
    if not allowed:
        message = (
            f"The checkpoint has no {LAYERWISE}, so its layer-wise decay is unknown (a Trainer without "
            f"LdoptTrainerMixin has none): give `{ALLOW}` to resume with the present decay."
        )
        raise refusal(ValueError, message, resume_from_checkpoint=folder)
    return [f"the checkpoint has no {LAYERWISE}"]


def _check_layout(folder: str, was: Record, record: Record) -> None:
    """Raise if the optimizer's state is in files that only the checkpoint's layout of processes can read.

    Data parallelism does not count: its processes all have the same state.
    """
    layout, forms = was["layout"], (".pdopt", ".safetensors")
    has_parts = any(name.startswith("optimizer") and name.endswith(forms) for name in os.listdir(folder))
    if layout != record["layout"] and has_parts:
        degrees = ", ".join(f"{name}={degree}" for name, degree in layout.items())
        message = (
            f"The checkpoint was saved in another layout, {degrees}, and its optimizer's state fits no other layout: "
            "resume in that layout, or start a new run from the checkpoint's weights."
        )
        raise refusal(ValueError, message, resume_from_checkpoint=folder, **record["layout"])


def _check_optimizer(folder: str, was: Record, record: Record) -> None:
    classes = {was["optimizer"], record["optimizer"]}
    if len(classes) > 1 and classes != _SAME_STATE:
        message = (
            f"The state of {was['optimizer']} cannot be loaded into {record['optimizer']}: resume with the same "
            "optimizer, or start a new run from the checkpoint's weights."
        )
        raise refusal(ValueError, message, resume_from_checkpoint=folder)


def _check_frozen(folder: str, was: Record, record: Record) -> None:
    """Raise if a parameter was unfrozen: the checkpoint has no state for it, which Paddle needs."""
    unfrozen = _frozen(was) - _frozen(record)
    if unfrozen:
        message = (
            f"{len(unfrozen)} parameters, such as '{min(unfrozen)}', were frozen in the checkpoint and have no "
            "optimizer state in it: freeze the same layers, or start a new run from the checkpoint's weights."
        )
        below = record[DECAY_KEY]["layerwise_freeze_below"]
        raise refusal(ValueError, message, resume_from_checkpoint=folder, layerwise_freeze_below=below)


def _frozen(record: Record) -> set[str]:
    """Return the names of the parameters that a record's decay freezes."""
    layers = {name: Layer(*place) for name, place in (record["layers"] or {}).items()}
    ratios = decay_from(record[DECAY_KEY]).ratios(layers) if layers else {}
    return {name for name, ratio in ratios.items() if ratio == 0}
