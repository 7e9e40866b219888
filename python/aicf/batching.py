"""A function of one example, for many at once: each op it makes is made anew for a batch."""

from __future__ import annotations

import builtins
import functools
import json
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._core import GraphError, ShapeError
from .arguments import user_line
from .graph import Graph, Value, is_float
from .loops import (
    _all_or_nothing,
    _flatten,
    _graph_of,
    _rebuild,
    _shown,
    _Tree,
    _values,
    cut,
    cut_reading,
)
from .movement import broadcast_to, permute, reshape
from .ops import (
    cast,
    equal,
    exp,
    greater_equal,
    less,
    logical_and,
    max,
    mean,
    neg,
    sum,
    where,
)
from .serialize import read_graph

__all__ = ["vmap"]

_MOST_AXES = 8


def vmap(
    fn: Callable[..., Any],
    in_axes: int | None | Sequence[int | None] = 0,
    out_axes: int | Sequence[int] = 0,
) -> Any:
    """`fn`, which is written for one example, of a batch of them.

    `fn` runs once while the graph is built. Each op it makes has a rule that makes it of the whole
    batch, so that the work is that of ops of larger operands; what does not depend on the batch is
    made once. Gradients may be taken inside, each example's own, and of the result.

    Args:
        fn: takes Values, and tuples, lists and dicts of them, and returns such. NumPy arrays become
            Values; numbers, and what has the axis None, are shared.
        in_axes: the axis of each argument along which the examples lie, None for what they share;
            one for all, or a sequence. That of a tuple, list or dict is that of all its Values.
        out_axes: where the batch's axis goes in the results; one for all, or one for each of those
            in the tuple or list that `fn` returns.

    Raises: GraphError naming an op that has no such rule: random numbers, custom ops of sources and
        callbacks, updates of optimizers; and where `fn` makes an output or assigns to a state.

    >>> one = lambda row: aicf.grad(aicf.sum(aicf.softmax(row) * row), row)
    >>> aicf.vmap(one)(x).shape
    (4, 3)
    """
    if not callable(fn):
        raise GraphError(f"vmap: fn is {fn!r}; need a function")
    given, put = _axes_of("in_axes", in_axes, True), _axes_of("out_axes", out_axes, False)

    @functools.wraps(fn)
    def call(*values: Any) -> Any:
        axes = given if isinstance(given, list) else [given] * len(values)
        if len(axes) != len(values):
            raise GraphError(
                f"vmap: got {len(values)} arguments, in_axes {in_axes!r}; need an axis for each"
            )
        leaves, trees, along = _leaves(values, axes)
        sizes = {_size(v, a) for v, a in zip(leaves, along, strict=True) if a is not None}
        if len(sizes) != 1 or 0 in sizes:
            raise ShapeError(f"vmap: batches of {sorted(sizes)} examples; need one size >= 1")
        g = _graph_of(leaves, "vmap")
        with _all_or_nothing(g):
            arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
            made = iter(_values(g, arrays, "vmap", beside=leaves))
            leaves = [next(made) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
            return _batched(g, fn, (leaves, trees, along), sizes.pop(), put)

    return call


def _axes_of(name: str, axes: Any, shared: bool) -> Any:
    """An axis, or a list of axes; None too where arguments may be `shared`."""
    listed = isinstance(axes, Sequence) and not isinstance(axes, str)
    try:
        made = [
            None if axis is None and shared else operator.index(axis)
            for axis in (axes if listed else [axes])
        ]
    except TypeError:
        need = "an axis or None" if shared else "an axis"
        raise ShapeError(f"vmap: {name} is {axes!r}; need {need}, or a sequence of these") from None
    return made if listed else made[0]


def _leaves(values: Sequence[Any], axes: Sequence[int | None]) -> Any:
    """The Values, numbers and arrays in the arguments, how each argument holds them, their axes."""
    leaves: list[Any] = []
    trees, along = [], []
    for value, axis in zip(values, axes, strict=True):
        if axis is None and not isinstance(value, (Value, tuple, list, dict)):
            trees.append(value)  # what is no Value
            continue
        own, tree = _flatten(value, "vmap")
        trees.append(tree)
        leaves += own
        shared = [not isinstance(leaf, Value) and np.ndim(leaf) == 0 for leaf in own]
        along += [None if number else axis for number in shared]
    return leaves, trees, along


def _named(node: dict[str, Any]) -> str:
    own = node.get("attrs", {}).get("op")  # of a custom op its author's name
    return f"custom_op {own}" if own else str(node["op"])


def _size(value: Any, axis: int) -> int:
    if not -value.ndim <= axis < value.ndim:
        raise ShapeError(f"vmap: axis {axis} of {value!r}; need one of its axes")
    return value.shape[axis]


def _front(value: Value, axis: int) -> Value:
    at = axis % value.ndim
    return permute(value, [at, *_without(value.ndim, at)])


def _batched(g: Graph, fn: Callable[..., Any], given: Any, size: int, put: Any) -> Any:
    batch = _Batch(g, size)
    leaves, trees, along = given
    examples = []
    for value, axis in zip(leaves, along, strict=True):
        if axis is None:
            examples.append(value)
            continue
        whole = _front(value, axis)
        examples.append(reshape(whole[0:1], whole.shape[1:]))
        batch.of[examples[-1].id] = whole
    mark, moved = g._core.mark(), len(g._moved)
    each = iter(examples)
    made = fn(*(_rebuild(t, each) if isinstance(t, _Tree) else t for t in trees))
    results, tree = _flatten(made, "vmap: the function's result")
    for result in results:
        g._id(result, "vmap: the function's result")
    after = g._core.mark()
    batch.follow(mark)
    if (after.outputs, after.assigns, len(g._moved)) != (mark.outputs, mark.assigns, moved):
        raise GraphError(
            "vmap: the function makes an output or assigns to a state, of one example; need that "
            "outside, of its results"
        )
    if isinstance(put, list) and (len(put) != len(tree.parts) or tree.kind == "dict"):
        raise GraphError(
            f"vmap: out_axes is {put}, the function returns {_shown(tree)}; need an axis for each"
        )
    axes = put if isinstance(put, list) else [put] * len(tree.parts)
    counted = [axis for axis, part in zip(axes, tree.parts, strict=True) for _ in _count(part)]
    wholes = [
        _behind_axis(batch.full(result), axis)
        for result, axis in zip(results, counted or [put] * len(results), strict=True)
    ]
    return _rebuild(tree, iter(wholes))


def _count(tree: _Tree) -> list[None]:
    """As many as there are Values in it."""
    if tree.kind == "Value":
        return [None]
    return [one for part in tree.parts for one in _count(part)]


def _behind_axis(whole: Value, axis: int) -> Value:
    """The batch moved from the front to `axis`."""
    if not -whole.ndim <= axis < whole.ndim:
        raise ShapeError(
            f"vmap: out_axes is {axis}, a result {whole!r}; need [{-whole.ndim}, {whole.ndim})"
        )
    at = axis % whole.ndim
    return permute(whole, [*range(1, at + 1), 0, *range(at + 1, whole.ndim)]) if at else whole


class _Op(NamedTuple):
    """An op of one example: its operands and results there, and its attributes."""

    name: str
    inputs: list[Value]
    outputs: list[Value]
    attrs: dict[str, Any]


class _Batch:
    """The values of a batch by the id of the value of one example."""

    def __init__(self, g: Graph, size: int) -> None:
        self.g, self.size = g, size
        self.of: dict[int, Value] = {}

    def follow(self, mark: Any) -> None:
        """Makes of the batch what was made of one example since the mark."""
        for node in json.loads(self.g._core.nodes_since(mark)):
            # Each example has random numbers of its own, also where nothing else of it is read.
            random = node["op"].startswith(("Random", "Dropout"))
            if random or any(id in self.of for id in node["inputs"]):
                self.make(node)

    def make(self, node: dict[str, Any]) -> None:
        rule = RULES.get(node["op"])
        if rule is None:
            raise GraphError(
                f"vmap: {_named(node)} at {node.get('where', user_line())} has no rule for a "
                "batch; need it outside, or other ops"
            )
        limits = ("Infinity", "-Infinity", "NaN")
        attrs = {k: float(v) if str(v) in limits else v for k, v in node.get("attrs", {}).items()}
        inputs, outputs = (
            [Value(self.g, id) for id in node[kind]] for kind in ("inputs", "outputs")
        )
        if any(one.ndim == _MOST_AXES for one in outputs):
            raise ShapeError(
                f"vmap: {node['op']} at {node.get('where', user_line())} makes {outputs} of one "
                f"example; need at most {_MOST_AXES - 1} axes, for the batch is one more"
            )
        made = rule(self, _Op(node["op"], inputs, outputs, attrs))
        for one, whole in zip(outputs, made, strict=True):
            if whole.shape != (self.size, *one.shape):
                raise ShapeError(f"vmap: {node['op']} made {whole!r} of examples {one!r}")
            self.of[one.id] = whole

    def has(self, value: Value) -> bool:
        return value.id in self.of

    def full(self, value: Value) -> Value:
        """[batch, *shape], repeated where the examples share it."""
        if self.has(value):
            return self.of[value.id]
        return broadcast_to(value, (self.size, *value.shape))

    def aligned(self, value: Value, rank: int) -> Value:
        """To broadcast with examples of that rank: sizes of 1 behind the batch."""
        if not self.has(value):
            return value
        ones = [1] * (rank - value.ndim)
        return reshape(self.of[value.id], (self.size, *ones, *value.shape))

    def rows(self, value: Value) -> Value:
        """[batch, rows, last size]."""
        return reshape(self.full(value), (self.size, math.prod(value.shape[:-1]), value.shape[-1]))


Rule = Callable[[_Batch, _Op], list[Value]]


def _pointwise(b: _Batch, op: _Op) -> list[Value]:
    rank = builtins.max(value.ndim for value in op.inputs)
    return b.g._emit(op.name, [b.aligned(value, rank) for value in op.inputs], **op.attrs)


def _behind(b: _Batch, op: _Op) -> list[Value]:
    """Of an op that takes any axes in front of its own."""
    return b.g._emit(op.name, [b.full(value) for value in op.inputs], **op.attrs)


def _later(axis: int) -> int:
    return axis + 1 if axis >= 0 else axis


def _along(b: _Batch, op: _Op) -> list[Value]:
    return _behind(b, op._replace(attrs={**op.attrs, "axis": _later(op.attrs["axis"])}))


def _over(b: _Batch, op: _Op) -> list[Value]:
    return _behind(
        b, op._replace(attrs={**op.attrs, "axes": [_later(a) for a in op.attrs["axes"]]})
    )


def _in_front(**first: Any) -> Rule:
    """Of an op whose lists have an entry for each axis: those of the batch's axis."""

    def rule(b: _Batch, op: _Op) -> list[Value]:
        own = {k: [b.size if v is None else v, *op.attrs[k]] for k, v in first.items()}
        return _behind(b, op._replace(attrs={**op.attrs, **own}))

    return rule


def _transpose(b: _Batch, op: _Op) -> list[Value]:
    return [permute(b.full(op.inputs[0]), [0, *(a + 1 for a in op.attrs["axes"])])]


def _broadcast(b: _Batch, op: _Op) -> list[Value]:
    shape = op.attrs["shape"]
    return [broadcast_to(b.aligned(op.inputs[0], len(shape)), (b.size, *shape))]


def _matmul(b: _Batch, op: _Op) -> list[Value]:
    x, y = op.inputs
    of = {v.id: b.of.get(v.id, v) for v in (x, y)}
    left, right = of[x.id], of[y.id]
    rank = builtins.max(x.ndim, y.ndim, 2)
    if x.ndim == 1:
        left = reshape(left, (*left.shape[:-1], 1, left.shape[-1]))
    if y.ndim == 1:
        right = reshape(right, (*right.shape, 1))
    parts = []
    for whole, one in ((left, x), (right, y)):
        ones = [1] * (rank - builtins.max(one.ndim, 2))
        parts.append(reshape(whole, (b.size, *ones, *whole.shape[1:])) if b.has(one) else whole)
    product = b.g._emit("MatMul", parts)[0]
    return [reshape(product, (b.size, *op.outputs[0].shape))]


def _linear(b: _Batch, op: _Op) -> list[Value]:
    x, w, *bias = op.inputs
    if not any(map(b.has, (w, *bias))):
        return b.g._emit("Linear", [b.full(x), w, *bias], **op.attrs)
    rank = builtins.max(x.ndim, 2)
    w_t = permute(b.of[w.id], [0, 2, 1]) if b.has(w) else permute(w, [1, 0])
    y = b.g._emit("MatMul", [b.rows(x), w_t])[0]
    y = reshape(y, (b.size, *op.outputs[0].shape))
    return [y + b.aligned(bias[0], rank - (x.ndim == 1))] if bias else [y]


def _linear_bwd(b: _Batch, op: _Op) -> list[Value]:
    x, w, dy = op.inputs
    rows, slopes = b.rows(x), b.rows(dy)
    dx = b.g._emit("MatMul", [slopes, b.of.get(w.id, w)])[0]
    dw = b.g._emit("MatMul", [permute(slopes, [0, 2, 1]), rows])[0]
    return [reshape(dx, (b.size, *x.shape)), dw, b.g._emit("Sum", [slopes], axes=[1])[0]]


def _own_rows(b: _Batch, indices: Value, count: int) -> Value:
    """Indices into the examples' tables one after the other; -1 for those that name no row."""
    first = np.arange(b.size).reshape(b.size, *[1] * indices.ndim) * count
    at = cast(b.full(indices), "int64")
    inside = logical_and(greater_equal(at, 0), less(at, count))
    return where(inside, at + b.g.constant(first), -1)


def _take(b: _Batch, op: _Op) -> list[Value]:
    table, indices = op.inputs
    if not b.has(table):
        return b.g._emit("Take", [table, b.of[indices.id]])
    return b.g._emit("Take", [_joined(b, table), _own_rows(b, indices, table.shape[0])])


def _take_bwd(b: _Batch, op: _Op) -> list[Value]:
    dy, indices = op.inputs
    count = op.attrs["rows"]
    at = _own_rows(b, indices, count)
    made = b.g._emit("TakeBwd", [b.full(dy), at], rows=b.size * count)[0]
    return [reshape(made, (b.size, *op.outputs[0].shape))]


def _without(rank: int, axis: int) -> list[int]:
    return [a for a in range(rank) if a != axis]


def _joined(b: _Batch, value: Value) -> Value:
    """The examples' first axes as one."""
    return reshape(b.full(value), (b.size * value.shape[0], *value.shape[1:]))


def _by_row(b: _Batch, op: _Op) -> list[Value]:
    """Of an op that does the same to each row."""
    made = b.g._emit(op.name, [_joined(b, value) for value in op.inputs], **op.attrs)
    return [reshape(m, (b.size, *o.shape)) for m, o in zip(made, op.outputs, strict=True)]


def _cross_entropy(b: _Batch, op: _Op) -> list[Value]:
    logits, labels = (_joined(b, value) for value in op.inputs)
    rows = (b.size, op.inputs[0].shape[0])
    wide = cast(logits, op.outputs[1].dtype)
    known = b.g._emit("LogSoftmax", [wide], axis=1)[0]
    loss = neg(mean(reshape(b.g._emit("Pick", [known, labels])[0], rows), 1))
    most = max(wide, 1, keepdims=True)
    total = reshape(sum(exp(wide - most), 1), rows)
    return [cast(loss, op.outputs[0].dtype), reshape(most, rows), total]


def _cross_entropy_grad(b: _Batch, op: _Op) -> list[Value]:
    logits, labels, most, total = (_joined(b, value) for value in op.inputs)
    count, classes = op.inputs[0].shape
    each = (logits.shape[0], 1)
    share = exp(cast(logits, most.dtype) - reshape(most, each)) / reshape(total, each)
    hit = equal(reshape(labels, each), b.g.constant(np.arange(classes, dtype=labels.dtype)))
    known = logical_and(greater_equal(labels, 0), less(labels, classes))
    slope = where(reshape(known, each), share - cast(hit, share.dtype), 0.0) * (
        1.0 / builtins.max(count, 1)
    )
    return [reshape(cast(slope, logits.dtype), (b.size, *op.outputs[0].shape))]


def _mse_loss(b: _Batch, op: _Op) -> list[Value]:
    d = b.full(op.inputs[0]) - b.full(op.inputs[1])
    return b.g._emit("Mean", [d * d], axes=list(range(1, d.ndim)))


def _mse_grad(b: _Batch, op: _Op) -> list[Value]:
    d = b.full(op.inputs[0]) - b.full(op.inputs[1])
    return [d * (2.0 / builtins.max(math.prod(op.inputs[0].shape), 1))]


def _scan(b: _Batch, op: _Op) -> list[Value]:
    """Of a loop: the batch of a turn. Its examples all have carries of their own."""
    carries, slices = op.attrs["carries"], op.attrs["slices"]
    body = read_graph(json.dumps(op.attrs["body"]), strict=True)
    firsts = [b.full(value) for value in op.inputs[:carries]]
    rows = op.inputs[carries : carries + slices]
    wholes = op.inputs[carries + slices :]
    given = [permute(b.of[v.id], _swapped(v.ndim + 1)) if b.has(v) else v for v in rows]

    def build(operands: list[Value]) -> list[Value]:
        turn = _Batch(b.g, b.size)
        examples = []

        def example(value: Value, shape: tuple[int, ...], whole: Value | None) -> None:
            if whole is not None:
                value = Value(b.g, b.g._core.placeholder(shape, value.dtype))
                turn.of[value.id] = whole
            examples.append(value)

        for value, whole in zip(op.inputs[:carries], operands, strict=False):
            example(value, value.shape, whole)
        for value, row in zip(rows, operands[carries:], strict=True):
            example(row, value.shape[1:], row if b.has(value) else None)
        for value in wholes:
            example(value, value.shape, b.of.get(value.id))
        mark = b.g._core.mark()
        ids = b.g._core.append_body(body, [value.id for value in examples])
        turn.follow(mark)
        return [turn.full(Value(b.g, id)) for id in ids]

    core, captured = cut(b.g, "vmap", [*firsts, *given], carries, build)
    made = b.g._emit("Scan", [*firsts, *given, *captured], **{**op.attrs, "body": core})
    return [*made[:carries], *(permute(y, _swapped(y.ndim)) for y in made[carries:])]


def _swapped(rank: int) -> list[int]:
    return [1, 0, *range(2, rank)]


def _beside(b: _Batch, op: _Op) -> list[Value]:
    """Of an op on [times, members, states] and [members, states]: more members."""
    inputs = []
    for value in op.inputs:
        whole = b.full(value)
        if value.ndim == 3:
            whole = permute(whole, [1, 0, 2, 3])
        inputs.append(reshape(whole, (*whole.shape[:-3], -1, whole.shape[-1])))
    times, members, states = op.outputs[0].shape
    made = reshape(b.g._emit(op.name, inputs)[0], (times, b.size, members, states))
    return [permute(made, [1, 0, 2, 3])]


def _custom_gradient(b: _Batch, op: _Op) -> list[Value]:
    """Its backward too is of one example, and made anew for the batch when it is asked for."""
    count = op.attrs["count"]
    result, values, more = op.inputs[0], op.inputs[1 : count + 1], op.inputs[count + 1 :]
    rule = b.g._own_rules[op.outputs[0].id]

    def of_batch(dys: list[int]) -> list[int]:
        whole = Value(b.g, dys[0])
        one = reshape(whole[0:1], result.shape)
        inner = _Batch(b.g, b.size)
        inner.of = {**b.of, one.id: whole}
        mark = b.g._core.mark()
        made = rule([one.id])
        inner.follow(mark)
        return [id if id < 0 else inner.full(Value(b.g, id)).id for id in made]

    inputs = [*(b.full(value) for value in (result, *values)), *(b.of.get(v.id, v) for v in more)]
    out: Value = b.g._emit(op.name, inputs, count=count)[0]
    b.g._own_rules[out.id] = of_batch
    return [out]


def _kept_gradient(b: _Batch, op: _Op) -> list[Value]:
    """Of a gradient of one's own in a body, which is a body too."""
    results, count = op.attrs["results"], op.attrs["count"]
    first = len(op.inputs) - op.attrs["captured"]
    made, values = op.inputs[:results], op.inputs[results : results + count]
    body = read_graph(json.dumps(op.attrs["body"]), strict=True)
    floats = [one for one in made if is_float(one)]

    def build(dys: list[Value]) -> list[Value]:
        inner = _Batch(b.g, b.size)
        examples = []
        wholes = [*dys, *(b.of.get(value.id) for value in op.inputs[first:])]
        for value, whole in zip([*floats, *op.inputs[first:]], wholes, strict=True):
            if whole is not None:
                value = Value(b.g, b.g._core.placeholder(value.shape, value.dtype))
                inner.of[value.id] = whole
            examples.append(value)
        mark = b.g._core.mark()
        ids = b.g._core.append_body(body, [value.id for value in examples])
        inner.follow(mark)
        return [inner.full(Value(b.g, id)) for id in ids]

    types = [((b.size, *one.shape), one.dtype) for one in floats]
    core, read = cut_reading(b.g, "vmap", types, build)
    inputs = [
        *(b.full(value) for value in (*made, *values)),
        *(b.of.get(value.id, value) for value in op.inputs[results + count : first]),
        *read,
    ]
    return b.g._emit(op.name, inputs, **{**op.attrs, "captured": len(read), "body": core})


def _attention(b: _Batch, op: _Op) -> list[Value]:
    """Examples are more of the first axis of all operands; that of a mask may be 1."""
    size = op.inputs[0].shape[0]

    def joined(value: Value) -> Value:
        whole = broadcast_to(b.full(value), (b.size, size, *value.shape[1:]))
        return reshape(whole, (b.size * size, *value.shape[1:]))

    made = b.g._emit(op.name, [joined(value) for value in op.inputs], **op.attrs)
    return [
        reshape(whole, (b.size, *one.shape)) for whole, one in zip(made, op.outputs, strict=True)
    ]


RULES: dict[str, Rule] = {
    "CustomGradient": _custom_gradient,
    "KeptGradient": _kept_gradient,
    **dict.fromkeys(("Attention", "AttentionBwd"), _attention),
    **dict.fromkeys(("CtcPaths", "CtcPathsBwd"), _beside),
    **dict.fromkeys(_core.pointwise_ops(), _pointwise),
    **dict.fromkeys("Detach Normalize NormalizeBwd Windows MaxPool MaxPoolBwd".split(), _behind),
    "SearchSorted": _behind,
    **dict.fromkeys("Sum Mean Max Min Prod ArgMax".split(), _over),
    **dict.fromkeys("Softmax SoftmaxBwd LogSoftmax LogSoftmaxBwd CumSum Concat".split(), _along),
    **dict.fromkeys("Gather ScatterAdd ScatterLast ArgSort CumProd CumArg".split(), _along),
    "Recurrence": _along,
    "Reshape": _in_front(shape=None),
    "Fold": _in_front(shape=None),
    "Slice": _in_front(start=0, size=None, step=1),
    "Pad": _in_front(shape=None, start=0, step=1),
    "Transpose": _transpose,
    "BroadcastTo": _broadcast,
    "MatMul": _matmul,
    "Linear": _linear,
    "LinearBwd": _linear_bwd,
    "Take": _take,
    "TakeBwd": _take_bwd,
    "Pick": _by_row,
    "PickBwd": _by_row,
    "MseLoss": _mse_loss,
    "MseGrad": _mse_grad,
    "CrossEntropy": _cross_entropy,
    "CrossEntropyGrad": _cross_entropy_grad,
    "Scan": _scan,
}
