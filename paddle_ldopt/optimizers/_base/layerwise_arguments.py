"""The ratios that an optimizer's layer-wise arguments give, and contradictions between these arguments."""

from typing import Any, Callable, Optional

from ..._messages import refusal
from ...layers.decay import LayerDecay, checked_decay
from ...layers.hook import N_LAYERS, bind_hook, layerwise_lr_decay

# The layer-wise arguments of all optimizers, with their defaults; `AdamWDL` documents them.
LAYERWISE: dict[str, Any] = {"layerwise_decay": 1.0, "n_layers": N_LAYERS, "set_param_lr_fun": layerwise_lr_decay}
LAYERWISE.update(name_dict=None, layers=None, lr_ratio=None)


def checked_layers(layers: Any) -> Any:
    """Return `layers`; raise if it is not a `LayerMap`."""
    if not hasattr(layers, "ratios") or isinstance(layers, type):
        raise TypeError(f"`layers` must be a LayerMap. Received: layers={type(layers).__name__}")
    return layers


def check_layers_alone(layers: Any, n_layers: int, hook: Any, name_dict: Any) -> None:
    """Raise if another argument contradicts a LayerMap."""
    if hook is not layerwise_lr_decay or name_dict is not None:
        problem = "`layers` takes the place of `name_dict` and `set_param_lr_fun`: give one or the other."
        raise refusal(ValueError, problem, name_dict=name_dict, set_param_lr_fun=hook)
    checked_layers(layers)
    if n_layers != N_LAYERS:
        problem = f"`layers` has {layers.n_layers} blocks, so `n_layers` would be ignored: leave it out."
        raise refusal(ValueError, problem, n_layers=n_layers)


def hook_of(layerwise_decay: Any, n_layers: int, hook: Any, name_dict: Any) -> Optional[Callable[[Any], Any]]:
    """Return the bound hook, None if all ratios are 1; raise if a decay would have no effect."""
    if isinstance(layerwise_decay, LayerDecay):
        problem = "A LayerDecay as `layerwise_decay` also needs `layers`."
        raise refusal(TypeError, problem, layerwise_decay=layerwise_decay, layers=None)
    decay, documented = checked_decay(layerwise_decay), hook is layerwise_lr_decay
    if decay != 1.0 and (hook is None or (documented and name_dict is None)):
        needs = "`layers` (LayerMap.from_model(model)), or `name_dict` and `set_param_lr_fun`"
        received = {"layerwise_decay": layerwise_decay, "name_dict": name_dict, "set_param_lr_fun": hook}
        raise refusal(ValueError, f"`layerwise_decay` has no effect without {needs}.", **received)
    if hook is None or (documented and decay == 1.0):  # `name_dict` then only gives structured names
        return None
    return bind_hook(hook, decay, name_dict, n_layers)


def check_parameters(params: Optional[list[Any]], names: Any, apply_decay_param_fun: Any) -> None:
    """Raise if no parameter is trainable, or if the names are of a model before `dist.shard_tensor`."""
    if params is not None and all(param.stop_gradient for param in params):
        received = f"{len(params)} parameters, all frozen" if params else "parameters=[]"
        raise ValueError(f"`parameters` holds no trainable parameter. Received: {received}")

    def answer(name: str) -> Optional[bool]:
        try:
            return bool(apply_decay_param_fun(name))
        except LookupError:
            return None

    # after `dist.shard_tensor`, which adds ".dist" to names, no look-up of earlier names would match
    for param in [param for param in params or [] if param.name.endswith(".dist")]:
        before = param.name.removesuffix(".dist")
        stale = ["`name_dict` or `layers`"] if before in names and param.name not in names else []
        if apply_decay_param_fun is not None and answer(param.name) == answer("no parameter's name") != answer(before):
            stale.append("`apply_decay_param_fun`")
        if stale:
            raise ValueError(
                f"{' and '.join(stale)} must know a parameter by its name after `dist.shard_tensor`, which adds "
                "'.dist': shard the model first, then collect the names. "
                f"Received: '{before}' is known, '{param.name}' is not"
            )
