"""The structs of the C library for NumPy: `struct tensor` and the enumerations of csrc/step.h."""

import numpy as np

_RULE_FLAGS = ["factored", "momentum", "scale_parameter", "relative_step", "warmup_init", "constant_beta2", "amsgrad"]
_RULE_FLAGS += ["clip_norm", "clip_value", "centralize"]

TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
RULES = {name: i for i, name in enumerate(("adamw", "adam_weight_decay", "lamb", "adafactor", "came"))}
RULE_FLAGS = {name: 1 << i for i, name in enumerate(_RULE_FLAGS)}
PLACES = {name: i for i, name in enumerate(("param", "copy", "grad", 0, 1, 2, 3, 4, "step", "aux"))}  # in "held"
TENSOR = np.dtype(
    [
        *((name, "u8") for name in ("param", "copy", "grad")),
        ("state", "u8", 5),
        *((name, "u8") for name in ("step", "aux")),
        ("held", "i8", len(PLACES)),
        *((name, "i8") for name in ("batch", "rows", "cols")),
        *((name, "f8") for name in ("lr", "weight_decay", "beta1", "beta2", "beta3")),
        ("eps", "f8", 3),
        *((name, "f8") for name in ("clip", "clip_value", "decay_rate", "count", "grad_scale")),
        *((name, "i4") for name in ("rule", "flags", "param_type", "copy_type", "grad_type", "moment_type")),
    ],
    align=True,
)
