"""The C library driven by NumPy alone: no Paddle, so that it also runs under the sanitizers (`make sanitize`)."""

import contextlib
import math

import numpy as np

TYPES = ("float32", "bfloat16", "float16")


def encode(array, dtype):
    """Return the array in `dtype`, bfloat16 as the uint16 that hold its bits, rounded to nearest even."""
    array = np.asarray(array, "float32")
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    bits = array.reshape(-1).view("u4").astype("u8")
    rounded = ((bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype("u2")
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded.reshape(array.shape))


def decode(array, dtype):
    """Return what `encode` gave as float32."""
    if dtype != "bfloat16":
        return array.astype("float32")
    return (array.reshape(-1).astype("u4") << np.uint32(16)).view("float32").reshape(array.shape)


def placed(array, offset):
    """Return a copy of the array that begins `offset` elements into its memory, guarded by sentinels on both sides."""
    memory = np.full(array.size + 2 * offset + 8, 77, array.dtype)
    view = memory[offset : offset + array.size].reshape(array.shape)
    view[...] = array
    return view, memory


@contextlib.contextmanager
def threads_of_openmp(kernels, count):
    """Let OpenMP use so many threads, None: as many as ever. The library is linked to it, or has one thread."""
    library = kernels.library()
    if count is None or not hasattr(library, "omp_set_num_threads"):
        yield
        return
    before = library.omp_get_max_threads()
    library.omp_set_num_threads(count)
    assert library.omp_get_max_threads() == count
    try:
        yield
    finally:
        library.omp_set_num_threads(before)


class Optimizer:
    """Tensors that begin at `arrays`, their state and one rule of `kernels.RULES`.

    With `masters`, weights of `param_type` follow float32 masters. Each array begins `offset` elements into its memory.
    Options have the names of the struct's fields; `flags` is a set of names.
    """

    def __init__(
        self, kernels, rule, arrays, param_type="float32", grad_type="float32", masters=False, offset=0, **options
    ):
        self.kernels, self.rule, self.offset = kernels, rule, offset
        self.param_type, self.grad_type, self.masters = param_type, grad_type, masters
        self.memory, self.arrays = [], {}
        self.tensors = np.zeros(len(arrays), kernels.TENSOR)
        defaults = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "beta3": 0.99, "clip": 1.0, "grad_scale": 1.0}
        defaults["decay_rate"] = 0.8 if rule in ("adafactor", "came") else 0.0
        eps = {"adafactor": (1e-30, 1e-3, 0), "came": (1e-30, 1e-3, 1e-16)}.get(rule, (1e-8, 0, 0))
        for record, (name, array) in zip(self.tensors, arrays.items()):
            own = {**defaults, "eps": eps, **options}
            flags = set(own.pop("flags", ()))
            self.moment_type = own.pop("moment_type", "float32")
            for field, value in own.items():
                record[field] = value
            record["rule"] = kernels.RULES[rule]
            self._place(record, name, array, flags)

    def _place(self, record, name, array, flags):
        shape, kernels = list(array.shape), self.kernels
        matrix = self.rule in ("adafactor", "came") and len(shape) >= 2
        rows, cols = (1, array.size)
        if matrix:
            flags.add("factored")
            rows, cols = shape[-2:]
        if "grad_centralization" in flags:
            rows, cols = (shape[0], math.prod(shape[1:])) if len(shape) in (4, 5) else (1, array.size)
            if len(shape) not in (4, 5):
                flags.remove("grad_centralization")
        batch = math.prod(shape[:-2]) if matrix else 1
        record["batch"], record["rows"], record["cols"] = batch, rows, cols
        record["flags"] = sum(kernels.RULE_FLAGS[flag] for flag in flags)
        states = self._states(matrix, flags, (batch, rows, cols), array.size)
        held = {"param": encode(array, "float32" if self.masters else self.param_type)}
        if self.masters:
            held["copy"] = encode(array, self.param_type)
        held.update({state: np.zeros(size, "float32") for state, size in states.items()})
        if 2 in held and self.moment_type != "float32":
            held[2] = held[2].astype("float16")
        held["step"] = np.full(1, record["beta1"] if self.rule == "adamw" else 0, "float32")
        if self.rule in ("adamw", "adafactor"):
            held["aux"] = np.full(1, record["beta2"] if self.rule == "adamw" else 0, "float32")
        self.arrays[name] = {}
        for field, value in held.items():
            view, memory = placed(value, self.offset)
            self.arrays[name][field] = view
            self.memory.append((view, memory))
            if isinstance(field, int):
                record["state"][field] = view.ctypes.data
            else:
                record[field] = view.ctypes.data
        record["param_type"] = kernels.TYPES["float32" if self.masters else self.param_type]
        record["copy_type"] = kernels.TYPES[self.param_type]
        record["grad_type"] = kernels.TYPES[self.grad_type]
        record["moment_type"] = kernels.TYPES[self.moment_type]

    def _states(self, matrix, flags, sizes, whole):
        batch, rows, cols = sizes
        if self.rule in ("adamw", "adam_weight_decay", "lamb"):
            return dict.fromkeys(range(3 if "amsgrad" in flags else 2), whole)
        states = {0: batch * rows, 1: batch * cols} if matrix else {0: whole}
        if "momentum" in flags:
            states[2] = whole
            if matrix and self.rule == "came":
                states.update({3: batch * rows, 4: batch * cols})
        return states

    def step(self, grads, threads=None):
        """Take one step, check that nothing outside the arrays was written, return the norm of the gradients.

        `threads` is the number of OpenMP's, None as many as ever.
        """
        chosen, kept = [], []
        for i, grad in enumerate(grads.values()):
            if grad is None:
                continue
            view, memory = placed(encode(grad, self.grad_type), self.offset)
            kept.append((view, memory))
            self.tensors[i]["grad"] = view.ctypes.data
            chosen.append(i)
        given = np.ascontiguousarray(self.tensors[chosen])
        if self.rule == "adam_weight_decay":
            given["count"] += 1
            self.tensors["count"] += 1
        with threads_of_openmp(self.kernels, threads):
            norm = self.kernels.norm(given)
            assert self.kernels.library().ldopt_step(given.ctypes.data, len(given)) == 0
        for view, memory in self.memory + kept:
            outside = np.concatenate([memory[: self.offset], memory[self.offset + view.size :]])
            assert (outside == 77).all(), "written outside of an array"
        return norm

    def weights(self):
        """Return name -> weights, as float32; those that follow the masters if there are any."""
        field = "copy" if self.masters else "param"
        return {name: decode(held[field], self.param_type) for name, held in self.arrays.items()}

    def bits(self):
        return {(name, field): a.tobytes() for name, held in self.arrays.items() for field, a in held.items()}


SHAPES = {"0-D": (), "one": (1,), "odd": (1003,), "long": (300007,), "empty": (0, 3), "row": (1, 37)}
SHAPES.update({"column": (41, 1), "small": (5, 7), "square": (129, 64), "wide": (3, 9001), "tall": (3001, 3)})
SHAPES.update({"adapter": (2500, 10), "adapters": (2, 131, 32), "wider": (67, 33), "batch": (3, 4, 5)})
SHAPES.update({"matrices": (2, 140, 1030), "convolution": (8, 3, 3, 3), "patches": (100, 3, 16, 16)})
SHAPES["volume"] = (3, 2, 3, 2, 2)


def problem(seed=0, steps=5, shapes=None):
    """Return name -> array of many shapes, and random gradients of different sizes for some steps."""
    rng = np.random.default_rng(seed)
    shapes = SHAPES if shapes is None else shapes
    arrays = {n: rng.normal(size=s).astype("float32") for n, s in shapes.items()}
    grads = [
        {n: (rng.normal(size=s) * 10.0 ** rng.uniform(-4, 1)).astype("float32") for n, s in shapes.items()}
        for _ in range(steps)
    ]
    return arrays, grads


# name -> (rule, options of the struct)
CLIPPED = {"flags": ["clipnorm", "clipvalue"], "clip": 0.5, "clip_value": 0.4}
SCALED = ["momentum", "scale_parameter", "constant_beta2"]
VARIANTS = {
    "adamw": ("adamw", {"weight_decay": 0.1}),
    "adam_weight_decay": ("adam_weight_decay", {"weight_decay": 0.1, "eps": (1e-7, 0, 0), "decay_rate": 0.1}),
    "amsgrad": ("adam_weight_decay", {"eps": (1e-7, 0, 0), "beta1": 0.0, "flags": ["amsgrad"]}),
    "clipped": ("adam_weight_decay", {"eps": (1e-7, 0, 0), **CLIPPED}),
    "lamb": ("lamb", {"weight_decay": 0.1, "eps": (1e-6, 0, 0)}),
    "lamb, centralized": ("lamb", {"eps": (1e-6, 0, 0), "flags": ["grad_centralization"]}),
    "adafactor": ("adafactor", {"lr": 1.0, "flags": ["relative_step", "scale_parameter"], "weight_decay": 0.1}),
    "adafactor, warm-up": ("adafactor", {"lr": 1.0, "flags": ["relative_step", "warmup_init"], "decay_rate": 0.5}),
    "adafactor, momentum": ("adafactor", {"flags": ["momentum"], "weight_decay": 0.1, "clip": 0.5}),
    "came": ("came", {"flags": ["momentum"], "weight_decay": 0.1}),
    "came, options": ("came", {"flags": SCALED, "grad_scale": 1 / 8, "beta2": 0.9, "clip": 0.7}),
    "came, relative": ("came", {"lr": 1.0, "flags": ["momentum", "relative_step"]}),
    "came without momentum": ("came", {"flags": []}),
}
