"""create_optimizer: rates and trajectories, what is decayed, resumes, and every error."""

import inspect
import warnings

import numpy as np
import paddle
import pytest
from layer_models import Parts
from optimizer_cases import near, static_graph
from paddle import nn
from reference import bert_like, make_params, take_steps
from reference_optimizers import adam_weight_decay
from schedule_cases import rates

from paddle_ldopt import AdamWeightDecay, LayerMap, create_optimizer, decayed_parameter_names

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def one_param():
    return [paddle.create_parameter([2], "float32")]


@pytest.mark.parametrize("options", [{}, {"weight_decay_rate": 0.1}, {"adam_clipnorm": 0.3}], ids=str)
def test_trajectory_under_warm_up_is_the_references(options):
    arrays, grads = bert_like(steps=12)
    params, name_dict = make_params(arrays, "float64")
    how = {"power": 2.0, "parameters": params.values(), "name_dict": name_dict, **options}
    optimizer, schedule = create_optimizer(0.01, 10, 4, 0.1, 0.8, 0.9, 1e-3, **how)
    got = take_steps(optimizer, params, grads, schedule.step)
    rate = [0.01 * k / 4 if k < 4 else 0.01 * (0.1 + 0.9 * (1 - (min(k, 10) - 4) / 6) ** 2) for k in range(12)]
    given = {"clipnorm": options.get("adam_clipnorm"), "weight_decay_rate": options.get("weight_decay_rate", 0.0)}
    decayed = {n for n in arrays if "norm" not in n and "bias" not in n}
    given.update(beta_1=0.8, beta_2=0.9, epsilon=1e-3, decayed=decayed.__contains__)
    near(got, adam_weight_decay(arrays, grads, lr=lambda t: rate[t - 1], **given), rtol=1e-11, atol=1e-13)


def test_a_resume_through_the_optimizers_state():
    params = one_param()
    optimizer, schedule = create_optimizer(1e-2, 30, 5, parameters=params)
    rates(schedule, 12)
    params[0].grad = paddle.ones([2])
    optimizer.step()
    state = optimizer.state_dict()
    again, other = create_optimizer(1e-2, 30, 5, parameters=params)
    again.set_state_dict(state)
    assert again.get_lr() == other() == schedule() and other.last_epoch == 12
    assert rates(other, 30) == rates(schedule, 30)


def block():
    norms = {name: nn.LayerNorm(4) for name in ("input_layernorm", "ln_1", "post")}  # no name tells the last
    return Parts(q_proj=nn.Linear(4, 4), **norms, query=nn.Linear(4, 4, bias_attr=False))


def net():
    blocks = nn.LayerList([block() for _ in range(3)])
    return Parts(embeddings=nn.Embedding(5, 4), layers=blocks, norm=nn.LayerNorm(4), classifier=nn.Linear(4, 2))


def names_of(model):
    return {param.name: name for name, param in model.named_parameters()}


def decaying(**arguments):
    return create_optimizer(1e-3, 10, 2, weight_decay_rate=0.1, **arguments)[0]


def decayed(optimizer, model):
    return {name for name, param in model.named_parameters() if optimizer.has_weight_decay(param)}


def weights(model):
    return {n for n, p in model.named_parameters() if p.name in decayed_parameter_names(model)}


def test_norms_and_biases_are_not_decayed_and_nothing_is_warned_of():
    model = net()
    given = {"model": {"model": model}}
    given["tensor names"] = {"parameters": model.parameters()}
    given["a generator"] = {"parameters": (p for p in model.parameters())}
    for how in given.values():
        optimizer = decaying(**how)
        assert isinstance(optimizer, AdamWeightDecay)
        assert decayed(optimizer, model) == weights(model) and len(weights(model)) == 8
    # by structured names alone, a norm that is called "post" cannot be told
    optimizer = decaying(parameters=model.parameters(), name_dict=names_of(model))
    assert decayed(optimizer, model) == weights(model) | {f"layers.{i}.post.weight" for i in range(3)}


def test_include_overrides_exclude():
    model = net()
    wanted = weights(model) | {"norm.weight", "norm.bias"}
    for how in ({"model": model}, {"model": model, "layers": LayerMap.from_model(model)}):
        optimizer = decaying(include_in_weight_decay=[r"^norm\."], **how)
        assert decayed(optimizer, model) == wanted
    named = {"parameters": model.parameters(), "name_dict": names_of(model)}
    optimizer = decaying(include_in_weight_decay=["ln_1"], **named)
    found = {n for n in decayed(optimizer, model) if "ln_1" in n}
    assert found == {f"layers.{i}.ln_1.{kind}" for i in range(3) for kind in ("weight", "bias")}


def test_an_include_that_does_nothing_warns_and_nothing_to_exclude_does_not():
    with pytest.warns(UserWarning, match="include_in_weight_decay=.'nothing'"):
        decaying(include_in_weight_decay=["nothing"], model=net())
    plain = paddle.nn.Linear(2, 2, bias_attr=False)
    optimizer = decaying(parameters=plain.parameters())
    assert optimizer.has_weight_decay(plain.weight)
    with pytest.warns(UserWarning, match="`include_in_weight_decay` has no effect.*weight_decay_rate=0.0") as caught:
        optimizer, _ = create_optimizer(1e-3, 10, 2, include_in_weight_decay=["norm"], model=net())
    assert caught[0].filename == __file__, "and the call works, as in transformers"
    assert not optimizer.has_nonzero_weight_decay(optimizer._parameter_list[0])


def test_layerwise_decay_of_a_model_and_parameters_that_are_a_part_of_it_or_groups():
    model = net()
    optimizer = decaying(layerwise_decay=0.5, model=model)
    ratios = {n: optimizer.layerwise_ratio(p) for n, p in model.named_parameters()}
    assert ratios == LayerMap.from_model(model).ratios(0.5)
    assert ratios["layers.0.q_proj.weight"] == 0.125 and ratios["classifier.weight"] == 1.0
    head = model.classifier.parameters()
    optimizer = decaying(parameters=head, model=model)
    assert [p.name for p in optimizer._parameter_list] == [p.name for p in head]
    groups = [{"params": iter(head), "learning_rate": 0.5}, {"params": model.norm.parameters()}]
    optimizer = decaying(parameters=groups)
    assert optimizer.has_weight_decay(head[0]) and not optimizer.has_weight_decay(head[1])


def test_in_static_graph_mode():
    warnings.filterwarnings("ignore", "(Tensor|Value) do not have 'place'")  # Paddle, of its own doing
    with static_graph():
        x = paddle.static.data("x", [2, 4])
        model = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.LayerNorm(3))
        loss = model(x).sum()
        optimizer, schedule = create_optimizer(0.1, 10, 0, weight_decay_rate=0.5, include_in_weight_decay=["nothing"])
        with pytest.warns(UserWarning, match="include_in_weight_decay=.'nothing'"):
            optimizer.minimize(loss)
        assert decayed(optimizer, model) == {"0.weight"}
        exe = paddle.static.Executor()
        exe.run(paddle.static.default_startup_program())
        exe.run(feed={"x": np.ones([2, 4], "float32")}, fetch_list=[loss])
        schedule.step()


def test_the_signature_is_transformers_and_arguments_reach_the_optimizer():
    names = "init_lr num_train_steps num_warmup_steps min_lr_ratio adam_beta1 adam_beta2 adam_epsilon adam_clipnorm "
    names += "adam_global_clipnorm weight_decay_rate power include_in_weight_decay"
    assert list(inspect.signature(create_optimizer).parameters)[:12] == names.split()
    # the others: test_trajectory_under_warm_up_is_the_references
    config = decaying(adam_global_clipnorm=0.7, multi_precision=True, model=net()).get_config()
    assert config["global_clipnorm"] == 0.7 and config["multi_precision"] is True
    config = decaying(model=net()).get_config()
    assert (config["amsgrad"], config["global_clipnorm"], config["multi_precision"]) == (False, None, False)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"init_lr": -1.0}, "`init_lr`.*Received: .*lr"),
        ({"num_train_steps": 0}, "`num_train_steps`.*Received: .*steps"),
        ({"min_lr_ratio": 1.5}, "`min_lr_ratio`.*Received: .*ratio"),
        ({"adam_beta1": 1.0}, "`adam_beta1`.*Received: .*beta1"),
        ({"weight_decay_rate": -0.1}, "`weight_decay_rate`.*Received: .*rate"),
        ({"power": 0.0}, "`power`.*Received: .*power"),
        ({"include_in_weight_decay": "norm"}, "`include_in_weight_decay`.*Received: .*decay"),
        ({"layerwise_decay": 1.5}, "`layerwise_decay`.*Received: .*decay"),
        ({"model": None}, "`parameters` or `model`"),
        ({"adam_clipnorm": 1.0, "adam_global_clipnorm": 2.0}, "adam_clipnorm=1.0, adam_global_clipnorm=2.0"),
        ({"model": None, "parameters": one_param(), "layerwise_decay": 0.5}, "`layerwise_decay` has no effect"),
    ],
)
def test_bad_arguments_of_the_factory(arguments, message):
    given = {"init_lr": 1e-3, "num_train_steps": 10, "num_warmup_steps": 2, "weight_decay_rate": 0.1, "model": net()}
    with pytest.raises(ValueError, match=message):
        create_optimizer(**{**given, **arguments})


def test_a_training_that_ends_within_the_warmup_of_the_factory_is_warned_of():
    with pytest.warns(UserWarning, match="Received: num_warmup_steps=8, num_train_steps=2"):
        _, schedule = create_optimizer(1.0, 2, 8, model=paddle.nn.Linear(2, 2))
    assert [schedule(step) for step in (1, 7, 8)] == [0.125, 0.875, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warm-up as long as the training
        create_optimizer(1.0, 2, 2, model=paddle.nn.Linear(2, 2))
