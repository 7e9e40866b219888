"""Optimizers: descriptions that `Graph.minimize` turns into nodes, with PyTorch's formulas.

A hyper-parameter given as a float becomes a state scalar (`opt.lr`, `opt.beta1`, ...) that
`Step.set` changes between replays; given as a rank-0 Value it is computed in the graph. Those that
are 0 (momentum, weight_decay) leave their terms out of the graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ._core import DTypeError, GraphError
from .arguments import checked, is_it, placed, user_line

if TYPE_CHECKING:
    from .graph import Graph, Value

Grads = Mapping["Value", "Value"]
Limit: TypeAlias = "float | Value | _Scaled | None"


def _is_zero(number: float | Value) -> bool:
    return isinstance(number, (int, float)) and number == 0


class _Scaled(NamedTuple):
    """In place of the largest norm: what gradients are multiplied with, known already."""

    by: Value


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
        if isinstance(clip_norm, _Scaled):
            self.scale = clip_norm.by
        elif clip_norm is not None:
            _check_norm("clip_norm", clip_norm)
            self.scale = _norm_scale(self.grads, self.number("clip_norm", clip_norm))

    def clipped(self, p: Value) -> Value:
        """The gradient of `p` as the update takes it."""
        return self.grads[p] if self.scale is None else _scaled(self.grads[p], self.scale)

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


def _check_norm(name: str, norm: float | Value) -> None:
    if isinstance(norm, (int, float)) and not norm > 0:
        raise GraphError(f"{name} is {norm}; need {name} > 0, or None for no limit")


@checked
def clip_grad_norm(grads: Mapping[Value, Value], max_norm: float | Value) -> dict[Value, Value]:
    """Gradients scaled by min(1, max_norm / (‖all gradients‖₂ + 1e-6)).

    Source: torch.nn.utils.clip_grad_norm_.

    >>> aicf.optim.clip_grad_norm({w: w * 2.0}, 1.0)[w].shape
    (2, 3)
    """
    if not grads:
        raise GraphError("clip_grad_norm: got no gradients; need at least one")
    _check_norm("max_norm", max_norm)
    scale = _norm_scale(grads, max_norm)
    return {p: _scaled(grad, scale) for p, grad in grads.items()}


def _norm_scale(grads: Grads, max_norm: float | Value) -> Value:
    """What `clip_grad_norm` multiplies gradients with; float64 where one of them is."""
    from .ops import add, cast, div, minimum, mul, sqrt, sum

    wide = "float64" if any(grad.dtype == "float64" for grad in grads.values()) else "float32"
    squares = []
    for grad in grads.values():
        grad = grad if grad.dtype == wide else cast(grad, wide)
        squares.append(sum(mul(grad, grad)))
    total = squares[0]
    for square in squares[1:]:
        total = add(total, square)
    return minimum(div(max_norm, add(sqrt(total), 1e-6)), 1.0)


def _scaled(grad: Value, scale: Value) -> Value:
    from .ops import cast, mul

    return mul(grad, scale if grad.dtype == scale.dtype else cast(scale, grad.dtype))


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
        names = [field.name for field in fields(cls)] if is_dataclass(cls) else [*named]
        for name in named:
            if name not in names:
                raise TypeError(
                    f"{cls.__name__}: there is no argument {name!r}{is_it(name, names)}; "
                    f"need {', '.join(names)} ({user_line()})"
                )
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
            first = g._step_values(name)[0] <= 0
        for p in u.grads:
            grad = u.clipped(p)
            if decay is not None:
                grad = add(grad, mul(p, u.to(decay, p)))
            if mu is not None:
                buffer = u.moment("momentum_buffer", p, 0)
                part = grad if damp is None else mul(grad, sub(1.0, u.to(damp, p)))
                after = add(mul(buffer, u.to(mu, p)), part)
                if first is not None:  # PyTorch starts the buffer with the gradient itself
                    after = where(first, grad, after)
                g.assign(buffer, after)
                grad = add(grad, mul(after, u.to(mu, p))) if self.nesterov else after
            u.assign([p], g._emit("SgdStep", [p, grad, lr]))


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
    _, step = g._step_values(name)
    numbers = [*g._emit("BiasCorr", [step, beta1, beta2]), lr, beta1, beta2, eps]
    scale = u.scale if u.scale is None or u.scale.dtype == u.dtype else cast(u.scale, u.dtype)
    factors = [g.constant(1.0, u.dtype) if one is None else one for one in (keep, scale)]
    plain = keep is None and (scale is None or decay is not None)
    for p, grad in u.grads.items():
        moments, start = [u.moment("m", p, 0), u.moment("v", p, 1)], p
        if p.dtype == u.dtype and not plain:
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
            g.assign(v, after)
            ratio = div(grad, add(sqrt(after), u.to(eps, p)))
            u.assign([p], g._emit("SgdStep", [p, ratio, lr]))


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
            g.assign(total, after)
            ratio = div(grad, add(sqrt(after), u.to(eps, p)))
            u.assign([p], g._emit("SgdStep", [p, ratio, lr]))


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
