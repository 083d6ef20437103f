"""Record what the real peers compute: `trajectories.npz` and `index.json` beside this file.

    make parity                                      # compare a fresh run with what is stored
    python tests/golden/make.py                      # write both files anew
    python tests/golden/make.py --check              # what `make parity` runs; needs `pip install -e ".[parity]"`
    make parity ARGS=--random                        # ours on random problems: see random_problems.py

Each case is eight calls of a peer's own step() in float64 over the same eight small parameters: an element, vectors,
matrices with a side of 1, a stack of matrices and a convolution. One starts at zero. The third gradient is zero, the
fifth a spike.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from peers import N_LAYERS, RATES, RECORDED, ROUNDING, RUNNERS, SHAPES, Case, make_inputs, run, run_torch, version
from trajectories import ARRAYS, INDEX, error, join, load_arrays, load_index, split


def ours(optimizer, **arguments):
    """Return our call; `decayed`, `layerwise_decay` and `rates` are read by test_parity.py."""
    return {"optimizer": optimizer, "arguments": arguments}


def adamw_cases():
    """Return AdamW's: torch, alone and with a rate for each layer, and timm's layer-wise decay."""
    plain = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    other = {"lr": 0.003, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    mine = {"learning_rate": 0.01, "weight_decay": 0.01}
    mine_other = {"learning_rate": 0.003, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
    matrices = [name for name, shape in SHAPES.items() if len(shape) > 1]
    kernel = (1e-8, "Paddle's kernel takes epsilon, and the decay if all rates are equal, as float32")
    layerwise = {**ours("adamwdl", **mine_other), "layerwise_decay": 0.8}
    scheduled = {**ours("adamwdl", weight_decay=0.01), "layerwise_decay": 0.5, "rates": RATES}
    for name, options, our_call, more in (
        ("", plain, ours("adamwdl", **mine), {}),
        ("-gaps", other, ours("adamwdl", **mine_other), {"kind": "gaps"}),
        ("-layerwise", other, layerwise, {"decay": 0.8}),
        ("-layerwise-schedule", plain, scheduled, {"decay": 0.5, "rates": RATES}),
    ):
        yield Case(f"adamwdl-torch{name}", "torch", "torch.optim.AdamW", options, our_call, **more, tolerance=kernel)
    timm = {"lr": 0.01, "weight_decay": 0.05, "layer_decay": 0.65}
    groups = {**ours("adamwdl", learning_rate=0.01, weight_decay=0.05), "layerwise_decay": 0.65, "decayed": matrices}
    cls = "timm.optim.param_groups_layer_decay"
    yield Case("adamwdl-timm-layerwise", "timm", cls, timm, groups, tolerance=kernel)


def lamb_cases():
    """Return LAMB's: timm as the paper has it, and optax."""
    paper = {"max_grad_norm": None, "always_adapt": True}
    other = {"betas": (0.8, 0.99), "eps": 1e-4}
    mine_other = {"beta1": 0.8, "beta2": 0.99, "eps": 1e-4}
    decayed, layerwise = {"learning_rate": 0.01, "weight_decay": 0.01}, {"learning_rate": 0.02, "weight_decay": 0.1}
    for name, options, our_call, decay in (
        ("", {"lr": 0.01, "weight_decay": 0.01}, ours("lamb", **decayed), 1.0),
        ("-undecayed", {"lr": 0.01, "weight_decay": 0.0, **other}, ours("lamb", learning_rate=0.01, **mine_other), 1.0),
        ("-layerwise", {"lr": 0.02, "weight_decay": 0.1}, {**ours("lamb", **layerwise), "layerwise_decay": 0.75}, 0.75),
    ):
        yield Case(f"lamb-timm{name}", "timm", "timm.optim.Lamb", {**options, **paper}, our_call, decay=decay)
    scheduled = ours("lamb", learning_rate=RATES, weight_decay=0.01)
    yield Case("lamb-optax-schedule", "optax", "optax.lamb", {"weight_decay": 0.01}, scheduled, rates=RATES)
    gaps = {"learning_rate": 0.01, "b1": 0.8, "b2": 0.99, "eps": 1e-4, "weight_decay": 0.1}
    our_call = ours("lamb", learning_rate=0.01, weight_decay=0.1, **mine_other)
    yield Case("lamb-optax-gaps", "optax", "optax.lamb", gaps, our_call, kind="gaps")


def adafactor_cases():
    """Return Adafactor's: transformers, and optax as far as it factors the same dimensions."""
    cls, external = "transformers.optimization.Adafactor", {"scale_parameter": False, "relative_step": False}
    scaled = {"scale_parameter": True, "relative_step": False}
    for name, options, more, case in (
        ("external", {"lr": 0.01, **external}, {}, {}),
        ("external-scaled", {"lr": 0.05, **scaled, "weight_decay": 0.1}, {}, {}),
        ("relative", {}, {}, {}),
        ("relative-unscaled", {"scale_parameter": False, "weight_decay": 0.1}, {}, {}),
        ("warmup", {"warmup_init": True}, {}, {}),
        ("beta1", {"beta1": 0.9, "weight_decay": 0.1}, {}, {}),
        ("options", {"eps": (1e-8, 0.3), "clip_threshold": 0.5, "decay_rate": -0.5}, {}, {}),
        ("gaps", {"lr": 0.01, **external, "beta1": 0.8}, {}, {"kind": "gaps"}),
        ("relative-gaps", {}, {}, {"kind": "gaps"}),
        ("layerwise", {"lr": 0.05, **scaled, "weight_decay": 0.1}, {"layerwise_decay": 0.8}, {"decay": 0.8}),
        ("schedule", {"lr": RATES[0], **external, "beta1": 0.9}, {"rates": RATES}, {"rates": RATES}),
    ):
        mine = {k: v for k, v in options.items() if k != "lr" or "rates" not in more}
        our_call = {**ours("adafactor", **mine), **more}
        yield Case(f"adafactor-transformers-{name}", "transformers", cls, options, our_call, **case)
    why = ROUNDING[0], "rounding alone: its least variance is below all of these, and its rate the relative one"
    yield Case("adafactor-torch", "torch", "torch.optim.Adafactor", {"lr": 0.01}, ours("adafactor"), tolerance=why)
    unscaled = {"multiply_by_parameter_scale": False, "momentum": 0.9, "dtype_momentum": "float64"}
    more = {
        "leaves_out": ("encoder.layers.1.conv.weight",)
    }  # optax factors its two largest dimensions, not the last two
    more["tolerance"] = (1e-7, "optax computes 1 - t^-0.8 in float32")
    for name, options, our_call in (
        ("scaled", {"learning_rate": 0.05}, ours("adafactor", lr=0.05, **scaled)),
        ("momentum", {"learning_rate": 0.01, **unscaled}, ours("adafactor", lr=0.01, beta1=0.9, **external)),
    ):
        options["min_dim_size_to_factor"] = 1
        yield Case(f"adafactor-optax-{name}", "optax", "optax.adafactor", options, our_call, **more)


def came_cases():
    """Return CAME's: the authors' package, whose decay of the second moment is constant."""
    authors = {"beta2": 0.999, "beta3": 0.9999}
    other = {"betas": (0.8, 0.99, 0.9), "clip_threshold": 0.5, "weight_decay": 0.1, "eps": (1e-8, 1e-6)}
    mine_other = {"beta1": 0.8, "beta2": 0.99, "beta3": 0.9, "clip_threshold": 0.5, "weight_decay": 0.1}
    mine_other["eps"] = (1e-8, 1e-3, 1e-6)
    for name, options, mine, more, case in (
        ("", {"lr": 2e-4}, {"learning_rate": 2e-4, **authors}, {}, {}),
        ("-options", {"lr": 0.01, **other}, {"learning_rate": 0.01, **mine_other}, {}, {}),
        ("-gaps", {"lr": 0.01, **other}, {"learning_rate": 0.01, **mine_other}, {}, {"kind": "gaps"}),
        ("-layerwise", {"lr": 2e-4}, {"learning_rate": 2e-4, **authors}, {"layerwise_decay": 0.8}, {"decay": 0.8}),
        ("-schedule", {"lr": RATES[0]}, authors, {"rates": RATES}, {"rates": RATES}),
    ):
        mine = {**ours("came", **mine), **more}
        yield Case(f"came-authors{name}", "came-pytorch", "came_pytorch.CAME", options, mine, **case)


def adam_weight_decay_cases():
    """Return AdamWeightDecay's: TensorFlow, whose rounded numbers are what ours is given."""
    why = ROUNDING[0], "rounding alone: ours is given the rates and betas as TensorFlow's float32 has them"
    cls = "transformers.AdamWeightDecay"
    patterns = {"include_in_weight_decay": ["layers.0.norm1"], "exclude_from_weight_decay": ["norm", "bias", "conv"]}
    for name, options, kind in (
        ("", {"learning_rate": 0.01, "weight_decay_rate": 0.01}, "steps"),
        ("-patterns", {"learning_rate": 0.01, "weight_decay_rate": 0.1, **patterns}, "steps"),
        ("-amsgrad", {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.9, "amsgrad": True}, "steps"),
        ("-gaps", {"learning_rate": 0.003, "epsilon": 1e-4, "weight_decay_rate": 0.1}, "gaps"),
        ("-clipnorm", {"learning_rate": 0.01, "clipnorm": 0.5, "decay": 0.1, "weight_decay_rate": 0.1}, "steps"),
    ):
        mine = {"beta_1": 0.9, "beta_2": 0.999, **options}
        rounded = {"learning_rate", "beta_1", "beta_2", "decay"}
        mine = {key: float(np.float32(value)) if key in rounded else value for key, value in mine.items()}
        our_call, id_ = ours("adamweightdecay", **mine), f"adamweightdecay-tensorflow{name}"
        yield Case(id_, "tensorflow", cls, options, our_call, kind=kind, tolerance=why)


def muon_cases():
    """Return Muon's: torch's Muon and AdamW, and optax's, which has both."""
    matrices = [name for name, shape in SHAPES.items() if len(shape) == 2]
    plain = {"learning_rate": 0.01, "weight_decay": 0.1}
    original = {"learning_rate": 0.003, "weight_decay": 0.01, "momentum": 0.8, "nesterov": False, "ns_steps": 3}
    for name, mine, more in (
        ("", plain, {}),
        ("-original", {**original, "adjust_lr": "original"}, {}),
        ("-gaps", original, {"kind": "gaps"}),
        ("-layerwise", plain, {"decay": 0.8}),
    ):
        adjust = {"adjust_lr_fn": mine.get("adjust_lr", "match_rms_adamw")}
        options = {k: v for k, v in mine.items() if k not in ("learning_rate", "adjust_lr")}
        options = {"lr": mine["learning_rate"], **options, **adjust}
        our_call = {**ours("muon", **mine), "muon": matrices}
        our_call = our_call if "decay" not in more else {**our_call, "layerwise_decay": more["decay"]}
        yield Case(f"muon-torch{name}", "torch", "torch.optim.Muon", options, our_call, **more)
    for name, options, adjust in (("", {}, "original"), ("-rms", {"consistent_rms": 0.2}, "match_rms_adamw")):
        # its epsilon is also added to norms, and its Nesterov momentum has a bias correction
        shared = {"learning_rate": 0.01, "weight_decay": 0.1, "nesterov": False}
        theirs = {**shared, **options, "adam_weight_decay": 0.1, "eps": 1e-30}
        our_call = {**ours("muon", **shared, epsilon=1e-30, adjust_lr=adjust), "muon": matrices}
        yield Case(f"muon-optax{name}", "optax", "optax.contrib.muon", theirs, our_call)


def cases():
    made = (adamw_cases(), lamb_cases(), adafactor_cases(), came_cases(), adam_weight_decay_cases(), muon_cases())
    return [case for some in made for case in some]


def entry(case):
    fields = {"id": case.id, "peer": version(case.peer), "class": case.cls, "options": case.options}
    fields.update(inputs=case.kind, leaves_out=case.leaves_out, ours=case.ours)
    if case.decay != 1.0:
        fields["options"] = {**case.options, "lr of a group": f"lr times the ratio of its layer, decay {case.decay}"}
    if case.rates:
        fields["options"] = {**fields["options"], "lr of a step": case.rates}
    return {**fields, "tolerance": case.tolerance[0], "reason": case.tolerance[1]}


def make():
    """Return (index, arrays) of a fresh run of all peers."""
    arrays = make_inputs()
    entries, recorded = [], {}
    for case in cases():
        values = run(case, arrays)
        recorded[case.id] = np.stack([join({n: a[i] for n, a in values.items()}) for i in range(len(RECORDED))])
        entries.append(entry(case))
        print(f"{case.id:40} {entries[-1]['peer']}", flush=True)
    parameters = {name: list(shape) for name, shape in SHAPES.items()}
    index = {"parameters": parameters, "n_layers": N_LAYERS, "recorded_steps": RECORDED, "cases": entries}
    return json.loads(json.dumps(index)), {**arrays, **recorded}


def write(index, arrays):
    """Write all files, of the JSON one line a case."""
    lines = ",\n".join("  " + json.dumps(one) for one in index["cases"])
    head = json.dumps({key: value for key, value in index.items() if key != "cases"})
    INDEX.write_text(f'{head[:-1]},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    np.savez_compressed(ARRAYS, **arrays)
    size = sum(path.stat().st_size for path in (INDEX, ARRAYS))
    print(f"{len(index['cases'])} cases, {size} bytes in {INDEX.parent}")


def differences(index, arrays):
    """Return a line for each way in which a fresh run is not what is stored; other versions of a peer are none."""
    stored, stored_arrays = load_index(), load_arrays()
    found = [f"`{key}` differs" for key in index if key != "cases" and index[key] != stored[key]]
    found += [f"`{k}` differs" for k in make_inputs() if not np.array_equal(arrays[k], stored_arrays.get(k))]
    by_id = {one["id"]: one for one in stored["cases"]}
    found += [f"{name}: stored, but not made" for name in set(by_id) - {one["id"] for one in index["cases"]}]
    start = split(arrays["start"], SHAPES)
    for one in index["cases"]:
        old = by_id.get(one["id"])
        if old is None:
            found.append(f"{one['id']}: made, but not stored")
            continue
        if old["peer"] != one["peer"]:
            print(f"{one['id']}: stored with {old['peer']}")
        compared = ("class", "options", "inputs", "leaves_out", "ours", "tolerance")
        found += [f"{one['id']}: `{key}` differs" for key in compared if one[key] != old[key]]
        shapes = {n: s for n, s in SHAPES.items() if n not in one["leaves_out"]}
        pair = [split(a[one["id"]], shapes) for a in (arrays, stored_arrays)]
        size, where = error(*pair, start)
        if size > ROUNDING[0]:
            found.append(f"{one['id']}: {where} differs by {size:.1e} of its way")
    return found


def random_problems(count, seed, ours):
    """Run the peers on random problems and ours in a process of its own; return whether any differs."""
    tests = pathlib.Path(__file__).resolve().parents[1]
    sys.path.append(str(tests))
    from golden.random_problems import problem, save, with_gaps

    problems, values = [problem(seed, number) for number in range(count)], []
    for number, one in enumerate(problems):
        case = Case(f"random-{number}", one["peer"], one["cls"], one["options"], one["ours"], decay=one["decay"])
        values.append(list(RUNNERS.get(case.peer, run_torch)(case, one["start"], with_gaps(one))))
        if number % 100 == 99:
            print(f"{number + 1} of {count} problems by the peers, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "problems.npz")
        save(path, problems, values)
        search = os.pathsep.join(map(str, [tests, tests / "support", tests.parent]))
        command = [ours, "-m", "golden.random_problems", path]
        return bool(subprocess.run(command, env={**os.environ, "PYTHONPATH": search}).returncode)


def main():
    """Run the peers; write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the stored files instead of writing them")
    parser.add_argument("--random", type=int, nargs="?", const=1500, metavar="N", help="compare on N random problems")
    parser.add_argument("--seed", type=int, default=0, help="of the random problems")
    parser.add_argument("--ours", default=sys.executable, metavar="PYTHON", help="the Python that has Paddle")
    how = parser.parse_args()
    if how.random is not None:
        return random_problems(how.random, how.seed, how.ours)
    made = make()
    if not how.check:
        return write(*made)
    found = differences(*made)
    print("\n".join(found) or f"all {len(made[0]['cases'])} cases are what the peers compute")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
