"""Optimizers: descriptions that `Graph.minimize` turns into nodes, with PyTorch's formulas.

A hyper-parameter given as a float becomes a state scalar (`opt.lr`, `opt.beta1`, ...) that
`Step.set` changes between replays; given as a rank-0 Value it is computed in the graph. Those that
are 0 (momentum, weight_decay) leave their terms out of the graph.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ._core import DTypeError, GraphError
from .arguments import checked, is_it, placed, user_line

if TYPE_CHECKING:
    from .graph import Graph, Value

Grads = Mapping["Value", "Value"]
Limit: TypeAlias = "float | Value | _Scaled | None"
LossScale: TypeAlias = "float | Value | DynamicLossScale | None"


# A loss scale lies between these: a smaller float32 has no reciprocal that is finite.
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_NORMAL = "a number from 1.2e-38 to 3.4e38"


def _plain(x: Any) -> Any:
    """NumPy's scalars as Python's numbers, in pairs too."""
    if isinstance(x, (tuple, list)):
        return type(x)(map(_plain, x))
    return x.item() if isinstance(x, np.generic) else x


def _as_plain(description: Any) -> None:
    """The same for the fields of a description."""
    for name, value in vars(description).items():
        object.__setattr__(description, name, _plain(value))


def _in_float32(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(min(number, 1e39)))


def _is_zero(number: float | Value) -> bool:
    return isinstance(number, (int, float)) and number == 0


class _Scaled(NamedTuple):
    """In place of the largest norm: what gradients are multiplied with, known already."""

    by: Value
    good: Value | None = None  # bool: False where the step is skipped, and `by` is 0 then
    undoes: bool = False  # a loss scale, in float32


class _Update:
    """What every optimizer needs while it emits: named numbers, moments, clipped gradients."""

    def __init__(self, g: Graph, name: str, grads: Grads, clip_norm: Limit) -> None:
        dtypes = sorted({p.dtype for p in grads})
        if "float64" in dtypes and len(dtypes) > 1:
            raise DTypeError(
                f"minimize: params have dtypes {', '.join(dtypes)}; "
                "need float64 alone, or two minimize calls with names of their own"
            )
        self.g, self.name = g, name
        self.dtype = "float64" if dtypes == ["float64"] else "float32"
        self.grads = dict(grads)
        self.scale: Value | None = None  # what gradients are multiplied with
        self.good: Value | None = None  # whether the step is taken; None = always
        self.undoes = False
        if isinstance(clip_norm, _Scaled):
            self.scale, self.good, self.undoes = clip_norm
        elif clip_norm is not None:
            self.scale = _norm_scale(self.grads, self.number("clip_norm", clip_norm))

    def clipped(self, p: Value) -> Value:
        """The gradient of `p` as the update takes it."""
        from .ops import cast

        grad = self.grads[p]
        if self.scale is None:
            return grad
        if self.undoes and grad.dtype == "bfloat16":  # the factor has more digits
            return cast(_scaled(cast(grad, "float32"), self.scale), "bfloat16")
        return _scaled(grad, self.scale)

    def number(self, name: str, value: float | Value) -> Value:
        """float64 beside float64 params, float32 beside all others."""
        return self.g._number(f"{self.name}.{name}", value, self.dtype)

    def moment(self, name: str, p: Value, slot: int, start: float = 0.0) -> Value:
        """A state like `p`."""
        m = self.g.state(f"{self.name}.{name}.{p.name}", p.shape, p.dtype, ("constant", start))
        self.g._core.mark_moment(m.id, p.id, slot)
        return m

    def to(self, number: Value, p: Value) -> Value:
        """The number in the dtype of `p`."""
        from .ops import cast

        return number if number.dtype == p.dtype else cast(number, p.dtype)

    def assign(self, targets: list[Value], sources: list[Value]) -> None:
        for target, source in zip(targets, sources, strict=True):
            self.g.assign(target, source)

    def keep(self, moment: Value, after: Value) -> None:
        """Assigns what a pointwise op made, which a skipped step does not."""
        from .ops import where

        self.g.assign(moment, after if self.good is None else where(self.good, after, moment))

    def scale_number(self) -> Value | None:
        """The scale in the dtype of the other numbers."""
        from .ops import cast

        if self.scale is None or self.scale.dtype == self.dtype:
            return self.scale
        return cast(self.scale, self.dtype)

    def descend(self, p: Value, slope: Value, lr: Value, scale: Value | None = None) -> None:
        """p ← p − lr·slope, of a slope that is `clipped`, or is made so by `scale` here."""
        from .ops import cast

        if self.good is None:
            return self.assign([p], self.g._emit("SgdStep", [p, slope, lr]))
        scale = cast(self.good, self.dtype) if scale is None else scale
        self.assign([p], self.g._emit("GuardedSgdStep", [p, slope, lr, scale]))

    def steps(self) -> list[Value]:
        """`<name>.step` at the start of the step, and the same plus one."""
        if self.good is None:
            return self.g._step_values(self.name)
        return _guarded_steps(self.g, self.name, self.good)


def _check_norm(where: str, name: str, norm: float | Value | None) -> None:
    norm = _plain(norm)
    if isinstance(norm, (int, float)) and not norm > 0:
        raise GraphError(f"{where}: {name} is {norm}; need {name} > 0, or None for no limit")


@checked
def clip_grad_norm(grads: Mapping[Value, Value], max_norm: float | Value) -> dict[Value, Value]:
    """Gradients scaled by min(1, max_norm / (‖all gradients‖₂ + 1e-6)).

    Source: torch.nn.utils.clip_grad_norm_.

    >>> aicf.optim.clip_grad_norm({w: w * 2.0}, 1.0)[w].shape
    (2, 3)
    """
    if not grads:
        raise GraphError("clip_grad_norm: got no gradients; need at least one")
    _check_norm("clip_grad_norm", "max_norm", max_norm)
    scale = _norm_scale(grads, max_norm)
    return {p: _scaled(grad, scale) for p, grad in grads.items()}


def _norm_dtype(grads: Grads) -> str:
    return "float64" if any(grad.dtype == "float64" for grad in grads.values()) else "float32"


def _norm_scale(grads: Grads, max_norm: float | Value) -> Value:
    """What `clip_grad_norm` multiplies gradients with; float64 where one of them is."""
    return _norm_and_scale(grads, max_norm)[1]


def _norm_and_scale(grads: Grads, max_norm: float | Value) -> tuple[Value, Value]:
    """The square of the norm, and what gradients are multiplied with."""
    from .ops import add, cast, div, minimum, mul, sqrt, sum

    wide = _norm_dtype(grads)
    squares = []
    for grad in grads.values():
        grad = grad if grad.dtype == wide else cast(grad, wide)
        squares.append(sum(mul(grad, grad)))
    total = squares[0]
    for square in squares[1:]:
        total = add(total, square)
    return total, minimum(div(max_norm, add(sqrt(total), 1e-6)), 1.0)


def _scaled(grad: Value, scale: Value) -> Value:
    from .ops import cast, mul

    return mul(grad, scale if grad.dtype == scale.dtype else cast(scale, grad.dtype))


def _check_names(cls: type, named: Mapping[str, Any]) -> None:
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else [*named]
    for name in named:
        if name not in names:
            raise TypeError(
                f"{cls.__name__}: there is no argument {name!r}{is_it(name, names)}; "
                f"need {', '.join(names)} ({user_line()})"
            )


@dataclass(frozen=True)
class DynamicLossScale:
    """A loss scale that follows the gradients: for `minimize(loss_scale=)` and `update`.

    Gradients are those of the loss times the scale, so that small ones are not lost in float16;
    they are divided by it, in float32, before their norm is limited and before the update. A step
    with an infinity or a NaN in a gradient is skipped: params, moments and `<name>.step` stay as
    they are. Nothing of it is read on the host.

    The scale is the state `<name>.scale`; `<name>.scale.good_steps` counts the steps since it
    changed last, `<name>.scale.skipped` all that were skipped. The numbers below are states too,
    `<name>.scale.growth` and so on.

    Args:
        initial: the scale at first.
        growth: what it is multiplied with after `interval` steps without a skipped one, unless it
            would be infinite.
        backoff: what it is multiplied with in a skipped step.
        interval: in steps.

    Raises: GraphError, DTypeError for a number out of its range.

    Source: torch.amp.GradScaler. The scale stays a normal float32 here, however many steps are
    skipped one after another: what is divided by a smaller one is no number.

    >>> scale = aicf.optim.DynamicLossScale(interval=100)
    >>> g.minimize((w * w).sum(), aicf.optim.Adam(), loss_scale=scale, name="scaled")
    >>> float(g.compile().state["scaled.scale"])
    65536.0
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __new__(cls, *_: Any, **named: Any) -> DynamicLossScale:
        _check_names(cls, named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _as_plain(self)
        try:
            self._check()
        except (DTypeError, GraphError) as error:
            placed(error)
            raise

    def _check(self) -> None:
        for name, value in vars(self).items():
            where = f"DynamicLossScale: {name}"
            kinds = int if name == "interval" else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                need = "an integer" if name == "interval" else "a number"
                raise DTypeError(f"{where} is {value!r}; need {need}")
        growth, backoff = _in_float32(self.growth), _in_float32(self.backoff)
        for name, value, good, need in (
            ("initial", self.initial, _LEAST <= self.initial <= _MOST, _NORMAL),
            ("growth", self.growth, 1 < growth < math.inf, "a number above 1 in float32"),
            ("backoff", self.backoff, 0 < backoff < 1, "a number in (0, 1) in float32"),
            ("interval", self.interval, 0 < self.interval < 2**31, "a number in [1, 2**31)"),
        ):
            if not good:
                raise GraphError(f"DynamicLossScale: {name} is {value}; need {need}")

    @checked
    def of(self, graph: Graph, name: str = "opt") -> Value:
        """The scale at the start of a step, float32: for gradients that `update` is given.

        Args:
            name: as `update` is given.

        >>> scale = aicf.optim.DynamicLossScale()
        >>> grads = g.backward((w * w).sum(), grad=scale.of(g))
        >>> g.update(grads, aicf.optim.SGD(lr=0.1), loss_scale=scale)
        """
        known = graph._state(f"{name}.scale", (), "float32")
        if known is None:
            start = ("constant", float(self.initial))
            return graph.state(f"{name}.scale", (), "float32", start)
        before = graph._core.initial_number(known.id)
        if before != self.initial:
            raise GraphError(
                f"{name}.scale: it is {before} already, got {self.initial}; need another name="
            )
        return known

    def _move(self, g: Graph, name: str, good: Value) -> None:
        """The next scale, and its counts."""
        from .arrays import isfinite
        from .ops import greater_equal, logical_and, logical_not, maximum, where

        scale = self.of(g, name)
        if g._core.assigned(scale.id) >= 0:
            raise GraphError(
                f"{name}.scale: another update moves it already; need another name= for these "
                "params"
            )
        growth = g._number(f"{name}.scale.growth", float(self.growth), "float32")
        backoff = g._number(f"{name}.scale.backoff", float(self.backoff), "float32")
        interval = g._number(f"{name}.scale.interval", self.interval, "int32")
        good_steps = g.state(f"{name}.scale.good_steps", (), "int32")
        skipped = g.state(f"{name}.scale.skipped", (), "int32")
        done, grown = good_steps + 1, scale * growth
        full = greater_equal(done, interval)
        wider = where(logical_and(full, isfinite(grown)), grown, scale)
        g.assign(scale, where(good, wider, maximum(scale * backoff, _LEAST)))
        g.assign(good_steps, where(logical_and(good, logical_not(full)), done, 0))
        g.assign(skipped, where(good, skipped, skipped + 1))


def _guarded_steps(g: Graph, name: str, good: Value) -> list[Value]:
    """The counter before the step and after it; a skipped step does not count."""
    from .ops import where

    step = g.step_count(name)
    if step.id not in g._updates:
        raise GraphError(
            f"{name}.step: it counts every step already; need another name= for these params"
        )
    after = g._latest(step)
    g._update(step, lambda s: where(good, s, step))
    return [step, after]


def _known_scale(where: str, loss_scale: LossScale) -> LossScale:
    """A number, a Value or a description, and nothing else."""
    from .graph import Value

    loss_scale = _plain(loss_scale)
    if loss_scale is None or isinstance(loss_scale, DynamicLossScale):
        return loss_scale
    need = f"need {_NORMAL}, a rank-0 float32 Value or an aicf.optim.DynamicLossScale"
    if isinstance(loss_scale, Value):
        if loss_scale.shape != () or loss_scale.dtype != "float32":
            raise DTypeError(f"{where}: loss_scale is {loss_scale!r}; {need}")
    elif isinstance(loss_scale, bool) or not isinstance(loss_scale, (int, float)):
        raise DTypeError(f"{where}: loss_scale is {loss_scale!r}; {need}")
    elif not _LEAST <= loss_scale <= _MOST:
        raise GraphError(f"{where}: loss_scale is {loss_scale}; {need}")
    return loss_scale


def _scale_value(g: Graph, loss_scale: float | Value | DynamicLossScale, name: str) -> Value:
    if isinstance(loss_scale, DynamicLossScale):
        return loss_scale.of(g, name)
    return g.constant(loss_scale) if isinstance(loss_scale, (int, float)) else loss_scale


def _seed(g: Graph, loss: Value, loss_scale: LossScale, name: str) -> Value | None:
    """What the gradient of the loss is."""
    from .ops import cast

    loss_scale = _known_scale("minimize", loss_scale)
    if loss_scale is None or loss.shape != ():  # backward says what a loss has to be
        return None
    scale = _scale_value(g, loss_scale, name)
    return scale if loss.dtype == "float32" else cast(scale, loss.dtype)


def _unscaled(
    g: Graph, name: str, grads: Grads, clip_norm: float | Value | None, loss_scale: LossScale
) -> Limit:
    """The limit of the norm as an optimizer takes it: of gradients of the scaled loss."""
    from .arrays import isfinite
    from .ops import abs, cast, div, max, maximum, mul, where

    loss_scale = _known_scale("update", loss_scale)
    if loss_scale is None:
        return clip_norm
    for p in grads:
        if p.dtype == "float16":
            raise DTypeError(
                f"loss_scale: {p!r} is trained; need params of float32 (cast them where they are "
                "used), for gradients divided by the scale are lost in float16"
            )
    wide = _norm_dtype(grads)
    scale = _scale_value(g, loss_scale, name)
    factor = div(1.0, cast(scale, wide) if wide == "float64" else scale)
    large: list[Value] = []  # of which one is not finite where any gradient is not
    if clip_norm is not None:
        limit = g._number(f"{name}.clip_norm", clip_norm, wide)
        plain = {
            p: mul(grad if grad.dtype == wide else cast(grad, wide), factor)
            for p, grad in grads.items()
        }
        square, part = _norm_and_scale(plain, limit)
        large = [square]
        factor = mul(factor, part)
    if not isinstance(loss_scale, DynamicLossScale):
        return _Scaled(factor, undoes=True)
    if not large:
        tops = [max(abs(grad)) for grad in grads.values() if 0 not in grad.shape]
        large = [top if top.dtype == wide else cast(top, wide) for top in tops]
    good = isfinite(functools.reduce(maximum, large or [g.constant(0.0, wide)]))
    loss_scale._move(g, name, good)
    return _Scaled(where(good, factor, 0.0), good, undoes=True)


def _average(
    g: Graph, decay: float | Value, params: Sequence[Value] | None, before: bool, name: str
) -> None:
    """What `Graph.ema` says."""
    from .graph import Value
    from .ops import cast, isnan, where

    _check_number("ema: decay", decay, 1.0)
    if params is None:
        leaves = [Value(g, id) for id in g._core.leaves("param")]
        params = [p for p in leaves if g._core.assigned(p.id) >= 0]
    if not params:
        raise GraphError("ema: the graph changes no param yet; need minimize or update before it")
    rate = g._number(f"{name}.decay", decay, "float32")
    for p in params:
        after = g._core.assigned(g._id(p, "ema"))
        if p.role != "param" or not (before or after >= 0):
            raise GraphError(
                f"ema: {p!r} is a {p.role} that the graph does not change; need a param of a "
                "minimize or update before it, or before=True"
            )
        mean = g.state(f"{name}.{p.name}", p.shape, p.dtype, ("constant", math.nan))  # none yet
        new = p if before else Value(g, after)
        part = 1.0 - rate if p.dtype == "float32" else cast(1.0 - rate, p.dtype)
        g.assign(mean, where(isnan(mean), new, mean + (new - mean) * part))


def _check_number(where: str, value: Any, high: float) -> None:
    """A Value is a schedule, whose numbers are known when it runs."""
    from .graph import Value

    if isinstance(value, Value):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DTypeError(f"{where} is {value!r}; need a number or a rank-0 Value")
    if not 0 <= value < high:
        raise GraphError(f"{where} is {value}; need a number in [0, {high})")


class Optimizer(ABC):
    """What `Graph.minimize` takes: hyper-parameters, each in its range."""

    def __post_init__(self) -> None:
        _as_plain(self)
        try:
            self._check()
        except (DTypeError, GraphError) as error:
            placed(error)
            raise

    def _check(self) -> None:
        for name, value in vars(self).items():
            where = f"{type(self).__name__}: {name}"
            if name == "nesterov":
                if not isinstance(value, bool):
                    raise GraphError(f"{where} is {value!r}; need a bool")
            elif name == "betas":
                if not isinstance(value, (tuple, list)) or len(value) != 2:
                    raise GraphError(f"{where} is {value!r}; need a pair (beta1, beta2)")
                for i, beta in enumerate(value):
                    _check_number(f"{where}[{i}]", beta, 1.0)
            else:
                _check_number(where, value, math.inf)

    def __new__(cls, *args: Any, **named: Any) -> Optimizer:
        first = named.get("params", args[0] if args else None)
        if isinstance(first, Iterable) and not hasattr(first, "dtype") or "params" in named:
            raise GraphError(
                f"{cls.__name__}: got params; need hyper-parameters alone, params go to minimize: "
                f"aicf.minimize(loss, {cls.__name__}(lr=...), params) ({user_line()})"
            )
        _check_names(cls, named)
        return super().__new__(cls)

    @abstractmethod
    def _apply(self, g: Graph, name: str, grads: Grads, clip_norm: Limit) -> None:
        """Appends the update of every param in `grads`."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with optional momentum: p ← p − lr·g.

    Source: torch.optim.SGD.

    >>> g.minimize((w * w).sum(), aicf.optim.SGD(lr=0.1, momentum=0.9))
    """

    lr: float | Value = 1e-3
    momentum: float | Value = 0.0
    dampening: float | Value = 0.0
    weight_decay: float | Value = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (_is_zero(self.momentum) or not _is_zero(self.dampening)):
            raise GraphError(
                f"SGD: nesterov with momentum {self.momentum} and dampening {self.dampening}; "
                "need momentum > 0 and dampening 0"
            )

    def _apply(self, g: Graph, name: str, grads: Grads, clip_norm: Limit) -> None:
        from .ops import add, mul, sub, where

        u = _Update(g, name, grads, clip_norm)
        lr = u.number("lr", self.lr)
        decay = None if _is_zero(self.weight_decay) else u.number("weight_decay", self.weight_decay)
        mu = None if _is_zero(self.momentum) else u.number("momentum", self.momentum)
        damp = None if _is_zero(self.dampening) else u.number("dampening", self.dampening)
        first = None
        if mu is not None and damp is not None:
            first = u.steps()[0] <= 0
        for p in u.grads:
            if u.good is not None and mu is None and decay is None:
                u.descend(p, u.grads[p], lr, u.scale_number())
                continue
            grad = u.clipped(p)
            if decay is not None:
                grad = add(grad, mul(p, u.to(decay, p)))
            if mu is not None:
                buffer = u.moment("momentum_buffer", p, 0)
                part = grad if damp is None else mul(grad, sub(1.0, u.to(damp, p)))
                after = add(mul(buffer, u.to(mu, p)), part)
                if first is not None:  # PyTorch starts the buffer with the gradient itself
                    after = where(first, grad, after)
                u.keep(buffer, after)
                grad = add(grad, mul(after, u.to(mu, p))) if self.nesterov else after
            u.descend(p, grad, lr)


def _adam(
    g: Graph, name: str, grads: Grads, clip_norm: Limit, opt: Adam | AdamW, decoupled: bool
) -> None:
    from .ops import add, cast, mul, sub

    u = _Update(g, name, grads, clip_norm)
    lr = u.number("lr", opt.lr)
    beta1, beta2 = u.number("beta1", opt.betas[0]), u.number("beta2", opt.betas[1])
    eps = u.number("eps", opt.eps)
    decay = None if _is_zero(opt.weight_decay) else u.number("weight_decay", opt.weight_decay)
    keep = sub(1.0, mul(lr, decay)) if decay is not None and decoupled else None
    _, step = u.steps()
    numbers = [*g._emit("BiasCorr", [step, beta1, beta2]), lr, beta1, beta2, eps]
    scale = u.scale_number()
    factors = [g.constant(1.0, u.dtype) if one is None else one for one in (keep, scale)]
    plain = keep is None and (scale is None or decay is not None)
    for p, grad in u.grads.items():
        moments, start = [u.moment("m", p, 0), u.moment("v", p, 1)], p
        if u.good is not None:
            if decay is not None and not decoupled:
                raw, by = add(u.clipped(p), mul(p, u.to(decay, p))), cast(u.good, u.dtype)
            else:
                raw, by = grad, factors[1]
            new = g._emit("GuardedAdamStep", [p, raw, *moments, *numbers, factors[0], by])
        elif p.dtype == u.dtype and not plain:
            new = g._emit("ScaledAdamStep", [p, grad, *moments, *numbers, *factors])
        else:
            grad = u.clipped(p)
            if keep is not None:
                start = mul(p, u.to(keep, p))
            elif decay is not None:
                grad = add(grad, mul(p, u.to(decay, p)))
            new = g._emit("AdamStep", [start, grad, *moments, *numbers])
        u.assign([p, *moments], new)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), bias-corrected, eps outside the root; weight decay as L2.

    Source: torch.optim.Adam.

    >>> g.minimize((w * w).sum(), aicf.optim.Adam(lr=1e-3))
    """

    lr: float | Value = 1e-3
    betas: tuple[float | Value, float | Value] = (0.9, 0.999)
    eps: float | Value = 1e-8
    weight_decay: float | Value = 0.0

    def _apply(self, g: Graph, name: str, grads: Grads, clip_norm: Limit) -> None:
        _adam(g, name, grads, clip_norm, self, decoupled=False)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p ← p·(1 − lr·decay) first.

    Source: torch.optim.AdamW.

    >>> g.minimize((w * w).sum(), aicf.optim.AdamW(lr=1e-3))
    """

    lr: float | Value = 1e-3
    betas: tuple[float | Value, float | Value] = (0.9, 0.999)
    eps: float | Value = 1e-8
    weight_decay: float | Value = 1e-2

    def _apply(self, g: Graph, name: str, grads: Grads, clip_norm: Limit) -> None:
        _adam(g, name, grads, clip_norm, self, decoupled=True)


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """v ← alpha·v + (1 − alpha)·g²; p ← p − lr·g / (sqrt(v) + eps).

    Source: torch.optim.RMSprop.

    >>> g.minimize((w * w).sum(), aicf.optim.RMSprop(lr=1e-2))
    """

    lr: float | Value = 1e-2
    alpha: float | Value = 0.99
    eps: float | Value = 1e-8
    weight_decay: float | Value = 0.0

    def _apply(self, g: Graph, name: str, grads: Grads, clip_norm: Limit) -> None:
        from .ops import add, div, mul, sqrt, sub

        u = _Update(g, name, grads, clip_norm)
        lr, alpha = u.number("lr", self.lr), u.number("alpha", self.alpha)
        eps = u.number("eps", self.eps)
        decay = None if _is_zero(self.weight_decay) else u.number("weight_decay", self.weight_decay)
        for p in u.grads:
            grad = u.clipped(p)
            if decay is not None:
                grad = add(grad, mul(p, u.to(decay, p)))
            v, a = u.moment("v", p, 0), u.to(alpha, p)
            after = add(mul(v, a), mul(mul(grad, grad), sub(1.0, a)))
            u.keep(v, after)
            u.descend(p, div(grad, add(sqrt(after), u.to(eps, p))), lr)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """sum ← sum + g²; p ← p − lr·g / (sqrt(sum) + eps) (Duchi et al., 2011).

    Source: torch.optim.Adagrad.

    >>> g.minimize((w * w).sum(), aicf.optim.Adagrad(lr=1e-2))
    """

    lr: float | Value = 1e-2
    eps: float | Value = 1e-10
    weight_decay: float | Value = 0.0
    initial_accumulator_value: float = 0.0

    def _apply(self, g: Graph, name: str, grads: Grads, clip_norm: Limit) -> None:
        from .ops import add, div, mul, sqrt

        u = _Update(g, name, grads, clip_norm)
        lr, eps = u.number("lr", self.lr), u.number("eps", self.eps)
        decay = None if _is_zero(self.weight_decay) else u.number("weight_decay", self.weight_decay)
        for p in u.grads:
            grad = u.clipped(p)
            if decay is not None:
                grad = add(grad, mul(p, u.to(decay, p)))
            total = u.moment("sum", p, 0, float(self.initial_accumulator_value))
            after = add(total, mul(grad, grad))
            u.keep(total, after)
            u.descend(p, div(grad, add(sqrt(after), u.to(eps, p))), lr)


# ---- learning-rate schedules: rank-0 float32 Values of the number of finished steps


@checked
def warmup_cosine(step: Value, peak: float, warmup: int, total: int, floor: float = 0.0) -> Value:
    """Linear up to `peak` over `warmup` steps, then half a cosine to `floor` at `total`.

    >>> aicf.optim.warmup_cosine(g.step_count(), 1e-3, 100, 1000).dtype
    'float32'
    """
    from .ops import cast, clip, cos, where

    if not 0 <= warmup < total:
        raise GraphError(f"warmup_cosine: warmup {warmup}, total {total}; need 0 <= warmup < total")
    t = cast(step, "float32")
    rising = (t + 1.0) * (peak / max(warmup, 1))
    done = clip((t - float(warmup)) * (1.0 / (total - warmup)), 0.0, 1.0)
    falling = (cos(done * 3.141592653589793) + 1.0) * ((peak - floor) / 2) + floor
    return where(t < float(warmup), rising, falling)


@checked
def step_decay(step: Value, lr: float, step_size: int, gamma: float = 0.1) -> Value:
    """lr · gamma ** floor(step / step_size).

    Source: torch.optim.lr_scheduler.StepLR.

    >>> aicf.optim.step_decay(g.step_count(), 0.1, step_size=30).shape
    ()
    """
    from .ops import cast, floor, pow

    if step_size < 1:
        raise GraphError(f"step_decay: step_size {step_size}; need >= 1")
    # The half keeps a quotient that rounds just below a whole number on the right side of it.
    drops = floor((cast(step, "float32") + 0.5) * (1.0 / step_size))
    return pow(gamma, drops) * lr


def __getattr__(name: str) -> object:
    from .names import instead

    own = [key for key, one in globals().items() if getattr(one, "__module__", "") == __name__]
    raise AttributeError(f"aicf.optim: there is no {name!r}{instead(name, own)}", name=name)
