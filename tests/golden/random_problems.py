"""Random problems for the real peers and ours: ``make parity ARGS=--random``.

Each problem is drawn from a seed and its number: a peer, its options, eight parameters of random shapes, a random start
and gradients, of which some may be zero, huge or absent. `make.py` runs the peer, this file ours:

    PYTHONPATH=tests:tests/support python -m golden.random_problems problems.npz      # which `make.py --random` starts
"""

import collections
import json
import sys

import numpy as np
from golden.trajectories import error, join, split

STEPS = 8
NAMES = {  # BERT's names -> dimensions
    "embeddings.word_embeddings.weight": 2,
    "embeddings.scale": 0,
    "encoder.layers.0.norm1.bias": 1,
    "encoder.layers.0.linear1.weight": 2,
    "encoder.layers.1.conv.weight": 4,
    "encoder.layers.1.linear1.weight": 3,
    "encoder.layers.1.gate": 1,
    "classifier.weight": 2,
}
# part of a parameter's way by which ours may differ
TOLERANCES = {"adamwdl": 1e-6, "adafactor": 1e-6}  # Paddle's kernel and optax have numbers in float32
TOLERANCE = 1e-8


def drawn(rng, low, high, log=False):
    """Return a random number that float32 represents exactly."""
    number = 10 ** rng.uniform(np.log10(low), np.log10(high)) if log else rng.uniform(low, high)
    return float(np.float32(number))


def maybe(rng, value, otherwise, share=0.5):
    return value if rng.random() < share else otherwise


def adam(rng):
    """Return what all of Adam's kind have: rate, betas, epsilon, weight decay."""
    betas = drawn(rng, 0.5, 0.98), drawn(rng, 0.8, 0.9995)
    return drawn(rng, 1e-4, 0.05, True), betas, drawn(rng, 1e-8, 1e-3, True), maybe(rng, drawn(rng, 0.001, 0.3), 0.0)


def torch_adamw(rng, optimizer="adamwdl", epsilon="epsilon", peer="torch", cls="torch.optim.AdamW", **more):
    """PyTorch's AdamW, with a rate for each layer or without; or another class with arguments of the same names."""
    lr, betas, eps, decay = adam(rng)
    mine = {"learning_rate": lr, "beta1": betas[0], "beta2": betas[1], epsilon: eps, "weight_decay": decay}
    options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay, **more}
    return {"peer": peer, "cls": cls, "options": options, "ours": (optimizer, mine)}


def timm_lamb(rng):
    return torch_adamw(rng, "lamb", "eps", "timm", "timm.optim.Lamb", max_grad_norm=None, always_adapt=True)


def optax_lamb(rng):
    found = torch_adamw(rng, "lamb", "eps", "optax", "optax.lamb")
    lr, (b1, b2), eps, decay = found["options"].values()
    options = {"learning_rate": lr, "b1": b1, "b2": b2, "eps": eps, "weight_decay": decay}
    return {**found, "options": options, "layerwise": False}


def transformers_adafactor(rng):
    """The Adafactor of transformers, with a rate of its own or a relative one."""
    relative = bool(rng.random() < 0.4)
    options = {
        "scale_parameter": bool(rng.random() < 0.5),
        "relative_step": relative,
        "warmup_init": relative and bool(rng.random() < 0.5),
        "eps": (drawn(rng, 1e-30, 1e-6, True), drawn(rng, 1e-4, 0.1, True)),
        "clip_threshold": drawn(rng, 0.3, 2.0),
        "decay_rate": -drawn(rng, 0.3, 0.95),
        "beta1": maybe(rng, drawn(rng, 0.3, 0.95), None),
        "weight_decay": maybe(rng, drawn(rng, 0.001, 0.3), 0.0),
    }
    if not relative:
        options["lr"] = drawn(rng, 1e-4, 0.05, True)
    cls = "transformers.optimization.Adafactor"
    ours = ("adafactor", dict(options))
    return {"peer": "transformers", "cls": cls, "options": options, "ours": ours, "layerwise": not relative}


def optax_adafactor(rng):
    """Optax's Adafactor, without the parameter of which it factors other dimensions."""
    scaled = bool(rng.random() < 0.5)
    momentum, lr = maybe(rng, drawn(rng, 0.3, 0.95), None), drawn(rng, 1e-3, 0.05, True)
    options = {"learning_rate": lr, "multiply_by_parameter_scale": scaled, "min_dim_size_to_factor": 1}
    if momentum is not None:
        options.update(momentum=momentum, dtype_momentum="float64")
    mine = {"lr": lr, "scale_parameter": scaled, "relative_step": False, "beta1": momentum}
    answer = {"peer": "optax", "cls": "optax.adafactor", "options": options, "ours": ("adafactor", mine)}
    leaves_out = ("encoder.layers.1.conv.weight", "encoder.layers.1.linear1.weight")
    return {**answer, "layerwise": False, "leaves_out": leaves_out}


def authors_came(rng):
    lr, betas, _, decay = adam(rng)
    betas, eps = (*betas, drawn(rng, 0.8, 0.9999)), (drawn(rng, 1e-30, 1e-6, True), drawn(rng, 1e-16, 1e-6, True))
    options = {"lr": lr, "betas": betas, "eps": eps, "clip_threshold": drawn(rng, 0.3, 2.0), "weight_decay": decay}
    mine = {"learning_rate": lr, "eps": (eps[0], 1e-3, eps[1]), "weight_decay": decay}
    mine.update(zip(("beta1", "beta2", "beta3"), betas), clip_threshold=options["clip_threshold"])
    return {"peer": "came-pytorch", "cls": "came_pytorch.CAME", "options": options, "ours": ("came", mine)}


def tensorflow_adam_weight_decay(rng):
    lr, (beta_1, beta_2), epsilon, decay = adam(rng)
    options = {"learning_rate": lr, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "weight_decay_rate": decay}
    options["amsgrad"] = bool(rng.random() < 0.3)
    if rng.random() < 0.3:
        options.update(include_in_weight_decay=["norm1"], exclude_from_weight_decay=["norm", "bias", "conv"])
    if rng.random() < 0.3:
        options["clipnorm"] = drawn(rng, 0.1, 2.0)
    ours = ("adamweightdecay", dict(options))
    cls = "transformers.AdamWeightDecay"
    return {"peer": "tensorflow", "cls": cls, "options": options, "ours": ours, "layerwise": False}


KINDS = [torch_adamw, timm_lamb, optax_lamb, transformers_adafactor, optax_adafactor, authors_came]
KINDS.append(tensorflow_adam_weight_decay)


def problem(seed, number):
    """Return a problem: peer, class, options, ours, kind of gradients, decay, shapes, start, gradients, absent."""
    rng = np.random.default_rng([seed, number])
    kind = KINDS[number % len(KINDS)]
    found = {"layerwise": True, "leaves_out": (), **kind(rng)}
    leaves_out = found.pop("leaves_out")
    layerwise = bool(found.pop("layerwise")) and bool(rng.random() < 0.5)
    decay = round(float(rng.uniform(0.4, 0.95)), 2) if layerwise else 1.0
    optimizer, arguments = found.pop("ours")
    found["ours"] = {"optimizer": optimizer, "arguments": arguments}
    if decay != 1.0:
        found["ours"]["layerwise_decay"] = decay
    dimensions = {name: count for name, count in NAMES.items() if name not in leaves_out}
    shapes = {name: tuple(int(size) for size in rng.integers(1, 6, count)) for name, count in dimensions.items()}
    scales = {name: 2.0 ** rng.integers(-10, 6) for name in shapes}
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    if rng.random() < 0.3:
        start["encoder.layers.0.norm1.bias"][...] = 0.0
    grads = [{n: rng.normal(size=s) * scales[n] for n, s in shapes.items()} for _ in range(STEPS)]
    if rng.random() < 0.3:
        zero = int(rng.integers(1, STEPS))
        grads[zero] = {name: 0.0 * grad for name, grad in grads[zero].items()}
    if rng.random() < 0.3:
        spike = int(rng.integers(0, STEPS))
        grads[spike] = {name: 2.0**10 * grad for name, grad in grads[spike].items()}
    absent = rng.random((STEPS, len(shapes))) < maybe(rng, 0.25, 0.0, 0.4)
    return {**found, "decay": decay, "shapes": shapes, "start": start, "grads": grads, "absent": absent}


def with_gaps(found):
    """Return the gradients of each step, None where one is absent."""
    return [
        {name: None if gone else grad[name] for name, gone in zip(found["shapes"], absent)}
        for grad, absent in zip(found["grads"], found["absent"])
    ]


def save(path, problems, values):
    """Write what ours is compared with: the problems, and name -> the peer's value after each step of each."""
    head = [{"ours": one["ours"], "class": one["cls"], "shapes": one["shapes"]} for one in problems]
    arrays = {"head": np.array(json.dumps(head))}
    for number, (one, steps) in enumerate(zip(problems, values)):
        arrays[f"{number} start"] = join(one["start"])
        arrays[f"{number} grads"] = np.stack([join(grad) for grad in one["grads"]])
        arrays[f"{number} absent"] = one["absent"]
        arrays[f"{number} peer"] = np.stack([join(value) for value in steps])
    np.savez_compressed(path, **arrays)


def steps_of_ours(ours, start, grads):
    """Return the values after each step of an optimizer of ours."""
    from optimizer_cases import build
    from reference import make_params, take_steps

    params, name_dict = make_params(start, "float64")
    values = []
    note = lambda: values.append({n: p.numpy() for n, p in params.items()})  # noqa: E731
    take_steps(build(ours, params, name_dict)[0], params, grads, note)
    return values


def compare(path):
    """Run ours on the problems in a file; print the largest error of each peer and return how many are wrong."""
    worst, wrong = collections.defaultdict(lambda: (0, 0.0)), 0
    with np.load(path) as arrays:
        for number, one in enumerate(json.loads(str(arrays["head"]))):
            shapes = {name: tuple(shape) for name, shape in one["shapes"].items()}
            start = split(arrays[f"{number} start"], shapes)
            grads = [split(grad, shapes) for grad in arrays[f"{number} grads"]]
            grads = with_gaps({"shapes": shapes, "grads": grads, "absent": arrays[f"{number} absent"]})
            values = steps_of_ours(one["ours"], start, grads)
            got = {name: np.stack([value[name] for value in values]) for name in shapes}
            size, where = error(got, split(arrays[f"{number} peer"], shapes), start)
            count, most = worst[one["class"]]
            worst[one["class"]] = count + 1, max(most, size)
            if size > TOLERANCES.get(one["ours"]["optimizer"], TOLERANCE):
                wrong += 1
                print(f"problem {number}: {where} differs by {size:.1e} of its way from {one['class']}: {one['ours']}")
    for cls, (count, most) in worst.items():
        print(f"{cls:40} {count:5} problems, largest difference {most:.1e} of the way")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(compare(sys.argv[1])))
