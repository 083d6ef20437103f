"""The classes of PaddleNLP's Trainer, for annotations; they stand for PaddleFormers' too. No import at run time."""

from typing import TYPE_CHECKING

__all__ = ["Args", "Control", "State", "Trainer"]

if TYPE_CHECKING:
    from paddlenlp.trainer import Trainer
    from paddlenlp.trainer import TrainerControl as Control
    from paddlenlp.trainer import TrainerState as State
    from paddlenlp.trainer import TrainingArguments as Args
else:  # base classes of the mixins: the real ones follow in the user's class
    Trainer = Args = State = Control = object
