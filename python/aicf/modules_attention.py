"""Attention and the layers of a transformer as modules (Vaswani et al., 2017)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import activations, ops
from . import init as initializers
from ._core import GraphError, ShapeError
from .arguments import DTypeName, checked
from .containers import ModuleList
from .graph import Data, Value
from .heads import multi_head_attention_forward
from .module import Module
from .modules_linear import Linear, need_sizes
from .modules_norm import LayerNorm
from .modules_shape import Dropout
from .movement import transpose
from .parameters import drawn

__all__ = [
    "MultiheadAttention",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]


class MultiheadAttention(Module):
    """Attention of several heads between projections, as torch.nn.MultiheadAttention.

    The weights of query, key and value begin as Xavier's uniform says, bias_k and bias_v as his
    normal one; out_proj.weight as a Linear's; the other biases as zeros.

    Args:
        dropout: probability with which an attention weight is left out, in training.
        add_bias_kv, add_zero_attn: one more position, of params or of zeros.
        kdim, vdim: widths of key and value, None = embed_dim.
        batch_first: query, key and value are [N, L, E], not [L, N, E].

    >>> s = g.input("s", (2, 5, 4))
    >>> y, weights = aicf.nn.MultiheadAttention(4, 2, batch_first=True)(s, s, s)
    >>> y.shape, weights.shape
    ((2, 5, 4), (2, 5, 5))
    """

    in_proj_weight: Any
    in_proj_bias: Any
    q_proj_weight: Any
    k_proj_weight: Any
    v_proj_weight: Any
    bias_k: Any
    bias_v: Any

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: DTypeName = "float32",
    ) -> None:
        need_sizes("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ShapeError(
                f"MultiheadAttention: embed_dim is {embed_dim}, num_heads {num_heads}; need heads "
                "that divide it"
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self._apart = (self.kdim, self.vdim) != (embed_dim, embed_dim)
        shapes = {
            "q_proj_weight": (embed_dim, embed_dim),
            "k_proj_weight": (embed_dim, self.kdim),
            "v_proj_weight": (embed_dim, self.vdim),
            "in_proj_weight": (3 * embed_dim, embed_dim),
        }
        for key, shape in shapes.items():
            used = self._apart != (key == "in_proj_weight")
            start = initializers.xavier_uniform(shape)
            self.register_parameter(key, drawn(shape, start, dtype) if used else None)
        zeros, small = initializers.zeros(), initializers.normal(std=1 / math.sqrt(embed_dim))
        own = drawn((3 * embed_dim,), zeros, dtype) if bias else None
        self.register_parameter("in_proj_bias", own)
        for key in ("bias_k", "bias_v"):
            one = drawn((1, 1, embed_dim), small, dtype) if add_bias_kv else None
            self.register_parameter(key, one)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype)
        if bias:
            self.out_proj.bias = drawn((embed_dim,), zeros, dtype)

    def forward(
        self,
        query: Value,
        key: Value,
        value: Value,
        key_padding_mask: Data | None = None,
        need_weights: bool = True,
        attn_mask: Data | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Value, Value | None]:
        """Attends from query to key and value.

        Args:
            query, key, value: [L, N, E], [S, N, kdim] and [S, N, vdim], or without N.
            key_padding_mask: [N, S], bool (True = hidden) or a float added to the scores; a Value
                or a NumPy array.
            attn_mask: [L, S] or [N * heads, L, S], likewise; a NumPy array of 0 and -inf alone
                counts as the bool mask that it stands for.
            is_causal: hides positions after one's own where attn_mask is None.

        Returns: [L, N, E], and the weights [N, L, S], or [N, heads, L, S] where they are not
        averaged; None without need_weights, which is faster.
        """
        turned = self.batch_first and query.ndim == 3
        if turned:
            query, key, value = (transpose(x, 0, 1) for x in (query, key, value))
        y, weights = multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight,
            self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn, self.dropout,
            self.out_proj.weight, self.out_proj.bias, self.training, key_padding_mask,
            need_weights, attn_mask, self._apart, self.q_proj_weight, self.k_proj_weight,
            self.v_proj_weight, average_attn_weights, is_causal,
        )  # fmt: skip
        return transpose(y, 0, 1) if turned else y, weights


_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu": ops.relu,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "tanh": ops.tanh,
    "mish": activations.mish,
}


class _Layer(Module):
    """Attention and two linear layers, each beside a way past it, with norms."""

    self_attn: Any
    linear1: Any
    linear2: Any
    dropout: Any

    @checked
    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[..., Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: DTypeName = "float32",
    ) -> None:
        name = type(self).__name__
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise GraphError(
                f"{name}: activation is {activation!r}; need a function or one of "
                f"{', '.join(_ACTIVATIONS)}"
            )
        own = _ACTIVATIONS[activation] if isinstance(activation, str) else activation
        options: Any = {"dropout": dropout, "bias": bias, "batch_first": batch_first,
                        "dtype": dtype}  # fmt: skip
        self.self_attn = MultiheadAttention(d_model, nhead, **options)
        count = 2
        if isinstance(self, TransformerDecoderLayer):
            self.multihead_attn = MultiheadAttention(d_model, nhead, **options)
            count = 3
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype)
        self.norm_first = norm_first
        for i in range(1, count + 1):
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
            self.add_module(f"norm{i}", norm)
        for i in range(1, count + 1):
            self.add_module(f"dropout{i}", Dropout(dropout))
        if isinstance(own, Module):
            self.activation: Any = own
        else:
            vars(self)["activation"] = own

    def _passed(self, x: Value, i: int, part: Callable[[Value], Value]) -> Value:
        """x plus what a part makes of it, normed before or after."""
        norm, drop = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        y: Value = x + drop(part(norm(x))) if self.norm_first else norm(x + drop(part(x)))
        return y

    def _wide(self, x: Value) -> Value:
        y: Value = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return y


class TransformerEncoderLayer(_Layer):
    """Self-attention and two linear layers, as torch.nn.TransformerEncoderLayer.

    Args:
        activation: a function, a module, or "relu", "gelu", "silu", "tanh" or "mish".
        batch_first: x is [N, L, E], not [L, N, E].
        norm_first: norms stand before what they belong to, not behind it.

    >>> layer = aicf.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    >>> layer(g.input("s", (2, 5, 4))).shape
    (2, 5, 4)
    """

    def forward(
        self,
        src: Value,
        src_mask: Data | None = None,
        src_key_padding_mask: Data | None = None,
        is_causal: bool = False,
    ) -> Value:
        """The layer over src; masks as of `MultiheadAttention`."""

        def attend(x: Value) -> Value:
            y: Value = self.self_attn(x, x, x, src_key_padding_mask, False, src_mask,
                                      is_causal=is_causal)[0]  # fmt: skip
            return y

        return self._passed(self._passed(src, 1, attend), 2, self._wide)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory and two linear layers, as
    torch.nn.TransformerDecoderLayer; options as of `TransformerEncoderLayer`.

    >>> layer = aicf.nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)
    >>> layer(g.input("s", (2, 5, 4)), g.input("m", (2, 7, 4)), tgt_is_causal=True).shape
    (2, 5, 4)
    """

    def forward(
        self,
        tgt: Value,
        memory: Value,
        tgt_mask: Data | None = None,
        memory_mask: Data | None = None,
        tgt_key_padding_mask: Data | None = None,
        memory_key_padding_mask: Data | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Value:
        """The layer over tgt and a memory; masks as of `MultiheadAttention`."""

        def attend(x: Value) -> Value:
            y: Value = self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask,
                                      is_causal=tgt_is_causal)[0]  # fmt: skip
            return y

        def look(x: Value) -> Value:
            y: Value = self.multihead_attn(x, memory, memory, memory_key_padding_mask, False,
                                           memory_mask, is_causal=memory_is_causal)[0]  # fmt: skip
            return y

        x = self._passed(tgt, 1, attend)
        return self._passed(self._passed(x, 2, look), 3, self._wide)


class _Stack(Module):
    """Copies of a layer one after another, and a norm behind the last."""

    norm: Any

    def __init__(self, layer: Any, num_layers: int, norm: Any = None) -> None:
        name = type(self).__name__
        if not isinstance(layer, Module):
            raise GraphError(f"{name}: layer is {layer!r}; need a Module")
        need_sizes(name, num_layers=num_layers)
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.add_module("norm", norm)

    def _normed(self, x: Value) -> Value:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Copies of an encoder layer, as torch.nn.TransformerEncoder: all begin as that layer does.

    Padded positions hold what the layers make of them, in evaluation too.

    >>> layer = aicf.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    >>> aicf.nn.TransformerEncoder(layer, 2)(g.input("s", (2, 5, 4))).shape
    (2, 5, 4)
    """

    def __init__(
        self,
        encoder_layer: Any,
        num_layers: int,
        norm: Any = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Value,
        mask: Data | None = None,
        src_key_padding_mask: Data | None = None,
        is_causal: bool | None = None,
    ) -> Value:
        """All layers over src; is_causal hides later positions where mask is None."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return self._normed(src)


class TransformerDecoder(_Stack):
    """Copies of a decoder layer, as torch.nn.TransformerDecoder: all begin as that layer does.

    >>> layer = aicf.nn.TransformerDecoderLayer(4, 2, 8)
    >>> aicf.nn.TransformerDecoder(layer, 2)(g.input("s", (5, 2, 4)), g.input("m", (7, 2, 4))).shape
    (5, 2, 4)
    """

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Value,
        memory: Value,
        tgt_mask: Data | None = None,
        memory_mask: Data | None = None,
        tgt_key_padding_mask: Data | None = None,
        memory_key_padding_mask: Data | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Value:
        """All layers over tgt and a memory."""
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                bool(tgt_is_causal), memory_is_causal,
            )  # fmt: skip
        return self._normed(tgt)


class Transformer(Module):
    """An encoder and a decoder, each with a norm behind it, as torch.nn.Transformer.

    Params of rank 2 begin as Xavier's uniform says.

    >>> model = aicf.nn.Transformer(4, 2, 1, 1, 8, batch_first=True)
    >>> model(g.input("s", (2, 7, 4)), g.input("t", (2, 5, 4)), tgt_is_causal=True).shape
    (2, 5, 4)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: str = "float32",
    ) -> None:
        options = (dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first,
                   bias, dtype)  # fmt: skip
        if custom_encoder is None:
            layer = TransformerEncoderLayer(d_model, nhead, *options)
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm)
        if custom_decoder is None:
            last = TransformerDecoderLayer(d_model, nhead, *options)
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
            custom_decoder = TransformerDecoder(last, num_decoder_layers, norm)
        self.encoder: Any = custom_encoder
        self.decoder: Any = custom_decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for module in self.modules():
            for key, own in module._parameters.items():
                if own is not None and own.ndim > 1:
                    start = initializers.xavier_uniform(own.shape)
                    setattr(module, key, drawn(own.shape, start, own.dtype))

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> np.ndarray:
        """[sz, sz], −inf after one's own position and 0 else, as float32.

        >>> aicf.nn.Transformer.generate_square_subsequent_mask(2).tolist()
        [[0.0, -inf], [0.0, 0.0]]
        """
        return np.where(np.tri(sz, dtype=bool), 0.0, -np.inf).astype(np.float32)

    def forward(
        self,
        src: Value,
        tgt: Value,
        src_mask: Data | None = None,
        tgt_mask: Data | None = None,
        memory_mask: Data | None = None,
        src_key_padding_mask: Data | None = None,
        tgt_key_padding_mask: Data | None = None,
        memory_key_padding_mask: Data | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Value:
        """Encodes src and decodes tgt with it; masks as of `MultiheadAttention`."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        y: Value = self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
            tgt_is_causal, memory_is_causal,
        )  # fmt: skip
        return y
