"""Recurrent layers as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from . import recurrent
from ._core import ShapeError
from .arguments import DTypeName, checked
from .graph import Value
from .module import Module
from .modules_linear import fan_in_uniform, need_sizes
from .parameters import drawn

__all__ = ["GRU", "LSTM"]


class _Recurrent(Module):
    """What both have: weights of each layer and direction, under PyTorch's names."""

    _gates: ClassVar[int]

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeName = "float32",
    ) -> None:
        name = type(self).__name__
        need_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        self.dropout, self.bidirectional = dropout, bidirectional
        start, rows = fan_in_uniform(hidden_size), self._gates * hidden_size
        self._names: list[str] = []
        for layer in range(num_layers):
            width = hidden_size * (1 + bidirectional) if layer else input_size
            for suffix in ("", "_reverse")[: 1 + bidirectional]:
                shapes: dict[str, Sequence[int]] = {
                    "weight_ih": (rows, width),
                    "weight_hh": (rows, hidden_size),
                }
                if bias:
                    shapes.update(bias_ih=(rows,), bias_hh=(rows,))
                for key, shape in shapes.items():
                    self._names.append(f"{key}_l{layer}{suffix}")
                    self.register_parameter(self._names[-1], drawn(shape, start, dtype))

    def _options(self, x: Value) -> dict[str, Any]:
        if x.ndim == 0 or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: x is {x!r}; need a last axis of {self.input_size}"
            )
        return {
            "batch_first": self.batch_first,
            "bidirectional": self.bidirectional,
            "dropout": self.dropout,
            "training": self.training,
        }

    def _weights(self) -> list[Value]:
        return [getattr(self, name) for name in self._names]

    def extra_repr(self) -> str:
        said = f"{self.input_size}, {self.hidden_size}"
        plain = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0,
                 "bidirectional": False}  # fmt: skip
        for key, value in plain.items():
            if getattr(self, key) != value:
                said += f", {key}={getattr(self, key)}"
        return said


class LSTM(_Recurrent):
    """A stack of LSTM layers over a sequence, as torch.nn.LSTM; see `aicf.lstm`.

    All params begin uniform in ±1/sqrt(hidden_size).

    Args:
        batch_first: x is [batch, time, in], not [time, batch, in].
        dropout: between layers, when training.

    >>> y, (h, c) = aicf.nn.LSTM(3, 4)(g.input("sequence", (7, 2, 3)))
    >>> y.shape, h.shape
    ((7, 2, 4), (1, 2, 4))
    """

    _gates = 4

    def forward(
        self, x: Value, hx: Sequence[Value] | None = None
    ) -> tuple[Value, tuple[Value, Value]]:
        return recurrent.lstm(x, self._weights(), hx, **self._options(x))


class GRU(_Recurrent):
    """A stack of GRU layers over a sequence, as torch.nn.GRU; see `aicf.gru`.

    All params begin uniform in ±1/sqrt(hidden_size).

    Args: as of `LSTM`.

    >>> y, h = aicf.nn.GRU(3, 4, bidirectional=True)(g.input("sequence", (7, 2, 3)))
    >>> y.shape, h.shape
    ((7, 2, 8), (2, 2, 4))
    """

    _gates = 3

    def forward(self, x: Value, hx: Value | None = None) -> tuple[Value, Value]:
        return recurrent.gru(x, self._weights(), hx, **self._options(x))
