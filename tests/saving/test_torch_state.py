"""`convert_torch_optimizer`: PyTorch's optimizers go on as ours, from recorded state. No torch is needed.

`golden/states.json` has the state of real peers after three steps, and `golden/trajectories.npz` where they went.
"""

import json
import sys
import types

import numpy as np
import paddle
import pytest
import safetensors.numpy
from golden.trajectories import error, inputs, load_arrays, load_index, load_states, split
from optimizer_cases import FLOAT32, SHAPES, build
from reference import make_params, take_steps
from saving_cases import Run, bits, refused

import paddle_ldopt as ldopt

pytestmark = pytest.mark.promise(
    "training continues from a converted PyTorch state as in PyTorch",
    seen="8 states saved by the PyTorch optimizers, within the tolerances of their recorded trajectories",
)

KEPT = 3  # as in golden/make.py
CASES = {case["id"]: case for case in load_index()["cases"] if case["id"] in load_states()}
MATRICES = [name for name, shape in SHAPES.items() if len(shape) == 2]
NAMES = list(SHAPES)


class Named(paddle.nn.Layer):
    """A model of parameters with any names."""

    def __init__(self, params):
        super().__init__()
        self.params = params

    def named_parameters(self, *args, **kwargs):
        return iter(self.params.items())


def go_on(case, dtype, turned, source=None):
    """Return (ours, the peer's, start) after each recorded step behind the one that the state is of."""
    start, grads = inputs(load_arrays(), SHAPES, case["inputs"])
    recorded, steps = split(load_arrays()[case["id"]], SHAPES), load_index()["recorded_steps"]
    at = steps.index(KEPT)
    turn = {name: np.transpose if name in turned else np.asarray for name in SHAPES}
    params, name_dict = make_params({n: turn[n](recorded[n][at]) for n in SHAPES}, dtype)
    optimizer, after_step = build(case["ours"], params, name_dict)
    report = ldopt.convert_torch_optimizer(
        source or load_states()[case["id"]], optimizer, Named(params), NAMES, transpose=turned, strict=False
    )
    behind = [g and {n: v if v is None else turn[n](v) for n, v in g.items()} for g in grads[KEPT:]]
    values = []

    def record():
        after_step()
        values.append({n: p.numpy() for n, p in params.items()})

    for _ in range(KEPT if "rates" in case["ours"] else 0):
        after_step()
    take_steps(optimizer, params, behind, record)
    ours = {n: np.stack([turn[n](values[step - KEPT - 1][n]) for step in steps[at + 1 :]]) for n in SHAPES}
    return report, ours, {n: recorded[n][at + 1 :] for n in SHAPES}, start


@pytest.mark.parametrize(
    "dtype, turned",
    [("float64", []), ("float64", MATRICES), ("float32", MATRICES)],
    ids=["as it is", "transposed", "float32"],
)
@pytest.mark.parametrize("name", CASES)
def test_the_peer_goes_on_as_ours(name, dtype, turned):
    report, ours, peer, start = go_on(CASES[name], dtype, turned)
    size, where = error(ours, peer, start, dtype)
    rounding = FLOAT32.get(CASES[name]["ours"]["optimizer"], 1e-6)
    assert size <= (CASES[name]["tolerance"] if dtype == "float64" else rounding), (where, size)
    idle = {"encoder.layers.1.gate"} if CASES[name]["inputs"] == "gaps" else set()
    assert set(report.missing) == idle and not report.unexpected
    assert set(report.transposed) == set(turned) and report.step == KEPT
    assert len(report.matched) == len(SHAPES) - len(idle)


@pytest.mark.parametrize("name", CASES)
def test_without_the_state_it_would_go_elsewhere(name):
    case, empty = CASES[name], json.loads(json.dumps(load_states()[name]))
    for state in empty["state"].values():
        state.update({k: np.zeros_like(v).tolist() for k, v in state.items() if k not in ("step", "RMS")})
    _, ours, peer, start = go_on(case, "float64", [], empty)
    assert error(ours, peer, start)[0] > 1e-3


@pytest.mark.parametrize("form", ["numbers", "state.", "names"])
def test_a_safetensors_file_is_the_same(form, tmp_path):
    name = "came-authors-options"
    tensors = {
        f"{'state.' * (form == 'state.')}{NAMES[int(key)] if form == 'names' else key}.{state}": np.asarray(value)
        for key, states in load_states()[name]["state"].items()
        for state, value in states.items()
    }
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors")
    one, other = (go_on(CASES[name], "float64", MATRICES, source) for source in (tmp_path / "a.safetensors", None))
    assert bits(one[1]) == bits(other[1])


# ---- our own model and numbers


def checkpoint(run, **more):
    """Return what PyTorch's AdamW, or LAMB, would have for a model: numbers that tell every element apart."""
    state, names = {}, [name for name, _ in run.model.named_parameters()]
    for i, (name, param) in enumerate(run.model.named_parameters()):
        shape = param.shape[::-1] if "weight" in name else param.shape
        values = np.arange(np.prod(shape), dtype="float32").reshape(shape) / 8 + i + 1
        state[i] = {"step": np.float32(4), "exp_avg": values, "exp_avg_sq": values**2, **more}
    return {"state": state, "param_groups": [{"params": list(state), "param_names": names}]}


def linear_model(dtype="float32"):
    model = paddle.nn.Sequential(paddle.nn.Embedding(3, 3), paddle.nn.Linear(3, 3), paddle.nn.LayerNorm(3))
    model.to(dtype=dtype)
    return model


@pytest.mark.parametrize("cls", [ldopt.AdamWDL, ldopt.Lamb])
def test_weights_of_linear_layers_are_transposed_even_if_they_are_square(cls):
    run = types.SimpleNamespace(model=linear_model())
    run.optimizer = cls(1e-3, parameters=run.model.parameters())
    there = checkpoint(run, **dict.fromkeys(("weight_norm", "adam_norm", "trust_ratio"), np.float32(1)))  # for its log
    report = ldopt.convert_torch_optimizer(there, run.optimizer, paddle.DataParallel(run.model))
    assert report.transposed == ("1.weight",)
    moments = run.optimizer._accumulators["moment1"]
    for i, (name, param) in enumerate(run.model.named_parameters()):
        expected = there["state"][i]["exp_avg"]
        np.testing.assert_array_equal(moments[param.name].numpy(), expected.T if name == "1.weight" else expected)
    counter = run.optimizer._accumulators["beta1_pow_acc"][param.name].item()
    assert counter == (pytest.approx(0.9**5) if cls is ldopt.AdamWDL else 4.0)


def test_masters_are_made_of_the_parameters_and_momentum_fits_into_half():
    model = linear_model("bfloat16")
    optimizer = ldopt.Lamb(1e-3, parameters=model.parameters(), multi_precision=True)
    run = types.SimpleNamespace(model=model)
    ldopt.convert_torch_optimizer(checkpoint(run), optimizer, model)
    for param in model.parameters():
        np.testing.assert_array_equal(optimizer._master_weights[param.name], param.astype("float32"))
    linear = paddle.nn.Linear(2, 2)
    came = ldopt.Came(1e-3, parameters=linear.parameters(), compression=True)
    ones = {"exp_avg_sq_row": np.ones(2), "exp_avg_sq_col": np.ones(2)}
    rest = {"exp_avg_res_row": np.ones(2), "exp_avg_res_col": np.ones(2), "step": 1}
    state = {
        "weight": {"exp_avg": np.array([[1e9, 1.0], [-1e9, 0.0]]), **ones, **rest},
        "bias": {"exp_avg": np.ones(2), "exp_avg_sq": np.ones(2), "step": 1},
    }
    ldopt.convert_torch_optimizer({"state": state, "param_groups": []}, came, linear)
    stored = came._accumulators["exp_avg"][linear.weight.name]
    assert stored.dtype == paddle.float16 and stored.numpy().tolist() == [[65504.0, -65504.0], [1.0, 0.0]]


def test_a_lamb_with_a_schedule_counts_on():
    run = Run("lamb", rate=[1e-3 * i for i in range(1, 9)])
    ldopt.convert_torch_optimizer(checkpoint(run), run.optimizer, run.model, transpose=weights(run))
    assert run.optimizer.get_lr() == pytest.approx(5e-3)


def weights(run):
    return [name for name, _ in run.model.named_parameters() if "weight" in name]


def test_a_report_names_what_was_missing_and_unexpected():
    run = Run("adamwdl")
    there = checkpoint(run, max_exp_avg_sq=np.ones(1))
    there["param_groups"][0]["param_names"] = [
        f"model.{name}" if name != "head.bias" else "other" for name in there["param_groups"][0]["param_names"]
    ]
    arguments = {"rename": lambda name: name.replace("model.", ""), "transpose": weights(run)}
    with refused(r"no state for 'head.bias' \(1\)", ValueError, run):
        ldopt.convert_torch_optimizer(there, run.optimizer, run.model, **arguments)
    report = ldopt.convert_torch_optimizer(there, run.optimizer, run.model, strict=False, **arguments)
    assert report.missing == ("head.bias",) and "other" in report.unexpected
    assert "model.embed.weight.max_exp_avg_sq" in report.unexpected
    assert "a state_dict: step 4, 8 matched, 1 missing, 9 unexpected" in str(report)


def test_what_does_not_fit_changes_nothing(tmp_path):
    run = Run("adamwdl").train(1)
    turned, good = weights(run), checkpoint(run)
    first = {**good["state"][0]}

    def changed(**state):
        return {**good, "state": {**good["state"], 0: {**first, **state}}}

    without = {**good, "state": {**good["state"], 0: {k: v for k, v in first.items() if k != "step"}}}
    bare = {"state": good["state"], "param_groups": [{"params": list(good["state"])}]}
    (tmp_path / "a.safetensors").write_bytes(b"\x80\x04}.")
    for what, source, arguments, says in (
        ("no names", bare, {}, "give `names`"),
        ("few names", bare, {"names": ["embed.weight"]}, "give `names`"),
        ("names in one", bare, {"names": "embed.weight"}, "must be a list of names"),
        ("a name twice", bare, {"names": ["scale"] * len(good["state"])}, "same name. Received: 'scale' twice"),
        ("not transposed", good, {"transpose": []}, "another shape"),
        ("transposed in one", good, {"transpose": "head.weight"}, "must be a list of names"),
        ("transposed vector", good, {"transpose": ["head.bias"]}, "must name matrices"),
        ("no step", without, {}, "lacks the number of steps"),
        ("half a step", changed(step=1.5), {}, "an integer of at least 0"),
        ("no number", changed(step=np.nan), {}, "an integer of at least 0"),
        ("a step back", changed(step=-1), {}, "an integer of at least 0"),
        ("a step that is there", good, {"step": 1}, "would be ignored: leave it out. Received: step=1"),
        ("no flag", good, {"strict": "no"}, "`strict` must be a bool. Received: strict='no'"),
        ("a step of text", good, {"step": "1"}, "`step` must be an int"),
        (
            "no steps",
            changed(step=np.zeros(0)),
            {},
            "an integer of at least 0.*Received: parameter='scale', step=array",
        ),
        ("two steps", changed(step=[4, 4]), {}, "an integer of at least 0"),
        ("None for a step", changed(step=None), {}, "an integer of at least 0.*None"),
        ("a word for a step", changed(step="x"), {}, "an integer of at least 0.*Received: .*x"),
        ("yes for a step", changed(step=True), {}, "an integer of at least 0.*True"),
        (
            "a number for a state",
            {**good, "state": {0: 5}},
            {},
            "must be a dict with string keys..*parameter=0, state=5",
        ),
        ("a state by numbers", {**good, "state": {0: {3: 1}}}, {}, "must be a dict with string keys"),
        ("words for a state", changed(exp_avg="x"), {}, "made of numbers.*'scale', state='exp_avg', value=.*x"),
        ("None for a state", changed(exp_avg_sq=None), {}, "made of numbers.*state='exp_avg_sq', value=array.None"),
        ("ragged", changed(exp_avg=[[1, 2], [3]]), {}, "must be an array.*Received: value="),
        ("a number for a group", {**good, "param_groups": [5]}, {}, "must be a dict with 'params'.*Received: group=5"),
        ("no params", {**good, "param_groups": [{}]}, {}, "must be a dict with 'params'.*Received: group={}"),
        ("params in lists", {**good, "param_groups": [{"params": [[0]]}]}, {}, "must be a dict with 'params'"),
        ("names by number", {**good, "param_groups": [{"params": [0], "param_names": [5]}]}, {}, "'param_names'"),
        ("another state", {**good, "state": {**good["state"], 0: {"step": 1, "momentum": 1}}}, {}, "lacks 'exp_avg'"),
        ("amsgrad", changed(max_exp_avg_sq=first["exp_avg"]), {}, "no use for"),
        ("no dict", [], {}, "`source` must be a dict or a path"),
        ("not a state_dict", {"model": 1}, {}, "'state' and 'param_groups'"),
        ("same names", good, {"rename": lambda name: "head.bias"}, "its own name"),
        ("an unknown name", good, {"rename": {"encoder": "head.bias"}}, r"Received: 'encoder', not in the checkpoint"),
        ("a list to rename", good, {"rename": ["a"]}, "must be a dict or callable"),
        ("nothing", good, {"rename": lambda name: f"x.{name}", "strict": False}, "share no parameter"),
        ("a pickle", tmp_path / "a.safetensors", {}, "not a safetensors file"),
    ):
        with refused(says, (ValueError, TypeError), run, what):
            ldopt.convert_torch_optimizer(source, run.optimizer, run.model, **{"transpose": turned, **arguments})
    with refused("with a counterpart in PyTorch", TypeError, Run("adamweightdecay")) as _:
        other = Run("adamweightdecay")
        ldopt.convert_torch_optimizer(good, other.optimizer, other.model)
    with refused("must be a paddle.nn.Layer", TypeError, run):
        ldopt.convert_torch_optimizer(good, run.optimizer, None)


# ---- files that PyTorch reads


def test_without_torch_its_files_are_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    run = Run("adamwdl").train(1)
    with pytest.raises(FileNotFoundError, match=r"a\.pt"):
        ldopt.convert_torch_optimizer(tmp_path / "a.pt", run.optimizer, run.model)
    (tmp_path / "a.pt").touch()
    with refused("Only PyTorch reads this file", ImportError, run):
        ldopt.convert_torch_optimizer(tmp_path / "a.pt", run.optimizer, run.model)


def test_torch_is_asked_for_weights_only(monkeypatch):
    run, asked = Run("adamwdl"), []

    def load(path, **arguments):
        asked.append((path, arguments))
        if path == "bad.pt":
            raise RuntimeError("Weights only load failed\nand more")
        return {"epoch": 3, "optimizer_state_dict": checkpoint(run)}

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load, __version__="2.13.0+cpu"))
    report = ldopt.convert_torch_optimizer("good.pt", run.optimizer, run.model, transpose=weights(run))
    assert report.step == 4 and asked == [("good.pt", {"map_location": "cpu", "weights_only": True})]
    with refused("weights-only loader refuses", ValueError, run):
        ldopt.convert_torch_optimizer("bad.pt", run.optimizer, run.model)
    monkeypatch.setattr(sys.modules["torch"], "__version__", "2.5.1")
    with refused("2.6 or later", ImportError, run):
        ldopt.convert_torch_optimizer("good.pt", run.optimizer, run.model)
