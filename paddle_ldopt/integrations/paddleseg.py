"""PaddleSeg: ``optimizer: {type: AdamWDL, layerwise_decay: 0.65}`` in its YAML files.

Call `register()` before PaddleSeg builds its optimizer.
"""

from typing import Any, Optional

from .._messages import refusal, unknown
from .yaml_settings import NAMES, framework, from_settings, named_groups, numbers_read

_OWN = ("weight_decay", "grad_clip_cfg", "custom_cfg")
_OF_A_GROUP = ("name", "lr_mult", "weight_decay_mult")  # settings of an entry of `custom_cfg`


def register() -> None:
    """Add our optimizers to PaddleSeg's configuration files; ours replaces its own `AdamWDL`.

    Its settings: `weight_decay`, `grad_clip_cfg` and `custom_cfg`, whose `lr_mult` multiplies the layer's rate. Raises
    ImportError without PaddleSeg.
    """
    base: Any = framework("paddleseg.optimizers.optimizer", "PaddleSeg").BaseOptimizer
    components = framework("paddleseg.cvlibs.manager", "PaddleSeg").OPTIMIZERS.components_dict

    class Component(base):
        """An optimizer as PaddleSeg builds it: settings first, then model and schedule."""

        def __init__(
            self,
            weight_decay: Optional[float] = None,
            grad_clip_cfg: Optional[dict[str, Any]] = None,
            custom_cfg: Optional[list[dict[str, Any]]] = None,
            **settings: Any,
        ) -> None:
            super().__init__(numbers_read(weight_decay), grad_clip_cfg, custom_cfg)
            self.settings = settings

        def __call__(self, model: Any, lr: Any) -> Any:
            groups = None
            if self.custom_cfg:
                groups = named_groups(
                    model, [(self._parts(chosen), self._options(chosen)) for chosen in self.custom_cfg]
                )
            name, common = type(self).__name__, {**self.args, "weight_decay": self.weight_decay or 0.0}
            return from_settings(name, model, self.settings, learning_rate=lr, groups=groups, own=_OWN, **common)

        def _parts(self, chosen: dict[str, Any]) -> list[str]:
            """Return the part of names in an entry of `custom_cfg`; raise for another setting than PaddleSeg's."""
            for key in chosen.keys() - _OF_A_GROUP:
                raise ValueError(unknown("setting of `custom_cfg`", key, chosen[key], _OF_A_GROUP))
            if not chosen.get("name"):
                raise refusal(ValueError, "An entry of `custom_cfg` must have a `name`.", custom_cfg=chosen)
            return [chosen["name"]]

        def _options(self, chosen: dict[str, Any]) -> dict[str, float]:
            """Return the options of a parameter group from an entry of `custom_cfg`."""
            options = {"learning_rate": chosen.get("lr_mult", 1.0)}
            if self.weight_decay is not None and chosen.get("weight_decay_mult") is not None:
                options["weight_decay"] = self.weight_decay * chosen["weight_decay_mult"]
            return options

    for name in NAMES:
        components[name] = type(name, (Component,), {"__doc__": f"`paddle_ldopt.{name}` for PaddleSeg."})
