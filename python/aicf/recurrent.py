"""Recurrent layers: PyTorch's weights, gate order and results, one loop a layer and direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._core import GraphError, ShapeError
from .arguments import checked
from .graph import Value
from .loops import scan
from .movement import broadcast_to, concat, stack, transpose
from .nn_functions import dropout as _dropout
from .ops import linear, sigmoid, tanh

__all__ = ["gru", "lstm"]

Cell = Callable[[tuple[Value, ...], Value], tuple[Value, ...]]


def lstm(
    x: Value,
    weights: Sequence[Value],
    state: Sequence[Value] | None = None,
    *,
    batch_first: bool = False,
    bidirectional: bool = False,
    dropout: float = 0.0,
    training: bool = True,
) -> tuple[Value, tuple[Value, Value]]:
    """A stack of LSTM layers over a sequence, as torch.nn.LSTM.

    c' = σ(f) c + σ(i) tanh(g) and h' = σ(o) tanh(c'), where i, f, g, o are the quarters of
    W_ih x + b_ih + W_hh h + b_hh. The products of x by W_ih are one product before the loop.

    Args:
        x: [time, batch, in], [batch, time, in] with `batch_first`, or [time, in].
        weights: for each layer, and in it for each direction, W_ih [4 hidden, in], W_hh [4 hidden,
            hidden], and b_ih and b_hh [4 hidden] unless none has them: the parameters of a
            torch.nn.LSTM in their order.
        state: the first h and c, each [layers * directions, batch, hidden]; zeros where None.
        bidirectional: with a second direction in each layer, from the last step to the first;
            results stand side by side.
        dropout: probability of zeros in what each layer but the last hands on, when training.

    Returns: [time, batch, directions * hidden], in the layout of x, and the last h and c.

    >>> g2 = aicf.Graph()
    >>> p = [g2.param(n, s) for n, s in (("i", (16, 3)), ("h", (16, 4)))]
    >>> y, (h, c) = aicf.lstm(g2.input("x", (7, 2, 3)), p)
    >>> y.shape, h.shape
    ((7, 2, 4), (1, 2, 4))
    """

    def cell(w: Value, bias: Value | None) -> Cell:
        def step(carry: tuple[Value, ...], row: Value) -> tuple[Value, ...]:
            h, c = carry
            n = h.shape[-1]
            gates = row + linear(h, w)
            i, f, g, o = (gates[..., k * n : (k + 1) * n] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            return sigmoid(o) * tanh(c), c

        return step

    y, (h, c) = _layers("lstm", 4, cell, x, weights, state, batch_first, bidirectional, dropout,
                        training)  # fmt: skip
    return y, (h, c)


def gru(
    x: Value,
    weights: Sequence[Value],
    state: Value | None = None,
    *,
    batch_first: bool = False,
    bidirectional: bool = False,
    dropout: float = 0.0,
    training: bool = True,
) -> tuple[Value, Value]:
    """A stack of GRU layers over a sequence, as torch.nn.GRU.

    h' = (1 - z) n + z h with r, z = σ of W_ih x + b_ih + W_hh h + b_hh, and n = tanh(W_in x + b_in
    + r (W_hn h + b_hn)). The products of x by W_ih are one product before the loop.

    Args: as of `lstm`, of which a third of the rows of each weight belong to r, to z and to n;
        state is the first h alone.

    Returns: [time, batch, directions * hidden], in the layout of x, and the last h.

    >>> g2 = aicf.Graph()
    >>> p = [g2.param(n, s) for n, s in (("i", (12, 3)), ("h", (12, 4)))]
    >>> y, h = aicf.gru(g2.input("x", (7, 2, 3)), p, bidirectional=False)
    >>> y.shape, h.shape
    ((7, 2, 4), (1, 2, 4))
    """

    def cell(w: Value, bias: Value | None) -> Cell:
        def step(carry: tuple[Value, ...], row: Value) -> tuple[Value, ...]:
            (h,) = carry
            k = h.shape[-1]
            of_h = linear(h, w, bias)
            r = sigmoid(row[..., :k] + of_h[..., :k])
            z = sigmoid(row[..., k : 2 * k] + of_h[..., k : 2 * k])
            n = tanh(row[..., 2 * k :] + r * of_h[..., 2 * k :])
            return (n + z * (h - n),)

        return step

    first = None if state is None else (state,)
    y, (h,) = _layers("gru", 3, cell, x, weights, first, batch_first, bidirectional, dropout,
                      training)  # fmt: skip
    return y, h


def _layers(
    name: str,
    gates: int,
    cell: Callable[[Value, Value | None], Cell],
    x: Value,
    weights: Sequence[Value],
    state: Sequence[Value] | None,
    batch_first: bool,
    bidirectional: bool,
    dropout: float,
    training: bool,
) -> tuple[Value, tuple[Value, ...]]:
    directions = 2 if bidirectional else 1
    biased = len(weights) > 2 and weights[2].ndim == 1
    each = 4 if biased else 2
    layers, left = divmod(len(weights), each * directions)
    if left or not layers:
        raise GraphError(
            f"{name}: got {len(weights)} weights, {'with' if biased else 'without'} biases; need "
            f"{each} for each layer and direction"
        )
    if x.ndim not in (2, 3):
        raise ShapeError(f"{name}: x is {x!r}; need [time, batch, in] or [time, in]")
    hidden = weights[1].shape[-1]
    alone = x.ndim == 2
    turned = batch_first and not alone
    y = transpose(x, 0, 1) if turned else x
    lead = () if alone else (y.shape[1],)
    carries = 1 if name == "gru" else 2
    if state is None:
        zero = x.graph.constant(0.0, x.dtype)
        state = (broadcast_to(zero, (layers * directions, *lead, hidden)),) * carries
    if len(state) != carries:
        raise GraphError(f"{name}: the state is {state!r}; need {carries} Values")
    for first in state:
        if first.shape != (layers * directions, *lead, hidden):
            raise ShapeError(
                f"{name}: the state is {first!r}; need shape {(layers * directions, *lead, hidden)}"
            )
    last: list[list[Value]] = [[] for _ in range(carries)]
    for layer in range(layers):
        if layer and dropout:
            y = _dropout(y, dropout, training)
        made = []
        for direction in range(directions):
            at = layer * directions + direction
            w_ih, w_hh, *biases = weights[at * each : (at + 1) * each]
            _check(name, gates, y, w_ih, w_hh, biases, hidden)
            b_ih, b_hh = biases or (None, None)
            if name == "lstm" and b_ih is not None and b_hh is not None:
                b_ih = b_ih + b_hh  # nothing stands between them
            step = cell(w_hh, b_hh)

            def turn(carry: tuple[Value, ...], row: Value, step: Cell = step) -> object:
                carry = step(carry, row)
                return carry, carry[0]

            first_state = tuple(one[at] for one in state)
            ends, rows = scan(turn, first_state, linear(y, w_ih, b_ih), reverse=direction == 1)
            made.append(rows)
            for kept, end in zip(last, ends, strict=True):
                kept.append(end)
        y = made[0] if directions == 1 else concat(made, -1)
    return transpose(y, 0, 1) if turned else y, tuple(stack(kept, 0) for kept in last)


def _check(
    name: str, gates: int, x: Value, w_ih: Value, w_hh: Value, biases: Sequence[Value], hidden: int
) -> None:
    rows = gates * hidden
    if (w_ih.shape, w_hh.shape) != ((rows, x.shape[-1]), (rows, hidden)) or any(
        b.shape != (rows,) for b in biases
    ):
        raise ShapeError(
            f"{name}: weights are {[w_ih, w_hh, *biases]} for {x!r} and {hidden} hidden; need "
            f"[{rows}, {x.shape[-1]}], [{rows}, {hidden}] and biases [{rows}]"
        )


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
