"""By what a loss is multiplied, so that the gradients of float16 neither vanish nor overflow.

They are pure arithmetic on Python numbers and run on every device: `paddle.amp.GradScaler` switches itself off on a CPU
(grad_scaler.py of 3.3.1, line 134) and, if it is dynamic, wherever the autocast type is not float16 (line 226).
"""

import numpy as np
import paddle
from paddle.amp import AmpScaler

from .._checks import checked_number, checked_state, checked_steps, shown

__all__ = ["AdaptiveLossScaler", "DynamicLossScaler", "FixedLossScaler", "LossScaler", "as_scaler"]

_GREATEST = float(np.finfo(np.float32).max)  # a scale above it would be inf to the loss, and stay so
_COUNT_TO_CHANGE = 3  # increases, or decreases, of the scale that change an adaptive window


class LossScaler:
    """Base of the loss scalers; a subclass has its numbers in `_state` and says in `update` how they change."""

    _least = 0.0  # a scale is at least that, and above 0

    def __init__(self, loss_scale_value):
        self._state = {"loss_scale": self._checked_scale(loss_scale_value, "loss_scale_value")}

    def _checked_scale(self, value, argument):
        return checked_number(value, argument, self._least, ends="[]" if self._least else "(]")

    def _checked_state(self, key, value):
        if key == "loss_scale":
            return self._checked_scale(value, key)
        return checked_steps(value, key, least=-1 if key == "window_index" else 0)

    def get_loss_scale(self):
        """Return the scale of the next step, a float."""
        return self._state["loss_scale"]

    def scale(self, loss):
        """Return the loss times the scale."""
        return loss * self.get_loss_scale()

    def update(self, overflow):
        """Adapt the scale after a step.

        Args:
            overflow (bool): whether a gradient of the step was not finite; the same in all processes.
        """
        raise NotImplementedError

    def state_dict(self):
        """Return what a resume needs, plain numbers."""
        return dict(self._state)

    def set_state_dict(self, state_dict):
        """Load what `state_dict` gave.

        Args:
            state_dict (dict): state of a scaler of the same class.

        Raises:
            ValueError: it is of another class, or out of range. Nothing is changed by then.
        """
        checked_state(state_dict)
        keys = list(state_dict)
        if set(keys) != set(self._state):
            raise ValueError(
                f"The state must be that of a {type(self).__name__}, with {sorted(self._state)}. "
                f"Received: keys={shown(keys)}"
            )
        loaded = {key: self._checked_state(key, value) for key, value in state_dict.items()}
        self._check_loaded(loaded)
        self._state = loaded

    load_state_dict = set_state_dict

    def _check_loaded(self, state):
        """Raise ValueError if a state is not possible for this scaler."""


class FixedLossScaler(LossScaler):
    """Multiply the loss by the same number in every step: for bfloat16 and float32, where 1 will do.

    Args:
        loss_scale_value (float): the scale, finite and above 0.

    Raises:
        TypeError: no number.
        ValueError: not finite, or not above 0.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt import FixedLossScaler
            >>> scaler = FixedLossScaler(1024)
            >>> scaler.update(overflow=True)
            >>> scaler.get_loss_scale()
            1024.0

    Source: ``mindspore.nn.FixedLossScaleUpdateCell``.
    """

    def update(self, overflow):
        """Leave the scale as it is: the step that overflowed is left out all the same."""


class DynamicLossScaler(LossScaler):
    r"""Lower the scale when a gradient overflows, raise it when none has for a while: for float16.

    .. math::
        s \leftarrow \begin{cases} \max(s / f, 1) & \text{overflow} \\ s f & w \text{ steps without one, since the
        last change or overflow} \end{cases}

    Args:
        loss_scale_value (float, optional): the first scale s, at least 1.
        scale_factor (float, optional): f, above 1.
        scale_window (int, optional): w, steps, at least 1.

    Raises:
        TypeError: an argument that is no number, or a window that is no int.
        ValueError: an argument out of range.

    Differs from MindSpore: the arguments have defaults, those of Paddle's GradScaler; the scale is kept in double
    precision, and within the range of float32; a first scale below 1 is an error (an overflow would raise it to 1).

    Examples:
        .. code-block:: python

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

    _least = 1.0

    def __init__(self, loss_scale_value=2.0**15, scale_factor=2.0, scale_window=1000):
        super().__init__(loss_scale_value)
        self._factor = checked_number(scale_factor, "scale_factor", 1.0, ends="(]")
        self._first_window = checked_steps(scale_window, "scale_window", least=1)
        self._state["good_steps"] = 0

    @property
    def scale_window(self):
        """Steps without an overflow after which the scale is raised, an int."""
        return self._first_window

    def update(self, overflow):
        """Adapt the scale after a step.

        Args:
            overflow (bool): whether a gradient of the step was not finite; the same in all processes.
        """
        state = self._state
        if overflow:
            state["loss_scale"] = max(state["loss_scale"] / self._factor, 1.0)
            state["good_steps"] = 0
            self._lowered()
            return
        state["good_steps"] += 1
        if state["good_steps"] >= self.scale_window:
            state["good_steps"] = 0
            if state["loss_scale"] * self._factor <= _GREATEST:
                state["loss_scale"] *= self._factor
                self._raised()

    def _lowered(self):
        """Take note that the scale was lowered."""

    def _raised(self):
        """Take note that the scale was raised."""


class AdaptiveLossScaler(DynamicLossScaler):
    """Scale like `DynamicLossScaler`, with a window that adapts too: quick to find a scale, then slow to disturb it.

    The window is one of a list from `min_scale_window` to `max_scale_window`. It goes up one place after each three
    increases of the scale. After three decreases with no increase between them it goes to 1, unless it is the first of
    the list; from 1 it goes up to the first.

    Args:
        loss_scale_value (float, optional): the first scale, at least 1.
        scale_factor (float, optional): by what the scale is multiplied or divided, above 1.
        scale_window (int, optional): the first window, steps; one of `windows`. By default `min_scale_window`.
        max_scale_window (int, optional): the last window of the list.
        min_scale_window (int, optional): the first window of the list, at least 1.

    Raises:
        TypeError: an argument that is no number, or a window that is no int.
        ValueError: an argument out of range; `max_scale_window` not above `min_scale_window`; a `scale_window` that is
            not in the list.

    Differs from MindFormers: a `scale_window` that is not in the list is an error, not a warning and another window;
    no window of the list is below `min_scale_window`, as documented there (its code has 0 in the list of 20 to 150);
    defaults and precision as in `DynamicLossScaler`.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt import AdaptiveLossScaler
            >>> scaler = AdaptiveLossScaler(2**32, 2, 20, max_scale_window=1000, min_scale_window=20)
            >>> scaler.windows
            [20, 30, 40, 50, 100, 200, 500, 1000]
            >>> for _ in range(60):
            ...     scaler.update(overflow=False)
            >>> scaler.get_loss_scale() / 2**32, scaler.scale_window
            (8.0, 30)
            >>> for _ in range(3):
            ...     scaler.update(overflow=True)
            >>> scaler.scale_window
            1

    Source: ``mindformers.wrapper.AdaptiveLossScaleUpdateCell``.
    """

    def __init__(
        self,
        loss_scale_value=2.0**15,
        scale_factor=2.0,
        scale_window=None,
        max_scale_window=1000,
        min_scale_window=20,
    ):
        low = checked_steps(min_scale_window, "min_scale_window", least=1)
        high = checked_steps(max_scale_window, "max_scale_window", least=1)
        if high <= low:
            raise ValueError(
                "`max_scale_window` must be above `min_scale_window`. "
                f"Received: max_scale_window={high}, min_scale_window={low}"
            )
        self.windows = _windows(low, high)
        first = low if scale_window is None else checked_steps(scale_window, "scale_window", least=1)
        if first not in self.windows:
            raise ValueError(f"`scale_window` must be one of {self.windows}. Received: scale_window={first}")
        super().__init__(loss_scale_value, scale_factor, first)
        self._state.update(window_index=self.windows.index(first), increases=0, decreases=0)

    @property
    def scale_window(self):
        """Steps without an overflow after which the scale is raised, an int."""
        index = self._state["window_index"]
        return 1 if index < 0 else self.windows[index]

    def _raised(self):
        state = self._state
        state["increases"] += 1
        state["decreases"] = 0
        if state["increases"] >= _COUNT_TO_CHANGE and state["window_index"] < len(self.windows) - 1:
            state.update(window_index=state["window_index"] + 1, increases=0)

    def _lowered(self):
        state = self._state
        state["decreases"] += 1
        if state["decreases"] >= _COUNT_TO_CHANGE and state["window_index"] > 0:
            state.update(window_index=-1, increases=0, decreases=0)

    def _check_loaded(self, state):
        if state["window_index"] >= len(self.windows):
            raise ValueError(
                "The state must be that of a scaler with the same windows. "
                f"Received: window_index={state['window_index']} for {len(self.windows)} windows"
            )


def _windows(low, high):
    """Return MindFormers' list: halves down to 100 in hundreds, then 50, then down by half of `low`."""
    windows = [float(high)]
    while windows[-1] > low:
        window = windows[-1]
        if window > 100:
            window = window // 200 * 100
        elif window == 100:
            window = 50
        else:
            window -= low / 2
        windows.append(max(window, low))
    return [int(window) for window in reversed(windows)]


class _PaddleLossScaler(LossScaler):
    """Paddle's own GradScaler, told of an overflow instead of looking for one."""

    def __init__(self, scaler):
        if not scaler.is_enable():
            raise ValueError(
                "`scale_sense` must be an enabled GradScaler; Paddle switches it off on a CPU: use DynamicLossScaler "
                "there. Received: scale_sense=GradScaler(enable=False)"
            )
        self._scaler = scaler

    def get_loss_scale(self):
        return float(self._scaler.state_dict()["scale"].item())

    def update(self, overflow):
        self._scaler._cache_found_inf = bool(overflow)  # what `_unscale` would have found in this process alone
        self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def set_state_dict(self, state_dict):
        self._scaler.load_state_dict(state_dict)


def as_scaler(scale_sense):
    """Return the scaler that a `scale_sense` stands for.

    Args:
        scale_sense (float|Tensor|LossScaler|paddle.amp.GradScaler): a number, or a Tensor of shape [] or [1], is a
            fixed scale.

    Raises:
        TypeError: any other type.
        ValueError: a Tensor of another shape; a scale that is not finite or not above 0; a GradScaler that is off.
    """
    if isinstance(scale_sense, LossScaler):
        return scale_sense
    if isinstance(scale_sense, AmpScaler):
        return _PaddleLossScaler(scale_sense)
    if isinstance(scale_sense, paddle.Tensor) and list(scale_sense.shape) not in ([], [1]):
        raise ValueError(f"The shape of `scale_sense` must be [] or [1]. Received: shape={list(scale_sense.shape)}")
    kind = "a number, a Tensor, or a loss scaler"
    return FixedLossScaler(checked_number(scale_sense, "scale_sense", ends="(]", kind=kind))
