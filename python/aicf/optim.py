"""Optimizers: descriptions that `Graph.minimize` turns into nodes; arguments and formulas PyTorch's.

A hyper-parameter given as a float becomes a state scalar (`opt.lr`, `opt.beta1`, ...) that
`Step.set` changes between replays; given as a rank-0 Value it is computed in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._core import DTypeError

if TYPE_CHECKING:
    from .graph import Graph, Value


def _number_dtype(grads: Mapping[Value, Value]) -> str:
    """Hyper-parameters are float64 for float64 params and float32 for all others."""
    dtypes = sorted({p.dtype for p in grads})
    if "float64" in dtypes and len(dtypes) > 1:
        raise DTypeError(
            f"minimize: params have dtypes {', '.join(dtypes)}; "
            "need float64 alone, or two minimize calls with names of their own"
        )
    return "float64" if dtypes == ["float64"] else "float32"


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: p ← p − lr·g.

    Source: torch.optim.SGD.
    """

    lr: float | Value = 1e-3

    def _apply(
        self, g: Graph, name: str, grads: Mapping[Value, Value], clip_norm: float | Value | None
    ) -> None:
        lr = g._number(f"{name}.lr", self.lr, _number_dtype(grads))
        for p, grad in grads.items():
            (new,) = g._emit("SgdStep", [p, grad, lr])
            g.assign(p, new)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), bias-corrected, eps outside the root.

    Source: torch.optim.Adam.
    """

    lr: float | Value = 1e-3
    betas: tuple[float | Value, float | Value] = (0.9, 0.999)
    eps: float | Value = 1e-8

    def _apply(
        self, g: Graph, name: str, grads: Mapping[Value, Value], clip_norm: float | Value | None
    ) -> None:
        dtype = _number_dtype(grads)
        lr = g._number(f"{name}.lr", self.lr, dtype)
        beta1 = g._number(f"{name}.beta1", self.betas[0], dtype)
        beta2 = g._number(f"{name}.beta2", self.betas[1], dtype)
        eps = g._number(f"{name}.eps", self.eps, dtype)
        _, step = g._step_values(name)
        bc1, bc2 = g._emit("BiasCorr", [step, beta1, beta2])
        for p, grad in grads.items():
            m = g.state(f"{name}.m.{p.name}", p.shape, p.dtype)
            v = g.state(f"{name}.v.{p.name}", p.shape, p.dtype)
            g._core.mark_moment(m.id, p.id, 0)
            g._core.mark_moment(v.id, p.id, 1)
            new = g._emit("AdamStep", [p, grad, m, v, bc1, bc2, lr, beta1, beta2, eps])
            for target, source in zip((p, m, v), new, strict=True):
                g.assign(target, source)
