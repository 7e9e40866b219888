"""The table of losses, norms and the softmax family: what each is given, and the graph of its
result and gradient."""

from collections.abc import Callable
from typing import NamedTuple

import aicf
import numpy as np
from compare import rounded


class Function(NamedTuple):
    """A function of the rows of x, or a loss of them."""

    call: Callable
    target: str = ""  # of a loss, its second operand: "labels" or "values"
    shift: str = ""  # what may move by a number without a trace: "x", or "both" operands


def batch_norm(x):
    g = x.graph
    mean, var = (g.state(name, (x.shape[1],), x.dtype) for name in ("mean", "var"))
    return aicf.batch_norm(x, mean, var)


FUNCTIONS = {
    "softmax": Function(aicf.softmax, shift="x"),
    "log_softmax": Function(aicf.log_softmax, shift="x"),
    "logsumexp": Function(lambda x: aicf.logsumexp(x, -1)),
    "var": Function(lambda x: aicf.var(x, -1)),
    "layer_norm": Function(lambda x: aicf.layer_norm(x, x.shape[-1:])),
    "rms_norm": Function(lambda x: aicf.rms_norm(x, x.shape[-1:], eps=1e-5)),
    "batch_norm": Function(batch_norm),
    "cross_entropy": Function(aicf.cross_entropy, "labels", "x"),
    "nll_loss": Function(lambda x, at: aicf.nll_loss(aicf.log_softmax(x), at), "labels", "x"),
    "bce": Function(aicf.binary_cross_entropy_with_logits, "values"),
    "mse": Function(aicf.mse_loss, "values", "both"),
    "huber": Function(aicf.huber_loss, "values", "both"),
}


def weights(shape):
    """What a result that is no loss is multiplied with before it is summed up, in any dtype."""
    return np.round(64 * np.cos(np.arange(np.prod(shape))).reshape(shape)) / 64


def feed_of(name, x, target=None):
    function = FUNCTIONS[name]
    if target is None and function.target == "labels":
        target = np.arange(len(x)) * 7 % x.shape[1]
    if target is None and function.target == "values":
        target = 0.5 + 0.5 * np.sin(np.arange(x.size)).reshape(x.shape)
    return {"x": x} if target is None else {"x": x, "target": target}


def graph_of(name, dtype):
    """Result and gradient in `dtype`, of inputs in float64."""
    function = FUNCTIONS[name]

    def build(g, x, target=None):
        operands = [aicf.cast(x, dtype)]
        if target is not None:
            operands.append(target if function.target == "labels" else aicf.cast(target, dtype))
        y = function.call(*operands)
        loss = y
        if not function.target:
            w = aicf.cast(g.constant(weights(y.shape).tolist(), "float64"), dtype)
            loss = aicf.sum(y * w)
        wrt = operands if function.target == "values" else operands[:1]
        grads = g.backward(loss, wrt)
        return {"y": y, **{f"d{i}": grads[v] for i, v in enumerate(wrt)}}

    return build


def given(name, feed, dtype):
    """The operands as numbers of `dtype`, in float64."""
    return {k: rounded(v, dtype) if v.dtype.kind == "f" else v for k, v in feed.items()}
