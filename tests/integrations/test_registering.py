"""Without a framework: a missing one is named, and PaddleOCR's way of building."""

import importlib
import operator
import pathlib
import re
import sys
import types
import warnings

import paddle
import pytest

import paddle_ldopt as ldopt
from paddle_ldopt import integrations
from paddle_ldopt.integrations import NAMES, name_parts, paddleocr
from paddle_ldopt.rates import applied_rates

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "frameworks.md"
FRAMEWORKS = {  # our module -> the framework, its package, and where it looks up the names of a file
    "paddleclas": ("PaddleClas", "ppcls", "ppcls.optimizer.optimizer __dict__"),
    "paddledetection": ("PaddleDetection", "ppdet", "ppdet.optimizer.optimizer OptimizerBuilder.__call__.__globals__"),
    "paddleocr": ("PaddleOCR", "ppocr", "ppocr.optimizer.optimizer __dict__"),
    "paddleseg": ("PaddleSeg", "paddleseg", "paddleseg.cvlibs.manager OPTIMIZERS.components_dict"),
    "paddlespeech": ("PaddleSpeech", "paddlespeech", "paddlespeech.s2t.training.optimizer OPTIMIZER_DICT"),
}


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_a_framework_that_is_missing_is_named(module, monkeypatch):
    name, package, _ = FRAMEWORKS[module]
    for loaded in [key for key in sys.modules if key.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"{name} cannot be imported: install it.*Received: .*{package}"):
        getattr(integrations, module).register()


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_the_lines_of_the_page_register(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where PaddleSpeech writes its log
    name, package, place = FRAMEWORKS[module]
    pytest.importorskip(package, reason=f"{name} is not installed", exc_type=ImportError)
    lines = re.search(r"```py\n(from paddle_ldopt.integrations .*?)```", PAGE.read_text(encoding="utf-8"), re.S)[1]
    assert module in lines
    exec(lines.replace("paddleclas", module), {})
    where, names = place.split()
    found = operator.attrgetter(names)(importlib.import_module(where))
    found = found["NAMES"] if module == "paddledetection" else found
    assert ("came" if module == "paddlespeech" else "Came") in found


@pytest.fixture
def ocr(monkeypatch):
    """Return the module that PaddleOCR's `build_optimizer` looks names up in, with our names in it."""
    for name in ("ppocr", "ppocr.optimizer", "ppocr.optimizer.optimizer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    paddleocr.register()
    return sys.modules["ppocr.optimizer.optimizer"]


@pytest.fixture
def encoder():
    with paddle.utils.unique_name.guard():  # Paddle numbers the states of all optimizers of a process by name
        yield paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)


def test_paddleocr_builds_each_optimizer(ocr, encoder):
    for name in NAMES:
        schedule, clip = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 10), paddle.nn.ClipGradByNorm(1.0)
        build = getattr(ocr, name)(schedule, weight_decay=None, grad_clip=clip, layerwise_decay=0.5)
        opt = build(encoder)
        assert isinstance(opt, getattr(ldopt, name))
        rates = [applied_rates(opt)[layer.linear1.weight.name] for layer in encoder.layers]
        assert rates == pytest.approx([0.00125, 0.0025, 0.005])


@pytest.mark.parametrize("weight_decay", [0.5, paddle.regularizer.L2Decay(0.5)], ids=["number", "L2Decay"])
def test_paddleocr_s_weight_decay(ocr, encoder, weight_decay):
    chosen = {"no_weight_decay_name": "linear1 norm2", "one_dim_param_no_weight_decay": True}
    build = ocr.AdamWDL(learning_rate=0.1, weight_decay=weight_decay, grad_clip=None, layerwise_decay=0.5, **chosen)
    opt, before = build(encoder), {name: param.numpy() for name, param in encoder.named_parameters()}
    for param in encoder.parameters():
        param.grad = paddle.zeros_like(param)
    opt.step()
    for name, param in encoder.named_parameters():
        kept = any(part in name for part in ("linear1", "norm", "bias"))
        rate = 0.1 * 0.5 ** (3 - int(name.split(".")[1]))
        assert param.numpy() == pytest.approx(before[name] * (1 if kept else 1 - 0.5 * rate), abs=1e-7), name


def test_settings_of_a_file(ocr, encoder):
    rules = {r"layers\.(\d+)\.": r"\1", "norm": "head"}
    opt = ocr.Came(learning_rate="1e-2", rules=rules, layerwise_decay="5e-1", min_ratio=0.1, beta3=0.99)(encoder)
    assert opt.get_lr() == 0.01  # as PyYAML reads 1e-2
    assert opt.layerwise_ratio(encoder.layers[0].linear1.weight) == 0.125 and opt.layers.source == "by names"
    linear = ocr.AdamWDL(learning_rate=0.1, layerwise_decay=1.0, convention="linear", bound=0.2)(encoder)
    assert linear.layerwise_ratio(encoder.layers[1].linear1.weight) == pytest.approx(0.2 + 0.8 * 1 / 5)
    width = encoder.layers[0].linear1.weight.shape[0]
    for example in ([1, 5, width], {"src": [1, 5, width]}):
        opt = ocr.AdamWDL(learning_rate=0.1, layerwise_decay=0.5, example=example)(encoder)
        assert opt.layerwise_ratio(encoder.layers[0].linear1.weight) == 0.125 and opt.layers.source == "measured"
    for options, message in [
        ({"layerwise_decai": 0.5}, "is not a known setting of Came; the nearest is 'layerwise_decay'"),
        ({"weight_decy": 0.1}, "the nearest is 'weight_decay'. Valid: lr, regularizer, weight_decay, .* beta1"),
        ({"clip_nrom": 1.0}, "the nearest is 'clip_norm'"),
        ({"layerwise_decay": 2.0}, "Received: layerwise_decay=2.0"),
        ({"weight_decay": -1.0}, "Received: weight_decay=-1.0"),
        ({"weight_decay": paddle.regularizer.L1Decay(0.1)}, "no L1 decay"),
    ]:
        with pytest.raises(ValueError, match=message):
            ocr.Came(learning_rate=0.01, **options)(encoder)
    with pytest.raises(TypeError, match=r"must be a shape such as \[1, 3, 224, 224\].* Received: example of type str"):
        ocr.Came(learning_rate=0.01, example="[1, 5, 8]")(encoder)


def test_settings_that_paddleocr_passes_on_unread(ocr, encoder):
    """A null, the second of two kinds of clipping, and the second of two weight decays, which Python refuses."""
    ocr.AdamWDL(0.1, regularizer=None)(encoder)
    with pytest.raises(ValueError, match="not a known setting of AdamWDL.*Received: clip_norm_global=1.0"):
        ocr.AdamWDL(0.1, grad_clip=paddle.nn.ClipGradByNorm(1.0), clip_norm_global=1.0)(encoder)
    with pytest.raises(TypeError, match=r"AdamWDL\(\) got multiple values for .* 'weight_decay'"):
        ocr.AdamWDL(learning_rate=0.1, weight_decay=0.1, **{"weight_decay": 0.1})
    with pytest.raises(TypeError, match="Received: one_dim_param_no_weight_decay='false'"):
        ocr.AdamWDL(0.1, one_dim_param_no_weight_decay="false")
    with pytest.raises(TypeError, match="must be a string of parts.*Received: no_weight_decay_name=.'norm'"):
        ocr.Came(no_weight_decay_name=["norm"])


def test_parts_of_names_are_a_list():
    """The letters of a string would match nearly every name."""
    for parts in ("pos_embed", None, [1]):
        with pytest.raises(TypeError, match="`params` must be a list of parts of names. Received: params="):
            name_parts(parts, "params")
    assert name_parts(("pos_embed",), "params") == ["pos_embed"]


def test_a_wrapped_a_frozen_and_a_bfloat16_model(ocr, encoder):
    """DataParallel changes names but no rates, frozen blocks keep their layers, and bfloat16 has masters."""
    settings = {"layerwise_decay": 1.0, "towers": {"0": 0.5}, "multipliers": {"^1": 3.0}, "multi_precision": True}
    model = paddle.nn.Sequential(encoder, paddle.nn.Linear(8, 2))
    for param in encoder.layers[0].parameters():
        param.stop_gradient = True
    frozen = encoder.layers[0].linear1.weight.numpy()
    rates = [applied_rates(ocr.AdamWDL(0.1, **settings)(m)) for m in (model, paddle.DataParallel(model))]
    assert rates[0] == rates[1]
    assert rates[0][encoder.layers[1].linear1.weight.name] == pytest.approx(0.1 * 0.5**2)
    model.to(dtype="bfloat16")  # as `paddle.amp.decorate` of level O2, which does nothing on a CPU
    opt = ocr.AdamWDL(0.1, **settings)(model)
    for param in model.parameters():
        if not param.stop_gradient:
            param.grad = paddle.ones_like(param)
    opt.step()
    masters = opt.state_dict()["master_weights"]
    assert encoder.layers[1].linear1.weight.name in masters
    assert encoder.layers[0].linear1.weight.name not in masters
    assert applied_rates(opt) == rates[0]
    before = paddle.to_tensor(frozen).astype("bfloat16")
    assert bool((encoder.layers[0].linear1.weight == before).all())


@pytest.mark.filterwarnings("ignore:Some layers of the model")
def test_a_decay_of_a_frozen_backbone_is_warned_of(ocr, encoder):
    for param in encoder.parameters():
        param.stop_gradient = True
    model = paddle.nn.Sequential(encoder, paddle.nn.Linear(8, 2))
    with pytest.warns(UserWarning, match="has no effect yet: .* Received: layerwise_decay=0.5"):
        ocr.AdamWDL(0.1, layerwise_decay=0.5)(model)
    ocr.AdamWDL(0.1, layerwise_decay=0.5, head_ratio=2.0)(model)


@pytest.mark.parametrize("chosen, warned", [([], 2), (["ignore"], 0)], ids=["default", "python -W ignore"])
def test_warnings_are_shown_although_the_framework_silences_all(ocr, encoder, tmp_path, monkeypatch, chosen, warned):
    """PaddleOCR's `ppocr.data` calls `warnings.simplefilter("ignore")` when it is imported."""
    state = saved(ldopt.create("adamwdl", encoder, learning_rate=0.1), tmp_path / "state.pdopt")
    monkeypatch.setattr(sys, "warnoptions", chosen)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("ignore")
        paddleocr.register()
        ocr.AdamWDL(0.1, layerwise_decay=0.5)(encoder).set_state_dict(state)
        for param in encoder.parameters():
            param.stop_gradient = True
        ocr.AdamWDL(0.1, layerwise_decay=0.5)(paddle.nn.Sequential(encoder, paddle.nn.Linear(8, 2)))
    shown = [str(one.message) for one in shown if "are guesses" not in str(one.message)]
    assert len(shown) == warned, shown


def saved(opt, path):
    """Return the state of an optimizer after a step, through a file as frameworks write it."""
    for param in opt._parameter_list:
        param.grad = paddle.ones_like(param)
    opt.step()
    paddle.save(opt.state_dict(), str(path))
    return paddle.load(str(path))


MOVED = {"rules": {r"layers\.0\.linear1": "head"}, "layerwise_decay": 0.5}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "Muon"])  # its states follow the layers
def test_a_resume_with_another_decay_is_refused(ocr, encoder, name, tmp_path):
    build = getattr(ocr, name)
    state = saved(build(0.1, layerwise_decay=0.5)(encoder), tmp_path / "state.pdopt")
    for other, message in [
        ({"layerwise_decay": 0.25}, "decay was {'layerwise_decay': 0.5} and is {'layerwise_decay': 0.25} now"),
        ({}, "decay was {.*'layerwise_decay': 0.5.*} and is {.*} now"),
        ({"layerwise_decay": 0.5, "min_ratio": 0.3}, "decay was {} and is {'min_ratio': 0.3} now"),
        (MOVED, r"layers was {'.*': \['layers', 1, 3\].*} and is {'.*': \['', 4, 3\].*} now"),
    ]:
        opt = build(0.1, **other)(encoder)
        with pytest.raises(ValueError, match=f"{message}.*Use the same, or set `allow_layerwise_change: true`"):
            opt.set_state_dict(state)
        allowed = build(0.1, **other, allow_layerwise_change=True)(encoder)
        with pytest.warns(UserWarning, match=message):
            allowed.set_state_dict(state)
    same = build(0.1, layerwise_decay=0.5)(encoder)
    same.set_state_dict(state)
    assert saved(same, tmp_path / "again.pdopt").keys() == state.keys()
    if name == "Lamb":  # whose states have the names of another's
        with pytest.raises(ValueError, match="optimizer was 'Lamb' and is 'AdamWeightDecay' now"):
            ocr.AdamWeightDecay(0.1, allow_layerwise_change=True)(encoder).set_state_dict(state)


def test_a_checkpoint_that_does_not_tell_its_decay_is_warned_of(ocr, encoder, tmp_path):
    state = saved(ldopt.create("adamwdl", encoder, learning_rate=0.1), tmp_path / "state.pdopt")
    with pytest.warns(UserWarning, match="does not say its layer-wise decay, so the file"):
        ocr.AdamWDL(0.1, layerwise_decay=0.5)(encoder).set_state_dict(state)
    ocr.AdamWDL(0.1)(encoder).set_state_dict(state)  # without a decay there is nothing to confuse
    ocr.AdamWDL(0.1, layerwise_decay=0.5, allow_layerwise_change=True)(encoder).set_state_dict(state)
    with pytest.raises(TypeError, match="`allow_layerwise_change` must be"):
        ocr.AdamWDL(0.1, allow_layerwise_change="yes")(encoder)


def test_paddleclas_builds_for_a_model_and_a_loss_with_parameters(monkeypatch, encoder):
    module = types.ModuleType("ppcls.optimizer.optimizer")
    for name in ("ppcls", "ppcls.optimizer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    integrations.paddleclas.register()
    settings = {"learning_rate": 0.1, "layerwise_decay": 0.5, "example": [1, 3, 8]}
    include = {"weight_decay": 0.1, "one_dim_param_no_weight_decay": True, "include_in_weight_decay": ["norm"]}
    opt = module.AdamWeightDecay(**settings, **include)([encoder, paddle.nn.Linear(2, 2)])
    assert opt.layers.source == "measured" and opt.layers.n_layers == 3
    named = dict(encoder.named_parameters())
    decayed = {name for name, param in named.items() if opt.has_weight_decay(param)}
    assert decayed == {name for name in named if "norm" in name or named[name].ndim > 1}
