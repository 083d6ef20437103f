"""The one door to what Paddle and PaddleNLP do not document: every private name that this package touches is here.

Each is declared with its owner and the feature that needs it, in the module of Paddle's area. A Paddle in which one has
moved can still be imported: using the feature then raises `MovedError`, which names both. tests/test_paddle.py looks
for every one of them. Seen in Paddle 3.1, 3.2 and 3.3. Methods that a subclass of Paddle's classes overrides, and their
`super()` calls, stand in the subclass.
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
