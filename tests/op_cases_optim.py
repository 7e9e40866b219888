"""Rows of the op table for optimizers, node by node (whole steps: test_random_graphs.py)."""

import numpy as np
from op_cases import CASES, EFFECT, NUMBER, Arg, row

row(
    "StepInc",
    (Arg("", 0, 1000, "int32"),),
    lambda g, step: g._emit("StepInc", [step]),
    lambda step: [step + 1],
    dtypes=("int32",),
    grad=EFFECT,
)
row(
    "BiasCorr",
    (Arg("", 1, 5000, "int32"), Arg("", 0.8, 0.95, NUMBER), Arg("", 0.99, 0.9999, NUMBER)),
    lambda g, step, b1, b2: g._emit("BiasCorr", [step, b1, b2]),
    lambda step, b1, b2: [1 / (1 - b1**step), 1 / (1 - b2**step)],
    ulp=1,
    ulp64=600,  # a power by repeated squaring: the error grows with the step
    extra=lambda step, b1, b2: [1 / (1 - b1**step) ** 2 * 1e-3, 1 / (1 - b2**step) ** 2 * 1e-3],
    dtypes=("float32", "float64"),
    grad=EFFECT,
)
row(
    "SgdStep",
    (Arg("bc"), Arg("bc"), Arg("", 0.01, 0.1, NUMBER)),
    lambda g, p, grad, lr: g._emit("SgdStep", [p, grad, lr]),
    lambda p, grad, lr: [p - lr * grad],
    ulp=1,
    extra=lambda p, grad, lr: [np.abs(p) + np.abs(lr * grad)],
    grad=EFFECT,
)


def _adam(p, grad, m, v, c1, c2, lr, b1, b2, eps):
    m = b1 * m + (1 - b1) * grad
    v = b2 * v + (1 - b2) * grad * grad
    return [p - lr * (m * c1) / (np.sqrt(v * c2) + eps), m, v]


def _adam_bound(p, grad, m, v, c1, c2, lr, b1, b2, eps):
    new_p, new_m, new_v = _adam(p, grad, m, v, c1, c2, lr, b1, b2, eps)
    size = np.abs(m) + np.abs(grad)
    step = lr * c1 * size / (np.sqrt(new_v * c2) + eps)
    return [2 * np.abs(p) + 16 * step, 4 * size, 4 * (v + grad * grad)]


row(
    "AdamStep",
    (
        Arg("bc"),
        Arg("bc"),
        Arg("bc"),
        Arg("bc", 0.1, 1),
        Arg("", 1, 10, NUMBER),
        Arg("", 1, 100, NUMBER),
        Arg("", 1e-3, 1e-2, NUMBER, 0),
        Arg("", 0.85, 0.95, NUMBER),
        Arg("", 0.99, 0.999, NUMBER),
        Arg("", 1e-9, 1e-7, NUMBER, 0),
    ),
    lambda g, *v: g._emit("AdamStep", list(v)),
    lambda *v: _adam(*v),
    ulp=1,
    extra=_adam_bound,
    grad=EFFECT,
    zero_sign=False,
)


def _scaled_adam(p, grad, *rest):
    *numbers, keep, scale = rest
    return _adam(p * keep, grad * scale, *numbers)


def _scaled_adam_bound(p, grad, *rest):
    *numbers, keep, scale = rest
    return _adam_bound(p * keep, grad * scale, *numbers)


row(
    "ScaledAdamStep",
    (
        Arg("bc"),
        Arg("bc"),
        Arg("bc"),
        Arg("bc", 0.1, 1),
        Arg("", 1, 10, NUMBER),
        Arg("", 1, 100, NUMBER),
        Arg("", 1e-3, 1e-2, NUMBER, 0),
        Arg("", 0.85, 0.95, NUMBER),
        Arg("", 0.99, 0.999, NUMBER),
        Arg("", 1e-9, 1e-7, NUMBER, 0),
        Arg("", 0.9, 1, NUMBER, 0),
        Arg("", 0.1, 1, NUMBER, 0),
    ),
    lambda g, *v: g._emit("ScaledAdamStep", list(v)),
    _scaled_adam,
    ulp=1,
    extra=_scaled_adam_bound,
    grad=EFFECT,
    zero_sign=False,
)


def _guarded_sgd(p, grad, lr, scale):
    return [np.where(scale != 0, p - lr * (grad * scale), p)]


def _guarded_adam(p, grad, m, v, *numbers):
    new = _scaled_adam(p, grad, m, v, *numbers)
    return [np.where(numbers[-1] != 0, at, was) for at, was in zip(new, (p, m, v), strict=True)]


SCALED = CASES[-1]
for _label, _scale in {"": Arg("", 0.1, 1, NUMBER, 0), "skipped": Arg("", 0, 0, NUMBER, 0)}.items():
    row(
        "GuardedSgdStep",
        (Arg("bc"), Arg("bc"), Arg("", 0.01, 0.1, NUMBER), _scale),
        lambda g, *v: g._emit("GuardedSgdStep", list(v)),
        _guarded_sgd,
        ulp=1,
        extra=lambda p, grad, lr, scale: [np.abs(p) + 4 * np.abs(lr * grad * scale)],
        grad=EFFECT,
        label=_label,
    )
    row(
        "GuardedAdamStep",
        (*SCALED.args[:-1], _scale),
        lambda g, *v: g._emit("GuardedAdamStep", list(v)),
        _guarded_adam,
        ulp=1,
        extra=_scaled_adam_bound,
        grad=EFFECT,
        zero_sign=False,
        label=_label,
    )
