"""Loss scalers, which keep float16 gradients from vanishing and overflowing.

`paddle.amp.GradScaler` disables itself on a CPU and, if dynamic, unless the autocast type is float16.
"""

from typing import Any, Optional

import numpy as np
import paddle
from paddle.amp import AmpScaler

from .._checks import checked_int, checked_number, checked_state, refusal

_GREATEST = float(np.finfo(np.float32).max)  # a greater scale would make the loss inf
_COUNT_TO_CHANGE = 3  # increases or decreases of the scale that change an adaptive window


class LossScaler:
    """Base of the loss scalers; subclasses keep numbers in `_state` and change them in `update`."""

    windows: list[int] = []
    _range: dict[str, Any] = {"ends": "(]"}  # of the scale, above 0

    def __init__(self, loss_scale_value: Any) -> None:
        scale = checked_number(loss_scale_value, "loss_scale_value", **self._range)
        self._state: dict[str, Any] = {"loss_scale": scale}

    def get_loss_scale(self) -> float:
        """Return the scale of the next step."""
        return self._state["loss_scale"]

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Return the loss times the scale."""
        return loss * self.get_loss_scale()

    def update(self, overflow: bool) -> None:
        """Adapt the scale after a step; `overflow`: any process had a gradient that was not finite."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resume."""
        return dict(self._state)

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; that of another class raises ValueError and changes nothing."""
        if set(checked_state(state_dict)) != set(self._state):
            wrong = f"`state_dict` of a {type(self).__name__} must have the keys {[*self._state]}."
            raise refusal(ValueError, wrong, keys=[*state_dict])
        scale = checked_number(state_dict["loss_scale"], "loss_scale", **self._range)
        least = {"window_index": -1}
        counts = {k: checked_int(v, k, least.get(k, 0)) for k, v in state_dict.items() if k != "loss_scale"}
        if counts.get("window_index", -1) >= len(self.windows):
            raise refusal(ValueError, "The state must be of the same windows.", window_index=counts["window_index"])
        self._state = {"loss_scale": scale, **counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.set_state_dict(state_dict)  # a subclass may have its own


class FixedLossScaler(LossScaler):
    """A constant loss scale: for bfloat16 and float32, where 1 is enough.

    Args:
        loss_scale_value (float): the scale, finite and above 0.

    Examples:
        >>> from paddle_ldopt import FixedLossScaler
        >>> scaler = FixedLossScaler(1024)
        >>> scaler.update(overflow=True)
        >>> scaler.get_loss_scale()
        1024.0

    Source: ``mindspore.nn.FixedLossScaleUpdateCell``.
    """


class DynamicLossScaler(LossScaler):
    r"""A loss scale that decreases after an overflow and increases after a window without one: for float16.

    .. math::
        s \leftarrow \begin{cases} \max(s / f, 1) & \text{overflow} \\ s f & w \text{ steps without one, since the
        last change or overflow} \end{cases}

    Args:
        loss_scale_value (float, optional): the first scale s, at least 1.
        scale_factor (float, optional): f, above 1.
        scale_window (int, optional): w, steps, at least 1.

    Examples:
        >>> from paddle_ldopt import DynamicLossScaler
        >>> scaler = DynamicLossScaler(loss_scale_value=2**12, scale_factor=2, scale_window=2)
        >>> for overflow in (False, False, True, True):
        ...     scaler.update(overflow)
        ...     print(scaler.get_loss_scale())
        4096.0
        8192.0
        4096.0
        2048.0

    Source: ``mindspore.nn.DynamicLossScaleUpdateCell``.
    """

    _range = {"low": 1.0}

    def __init__(self, loss_scale_value: float = 2.0**15, scale_factor: float = 2.0, scale_window: int = 1000) -> None:
        super().__init__(loss_scale_value)
        self._factor = checked_number(scale_factor, "scale_factor", 1.0, ends="(]")
        self.windows = [checked_int(scale_window, "scale_window", least=1)]
        self._state["good_steps"] = 0

    @property
    def scale_window(self) -> int:
        """Steps without an overflow before the scale increases."""
        index = self._state.get("window_index", 0)
        return 1 if index < 0 else self.windows[index]

    def update(self, overflow: bool) -> None:
        state = self._state
        state["good_steps"] = 0 if overflow else state["good_steps"] + 1
        if overflow:
            state["loss_scale"] = max(state["loss_scale"] / self._factor, 1.0)
        elif state["good_steps"] >= self.scale_window:
            state["good_steps"] = 0
            if state["loss_scale"] * self._factor <= _GREATEST:
                state["loss_scale"] *= self._factor


class AdaptiveLossScaler(DynamicLossScaler):
    """`DynamicLossScaler` with an adaptive window: fast to find a scale, then slow to change it.

    The window is in a list from `min_scale_window` to `max_scale_window`. After three increases of the scale, it moves
    to the next entry (from 1 to the first); after three decreases without an increase, to 1, unless it is the first.

    Args:
        loss_scale_value, scale_factor (float, optional): as in `DynamicLossScaler`.
        scale_window (int, optional): the initial window, one of `windows`; by default `min_scale_window`.
        max_scale_window (int, optional): the largest window, above the smallest.
        min_scale_window (int, optional): the smallest window, at least 1.

    Examples:
        >>> from paddle_ldopt import AdaptiveLossScaler
        >>> scaler = AdaptiveLossScaler(2**32, 2, 20, max_scale_window=1000, min_scale_window=20)
        >>> scaler.windows
        [20, 30, 40, 50, 100, 200, 500, 1000]
        >>> for _ in range(60):
        ...     scaler.update(overflow=False)
        >>> scaler.get_loss_scale() / 2**32, scaler.scale_window
        (8.0, 30)

    Source: ``mindformers.wrapper.AdaptiveLossScaleUpdateCell``.
    """

    def __init__(
        self,
        loss_scale_value: float = 2.0**15,
        scale_factor: float = 2.0,
        scale_window: Optional[int] = None,
        max_scale_window: int = 1000,
        min_scale_window: int = 20,
    ) -> None:
        low = checked_int(min_scale_window, "min_scale_window", least=1)
        high = checked_int(max_scale_window, "max_scale_window", least=low + 1)
        super().__init__(loss_scale_value, scale_factor, low if scale_window is None else scale_window)
        # as MindFormers: halves in hundreds down to 100, then 50, then steps of half of `low`
        windows = [float(high)]
        while (window := windows[-1]) > low:
            below = window // 200 * 100 if window > 100 else 50 if window == 100 else window - low / 2
            windows.append(max(below, low))
        (first,), self.windows = self.windows, [int(window) for window in reversed(windows)]
        if first not in self.windows:
            raise refusal(ValueError, f"`scale_window` must be one of {self.windows}.", scale_window=first)
        self._state.update(window_index=self.windows.index(first), increases=0, decreases=0)

    def update(self, overflow: bool) -> None:
        before, state = self.get_loss_scale(), self._state
        super().update(overflow)
        if overflow:
            state["decreases"] += 1
            if state["decreases"] >= _COUNT_TO_CHANGE and state["window_index"] > 0:
                state.update(window_index=-1, increases=0, decreases=0)
        elif state["loss_scale"] > before:
            state.update(increases=state["increases"] + 1, decreases=0)
            if state["increases"] >= _COUNT_TO_CHANGE and state["window_index"] < len(self.windows) - 1:
                state.update(window_index=state["window_index"] + 1, increases=0)


class _PaddleLossScaler(LossScaler):
    """Paddle's GradScaler, to which the training step reports overflows."""

    def __init__(self, scaler: Any) -> None:
        if not scaler.is_enable():
            wrong = "`scale_sense` must be enabled. On a CPU, Paddle's GradScaler is disabled: use DynamicLossScaler."
            raise refusal(ValueError, wrong, scale_sense=type(scaler).__name__, enable=False)
        self._scaler = scaler

    def get_loss_scale(self) -> float:
        return float(self._scaler.state_dict()["scale"].item())

    def update(self, overflow: bool) -> None:
        self._scaler._cache_found_inf = bool(overflow)  # its `unscale_` only checks this process
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state_dict)


def as_scaler(scale_sense: Any) -> LossScaler:
    """Convert a loss scaler, a GradScaler, a number or a Tensor of one element."""
    if isinstance(scale_sense, AmpScaler):
        return _PaddleLossScaler(scale_sense)
    if isinstance(scale_sense, LossScaler):
        return scale_sense
    expected = "a number, a Tensor, or a loss scaler"
    return FixedLossScaler(checked_number(scale_sense, "scale_sense", ends="(]", expected=expected))
