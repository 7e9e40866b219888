"""Params of a graph chosen by patterns of their names, and optimizers by groups of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ._core import GraphError
from .arguments import is_it
from .graph import Graph, Value, _optimizer
from .module import Module
from .optim import LossScale, _norm_dtype, _norm_scale, _Scaled, _seed, _unscaled
from .parameters import Held, Parameter
from .serialize import listed


class Params(Mapping[str, Value]):
    """The params of a graph by name; called with patterns, a list of those that match one.

    A pattern is a name in which * stands for any text, ? for a character and [ab] for one of
    several: "block.*" are the params of a block and of all inside.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def _values(self) -> dict[str, Value]:
        graph = self._graph
        return {graph._core.value_name(id): Value(graph, id) for id in graph._core.leaves("param")}

    def __getitem__(self, name: str) -> Value:
        found = self._values()
        if name not in found:
            raise GraphError(f"params: there is no {name!r}; it has {listed(found)}")
        return found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __call__(self, *patterns: str, without: str | Sequence[str] = ()) -> list[Value]:
        """Those whose names match a pattern, and none of `without`, in the graph's order.

        Raises: GraphError for a pattern that matches none.
        """
        found = self._values()
        hidden = [without] if isinstance(without, str) else list(without)
        for pattern in [*patterns, *hidden]:
            _matching(pattern, found)
        return [
            value
            for name, value in found.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns or ("*",))
            and not any(fnmatchcase(name, pattern) for pattern in hidden)
        ]

    def __repr__(self) -> str:
        return f"aicf.Params({listed(self._values())})"


def chosen(graph: Graph, params: Any) -> list[Value]:
    """What `params=` means: Values, what modules own, or patterns of names; what is frozen or was
    never used in the graph is left out."""
    items = [params] if isinstance(params, (str, Module, Held, Value)) else params
    if not isinstance(items, Iterable):
        raise GraphError(f"minimize: params is {params!r}; need Values, Parameters or Modules")
    known = graph.params._values()
    found: dict[Value, None] = {}
    for one in items:
        if isinstance(one, Value):
            found[one] = None
        elif isinstance(one, str):
            found.update(dict.fromkeys(graph.params(one)))
        elif isinstance(one, (Module, Held)):
            held = one.parameters() if isinstance(one, Module) else [one]
            for name in (graph._held.get(each, "") for each in held):
                if name in known:
                    found[known[name]] = None
        else:
            raise GraphError(
                f"minimize: params holds {one!r}; need Values, Parameters, Modules or patterns"
            )
    if not found:
        raise GraphError(
            f"minimize: params is {params!r}, which this graph has none of; need params of modules "
            "that were called in it"
        )
    return list(found)


def _matching(pattern: Any, names: Mapping[str, Any]) -> list[str]:
    found = [name for name in names if isinstance(pattern, str) and fnmatchcase(name, pattern)]
    if not found:
        hint = is_it(str(pattern), list(names))
        raise GraphError(f"params: {pattern!r} matches none{hint}; it has {listed(names)}")
    return found


def grouped(
    graph: Graph, groups: Mapping[str, Any], params: Iterable[Value], where: str
) -> dict[str, list[Value]]:
    """The params of each pattern of names, which has an optimizer, or None."""
    for optimizer in groups.values():
        if optimizer is not None:
            _optimizer(optimizer, where)
    chosen = {value.name: value for value in params}
    members: dict[str, list[Value]] = {pattern: [] for pattern in groups}
    # A group whose params are all frozen for now is no misspelling.
    frozen = [name for one, name in graph._held.items() if isinstance(one, Parameter)]
    for pattern in groups:
        _matching(pattern, dict.fromkeys([*graph.params, *frozen]))
    for value_name, value in chosen.items():
        matching = [pattern for pattern in groups if fnmatchcase(value_name, pattern)]
        if not matching:
            raise GraphError(
                f'{where}: "{value_name}" matches none of {listed(groups)}; need "*" for the '
                "rest, with None where that stays as it is"
            )
        members[matching[0]].append(value)
    return {p: values for p, values in members.items() if groups[p] is not None}


def minimize_groups(
    graph: Graph,
    loss: Value,
    groups: Mapping[str, Any],
    params: Sequence[Value] | None,
    clip_norm: float | Value | None,
    name: str,
    loss_scale: LossScale = None,
) -> None:
    """`Graph.minimize` with an optimizer, or None, for each pattern of names."""
    if params is None:
        reached = graph._core.reached_params(graph._id(loss, "minimize"))
        params = [Value(graph, id) for id in reached]
    members = grouped(graph, groups, params, "minimize")
    trained = [value for values in members.values() for value in values]
    if not trained:
        raise GraphError("minimize: the loss reaches no float param of a group; need at least one")
    grads = graph.backward(loss, trained, _seed(graph, loss, loss_scale, name))
    update_groups(graph, grads, groups, members, clip_norm, name, loss_scale)


def update_groups(
    graph: Graph,
    grads: Mapping[Value, Value],
    groups: Mapping[str, Any],
    members: Mapping[str, Sequence[Value]],
    clip_norm: float | Value | None,
    name: str,
    loss_scale: LossScale = None,
) -> None:
    """`Graph.update` of the members of each group; the norm is that of all together."""
    grads = {value: grads[value] for values in members.values() for value in values}
    limit: Any = None
    if loss_scale is not None:
        limit = _unscaled(graph, name, grads, clip_norm, loss_scale)
    elif clip_norm is not None:
        number = graph._number(f"{name}.clip_norm", clip_norm, _norm_dtype(grads))
        limit = _Scaled(_norm_scale(grads, number))
    for i, (pattern, optimizer) in enumerate(groups.items()):
        if members.get(pattern):
            own = {value: grads[value] for value in members[pattern]}
            optimizer._apply(graph, f"{name}.{i}", own, limit)
