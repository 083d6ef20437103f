"""Who is measured: ours and the peers, by optimizer, each over the same tensors."""

import dataclasses
import importlib
import inspect
import pathlib
import sys

import numpy as np
from shapes import parameters, values

LAYERWISE_DECAY = 0.8
RATE, DECAY = 1e-4, 0.01


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One optimizer of one package.

    Args:
        cls (str): dotted path of its class or function.
        options (dict): what it is called with.
        layers (str, optional): how ours is told the layers: "map", "names", "wrapped" (around Paddle's), or not at all.
    """

    cls: str
    options: dict = dataclasses.field(default_factory=dict)
    layers: str = ""

    @property
    def package(self):
        """The package it is from."""
        return self.cls.partition(".")[0]

    @property
    def in_paddle(self):
        """Whether its tensors are Paddle's."""
        return self.package in ("paddle", "paddle_ldopt")

    def find(self):
        """Import the class; raise ImportError if its package is not there."""
        if self.package == "timm":
            _mend_torchvision()
        module, _, name = self.cls.rpartition(".")
        return getattr(importlib.import_module(module), name)

    def build(self, params, name_dict, options):
        """Return the optimizer over the parameters, whose structured names `name_dict` has."""
        cls, options = self.find(), {**self.options, **options}
        if self.cls.endswith(".Muon") and not self.in_paddle:  # matrices alone
            params = [{"params": [param for param in params if param.ndim == 2], "use_muon": True}]
        if not self.in_paddle:
            return cls(params, **options)
        if not self.layers:
            return cls(parameters=params, **options)
        if self.layers == "names":
            blocks = {name.split(".")[2] for name in name_dict.values() if name.startswith("encoder.layers.")}
            options.update(n_layers=len(blocks), name_dict=name_dict)
            return cls(parameters=params, layerwise_decay=LAYERWISE_DECAY, **options)
        from paddle_ldopt import LayerMap

        layers = LayerMap.from_names(name_dict.values())
        layers.name_dict.update(name_dict)
        if self.layers == "wrapped":
            from paddle.optimizer import AdamW

            return cls(AdamW(parameters=params, **options), layers, LAYERWISE_DECAY)
        return cls(parameters=params, layerwise_decay=LAYERWISE_DECAY, layers=layers, **options)

    def has(self, argument):
        """Say whether its class takes the argument."""
        parameters = inspect.signature(self.find()).parameters.values()
        return any(one.name == argument or one.kind is one.VAR_KEYWORD for one in parameters)

    def tensors(self, shapes, gradient):
        """Return parameters with gradients of a scale, and their name_dict."""
        if self.in_paddle:
            return parameters(shapes, gradient)
        import torch

        params = [torch.nn.Parameter(torch.from_numpy(value)) for _, value in values(shapes, 0.02)]
        for param, (_, grad) in zip(params, values(shapes, gradient)):
            param.grad = torch.from_numpy(grad)
        return params, {}

    def state_bytes(self, optimizer):
        """Return the bytes of all state tensors."""
        if self.in_paddle:
            from state_bytes import bytes_of

            return bytes_of(optimizer)
        tensors = [value for state in optimizer.state.values() for value in state.values() if hasattr(value, "nbytes")]
        return sum(tensor.nbytes for tensor in tensors)


def _mend_torchvision():
    """Let timm import torchvision beside a CPU-only PyTorch, as `make parity` does."""
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "golden"))
    from peers import mend_torchvision

    mend_torchvision()


def _torch(cls, **options):
    return Contestant(cls, {"lr": RATE, **options})


_ADAMW = Contestant("paddle.optimizer.AdamW", {"learning_rate": RATE, "weight_decay": DECAY})
_OURS = {"learning_rate": RATE, "weight_decay": DECAY}
_EXTERNAL = {"scale_parameter": False, "relative_step": False}

# Of each optimizer: ours, then the peers. Ours has a layer-wise decay, which the peers have not.
CONTESTANTS = {
    "adamwdl": {
        "AdamWDL": Contestant("paddle_ldopt.AdamWDL", _OURS, "map"),
        "paddle.optimizer.AdamW": _ADAMW,
        "torch.optim.AdamW": _torch("torch.optim.AdamW", weight_decay=DECAY, foreach=False),
        "torch.optim.AdamW(foreach=True)": _torch("torch.optim.AdamW", weight_decay=DECAY, foreach=True),
        "torch.optim.AdamW(fused=True)": _torch("torch.optim.AdamW", weight_decay=DECAY, fused=True),
    },
    "lamb": {
        "Lamb": Contestant("paddle_ldopt.Lamb", _OURS, "map"),
        "paddle.optimizer.Lamb": Contestant(
            "paddle.optimizer.Lamb", {"learning_rate": RATE, "lamb_weight_decay": DECAY}
        ),
        "timm.optim.Lamb": _torch("timm.optim.Lamb", weight_decay=DECAY, max_grad_norm=None),
        "pytorch_optimizer.Lamb": _torch("pytorch_optimizer.Lamb", weight_decay=DECAY),
    },
    "adafactor": {
        "Adafactor": Contestant("paddle_ldopt.Adafactor", {"learning_rate": RATE, **_EXTERNAL}, "map"),
        "torch.optim.Adafactor": _torch("torch.optim.Adafactor"),
        "transformers.Adafactor": _torch("transformers.optimization.Adafactor", **_EXTERNAL),
    },
    "came": {
        "Came": Contestant("paddle_ldopt.Came", {"learning_rate": RATE, "beta2": 0.999, "beta3": 0.9999}, "map"),
        "came_pytorch.CAME": _torch("came_pytorch.CAME"),
        "pytorch_optimizer.CAME": _torch("pytorch_optimizer.CAME"),
    },
    "adamweightdecay": {
        "AdamWeightDecay": Contestant(
            "paddle_ldopt.AdamWeightDecay", {"learning_rate": RATE, "weight_decay_rate": DECAY}, "map"
        ),
        "paddle.optimizer.AdamW": _ADAMW,
    },
    "muon": {  # over matrices alone, which are all that the peers take
        "Muon": Contestant("paddle_ldopt.Muon", {"learning_rate": RATE, "weight_decay": DECAY}, "map"),
        "torch.optim.Muon": _torch("torch.optim.Muon", weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        "pytorch_optimizer.Muon": _torch("pytorch_optimizer.Muon", weight_decay=DECAY),
    },
    "layer-wise decay": {  # what it costs, and each way to ask for it
        "paddle.optimizer.AdamW": _ADAMW,
        "AdamWDL(layerwise_decay=1.0)": Contestant("paddle_ldopt.AdamWDL", _OURS),
        "AdamWDL(layers=...)": Contestant("paddle_ldopt.AdamWDL", _OURS, "map"),
        "AdamWDL(name_dict=...)": Contestant("paddle_ldopt.AdamWDL", _OURS, "names"),
        "apply_layerwise_decay(AdamW)": Contestant("paddle_ldopt.apply_layerwise_decay", _OURS, "wrapped"),
    },
}
OPTIMIZERS = [name for name in CONTESTANTS if name not in ("layer-wise decay", "muon")]
for _name in OPTIMIZERS:
    (_label, _ours), *_ = CONTESTANTS[_name].items()
    CONTESTANTS[_name][f"{_label}(fused=False)"] = dataclasses.replace(_ours, options={**_ours.options, "fused": False})

# Bytes a parameter in float32 that the algorithm must move at least.
FLOOR_BYTES = {
    "adamwdl": 28,  # reads p, g, m, v; writes p, m, v
    "lamb": 32,  # and reads the update once more for its norm
    "adafactor": 20,  # reads g for the sums, g for the RMS, g and p; writes p
    "came": 32,
    "adamweightdecay": 28,
}
# Bytes a parameter of state in float32, for large matrices.
STATE_BYTES = {"adamwdl": 8, "lamb": 8, "adafactor": 0, "came": 4, "adamweightdecay": 8}


class Triad:
    """``a += s * b`` in place over arrays beyond the caches: what the memory gives to so many threads."""

    ELEMENTS = 1 << 26

    def __init__(self, threads):
        import concurrent.futures

        pieces = self.ELEMENTS >> 20
        arrays = np.ones(self.ELEMENTS, "float32"), np.full(self.ELEMENTS, 1e-6, "float32")
        self.pieces = list(zip(*(np.split(array, pieces) for array in arrays)))
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)

    def step(self):
        """Go over the arrays once: 12 bytes an element, read a and b, write a."""
        list(self.pool.map(lambda pair: np.add(*pair, out=pair[0]), self.pieces))

    @classmethod
    def bandwidth(cls, seconds):
        """Return the bytes a second of a step that took so long."""
        return 12 * cls.ELEMENTS / seconds
