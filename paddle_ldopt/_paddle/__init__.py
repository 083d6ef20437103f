"""All private names of Paddle and PaddleNLP that this package uses, with one module for each area.

Each name is declared with its owner and the feature that needs it. If a Paddle has moved a name, `import paddle_ldopt`
still works, and using the feature raises `MovedError` with both. tests/test_paddle.py checks every name; all exist in
Paddle 3.1, 3.2 and 3.3. Methods that a subclass overrides, and their `super()` calls, are in the subclass.
"""

# ruff: noqa: F403  every name is for the rooms of the package
from .declared import PRIVATE as PRIVATE
from .declared import MovedError as MovedError
from .fleet import *
from .optimizers import *
from .rates import *
from .tensors import *
from .trainer import *
from .wrappers import *
