"""NumPy float64 twins of aicf's functions, with gradients: a program written once against either
module is a graph for one and a result for the other."""

import builtins
import math

import numpy as np

SMOOTH = {  # and the derivative in terms of x and y
    "neg": (np.negative, lambda x, y: -np.ones_like(x)),
    "exp": (np.exp, lambda x, y: y),
    "tanh": (np.tanh, lambda x, y: 1 - y * y),
    "sin": (np.sin, lambda x, y: np.cos(x)),
    "cos": (np.cos, lambda x, y: -np.sin(x)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x, y: y * (1 - y)),
    "silu": (
        lambda x: x / (1 + np.exp(-x)),
        lambda x, y: (1 + x - y) / (1 + np.exp(-x)),
    ),
    "sqrt": (np.sqrt, lambda x, y: 0.5 / y),
    "log": (np.log, lambda x, y: 1 / x),
    "softplus": (lambda x: np.logaddexp(0, x), lambda x, y: 1 / (1 + np.exp(-x))),
    "gelu": (
        lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
        lambda x, y: (
            0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        ),
    ),
}
_erf = np.vectorize(math.erf, otypes=[np.float64])


class Value:
    """A float64 array and how its gradient reaches its operands."""

    __array_ufunc__ = None

    def __init__(self, data, operands=(), pull=None, margin=math.inf):
        self.data = np.asarray(data)
        self.operands, self.pull = operands, pull
        self.margin = margin  # how far the result is from a point where it jumps or bends
        self.gradient = None

    shape = property(lambda self: self.data.shape)
    ndim = property(lambda self: self.data.ndim)

    def __add__(self, other):
        return _binary(np.add, self, other, lambda dy, a, b: (dy, dy))

    def __sub__(self, other):
        return _binary(np.subtract, self, other, lambda dy, a, b: (dy, -dy))

    def __mul__(self, other):
        return _binary(np.multiply, self, other, lambda dy, a, b: (dy * b, dy * a))

    def __truediv__(self, other):
        return _binary(np.divide, self, other, lambda dy, a, b: (dy / b, -dy * a / (b * b)))

    __radd__, __rmul__ = __add__, __mul__

    def __matmul__(self, other):
        return matmul(self, other)

    def __getitem__(self, key):
        def pull(dy):
            dx = np.zeros(self.shape)
            dx[key] = dy
            return (dx,)

        return Value(self.data[key], (self,), pull)


def _value(x):
    return x if isinstance(x, Value) else Value(x)


def _fold(dy, shape):
    """The sum over what was broadcast."""
    dy = dy.sum(axis=tuple(range(dy.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and dy.shape[i] != 1)
    return dy.sum(axis=axes, keepdims=True)


def _binary(fn, a, b, slopes, margin=math.inf):
    a, b = _value(a), _value(b)

    def pull(dy):
        da, db = slopes(dy, a.data, b.data)
        return _fold(da, a.shape), _fold(db, b.shape)

    return Value(fn(a.data, b.data), (a, b), pull, margin)


def _unary(name):
    fn, slope = SMOOTH[name]

    def call(x):
        y = fn(x.data)
        return Value(y, (x,), lambda dy: (dy * slope(x.data, y),))

    return call


globals().update({name: _unary(name) for name in SMOOTH})


def _least(distance):
    return float(np.abs(distance).min(initial=math.inf))


def relu(x):
    return Value(np.maximum(x.data, 0), (x,), lambda dy: (dy * (x.data > 0),), _least(x.data))


def abs(x):
    return Value(np.abs(x.data), (x,), lambda dy: (dy * np.sign(x.data),), _least(x.data))


def clip(x, low, high):
    inside = (x.data >= low) & (x.data <= high)
    margin = builtins.min(_least(x.data - low), _least(x.data - high))
    return Value(np.clip(x.data, low, high), (x,), lambda dy: (dy * inside,), margin)


def maximum(a, b):
    a, b = _value(a), _value(b)
    return _binary(
        np.maximum, a, b, lambda dy, x, y: (dy * (x > y), dy * (y > x)), _least(a.data - b.data)
    )


def detach(x):
    return Value(x.data)


# ---- sums


def _axes(x, axis):
    axis = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return tuple(a % x.ndim for a in axis)


def _reduced(name, slope):
    def call(x, axis=None, keepdims=False):
        axes = _axes(x, axis)
        y = getattr(np, name)(x.data, axis=axes, keepdims=True)
        margin = math.inf
        if name in ("max", "min") and x.data.size:
            apart = np.where(x.data == y, math.inf, np.abs(x.data - y))
            margin = 0.0 if ((x.data == y).sum(axis=axes) > 1).any() else _least(apart)

        def pull(dy):
            return (slope(x.data, y) * dy.reshape(y.shape),)

        return Value(y if keepdims else y.reshape(_kept(x.shape, axes)), (x,), pull, margin)

    return call


def _kept(shape, axes):
    return tuple(n for i, n in enumerate(shape) if i not in axes)


sum = _reduced("sum", lambda x, y: np.ones_like(x))
mean = _reduced("mean", lambda x, y: np.full_like(x, y.size / builtins.max(x.size, 1)))
max = _reduced("max", lambda x, y: (x == y) * 1.0)
min = _reduced("min", lambda x, y: (x == y) * 1.0)


def cumsum(x, axis):
    def pull(dy):
        return (np.flip(np.flip(dy, axis).cumsum(axis), axis),)

    return Value(x.data.cumsum(axis), (x,), pull)


# ---- rows


def softmax(x, axis=-1):
    e = np.exp(x.data - x.data.max(axis, keepdims=True))
    y = e / e.sum(axis, keepdims=True)
    return Value(y, (x,), lambda dy: (y * (dy - (dy * y).sum(axis, keepdims=True)),))


def log_softmax(x, axis=-1):
    z = x.data - x.data.max(axis, keepdims=True)
    y = z - np.log(np.exp(z).sum(axis, keepdims=True))
    return Value(y, (x,), lambda dy: (dy - np.exp(y) * dy.sum(axis, keepdims=True),))


def logsumexp(x, axis):
    top = x.data.max(axis, keepdims=True)
    y = top + np.log(np.exp(x.data - top).sum(axis, keepdims=True))
    shape = _kept(x.shape, _axes(x, axis))
    return Value(y.reshape(shape), (x,), lambda dy: (np.exp(x.data - y) * dy.reshape(y.shape),))


def _normalized(x, width, weight, bias, eps, center):
    assert x.shape[-1] == width
    z = x.data - (x.data.mean(-1, keepdims=True) if center else 0)
    rstd = 1 / np.sqrt((z * z).mean(-1, keepdims=True) + eps)
    y = z * rstd

    def pull(dy):
        shift = dy.mean(-1, keepdims=True) if center else 0
        return (rstd * (dy - shift - y * (dy * y).mean(-1, keepdims=True)),)

    result = Value(y, (x,), pull)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def layer_norm(x, width, weight=None, bias=None, eps=1e-5):
    return _normalized(x, width, weight, bias, eps, True)


def rms_norm(x, width, weight=None, eps=1e-5):
    return _normalized(x, width, weight, None, eps, False)


# ---- products


def matmul(a, b):
    def pull(dy):
        return (
            _fold(dy @ np.swapaxes(b.data, -1, -2), a.shape),
            _fold(np.swapaxes(a.data, -1, -2) @ dy, b.shape),
        )

    return Value(a.data @ b.data, (a, b), pull)


def linear(x, weight, bias=None):
    y = matmul(x, transpose(weight))
    return y if bias is None else y + bias


def scaled_dot_product_attention(q, k, v, mask=None, causal=False):
    scores = matmul(q, transpose(k)) * (1 / math.sqrt(q.shape[-1]))
    if causal:
        scores = scores + np.triu(np.full(scores.shape[-2:], -1e300), 1)
    if mask is not None:
        scores = scores + mask
    return matmul(softmax(scores), v)


def _windows(x, kernel, stride):
    """[..., kh, kw, oh, ow] of [..., H, W]."""
    (kh, kw), lead = kernel, x.ndim - 2
    places = [
        (
            i,
            j,
            slice(i, x.shape[-2] - kh + i + 1, stride),
            slice(j, x.shape[-1] - kw + j + 1, stride),
        )
        for i in range(kh)
        for j in range(kw)
    ]
    y = np.stack([x.data[..., rows, cols] for _, _, rows, cols in places], axis=lead)
    oh, ow = y.shape[-2:]

    def pull(dy):
        dx = np.zeros(x.shape)
        dy = dy.reshape(*x.shape[:-2], kh * kw, oh, ow)
        for n, (_, _, rows, cols) in enumerate(places):
            dx[..., rows, cols] += dy[..., n, :, :]
        return (dx,)

    return Value(y.reshape(*x.shape[:-2], kh, kw, oh, ow), (x,), pull)


def conv2d(x, weight, bias=None, stride=1, padding=0, groups=1):
    outs, depth, kh, kw = weight.shape
    if padding:
        x = pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = _windows(x, (kh, kw), stride)
    n, (oh, ow) = x.shape[0], windows.shape[-2:]
    columns = reshape(windows, [n, groups, depth * kh * kw, oh * ow])
    kernels = reshape(weight, [groups, outs // groups, depth * kh * kw])
    y = reshape(matmul(kernels, columns), [n, outs, oh, ow])
    return y if bias is None else y + reshape(bias, [outs, 1, 1])


def max_pool2d(x, size):
    windows = _windows(x, (size, size), size)
    return max(reshape(windows, [*x.shape[:-2], size * size, *windows.shape[-2:]]), -3)


def avg_pool2d(x, size):
    return mean(_windows(x, (size, size), size), [-4, -3])


# ---- movement


def reshape(x, shape):
    return Value(x.data.reshape(shape), (x,), lambda dy: (dy.reshape(x.shape),))


def permute(x, axes):
    return Value(x.data.transpose(axes), (x,), lambda dy: (dy.transpose(np.argsort(axes)),))


def transpose(x):
    return permute(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def broadcast_to(x, shape):
    return Value(np.broadcast_to(x.data, shape), (x,), lambda dy: (_fold(dy, x.shape),))


def concat(xs, axis=0):
    ends = np.cumsum([x.shape[axis] for x in xs])[:-1]
    return Value(
        np.concatenate([x.data for x in xs], axis), tuple(xs), lambda dy: np.split(dy, ends, axis)
    )


def pad(x, widths, value=0.0):
    inside = tuple(slice(low, low + n) for (low, _), n in zip(widths, x.shape, strict=True))
    return Value(np.pad(x.data, widths, constant_values=value), (x,), lambda dy: (dy[inside],))


def embedding(indices, weight):
    def pull(dy):
        dx = np.zeros(weight.shape)
        np.add.at(dx, indices.data, dy)
        return (None, dx)

    return Value(weight.data[indices.data], (indices, weight), pull)


# ---- losses


def mse_loss(y, t):
    return mean((y - t) * (y - t))


def nll_loss(rows, labels):
    picked = np.arange(rows.shape[0]), labels.data

    def pull(dy):
        dx = np.zeros(rows.shape)
        dx[picked] = -dy / rows.shape[0]
        return (dx,)

    return Value(-rows.data[picked].mean(), (rows,), pull)


def cross_entropy(logits, labels):
    return nll_loss(log_softmax(logits), labels)


# ---- a graph, which computes at once


def backward(loss):
    """Every value that the loss comes from, and the gradients in them."""
    order, seen, open_ = [], set(), [(loss, False)]
    while open_:
        value, done = open_.pop()
        if done:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            open_.append((value, True))
            open_ += [(operand, False) for operand in value.operands]
    for value in order:
        value.gradient = None
    loss.gradient = np.ones(loss.shape)
    for value in reversed(order):
        if value.pull is None or value.gradient is None:
            continue
        for operand, part in zip(value.operands, value.pull(value.gradient), strict=True):
            if part is not None:
                known = operand.gradient
                operand.gradient = part if known is None else known + part
    return order


class Graph:
    """What a program asks of aicf.Graph, over arrays by name."""

    def __init__(self, feed, params):
        self.feed, self.params = feed, params
        self.leaves, self.outputs, self.loss = {}, {}, None

    def _leaf(self, name, data):
        self.leaves[name] = Value(data if data.dtype.kind in "iub" else np.float64(data))
        return self.leaves[name]

    def input(self, name, shape, dtype="float32", data=None):
        return self._leaf(name, self.feed[name])

    def param(self, name, shape, dtype="float32", data=None):
        return self._leaf(name, self.params[name])

    def output(self, name, value):
        self.outputs[name] = value

    def dense(self, name, x, out, bias=True):
        weight = self.param(f"{name}.W", (out, x.shape[-1]))
        return linear(x, weight, self.param(f"{name}.b", (out,)) if bias else None)
