"""LdoptConfig: refusals, round trips through files and a Trainer's arguments, the optimizers that it builds."""

import dataclasses
import json
import re

import numpy as np
import paddle
import pytest
import trainer_common as common
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paddle_ldopt as ldopt
from paddle_ldopt import LdoptConfig
from paddle_ldopt.config import OPTIMIZERS, SETTINGS, read_yaml
from paddle_ldopt.layers.decay import OPTIONS as OPTIONS_OF_A_DECAY
from paddle_ldopt.trainer import LdoptArgumentsMixin

OPTIONS = {  # one option that is no default of each optimizer, and one that a Trainer has a field for
    "adamw": {"beta2": 0.98},
    "adamwdl": {"beta1": 0.8, "epsilon": 1e-6, "lazy_mode": True},
    "came": {"beta1": 0.8, "clip_threshold": 2.0, "eps": [1e-30, 1e-3, 1e-8]},
    "lamb": {"beta2": 0.98, "eps": 1e-5},
    "adafactor": {"clip_threshold": 2.0, "scale_parameter": True},
    "adamweightdecay": {"epsilon": 1e-6, "exclude_from_weight_decay": ["bias", "norm"]},
}
SCHEDULES = {
    "linear": {},
    "constant": {},
    "cosine": {"num_cycles": 1.5},
    "polynomial": {"power": 2.0},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 3},
    "reduce_lr_on_plateau": {"mode": "max", "patience": 2},
}


@st.composite
def configs(draw):
    """Draw valid settings, not all of them the defaults."""
    optim, kind = draw(st.sampled_from(sorted(OPTIONS))), draw(st.sampled_from(sorted(SCHEDULES)))
    options = {k: v for k, v in OPTIONS[optim].items() if draw(st.booleans())}
    if optim == "adamw":  # the Trainer's own takes what the Trainer gives it
        options.pop("lazy_mode", None)
    decay = draw(st.sampled_from([1.0, 0.8]))
    layerwise = {"layerwise_head_ratio": draw(st.sampled_from([1.0, 2.0])), "layerwise_lr_decay": decay}
    if decay < 1:
        layerwise["layerwise_convention"] = draw(st.sampled_from(["paddlenlp", "electra", "xlnet"]))
        layerwise[draw(st.sampled_from(["layerwise_min_ratio", "layerwise_freeze_below"]))] = 0.3
        layerwise["layerwise_rules"] = draw(st.sampled_from([None, {"pooler": "head"}]))
        layerwise["layerwise_preserve_mean"] = draw(st.booleans())
    elif draw(st.booleans()):
        layerwise.update(layerwise_lr_decay=1.0, layerwise_convention="linear", layerwise_bound=0.25)
    if draw(st.booleans()):
        layerwise["layerwise_towers"] = {"vision.model": 0.65, "text": {"layerwise_decay": 0.7, "scale": 0.1}}
        layerwise["layerwise_scale"] = 0.5
    layerwise["layerwise_multipliers"] = draw(st.sampled_from([None, {r"\.gate\.": 0.01, "crf": 10.0}]))
    warmups = [{}] if kind in ("constant", "reduce_lr_on_plateau") else [{}, {"warmup_steps": 1}, {"warmup_ratio": 0.2}]
    return LdoptConfig(
        optim=optim,
        optim_kwargs=options,
        learning_rate=draw(st.sampled_from([1e-5, 0.003])),
        weight_decay=draw(st.sampled_from([0.0, 0.01])),
        max_grad_norm=draw(st.sampled_from([0.0, 1.0])),
        lr_scheduler_type=kind,
        lr_scheduler_kwargs=SCHEDULES[kind] if kind != "cosine" or draw(st.booleans()) else {},
        **layerwise,
        **draw(st.sampled_from(warmups)),
    )


def arguments(config, folder, **more):
    if config.lr_scheduler_type in ldopt.schedules.ON_METRIC:
        more = {"evaluation_strategy": "steps", **more}
    info, values = OPTIMIZERS[config.optim], config.to_dict()
    options = values["optim_kwargs"]  # without those that have arguments of their own
    values.update({field: options.pop(name, info.settings[name].default) for name, field in info.trainer.items()})
    values["fp16_opt_level"] = "O2" if options.pop("multi_precision", False) else "O1"
    return common.arguments(folder, **{**values, **more})


@pytest.mark.parametrize("cls", [LdoptConfig, LdoptArgumentsMixin])
def test_every_option_of_a_decay_is_a_setting(cls):
    fields = {f.name: (f.default, f.metadata["help"]) for f in dataclasses.fields(cls) if f.metadata}
    for option, name in SETTINGS.items():
        declared = OPTIONS_OF_A_DECAY[option]
        assert fields[name][0] == declared.default and fields[name][1].lower().startswith(declared.doc.lower())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs())
def test_round_trips(tmp_path, config):
    config.to_json(tmp_path / "c.json")
    assert LdoptConfig.from_json(tmp_path / "c.json") == config
    assert LdoptConfig.from_yaml(tmp_path / "c.json") == config, "JSON is YAML"
    assert LdoptConfig.from_dict(config.to_dict()) == config
    args = arguments(config, tmp_path)
    assert LdoptConfig.from_arguments(args) == config


def test_arguments_of_the_trainer_a_default_of_their_own_a_metric_and_master_weights(tmp_path):
    args = common.arguments(tmp_path, cls=common.TrainingArguments, adam_beta2=0.98, max_grad_norm=-1.0, warmup_steps=3)
    args.warmup_ratio = 0.5  # which the Trainer passes over
    config = LdoptConfig.from_arguments(args)
    assert config == LdoptConfig("adamw", {"beta2": 0.98}, 1e-2, 0.1, max_grad_norm=0.0, warmup_steps=3)
    quadratic = dataclasses.make_dataclass("Quadratic", [("power", float, 2.0)], bases=(common.TrainingArguments,))
    args = common.arguments(tmp_path, cls=quadratic, lr_scheduler_type="polynomial")
    assert LdoptConfig.from_arguments(args).lr_scheduler_kwargs == {"power": 2.0}, "a default of its own"
    args = common.arguments(tmp_path, cls=common.TrainingArguments, evaluation_strategy="steps")
    args.lr_scheduler_type, args.metric_for_best_model = "reduce_lr_on_plateau", "accuracy"
    args.greater_is_better = None
    assert LdoptConfig.from_arguments(args).lr_scheduler_kwargs == {"mode": "max"}, "as the Trainer's schedule"
    args.metric_for_best_model, args.greater_is_better = "eval_a_loss", True  # as PaddleNLP sets it
    with pytest.raises(ValueError, match="would lower the rate when the loss falls: set greater_is_better=False"):
        LdoptConfig.from_arguments(args)
    config = LdoptConfig(optim_kwargs={"multi_precision": True})
    args = arguments(config, tmp_path)
    assert args.fp16_opt_level == "O2" and LdoptConfig.from_arguments(args) == config


def trained(model, opt, schedule):
    for _ in range(4):
        for i, param in enumerate(model.parameters()):
            param.grad = paddle.sin(paddle.arange(param.size, dtype="float32") + i).reshape(param.shape)
        opt.step()
        schedule.step()
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


@pytest.mark.representatives(count=3)
@pytest.mark.parametrize("optim, kind", list(zip(sorted(OPTIONS), ["linear", "cosine"] * 3)))
def test_a_loop_and_the_trainer_build_the_same(tmp_path, optim, kind):
    options = OPTIONS[optim]
    layerwise = {"layerwise_lr_decay": 0.5, "layerwise_rules": {"pooler": 0}}
    schedule = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": SCHEDULES[kind], "warmup_ratio": 0.25}
    config = LdoptConfig(optim, options, 1e-2, 0.1, max_grad_norm=0.5, **layerwise, **schedule)
    model = common.tiny_model()
    whole = trained(model, *config.build(model, 8))
    model = common.tiny_model()
    trainer = common.trainer(tmp_path, model, args=arguments(config, tmp_path))
    trainer.create_optimizer_and_scheduler(8)
    assert trained(model, trainer.optimizer, trainer.lr_scheduler) == whole
    model = common.tiny_model()
    changes = [{"optim_kwargs": {}}, {"weight_decay": 0.0}, {"max_grad_norm": 0.0}, {"layerwise_lr_decay": 0.6}]
    other = dataclasses.replace(config, **changes[sorted(OPTIONS).index(optim) % len(changes)])
    assert trained(model, *other.build(model, 8)) != whole


def test_a_schedule_that_needs_the_number_of_steps_says_so_and_relative_steps_do_not():
    model = common.tiny_model()
    with pytest.raises(ValueError, match="num_training_steps"):
        LdoptConfig().build(model)
    with pytest.raises(TypeError, match="num_training_steps=None"):
        LdoptConfig(lr_scheduler_type="constant_with_warmup", warmup_ratio=0.5).build(model)
    LdoptConfig(lr_scheduler_type="constant").build(model)
    opt, schedule = LdoptConfig("adafactor", learning_rate=None, layerwise_lr_decay=0.5).build(model)
    assert isinstance(schedule, ldopt.AdafactorSchedule) and schedule.optimizer is opt
    opt, schedule = LdoptConfig("came", {"relative_step": True}, learning_rate=None).build(model)
    assert isinstance(opt, ldopt.Came) and schedule is None


WRONG = {
    "optim": ({"optim": "lam"}, "'lam' is not a known optimizer; the nearest is 'lamb'"),
    "option": ({"optim_kwargs": {"beta_1": 0.9}}, "`optim_kwargs`: 'beta_1' is not a known option; the nearest is"),
    "option's value": ({"optim": "came", "optim_kwargs": {"beta1": 2.0}}, "`beta1` must be in"),
    "said elsewhere": ({"optim_kwargs": {"learning_rate": 0.9}}, "'learning_rate' is not a known option"),
    "options": ({"optim_kwargs": [1]}, "`optim_kwargs` must be a JSON object"),
    "weight decay of Came": ({"optim": "came", "weight_decay": 2.0}, "`weight_decay` must be in [0, 1]"),
    "clipping": ({"optim": "adamweightdecay", "optim_kwargs": {"global_clipnorm": 1.0}}, "both clip gradients"),
    "rate": ({"learning_rate": 0}, "`learning_rate` must be in (0, inf). Received: learning_rate=0"),
    "no rate": ({"learning_rate": None}, "`learning_rate` must be None with `relative_step`"),
    "two rates": ({"optim": "adafactor", "optim_kwargs": {"relative_step": True}}, "without it. Received: optim="),
    "decay": ({"layerwise_lr_decay": 2}, "`layerwise_lr_decay` must be in (0, 1]"),
    "key twice": ({"layerwise_towers": '{"a": 0.5, "a": 0.6}'}, "duplicate key 'a'"),
    "rules": ({"layerwise_rules": ["a"]}, "`layerwise_rules` must be a JSON object such as"),
    "schedule": ({"lr_scheduler_type": "cosin"}, "nearest is 'cosine'"),
    "schedule's option": ({"lr_scheduler_kwargs": {"power": 2}}, "`lr_scheduler_kwargs`: 'power' is not a known"),
    "warm-up": ({"warmup_steps": 0.5}, "`warmup_steps` must be an integer"),
    "part": ({"warmup_ratio": 1.5}, "`warmup_ratio` must be in [0, 1]"),
    "setting": ({"layerwise_decay": 0.8}, "is not a known setting; the nearest is 'layerwise_lr_decay'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_refused(case):
    values, message = WRONG[case]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        LdoptConfig.from_dict(values)
    if case != "setting":
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            LdoptConfig(**values)


def test_rules_of_the_arguments_override_those_of_the_trainer(tmp_path):
    trainer = common.trainer(tmp_path, layerwise_lr_decay=0.5, layerwise_rules='{"pooler": "head"}')
    trainer.layer_rules = {"pooler": 0}
    pooler = next(name for name, _ in trainer.model.named_parameters() if "pooler" in name)
    assert trainer.layer_map.layer_of(pooler).label == "head"


@pytest.mark.parametrize(
    "text, value",
    [
        ("learning_rate: 5e-5", {"learning_rate": 5e-5}),
        ("weight_decay: 1E-2", {"weight_decay": 0.01}),
        ("optim: '1e5'", {"optim": "1e5"}),
        ("warmup_steps: 0100", {"warmup_steps": 100}),  # 64 in YAML 1.1
        ("warmup_steps: -08", {"warmup_steps": -8}),
        ("warmup_steps: 1e2", {"warmup_steps": 100}),
        ("learning_rate: 1:30", {"learning_rate": "1:30"}),  # 90 in YAML 1.1
        ("x: [1., .5, 1.5e3, .inf, 1_0]", {"x": [1.0, 0.5, 1500.0, float("inf"), "1_0"]}),
        ("power: 0.1\n<<: {lr_end: 1e-4, power: 0.2}", {"lr_end": 1e-4, "power": 0.1}),
        ("a: &a {x: 1, y: 1}\nb: {<<: [{x: 2}, *a]}", {"a": {"x": 1, "y": 1}, "b": {"x": 2, "y": 1}}),
        ("# nothing", None),
    ],
)
def test_numbers_and_merges_of_yaml(text, value, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    read = read_yaml(tmp_path / "c.yaml")
    assert read == value and repr(read) == repr(value)


@pytest.mark.parametrize(
    "name, text",
    [
        ("c.yaml", "warmup_steps: 1\nwarmup_steps: 2\n"),
        ("c.yaml", "optim_kwargs: {beta1: 0.9, beta1: 0.8}"),
        ("c.yaml", "a: [1\n"),
        ("c.yaml", "[1]: 1\n"),
        ("c.json", '{"warmup_steps": 1, "warmup_steps": 2}'),
        ("c.json", '{"warmup_steps": 1'),
        ("c.yaml", "optim_kwargs: " + "[" * 500 + "]" * 500),
        ("c.json", '{"optim_kwargs": ' + "[" * 10**5 + "]" * 10**5 + "}"),
    ],
    ids=lambda value: value[:30],
)
def test_files_that_cannot_be_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"(?s)cannot be read: .*{name}|is nested too deeply.*{name}"):
        (LdoptConfig.from_yaml if name == "c.yaml" else LdoptConfig.from_json)(tmp_path / name)


NUMBERS = [0, np.float32(0), np.int64(0), np.array(0.0), np.zeros([1]), paddle.zeros([1])]


@pytest.mark.parametrize("zero", NUMBERS, ids=lambda value: type(value).__name__)
def test_every_kind_of_number_is_one(tmp_path, zero):
    config = LdoptConfig("came", {"beta1": zero, "beta2": zero, "clip_threshold": zero + 1}, weight_decay=zero)
    config.to_json(tmp_path / "c.json")
    assert LdoptConfig.from_json(tmp_path / "c.json") == config
    rule = ldopt.LayerDecay(zero + 1, min_ratio=zero, head_ratio=zero + 2, freeze_below=zero)
    assert rule == ldopt.LayerDecay(1.0, head_ratio=2.0) and type(rule.head_ratio) is float


def test_each_checkpoint_has_the_config_but_not_of_an_optimizer_that_is_given(tmp_path):
    config = LdoptConfig("lamb", {"eps": 1e-5}, layerwise_lr_decay=0.5, lr_scheduler_type="cosine_with_restarts")
    common.trainer(tmp_path, args=arguments(config, tmp_path, max_steps=4, save_steps=2)).train()  # without a report
    for step in (2, 4):
        assert LdoptConfig.from_json(tmp_path / f"checkpoint-{step}/ldopt_config.json") == config
    given, model = tmp_path / "given/checkpoint-2", common.tiny_model()
    given.mkdir(parents=True)
    (given / "ldopt_config.json").write_text(json.dumps(LdoptConfig().to_dict()))  # which goes: the optimizer is given
    common.trainer(given.parent, model, LdoptConfig("lamb").build(model, 4), max_steps=2, save_steps=2).train()
    assert given.is_dir() and not (given / "ldopt_config.json").exists()
