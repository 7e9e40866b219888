"""Building a graph."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from . import init as initializers
from .arguments import DTypeName, Same, checked, is_it, not_elements, user_line
from .value import Data as Data
from .value import Operand as Operand
from .value import Value as Value
from .value import is_float as is_float

if TYPE_CHECKING:
    from .optim import LossScale
    from .selection import Params
    from .step import Step
    from .summary import Summary


class Draws:
    """The seed and the counter that random numbers of a body come of, if it draws any."""

    def __init__(self, seed: Value, step: Value) -> None:
        self.seed, self.step, self.used = seed, step, False


class _Mark(NamedTuple):
    """How much of a graph was built: nodes and values, updates of states, what modules hold."""

    core: Any
    moved: int
    held: int


class Graph:
    """A training step as a graph: forward, backward and optimizer.

    Args:
        name: what dumps call it.

    >>> g = aicf.Graph("double")
    >>> g.output("y", g.input("x", (3,)) * 2.0)
    >>> g.verify().ok
    True
    """

    @checked
    def __init__(self, name: str = "graph") -> None:
        self._core = _core.Graph(name)
        self._own_rules: dict[int, Callable[[list[int]], list[int]]] = {}  # by the first result
        self._scopes: list[str] = []  # the composed custom ops that are being made
        self._building: list[list[Value]] = []  # the Values of bodies that are being built
        self._held: dict[Any, str] = {}  # names of what modules own
        self._ran: dict[Any, None] = {}  # the modules that were called, those inside apart
        self._counts: dict[Any, Value] = {}  # of each Bucket, what was given of its axis
        self._padded: dict[Any, int] = {}  # and what it was padded to
        self._crops: dict[int, list[tuple[int, Any]]] = {}  # axes of results to cut, by Bucket
        self._closed = ""  # the function whose trace it was, once that is compiled
        self._draws: list[Draws] = []  # of these bodies
        self._kept_orders = 0  # how deep in gradients of gradients these bodies are
        self._updates: dict[int, list[Value]] = {}  # what layers move states to, in turn; by id
        self._moved: list[int] = []  # the ids, in the order of all updates

    @property
    def name(self) -> str:
        """What dumps call it."""
        return self._core.name

    def _here(self) -> _core.Graph:
        if self._closed:
            raise _core.GraphError(
                f"{self._closed}: a Value is used that an earlier trace made and something kept; "
                "need to return it, or to assign it to a state"
            )
        scopes = f" in {'.'.join(self._scopes)}" if self._scopes else ""
        self._core.where = user_line() + scopes
        return self._core

    @contextlib.contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        """Nodes made inside say that they belong to it."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def _id(self, value: Value, where: str) -> int:
        if isinstance(value, Same):
            raise not_elements()
        if not isinstance(value, Value):
            raise _core.GraphError(
                f"{where}: got {type(value).__name__} {value!r}; need a Value of this graph"
            )
        if value.id < 0:
            raise _core.GraphError(
                f"{where}: got a Value that was made inside the body of a loop or a choice; need "
                "what that returns"
            )
        if value.graph is not self:
            raise _core.GraphError(
                f'{where}: {value!r} belongs to graph "{value.graph.name}", this is "{self.name}"; '
                "values of two graphs never mix: need one graph's"
            )
        return value.id

    # ---- leaves

    @checked
    def input(self, name: str, shape: Sequence[int], dtype: DTypeName = "float32") -> Value:
        """A tensor given at every step.

        Raises: GraphError when the name is taken, ShapeError, DTypeError.
        """
        return Value(self, self._here().input(name, shape, dtype))

    @checked
    def param(
        self, name: str, shape: Sequence[int], dtype: DTypeName = "float32", init: Any = None
    ) -> Value:
        """A trained tensor, kept between steps.

        Args:
            init: an initializer of aicf.init, or an array; None = aicf.init.default(shape).
        """
        if isinstance(init, str):
            known = [name for name in dir(initializers) if callable(getattr(initializers, name))]
            raise _core.GraphError(
                f'param "{name}": init is {init!r}{is_it(init, known)}; need one of aicf.init, as '
                "aicf.init.normal(std=0.02), or an array"
            )
        start = initializers.default(shape) if init is None else init
        return Value(self, self._here().param(name, shape, dtype, start))

    @checked
    def state(
        self, name: str, shape: Sequence[int], dtype: DTypeName = "float32", init: Any = None
    ) -> Value:
        """A tensor kept between steps that no optimizer trains; zero without `init`."""
        start = initializers.zeros() if init is None else init
        return Value(self, self._here().state(name, shape, dtype, start))

    @checked
    def constant(self, value: Any, dtype: DTypeName | None = None) -> Value:
        """A fixed array. Python numbers take `dtype` (default float32); arrays keep their own."""
        return Value(self, self._here().constant(value, dtype))

    @checked
    def assign(self, target: Value, source: Value) -> None:
        """Says what a param or state holds at the start of the next step. Once per target."""
        if isinstance(target, Value) and target.graph is self and target.id in self._updates:
            raise _core.GraphError(
                f"assign: a layer moves {target!r} on already; need a state of your own"
            )
        self._here().assign(self._id(target, "assign"), self._id(source, "assign"))

    def _update(self, state: Value, move: Callable[[Value], Value]) -> None:
        """The next content of a state is `move` of what it is so far: calls follow one another."""
        known = self._core.assigned(state.id) >= 0
        after = move(self._latest(state))
        if known or self._building or state.role not in ("param", "state"):
            self.assign(state, after)  # which says what is wrong
        self._updates.setdefault(state.id, []).append(after)
        self._moved.append(state.id)

    def _latest(self, state: Value) -> Value:
        """What layers have moved a state to so far."""
        return self._updates.get(state.id, [state])[-1]

    def _settle(self) -> None:
        """States hold next what their last update said."""
        for id, values in self._updates.items():
            self._core.assign(id, values[-1].id)
        self._updates.clear()
        self._moved.clear()

    def _mark(self) -> _Mark:
        """How much was built, for `_rollback`."""
        return _Mark(self._core.mark(), len(self._moved), len(self._held))

    def _rollback(self, mark: _Mark) -> None:
        """Takes back all that was built since."""
        self._core.rollback(mark.core)
        for id in self._moved[mark.moved :]:
            self._updates[id].pop()
            if not self._updates[id]:
                del self._updates[id]
        del self._moved[mark.moved :]
        while len(self._held) > mark.held:
            self._held.popitem()

    @contextlib.contextmanager
    def _settled(self) -> Iterator[_core.Graph]:
        """The graph as it would be compiled now, to be looked at."""
        mark = self._core.mark()
        try:
            for id, values in self._updates.items():
                self._core.assign(id, values[-1].id)
            yield self._core
        finally:
            if self._updates:
                self._core.rollback(mark)

    @checked
    def output(self, name: str, value: Value, keep: int = 1) -> None:
        """Makes a value readable after a step; keep=K holds the last K steps, oldest first."""
        if not 0 < keep <= 1 << 20:
            raise _core.GraphError(f'output "{name}": keep is {keep}; need 1 to 1048576 steps')
        self._here().output(name, self._id(value, "output"), keep)

    @checked
    def dense(self, name: str, x: Value, out: int, bias: bool = True) -> Value:
        """A linear layer with params `<name>.W` (out, in) and `<name>.b` (out,)."""
        from .ops import linear

        if not x.shape:
            raise _core.ShapeError(f"dense: x is {x!r}, of rank 0; need rank >= 1")
        weight = self.param(f"{name}.W", (out, x.shape[-1]), x.dtype)
        offset = self.param(f"{name}.b", (out,), x.dtype) if bias else None
        return linear(x, weight, offset)

    @property
    def params(self) -> Params:
        """The params by name; called with patterns, a list of those that match one.

        >>> [p.name for p in g.params("k*")]
        ['kernel']
        """
        from .selection import Params

        return Params(self)

    # ---- training

    @checked
    def backward(
        self, loss: Value, wrt: Sequence[Value] | None = None, grad: Value | None = None
    ) -> dict[Value, Value]:
        """Appends the nodes that compute d loss / d value, and keeps which gradient is whose.

        The gradients are Values as any other: a loss of them has gradients too. `aicf.grad` gives
        them alone, and zeros where the loss does not depend on the value.

        Args:
            loss: rank 0, unless `grad` gives d / d loss in its shape.
            wrt: values to differentiate by; None = every float param the loss reaches.

        Raises: GraphError naming param and op when an op between them has no gradient, or when the
            loss does not depend on a value.
        """
        if wrt is None:
            wrt = [Value(self, id) for id in self._core.reached_params(self._id(loss, "backward"))]
        found = self._gradients(loss, wrt, grad, "backward", record=True)
        return dict(zip(wrt, found, strict=True))

    def _gradients(
        self, loss: Value, wrt: Sequence[Value], grad: Value | None, where: str, record: bool
    ) -> list[Value]:
        root, ids = self._id(loss, where), [self._id(value, where) for value in wrt]
        seed = -1 if grad is None else self._id(grad, where)
        grads = self._here().backward(root, ids, seed, record, self._own_rule)
        return [Value(self, id) for id in grads]

    def _own_rule(self, result: int, dys: list[int]) -> list[int]:
        rule = self._own_rules.get(result)
        if rule is None:
            raise _core.GraphError(
                f"backward: an op of one's own made {Value(self, result)!r}, and no gradient of it "
                "is known: files keep none outside of bodies, and bodies keep two orders; need one "
                "where it is defined, and the graph it was built in"
            )
        return rule(dys)

    @checked
    def minimize(
        self,
        loss: Value,
        optimizer: Any,
        params: Any = None,
        clip_norm: float | Value | None = None,
        name: str = "opt",
        loss_scale: LossScale = None,
    ) -> None:
        """Backward and optimizer as ordinary nodes.

        Args:
            optimizer: a description from aicf.optim. Or several by patterns of params' names, None
                for what stays as it is: each param goes by the first that matches.
            params: what to train: Values, Parameters and Modules in a sequence, one of these, or
                patterns of names; what is frozen is left out. None = every float param the loss
                reaches.
            clip_norm: the largest norm of all gradients together, the state `<name>.clip_norm`.
            name: prefix of the optimizer's states: `<name>.step`, `<name>.lr`, `<name>.m.<param>`;
                of several optimizers `<name>.<index>` is.
            loss_scale: what the loss is multiplied with for its gradients, which are divided by it
                again: a number, a rank-0 Value, or an `aicf.optim.DynamicLossScale`, which also
                skips steps whose gradients are not finite.

        >>> decay = {"w": aicf.optim.AdamW(weight_decay=0.0), "*": aicf.optim.AdamW()}
        >>> g.minimize(aicf.sum(w), decay, name="groups")
        """
        from .optim import _check_norm, _seed, _unscaled
        from .selection import chosen, minimize_groups

        _check_norm("minimize", "clip_norm", clip_norm)
        params = None if params is None else chosen(self, params)
        if isinstance(optimizer, Mapping):
            return minimize_groups(self, loss, optimizer, params, clip_norm, name, loss_scale)
        _optimizer(optimizer, "minimize")
        for p in params or ():
            if p.role != "param":
                raise _core.GraphError(
                    f"minimize: params hold {p!r}, a value of role {p.role}; need params"
                )
        grads = self.backward(loss, params, _seed(self, loss, loss_scale, name))
        if not grads:
            raise _core.GraphError("minimize: the loss reaches no float param; need at least one")
        optimizer._apply(self, name, grads, _unscaled(self, name, grads, clip_norm, loss_scale))

    @checked
    def update(
        self,
        grads: Mapping[Value, Value],
        optimizer: Any,
        clip_norm: float | Value | None = None,
        name: str = "opt",
        loss_scale: LossScale = None,
    ) -> None:
        """The optimizer alone, for gradients at hand: changed ones, or sums over several batches.

        Args:
            grads: the gradient of each param, as `backward` returns them.
            optimizer, clip_norm, name: as `minimize` takes them, patterns of names too.
            loss_scale: what the gradients' loss was multiplied with, of a DynamicLossScale its
                `of(graph, name)`.

        Raises: GraphError, ShapeError, DTypeError when a gradient is not like its param.
        """
        from .optim import _check_norm, _unscaled
        from .selection import grouped, update_groups

        _check_norm("update", "clip_norm", clip_norm)
        groups = optimizer if isinstance(optimizer, Mapping) else None
        if groups is None:
            _optimizer(optimizer, "update")
        if not grads:
            raise _core.GraphError("update: got no gradients; need at least one")
        for p, grad in grads.items():
            self._id(p, "update")
            self._id(grad, "update")
            if p.role != "param":
                raise _core.GraphError(f"update: {p!r} is a {p.role}; need a param")
            if p.shape != grad.shape:
                raise _core.ShapeError(f"update: {grad!r} for {p!r}; need equal shapes")
            if p.dtype != grad.dtype:
                raise _core.DTypeError(f"update: {grad!r} for {p!r}; need equal dtypes")
        if groups is not None:
            members = grouped(self, groups, grads, "update")
            if not any(members.values()):
                raise _core.GraphError("update: no gradient is of a group; need at least one")
            return update_groups(self, grads, groups, members, clip_norm, name, loss_scale)
        optimizer._apply(self, name, grads, _unscaled(self, name, grads, clip_norm, loss_scale))

    @checked
    def ema(
        self,
        decay: float | Value,
        params: Sequence[Value] | None = None,
        before: bool = False,
        name: str = "ema",
    ) -> None:
        """Keeps a running average of params, as states `<name>.<param>`, which the step moves.

        After `minimize` or `update`: a step takes in what its params hold after it, so that k steps
        leave the average of the contents 1 to k, of which the first counts whole; NaN before that.

        Args:
            decay: what is kept at each step, in [0, 1): the state `<name>.decay`; or a Value.
            params: None = every param that this graph changes.
            before: take in what params hold before the step instead.

        Raises: GraphError for a param that nothing changes yet, unless `before` is set.

        Source: torch.optim.swa_utils.get_ema_multi_avg_fn.

        >>> g.minimize((w * w).sum(), aicf.optim.SGD(lr=0.1))
        >>> g.ema(0.99)
        >>> list(g.compile().averages())
        ['w']
        """
        from .optim import _average

        _average(self, decay, params, before, name)

    def _state(self, name: str, shape: Sequence[int], dtype: str) -> Value | None:
        """The state of that name, made here before or read from a file, unless it is another's."""
        id = self._core.find(name)
        if id < 0 or self._core.role(id) != "state":
            return None
        found = Value(self, id)
        return found if (found.shape, found.dtype) == (tuple(shape), dtype) else None

    def _counter(self, name: str, dtype: str, count: Callable[[Value], Value]) -> list[Value]:
        """A rank-0 state and its next content `count(state)`, made at the first call."""
        known = self._state(name, (), dtype)
        if known is not None:
            after = self._core.assigned(known.id)
            if known.id in self._updates:
                after = self._latest(known).id
            if after < 0:
                raise _core.GraphError(
                    f'"{name}": {known!r} is never assigned; need a state that counts'
                )
            return [known, Value(self, after)]
        state = self.state(name, (), dtype)
        self.assign(state, count(state))
        return self._counter(name, dtype, count)

    def _step_values(self, name: str) -> list[Value]:
        """`<name>.step` at the start of the step, and the same plus one."""
        return self._counter(f"{name}.step", "int32", lambda s: self._emit("StepInc", [s])[0])

    @checked
    def step_count(self, name: str = "opt") -> Value:
        """int32, rank 0: how many steps were finished before this one; for schedules."""
        known = self._state(f"{name}.step", (), "int32")
        if known is not None or self._building:
            return self._step_values(name)[0]
        # Assigned last: an optimizer with a loss scale does not count the steps it skips.
        known = self.state(f"{name}.step", (), "int32")
        self._update(known, lambda s: self._emit("StepInc", [s])[0])
        return known

    def _random(self) -> tuple[Value, Value, int]:
        """A seed, a counter and a stream number of its own."""
        return *self._counters(), self._core.free_stream()

    def _counters(self) -> tuple[Value, Value]:
        """`rng.seed` and `rng.step`, which the graph advances; in a body what it has of them."""
        if self._draws:
            self._draws[-1].used = True
            return self._draws[-1].seed, self._draws[-1].step
        seed = self._state("rng.seed", (), "int64")
        if seed is None:
            seed = self.state("rng.seed", (), "int64", ("seed",))
        return seed, self._counter("rng.step", "int64", lambda s: s + 1)[0]

    @checked
    def random_uniform(
        self,
        shape: Sequence[int],
        low: float = 0.0,
        high: float = 1.0,
        dtype: DTypeName = "float32",
    ) -> Value:
        """Fresh numbers in [low, high) at every step, of 24 random bits each."""
        return self._random_value("RandomUniform", shape, dtype, low, high)

    @checked
    def random_normal(
        self,
        shape: Sequence[int],
        mean: float = 0.0,
        std: float = 1.0,
        dtype: DTypeName = "float32",
    ) -> Value:
        """Fresh normal numbers at every step (Box-Muller in float32)."""
        return self._random_value("RandomNormal", shape, dtype, mean, std)

    @checked
    def random_truncated_normal(
        self,
        shape: Sequence[int],
        mean: float = 0.0,
        std: float = 1.0,
        low: float = -2.0,
        high: float = 2.0,
        dtype: DTypeName = "float32",
    ) -> Value:
        """Fresh normal numbers from mean + low·std to mean + high·std, by the inverse of erf."""
        from .sampling import _random_truncated_normal

        return _random_truncated_normal(self, list(shape), mean, std, low, high, dtype)

    @checked
    def random_bernoulli(
        self, shape: Sequence[int], p: float = 0.5, dtype: DTypeName = "bool"
    ) -> Value:
        """Fresh ones with probability p, else zeros."""
        if not 0 <= p <= 1:
            raise _core.GraphError(f"random_bernoulli: p is {p}; need a probability in [0, 1]")
        from .ops import _as, less

        return _as(less(self.random_uniform(shape), p), dtype)

    @checked
    def random_int(
        self, shape: Sequence[int], low: int, high: int, dtype: DTypeName = "int64"
    ) -> Value:
        """Fresh whole numbers in [low, high), at most 2**32 different ones, at every step."""
        from .sampling import _random_int

        return _random_int(self, list(shape), low, high, dtype)

    @checked
    def random_permutation(self, n: int) -> Value:
        """The numbers below n in a fresh order at every step, as int64: `aicf.take` shuffles."""
        from .sampling import _random_permutation

        return _random_permutation(self, n)

    def _random_value(self, op: str, shape: Sequence[int], dtype: str, a: float, b: float) -> Value:
        seed, step, stream = self._random()
        attrs: dict[str, Any] = {"shape": shape, "dtype": dtype, "a": a, "b": b}
        return self._emit(op, [seed, step], **attrs, stream=stream)[0]

    def _number(self, name: str, value: float | Value, dtype: str) -> Value:
        """A hyper-parameter: a named state scalar, or the Value a schedule computes."""
        if isinstance(value, Value):
            self._id(value, name)
            if value.shape != () or value.dtype != dtype:
                raise _core.DTypeError(f"{name}: got {value!r}; need rank 0 and {dtype} (cast it)")
            return value
        known = self._state(name, (), dtype)
        if known is None:
            return self.state(name, (), dtype, initializers.constant(value))
        before = self._core.initial_number(known.id)
        if before != value:
            raise _core.GraphError(
                f"{name}: it is {before} already, got {value}; need another name= for these params"
            )
        return known

    def _emit(self, op: str, inputs: Sequence[Value], name: str = "", **attrs: Any) -> list[Value]:
        ids = [self._id(value, op) for value in inputs]
        return [Value(self, id) for id in self._here().emit(op, ids, attrs, name)]

    # ---- looking at it

    @checked
    def statistics(self, values: Mapping[str, Any] | None = None) -> None:
        """Adds outputs with min, max, mean and share of zeros, which `Step.statistics` reads.

        They change no bit of anything else.

        Args:
            values: Values by name; None = what each layer gives, by the layer's name, and the
                gradient of each param so far, as `<param>.grad`.

        >>> h = aicf.tanh(w)
        >>> g.statistics({"h": h})
        >>> g.compile()().get("stats.h").shape
        (4,)
        """
        from . import statistics

        statistics.add(self, statistics.of_layers(self) if values is None else values)

    def verify(self) -> _core.Report:
        """Checks the graph; the report is falsy, and says why, when something is wrong."""
        with self._settled() as core:
            return core.verify()

    def lower(self) -> list[dict[str, Any]]:
        """The lowered ops before any pass: op, inputs, outputs, attrs."""
        from .serialize import read_record

        with self._settled() as core:
            return read_record(core.lower_json())["ops"]

    @checked
    def summary(self, depth: int | None = None) -> Summary:
        """The layers, what they give, their params and their share of the work, as a table.

        Layers are told by the names of params: "0.qkv.W" belongs to "0.qkv". The work is that of
        a whole step before any pass, gradients and optimizer included, by the ops' own estimates.

        Args:
            depth: how many parts of a layer's name are told apart; None for all.

        >>> g.summary().total.params > 0
        True
        """
        from .summary import Summary, summarize

        record = json.loads(self.to_json())
        title = f"{self.name}: {len(record['nodes'])} nodes"
        return Summary(title, summarize(record, self.lower(), depth))

    def __repr__(self) -> str:
        return f'aicf.Graph("{self.name}", {self._core.mark().nodes} nodes)'

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def to_json(self) -> str:
        """The graph as JSON text; `from_json` reads it back."""
        with self._settled() as core:
            return core.to_json()

    def to_dot(self) -> str:
        """The graph in Graphviz's language."""
        with self._settled() as core:
            return core.to_dot()

    def __str__(self) -> str:
        with self._settled() as core:
            return core.to_text()

    @staticmethod
    def from_json(text: str | bytes, strict: bool = True) -> Graph:
        """Reads a graph. A file is not trusted: whatever is wrong with it is a FormatError.

        Args:
            strict: False keeps unknown ops and broken links, so that `verify()` can name them.
        """
        from .serialize import read_graph

        graph = Graph()
        graph._core = read_graph(text, strict)
        if strict:
            graph._adopt()
        return graph

    def _adopt(self) -> None:
        """Custom ops of a file mean those that are defined here."""
        if not any(kind in self._core.op_names() for kind in ("CustomOp", "HostCall")):
            return
        from .custom import adopt

        nodes = json.loads(self._core.nodes_since(_core.Graph("").mark()))
        own = [node for node in nodes if node["op"] in ("CustomOp", "HostCall")]
        adopt(self, [(node["inputs"], node["outputs"], node["attrs"]) for node in own])

    def compile(
        self,
        device: str = "auto",
        *,
        params: dict[str, Any] | None = None,
        share: Any = None,
        seed: int = 0,
        math: str = "fp32",
        deterministic: bool = True,
        passes: str | Sequence[str] = "default",
        capture: bool = True,
        candidates: Mapping[str, str] | None = None,
        tensor_cores: str | None = None,
        check: bool = False,
        checks: str = "indices",
        cast: bool = False,
        fresh: str | Sequence[str] = (),
        tune: bool = False,
        cublaslt: bool = False,
    ) -> Step:
        """Verifies, rewrites, lowers, plans and captures the graph; it is copied, not kept.

        Args:
            device: "cpu", "cuda:0", or "auto" (the environment variable AICF_DEVICE, else a GPU
                if one is usable, else the CPU).
            params: arrays that replace the initial values of params or states, copied in.
            share: a Step or several; params and states of equal name use their storage. The step's
                `shared` and `fresh` say which did and which began anew. Refused is what would go
                unnoticed: a Step that has none of the names, a name that almost is one of theirs
                ("fc_1.W", "fc1.W"), a number such as "opt.lr" that is another one there, and a
                module that holds other numbers under one of the names.
            seed: of the initial random values.
            math: how products of float32 are computed: "fp32" by fma; "fp32x" on Hopper's tensor
                cores with no digit of the operands lost, where they are large enough to gain by it,
                else as "fp32" (they lose bits below 2^-110); "tf32", "fp16" and "bf16" of
                operands rounded to that type, with sums in float32 (on tensor cores in an order
                of their own), in "tf32" where they are large enough to gain by it, else as
                "fp32". "mixed" also stores activations and gradients as bfloat16; sums,
                losses, norms, params, states, outputs and what is made for these alone stay
                float32, as all does where no product is large enough to gain by it.
            deterministic: False also admits kernels whose results may differ from run to run.
            passes: names in order, "default", or () for none.
            capture: False leaves only `run`.
            candidates: kernels by the signature of an op, as `step.plan.candidates` of the same
                kind of device says them; those of ops that this graph does not have are left alone.
            tensor_cores: whose order the sums of large products in 16 bits (and of the modes
                "fp32x", "tf32", "fp16", "bf16") take: None for the device's own, "sm_90" for those
                of Hopper, whose bits a CPU computes too, slowly.
            check: raise BadValue rather than run a step that makes a NaN or an infinity or takes
                an index out of range, as `Step.trap` says; each step is computed twice.
            checks: "indices": a step that is given an index or label out of range raises BadValue
                and changes no param, state or output; for one on a GPU the call waits until it is
                made. "off": such rows are NaN (0 for integers) and have no gradient.
            cast: inputs from the host take the dtype that the graph says: floats are rounded, whole
                numbers must fit. Else another dtype is a DTypeError.
            fresh: patterns of names that begin anew though `share` is given: "*" for all that no
                step of it has.
            tune: on a GPU, times the kernels for its ops first, as `aicf.tune` says, or takes what
                that found before; `candidates` go before. A CPU has nothing to choose.
            cublaslt: with `tune`, products that nothing is fused with may be cuBLASLt's, as
                `aicf.tune` says: their bits are then those of this version of the library on this
                kind of device, and no longer a CPU's.

        Returns: a Step.
        """
        from .step import Step

        return Step(
            self,
            device=device,
            params=params,
            share=share,
            seed=seed,
            math=math,
            deterministic=deterministic,
            passes=passes,
            capture=capture,
            candidates=candidates,
            tensor_cores=tensor_cores,
            check=check,
            checks=checks,
            cast=cast,
            fresh=fresh,
            tune=tune,
            cublaslt=cublaslt,
        )


def _optimizer(optimizer: Any, where: str) -> None:
    from .optim import Optimizer

    if not isinstance(optimizer, Optimizer):
        raise _core.GraphError(
            f"{where}: optimizer is {optimizer!r}; need one of aicf.optim, as Adam(lr=1e-3)"
        )


@checked
def trace(fn: Callable[..., dict[str, Value]], /, **inputs: Any) -> Graph:
    """Calls `fn(g, **values)` with one input per keyword; the dict it returns becomes outputs.

    Args:
        inputs: a shape, or (shape, dtype), or an array whose shape and dtype are taken.

    >>> g = aicf.trace(lambda g, x: {"y": x + x}, x=(2, 3))
    >>> g.name
    '<lambda>'
    """
    graph = Graph(getattr(fn, "__name__", "graph"))
    values = {}
    for name, spec in inputs.items():
        if hasattr(spec, "shape") and hasattr(spec, "dtype"):
            shape, dtype = spec.shape, spec.dtype
        elif isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[1], str):
            shape, dtype = spec
        else:
            shape, dtype = spec, "float32"
        values[name] = graph.input(name, shape, dtype)
    try:
        inspect.signature(fn).bind(graph, **values)
    except TypeError as error:
        raise _core.GraphError(
            f"trace: {graph.name} does not take the graph and {list(values)}: {error}; "
            "need a parameter for each input"
        ) from None
    except ValueError:  # a builtin tells no signature
        pass
    outputs = fn(graph, **values)
    if not isinstance(outputs, dict):
        raise _core.GraphError(
            f"trace: {graph.name} returned {type(outputs).__name__}; need a dict of name to Value"
        )
    for name, value in outputs.items():
        graph.output(name, value)
    return graph
