"""The model, the optimizers and the files of tests/saving."""

import contextlib
import hashlib
import json
import re
import struct

import numpy as np
import paddle
import pytest
from paddle import nn
from toy_layers import Linear

import paddle_ldopt as ldopt

OPTIONS = {
    **dict.fromkeys(["adamwdl", "adamwdl bf16", "adamwdl float64", "lamb bf16", "came bf16", "came float64"], {}),
    **dict.fromkeys(["lamb", "came"], {"weight_decay": 0.01}),
    "came compressed": {"compression": True},
    "came relative": {"relative_step": True},
    "adafactor": {"scale_parameter": False, "relative_step": False},
    "adafactor momentum": {"beta1": 0.9, "relative_step": True},
    "adamweightdecay": {"weight_decay_rate": 0.01},
    "adamweightdecay amsgrad": {"amsgrad": True, "decay": 0.1},
}
CASES = tuple(OPTIONS)
# Paddle's own, after `apply_layerwise_decay`
PADDLES = {
    **dict.fromkeys(["SGD", "Adamax", "Adadelta", "RAdam"], {}),
    "SGD bf16": {"weight_decay": 0.1},
    "Momentum": {"weight_decay": 0.1, "use_nesterov": True},
    **dict.fromkeys(["Momentum multi-tensor", "Adam multi-tensor"], {"use_multi_tensor": True}),
    "Adam": {"amsgrad": True, "name": "of_a_user"},
    "AdamW": {"apply_decay_param_fun": lambda name: "w_0" in name},
    "NAdam": {"weight_decay": paddle.regularizer.L1Decay(0.1)},
    "Lamb": {"exclude_from_weight_decay_fn": lambda param: param.ndim < 2},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "RMSProp": {"centered": True, "momentum": 0.5},
    "ASGD": {"batch_num": 2},
}
# Paddle's kernels for 16-bit parameters run on GPUs only, except that of SGD
UNTRAINED = {f"{name} bf16": {} for name in ("Momentum", "Adam", "AdamW", "Lamb", "ASGD")}
OPTIONS.update({**PADDLES, **UNTRAINED})
HALF, ALL = 3, 6  # steps
SLOW = (pytest.mark.fault, pytest.mark.timeout(1800))


class Model(nn.Layer):
    def __init__(self, width, blocks):
        super().__init__()
        self.embed = Linear(3, width)
        self.blocks = nn.LayerList([Linear(width, width) for _ in range(blocks)])
        self.head = Linear(width, 2)
        self.scale = self.create_parameter([], default_initializer=nn.initializer.Constant(0.5))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = paddle.tanh(block(x))
        return self.head(x) * self.scale.astype(x.dtype)


class Run:
    """A model and its optimizer of `OPTIONS`; the batch of a step is the same in all of them.

    `guard`: parameters have the names of a new process; `idle`: a parameter without gradients; `groups`: options of
    groups, over which the parameters are spread.
    """

    def __init__(
        self, case, seed=0, guard=True, rate=1e-3, layerwise=True, decay=0.5, idle=None, fused=None, width=4, blocks=2,
        groups=None, **options,
    ):  # fmt: skip
        name, _, kind = case.partition(" ")
        paddle.seed(seed)
        if not guard:
            Model(width, blocks)
        with paddle.utils.unique_name.guard() if guard else contextlib.nullcontext():
            self.model = Model(width, blocks)
        self.dtype = "float64" if kind == "float64" else "float32"
        if kind in ("bf16", "float64"):
            self.model.to(dtype={"bf16": "bfloat16"}.get(kind, kind))
        options = {**OPTIONS[case], **options}
        if kind == "bf16":
            options.setdefault("multi_precision", True)
        if not options.get("relative_step"):
            options["lr" if name == "adafactor" else "learning_rate"] = rate
        layers = ldopt.LayerMap.from_model(self.model, rules={"^scale$": "head"}) if layerwise else None
        decay = ldopt.LayerDecay(decay) if isinstance(decay, float) else decay
        params = self.model.parameters()
        if groups:
            params = [{"params": params[i :: len(groups)], **group} for i, group in enumerate(groups)]
        options["parameters"] = params
        if name in paddle.optimizer.__all__:
            self.optimizer = getattr(paddle.optimizer, name)(**options)
            if layerwise:
                ldopt.apply_layerwise_decay(self.optimizer, layers, decay)
        else:
            options.update({"layers": layers, "layerwise_decay": decay} if layerwise else {}, fused=fused)
            self.optimizer = ldopt.optimizer_class(name)(**options)
        self.rate, self.idle, self.done, self.guard = rate, idle, 0, guard

    def train(self, until):
        """Take the steps up to number `until`."""
        with paddle.utils.unique_name.guard() if self.guard else contextlib.nullcontext():
            for step in range(self.done, until):
                x = paddle.to_tensor(np.random.default_rng(step).standard_normal([5, 3]), dtype=self.dtype)
                (self.model(x) ** 2).mean().backward()
                for name, param in self.model.named_parameters():
                    if name == self.idle:
                        param.clear_gradient(False)
                self.optimizer.step()
                self.optimizer.clear_grad(set_to_zero=False)
                if isinstance(self.rate, paddle.optimizer.lr.LRScheduler) and not hasattr(self.rate, "patience"):
                    self.rate.step()
        self.done = until
        return self

    def with_weights_of(self, other):
        """Take over the parameters of another run."""
        for mine, theirs in zip(self.model.parameters(), other.model.parameters()):
            mine.set_value(theirs.numpy())
        self.done = other.done
        return self

    def values(self):
        return {name: param.numpy() for name, param in self.model.named_parameters()}

    def state(self):
        """Return structured name of the state -> value, masters included."""
        state = dict(self.optimizer.state_dict())
        masters = state.pop("master_weights", {})
        state.pop("LR_Scheduler", None)
        found = {f"{name}.master": value.numpy() for name, value in masters.items()}
        found.update((key, value.numpy()) for key, value in state.items())
        names = {param.name: name for name, param in self.model.named_parameters()}
        names = sorted(names.items(), key=lambda pair: -len(pair[0]))
        ours = {key: next(name for paddles, name in names if key.startswith(paddles)) for key in found}
        # what is behind the parameter's name, without what tells masters and copies
        rest = {key: re.sub(r"^\w+\.[wb]_\d+|^\w+?_\d+\.w_\d+|_fp32_master_\d+|_\d+$", "", key) for key in found}
        return {f"{ours[key]}.{rest[key].strip('_.')}": value for key, value in found.items()}

    def everything(self):
        rate = self.rate.state_dict() if hasattr(self.rate, "state_dict") else {}
        return {**self.values(), **self.state(), "rate": np.array(json.dumps(rate, default=str))}


def same(one, other):
    return bits(one) == bits(other)


def bits(arrays):
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


def digest(arrays):
    """Return a number for all values, whatever Paddle calls the parameters."""
    return hashlib.sha256(b"".join(a.tobytes() for _, a in sorted(arrays.items()))).hexdigest()


@contextlib.contextmanager
def refused(says, kind, run, what=None):
    """Expect an error that says something, and nothing of `run` to be changed by then."""
    before = bits(run.everything())
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    if isinstance(caught.value, (ValueError, TypeError)):
        assert "Received:" in message, (what, message)
    assert re.search(says, message), (what, message)
    assert bits(run.everything()) == before, what


def load_refused(says, run, path, what=None, kind=ValueError, **how):
    with refused(says, kind, run, what):
        ldopt.load_optimizer(path, run.optimizer, run.model, **how)


def print_loaded(path):
    """Load a file in a process where Paddle's names are others; print its step and the digest of the state."""
    paddle.nn.LayerList([paddle.nn.Linear(2, 2) for _ in range(5)])
    run = Run("came", guard=False)
    print(ldopt.load_optimizer(path, run.optimizer, run.model).step, digest(run.state()))


def write_raw(path, header, data=b""):
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)


def sealed(path, target, record=None, tensors=None, values=None):
    """Write a changed copy of a file with the right checksum, as somebody who means harm would."""
    content = read(path)
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    for name, value in (values or {}).items():
        begin, end = header[name]["data_offsets"]
        data[begin:end] = value.tobytes()
    if tensors is not None:
        tensors(header)
    if record is not None:
        changed = json.loads(header["__metadata__"]["record"])
        record(changed)
        header["__metadata__"]["record"] = json.dumps(changed)
    header["__metadata__"]["sha256"] = "0" * 64
    head = json.dumps(header, separators=(",", ":")).encode()
    total = hashlib.sha256(struct.pack("<Q", len(head)) + head + bytes(data)).hexdigest()
    write_raw(target, head.replace(b"0" * 64, total.encode()), bytes(data))


def each_damage(data, draw, flips, cuts):
    for at in draw.choice(len(data), flips, replace=False):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(draw.integers(8))
        yield f"flipped {at}", bytes(damaged)
    lengths = {0, 1, 7, 8, 9, len(data) - 1, *map(int, draw.integers(0, len(data), cuts))}
    yield from ((f"cut at {length}", data[:length]) for length in sorted(lengths))
    yield "longer", data + b"\0"
    header = struct.unpack("<Q", data[:8])[0]
    yield "zeroed data", data[: 8 + header] + b"\0" * (len(data) - 8 - header)
    yield "another file's data", data[: 8 + header] + data[8 + header :][::-1]


def read(path):
    with open(path, "rb") as file:
        return file.read()
