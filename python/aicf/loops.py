"""Loops and choices inside a step: a body built once that runs turn after turn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .graph import Draws, Graph, Value, is_float
from .module import _here
from .movement import concat, detach, reshape
from .operands import _constant
from .ops import logical_and, where

__all__ = ["cond", "scan", "while_loop"]


# ---- trees of Values


class _Tree(NamedTuple):
    """How Values stand together: what holds them and how to make it anew."""

    kind: str
    keys: tuple[Any, ...]
    parts: tuple[_Tree, ...]
    make: Any


_NONE = _Tree("None", (), (), None)


def _flatten(tree: Any, where_: str) -> tuple[list[Any], _Tree]:
    """The Values, numbers and NumPy arrays of tuples, lists and dicts, and how they stood."""
    if tree is None:
        return [], _NONE
    if isinstance(tree, np.generic) and not isinstance(tree, float):
        tree = np.asarray(tree)
    if isinstance(tree, (Value, bool, int, float, np.ndarray)):
        return [tree], _Tree("Value", (), (), None)
    make: Any = None
    if isinstance(tree, dict):
        keys = tuple(sorted(tree, key=str))
        children = [tree[key] for key in keys]
        kind = "dict"
    elif isinstance(tree, (tuple, list)):
        keys, children = (), list(tree)
        kind = type(tree).__name__
        make = getattr(tree, "_make", type(tree))
    else:
        raise GraphError(
            f"{where_}: got {tree!r}; need Values, numbers or NumPy arrays, in tuples, lists or "
            "dicts"
        )
    leaves: list[Any] = []
    parts = []
    for child in children:
        own, part = _flatten(child, where_)
        leaves += own
        parts.append(part)
    return leaves, _Tree(kind, keys, tuple(parts), make)


def _rebuild(tree: _Tree, leaves: Any) -> Any:
    """What stood so, of an iterator of leaves."""
    if tree.kind == "None":
        return None
    if tree.kind == "Value":
        return next(leaves)
    parts = [_rebuild(part, leaves) for part in tree.parts]
    return dict(zip(tree.keys, parts, strict=True)) if tree.kind == "dict" else tree.make(parts)


def _shape_of(tree: _Tree) -> Any:
    return tree.kind, tree.keys, tuple(_shape_of(part) for part in tree.parts)


def _shown(tree: _Tree) -> str:
    if tree.kind in ("Value", "None"):
        return tree.kind
    names = [f"{key!r}: " for key in tree.keys] or [""] * len(tree.parts)
    return (
        tree.kind
        + "("
        + ", ".join(n + _shown(p) for n, p in zip(names, tree.parts, strict=True))
        + ")"
    )


def _values(
    g: Graph, leaves: list[Any], where_: str, like: Sequence[Value] = (), beside: Sequence[Any] = ()
) -> list[Value]:
    """Numbers and NumPy's float64 as constants of the dtype of what they stand for, or else of the
    first float Value of these and of those `beside` them."""
    made = []
    floats = [x.dtype for x in (*leaves, *beside) if isinstance(x, Value) and is_float(x)]
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Value):
            g._id(leaf, where_)
        elif i < len(like):
            leaf = _constant(where_, g, leaf, like[i].dtype)
        else:
            leaf = _constant(
                where_, g, leaf, "bool" if isinstance(leaf, bool) else (floats or [_F])[0]
            )
        made.append(leaf)
    return made


_F = "float32"  # of numbers among which is no float
_COUNTERS: list[tuple[tuple[int, ...], str]] = [((), "int64"), ((), "int64")]


class _Body(NamedTuple):
    """What a function does, cut out of the graph it was built in."""

    core: Any
    draws: bool  # behind its operands it takes a counter and a seed
    captured: list[Value]  # what it reads beside its operands
    tree: _Tree  # of its results


def _cut(
    g: Graph, where_: str, types: Sequence[tuple[Sequence[int], str]],
    build: Callable[[list[Value]], tuple[list[Value], _Tree]],
) -> _Body:  # fmt: skip
    """Builds on stand-ins of these types; nothing of that stays in the graph."""
    before = g._mark()
    mark = before.core
    made: list[Value] = []
    g._building.append(made)
    try:
        *operands, step, seed = (
            Value(g, g._core.placeholder(shape, dtype)) for shape, dtype in (*types, *_COUNTERS)
        )
        g._draws.append(Draws(seed, step))
        results, tree = build(operands)
        draws = g._draws[-1].used
        if draws:
            operands += [step, seed]
        core, captured = g._core.cut_body(
            where_, mark, [v.id for v in operands], [v.id for v in results]
        )
    except BaseException:
        g._rollback(before)
        raise
    finally:
        g._building.pop()
        del g._draws[len(g._building) :]
        for value in made:
            if value.id >= mark.values:
                value.id = -1  # whoever kept it has nothing
        for id in [id for id in g._own_rules if id >= mark.values]:
            del g._own_rules[id]
    return _Body(core, draws, [Value(g, id) for id in captured], tree)


def cut(
    g: Graph, where_: str, operands: Sequence[Value], carries: int,
    build: Callable[[list[Value]], list[Value]],
) -> tuple[Any, list[Value]]:  # fmt: skip
    """The body that `build` makes of carries and rows of the other operands, and what it reads
    beside these."""
    types = [(v.shape if i < carries else v.shape[1:], v.dtype) for i, v in enumerate(operands)]
    return cut_reading(g, where_, types, build)


def cut_reading(
    g: Graph, where_: str, types: Sequence[tuple[Sequence[int], str]],
    build: Callable[[list[Value]], list[Value]],
) -> tuple[Any, list[Value]]:  # fmt: skip
    """The body that `build` makes on operands of these types, and all that it reads beside them."""
    body = _cut(g, where_, types, lambda stand_ins: (build(stand_ins), _NONE))
    return body.core, [*_counters(g, body), *body.captured]


def _counters(g: Graph, body: _Body) -> tuple[Value, ...]:
    """What random numbers of a body come of where it stands for itself, not for turns."""
    return g._counters()[::-1] if body.draws else ()


def _graph_of(leaves: Sequence[Any], where_: str) -> Graph:
    """That of the Values; without one, that of the function which is traced."""
    for leaf in leaves:
        if isinstance(leaf, Value):
            return leaf.graph
    if frames := getattr(_here, "frames", None):
        return frames[-1].graph
    raise GraphError(
        f"{where_}: got no Value; need one at least among the arguments, as g.constant(array) is"
    )


@contextlib.contextmanager
def _all_or_nothing(g: Graph) -> Iterator[None]:
    mark = g._mark()
    try:
        yield
    except BaseException:
        g._rollback(mark)
        raise


# ---- scan


@checked
def scan(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
    save: str = "states",
) -> tuple[Any, Any]:
    """Runs `carry, y = f(carry, x)` once for each row of xs, one turn after the other.

    `f` is called once, while the graph is built; what it does is compiled once, however many turns
    there are. Values of the graph that it uses beside its arguments are read by every turn.
    Gradients of any order go through it: back from the last turn to the first, each of which makes
    its forward turn again from the carry it began with. The gradient of what all turns read is the
    sum of theirs in that order; that of a weight which one `linear` of a turn alone reads is one
    product of all turns' rows.

    Args:
        f: takes a carry and a row and returns the next carry, of the same shapes and dtypes, and
            what to keep of the turn, or None.
        init: the first carry: a Value, or tuples, lists and dicts of Values. A number is of the
            dtype of the first float Value beside it, or of those of xs, and so is a NumPy array of
            float64.
        xs: rows along axis 0, all of one length; None where f needs none.
        length: turns; needed where xs is None.
        reverse: from the last row to the first; ys have the rows of their xs.
        save: "states" keeps the carry of every turn for the gradient; "recompute" that of about
            every √length-th, and makes the others again.

    On a GPU a turn costs a launch for each op of its body that waits for another; where
    a turn's values and what all turns read find room beside a processor (227 KiB on a H100) and its
    products are small, all turns are one launch, `block_loop` in the step's plan.

    Returns: the last carry, and the ys of all turns along a new axis 0.

    Random numbers that f draws are fresh in every turn of every step, and the gradient draws the
    same again. With another `save` they are other ones.

    Raises: GraphError where f makes a param, a state or an output, or where a carry changes its
        shape or dtype.

    >>> total, sums = aicf.scan(lambda c, row: (c + row, c), aicf.sum(x, 0) * 0.0, x)
    >>> total.shape, sums.shape
    ((3,), (4, 3))
    """
    if save not in ("states", "recompute"):
        raise GraphError(f'scan: save is {save!r}; need "states" or "recompute"')
    carries, carry_tree = _flatten(init, "scan: init")
    rows, row_tree = _flatten(xs, "scan: xs")
    g = _graph_of([*carries, *rows], "scan")
    with _all_or_nothing(g):
        return _scan(
            g, f, _values(g, carries, "scan: init", beside=rows), carry_tree,
            _values(g, rows, "scan: xs", beside=carries),
            row_tree, length, reverse, save,
        )  # fmt: skip


def _scan(
    g: Graph, f: Callable[..., Any], carries: list[Value], carry_tree: _Tree, rows: list[Value],
    row_tree: _Tree, length: int | None, reverse: bool, save: str,
) -> tuple[Any, Any]:  # fmt: skip
    lengths = {row.shape[0] if row.ndim else -1 for row in rows}
    if length is not None:
        lengths.add(length)
    if len(lengths) != 1 or min(lengths) < 0:
        raise ShapeError(
            f"scan: xs are {rows}, length is {length}; need one length >= 0 along axis 0 of all"
        )
    turns = lengths.pop()

    def build(operands: list[Value]) -> tuple[list[Value], _Tree]:
        leaves = iter(operands)
        made = f(_rebuild(carry_tree, leaves), _rebuild(row_tree, leaves))
        if not (isinstance(made, tuple) and len(made) == 2):
            raise GraphError(f"scan: f returned {made!r}; need (carry, y)")
        after, after_tree = _flatten(made[0], "scan: the carry f returns")
        kept, kept_tree = _flatten(made[1], "scan: the y f returns")
        if _shape_of(after_tree) != _shape_of(carry_tree):
            raise GraphError(
                f"scan: f returns a carry {_shown(after_tree)}, init is {_shown(carry_tree)}; need "
                "one structure"
            )
        after = _values(g, after, "scan: the carry f returns", carries)
        for before, now in zip(carries, after, strict=True):
            if now.shape != before.shape:
                raise ShapeError(f"scan: f makes {now!r} of carry {before!r}; need equal shapes")
            if now.dtype != before.dtype:
                raise DTypeError(f"scan: f makes {now!r} of carry {before!r}; need equal dtypes")
        return [*after, *_values(g, kept, "scan: the y f returns")], kept_tree

    types = [(c.shape, c.dtype) for c in carries] + [(r.shape[1:], r.dtype) for r in rows]
    step = math.isqrt(turns) if save == "recompute" else 0
    if step > 1:
        return _in_segments(f, carries, carry_tree, rows, row_tree, turns, step, reverse)
    body = _cut(g, "scan", types, build)
    results = _loop(g, body, carries, rows, turns, reverse)
    leaves = iter(results)
    return _rebuild(carry_tree, leaves), _rebuild(body.tree, leaves)


def _loop(
    g: Graph, body: _Body, carries: Sequence[Value], rows: Sequence[Value], turns: int,
    reverse: bool,
) -> list[Value]:  # fmt: skip
    """The last carries and what is kept of each turn."""
    kept = body.core.results()[len(carries) :]
    if turns == 0:
        return [*carries, *(_empty(g, (0, *shape), dtype) for shape, dtype in kept)]
    rows, wholes = list(rows), []
    if body.draws:  # each turn of each step has a counter of its own
        seed, step = g._counters()
        rows.append(step * turns + g.constant(np.arange(turns)))
        wholes.append(seed)
    made = g._emit(
        "Scan",
        [*carries, *rows, *wholes, *body.captured],
        length=turns,
        carries=len(carries),
        slices=len(rows),
        reverse=reverse,
        body=body.core,
    )
    return made[: len(carries) + len(kept)]


def _empty(g: Graph, shape: tuple[int, ...], dtype: str) -> Value:
    zero = Value(g, g._here().scalar(dtype, 0.0))
    return g._emit("BroadcastTo", [zero], shape=list(shape))[0]


def _in_segments(
    f: Any, carries: list[Value], carry_tree: _Tree, rows: list[Value],
    row_tree: _Tree, turns: int, step: int, reverse: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """A loop of loops: the gradient keeps the carries between segments and, while it is in one,
    those of its turns. What is left of the length stands at the end."""
    count, whole = turns // step, turns // step * step

    def segment(carry: Any, part: Any) -> tuple[Any, Any]:
        return scan(f, carry, part, length=step, reverse=reverse)

    def main(carry: Any) -> tuple[Any, Any]:
        parts = [reshape(row[:whole], (count, step, *row.shape[1:])) for row in rows]
        carry, ys = scan(
            segment, carry, _rebuild(row_tree, iter(parts)), length=count, reverse=reverse
        )
        return carry, ys

    def rest(carry: Any) -> tuple[Any, Any]:
        parts = [row[whole:] for row in rows]
        return scan(
            f, carry, _rebuild(row_tree, iter(parts)), length=turns - whole, reverse=reverse
        )

    carry = _rebuild(carry_tree, iter(carries))
    if turns == whole:
        carry, ys = main(carry)
        leaves, tree = _flatten(ys, "scan")
        return carry, _rebuild(tree, iter([_joined(y) for y in leaves]))
    if reverse:
        carry, last = rest(carry)
        carry, ys = main(carry)
    else:
        carry, ys = main(carry)
        carry, last = rest(carry)
    leaves, tree = _flatten(ys, "scan")
    ends, _ = _flatten(last, "scan")
    both = [concat([_joined(y), end], 0) for y, end in zip(leaves, ends, strict=True)]
    return carry, _rebuild(tree, iter(both))


def _joined(y: Value) -> Value:
    return reshape(y, (y.shape[0] * y.shape[1], *y.shape[2:]))


# ---- choices


def _gated(x: Value, pred: Value, taken: bool) -> Value:
    """x, with no gradient where it is not taken, whatever that would be."""
    if not is_float(x):
        return x
    return where(pred, x, detach(x)) if taken else where(pred, detach(x), x)


def _branch(
    g: Graph, where_: str, pred: Value, taken: bool, fn: Callable[..., Any],
    operands: Sequence[Value], tree: _Tree, like: Sequence[Value] = (),
) -> tuple[list[Value], _Tree, list[Any]]:  # fmt: skip
    """The results of fn, whose gradient is zero where pred is not `taken`; how they stand, and what
    they were. Numbers have the dtypes of `like`."""
    given: list[Any] = []

    def build(stand_ins: list[Value]) -> tuple[list[Value], _Tree]:
        made, made_tree = _flatten(fn(*_rebuild(tree, iter(stand_ins))), where_)
        given.extend(made)
        return _values(g, made, where_, like if len(like) == len(made) else ()), made_tree

    body = _cut(g, where_, [(v.shape, v.dtype) for v in operands], build)
    inputs = [_gated(v, pred, taken) for v in (*operands, *_counters(g, body), *body.captured)]
    ids = g._here().append_body(body.core, [v.id for v in inputs])
    return [Value(g, id) for id in ids], body.tree, given


def _check_pred(pred: Value, where_: str) -> None:
    if not isinstance(pred, Value) or pred.dtype != "bool" or pred.ndim:
        raise DTypeError(f"{where_}: the condition is {pred!r}; need a bool of rank 0")


@checked
def cond(
    pred: Value, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fn(*operands)` where pred holds, else `false_fn(*operands)`.

    Both are computed in every step, and the result is chosen element by element: it costs what both
    cost. The gradient of the branch that is not taken is zero, also where its values or slopes
    would be infinite or NaN.

    Args:
        pred: a bool of rank 0.
        true_fn: takes the operands; may use other Values of the graph. Both return the same
            structure of Values, of equal shapes and dtypes; a number is of the other's dtype.

    >>> aicf.cond(aicf.sum(x) > 0.0, aicf.sqrt, aicf.neg, x).shape
    (4, 3)
    """
    _check_pred(pred, "cond")
    g = pred.graph
    leaves, tree = _flatten(operands, "cond")
    values = _values(g, leaves, "cond")
    yes, tree_yes, given = _branch(g, "cond", pred, True, true_fn, values, tree)
    no, tree_no, _ = _branch(g, "cond", pred, False, false_fn, values, tree, yes)
    if _shape_of(tree_yes) != _shape_of(tree_no):
        raise GraphError(
            f"cond: the branches return {_shown(tree_yes)} and {_shown(tree_no)}; need one "
            "structure"
        )
    for i, (a, b) in enumerate(zip(yes, no, strict=True)):
        if not isinstance(given[i], Value) and a.dtype != b.dtype:
            yes[i] = a = _constant("cond", g, given[i], b.dtype)
        if a.shape != b.shape:
            raise ShapeError(f"cond: the branches return {a!r} and {b!r}; need equal shapes")
        if a.dtype != b.dtype:
            raise DTypeError(f"cond: the branches return {a!r} and {b!r}; need equal dtypes")
    chosen = [where(pred, a, b) for a, b in zip(yes, no, strict=True)]
    return _rebuild(tree_yes, iter(chosen))


@checked
def while_loop(
    cond: Callable[..., Any], body: Callable[..., Any], init: Any, max_steps: int
) -> Any:
    """`carry = body(carry)` as long as cond(carry) holds, at most max_steps times.

    A step always takes max_steps turns and costs as much: those after the last that counts change
    nothing. The gradient of such a turn is zero, whatever it computes.

    Args:
        cond: takes the carry and returns a bool of rank 0.
        body: takes the carry and returns the next one, of the same shapes and dtypes.
        init: a Value, or tuples, lists and dicts of Values. A number is of the dtype of the first
            float Value beside it.

    >>> aicf.while_loop(lambda c: aicf.sum(c) < 99.0, lambda c: c * 2.0, x, max_steps=20).shape
    (4, 3)
    """
    if max_steps < 0:
        raise GraphError(f"while_loop: max_steps is {max_steps}; need >= 0")
    leaves, tree = _flatten(init, "while_loop: init")
    g = _graph_of(leaves, "while_loop")
    with _all_or_nothing(g):
        first = _values(g, leaves, "while_loop: init")
        return _while(g, cond, body, first, tree, max_steps)


def _while(
    g: Graph, cond: Callable[..., Any], body: Callable[..., Any], first: list[Value], tree: _Tree,
    max_steps: int,
) -> Any:  # fmt: skip
    argument = _Tree("tuple", (), (tree,), tuple)

    def turn(carry: tuple[Value, list[Value]], _: None) -> Any:
        running, now = carry
        holds = cond(_rebuild(tree, iter(now)))
        _check_pred(holds, "while_loop")
        running = logical_and(running, holds)
        after, after_tree, _given = _branch(
            g, "while_loop", running, True, body, now, argument, like=now
        )
        if _shape_of(after_tree) != _shape_of(tree):
            raise GraphError(
                f"while_loop: body returns {_shown(after_tree)}, init is {_shown(tree)}; need one "
                "structure"
            )
        for a, b in zip(after, now, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise ShapeError(f"while_loop: body makes {a!r} of {b!r}; need equal types")
        chosen = [where(running, a, b) for a, b in zip(after, now, strict=True)]
        return (running, chosen), None

    start = (g.constant(np.array(True)), first)
    (_, last), _ = scan(turn, start, length=max_steps)
    return _rebuild(tree, iter(last))
