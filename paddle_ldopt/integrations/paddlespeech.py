"""PaddleSpeech's speech recognition (s2t): ``optim: AdamWDL`` and ``layerwise_decay: 0.9`` in `optim_conf`.

Call `register()` before the experiment is set up. PaddleSpeech gives optimizers a list of parameters without a
model, so ours are built after the trainer has set up its model.
"""

from typing import Any

import paddle

from .._messages import refusal
from .._paddle import parameters_of
from .yaml_settings import NAMES, framework, from_settings

_OWN = ("lr", "weight_decay", "grad_clip")  # in `optim_conf`
_RATE = "lr"  # the rate in `optim_conf`, which goes to the schedule
_PREFIXES = ("", "model_", "wav2vec2_", "hubert_", "wavlm_")  # of the settings of a trainer's one or two optimizers


class Pending(paddle.optimizer.SGD):
    """Placeholder for an optimizer until PaddleSpeech's trainer has set up the model."""

    def __init__(self, learning_rate: Any, parameters: Any, grad_clip: Any = None) -> None:
        self.arguments = {"learning_rate": learning_rate, "groups": list(parameters), "grad_clip": grad_clip}
        super().__init__(learning_rate, parameters=list(parameters), grad_clip=grad_clip)

    def step(self) -> None:
        """Refuse to train."""
        advice = "it is built at the end of `Trainer.setup()` of paddlespeech.s2t: call that."
        raise RuntimeError(f"The optimizer of the configuration file does not exist yet; {advice}")


def register() -> None:
    """Add our optimizers to the configuration files of PaddleSpeech's s2t experiments.

    Our settings are in `optim_conf`; experiments with two optimizers (wav2vec2, HuBERT, WavLM) take ours for either.
    Text to speech (t2s) passes no such settings on: use `apply_layerwise_decay` there. Raises ImportError without
    PaddleSpeech.
    """
    module = framework("paddlespeech.s2t.training.optimizer", "PaddleSpeech")
    trainer = framework("paddlespeech.s2t.training.trainer", "PaddleSpeech").Trainer
    module.OPTIMIZER_DICT.update({name.lower(): f"{__name__}:{Pending.__name__}" for name in NAMES})
    if trainer.setup.__module__ == __name__:
        return
    set_up = trainer.setup

    def setup(self: Any) -> None:
        """Set up the experiment, and build our optimizers for its model."""
        set_up(self)
        for prefix in _PREFIXES:
            pending = getattr(self, f"{prefix}optimizer", None)
            # the optimizer of a frozen part, which PaddleSpeech never steps, stays pending
            if isinstance(pending, Pending) and not all(param.stop_gradient for param in parameters_of(pending)):
                setattr(self, f"{prefix}optimizer", _built(self, prefix, pending))

    trainer.setup = setup


def _built(trainer: Any, prefix: str, pending: Pending) -> Any:
    """Return the optimizer that a configuration file describes."""
    names = {name.lower(): name for name in NAMES}
    settings = {key: value for key, value in dict(trainer.config[f"{prefix}optim_conf"]).items() if key != _RATE}
    weight_decay = settings.pop("weight_decay", None)
    clip = settings.pop("grad_clip", None)
    if clip is not None and pending.arguments["grad_clip"] is None:  # the trainer gave it to the factory, or not
        message = "This trainer of PaddleSpeech ignores `grad_clip` in its optimizer settings: set `global_grad_clip`."
        raise refusal(ValueError, message, grad_clip=clip)
    name = names[trainer.config[f"{prefix}optim"].lower()]
    common = {**pending.arguments, "weight_decay": weight_decay or 0.0, "own": _OWN}
    return from_settings(name, trainer.model, settings, **common)
