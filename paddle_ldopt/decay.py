"""Layer id -> learning-rate ratio: the conventions of the field by name, and a decay for any Paddle optimizer."""

import dataclasses
import math
from typing import Any, Callable, Union

import paddle
from paddle.optimizer import Optimizer

from .arguments import checked_number, shown
from .hooks import LayerwiseMixin, asks_for_rates, check_decay, parameters_of, ratio_fn, unwrap

__all__ = ["CONVENTIONS", "LayerDecay", "apply_layerwise_decay", "reset_layerwise_decay"]

# With layer ids 0 = embeddings, 1..n = blocks, n + 1 = head: the exponent of the decay for all ids but the head's,
# whose ratio is 1 in every convention.
CONVENTIONS: dict[str, Callable[[int, int], int]] = {
    # top block d, embeddings d^(n+1); the numbers of BEiT's LayerDecayValueAssigner too
    "paddlenlp": lambda layer_id, n: n + 1 - layer_id,
    # one power lower throughout, as in google-research/electra, where it is acknowledged to be off by one
    "electra": lambda layer_id, n: n + 2 - layer_id,
    # top block 1, embeddings undecayed, as in zihangdai/xlnet
    "xlnet": lambda layer_id, n: n - layer_id if layer_id else 0,
}


@dataclasses.dataclass(frozen=True)
class LayerDecay:
    r"""Say how the learning rate falls from layer to layer; goes wherever `layerwise_decay` is taken beside `layers`.

    .. math::
        r_i = \max(d^{e(i)}, \text{min\_ratio}), \qquad e(i) = n + 1 - i \text{ (paddlenlp)}, \qquad
        r_{n+1} = \text{head\_ratio}

    Args:
        layerwise_decay (float): d, the ratio of the rates of neighbouring layers, in (0, 1].
        convention (str, optional): which power each layer gets: "paddlenlp" (the same numbers as BEiT), "electra" (one
            power lower for all but the head) or "xlnet" (top block and embeddings at the full rate).
        min_ratio (float, optional): floor of the ratios, in [0, 1].
        head_ratio (float, optional): ratio of the head, above 0; often more than 1 for a newly initialised one.
        freeze_below (float, optional): layers whose ratio is below it are frozen (ratio 0: neither the weights nor the
            optimizer's state change), in [0, 1].

    Raises:
        TypeError, ValueError: a value of the wrong type or out of range, an unknown convention.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt import LayerDecay
            >>> [LayerDecay(0.5).ratio(i, n_layers=2) for i in range(4)]
            [0.125, 0.25, 0.5, 1.0]
            >>> [LayerDecay(0.5, "electra", min_ratio=0.1, head_ratio=2).ratio(i, n_layers=2) for i in range(4)]
            [0.1, 0.125, 0.25, 2.0]
    """

    layerwise_decay: float
    convention: str = "paddlenlp"
    min_ratio: float = 0.0
    head_ratio: float = 1.0
    freeze_below: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layerwise_decay", check_decay(self.layerwise_decay))
        if not isinstance(self.convention, str) or self.convention not in CONVENTIONS:
            known = ", ".join(map(repr, CONVENTIONS))
            raise ValueError(f"`convention` must be one of {known}. Received: convention={shown(self.convention)}")
        for field in ("min_ratio", "head_ratio", "freeze_below"):
            high, ends = (math.inf, "()") if field == "head_ratio" else (1.0, "[]")
            object.__setattr__(self, field, checked_number(getattr(self, field), field, 0.0, high, ends))

    def ratio(self, layer_id: int, n_layers: int) -> float:
        """Return the ratio of layer `layer_id` (0 = embeddings, 1..n = blocks, n + 1 = head) of `n_layers` blocks."""
        if layer_id > n_layers:
            return self.head_ratio
        power = self.layerwise_decay ** CONVENTIONS[self.convention](layer_id, n_layers)
        ratio = max(power, self.min_ratio)
        return 0.0 if ratio < self.freeze_below else ratio


def apply_layerwise_decay(optimizer: Any, layers: Any, layerwise_decay: Union[float, LayerDecay]) -> Any:
    """Give any Paddle optimizer layer-wise learning rates, in place.

    The ratio multiplies what `Optimizer._create_param_lr` returns, for this optimizer alone: nothing is written into
    the parameters, so applying it twice replaces the first, and other optimizers over them see none of it.

    Args:
        optimizer (paddle.optimizer.Optimizer): Momentum, Adam, NAdam, Lamb...; with a scheduler and parameter groups or
            without. Call it before the optimizer is wrapped by `fleet`; the optimizer inside LookAhead is found.
        layers (LayerMap): the layers of the model whose parameters it trains.
        layerwise_decay (float|LayerDecay): ratio of the rates of neighbouring layers, in (0, 1], or a whole rule.

    Returns:
        Optimizer: the same object.

    Raises:
        TypeError: not a Paddle optimizer; one whose step does not ask for a rate per parameter, such as LBFGS, Rprop,
            Muon and ModelAverage; an optimizer that is wrapped already.
        ValueError: a parameter that `layers` does not know; an optimizer with a layer-wise decay of its own.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle_ldopt as ldopt
            >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
            >>> momentum = paddle.optimizer.Momentum(0.1, parameters=encoder.parameters())
            >>> layers = ldopt.LayerMap.from_model(encoder)
            >>> ldopt.apply_layerwise_decay(momentum, layers, layerwise_decay=0.5).layerwise_ratio(
            ...     encoder.layers[0].linear1.weight)
            0.125
    """
    inner = _inside(optimizer)
    plain = vars(type(inner)).get("_plain", type(inner))
    if isinstance(inner, LayerwiseMixin) and type(inner) is plain:
        raise ValueError(
            f"{plain.__name__} has a layer-wise decay of its own: give it `layers` and `layerwise_decay` when built."
            f" Received: optimizer={plain.__name__}"
        )
    if not asks_for_rates(plain):
        raise TypeError(
            f"The step of {plain.__name__} does not ask `_create_param_lr` for the rate of each parameter, so it would "
            f"ignore a layer-wise decay: use another optimizer. Received: optimizer={plain.__name__}"
        )
    ratio_of = ratio_fn(layers, layerwise_decay)
    for param in parameters_of(inner):
        ratio_of(param)
    inner.__class__ = _layerwise_class(plain)
    inner._ratio_of, inner._checked = ratio_of, False
    return optimizer


def reset_layerwise_decay(optimizer: Any) -> Any:
    """Undo `apply_layerwise_decay`: the optimizer is of its own class again, with the same rate for every layer.

    Args:
        optimizer (paddle.optimizer.Optimizer): one that `apply_layerwise_decay` was applied to; others stay.

    Returns:
        Optimizer: the same object.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle_ldopt as ldopt
            >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
            >>> sgd = paddle.optimizer.SGD(0.1, parameters=encoder.parameters())
            >>> ldopt.apply_layerwise_decay(sgd, ldopt.LayerMap.from_model(encoder), layerwise_decay=0.5) is sgd
            True
            >>> type(ldopt.reset_layerwise_decay(sgd)) is paddle.optimizer.SGD
            True
    """
    inner = _inside(optimizer)
    if "_plain" in vars(type(inner)):
        inner.__class__ = type(inner)._plain
        for name in ("_ratio_of", "_checked", "_unasked"):
            vars(inner).pop(name, None)
    return optimizer


def _inside(optimizer: Any) -> Any:
    """Return the optimizer that a layer-wise decay can be applied to: inside LookAhead, but no wrapper of `fleet`."""
    cut = hasattr(optimizer, "_inner_opt") or hasattr(optimizer, "_optim")  # may have cut the parameters up
    inner = unwrap(optimizer)
    if cut or not isinstance(inner, Optimizer):
        raise TypeError(
            "`optimizer` must be a Paddle optimizer, given before `fleet` or group sharding wraps it. "
            f"Received: optimizer={type(optimizer).__name__}"
        )
    return inner


class _Applied(LayerwiseMixin):
    """The mixin for any Paddle optimizer: raises if the first step did not ask for every rate that the decay scales."""

    _checked = False
    _unasked: Any = ()  # names of the parameters whose rate the running step has yet to ask for

    def step(self) -> Any:
        if self._checked or not paddle.in_dynamic_mode():
            return super().step()
        params = [p for p in parameters_of(self) if not p.stop_gradient and p._grad_ivar() is not None]
        scaled = {p.name for p in params if self.layerwise_ratio(p) not in (0.0, 1.0)}
        self._unasked = set(scaled)
        done, unasked = super().step(), self._unasked
        self._unasked, self._checked = (), bool(scaled) and not unasked
        if unasked and unasked != scaled:  # all of them: an overflow has skipped the step
            name = type(self).__name__
            raise RuntimeError(
                f"The step of {name} asked `_create_param_lr` for the rates of some parameters only, and has updated "
                "the others without layer-wise decay: use another optimizer. "
                f"Received: optimizer={name}, no rate asked for {len(unasked)} parameters, such as '{min(unasked)}'"
            )
        return done

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        if self._unasked:
            self._unasked.discard(param_and_grad[0].name)
        return super()._create_param_lr(param_and_grad)


def _layerwise_class(plain: Any, _known: dict[type, type] = {}) -> type:  # noqa: B006 - one class per optimizer class is the point of the dict
    # Paddle chooses its multi-tensor path by the class's name: keep it
    if plain not in _known:
        _known[plain] = type(plain.__name__, (_Applied, plain), {"_plain": plain, "__doc__": plain.__doc__})
    return _known[plain]
