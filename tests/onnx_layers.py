"""ONNX's layers, losses and optimizers as functions of aicf, for `onnx_ops`."""

import itertools
import math

import aicf
import numpy as np


def refuse(why):
    raise aicf.Unsupported(why)


# ---- norms


def channels(x, *vectors):
    shape = (-1, *(1,) * (x.ndim - 2))
    return [v.reshape(shape) for v in vectors]


def batch_norm(n, x, scale, bias, mean, var):
    eps, momentum = n("epsilon", 1e-5), n("momentum", 0.9)
    if not n("training_mode", 0):
        w, b, m, v = channels(x, scale, bias, mean, var)
        return (x - m) / aicf.sqrt(v + eps) * w + b
    over = [d for d in range(x.ndim) if d != 1]
    now, spread = aicf.mean(x, over), aicf.var(x, over, 0)
    w, b, m, v = channels(x, scale, bias, now, spread)
    y = (x - m) / aicf.sqrt(v + eps) * w + b
    return y, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum)


def layer_norm(n, x, scale, bias=None):
    axis, eps = n("axis", -1), n("epsilon", 1e-5)
    over = list(range(axis % x.ndim, x.ndim))
    mean = aicf.mean(x, over, True)
    scale_by = aicf.rsqrt(aicf.var(x, over, 0, True) + eps)
    y = (x - mean) * scale_by * scale
    return (y if bias is None else y + bias), mean, scale_by


def rms_norm(n, x, scale):
    over = list(range(n("axis", -1) % x.ndim, x.ndim))
    return x * aicf.rsqrt(aicf.mean(x * x, over, True) + n("epsilon", 1e-5)) * scale


def lp_norm(n, x):
    norm = aicf.vector_norm(x, n("axis", -1), True, float(n("p", 2)))
    return aicf.where(aicf.equal(norm, 0.0), 0.0, x / aicf.where(aicf.equal(norm, 0.0), 1.0, norm))


def local_norm(n, x):
    return aicf.local_response_norm(x, n("size"), n("alpha", 1e-4), n("beta", 0.75), n("bias", 1.0))


def whitened(n, x):
    axes = n("axes", [0, 2, 3])
    mean = aicf.mean(x, axes, True)
    spread = aicf.sqrt(aicf.mean(x * x, axes, True) - mean * mean)
    return (x - mean) / (spread + 1e-9)


# ---- windows


def spans(n, x, kernel, ceil=False):
    """strides, dilations and widths before and after of each axis."""
    rank = x.ndim - 2
    strides, dilations = n("strides", [1] * rank), n("dilations", [1] * rank)
    auto, pads = n("auto_pad", "NOTSET"), n("pads", [0] * 2 * rank)
    widths = []
    for d in range(rank):
        size, reach = x.shape[d + 2], (kernel[d] - 1) * dilations[d] + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-size // strides[d])
            total = max(0, (out - 1) * strides[d] + reach - size)
            small = total // 2
            widths.append(
                (small, total - small) if auto == "SAME_UPPER" else (total - small, small)
            )
        else:
            widths.append((0, 0) if auto == "VALID" else (pads[d], pads[d + rank]))
    return strides, dilations, widths


CONV = {1: aicf.conv1d, 2: aicf.conv2d, 3: aicf.conv3d}
DECONV = {1: aicf.conv_transpose1d, 2: aicf.conv_transpose2d, 3: aicf.conv_transpose3d}


def convolved(n, x, w, b=None):
    strides, dilations, widths = spans(n, x, w.shape[2:])
    x = aicf.pad(x, [(0, 0), (0, 0), *widths])
    return CONV[x.ndim - 2](x, w, b, strides, 0, dilations, n("group", 1))


def deconvolved(n, x, w, b=None):
    rank, group = x.ndim - 2, n("group", 1)
    strides, dilations = n("strides", [1] * rank), n("dilations", [1] * rank)
    more, pads = n("output_padding", [0] * rank), n("pads", [0] * 2 * rank)
    wanted, auto = n("output_shape"), n("auto_pad", "NOTSET")
    y = DECONV[rank](x, w, b, strides, 0, more, group, dilations)
    key = [slice(None)] * 2
    for d in range(rank):
        size = y.shape[d + 2]
        if wanted or auto.startswith("SAME"):
            target = wanted[-rank:][d] if wanted else x.shape[d + 2] * strides[d]
            total = size - target
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
            key.append((before, total - before))
        else:
            key.append((pads[d], pads[d + rank]))
    widths = [(0, 0), (0, 0), *((-a, -b) for a, b in key[2:])]
    return aicf.pad(y, widths)


def with_ceil(n, x, kernel, strides, dilations, widths):
    """Widths with what ceil_mode adds behind: windows that begin inside."""
    if not n("ceil_mode", 0):
        return widths
    result = []
    for d, (before, after) in enumerate(widths):
        reach = (kernel[d] - 1) * dilations[d] + 1
        size = x.shape[d + 2] + before + after
        count = -(-(size - reach) // strides[d]) + 1
        if (count - 1) * strides[d] >= x.shape[d + 2] + before:
            count -= 1
        result.append((before, after + max(0, (count - 1) * strides[d] + reach - size)))
    return result


def cut(x, kernel, strides, dilations):
    """Each window's elements in a new first axis."""
    sizes = [(x.shape[d + 2] - (k - 1) * dilations[d] - 1) // strides[d] + 1
             for d, k in enumerate(kernel)]  # fmt: skip
    parts = []
    for at in itertools.product(*(range(k) for k in kernel)):
        key = [slice(None)] * 2
        for d, i in enumerate(at):
            start = i * dilations[d]
            key.append(slice(start, start + (sizes[d] - 1) * strides[d] + 1, strides[d]))
        parts.append(x[tuple(key)])
    return aicf.stack(parts)


def max_pool(n, x):
    kernel = n("kernel_shape")
    strides, dilations, widths = spans(n, x, kernel)
    widths = with_ceil(n, x, kernel, strides, dilations, widths)
    low = 0 if x.dtype == "uint8" else -np.inf
    wide = aicf.pad(x, [(0, 0), (0, 0), *widths], low)
    if x.dtype == "uint8":
        return aicf.max(cut(wide.cast("int32"), kernel, strides, dilations), 0).cast("uint8")
    parts = cut(wide, kernel, strides, dilations)
    y = aicf.max(parts, 0)
    if n.outputs == 1:
        return y
    order = np.arange(math.prod(x.shape)).reshape(x.shape)
    if n("storage_order", 0):
        inner = x.shape[2:]
        line = np.arange(math.prod(inner)).reshape(inner[::-1]).T
        lead = np.arange(math.prod(x.shape[:2])).reshape((*x.shape[:2], *(1,) * len(inner)))
        order = line + lead * math.prod(inner)
    order = np.pad(order, [(0, 0), (0, 0), *widths])
    numbers = cut(n.constant(order), kernel, strides, dilations)
    best = aicf.argmax(parts, 0, True)
    return y, aicf.squeeze(aicf.take_along_axis(numbers, best, 0), 0)


def avg_pool(n, x):
    kernel = n("kernel_shape")
    strides, dilations, widths = spans(n, x, kernel)
    grown = with_ceil(n, x, kernel, strides, dilations, widths)
    there = np.ones(x.shape[2:], x.dtype)
    if n("count_include_pad", 0):
        there = np.pad(there, widths, constant_values=1)
        more = [(0, b - a[1]) for a, (_, b) in zip(widths, grown, strict=True)]
        there = np.pad(there, more)
    else:
        there = np.pad(there, grown)
    y = cut(aicf.pad(x, [(0, 0), (0, 0), *grown]), kernel, strides, dilations)
    count = cut(n.constant(there[None, None]), kernel, strides, dilations)
    return aicf.sum(y, 0) / aicf.sum(count, 0)


def lp_pool(n, x):
    kernel, p = n("kernel_shape"), float(n("p", 2))
    strides, dilations, widths = spans(n, x, kernel)
    widths = with_ceil(n, x, kernel, strides, dilations, widths)
    y = cut(aicf.pad(x, [(0, 0), (0, 0), *widths]), kernel, strides, dilations)
    return aicf.sum(aicf.abs(y) ** p, 0) ** (1 / p)


def unpooled(n, x, i, shape=None):
    kernel, rank = n("kernel_shape"), x.ndim - 2
    strides, pads = n("strides", [1] * rank), n("pads", [0] * 2 * rank)
    sizes = [(x.shape[d + 2] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + rank]
             for d in range(rank)]  # fmt: skip
    own = (*x.shape[:2], *sizes)
    wanted = tuple(n.numbers(shape)) if shape is not None else own
    line = n.constant(np.zeros(math.prod(own), x.dtype))
    y = aicf.scatter(line, 0, i.reshape((-1,)), x.reshape((-1,))).reshape(own)
    return aicf.pad(y, [(0, b - a) for a, b in zip(own, wanted, strict=True)])


def columns(n, x, image, block):
    sizes, kernel = n.numbers(image), n.numbers(block)
    rank = len(sizes)
    if rank != 2:
        refuse("fold of other than two axes")
    pads = n("pads", [0] * 4)
    wide = [s + pads[d] + pads[d + 2] for d, s in enumerate(sizes)]
    y = aicf.fold(x, wide, kernel, n("dilations", [1, 1]), 0, n("strides", [1, 1]))
    return aicf.pad(y, [(0, 0), (0, 0), *((-pads[d], -pads[d + 2]) for d in range(2))])


def over_space(fn):
    return lambda n, x: fn(x, list(range(2, x.ndim)), True)


# ---- images


def weights_of(n, size, out, scale, mode, roi, keep):
    """[out, size]: what each element has of each; the rest is extrapolated where a row is NaN."""
    how = n("coordinate_transformation_mode", "half_pixel")
    a, exclude = n("cubic_coeff_a", -0.75), n("exclude_outside", 0)
    rows = np.zeros((out, size))
    for i in range(out):
        if how == "align_corners":
            at = i * (size - 1) / (size * scale - 1) if out > 1 else 0.0
        elif how == "asymmetric":
            at = i / scale
        elif how == "pytorch_half_pixel" and out == 1:
            at = 0.0
        elif how == "tf_crop_and_resize":
            start, end = roi
            at = (start * (size - 1) + i * (end - start) * (size - 1) / (out - 1)
                  if out > 1 else 0.5 * (start + end) * (size - 1))  # fmt: skip
            if at < 0 or at > size - 1:
                rows[i] = np.nan
                continue
        elif how == "half_pixel_symmetric":
            fix = out / (size * scale)
            at = size / 2 * (1 - fix) + (i + 0.5) / scale - 0.5
        else:
            at = (i + 0.5) / scale - 0.5
        if mode == "nearest":
            near = n("nearest_mode", "round_prefer_floor")
            j = {"floor": math.floor(at), "ceil": math.ceil(at),
                 "round_prefer_floor": math.ceil(at - 0.5),
                 "round_prefer_ceil": math.floor(at + 0.5)}[near]  # fmt: skip
            rows[i, min(max(j, 0), size - 1)] = 1
            continue
        widen = max(1.0, 1.0 / scale) if n("antialias", 0) else 1.0
        reach = (1 if mode == "linear" else 2) * widen
        taps = range(math.floor(at - reach), math.ceil(at + reach) + 1)
        shares = np.array([kernel_of(mode, (j - at) / widen, a) for j in taps])
        if exclude or n("antialias", 0):
            inside = np.array([0 <= j < size for j in taps])
            shares = np.where(inside, shares, 0) if exclude else shares
        shares = shares / shares.sum()
        for j, share in zip(taps, shares, strict=True):
            rows[i, min(max(j, 0), size - 1)] += share
    return rows


def kernel_of(mode, t, a):
    t = abs(t)
    if mode == "linear":
        return max(0.0, 1 - t)
    if t < 1:
        return ((a + 2) * t - (a + 3)) * t * t + 1
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a if t < 2 else 0.0


def resized(n, x, roi=None, scales=None, sizes=None):
    mode, axes = n("mode", "nearest"), n("axes", list(range(x.ndim)))
    scales = n.numbers(scales) if scales is not None and math.prod(scales.shape) else None
    sizes = n.numbers(sizes) if sizes is not None else None
    roi = n.numbers(roi) if roi is not None and math.prod(roi.shape) else None
    extents = [x.shape[a] for a in axes]
    if sizes is not None:
        scales = [s / e for s, e in zip(sizes, extents, strict=True)]
        policy = n("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = (min if policy == "not_larger" else max)(scales)
            scales = [one] * len(axes)
            sizes = [int(math.floor(one * e + 0.5)) for e in extents]
    else:
        sizes = [int(math.floor(e * s)) for e, s in zip(extents, scales, strict=True)]
    whole = x if "float" in x.dtype else x.cast("float32")
    outside = None
    for k, (axis, scale, size) in enumerate(zip(axes, scales, sizes, strict=True)):
        part = (roi[k], roi[k + len(axes)]) if roi else (0.0, 1.0)
        if size == x.shape[axis] and scale == 1 and part == (0.0, 1.0):
            continue
        rows = weights_of(n, x.shape[axis], size, scale, mode, part, None)
        lost = np.isnan(rows[:, 0])
        rows = np.where(lost[:, None], 0, rows).astype(whole.dtype)
        whole = aicf.moveaxis(aicf.moveaxis(whole, axis, -1) @ n.constant(rows.T.copy()), -1, axis)
        if lost.any():
            line = lost.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
            outside = line if outside is None else outside | line
    if outside is not None:
        whole = aicf.where(n.constant(outside), n("extrapolation_value", 0.0), whole)
    return whole if whole.dtype == x.dtype else whole.cast(x.dtype)


def upsampled(n, x, scales=None):
    factors = n.numbers(scales) if scales is not None else n("scales")
    for axis, factor in enumerate(factors):
        if factor != 1:
            x = aicf.repeat(x, int(factor), axis)
    return x


def sampled(n, x, grid):
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(n("mode", "linear"), n("mode", "linear"))
    return aicf.grid_sample(x, grid, mode, n("padding_mode", "zeros"), bool(n("align_corners", 0)))


def affine(n, theta, size):
    return aicf.affine_grid(theta, n.numbers(size), bool(n("align_corners", 0)))


# ---- losses


def nll(n, x, labels, weight=None, ignore=None):
    return aicf.nll_loss(x, labels, weight, n("ignore_index"), n("reduction", "mean"))


def softmax_loss(n, x, labels, weight=None):
    logs = aicf.log_softmax(x, 1)
    loss = aicf.nll_loss(logs, labels, weight, n("ignore_index"), n("reduction", "mean"))
    return (loss, logs) if n.outputs > 1 else loss


# ---- attention


def heads(x, count):
    n, length, width = x.shape
    return x.reshape((n, length, count, width // count)).transpose(1, 2)


def attention(n, q, k, v, mask=None, past_k=None, past_v=None, lengths=None):
    packed = q.ndim == 3
    if packed:
        q = heads(q, n("q_num_heads"))
        k, v = (heads(x, n("kv_num_heads")) for x in (k, v))
    dtype = q.dtype
    if past_k is not None:
        k, v = aicf.concat([past_k, k], 2), aicf.concat([past_v, v], 2)
    present = k, v
    (size, count, long, width), total = q.shape, k.shape[2]
    if k.shape[1] != count:
        k, v = (aicf.repeat(x, count // x.shape[1], 1) for x in (k, v))
    scale = n("scale") or 1 / math.sqrt(width)
    root = float(np.asarray(math.sqrt(scale), np.float32))
    products = (q * root) @ (k * root).transpose(-1, -2)
    i, j = (n.constant(np.arange(m).reshape(s)) for m, s in ((long, (-1, 1)), (total, (1, -1))))
    offset = n.constant(np.array(past_k.shape[2] if past_k is not None else 0))
    if past_k is None and lengths is not None:
        offset = lengths.reshape((-1, 1, 1, 1)) - long
    allowed, left, right = [], n("left_window_size", -1), n("right_window_size", -1)
    if n("is_causal", 0):
        allowed.append(j <= i + offset)
    if left >= 0:
        allowed.append(i + offset - j <= left)
    if right >= 0:
        allowed.append(j - i - offset <= right)
    if lengths is not None:
        allowed.append(j < lengths.reshape((-1, 1, 1, 1)))
    biased = products
    if mask is not None:
        short = total - mask.shape[-1]
        none = ((0, 0),) * (mask.ndim - 1)
        if mask.dtype == "bool":
            allowed.append(aicf.pad(mask.cast("int32"), (*none, (0, short))).cast("bool"))
        else:
            biased = biased + aicf.pad(mask, (*none, (0, short)), -np.inf)
    for one in allowed:
        biased = aicf.where(one, biased, -np.inf)
    cap, before = n("softcap", 0.0), biased
    if cap:
        inner = aicf.tanh(products / cap) * cap
        before = inner
        biased = inner
        if mask is not None and mask.dtype != "bool":
            biased = biased + aicf.pad(mask, (*none, (0, short)), -np.inf)
        for one in allowed:
            biased = aicf.where(one, biased, -np.inf)
    full = n("softmax_precision")
    scores = biased.cast(n.dtype(full)) if full else biased
    empty = aicf.equal(aicf.max(scores, -1, True), -np.inf)
    shares = aicf.where(empty, 0.0, aicf.softmax(aicf.where(empty, 0.0, scores), -1)).cast(dtype)
    y = shares @ v
    if packed:
        y = y.transpose(1, 2).reshape((size, long, -1))
    shown = {0: products, 1: before, 2: biased, 3: shares}[n("qk_matmul_output_mode", 0)]
    return y, *present, shown


def rotated(n, x, cos, sin, places=None):
    packed = x.ndim == 3
    y = heads(x, n("num_heads")).transpose(1, 2) if packed else x.transpose(1, 2)
    width = n("rotary_embedding_dim", 0) or y.shape[-1]
    turned, rest = y[..., :width], y[..., width:]
    if places is not None:
        cos, sin = (aicf.take(c, places) for c in (cos, sin))
    cos, sin = (aicf.expand_dims(c, 2) for c in (cos, sin))
    if n("interleaved", 0):
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned[..., : width // 2], turned[..., width // 2 :]
    real, imag = cos * a - sin * b, sin * a + cos * b
    if n("interleaved", 0):
        turned = aicf.stack([real, imag], -1).reshape(turned.shape)
    else:
        turned = aicf.concat([real, imag], -1)
    y = aicf.concat([turned, rest], -1) if rest.shape[-1] else turned
    return y.reshape(x.shape) if packed else y.transpose(1, 2)


# ---- recurrent layers, a step after the other

GATE = {"Sigmoid": aicf.sigmoid, "Tanh": aicf.tanh, "Relu": aicf.relu}


def recurrent(gates, step, states=1):
    def call(n, x, w, r, b=None, lengths=None, *rest):
        hidden, ways = n("hidden_size"), w.shape[0]
        if lengths is not None and set(n.numbers(lengths)) != {x.shape[1 if n("layout", 0) else 0]}:
            refuse("lengths of sequences that differ")
        first, peep = rest[:states], rest[states] if len(rest) > states else None
        if n("layout", 0):
            x = x.transpose(0, 1)
            first = [s.transpose(0, 1) if s is not None else None for s in first]
        outs, lasts = [], []
        for d in range(ways):
            back = n("direction", "forward") == "reverse" or d == 1
            zero = n.constant(np.zeros((x.shape[1], hidden), x.dtype))
            given = list(first) + [None] * (states - len(first))
            state = tuple(zero if s is None else s[d] for s in given)
            bias = b[d] if b is not None else n.constant(np.zeros(2 * gates * hidden, x.dtype))
            bw, br = bias[: gates * hidden], bias[gates * hidden :]
            ys = []
            for t in reversed(range(x.shape[0])) if back else range(x.shape[0]):
                wx = aicf.linear(x[t], w[d]) + bw
                p = peep[d] if peep is not None else None
                state = step(n, wx, state, r[d], br, hidden, p)
                ys.append(state[0])
            outs.append(aicf.stack(ys[::-1] if back else ys))
            lasts.append(state)
        y = aicf.stack(outs, 1)
        ends = [aicf.stack([s[k] for s in lasts]) for k in range(states)]
        if n("layout", 0):
            y, ends = y.permute((2, 0, 1, 3)), [s.transpose(0, 1) for s in ends]
        return y, *ends

    return call


def cell(n, wx, state, r, br, hidden, p):
    return (aicf.tanh(wx + aicf.linear(state[0], r) + br),)


def gru(n, wx, state, r, br, hidden, p):
    (h,) = state
    wz, wr, wh = (wx[:, i * hidden : (i + 1) * hidden] for i in range(3))
    rz, rr, rh = (r[i * hidden : (i + 1) * hidden] for i in range(3))
    bz, b_r, bh = (br[i * hidden : (i + 1) * hidden] for i in range(3))
    z = aicf.sigmoid(wz + aicf.linear(h, rz) + bz)
    reset = aicf.sigmoid(wr + aicf.linear(h, rr) + b_r)
    if n("linear_before_reset", 0):
        new = aicf.tanh(wh + reset * (aicf.linear(h, rh) + bh))
    else:
        new = aicf.tanh(wh + aicf.linear(reset * h, rh) + bh)
    return ((1 - z) * new + z * h,)


def lstm(n, wx, state, r, br, hidden, p):
    h, c = state
    all_gates = wx + aicf.linear(h, r) + br
    i, o, f, g = (all_gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
    if p is not None:
        i, f = i + p[:hidden] * c, f + p[2 * hidden :] * c
    c = aicf.sigmoid(f) * c + aicf.sigmoid(i) * aicf.tanh(g)
    o = o + p[hidden : 2 * hidden] * c if p is not None else o
    return aicf.sigmoid(o) * aicf.tanh(c), c


# ---- optimizers of the preview of training


def in_groups(fn, extra):
    """Inputs are the rate and the step, then groups of params, gradients and states."""

    def call(n, rate, step, *xs):
        count = len(xs) // (2 + extra)
        groups = [xs[i * count : (i + 1) * count] for i in range(2 + extra)]
        made = [fn(n, rate, step, *(g[i] for g in groups)) for i in range(count)]
        return tuple(m[k] for k in range(1 + extra) for m in made)

    return call


def adagrad(n, rate, step, x, g, h):
    g = g + x * n("norm_coefficient", 0.0)
    h = h + g * g
    r = rate / (1 + step.cast(x.dtype) * n("decay_factor", 0.0))
    return x - r * g / (aicf.sqrt(h) + n("epsilon", 0.0)), h


def adam(n, rate, step, x, g, v, h):
    alpha, beta = n("alpha", 0.9), n("beta", 0.999)
    g = g + x * n("norm_coefficient", 0.0)
    v, h = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
    if n.numbers(step) and n.numbers(step) > 0:
        t = step.cast(x.dtype)
        rate = rate * aicf.sqrt(1 - beta**t) / (1 - alpha**t)
    x = x - rate * v / (aicf.sqrt(h) + n("epsilon", 0.0))
    return x * (1 - n("norm_coefficient_post", 0.0)), v, h


def momentum(n, rate, step, x, g, v):
    alpha, beta = n("alpha"), n("beta")
    g = g + x * n("norm_coefficient", 0.0)
    beta = beta if n.numbers(step) > 0 else 1.0
    v = v * alpha + g * beta
    return x - rate * (g + v * alpha if n("mode") == "nesterov" else v), v
