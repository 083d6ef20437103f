"""The Trainer in two processes: the numbers of one on the same data, one who speaks, resumes.

Dropout would differ between layouts, so only what is resumed in the same one has it.
"""

import contextlib
import functools
import io
import os
import re
import signal
import types
from unittest import mock

import distributed_setup
import numpy as np
import paddle
import pytest
import trainer_common as common
from common.run_report import RunReport
from distributed_launch import launch

import paddle_ldopt.trainer.resume as mixin
from paddle_ldopt.trainer import LayerLRCallback, ScheduleCallback, StopOnSigterm, last_checkpoint

STEPS = 6
BFLOAT16 = {"bf16": True, "fp16_opt_level": "O2", "amp_master_grad": True}
SETTINGS = {
    "dp": {},
    "stage1": {"sharding": "stage1", "sharding_parallel_degree": 2},
    "split": {"sharding": "stage1", "sharding_parallel_degree": 2, "sharding_parallel_config": "split_param"},
    "pipeline": {
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_config": "disable_batch_p2p_comm disable_partial_send_recv",
    },
}
LAYOUTS = ["dp", "stage1"] if common.FORMERS else ["dp", "stage1", "pipeline"]
SECOND = {"dp": "lamb", "stage1": "came", "pipeline": "lamb"}  # what is trained beside AdamWDL
MODEL = {"dp": "bert", "stage1": "bert", "pipeline": "llama"}
FROZEN = {"layerwise_freeze_below": 0.5}
# the mean is kept over the blocks of all stages
RATES = {"layerwise_preserve_mean": True, "layerwise_multipliers": '{"norm": 0.5}'}
RATES["learning_rate"] = 1e-3  # at 1e-2 and a mean of 1 the training amplifies the last bits
UNIFIED = {"unified_checkpoint": True}
# Without effect on the model's output, so that its gradient is rounding noise, which CAME scales up to full steps.
NOISE = "k_proj.bias"

# Six steps of CAME make 2e-5 of the last bit of a float32 gradient, which depends on the batch and on the processor.
# PaddleNLP's LLaMA has parts in float32 only.
EXACT = {"dp": {"dtype": "float64"}, "stage1": {"dtype": "float64"}, "pipeline": {}}


def in_ranks(trainings):
    """Be the rank that the environment says; train one after the other, and return what each `train` gives."""
    os.environ["PADDLE_RANK_IN_NODE"] = os.environ["PADDLE_TRAINER_ID"]  # as `paddle.distributed.launch`
    distributed_setup.complete_cpu()
    return [attempt(**arguments) for arguments in trainings]


def attempt(**arguments):
    """Train; return what `train` gives, or {"error": what was wrong with the arguments}."""
    before = paddle.get_default_dtype()
    try:
        return train(**arguments)
    except ValueError as error:
        return {"error": str(error)}
    finally:
        paddle.set_default_dtype(before)  # other tests run in this process


def llama(pipe, tied):
    """Return a small LLaMA, whole or this process's stage of two."""
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
    paddle.set_default_dtype(dtype)

    class Ids(common.Data):
        def __getitem__(self, i):
            return {"input_ids": self.ids[i], "labels": self.ids[i]}

    said = []
    logger = types.SimpleNamespace(info=said.append, warning=said.append)

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
    settings.update(SETTINGS.get(layout, {}), **(BFLOAT16 if layout == "split" else {}))
    arguments = common.arguments(folder, **settings)
    if layout == "split":  # PaddleNLP asks for bfloat16 there, which Paddle cannot multiply on a CPU
        arguments.bf16, arguments.fp16_opt_level, arguments.amp_master_grad = False, "O1", False
    logged = mock.patch.object(mixin, "logger_of", lambda trainer: logger)
    with paddle.utils.unique_name.guard(), logged, contextlib.redirect_stdout(io.StringIO()) as out:
        built = common.tiny_model(dropout=dropout) if model == "bert" else llama(layout == "pipeline", model == "tied")
        start = {name: np.array(param.numpy()) for name, param in built.state_dict().items()}
        data = common.Data() if model == "bert" else Ids()
        trainer = Ranks(built, args=arguments, train_dataset=data, eval_dataset=data)
        watch = common.Watch()
        trainer.add_callback(watch)
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
        **{"start": start, "ratios": ratios, "said": said, "printed": out.getvalue(), "logs": watch.logs},
        **{"report": written, "files": sorted(os.listdir(folder)), "step": trainer.state.global_step},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(folder):
    """Train in this process; each training once."""
    done = {}

    def call(name, **arguments):
        if name not in done:
            done[name] = attempt(folder=str(folder / name), **arguments)
        return done[name]

    return call


@pytest.fixture(scope="module")
def launched(folder, alone):
    """Return layout -> [training -> what it gave], of two processes; in each layout they are launched once."""
    return functools.cache(lambda layout: in_two_processes(layout, folder, alone))


@pytest.fixture(params=[pytest.param(name, marks=[] if name == "stage1" else pytest.mark.slow) for name in LAYOUTS])
def ranks(request, launched):
    """Return the name of a layout and [training -> what it gave], of two processes."""
    return request.param, launched(request.param)


def in_two_processes(layout, folder, alone):
    base, at = {"layout": layout, "model": MODEL[layout]}, folder / layout
    saved = {**base, "optim": "adamwdl", "save_steps": 2, **({"dropout": 0.1} if layout != "pipeline" else {})}
    resumed = str(at / "saved" / "checkpoint-4")
    of_one = f"saved-{MODEL[layout]}"
    alone(of_one, optim="adamwdl", save_steps=2, model=MODEL[layout])
    trainings = {
        "adamwdl": {**base, "optim": "adamwdl", "callbacks": True},
        "second": {**base, "optim": SECOND[layout], **EXACT[layout]},
        "rates": {**base, "optim": "adamwdl", **EXACT[layout], **RATES},
        "saved": saved,
        "resumed": {**saved, "resume": resumed},
        "from earlier": {**saved, "folder": str(at / "resumed"), "resume": str(at / "saved" / "checkpoint-2")},
        "other decay": {**saved, "layerwise_lr_decay": 0.6, "resume": resumed},
        "of one": {**base, "optim": "adamwdl", "resume": str(folder / of_one / "checkpoint-4")},
    }
    if layout == "pipeline":
        trainings["tied"] = {**base, "model": "tied", "optim": "adamwdl", "max_grad_norm": 0.0}
    if layout != "dp" and not common.FORMERS:  # under plain data parallelism the Trainer itself fails to save it
        trainings["unified"] = {**base, "optim": "adamwdl", "save_steps": 4, **UNIFIED}
        resumed = str(at / "unified" / "checkpoint-4")
        trainings["unified again"] = {**trainings["unified"], "save_steps": 100, "resume": resumed}
        trainings["unified, factored"] = {**base, "optim": "came", "save_steps": 4, **UNIFIED}
    if layout == "stage1" and not common.FORMERS:
        for optim in ("adamwdl", "adamw"):
            trainings[f"split, frozen, {optim}"] = {**base, "layout": "split", "optim": optim, **FROZEN}
    given = [{"folder": str(at / name), **training} for name, training in trainings.items()]
    gave = launch(in_ranks, ranks=2, timeout=280, trainings=given)
    return [dict(zip(trainings, results)) for results in gave]


def check_equal(several, one, tolerance):
    """Check that weights are those of one process, to that part of how far they went."""
    names = [name for name in several["weights"] if NOISE not in name]
    went = [one["weights"][name] - one["start"][name] for name in names]
    off = [several["weights"][name] - one["weights"][name] for name in names]
    length, error = (np.sqrt(sum(float((p.astype("float64") ** 2).sum()) for p in parts)) for parts in (went, off))
    assert length > 0 and error < tolerance * length, error / length


@pytest.mark.parametrize("training", ["adamwdl", "second", "rates", "tied"])
def test_the_weights_are_those_of_one_process(ranks, alone, training):
    layout, gave = ranks
    if training not in gave[0]:
        pytest.skip("only a pipeline has several copies of a weight")
    model = "tied" if training == "tied" else MODEL[layout]
    optim = SECOND[layout] if training == "second" else "adamwdl"
    settings = {"adamwdl": {}, "tied": {"max_grad_norm": 0.0}, "rates": {**EXACT[layout], **RATES}}
    settings = settings.get(training, EXACT[layout])
    one = alone(f"{training}-{optim}-{model}", model=model, optim=optim, **settings)
    assert one["step"] == STEPS
    for rank in gave:
        check_equal(rank[training], one, 1e-6 if "dtype" in settings else 1e-5)  # Paddle adds norms up in float32
        assert rank[training]["ratios"].items() <= one["ratios"].items()
    assert {name for rank in gave for name in rank[training]["weights"]} == set(one["weights"])


@pytest.mark.skipif(common.FORMERS, reason="PaddleNLP's argument")
@pytest.mark.parametrize("optim", ["adamwdl", "adamw"])
def test_sharding_version_2_trains_with_frozen_layers(launched, alone, optim):
    one = alone(f"frozen-{optim}", optim=optim, **FROZEN)
    for rank in launched("stage1"):
        several = rank[f"split, frozen, {optim}"]
        check_equal(several, one, 1e-5)
        frozen = "bert.embeddings.word_embeddings.weight"
        np.testing.assert_array_equal(several["weights"][frozen], several["start"][frozen])


def test_one_process_speaks(ranks, alone):
    layout, gave = ranks
    main, other = (rank["adamwdl"] for rank in gave)
    one = alone(f"adamwdl-{MODEL[layout]}-callbacks", model=MODEL[layout], optim="adamwdl", callbacks=True)
    tables = [[t.partition("\n\n layers: ")[0] for t in run["said"] if "\n\n layers: " in t] for run in (main, one)]
    assert len(tables[0]) == 1 and tables[0] == tables[1], "the table of all layers"
    assert "learning rates by step" in main["printed"] and main["report"] is not None
    assert (other["said"], other["printed"], other["report"]) == ([], "", None)
    assert {"history.jsonl", "report.html", "schedule.csv", "schedule.png"} <= set(main["files"])
    for key in [key for key in one["logs"][0] if key.startswith("lr/")]:
        assert [line.get(key) for line in main["logs"]] == [line.get(key) for line in one["logs"]]


def test_a_resume_in_the_same_layout_is_exact_or_refused_in_all_processes(ranks, folder):
    layout, gave = ranks
    for rank in gave:
        assert re.search("decay.* 0.7.* 0.6", rank["other decay"]["error"])
        assert rank["resumed"]["step"] == STEPS
        assert common.same(rank["saved"]["weights"], rank["resumed"]["weights"])
    saved = folder / layout / "saved" / "checkpoint-4"
    record = (saved / "ldopt_layerwise.json").read_text()
    assert ("llama.layers" if layout == "pipeline" else "bert.encoder.layers") in record
    assert not list(saved.glob("*.partial"))


@pytest.mark.promise(
    "a run resumed from an earlier checkpoint renames the later ones `superseded-checkpoint-<step>` and deletes none"
)
def test_one_process_sets_aside_what_an_earlier_run_saved(ranks, folder):
    layout, gave = ranks
    saved = sorted(path.name for path in (folder / layout / "resumed").glob("*checkpoint-*"))
    assert saved == ["checkpoint-4", "checkpoint-6", "superseded-checkpoint-6"]
    for rank in gave:
        assert common.same(rank["saved"]["weights"], rank["from earlier"]["weights"])
    assert [sum("superseded" in line for line in rank["from earlier"]["said"]) for rank in gave] == [1, 0]


def test_a_resume_in_another_layout_goes_on_or_is_refused(ranks, folder, alone):
    layout, gave = ranks
    saved = str(folder / layout / "saved" / "checkpoint-4")
    back = alone(f"back-{layout}", model=MODEL[layout], optim="adamwdl", resume=saved)
    for result in (gave[0]["of one"], gave[1]["of one"], back):
        if layout == "dp":
            assert result["step"] == STEPS
        else:
            kind = {"stage1": "sharding", "pipeline": "pipeline"}[layout]
            assert re.search(rf"was saved in .*layout.*{kind}\W+[12]", result["error"])
    if "unified" in gave[0]:
        folder = str(folder / layout / "unified" / "checkpoint-4")
        result = alone(f"unified-{layout}", model=MODEL[layout], optim="adamwdl", resume=folder, **UNIFIED)
        assert re.search("was saved in .*layout", result["error"])


def test_unified_checkpoints_go_on_in_the_same_layout_or_are_not_begun(ranks, folder):
    layout, gave = ranks
    if "unified" not in gave[0]:
        pytest.skip("not in this layout or package")
    for rank in gave:
        assert common.same(rank["unified"]["weights"], rank["unified again"]["weights"])
        error = rank["unified, factored"]["error"]
        assert "set unified_checkpoint=False. Received: unified_checkpoint=True, processes=2" in error
    assert not list((folder / layout / "unified, factored").glob("checkpoint-*"))


def signalled(folder):
    """A worker: SIGTERM comes in the second step of the first process; return how it ended, after which step."""
    os.environ["PADDLE_RANK_IN_NODE"] = os.environ["PADDLE_TRAINER_ID"]
    distributed_setup.complete_cpu()

    class Signal(common.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1 and os.environ["PADDLE_TRAINER_ID"] == "0":
                signal.raise_signal(signal.SIGTERM)

    settings = {"max_steps": STEPS, "layerwise_lr_decay": 0.7, "per_device_train_batch_size": 2}
    arguments, data = common.arguments(folder, **settings, **SETTINGS["stage1"]), common.Data()
    trainer = common.LdoptTrainer(common.tiny_model(), args=arguments, train_dataset=data, eval_dataset=data)
    trainer.add_callback(stop := StopOnSigterm())
    trainer.add_callback(Signal())
    with pytest.raises(SystemExit) as ended, stop:
        trainer.train()
    return ended.value.code, trainer.state.global_step


def test_a_signal_in_one_process_ends_all_after_the_same_step(tmp_path):
    ended = launch(signalled, ranks=2, timeout=120, folder=str(tmp_path))
    assert ended == [(128 + signal.SIGTERM, 2)] * 2
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
