"""The arguments mixin and the Trainer mixin: what each argument does, and what each error says."""

import json
import pickle
from dataclasses import dataclass

import numpy as np
import paddle
import pytest
import trainer_common as common
from paddle import nn
from trainer_common import layer_of

import paddle_ldopt as ldopt
from paddle_ldopt.optimizers import LayerRates
from paddle_ldopt.optimizers.options import REGISTRY
from paddle_ldopt.rates import applied_rates
from paddle_ldopt.trainer import LdoptArgumentsMixin, LdoptName, LdoptTrainerMixin, ResumeMixin

# the C library rounds in another way than Paddle's AdamW, and some tests compare bits
UNFUSED = {"adamwdl": {"optim": "adamwdl", "optim_kwargs": '{"fused": false}'}, "adamw": {"optim": "adamw"}}


def train(output_dir, cls=common.LdoptTrainer, **kwargs):
    """Train the tiny model for a few steps and return the Trainer; its `batches` are what it trained on."""
    batches = []

    class Listener(common.TrainerCallback):
        def on_load_data_end(self, args, state, control, inputs, **kwargs):
            batches.append({k: v.clone() for k, v in inputs.items()})

    trainer = common.trainer(output_dir, cls=cls, callbacks=[Listener()], **{"warmup_steps": 2, **kwargs})
    trainer.train()
    trainer.batches = batches
    return trainer


def train_by_hand(batches, ratios):
    """Do the same with a loop, Paddle's AdamW and a rate written into each parameter; ratios by layer, 0 is frozen."""
    model = common.tiny_model()
    model.train()
    decayed = []
    for name, param in model.named_parameters():
        ratio = ratios[layer_of(name)]
        param.optimize_attr["learning_rate"] = ratio
        param.stop_gradient = ratio == 0
        if not any(part in name for part in ("bias", "norm")):
            decayed.append(param.name)

    scheduler = paddle.optimizer.lr.LambdaDecay(1e-2, [0.0, 0.5, 1.0, 0.5, 0.0].__getitem__)
    how = {"apply_decay_param_fun": decayed.__contains__, "grad_clip": nn.ClipGradByGlobalNorm(1.0)}
    opt = paddle.optimizer.AdamW(scheduler, parameters=model.parameters(), weight_decay=0.1, **how)
    for batch in batches[:4]:
        out = model(**batch)
        (out["loss"] if isinstance(out, dict) else out[0]).backward()
        opt.step()
        scheduler.step()
        opt.clear_grad()
    return common.weights(model)


said = pytest.fixture(common.messages)


def test_arguments_from_a_command_line_and_from_json(tmp_path):
    line = f"--output_dir {tmp_path} --device cpu --optim adamwdl --layerwise_lr_decay 0.8 --layerwise_min_ratio 0.1"
    line += " --layerwise_convention electra --layerwise_head_ratio 2 --allow_layerwise_change"
    line += " --amp_master_grad False" if common.FORMERS else ""
    (args,) = common.PdArgumentParser(common.Arguments).parse_args_into_dataclasses(line.split())
    assert args.optim == args.optim.value == "adamwdl"
    assert args.layerwise_decay == ldopt.LayerDecay(0.8, "electra", min_ratio=0.1, head_ratio=2.0)
    assert args.allow_layerwise_change is True
    settings = {"output_dir": str(tmp_path), "device": "cpu", "layerwise_lr_decay": 0.8, "layerwise_freeze_below": 0.3}
    settings.update({"amp_master_grad": False} if common.FORMERS else {})
    (tmp_path / "args.json").write_text(json.dumps(settings))
    (args,) = common.PdArgumentParser(common.Arguments).parse_json_file(str(tmp_path / "args.json"))
    assert args.layerwise_decay == ldopt.LayerDecay(0.8, freeze_below=0.3)


def test_arguments_survive_pickling_and_saving(tmp_path):
    args = common.arguments(tmp_path, optim="adamwdl", layerwise_lr_decay=0.8, lr_scheduler_type="inverse_sqrt")
    paddle.save(args, str(tmp_path / "training_args.bin"))
    for copy in (pickle.loads(pickle.dumps(args)), paddle.load(str(tmp_path / "training_args.bin"))):
        assert isinstance(copy.optim, LdoptName) and copy.optim.value == "adamwdl"
        assert copy.lr_scheduler_type.value == args.to_dict()["lr_scheduler_type"] == "inverse_sqrt"
        assert copy.layerwise_decay == args.layerwise_decay
    assert args.to_dict()["optim"] == "adamwdl"


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"layerwise_lr_decay": 1.5}, r"`layerwise_lr_decay` must be in \(0, 1\].*Received: layerwise_lr_decay=1.5$"),
        ({"optim": "none such"}, "adamw.*paddle_ldopt's own: 'adamwdl'.*Received: optim='none such'$"),
        ({"layerwise_towers": "{"}, """`layerwise_towers` must be a JSON object such as '{"vision_model": 0.65}'"""),
        ({"layerwise_multipliers": '{"(": 2}'}, "The keys of `layerwise_multipliers` must be regular expressions"),
        ({"optim": "adamw", "optim_kwargs": '{"beta1": 0.8}'}, "`optim_kwargs` need `optim` to be one of 'adamwdl'"),
        ({"optim": "lamb", "optim_kwargs": '{"beta1": 0.8}'}, "`adam_beta1` sets"),
        ({"optim": "lamb", "optim_kwargs": '{"multi_precision": true}'}, "`fp16_opt_level` sets"),
        ({"optim": "lamb", "optim_kwargs": "[" * 10**5}, "`optim_kwargs` must be a JSON object"),
        ({"optim": "adafactor", "optim_kwargs": '{"relative_step": true}'}, "goes to the Trainer as `optimizers=`"),
        ({"layerwise_lr_decay": 0.5, "layerwise_rules": "[]"}, """must be a JSON object such as '{"lora_": "head"}'"""),
        ({"lr_scheduler_type": "no_such"}, "'inverse_sqrt'.*Received: lr_scheduler_type='no_such'$"),
        ({"lr_scheduler_type": "constant", "lr_scheduler_kwargs": '{"a": 1}'}, "lr_scheduler_kwargs.*a"),
        ({"lr_scheduler_type": "inverse_sqrt", "lr_scheduler_kwargs": "{a}"}, "must be a JSON object.*kwargs='{a}'$"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "Received: evaluation_strategy='no'"),
    ],
)
def test_bad_arguments(tmp_path, kwargs, message):
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
        common.arguments(tmp_path, **kwargs)


@pytest.mark.parametrize("asked", [{"optim": "came"}, {"layerwise_lr_decay": 0.5}])
def test_a_trainer_without_the_mixin_refuses_our_arguments(tmp_path, asked):
    with pytest.raises(RuntimeError, match="lacks LdoptTrainerMixin and would ignore"):
        common.Trainer(model=common.tiny_model(), args=common.arguments(tmp_path, **asked))
    common.Trainer(model=common.tiny_model(), args=common.arguments(tmp_path))


@pytest.mark.parametrize(
    "base, mixin",
    [
        (common.Trainer, LdoptTrainerMixin),
        (common.Trainer, ResumeMixin),
        (common.TrainingArguments, LdoptArgumentsMixin),
    ],
)
def test_mixins_come_first(base, mixin):
    says = rf"{mixin.__name__} must come first: class Late\({mixin.__name__}, {base.__name__}\)"
    with pytest.raises(TypeError, match=says):
        type("Late", (base, mixin), {})


DECAYS = {
    "decay": ({"layerwise_lr_decay": 0.5}, [0.125, 0.25, 0.5, 1.0]),
    "electra": ({"layerwise_lr_decay": 0.5, "layerwise_convention": "electra"}, [0.0625, 0.125, 0.25, 1.0]),
    "xlnet": ({"layerwise_lr_decay": 0.5, "layerwise_convention": "xlnet"}, [1.0, 0.5, 1.0, 1.0]),
    "min_ratio": ({"layerwise_lr_decay": 0.5, "layerwise_min_ratio": 0.375}, [0.375, 0.375, 0.5, 1.0]),
    "head_ratio": ({"layerwise_head_ratio": 3.0}, [1.0, 1.0, 1.0, 3.0]),
    "freeze_below": ({"layerwise_lr_decay": 0.5, "layerwise_freeze_below": 0.25}, [0, 0.25, 0.5, 1.0]),
    "off": ({}, [1.0, 1.0, 1.0, 1.0]),
}


@pytest.mark.representatives
@pytest.mark.parametrize("optim", ["adamwdl", "adamw"])
@pytest.mark.parametrize("decay", DECAYS)
def test_weights_are_those_of_a_loop_by_hand(tmp_path, decay, optim):
    kwargs, ratios = DECAYS[decay]
    trainer = train(tmp_path, **UNFUSED[optim], **kwargs)
    assert type(trainer.optimizer).__name__ == {"adamwdl": "AdamWDL", "adamw": "AdamW"}[optim]
    assert common.same(common.weights(trainer.model), train_by_hand(trainer.batches, ratios))


def test_without_a_decay_it_is_the_plain_trainer(tmp_path):
    plain = train(tmp_path / "a", cls=common.Trainer, args=common.arguments(tmp_path, common.TrainingArguments))
    theirs = {"args": common.arguments(tmp_path, common.TrainingArguments)}
    for kwargs in (UNFUSED["adamwdl"], {}, theirs):
        ours = train(tmp_path / "b", **{"warmup_steps": 0, **kwargs})
        assert common.same(common.weights(plain.model), common.weights(ours.model))


@pytest.mark.parametrize("optim", ["adamw", "adamw_mini", "adamw_custom"])
def test_every_optimizer_of_the_trainer_gets_the_rates(tmp_path, optim):
    try:
        common.arguments(tmp_path, optim=optim)
    except ValueError:
        pytest.skip("not in this version")
    trained = {}
    for decay in (1.0, 0.5):
        try:
            settings = {"optim": optim, "layerwise_lr_decay": decay, "weight_decay": 0.0}
            trainer = train(tmp_path, max_steps=1, warmup_steps=0, **settings)
        except (AttributeError, AssertionError) as error:
            pytest.skip(f"not for this model or device: {error}")
        assert isinstance(trainer.optimizer, LayerRates) == (decay != 1.0)
        start, end = common.weights(common.tiny_model()), common.weights(trainer.model)
        trained[decay] = {name: end[name] - start[name] for name in start}
    for name, step in trained[1.0].items():
        ratio = DECAYS["decay"][1][layer_of(name)]
        atol = 1e-6 + 1e-3 * np.abs(step).max()
        np.testing.assert_allclose(trained[0.5][name], ratio * step, atol=atol, err_msg=name)


def test_muon_measures_the_layers_without_a_decay_too(tmp_path):
    trainer = train(tmp_path, optim="muon", max_steps=1)
    routed = [name for name, param in trainer.model.named_parameters() if trainer.optimizer.uses_muon(param)]
    assert routed and all(trainer.layer_map.layer_of(name).is_block for name in routed)
    assert trainer.layer_map.source == "measured"


def test_biases_and_norms_have_no_weight_decay():
    class RMSNorm(nn.Layer):
        def __init__(self):
            super().__init__()
            self.scale = self.create_parameter([2, 4])

    class Odd(nn.LayerNorm):
        pass

    model = nn.Layer()
    model.ln_1, model.input_layernorm, model.f = nn.LayerNorm(4), RMSNorm(), Odd([2, 4])
    model.bn, model.gn = nn.BatchNorm2D(4), nn.GroupNorm(2, 4)
    model.linear, model.conv = nn.Linear(4, 4), nn.Conv1D(4, 4, 3)
    model.relative_attention_bias, model.normalizer = nn.Embedding(8, 2), nn.Linear(4, 4)
    model.gamma = model.create_parameter([4])
    names = {param.name: name for name, param in model.named_parameters()}
    decayed = {names[n] for n in ldopt.decayed_parameter_names(model)}
    assert decayed == {"linear.weight", "conv.weight", "normalizer.weight"}


@pytest.mark.parametrize("optim", ["adamwdl", "adamw"])
def test_groups_set_the_weight_decay_and_multiply_the_rate(tmp_path, optim):
    def groups(model):  # as PaddleNLP's ernie-m classifier makes them: one for each parameter
        return [
            {"params": param, "dygraph_key_name": name, "weight_decay": wd, "learning_rate": rate}
            for name, param in model.named_parameters()
            for wd, rate in [(0.0 if "bias" in name else 0.2, 0.5 if "encoder" in name else 1.0)]
        ]

    trained = []
    for kwargs in ({"layerwise_lr_decay": 0.5}, {}):
        trainer = common.trainer(tmp_path, **UNFUSED[optim], **kwargs)
        trainer.set_optimizer_grouped_parameters(groups(trainer.model))
        trainer.train()
        trained.append(trainer)
    names = {param.name: name for name, param in trained[0].model.named_parameters()}
    for tensor, ratio in applied_rates(trained[0].optimizer, 1.0).items():
        name = names[tensor]
        assert ratio == DECAYS["decay"][1][layer_of(name)] * (0.5 if "encoder" in name else 1.0)
    assert trained[1].optimizer._param_groups[0]["weight_decay"] == 0.2
    plain = common.trainer(tmp_path, cls=common.Trainer, args=common.arguments(tmp_path, common.TrainingArguments))
    plain.set_optimizer_grouped_parameters(groups(plain.model))
    plain.train()
    assert common.same(common.weights(plain.model), common.weights(trained[1].model))


def test_a_subset_of_the_parameters_as_a_plain_list(tmp_path):
    trainer = common.trainer(tmp_path, optim="adamwdl", layerwise_lr_decay=0.5)
    trainer.set_optimizer_grouped_parameters(list(trainer.model.classifier.parameters()))
    trainer.train()
    start, end = common.weights(common.tiny_model()), common.weights(trainer.model)
    moved = {name for name in start if start[name].tobytes() != end[name].tobytes()}
    assert moved == {"classifier.weight", "classifier.bias"}
    assert not trainer.optimizer._apply_decay_param_fun(trainer.model.classifier.bias.name)


def test_rules_of_the_user(tmp_path):
    by_name = staticmethod(lambda name: "head" if "embeddings" in name else None)
    for rules in ({"embeddings": "head"}, by_name):
        cls = type("WithRules", (common.LdoptTrainer,), {"layer_rules": rules})
        trainer = common.trainer(tmp_path, cls=cls, layerwise_lr_decay=0.5)
        trainer.create_optimizer_and_scheduler(num_training_steps=4)
        embedding = next(param for name, param in trainer.model.named_parameters() if "embeddings" in name)
        assert trainer.optimizer.layerwise_ratio(embedding) == 1.0
        assert trainer.layer_map.layer_of(embedding.name).label == "head"


def test_the_layer_table_is_logged_once_per_training(tmp_path, said):
    trainer = train(tmp_path, optim="adamwdl", layerwise_lr_decay=0.5)
    trainer.train()
    first, second = (line for line in said if "Learning rates by layer" in line)
    for label in ("embeddings", "block 0", "block 1", "head", "0.125"):
        assert label in first and label in second


def test_no_table_without_layer_wise_rates_or_on_other_processes(tmp_path, said, monkeypatch):
    train(tmp_path, optim="adamwdl")
    monkeypatch.setattr(common.LdoptTrainer, "is_world_process_zero", lambda self: False)
    monkeypatch.setattr("paddle_ldopt.trainer.resume.decided_by_main", lambda trainer, ask: ask())
    train(tmp_path, optim="adamwdl", layerwise_lr_decay=0.5)
    assert not said


@pytest.mark.parametrize(
    "settings, layers",
    [
        ({"layerwise_lr_decay": 0.5, "layerwise_freeze_below": 0.5}, ["embeddings", "block 0"]),
        ({"optim": "adamwdl", "layerwise_multipliers": '{"embeddings": 0}'}, ["embeddings"]),
    ],
)
def test_freezing_is_done_before_the_optimizer_and_told(tmp_path, said, settings, layers):
    trainer, before = train(tmp_path, **settings), common.weights(common.tiny_model())
    frozen = {name: param for name, param in trainer.model.named_parameters() if param.stop_gradient}
    assert set(frozen) == {name for name, _ in trainer.model.named_parameters() if layer_of(name) < len(layers)}
    assert all((before[name] == param.numpy()).all() for name, param in frozen.items())
    state = trainer.optimizer.state_dict()
    assert not any(key.startswith(param.name) for key in state for param in frozen.values())
    line = next(line for line in said if "The layer-wise decay freezes" in line)
    assert line.endswith(f"{len(frozen)} of {len(list(trainer.model.parameters()))} parameters: {', '.join(layers)}")


def test_freezing_that_finds_no_layer_is_told(tmp_path, said):
    trainer = train(tmp_path, layerwise_lr_decay=0.9, layerwise_freeze_below=0.1)
    assert not any(param.stop_gradient for param in trainer.model.parameters())
    assert any("freezes 0 of" in line and "none below its `freeze_below`" in line for line in said)


def test_a_model_without_blocks(tmp_path):
    class Flat(nn.Layer):
        def __init__(self):
            super().__init__()
            self.embedding, self.classifier = nn.Embedding(64, 8), nn.Linear(8, 2)

        def forward(self, input_ids, labels=None):
            logits = self.classifier(self.embedding(input_ids).mean(axis=1))
            return nn.functional.cross_entropy(logits, labels.reshape([-1])), logits

    assert train(tmp_path, model=Flat(), optim="adamwdl").state.global_step == 4  # layers do not matter
    with pytest.raises(ValueError, match="Found no stack of blocks"):
        train(tmp_path, model=Flat(), optim="adamw", layerwise_lr_decay=0.8)


def test_a_passed_scheduler_alone(tmp_path):
    scheduler = paddle.optimizer.lr.LambdaDecay(1e-2, lambda step: 1.0)
    trainer = train(tmp_path, optimizers=(None, scheduler), optim="adamwdl", layerwise_lr_decay=0.5)
    assert trainer.optimizer._learning_rate is trainer.lr_scheduler is scheduler
    assert trainer.optimizer.get_lr() == 1e-2


def test_a_second_training_keeps_the_optimizer_of_the_first(tmp_path):
    options = '{"exclude_from_weight_decay": ["bias"], "amsgrad": true}'  # an optimizer does not tell the first
    trainer = train(tmp_path, optim="adamweightdecay", optim_kwargs=options, layerwise_lr_decay=0.5)
    first = trainer.optimizer
    trainer.train()
    assert trainer.optimizer is first


def test_an_optimizer_that_only_a_subclass_knows(tmp_path, monkeypatch):
    # the Trainer's enum has the name, and the Trainer no optimizer for it
    others = {name: info for name, info in REGISTRY.items() if name != "adafactor"}
    for module in ("arguments", "mixin"):
        monkeypatch.setattr(f"paddle_ldopt.trainer.{module}.REGISTRY", others)

    class Theirs(common.Trainer):
        def create_optimizer(self, lr_scheduler=None):
            if self.optimizer is None:
                self.optimizer = paddle.optimizer.Momentum(lr_scheduler, parameters=self.model.parameters())
            return self.optimizer

    both = type("Both", (LdoptTrainerMixin, Theirs), {})
    trainer = train(tmp_path, cls=both, optim="adafactor", layerwise_lr_decay=0.5)
    assert isinstance(trainer.optimizer, paddle.optimizer.Momentum) and isinstance(trainer.optimizer, LayerRates)
    assert trainer.optimizer.layerwise_ratio(next(iter(trainer.model.bert.encoder.layers[0].parameters()))) == 0.25
    with pytest.raises(ValueError, match="unsupported optimizer"):
        train(tmp_path, optim="adafactor", layerwise_lr_decay=0.5)


def test_another_muons_arguments_are_refused(tmp_path):
    @dataclass
    class Formers(common.Arguments):
        muon_momentum: float = 0.95

    common.arguments(tmp_path, Formers, optim="muon")
    with pytest.raises(ValueError, match="`optim_kwargs`. Received: muon_momentum=0.5"):
        common.arguments(tmp_path, Formers, optim="muon", muon_momentum=0.5)
