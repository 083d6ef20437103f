"""Arguments that refuse a Trainer without our mixin, which would silently ignore them."""

from typing import Any


class MixinRequired:
    """Base of arguments whose `check_trainer` is called while a Trainer is constructed.

    The constructor calls no method of its arguments, but reads this property in every version of PaddleNLP and
    PaddleFormers.
    """

    ldopt_served = False  # whether a Trainer with our mixin has received them

    @property
    def should_load_sharding_stage1_model(self) -> Any:
        """The Trainer's own property."""
        self.check_trainer()
        return super().should_load_sharding_stage1_model  # type: ignore[misc]

    def check_trainer(self) -> None:
        """Raise if the Trainer under construction would ignore the arguments."""

    def print_config(self, *args: Any, **kwargs: Any) -> None:
        """Print as the Trainer's own does, which reads every property."""
        before, self.ldopt_served = self.ldopt_served, True
        try:
            super().print_config(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.ldopt_served = before

    def __getstate__(self) -> dict[str, Any]:  # a copy is for another Trainer
        return {key: value for key, value in vars(self).items() if key != "ldopt_served"}
