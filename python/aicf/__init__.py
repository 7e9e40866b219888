"""A whole training step, compiled into one plan and replayed with the same bits every time."""

from . import _core as _core  # before NumPy: its refusal of another interpreter is ours
from . import init, nn, optim
from . import subscripts as subscripts
from ._core import (
    Array,
    BadValue,
    CaptureError,
    DeviceLost,
    DeviceUnavailable,
    DTypeError,
    Error,
    FormatError,
    GraphError,
    InternalError,
    OutOfMemory,
    Outputs,
    Report,
    ShapeError,
    StaleOutput,
    Unsupported,
    num_threads,
    set_num_threads,
)
from .activations import *  # noqa: F403
from .activations import __all__ as _activation_names
from .arrays import *  # noqa: F403
from .arrays import __all__ as _array_names
from .assembly import *  # noqa: F403
from .assembly import __all__ as _assembly_names
from .batching import vmap
from .checkpoint import *  # noqa: F403
from .checkpoint import __all__ as _checkpoint_names
from .class_losses import *  # noqa: F403
from .class_losses import __all__ as _class_loss_names
from .convolutions import *  # noqa: F403
from .convolutions import __all__ as _convolution_names
from .custom import *  # noqa: F403
from .custom import __all__ as _custom_names
from .device import DeviceInfo, devices
from .eager import Event, OpKind, op_call, workspace_bytes
from .elementary import *  # noqa: F403
from .elementary import __all__ as _elementary_names
from .function import *  # noqa: F403
from .function import __all__ as _function_names
from .gradients import *  # noqa: F403
from .gradients import __all__ as _gradient_names
from .graph import Graph, Value, trace
from .heads import *  # noqa: F403
from .heads import __all__ as _head_names
from .indexing import *  # noqa: F403
from .indexing import __all__ as _indexing_names
from .loops import *  # noqa: F403
from .loops import __all__ as _loop_names
from .losses import *  # noqa: F403
from .losses import __all__ as _loss_names
from .movement import *  # noqa: F403
from .movement import __all__ as _movement_names
from .names import instead as _instead
from .nn_functions import *  # noqa: F403
from .nn_functions import __all__ as _nn_names
from .notebook import install as _install_notebook
from .numerics import *  # noqa: F403
from .numerics import __all__ as _numerics_names
from .ops import *  # noqa: F403
from .ops import __all__ as _op_names
from .pools import *  # noqa: F403
from .pools import __all__ as _pool_names
from .profile import profiler
from .recompute import *  # noqa: F403
from .recompute import __all__ as _recompute_names
from .recurrent import *  # noqa: F403
from .recurrent import __all__ as _recurrent_names
from .regularizers import *  # noqa: F403
from .regularizers import __all__ as _regularizer_names
from .resampling import *  # noqa: F403
from .resampling import __all__ as _resampling_names
from .sampling import *  # noqa: F403
from .sampling import __all__ as _sampling_names
from .sequences import *  # noqa: F403
from .sequences import __all__ as _sequence_names
from .step import Step, load_step
from .tuning import tune

_install_notebook()


def __getattr__(name: str) -> object:
    if name == "__version__":  # pyproject.toml alone says it
        from importlib.metadata import version

        return version("aicf")
    elsewhere = [f"aicf.{part.__name__[5:]}.{key}" for part in (nn, optim) for key in dir(part)]
    elsewhere += [f"aicf.Value.{key}" for key in dir(Value)]
    raise AttributeError(
        f"aicf: there is no {name!r}{_instead(name, __all__, elsewhere)}", name=name
    )


__version__: str

__all__ = [
    "Array",
    "BadValue",
    "CaptureError",
    "DTypeError",
    "DeviceInfo",
    "DeviceLost",
    "DeviceUnavailable",
    "Error",
    "Event",
    "FormatError",
    "Graph",
    "GraphError",
    "InternalError",
    "OpKind",
    "OutOfMemory",
    "Outputs",
    "Report",
    "ShapeError",
    "StaleOutput",
    "Step",
    "Unsupported",
    "Value",
    "devices",
    "init",
    "load_step",
    "nn",
    "num_threads",
    "op_call",
    "optim",
    "profiler",
    "set_num_threads",
    "trace",
    "tune",
    "vmap",
    "workspace_bytes",
    *_activation_names,
    *_array_names,
    *_assembly_names,
    *_checkpoint_names,
    *_class_loss_names,
    *_elementary_names,
    *_convolution_names,
    *_custom_names,
    *_function_names,
    *_gradient_names,
    *_head_names,
    *_indexing_names,
    *_loop_names,
    *_loss_names,
    *_movement_names,
    *_nn_names,
    *_numerics_names,
    *_op_names,
    *_sampling_names,
    *_pool_names,
    *_recompute_names,
    *_recurrent_names,
    *_regularizer_names,
    *_resampling_names,
    *_sequence_names,
]
