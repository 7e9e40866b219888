"""ONNX's ops as functions of aicf: what `onnx_cases` imports its node cases with.

Each takes the node, which has attributes and the arrays behind inputs, and the inputs as Values
(None where left out); it gives one result or a tuple.
"""

import math

import aicf
import numpy as np
from onnx_layers import (
    adagrad,
    adam,
    affine,
    attention,
    avg_pool,
    batch_norm,
    cell,
    columns,
    convolved,
    deconvolved,
    gru,
    in_groups,
    layer_norm,
    local_norm,
    lp_norm,
    lp_pool,
    lstm,
    max_pool,
    momentum,
    nll,
    over_space,
    recurrent,
    refuse,
    resized,
    rms_norm,
    rotated,
    sampled,
    softmax_loss,
    unpooled,
    upsampled,
    whitened,
)


class Node:
    """A node's attributes, and the numbers of those inputs that have to be known."""

    def __init__(self, onnx, proto, g, given):
        self.onnx, self.g, self.given, self.outputs = onnx, g, given, len(proto.output)
        self.wanted = list(proto.output)
        self.attributes = {}
        for a in proto.attribute:
            value = onnx.helper.get_attribute_value(a)
            self.attributes[a.name] = value.decode() if isinstance(value, bytes) else value

    def __call__(self, name, default=None):
        return self.attributes.get(name, default)

    def numbers(self, x):
        if x is None or x.id not in self.given:
            return refuse("an argument is computed that has to be known") if x is not None else None
        return self.given[x.id].tolist()

    def constant(self, array):
        return self.g.constant(np.asarray(array))

    def dtype(self, code):
        return self.onnx.helper.tensor_dtype_to_np_dtype(code).name


# ---- elements


def c_divide(n, a, b):
    if "float" in a.dtype:
        return a / b
    q = aicf.floor_divide(a, b)
    inexact = aicf.logical_and(aicf.not_equal(q * b, a), (a < 0) ^ (b < 0))
    return aicf.where(inexact, q + 1, q)


def power(n, a, b):
    if "float" not in a.dtype:
        y = a.cast("float64") ** b.cast("float64")
        return y.cast(a.dtype)
    return a ** b.cast(a.dtype)


def modulo(n, a, b):
    return aicf.fmod(a, b) if n("fmod", 0) else aicf.remainder(a, b)


def shifted(n, a, b):
    right = n("direction") == "RIGHT"
    return (aicf.bitwise_right_shift if right else aicf.bitwise_left_shift)(a, b)


def infinite(n, x):
    up = aicf.equal(x, np.inf) if n("detect_positive", 1) else None
    down = aicf.equal(x, -np.inf) if n("detect_negative", 1) else None
    if up is None and down is None:
        return aicf.zeros_like(x, "int32").cast("bool")
    return up | down if up is not None and down is not None else up if down is None else down


def limited(n, x, low=None, high=None):
    for bound, limit in ((low, aicf.maximum), (high, aicf.minimum)):
        x = x if bound is None else limit(x, bound)
    return x


def folded(fn, last=lambda y, count: y):
    def call(n, *xs):
        y = xs[0]
        for x in xs[1:]:
            y = fn(y, x)
        return last(y, len(xs))

    return call


def converted(n, x, like=None):
    return x.cast(like.dtype if like is not None else n.dtype(n("to")))


def hardmax(n, x):
    axis = n("axis", -1)
    hot = aicf.one_hot(aicf.argmax(x, axis), x.shape[axis], x.dtype)
    return aicf.moveaxis(hot, -1, axis)


def bent(n, x, slope):
    return aicf.where(x < 0, x * slope, x)


def shrunk(n, x):
    lambd, bias = n("lambd", 0.5), n("bias", 0.0)
    inside = aicf.zeros_like(x)
    return aicf.where(x < -lambd, x + bias, aicf.where(x > lambd, x - bias, inside))


def swish(n, x):
    return x * aicf.sigmoid(x * n("alpha", 1.0))


def selu(n, x):
    alpha, gamma = n("alpha", 1.6732632423543772), n("gamma", 1.0507009873554805)
    return gamma * aicf.elu(x, alpha)


# ---- reductions


def reduction(fn):
    def call(n, x, axes=None):
        axes = n.numbers(axes) if axes is not None else n("axes")
        if not axes and n("noop_with_empty_axes", 0):
            return x if fn in (REDUCED[k] for k in KEPT) else fn(aicf.expand_dims(x, -1), -1, False)
        return fn(x, list(axes) if axes else None, bool(n("keepdims", 1)))

    return call


def log_sum(x, axis, keep):
    return aicf.log(aicf.sum(x, axis, keep))


def as_float(fn):
    def call(x, axis, keep):
        if "float" in x.dtype:
            return fn(x, axis, keep)
        return fn(x.cast("float64"), axis, keep).cast(x.dtype)

    return call


def extreme(fn):
    def call(x, axis, keep):
        return (
            fn(x.cast("int32"), axis, keep).cast("bool") if x.dtype == "bool" else fn(x, axis, keep)
        )

    return call


KEPT = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
REDUCED = {
    "ReduceSum": aicf.sum,
    "ReduceMean": as_float(aicf.mean),
    "ReduceMax": extreme(aicf.max),
    "ReduceMin": extreme(aicf.min),
    "ReduceProd": aicf.prod,
    "ReduceL1": lambda x, axis, keep: aicf.sum(aicf.abs(x), axis, keep),
    "ReduceL2": as_float(lambda x, axis, keep: aicf.vector_norm(x, axis, keep)),
    "ReduceLogSum": as_float(log_sum),
    "ReduceLogSumExp": as_float(aicf.logsumexp),
    "ReduceSumSquare": lambda x, axis, keep: aicf.sum(x * x, axis, keep),
}


def place(fn):
    def call(n, x):
        axis, keep = n("axis", 0), bool(n("keepdims", 1))
        if not n("select_last_index", 0):
            return fn(x, axis, keep)
        return x.shape[axis] - 1 - fn(aicf.flip(x, axis), axis, keep)

    return call


def running(fn, unit):
    def call(n, x, axis):
        axis = n.numbers(axis)
        axis = axis if isinstance(axis, int) else axis[0]
        before = (slice(None),) * (axis % x.ndim)
        x = aicf.flip(x, axis) if n("reverse", 0) else x
        y = fn(x, axis)
        if n("exclusive", 0):
            first = aicf.full_like(y[(*before, slice(1))], unit)
            y = aicf.concat([first, y[(*before, slice(-1))]], axis)
        return aicf.flip(y, axis) if n("reverse", 0) else y

    return call


# ---- shapes


def reshaped(n, x, shape):
    sizes = n.numbers(shape)
    if not n("allowzero", 0):
        sizes = [x.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    return x.reshape(sizes)


def flattened(n, x):
    axis = n("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def squeezed(n, x, axes=None):
    axes = n.numbers(axes) if axes is not None else n("axes")
    return aicf.squeeze(x, axes)


def unsqueezed(n, x, axes=None):
    axes = n.numbers(axes) if axes is not None else n("axes")
    rank = x.ndim + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = aicf.expand_dims(x, axis)
    return x


def expanded(n, x, shape):
    return aicf.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(n.numbers(shape))))


def sliced(n, x, starts=None, ends=None, axes=None, steps=None):
    starts, ends, axes, steps = (
        n.numbers(given) if given is not None else n(name)
        for given, name in ((starts, "starts"), (ends, "ends"), (axes, "axes"), (steps, "steps"))
    )
    key = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        step = steps[i] if steps else 1
        axis = axes[i] if axes else i
        size = x.shape[axis]
        low = -(2**60) if step < 0 and end < -size else end
        key[axis] = slice(start, None if low == -(2**60) else end, step)
    return x[tuple(key)]


def split(n, x, sizes=None):
    axis, count = n("axis", 0), n("num_outputs", n.outputs)
    sizes = n.numbers(sizes) if sizes is not None else n("split")
    if sizes is None:
        each = -(-x.shape[axis] // count)
        sizes = [min(each, x.shape[axis] - i * each) for i in range(count)]
    before, at, parts = (slice(None),) * (axis % x.ndim), 0, []
    for size in sizes:
        parts.append(x[(*before, slice(at, at + size))])
        at += size
    return tuple(parts)


def padded(n, x, pads=None, value=None, axes=None):
    pads = n.numbers(pads) if pads is not None else n("pads")
    axes = n.numbers(axes) if axes is not None else range(x.ndim)
    widths, half = [(0, 0)] * x.ndim, len(pads) // 2
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + half])
    fill = n.numbers(value) if value is not None else n("value", 0)
    mode = n("mode", "constant")
    if mode == "constant":
        return aicf.pad(x, widths, fill)
    return aicf.pad(x, widths, mode=mode)


def to_space(n, x):
    b, (size, c, h, w) = n("blocksize"), x.shape
    if n("mode", "DCR") == "DCR":
        y = x.reshape((size, b, b, c // b**2, h, w)).permute((0, 3, 4, 1, 5, 2))
    else:
        y = x.reshape((size, c // b**2, b, b, h, w)).permute((0, 1, 4, 2, 5, 3))
    return y.reshape((size, c // b**2, h * b, w * b))


def to_depth(n, x):
    b, (size, c, h, w) = n("blocksize"), x.shape
    if n("mode", "DCR") == "CRD":
        y = x.reshape((size, c, h // b, b, w // b, b)).permute((0, 1, 3, 5, 2, 4))
    else:
        y = x.reshape((size, c, h // b, b, w // b, b)).permute((0, 3, 5, 1, 2, 4))
    return y.reshape((size, c * b * b, h // b, w // b))


def shape_of(n, x):
    return n.constant(np.array(x.shape[n("start", 0) : n("end", None)], np.int64))


def filled(n, shape):
    value = n("value")
    value = n.onnx.numpy_helper.to_array(value) if value is not None else np.zeros(1, np.float32)
    return n.constant(np.full(n.numbers(shape), value[0]))


def eye_like(n, x):
    dtype = n.dtype(n("dtype")) if n("dtype") else x.dtype
    return n.constant(np.eye(*x.shape, k=n("k", 0))).cast(dtype)


def ranged(n, start, limit, delta):
    ends = (n.given[v.id][()].astype(np.float64) for v in (start, limit, delta))
    return n.constant(np.arange(*ends).astype(n.given[start.id].dtype))


def center(n, x, shape):
    sizes = n.numbers(shape)
    axes = n("axes", range(x.ndim))
    widths = [(0, 0)] * x.ndim
    for axis, size in zip(axes, sizes, strict=True):
        more = size - x.shape[axis]
        before = more // 2 if more >= 0 else -(-more // 2)
        widths[axis] = (before, more - before)
    return aicf.pad(x, widths)


def triangle(n, x, k=None):
    k = n.numbers(k) if k is not None else 0
    return (aicf.triu if n("upper", 1) else aicf.tril)(x, k if isinstance(k, int) else k[0])


def reversed_lines(n, x, lengths):
    time, batch = n("time_axis", 0), n("batch_axis", 1)
    size = x.shape[time]
    line = lambda axis, v: v.reshape([-1 if d == axis else 1 for d in range(x.ndim)])  # noqa: E731
    steps = line(time, n.constant(np.arange(size)))
    ends = line(batch, lengths)
    places = aicf.where(steps < ends, ends - 1 - steps, steps)
    return aicf.take_along_axis(x, aicf.broadcast_to(places, x.shape), time)


def hot(n, indices, depth, values):
    size = n.numbers(depth)
    size = int(size if not isinstance(size, list) else size[0])
    indices = indices if "int" in indices.dtype else indices.cast("int64")
    indices = aicf.where(indices < 0, indices + size, indices)
    on = aicf.moveaxis(aicf.one_hot(indices, size, "int32"), -1, n("axis", -1))
    return aicf.where(aicf.equal(on, 1), values[1], values[0])


# ---- indices


def wrapped(i, size):
    return aicf.where(i < 0, i + size, i)


def gathered(n, x, i):
    axis = n("axis", 0)
    return aicf.take(x, wrapped(i, x.shape[axis]), axis)


def gathered_elements(n, x, i):
    axis = n("axis", 0)
    return aicf.gather(x, axis, wrapped(i, x.shape[axis]))


def flat_places(shape, i):
    """The places in the flattened array that the last axis of `i` names, and the rest's sizes."""
    k = i.shape[-1]
    rest = shape[k:]
    strides = [math.prod(shape[d + 1 :]) for d in range(k)]
    at = None
    for d, stride in enumerate(strides):
        part = wrapped(i[..., d], shape[d]) * stride
        at = part if at is None else at + part
    inside = at.graph.constant(np.arange(math.prod(rest)))
    return aicf.expand_dims(at, -1) + inside, rest


def gathered_nd(n, x, i):
    batch = n("batch_dims", 0)
    if batch:
        lead = np.indices(i.shape[:-1])[:batch]
        lead = n.constant(np.moveaxis(lead, 0, -1))
        i = aicf.concat([lead, i], -1)
    places, rest = flat_places(x.shape, i)
    return aicf.take(x.reshape((-1,)), places).reshape((*i.shape[:-1], *rest))


REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def put(x, axis, i, y, how):
    if how == "none":
        return aicf.scatter(x, axis, i, y)
    return aicf.scatter_reduce(x, axis, i, y, REDUCE[how])


def scattered(n, x, i, y):
    axis = n("axis", 0)
    return put(x, axis, wrapped(i, x.shape[axis]), y, n("reduction", "none"))


def scattered_nd(n, x, i, y):
    places, _ = flat_places(x.shape, i)
    line = put(x.reshape((-1,)), 0, places.reshape((-1,)), y.reshape((-1,)), n("reduction", "none"))
    return line.reshape(x.shape)


def tensor_scattered(n, x, y, at=None):
    axis = n("axis", -2) % x.ndim
    size, count = x.shape[axis], y.shape[axis]
    steps = n.constant(np.arange(count)).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    places = steps if at is None else steps + at.reshape((-1, *(1,) * (x.ndim - 1)))
    if n("mode", "linear") == "circular":
        places = places % size
    return aicf.scatter(x, axis, aicf.broadcast_to(places, y.shape), y)


def largest(n, x, k):
    values, places = aicf.topk(x, n.numbers(k)[0], n("axis", -1), bool(n("largest", 1)))
    return values, places


# ---- products


def gemm(n, a, b, c=None):
    a = a.T if n("transA", 0) else a
    b = b.T if n("transB", 0) else b
    y = a @ b * n("alpha", 1.0)
    return y if c is None else y + c * n("beta", 1.0)


# ---- the table


def plain(fn):
    return lambda n, *xs: fn(*xs)


OPS = {
    name: plain(getattr(aicf, name.lower()))
    for name in (
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Equal Erf Exp Floor Greater IsNaN "
        "Less Log MatMul Mish Mul Neg Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus "
        "Softsign Sqrt Sub Tan Tanh Add HardSwish Where"
    ).split()
}
OPS |= {name: reduction(fn) for name, fn in REDUCED.items()}
OPS |= {
    "Not": plain(aicf.logical_not),
    "And": plain(aicf.logical_and),
    "Or": plain(aicf.logical_or),
    "Xor": plain(aicf.logical_xor),
    "LessOrEqual": plain(aicf.less_equal),
    "GreaterOrEqual": plain(aicf.greater_equal),
    "BitwiseAnd": plain(aicf.bitwise_and),
    "BitwiseOr": plain(aicf.bitwise_or),
    "BitwiseXor": plain(aicf.bitwise_xor),
    "BitwiseNot": plain(aicf.bitwise_invert),
    "Identity": plain(lambda x: x),
    "Div": c_divide,
    "Pow": power,
    "Mod": modulo,
    "BitShift": shifted,
    "IsInf": infinite,
    "Clip": limited,
    "Max": folded(aicf.maximum),
    "Min": folded(aicf.minimum),
    "Sum": folded(aicf.add),
    "Mean": folded(aicf.add, lambda y, count: y / count),
    "Cast": converted,
    "CastLike": converted,
    "Elu": lambda n, x: aicf.elu(x, n("alpha", 1.0)),
    "Celu": lambda n, x: aicf.celu(x, n("alpha", 1.0)),
    "Selu": selu,
    "LeakyRelu": lambda n, x: aicf.leaky_relu(x, n("alpha", 0.01)),
    "ThresholdedRelu": lambda n, x: aicf.threshold(x, n("alpha", 1.0), 0.0),
    "HardSigmoid": lambda n, x: aicf.clip(x * n("alpha", 0.2) + n("beta", 0.5), 0.0, 1.0),
    "Gelu": lambda n, x: aicf.gelu(x, n("approximate", "none")),
    "PRelu": bent,
    "Shrink": shrunk,
    "Swish": swish,
    "SwiGLU": lambda n, a, b: swish(n, a) * b,
    "Hardmax": hardmax,
    "Softmax": lambda n, x: aicf.softmax(x, n("axis", -1)),
    "LogSoftmax": lambda n, x: aicf.log_softmax(x, n("axis", -1)),
    "ArgMax": place(aicf.argmax),
    "ArgMin": place(aicf.argmin),
    "CumSum": running(aicf.cumsum, 0),
    "CumProd": running(aicf.cumprod, 1),
    "Gemm": gemm,
    "Einsum": lambda n, *xs: aicf.einsum(n("equation"), *xs),
    "Concat": lambda n, *xs: aicf.concat(list(xs), n("axis")),
    "Expand": expanded,
    "Flatten": flattened,
    "Reshape": reshaped,
    "Transpose": lambda n, x: x.permute(n("perm", list(range(x.ndim))[::-1])),
    "Squeeze": squeezed,
    "Unsqueeze": unsqueezed,
    "Slice": sliced,
    "Split": split,
    "Tile": lambda n, x, times: aicf.tile(x, n.numbers(times)),
    "Pad": padded,
    "DepthToSpace": to_space,
    "SpaceToDepth": to_depth,
    "Shape": shape_of,
    "Size": lambda n, x: n.constant(np.array(math.prod(x.shape))),
    "Constant": lambda n: n.constant(n.onnx.numpy_helper.to_array(n("value"))),
    "ConstantOfShape": filled,
    "EyeLike": eye_like,
    "Range": ranged,
    "CenterCropPad": center,
    "ReverseSequence": reversed_lines,
    "Trilu": triangle,
    "OneHot": hot,
    "Gather": gathered,
    "GatherElements": gathered_elements,
    "GatherND": gathered_nd,
    "Scatter": scattered,
    "ScatterElements": scattered,
    "ScatterND": scattered_nd,
    "TensorScatter": tensor_scattered,
    "TopK": largest,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": lambda n, x, w, b: aicf.instance_norm(x, w, b, n("epsilon", 1e-5)),
    "GroupNormalization": lambda n, x, w, b: aicf.group_norm(
        x, n("num_groups"), w, b, n("epsilon", 1e-5)
    ),
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "LpNormalization": lp_norm,
    "LRN": local_norm,
    "MeanVarianceNormalization": whitened,
    "Conv": convolved,
    "ConvTranspose": deconvolved,
    "MaxPool": max_pool,
    "AveragePool": avg_pool,
    "LpPool": lp_pool,
    "MaxUnpool": unpooled,
    "Col2Im": columns,
    "GlobalAveragePool": over_space(aicf.mean),
    "GlobalMaxPool": over_space(aicf.max),
    "Resize": resized,
    "Upsample": upsampled,
    "GridSample": sampled,
    "AffineGrid": affine,
    "NegativeLogLikelihoodLoss": nll,
    "SoftmaxCrossEntropyLoss": softmax_loss,
    "Attention": attention,
    "RotaryEmbedding": rotated,
    "RNN": recurrent(1, cell),
    "GRU": recurrent(3, gru),
    "LSTM": recurrent(4, lstm, 2),
    "Adagrad": in_groups(adagrad, 1),
    "Adam": in_groups(adam, 2),
    "Momentum": in_groups(momentum, 1),
    "Dropout": lambda n, x, ratio=None, training=None: (
        (x, aicf.equal(x, x))
        if training is None or not n.numbers(training) or n.numbers(ratio) == 0
        else refuse("other numbers are drawn")
    ),
}
