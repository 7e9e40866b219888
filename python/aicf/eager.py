"""The one eager door: a single lowered op on the caller's own tensors."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import _core
from .arguments import Function, checked, placed
from .custom import CustomOp


class OpKind(enum.Enum):
    """Every lowered op, by its name in the dump: `OpKind.gemm`, `OpKind.reduce_sum`, ..."""

    _ignore_ = ["_name"]
    for _name in _core.lowered_names():
        vars()[_name] = _name


class Event(NamedTuple):
    """A call that may still be running."""

    device: str

    def wait(self) -> None:
        """Returns when the call's results are there."""
        _core.eager_synchronize(self.device)


def _quick(checked_call: Function) -> Function:
    """Before the checked call, which takes a microsecond: the usual kinds of argument, at once."""
    call = _core.quick_op_call(checked_call, OpKind, Event, placed)
    return functools.update_wrapper(call, checked_call)  # type: ignore[arg-type, return-value]


@_quick
@checked
def op_call(
    op: str | OpKind | CustomOp,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
    stream: Any = None,
    sync: str = "full",
) -> Event | None:
    """Runs one lowered op on tensors of any framework, zero-copy, and writes into `outputs`.

    Args:
        op: a member of OpKind, its name, or what custom_op made of sources or a callback.
        inputs: the operands, NumPy arrays or anything with `__dlpack__`, of any strides; those of
            a pointwise op broadcast as NumPy's.
        outputs: writable tensors of the result's shape and dtype on the same device. One may be
            an input itself where the op works in place; any other overlap is an error.
        attrs: the op's attributes by name; those with a default may be left out.
        stream: on which a call of a GPU runs, of any framework, or its handle. None is the
            outputs' framework's current one, or the default stream where that is not known.
        sync: "full" returns when the results are there; "none" when the work is enqueued;
            "event" as "none", and returns an Event to wait for, as before a step whose params
            the call uses runs again.

    Returns: an Event with sync="event", else None.

    Raises: GraphError, ShapeError, DTypeError, DeviceUnavailable, Unsupported, each before
    anything is written.

    >>> total = np.empty((), np.float32)
    >>> aicf.op_call(aicf.OpKind.reduce_sum, [batch], [total], {"axes": [0, 1]})
    >>> float(total)
    12.0
    """
    if isinstance(op, CustomOp):
        op, attrs = op._lowered(inputs, attrs)
    device = _core.op_call(_op_name(op), inputs, outputs, _named(attrs), stream, sync)
    return None if device is None else Event(device)


@checked
def workspace_bytes(
    op: str | OpKind,
    inputs: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> int:
    """Bytes of scratch memory that an op borrows while it runs on operands in C order.

    Args:
        op: a member of OpKind, or its name.
        inputs: tensors, or (shape, dtype) pairs.
        attrs: the op's attributes by name.
        device: "cpu" or "cuda:<index>".

    Raises: what op_call raises for such operands.

    >>> aicf.workspace_bytes("gemm", [((64, 32), "float32"), ((32, 8), "float32")]) >= 0
    True
    """
    if not isinstance(inputs, (list, tuple)):
        raise _core.GraphError(
            f"workspace_bytes: inputs is {inputs!r}; need a list of tensors or (shape, dtype)"
        )
    specs = []
    for spec in inputs:
        shape, dtype = spec if isinstance(spec, tuple) and len(spec) == 2 else (None, None)
        if hasattr(spec, "shape") and hasattr(spec, "dtype"):
            shape, dtype = spec.shape, spec.dtype
        try:
            specs.append(([int(size.__index__()) for size in shape], str(dtype)))  # type: ignore
        except (AttributeError, TypeError):
            raise _core.GraphError(
                f"workspace_bytes: an input is {spec!r}; need a tensor or (shape, dtype)"
            ) from None
    return _core.workspace_bytes(_op_name(op), specs, _named(attrs), device)


def _op_name(op: str | OpKind) -> str:
    return op.value if isinstance(op, OpKind) else op


def _named(attrs: Any) -> dict[str, Any]:
    if attrs is None:
        return {}
    if not isinstance(attrs, Mapping):
        raise _core.GraphError(f"op_call: attrs is {attrs!r}; need a mapping of name to value")
    return dict(attrs)
