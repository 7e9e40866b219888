"""Modules of products and tables: linear layers, bilinear ones and embeddings."""

from __future__ import annotations

import math
from typing import Any

from . import init as initializers
from ._core import GraphError, ShapeError
from .arguments import DTypeName, checked
from .graph import Data, Value
from .module import Module
from .nn_functions import bilinear, embedding, embedding_bag
from .ops import linear
from .parameters import Parameter, drawn

__all__ = ["Bilinear", "Embedding", "EmbeddingBag", "Linear"]


def need_sizes(where: str, **sizes: int) -> None:
    """Raises where a size is not at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ShapeError(f"{where}: {name} is {size}; need at least 1")


def fan_in_uniform(fan_in: int) -> initializers.Init:
    """Uniform in ±1/sqrt(fan_in): PyTorch's start of linear layers, convolutions and biases."""
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    return initializers.uniform(-bound, bound)


class Linear(Module):
    """x weight^T + bias over the last axis, as torch.nn.Linear.

    weight [out_features, in_features] and bias [out_features] begin uniform in
    ±1/sqrt(in_features).

    >>> aicf.nn.Linear(3, 5)(x).shape
    (4, 5)
    """

    @checked
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: DTypeName = "float32"
    ) -> None:
        need_sizes("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        start = fan_in_uniform(in_features)
        self.weight: Any = drawn((out_features, in_features), start, dtype)
        self.register_parameter("bias", drawn((out_features,), start, dtype) if bias else None)

    def forward(self, x: Value) -> Value:
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        biased = self._parameters["bias"] is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={biased}"


class Bilinear(Module):
    """a[..., i] weight[o, i, j] b[..., j] + bias[o], as torch.nn.Bilinear.

    All begin uniform in ±1/sqrt(in1_features).

    >>> aicf.nn.Bilinear(3, 3, 5)(x, y).shape
    (4, 5)
    """

    @checked
    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        dtype: DTypeName = "float32",
    ) -> None:
        need_sizes("Bilinear", in1_features=in1_features, in2_features=in2_features,
                   out_features=out_features)  # fmt: skip
        self._sizes = in1_features, in2_features, out_features
        start = fan_in_uniform(in1_features)
        self.weight: Any = drawn((out_features, in1_features, in2_features), start, dtype)
        self.register_parameter("bias", drawn((out_features,), start, dtype) if bias else None)

    def forward(self, a: Value, b: Value) -> Value:
        return bilinear(a, b, self.weight, self.bias)

    def extra_repr(self) -> str:
        names = ("in1_features", "in2_features", "out_features")
        sizes = ", ".join(f"{n}={s}" for n, s in zip(names, self._sizes, strict=True))
        return f"{sizes}, bias={self._parameters['bias'] is not None}"


class _Rows(Module):
    """A table of rows that indices choose from."""

    padding_idx: int | None

    def _start(self, count: int, width: int, padding_idx: int | None, dtype: str) -> None:
        name = type(self).__name__
        need_sizes(name, num_embeddings=count, embedding_dim=width)
        if padding_idx is not None and not -count <= padding_idx < count:
            raise ShapeError(f"{name}: padding_idx is {padding_idx}; need [{-count}, {count})")
        self.num_embeddings, self.embedding_dim = count, width
        self.padding_idx = None if padding_idx is None else padding_idx % count
        self.weight: Any = drawn((count, width), initializers.normal(), dtype)
        if padding_idx is not None:
            content = self.weight.numpy()
            content[padding_idx] = 0.0
            self.weight.set(content)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class Embedding(_Rows):
    """Rows of weight[num_embeddings, embedding_dim] by int indices, as torch.nn.Embedding.

    weight begins normal with mean 0 and deviation 1, its row `padding_idx`, which takes no
    gradient, as zeros.

    >>> aicf.nn.Embedding(10, 3)(labels).shape
    (4, 3)
    """

    @checked
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        dtype: DTypeName = "float32",
    ) -> None:
        self._start(num_embeddings, embedding_dim, padding_idx, dtype)

    @classmethod
    def from_pretrained(
        cls, embeddings: object, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """An Embedding whose weight is a copy of a table.

        >>> aicf.nn.Embedding.from_pretrained([[1.0, 2.0]]).weight.requires_grad
        False
        """
        weight = Parameter(embeddings, requires_grad=not freeze)
        if weight.ndim != 2:
            raise ShapeError(f"Embedding: embeddings are {weight!r}; need [rows, width]")
        made: Embedding = cls(weight.shape[0], weight.shape[1], padding_idx, weight.dtype)
        made.weight = weight
        return made

    def forward(self, indices: Data) -> Value:
        return embedding(indices, self.weight, self.padding_idx)


class EmbeddingBag(_Rows):
    """A sum, mean or maximum of the rows of each bag, as torch.nn.EmbeddingBag.

    Args:
        mode: "sum", "mean" or "max".

    >>> aicf.nn.EmbeddingBag(10, 3)(labels.reshape((2, 2))).shape
    (2, 3)
    """

    @checked
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        dtype: DTypeName = "float32",
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise GraphError(f'EmbeddingBag: mode is {mode!r}; need "sum", "mean" or "max"')
        self.mode, self.include_last_offset = mode, include_last_offset
        self._start(num_embeddings, embedding_dim, padding_idx, dtype)

    def forward(
        self, indices: Data, offsets: Data | None = None, per_sample_weights: Data | None = None
    ) -> Value:
        return embedding_bag(
            indices, self.weight, offsets, None, self.mode, per_sample_weights,
            self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
