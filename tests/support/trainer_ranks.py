"""What the ranks of test_trainer_distributed.py do, and one process does alone, to compare with.

Dropout would differ between layouts, so only what is resumed in the same one has it.
"""

import contextlib
import io
import os
import types
from unittest import mock

STEPS = 6
BFLOAT16 = {"bf16": True, "fp16_opt_level": "O2", "amp_master_grad": True}
LAYOUTS = {
    "dp": {},
    "stage1": {"sharding": "stage1", "sharding_parallel_degree": 2},
    "split": {"sharding": "stage1", "sharding_parallel_degree": 2, "sharding_parallel_config": "split_param"},
    "pipeline": {
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_config": "disable_batch_p2p_comm disable_partial_send_recv",
    },
}


def start():
    """Be the rank that the environment says."""
    import distributed_setup

    os.environ["PADDLE_RANK_IN_NODE"] = os.environ["PADDLE_TRAINER_ID"]  # as `paddle.distributed.launch`
    distributed_setup.complete_cpu()


def in_ranks(trainings):
    """Train one after the other, each given as the arguments of `train`; return what each gives."""
    start()
    return [attempt(**arguments) for arguments in trainings]


def attempt(**arguments):
    """Train; return what `train` gives, or {"error": what was wrong with the arguments}."""
    import paddle

    before = paddle.get_default_dtype()
    try:
        return train(**arguments)
    except ValueError as error:
        return {"error": str(error)}
    finally:
        paddle.set_default_dtype(before)  # other tests run in this process


def llama(pipe, tied):
    """Return a small LLaMA, whole or this process's stage of two."""
    import paddle
    from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM, LlamaForCausalLMPipe

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    sizes.update(num_hidden_layers=3, num_attention_heads=2)
    config = LlamaConfig(**sizes, use_flash_attention=False, tie_word_embeddings=tied)
    paddle.seed(0)
    with paddle.utils.unique_name.guard():
        whole = LlamaForCausalLM(config)
    if not pipe:
        return whole
    with paddle.utils.unique_name.guard():
        stage = LlamaForCausalLMPipe(config)
    stage.set_state_dict(whole.state_dict())
    return stage


def train(folder, layout=None, model="bert", dropout=0.0, resume=None, callbacks=False, dtype="float32", **settings):
    """Train in a layout, or without one in this process; return the weights and what was seen of it."""
    import numpy as np
    import paddle
    import trainer_common as common
    from common.run_report import RunReport

    import paddle_ldopt.trainer.resume as mixin
    from paddle_ldopt.trainer import LayerLRCallback, ScheduleCallback

    paddle.set_default_dtype(dtype)

    class Ids(common.Data):
        def __getitem__(self, i):
            return {"input_ids": self.ids[i], "labels": self.ids[i]}

    said = []
    logger = types.SimpleNamespace(info=said.append, warning=said.append)

    class Listener(common.TrainerCallback):
        logs = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.logs.append(dict(logs))

    class Ranks(common.LdoptTrainer):
        """Takes the data in the same order in every layout."""

        def _get_train_sampler(self):
            own = {"num_replicas": self.args.dataset_world_size, "rank": self.args.dataset_rank}
            size = self.args.per_device_train_batch_size
            return paddle.io.DistributedBatchSampler(self.train_dataset, size, **own)

    size = {"per_device_train_batch_size": 2 if layout in ("dp", "stage1", "split") else 4}
    if model != "bert":
        size = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    settings = {"max_steps": STEPS, "layerwise_lr_decay": 0.7, "logging_steps": 2, **size, **settings}
    settings.update(LAYOUTS.get(layout, {}), **(BFLOAT16 if layout == "split" else {}))
    arguments = common.arguments(folder, **settings)
    if layout == "split":  # PaddleNLP asks for bfloat16 there, which Paddle cannot multiply on a CPU
        arguments.bf16, arguments.fp16_opt_level, arguments.amp_master_grad = False, "O1", False
    logged = mock.patch.object(mixin, "logger_of", lambda trainer: logger)
    with paddle.utils.unique_name.guard(), logged, contextlib.redirect_stdout(io.StringIO()) as out:
        built = common.tiny_model(dropout=dropout) if model == "bert" else llama(layout == "pipeline", model == "tied")
        start = {name: np.array(param.numpy()) for name, param in built.state_dict().items()}
        data = common.Data() if model == "bert" else Ids()
        trainer = Ranks(built, args=arguments, train_dataset=data, eval_dataset=data)
        listener = Listener()
        trainer.add_callback(listener)
        if callbacks:
            trainer.add_callback(ScheduleCallback(os.path.join(folder, "schedule.png")))
            trainer.add_callback(LayerLRCallback())
            report = RunReport(folder, "ranks", trainer.layer_map)
            trainer.add_callback(report)
        trainer.train(resume_from_checkpoint=resume)
        written = report.write({}, {}) if callbacks else None
    ratios = {
        name: trainer.optimizer.layerwise_ratio(param) if hasattr(trainer.optimizer, "layerwise_ratio") else None
        for name, param in built.state_dict().items()
    }
    return {
        "weights": {name: np.array(param.numpy()) for name, param in built.state_dict().items()},
        **{"start": start, "ratios": ratios, "said": said, "printed": out.getvalue(), "logs": listener.logs},
        **{"report": written, "files": sorted(os.listdir(folder)), "step": trainer.state.global_step},
    }
