"""Layers as functions and as modules, under PyTorch's names."""

from . import (
    containers,
    module,
    modules_activation,
    modules_linear,
    nn_functions,
)
from .containers import *  # noqa: F403
from .module import *  # noqa: F403
from .modules_activation import *  # noqa: F403
from .modules_linear import *  # noqa: F403
from .nn_functions import *  # noqa: F403

__all__ = [
    *containers.__all__,
    *module.__all__,
    *modules_activation.__all__,
    *modules_linear.__all__,
    *nn_functions.__all__,
]
