"""Layers as functions and as modules, under PyTorch's names."""

from . import (
    containers,
    module,
    modules_activation,
    modules_attention,
    modules_convolution,
    modules_linear,
    modules_loss,
    modules_norm,
    modules_pool,
    modules_recurrent,
    modules_shape,
    nn_functions,
    parameters,
)
from .containers import *  # noqa: F403
from .module import *  # noqa: F403
from .modules_activation import *  # noqa: F403
from .modules_attention import *  # noqa: F403
from .modules_convolution import *  # noqa: F403
from .modules_linear import *  # noqa: F403
from .modules_loss import *  # noqa: F403
from .modules_norm import *  # noqa: F403
from .modules_pool import *  # noqa: F403
from .modules_recurrent import *  # noqa: F403
from .modules_shape import *  # noqa: F403
from .nn_functions import *  # noqa: F403
from .parameters import *  # noqa: F403

__all__ = [
    *containers.__all__,
    *module.__all__,
    *modules_activation.__all__,
    *modules_attention.__all__,
    *modules_convolution.__all__,
    *modules_linear.__all__,
    *modules_loss.__all__,
    *modules_norm.__all__,
    *modules_pool.__all__,
    *modules_recurrent.__all__,
    *modules_shape.__all__,
    *nn_functions.__all__,
    *parameters.__all__,
]


def __getattr__(name: str) -> object:
    from . import __all__ as functions
    from .names import instead

    near = instead(name, __all__, [f"aicf.{key}" for key in functions])
    raise AttributeError(f"aicf.nn: there is no {name!r}{near}", name=name)
