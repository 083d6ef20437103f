"""The private names of Paddle and PaddleNLP that the package uses; no other part of it touches them.

To use one, declare it in the module of its area, with its owner and the feature that needs it, add it to the module's
`__all__`, and import the result from here. For example, in optimizers.py:

    masters = attribute("paddle.optimizer.Optimizer", "_master_weights", "Every optimizer")

    masters(optimizer)  # optimizer._master_weights

private_names.py has these ways to declare:

- `attribute`: a function that reads it from an instance.
- `part`: the object itself, looked up on import; `lazy`: a function that looks it up in its first call.
- `declare`: names that are used directly, such as methods that a subclass overrides.

tests/test_paddle.py checks that every declared name exists; all do in Paddle 3.1, 3.2 and 3.3. If a newer version
has moved one, `import paddle_ldopt` still works, and using the feature raises `MovedError`, which names both. Methods
that a subclass overrides, and their `super()` calls, are in the subclass.
"""

# ruff: noqa: F403  every name in an `__all__` is for the whole package
from .fleet import *
from .optimizers import *
from .private_names import PRIVATE as PRIVATE
from .private_names import MovedError as MovedError
from .rates_and_weight_decay import *
from .tensors import *
from .trainer import *
from .wrappers import *
