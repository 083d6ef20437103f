"""Towers, multipliers, granularity and a decay that moves, in the Trainer: arguments, steps, logs, report, resume."""

import csv
import json

import paddle
import pytest
import trainer_common as common

import paddle_ldopt as ldopt
from paddle_ldopt import LayerDecay
from paddle_ldopt.trainer import LayerLRCallback, RunReport, ScheduleCallback

said = pytest.fixture(common.messages)
STEPS = 6
MOVING = {"layerwise_lr_decay": 0.5, "layerwise_end": 1.0, "optim": "adamwdl", "max_steps": STEPS}


def decay_at(step):
    return 0.5 + 0.5 * step / STEPS


def test_the_arguments_read_json(tmp_path):
    line = f"--output_dir {tmp_path} --device cpu --optim adamwdl --layerwise_lr_decay 0.8 --layerwise_granularity 1"
    words = [*line.split(), "--layerwise_preserve_mean", "--layerwise_end", "0.9", "--layerwise_steps", "10"]
    words += ["--layerwise_towers", '{"bert": {"layerwise_decay": 0.65, "scale": 0.1}}']
    words += ["--layerwise_multipliers", '{"classifier": 10}', *(["--amp_master_grad", "False"] * common.FORMERS)]
    (args,) = common.PdArgumentParser(common.Arguments).parse_args_into_dataclasses(words)
    tower = LayerDecay(0.65, scale=0.1)
    whole = {"end": 0.9, "steps": 10, "preserve_mean": True, "multipliers": {"classifier": 10.0}}
    assert args.layerwise_decay == LayerDecay(0.8, towers={"bert": tower}, **whole)
    trainer = common.trainer(tmp_path, args=args)
    assert trainer.layer_map.towers == {"bert.encoder.layers": 1}
    assert ldopt.LdoptConfig.from_arguments(args).layerwise_towers == {"bert": {"layerwise_decay": 0.65, "scale": 0.1}}


def test_a_pattern_that_matches_nothing_is_refused_before_the_first_step(tmp_path):
    trainer = common.trainer(tmp_path, optim="adamwdl", layerwise_multipliers='{"crf": 10}')
    with pytest.raises(ValueError, match="matches no parameter; .*Received: pattern='crf'"):
        trainer.train()


@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_every_step_is_logged_drawn_and_reported_at_its_rates(tmp_path, said, kind):
    folder = tmp_path / "run"
    model = common.tiny_model()
    trainer = common.trainer(tmp_path, model=model, lr_scheduler_type=kind, logging_steps=1, **MOVING)
    lines = []

    class Listener(common.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            lines.extend([dict(logs)] if "loss" in logs else [])

    report = RunReport(str(folder), "moving", trainer.layer_map)
    for callback in (ScheduleCallback(str(tmp_path / "plan.png")), LayerLRCallback(), report, Listener()):
        trainer.add_callback(callback)
    trainer.train()
    rates = [1e-2 * (1 - step / STEPS if kind == "linear" else 1) for step in range(STEPS)]
    blocks = [[decay_at(step) ** (2 - i) * rate for step, rate in enumerate(rates)] for i in range(2)]
    for i in range(2):
        key = next(key for key in lines[0] if key.startswith("lr/") and key.endswith(f"block_{i}"))
        assert [line[key] for line in lines] == pytest.approx(blocks[i], rel=1e-5)
    with open(tmp_path / "plan.csv", encoding="utf-8") as file:
        drawn = list(csv.DictReader(file))
    assert [float(row["block 0"]) for row in drawn] == pytest.approx(blocks[0], rel=1e-9)
    history = [rate for line in report.history() for rate in line["learning_rates"]]
    assert [rate[1] for rate in history] == pytest.approx(blocks[0], rel=1e-5)
    report.write({}, {})
    assert "ratio at end" in (folder / "report.html").read_text(encoding="utf-8")
    assert any("ratio at end" in line for line in said)


def test_a_resume_is_exact_and_another_end_is_refused(tmp_path):
    model = common.tiny_model(dropout=0.1)
    common.trainer(tmp_path / "a", model=model, save_steps=3, **MOVING).train()
    checkpoint = str(tmp_path / "a" / "checkpoint-3")
    record = json.loads((tmp_path / "a" / "checkpoint-3" / "ldopt_layerwise.json").read_text())
    assert record["rule"]["layerwise_end"] == 1.0 and record["rule"]["layerwise_towers"] is None
    again = common.tiny_model(dropout=0.1)
    common.trainer(tmp_path / "b", model=again, **MOVING).train(resume_from_checkpoint=checkpoint)
    assert common.same(common.weights(model), common.weights(again))
    with pytest.raises(ValueError, match="layerwise_end was 1.0 in the checkpoint and is 0.9 now"):
        common.trainer(tmp_path / "c", **{**MOVING, "layerwise_end": 0.9}).train(resume_from_checkpoint=checkpoint)
    towers = json.dumps({"bert": {"scale": 0.1}})
    with pytest.raises(ValueError, match="layerwise_towers was None in the checkpoint and is {'bert'"):
        common.trainer(tmp_path / "d", layerwise_towers=towers, **MOVING).train(resume_from_checkpoint=checkpoint)


def test_a_multiplier_of_0_freezes(tmp_path, said):
    model = common.tiny_model()
    before = common.weights(model)
    settings = {"optim": "adamwdl", "max_steps": 2, "layerwise_multipliers": '{"embeddings": 0}'}
    common.trainer(tmp_path, model=model, **settings).train()
    frozen = [name for name, param in model.named_parameters() if param.stop_gradient]
    assert frozen and all("embeddings" in name for name in frozen)
    after = common.weights(model)
    assert all((before[name] == after[name]).all() for name in frozen)
    assert any("parameters" in line and "embeddings" in line for line in said)


def test_an_optimizer_of_paddles_in_the_trainer(tmp_path):
    model = common.tiny_model()
    trainer = common.trainer(tmp_path, model=model, **{**MOVING, "optim": "adamw"})
    trainer.train()
    block = dict(model.named_parameters())["bert.encoder.layers.0.linear1.weight"]
    assert trainer.optimizer.layerwise_ratio(block) == 1.0, "the schedule has taken all steps"
    assert isinstance(trainer.optimizer, paddle.optimizer.AdamW)
