"""Calls of optimizers that are refused with what was received, before anything changes."""

import re

import numpy as np
import paddle
import pytest
from optimizer_cases import OPTIMIZERS, Net, every_optimizer, make, same
from reference import bert_like, make_params

import paddle_ldopt as ldopt
from paddle_ldopt import Adafactor, AdafactorSchedule, AdamWeightDecay, Came, Lamb, Muon
from paddle_ldopt.optimizers import RuleOptimizer

NAN, LAYERS = float("nan"), ldopt.LayerMap.from_names(bert_like()[0])


def hook(function):
    return {"layerwise_decay": 1.0, "set_param_lr_fun": function}


@every_optimizer
@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"layerwise_decay": 0.0}, ValueError, "Received: layerwise_decay=0.0"),
        ({"layerwise_decay": ldopt.LayerDecay(0.5)}, TypeError, "as `layerwise_decay` also needs `layers`"),
        ({"name_dict": None}, ValueError, "no effect without `layers`.*Received: .*name_dict=None, set_param_lr_fun="),
        ({"name_dict": ["a"]}, TypeError, "`name_dict` must be a dict .*Received: name_dict of type list"),
        ({"name_dict": {}}, ValueError, "lacks '"),
        ({"n_layers": 2}, ValueError, "Received: n_layers=2"),
        ({"n_layers": 2.5}, TypeError, "`n_layers` must be an integer. Received: n_layers=2.5"),
        ({"set_param_lr_fun": None}, ValueError, "no effect without `layers`"),
        ({"set_param_lr_fun": 0.5}, TypeError, "Received: set_param_lr_fun=0.5"),
        ({"set_param_lr_fun": lambda a, b: 1.0}, TypeError, r"must take.*\(param\). Received: set_param_lr_fun=<f"),
        (hook(lambda p: -0.5), ValueError, "not negative. Received: -0.5"),
        (hook(lambda p: NAN), ValueError, "finite and not negative. Received: nan"),
        (hook(lambda p: paddle.ones([2])), TypeError, "must return a number"),
        (hook(lambda p: True), TypeError, "must return a number"),
        ({"name_dict": None, "n_layers": 12, "layers": {"a": 1}}, TypeError, "must be a LayerMap. .* layers=dict"),
        ({"n_layers": 12, "layers": LAYERS}, ValueError, "`layers` takes the place of"),
        ({**hook(lambda p: 0.5), "layers": LAYERS, "name_dict": None}, ValueError, "`layers` takes the place of"),
        ({"apply_decay_param_fun": {"a"}}, TypeError, "must be callable. Received: apply_decay_param_fun"),
        ({"grad_clip": 1.0}, TypeError, "grad_clip"),
        ({"multi_precision": 1}, TypeError, "must be a bool. Received: multi_precision=1"),
        ({"fused": 1}, TypeError, "must be a bool. Received: fused=1"),
        ({"learning_rate": -0.1}, ValueError, r"in \[0, inf\). Received: (lr|learning_rate)=-0.1"),
        ({"learning_rate": "0.1"}, TypeError, "must be a number.* Received: (lr|learning_rate)='0.1'"),
    ],
)
def test_bad_calls_are_refused_before_anything_changes(name, arguments, error, match):
    arrays, _ = bert_like()
    params, name_dict = make_params(arrays)
    groups = [{"params": list(params.values()), "learning_rate": 0.3}]
    with pytest.raises(error, match=match):
        make(name, groups, **{"layerwise_decay": 0.8, "n_layers": 3, "name_dict": name_dict, **arguments})
    assert all(p.optimize_attr["learning_rate"] == 1.0 for p in params.values())
    same({n: p.numpy() for n, p in params.items()}, {n: a.astype("float32") for n, a in arrays.items()})


def of_one_name(params):
    params[1].name = params[0].name
    return params


@every_optimizer
@pytest.mark.parametrize(
    "spoil, error, match",
    [
        (lambda p: [], ValueError, r"no trainable parameter. Received: parameters=\[\]"),
        (lambda p: [q.detach() for q in p], ValueError, r"no trainable parameter. Received: \d+ parameters, all froz"),
        (lambda p: [{"params": p, "betas": (0.9, 0.99)}], ValueError, r"may only have the keys .*'\. Received: betas"),
        (lambda p: [{"learning_rate": 1.0}], ValueError, "must have 'params'"),
        (lambda p: [{"params": p, "learning_rate": -1.0}], ValueError, r"in \[0, inf\). Received: learning_rate=-1.0"),
        (lambda p: [{"params": p, "learning_rate": "x"}], TypeError, "a multiplier.*Received: learning_rate='x'"),
        (lambda p: [{"params": p, "lr_scale": 0.5}], ValueError, "'lr_scale' is a label.*Received: lr_scale=0.5"),
        (lambda p: [{"params": p, "lr_scale": "x"}], TypeError, "Received: lr_scale='x'"),
        (lambda p: [{"params": p, "weight_decay": -1.0}], ValueError, "weight_decay.*Received: .*-1.0"),
        (lambda p: [{"params": p[:1]}, *p[1:]], TypeError, "Received: both"),
        (lambda p: [{"params": set(p)}], TypeError, "ordered collection. Received: "),
        (lambda p: [*p, p[0]], ValueError, "twice. Received: '"),
        (lambda p: [{"params": p}, {"params": p[:1]}], ValueError, "twice. Received: '"),
        (lambda p: [(q.name, q) for q in p], TypeError, "must hold parameters( or dicts)?. Received: "),
        (lambda p: [q.name for q in p], TypeError, "must hold parameters( or dicts)?. Received: "),
        (lambda p: {"params": p}, TypeError, "must be a list of parameters or of parameter groups. Received: "),
        (lambda p: p[0], TypeError, "must be a list of parameters|Received: parameters of type"),
        (lambda p: 1e-3, TypeError, "must be a list of parameters or of parameter groups. Received"),
        (of_one_name, ValueError, "need different names"),
    ],
)
def test_bad_parameters_are_refused_before_anything_changes(name, spoil, error, match):
    params, _ = make_params(bert_like()[0])
    with pytest.raises(error, match=match):
        make(name, spoil(list(params.values())))
    assert all(p.optimize_attr["learning_rate"] == 1.0 and p.regularizer is None for p in params.values())


@every_optimizer
def test_a_regularizer_is_refused(name):
    params = list(make_params(bert_like()[0])[0].values())
    key = "weight_decay_rate" if name == "adamweightdecay" else "weight_decay"
    for regularizer in (paddle.regularizer.L2Decay(0.01), paddle.regularizer.L1Decay(0.01)):
        with pytest.raises(TypeError, match=f"a number such as 0.01.*Received: .*={type(regularizer).__name__}"):
            make(name, params, **{key: regularizer})
        with pytest.raises(TypeError, match="a number such as 0.01"):
            make(name, [{"params": params, "weight_decay": regularizer}])


@every_optimizer
def test_sparse_gradients_are_refused_before_anything_changes(name):
    dense, sparse = paddle.nn.Linear(3, 3), paddle.nn.Embedding(5, 3, sparse=True)
    opt = make(name, [*dense.parameters(), *sparse.parameters()])
    before = dense.weight.numpy().copy()
    dense(sparse(paddle.to_tensor([1, 2]))).sum().backward()
    with pytest.raises(TypeError, match="needs dense gradients.*Received: a sparse gradient of"):
        opt.step()
    np.testing.assert_array_equal(dense.weight.numpy(), before)


@pytest.mark.parametrize("cls", [ldopt.AdamWDL, ldopt.Lamb])
def test_names_from_before_sharding_are_refused(cls):
    """`dist.shard_tensor` renames parameters: none of them would be decayed."""
    network, mesh = paddle.nn.Linear(4, 3), paddle.distributed.ProcessMesh([0], dim_names=["x"])
    before = {network.weight.name}.__contains__
    for key in ("weight", "bias"):
        shard = [paddle.distributed.Shard(0)]
        setattr(network, key, paddle.distributed.shard_tensor(getattr(network, key), mesh, shard))
    with pytest.raises(ValueError, match=r"shard the model first.*Received: '[\w.]+\.dist'"):
        cls(0.1, parameters=network.parameters(), apply_decay_param_fun=before)
    cls(0.1, parameters=network.parameters(), apply_decay_param_fun={network.weight.name}.__contains__)


MISPLACED = r"parameters go (in)?to `parameters.*Received: learning_rate=\["
PARAMETERS_FIRST = {"learning_rate": Net().parameters()}, MISPLACED
RELATIVE = {"relative_step": True}
EXTERNAL = {"relative_step": False, "scale_parameter": False}
CLASH = "Cannot combine manual `{0}` .*leave out `{0}`, or give relative_step=False.* Received: {0}=0.1, relative_"
# class -> [(arguments, what the message says)]; "group" are the options of a parameter group
OF_ONE = {
    Lamb: [  # MindSpore documents most of these
        ({"weight_decay": paddle.optimizer.lr.NoamDecay(8, 2)}, "must be a number or a callable of the step"),
        ({"learning_rate": None}, "an LRScheduler or a callable of the step. Received: learning_rate=None"),
        ({"learning_rate": [0.1, "0.1"]}, r"Received: learning_rate\[1\]='0.1'"),
        ({"learning_rate": lambda step: None}, r"must be a number. Received: learning_rate\(0\)=None"),
        ({"learning_rate": lambda step: -1.0}, r"Received: learning_rate\(0\)=-1.0"),
        ({"learning_rate": []}, r"a value for every step, .* Received: learning_rate=\["),
        ({"learning_rate": [0.1, -0.1]}, r"Received: learning_rate\[1\]=-0.1"),
        ({"learning_rate": paddle.ones([2, 2])}, r"Received: learning_rate\[0\]=\[1.0, 1.0\]"),
        ({"weight_decay": "0.1"}, "a number or a callable of the step. Received: weight_decay='0.1'"),
        ({"weight_decay": [0.1]}, r"Received: weight_decay=\[0.1\]"),
        ({"weight_decay": -0.1}, r"in \[0, inf\). Received: weight_decay=-0.1"),
        ({"weight_decay": lambda step: -0.1}, r"Received: weight_decay\(0\)=-0.1"),
        ({"group": {"epsilon": 0.1}}, "'grad_centralization'.*'lr'.*Received: epsilon"),
        ({"group": {"lr": -0.1}}, "Received: lr=-0.1"),
        ({"group": {"lr": "0.1"}}, "Received: lr='0.1'"),
        ({"group": {"lr": paddle.ones([2, 2])}}, r"Received: lr\[0\]=\[1.0, 1.0\]"),
        ({"group": {"lr": 0.1, "learning_rate": 0.5}}, "not both. Received: lr=0.1, learning_rate=0.5"),
    ],
    Came: [
        ({"beta2": 0.9, "decay_rate": 0.7}, "give one of them.* Received: beta2=0.9, decay_rate=0.7"),
        ({"group": {"beta2": 0.9, "decay_rate": 0.3}}, "overrides `decay_rate`.* Received: beta2=0.9, decay_rate=0.3"),
        ({"beta2": 0.9, "group": {"decay_rate": 0.3}}, "overrides `decay_rate`.* Received: beta2=0.9, decay_rate=0.3"),
        ({"group": {"lr": 0.1, "learning_rate": 0.5}}, "not both. Received: lr=0.1, learning_rate=0.5"),
        (RELATIVE, CLASH.format("learning_rate")),
        ({"learning_rate": None, **EXTERNAL}, "`learning_rate` must be given with `relative_step=False`. Received"),
        ({"warmup_init": True}, "requires `relative_step=True`. Received: relative_"),
        ({"learning_rate": None, **RELATIVE, "group": {"lr": 0.1}}, CLASH.format("lr")),
        ({"batch_bytes": -1}, "`batch_bytes` must be at least 0. Received: batch_bytes=-1"),
    ],
    Adafactor: [
        ({"group": {"lr": None}, **EXTERNAL, "learning_rate": None}, "`lr` must be given with `relative_step=False`"),
        ({"group": {"warmup_init": True}, **EXTERNAL}, "`warmup_init=True` requires `relative_step=True`"),
        ({"group": {"lr": paddle.optimizer.lr.StepDecay(0.5, 1)}, **EXTERNAL}, "`lr` must be a number"),
        (RELATIVE, CLASH.format("lr")),
        ({"learning_rate": None, **RELATIVE, "group": {"lr": 0.1}}, CLASH.format("lr")),
    ],
    AdamWeightDecay: [
        ({"include_in_weight_decay": "bias"}, "must be a list of regular .* Received: include_in"),
        ({"exclude_from_weight_decay": [1]}, "must be a list of regular .* Received: exclude_from"),
        ({"exclude_from_weight_decay": ["("]}, r"must be a list of regular .* Received: .*=\['\('\]"),
        ({"clipnorm": 1.0, "global_clipnorm": 2.0}, "Received: global_clipnorm=2.0, clipnorm=1.0"),
        PARAMETERS_FIRST,
    ],
    Muon: [
        ({}, "must know the matrices of blocks: give `layers`.*Received: layers=None"),
        ({"use_muon": lambda p: False}, "No parameter is a matrix of a block.*Received"),
        ({"use_muon": lambda p: True}, "updates matrices.*Received: use_muon=True for"),
        ({"use_muon": True}, "must be a function of a parameter.*Received: use_muon=True"),
        ({"ns_steps": 0}, "`ns_steps` must be at least 1"),
        ({"ns_coefficients": (1, 2)}, "must be a tuple of 3 numbers"),
        ({"adjust_lr": "none"}, "`adjust_lr` must be one of 'match_rms_adamw', 'original'"),
        ({"ns_dtype": "float16"}, "`ns_dtype` must be one of"),
    ],
    ldopt.AdamWDL: [PARAMETERS_FIRST],
}


@pytest.mark.parametrize(
    "cls, arguments, match",
    [(cls, *row) for cls, rows in OF_ONE.items() for row in rows],
    ids=lambda value: re.sub(" at 0x.*?>", ">", str(value))[:60],
)
def test_bad_arguments_of_one_optimizer(cls, arguments, match):
    group = {"params": Net().parameters(), **arguments.get("group", {})}
    given = {"learning_rate": 0.1, **{key: value for key, value in arguments.items() if key != "group"}}
    with pytest.raises((TypeError, ValueError), match=match):
        cls(parameters=[group], **given)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adamwdl"])  # which is Paddle's AdamW there
def test_parameters_that_are_added_are_refused(name):
    early, late = (paddle.create_parameter([2, 2], "float32") for _ in range(2))
    opt = make(name, [{"params": [early]}])
    with pytest.raises(ValueError, match="another optimizer for them.*Received: 1 more parameters, such as"):
        opt._add_param_group({"params": [late]})
    assert len(opt._param_groups) == 1
    with pytest.raises(TypeError, match="only be added to groups: .*Received: 1 parameters"):
        make(name, [early])._add_param_group({"params": [late]})


def test_a_parameter_of_no_layer_is_refused_in_a_built_optimizer():
    model = Net()
    layers, late = ldopt.LayerMap.from_model(model), paddle.create_parameter([2, 2], "float32")
    opt = ldopt.AdamWDL(parameters=[{"params": model.parameters()}], layers=layers, layerwise_decay=0.5)
    with pytest.raises(ValueError, match="another optimizer for them.*Received: 1 more parameters, such as"):
        opt._add_param_group({"params": [late]})


class OwnRate(RuleOptimizer):
    sets_own_lr = True


@pytest.mark.parametrize("cls", [Came, Adafactor, OwnRate])
def test_an_optimizer_that_sets_its_rate_takes_no_other(cls):
    opt = cls(parameters=Net().parameters(), **({} if cls is OwnRate else RELATIVE))
    how = "from the step" if cls is OwnRate else "by `relative_step`"
    with pytest.raises(RuntimeError, match=f"The optimizer sets its rate itself, {how}: .* Received: value=0.1"):
        opt.set_lr(0.1)
    with pytest.raises(RuntimeError, match=f"The optimizer sets its rate itself, {how}: .* Received: scheduler="):
        opt.set_lr_scheduler(paddle.optimizer.lr.StepDecay(0.5, step_size=1))
    assert not isinstance(opt._learning_rate, paddle.optimizer.lr.LRScheduler)
    with pytest.raises(ValueError, match=r"`initial_lr` must be in \[0, inf\). Received: initial_lr=-1.0"):
        AdafactorSchedule(Adafactor(Net().parameters()), -1.0)
    with pytest.raises(TypeError, match="`optimizer` must be an Adafactor. Received: optimizer of type NoneType"):
        AdafactorSchedule(None)


@pytest.mark.parametrize(
    ("cls", "argument", "alias", "given"),
    [
        *((cls, "parameters", "params", {"learning_rate": 0.01}) for cls in (Came, Lamb)),
        (Adafactor, "parameters", "params", {}),
        (Adafactor, "lr", "learning_rate", {"relative_step": False}),
        (AdamWeightDecay, "learning_rate", "lr", {}),
        (AdamWeightDecay, "weight_decay_rate", "weight_decay", {}),
    ],
)
def test_an_argument_with_two_names_is_given_once(cls, argument, alias, given):
    given = {"parameters": Net().parameters(), **given}
    value = given.pop("parameters") if argument == "parameters" else 0.1
    cls(**given, **{argument: value})
    cls(**given, **{alias: value})
    with pytest.raises(ValueError, match=f"`{alias}` is another name for `{argument}`: give one of them. Received: "):
        cls(**given, **{argument: value, alias: value})
