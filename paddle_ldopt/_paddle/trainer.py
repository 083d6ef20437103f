"""Methods of PaddleNLP's and PaddleFormers' Trainer that our mixins override; the reader of a DataLoader."""

from .private_names import attribute, declare, lazy

__all__ = ["end_reading", "reader_class"]

_ERRORS = "Raising the errors of a data set"
_READER = "paddle.io.dataloader.dataloader_iter._DataLoaderIterSingleProcess"
reader_class = lazy(_READER, _ERRORS)
end_reading = attribute(_READER, "_exit_thread_unexpectedly", _ERRORS)  # () -> the waiting `next` gets a SystemError
declare(_READER, _ERRORS, "_thread_loop")
declare(
    "paddlenlp.trainer.Trainer",
    "Resuming a Trainer",
    "_inner_training_loop",
    "_load_rng_state",
    "_maybe_log_save_evaluate",
    "_rotate_checkpoints",
    "_save_checkpoint",
    "_sorted_checkpoints",
)
declare("paddlenlp.trainer.TrainingArguments", "LdoptArgumentsMixin", "should_load_sharding_stage1_model")
