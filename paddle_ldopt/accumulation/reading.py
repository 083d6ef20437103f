"""The gradients of a micro-batch, from a list or from a model."""

from typing import Any, Optional

import paddle

from .._messages import wrong_type
from .._paddle import sharding_setting, unwrap_model


def read(gradients: Any) -> tuple[Optional[list[str]], Optional[list[Any]], list[Any]]:
    """Return the names, parameters and gradients of a model, or None, None and the gradients of a list."""
    if isinstance(gradients, (list, tuple)):
        return None, None, list(gradients)
    if not isinstance(gradients, paddle.nn.Layer):
        raise wrong_type(gradients, "gradients", "a list of Tensors and None, or a paddle.nn.Layer")
    names, parameters = trainable(gradients)
    found = [param.grad for param in parameters]
    if all(gradient is None for gradient in found):
        received = f"{len(parameters)} trainable parameters, none with a gradient"
        raise ValueError(f"The model must have gradients: call `backward` first. Received: {received}")
    return names, parameters, found


def trainable(model: Any) -> tuple[list[str], list[Any]]:
    """Return the structured names of a model's trainable parameters, and the parameters."""
    inner = unwrap_model(model) if isinstance(model, paddle.DataParallel) else model
    named = [(name, param) for name, param in inner.named_parameters() if not param.stop_gradient]
    return [name for name, _ in named], [param for _, param in named]


def clear(parameters: Any) -> None:
    """Clear gradients, or zero them where sharding reduces a buffer of gradients."""
    in_buffers = sharding_setting("split_param")
    for param in parameters:
        if not in_buffers:
            param.clear_gradient(False)  # as a keyword, Paddle ignores the argument and leaves zeros
        elif param.grad is not None:
            with paddle.no_grad():
                param.grad.zero_()


def check_gradient(gradient: Any, total: Any, place: Any) -> None:
    """Raise if a gradient cannot be added to its sum."""
    if gradient is None:
        return
    if not isinstance(gradient, paddle.Tensor):
        raise TypeError(f"A gradient must be a Tensor or None. Received: {type(gradient).__name__} at {place}")
    if gradient.is_selected_rows():
        advice = "build the embedding with sparse=False"
        raise TypeError(f"Gradients must be dense: {advice}. Received: a sparse gradient at {place}")
    if not gradient.is_floating_point():
        raise TypeError(f"A gradient must be of a floating-point type. Received: dtype={gradient.dtype} at {place}")
    shape = list(gradient.shape)
    if total is not None and shape != list(total.shape):
        needed = f"A gradient must have the shape of its sum, {list(total.shape)}."
        raise ValueError(f"{needed} Received: shape={shape} at {place}")


def sum_dtype(gradient: Any) -> Any:
    """Return the type for the sum of such gradients."""
    return paddle.float64 if gradient.dtype == paddle.float64 else paddle.float32


def described(names: Optional[list[str]], length: int) -> str:
    """Describe the slots for a message."""
    if names is None:
        return f"a list of {length} gradients" if length else "nothing"
    return f"{length} parameters ({', '.join(names[:3])}{', ...' if length > 3 else ''})"
