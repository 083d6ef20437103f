"""Arguments that refuse a Trainer without our mixin, which would ignore them without a word."""

from typing import Any


class MixinRequired:
    """Base of arguments whose `check_trainer` is called while a Trainer is constructed.

    The constructor calls no method of its arguments. This property is what it reads in every version of PaddleNLP and
    PaddleFormers.
    """

    ldopt_served = False  # a Trainer with our mixin has taken them

    @property
    def should_load_sharding_stage1_model(self) -> Any:
        """The Trainer's own."""
        self.check_trainer()
        return super().should_load_sharding_stage1_model  # type: ignore[misc]

    def check_trainer(self) -> None:
        """Raise if the Trainer that is being made would ignore the arguments."""

    def print_config(self, *args: Any, **kwargs: Any) -> None:
        """Print as the Trainer's own, which reads every property as if it were a Trainer."""
        before, self.ldopt_served = self.ldopt_served, True
        try:
            super().print_config(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.ldopt_served = before

    def __getstate__(self) -> dict[str, Any]:  # a copy is for another Trainer
        return {key: value for key, value in vars(self).items() if key != "ldopt_served"}
