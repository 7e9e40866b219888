"""Memory for time: parts of a graph that the gradient makes again instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._core import GraphError
from .arguments import checked
from .gradients import itself, kept_gradient, later
from .graph import Graph, Value, is_float
from .loops import _all_or_nothing, _counters, _cut, _flatten, _graph_of, _rebuild, _values

__all__ = ["remat"]


@checked
def remat(f: Callable[..., Any], *operands: Any) -> Any:
    """`f(*operands)`, whose gradient computes it again from the operands.

    Of what `f` computes nothing is kept until the gradient needs it: a step takes less memory, and
    about as much longer as `f` takes. The bits are those of `f(*operands)` as long as nothing
    else reads its operands; where something does, their gradients are added up in another order.

    Named as in JAX; PyTorch's torch.utils.checkpoint, which word here means what `save` writes.

    Args:
        f: takes and returns Values, or tuples, lists and dicts of them; a module, or a function
            that may use other Values of the graph. It makes no param, state or output.

    Random numbers that f draws are drawn again. Gradients of any order go through it.

    Raises: GraphError where f makes a param or state, or returns none.

    >>> aicf.remat(lambda x: aicf.tanh(x) * 2.0, x).shape
    (4, 3)
    """
    from .module import Module

    leaves, tree = _flatten(operands, "remat")
    g = _graph_of(leaves, "remat")
    with _all_or_nothing(g):
        if isinstance(f, Module):
            f.in_graph(g)
        values = _values(g, leaves, "remat")

        def build(stand_ins: list[Value]) -> tuple[list[Value], Any]:
            made, made_tree = _flatten(f(*_rebuild(tree, iter(stand_ins))), "remat")
            if not made:
                raise GraphError("remat: f returned no Value; need one at least")
            return _values(g, made, "remat"), made_tree

        body = _cut(g, "remat", [(v.shape, v.dtype) for v in values], build)
        read = [*values, *_counters(g, body), *body.captured]
        made = _again(g, body.core, read)
        floats = [i for i, v in enumerate(read) if is_float(v)]
        if floats and any(is_float(v) for v in made):
            rule = _rule(g, body.core, read, floats)
            made = kept_gradient("remat", g, made, [read[i] for i in floats], [], rule)
        return _rebuild(body.tree, iter(made))


def _again(g: Graph, body: Any, read: Sequence[Value]) -> list[Value]:
    return [Value(g, id) for id in g._here().append_body(body, [v.id for v in read])]


def _rule(
    g: Graph, body: Any, read: Sequence[Value], floats: Sequence[int]
) -> Callable[[list[int]], list[int]]:
    """From the gradients of the results those of `floats` of what was read."""

    def rule(dys: list[int]) -> list[int]:
        seeds = [Value(g, id) for id in dys if id >= 0]
        # Params are kept anyhow, and what is made of them alone, unless f reads nothing else.
        made_here = [is_float(v) and v.role not in ("param", "state", "constant") for v in read]
        now = [
            v if not is_float(v) else itself(v) if any(made_here) and not each
            else later(v, seeds[0])
            for v, each in zip(read, made_here, strict=True)
        ]  # fmt: skip
        made = [v for v in _again(g, body, now) if is_float(v)]
        wrt = [now[i].id for i in floats]
        return g._here().backward_all([v.id for v in made], [v.id for v in seeds], wrt)

    return rule
