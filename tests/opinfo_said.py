"""What `opinfo_names` says in more than one function, in PyTorch's arguments and their order."""

import math

import aicf
import numpy as np


def flat(results):
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return [one for part in results for one in flat(part)]
    return [results]


def numbers(x):
    """A tensor that has to be known while the graph is built, as Python numbers."""
    return x.graph.given[x.id].tolist() if isinstance(x, aicf.Value) else x


# ---- PyTorch's words for axes and dtypes

RENAMED = {"dim": "axis", "keepdim": "keepdims", "unbiased": "correction"}
AXES = ("dim", "keepdim")


def ranked(fn, at=1):
    """`fn`, whose argument `at` is an axis, of tensors of rank 0, too: as of one element."""

    def call(*args, **kwargs):
        if args[0].ndim:
            return fn(*args, **kwargs)
        up = [v.reshape((1,)) if isinstance(v, aicf.Value) and not v.ndim else v for v in args]
        y = fn(*up, **kwargs)
        back = [v.reshape(()) if v.shape == (1,) else v for v in flat(y)]
        return back if isinstance(y, tuple) else back[0]

    return call


def by_axis(fn, *order):
    """`fn` with PyTorch's words for axes; `order` names those by position; casts to a dtype."""

    def call(x, *args, **kwargs):
        kwargs |= dict(zip(order, args, strict=False))
        dtype = kwargs.pop("dtype", None)
        kwargs = {RENAMED.get(key, key): value for key, value in kwargs.items()}
        if dtype:
            x = x.cast(dtype)
        axis = kwargs.get("axis")
        if axis in ((), []):
            kwargs["axis"] = axis = None
        if x.ndim == 0 and axis in (0, -1, (0,), (-1,), [0], [-1]):
            return ranked(fn)(x, **kwargs)
        return fn(x, **kwargs)

    return call


def along(fn):
    """`fn(x, ..., axis=)` whose axis PyTorch names dim."""
    return lambda *xs, **k: fn(*xs, **{RENAMED.get(key, key): v for key, v in k.items()})


def truth(x):
    return x if x.dtype == "bool" else aicf.not_equal(x, 0)


def of_truth(fn):
    return lambda x, *a, **k: fn(truth(x), *a, **k)


def both_truth(fn):
    return lambda *xs: fn(*(truth(x) for x in xs))


def floats(x):
    return x if not isinstance(x, aicf.Value) or "float" in x.dtype else x.cast("float32")


def in_float(fn):
    """What takes floats alone, of any numbers."""
    return lambda x, *a, **k: fn(floats(x), *a, **k)


def whole_sum(fn):
    """Sums of small integers and bools are int64."""
    return lambda x, *a, **k: fn(x if "float" in x.dtype else x.cast("int64"), *a, **k)


def cast_to(dtype):
    return lambda x, **_: aicf.cast(x, dtype)


def converted(x, *args, dtype=None, **_):
    for given in args:
        if isinstance(given, aicf.Value):
            dtype = given.dtype
        elif given in ("float64", "float32", "int64", "int32", "float16", "bfloat16", "bool"):
            dtype = given
    return aicf.cast(x, dtype) if dtype else x


# ---- reductions


def extreme(reduce, arg, binary):
    def call(x, *args, **kwargs):
        if args and isinstance(args[0], aicf.Value) or "other" in kwargs:
            return binary(x, *args, **kwargs)
        if not args and "dim" not in kwargs:
            return reduce(x)
        return tuple(by_axis(fn, *AXES)(x, *args, **kwargs) for fn in (reduce, arg))

    return call


def corrected(fn):
    def call(x, *args, **kwargs):
        kwargs |= dict(zip(("dim", "unbiased", "keepdim"), args, strict=False))
        if isinstance(kwargs.get("dim"), bool):
            kwargs["unbiased"] = kwargs.pop("dim")
        if kwargs.get("correction", 1) is None:
            kwargs["correction"] = 1
        correction = kwargs.pop("unbiased", kwargs.get("correction", 1))
        kwargs["correction"] = int(correction) if correction == int(correction) else correction
        return by_axis(fn)(x, **kwargs)

    return call


def mean_beside(x, correction=1, **kwargs):
    return aicf.mean(x, **kwargs)


def by_norm(x, p=2, dim=None, keepdim=False, dtype=None):
    def norm(x, axis=None, keepdims=False):
        return aicf.vector_norm(x, axis, keepdims, 2 if p in ("fro", None) else p)

    return by_axis(norm)(x, dim=dim, keepdim=keepdim, dtype=dtype)


def shares_of(fn):
    """quantile and nanquantile: shares known while the graph is built."""

    def call(x, q, dim=None, keepdim=False, interpolation="linear"):
        def shared(x, axis=None, keepdims=False):
            return fn(x, numbers(q), axis, keepdims, interpolation)

        if x.ndim:
            return by_axis(shared)(x, dim=dim, keepdim=keepdim)
        return shared(x.reshape((1,)), 0)

    return call


def lower_median(x, dim=None, keepdim=False, pick=lambda x, axis: (x.shape[axis] - 1) // 2):
    """PyTorch's: of an even number the lower of the two in the middle; and where it lies."""
    if dim is None:
        return lower_median(x.reshape((-1,)), 0, False, pick)[0]

    def call(x, axis, keepdims):
        place, at = pick(x, axis), aicf.argsort(x, axis)
        if isinstance(place, int):
            place = aicf.slice(
                at,
                [place if d == axis % x.ndim else 0 for d in range(x.ndim)],
                [place + 1 if d == axis % x.ndim else n for d, n in enumerate(x.shape)],
            )
        else:
            place = aicf.take_along_axis(at, place, axis)
        value = aicf.take_along_axis(x, place, axis)
        return tuple(v if keepdims else aicf.squeeze(v, axis) for v in (value, place))

    return by_axis(call)(x, dim=dim, keepdim=keepdim)


def numbered(x, axis):
    """The place of the lower median of what is no NaN."""
    there = aicf.count_nonzero(aicf.logical_not(aicf.isnan(x)), axis, True)
    return aicf.maximum((there - 1) // 2, 0)


def nan_median(x, dim=None, keepdim=False):
    return lower_median(x, dim, keepdim, numbered)


def kept_by(mask, x, otherwise):
    if mask is None:
        return x
    return aicf.where(aicf.broadcast_to(mask, x.shape), x, otherwise)


def masked(fn, identity):
    """A reduction of what a mask lets through."""
    return lambda x, *a, mask=None, **k: fn(kept_by(mask, x, identity), *a, **k)


def place_as(fn):
    """PyTorch's masked places have the dtype of the elements."""
    return lambda x, *a, **k: by_axis(fn, *AXES)(x, *a, **k).cast(x.dtype)


def counted(x, mask, **k):
    ones = kept_by(mask, aicf.ones_like(x), 0.0)
    return by_axis(aicf.sum)(ones, **k)


def masked_mean(x, dim=None, keepdim=False, dtype=None, mask=None):
    k = {"dim": dim, "keepdim": keepdim, "dtype": dtype}
    return by_axis(aicf.sum)(kept_by(mask, x, 0.0), **k) / counted(x, mask, **k)


def masked_var(x, dim=None, unbiased=None, keepdim=False, mask=None, correction=None, dtype=None):
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    less = 1 if correction is None else correction
    less = less if unbiased is None else int(unbiased)
    k = {"dim": dim, "dtype": dtype}
    if x.ndim == 0:
        return masked_var(x.reshape((1,)), 0, None, False, mask and mask.reshape((1,)), less, dtype)
    mean = masked_mean(x, **k, keepdim=True, mask=mask)
    apart = kept_by(mask, aicf.square(x - mean), 0.0)
    count = counted(x, mask, **k, keepdim=keepdim)
    return by_axis(aicf.sum)(apart, **k, keepdim=keepdim) / aicf.maximum(count - less, 0.0)


def masked_normalize(x, p, dim, *, eps=1e-12, dtype=None, mask=None):
    x = x.cast(dtype) if dtype else x
    norm = masked_norm(x, p, dim, True, mask=mask)
    return x / aicf.maximum(norm, eps)


def masked_norm(x, p=2, dim=None, keepdim=False, dtype=None, mask=None):
    return by_norm(kept_by(mask, x, np.inf if p < 0 else 0.0), p, dim, keepdim, dtype)


# ---- pointwise


def divided(a, b, rounding_mode=None):
    if rounding_mode == "floor":
        return aicf.floor_divide(a, b)
    return aicf.trunc(a / b) if rounding_mode == "trunc" else aicf.div(a, b)


def bounded(x, lo=None, hi=None, min=None, max=None):
    pairs = ((lo, min, aicf.maximum), (hi, max, aicf.minimum))
    for by_place, by_name, limit in pairs:
        bound = by_place if by_name is None else by_name
        if bound is not None:
            x = limit(x, bound.cast(x.dtype) if isinstance(bound, aicf.Value) else bound)
    return x


def scaled(fn):
    return lambda a, b, alpha=1: fn(a, b * alpha if alpha != 1 else b)


def rounded(x, decimals=0):
    if decimals == 0:
        return aicf.round(x)
    return aicf.round(x * 10.0**decimals) / 10.0**decimals


def lifted(fn):
    """Of two operands one may be a number."""

    def call(a, b):
        like = a if isinstance(a, aicf.Value) else b
        a, b = (v if isinstance(v, aicf.Value) else aicf.full_like(like, v) for v in (a, b))
        return fn(a, b)

    return call


def entropy(x):
    safe = aicf.where(x > 0, x, 1.0)
    outside = aicf.where(x < 0, -np.inf, aicf.where(aicf.isnan(x), x, aicf.zeros_like(x)))
    return aicf.where(x > 0, -safe * aicf.log(safe), outside)


# ---- shapes


def take_one(x, dim, index):
    at = [slice(None)] * x.ndim
    at[dim] = index
    return x[tuple(at)]


def part_of(x, dim, start, length):
    start = numbers(start)
    start = start + x.shape[dim] if start < 0 else start
    at = [slice(None)] * x.ndim
    at[dim] = slice(start, start + length)
    return x[tuple(at)]


def split_at(x, sizes, dim=0):
    n = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, n - at) for at in range(0, max(n, 1), sizes)]
    at, parts = 0, []
    for size in sizes:
        parts.append(part_of(x, dim, at, size))
        at += size
    return parts


def in_chunks(x, chunks, dim=0):
    return split_at(x, max(1, -(-x.shape[dim] // chunks)), dim)


def in_sections(x, how, dim=0):
    n, how = x.shape[dim], numbers(how)
    if isinstance(how, int):
        sizes = [n // how + (i < n % how) for i in range(how)]
        return split_at(x, sizes, dim)
    starts = [0, *how]
    ends = [*how, n]
    return [
        take_one(x, dim, slice(a, max(b, 0) if b < 0 and b + n < 0 else b))
        for a, b in zip(starts, ends, strict=True)
    ]


def one_sized(x, dim=None):
    if dim is None:
        return aicf.squeeze(x)
    dims = [dim] if isinstance(dim, int) else list(dim)
    return aicf.squeeze(x, [d for d in dims if x.ndim and x.shape[d] == 1])


def sizes_in(args):
    return list(args[0] if args and isinstance(args[0], (tuple, list)) else args)


def expanded(x, *sizes, **_):
    sizes = sizes_in(sizes)
    extra = len(sizes) - x.ndim
    return aicf.broadcast_to(x, [x.shape[i - extra] if s == -1 else s for i, s in enumerate(sizes)])


def reshaped(x, *sizes):
    return x.reshape(sizes_in(sizes))


def flattened(x, start_dim=0, end_dim=-1):
    if x.ndim == 0:
        return x.reshape((1,))
    first, last = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape((*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def unflattened(x, dim, sizes):
    dim, sizes = dim % x.ndim, list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[dim] // -math.prod(sizes)
    return x.reshape((*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


def moved(x, source, destination):
    return aicf.moveaxis(x, source, destination)


def rolled(x, shifts, dims=()):
    return aicf.roll(x, shifts, dims if dims not in ((), []) else None)


def repeated(x, repeats, dim=None, **_):
    repeats = numbers(repeats)
    if isinstance(repeats, list):
        if dim is None:
            x, dim = x.reshape((-1,)), 0
        repeats = repeats * x.shape[dim] if len(repeats) == 1 else repeats
        places = np.repeat(np.arange(x.shape[dim]), repeats)
        return aicf.take(x, x.graph.constant(places), dim)
    return aicf.repeat(x, repeats, dim)


def sliding(x, axis, size, step):
    """Tensor.unfold: windows of an axis."""
    if x.ndim == 0:
        return x.reshape((1,)) if size else x.reshape((1,))[:0]
    axis %= x.ndim
    count = (x.shape[axis] - size) // step + 1
    parts = [part_of(x, axis, i * step, size) for i in range(count)]
    return aicf.moveaxis(aicf.stack(parts, axis), axis + 1, -1)


def summed_to(x, *sizes):
    sizes = sizes_in(sizes)
    lead = x.ndim - len(sizes)
    over = [*range(lead)]
    over += [d + lead for d, n in enumerate(sizes) if n == 1 and x.shape[d + lead] != 1]
    return aicf.sum(x, over, True).reshape(sizes) if over else x.reshape(sizes)


def with_dims(x, offset, dim1, dim2):
    """x with two axes at the end, and the order that brings them back."""
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    order = [*(d for d in range(x.ndim) if d not in (dim1, dim2)), dim1, dim2]
    return x.permute(order), [order.index(d) for d in range(x.ndim)]


def diagonal_of(x, offset=0, dim1=0, dim2=1):
    return aicf.diagonal(with_dims(x, offset, dim1, dim2)[0], offset)


def diagonal_put(x, y, offset=0, dim1=0, dim2=1):
    front, back = with_dims(x, offset, dim1, dim2)
    n, m = front.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    wide = aicf.diag_embed(y)
    k = wide.shape[-1]
    none = ((0, 0),) * (wide.ndim - 2)
    wide = wide.pad((*none, (down, n - down - k), (right, m - right - k)))
    on = front.graph.constant(np.eye(n, m, offset, dtype=bool))
    return aicf.where(on, wide, front).permute(back)


def padded(x, widths, mode="constant", value=None):
    pairs = [tuple(widths[i : i + 2]) for i in range(0, len(widths), 2)][::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    names = {"replicate": "edge", "circular": "wrap"}
    if mode == "constant":
        return aicf.pad(x, pairs, value or 0)
    return aicf.pad(x, pairs, mode=names.get(mode, mode))


def grids(*xs, indexing="ij"):
    return aicf.meshgrid([aicf.atleast_1d(x) for x in flat(xs)], indexing)


# ---- indices


def wrapped(indices, n):
    return aicf.where(indices < 0, indices + n, indices)


def whole(i):
    return i.cast("int64") if i.dtype == "uint8" else i


def taken_along(x, i, dim=None):
    if dim is None:
        x, i, dim = x.reshape((-1,)), i.reshape((-1,)), 0
    return aicf.take_along_axis(x, wrapped(i, x.shape[dim]), dim)


def gathered(x, dim, i, **_):
    if math.prod(i.shape) == 0:  # of any other sizes
        return aicf.zeros_like(i, x.dtype)
    y = ranked(lambda x, dim, i: aicf.gather(x, dim, whole(i)))(x, dim, i)
    return y.reshape(i.shape)


def indexed(x, key):
    """x[...] with lists and tensors of indices among the keys, as NumPy's."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if all(not isinstance(k, (list, aicf.Value)) for k in keys):
        return x[key]
    given = [np.asarray(numbers(k)) if isinstance(k, (list, aicf.Value)) else k for k in keys]
    places = np.arange(math.prod(x.shape)).reshape(x.shape)[tuple(given)]
    return aicf.take(x.reshape((-1,)), x.graph.constant(places.astype(np.int64)))


def put_at(x, indices, values, accumulate=False):
    given = tuple(np.asarray(numbers(i)) for i in indices)
    places = np.arange(math.prod(x.shape)).reshape(x.shape)[given]
    line = x.reshape((-1,))
    values = aicf.broadcast_to(values, places.shape).reshape((-1,))
    put = aicf.scatter_add if accumulate else aicf.scatter
    return put(line, 0, x.graph.constant(places.reshape(-1)), values).reshape(x.shape)


def put_line(x, indices, values, accumulate=False):
    put = aicf.scatter_add if accumulate else aicf.scatter
    size = math.prod(x.shape)
    places = wrapped(indices.reshape((-1,)), size)
    return put(x.reshape((-1,)), 0, places, values.reshape((-1,))).reshape(x.shape)


REDUCED = {"add": "sum", "multiply": "prod"}


def scattered(x, dim, i, src, reduce=None):
    if reduce is None:
        return ranked(aicf.scatter)(x, dim, i, src)
    if not isinstance(src, aicf.Value):
        src = aicf.full_like(i, src, x.dtype)
    return ranked(aicf.scatter_reduce)(x, dim, i, src, REDUCED[reduce])


def index_reduced(x, dim, i, src, reduce, include_self=True):
    def call(x, dim, i, src):
        places = i.reshape([i.shape[0] if d == dim % x.ndim else 1 for d in range(x.ndim)])
        places = aicf.broadcast_to(places, src.shape)
        return aicf.scatter_reduce(x, dim, places, src, reduce, include_self)

    return ranked(call)(x, dim, i, src)


def mask_scattered(x, mask, source):
    shape = np.broadcast_shapes(x.shape, mask.shape)
    x, mask = aicf.broadcast_to(x, shape), aicf.broadcast_to(mask, shape).reshape((-1,))
    place = aicf.cumsum(mask.cast("int64"), 0) - 1
    got = aicf.take(source.reshape((-1,)), aicf.maximum(place, 0))
    return aicf.where(mask, got, x.reshape((-1,))).reshape(shape)


def searched(s, x, *, out_int32=False, right=False, side=None, sorter=None):
    if sorter is not None:
        s = aicf.take_along_axis(s, sorter, -1)
    if not isinstance(x, aicf.Value):
        x = s.graph.constant(x, s.dtype)
    found = aicf.searchsorted(s, x, "right" if right or side == "right" else "left")
    return found.cast("int32") if out_int32 else found


def filled(x, where, value):
    value = aicf.cast(value, x.dtype) if isinstance(value, aicf.Value) else value
    return aicf.where(where, value, x)


def ordered(x, dim=-1, descending=False, stable=True):
    return tuple(by_axis(fn)(x, dim=dim, descending=descending) for fn in (aicf.sort, aicf.argsort))


def kth(x, k, dim=-1, keepdim=False):
    return lower_median(x, dim, keepdim, lambda x, axis: k - 1)


# ---- products


def with_beta(product):
    def call(c, a, b, beta=1, alpha=1):
        y = product(a, b) * alpha if alpha != 1 else product(a, b)
        if beta == 0:  # what c holds does not count, not even NaN
            return y + aicf.zeros_like(c)
        return (c * beta if beta != 1 else c) + y

    return call


def inner(a, b):
    if a.ndim and b.ndim > 1:
        return a @ b.transpose(-1, -2)
    return (a * b).sum(-1) if a.ndim and b.ndim else a * b


def chained(xs):
    result = xs[0]
    for x in xs[1:]:
        result = result @ x
    return result


# ---- layers


def native_norm(x, y, over, eps):
    """Of a norm's result, also the mean and the reciprocal of the deviation."""
    mean = aicf.mean(x, over, True)
    return y, mean, aicf.rsqrt(aicf.var(x, over, 0, True) + eps)


def native_layer_norm(x, shape, weight, bias, eps):
    lead = x.ndim - len(shape)
    y = aicf.layer_norm(x, tuple(shape), weight, bias, eps)
    return native_norm(x, y, tuple(range(lead, x.ndim)), eps)


def native_group_norm(x, weight, bias, n, c, size, groups, eps):
    y = aicf.group_norm(x, groups, weight, bias, eps)
    parts = x.reshape((n, groups, c // groups * size))
    return [y, *(v.reshape((n, groups)) for v in native_norm(parts, y, 2, eps)[1:])]


def as_state(fn):
    """A norm's running values are states; what PyTorch returns does not hold them."""

    def call(x, *args, training=None, use_input_stats=None, **kwargs):
        names = ("running_mean", "running_var", "weight", "bias")
        kwargs |= dict(zip(names, args, strict=False))
        from_input = training if fn is aicf.batch_norm else use_input_stats is not False
        if from_input:
            kwargs |= {"running_mean": None, "running_var": None}
        asked = {"training": bool(training)} if fn is aicf.batch_norm else {}
        if fn is aicf.instance_norm:
            asked = {"use_input_stats": from_input}
        return fn(x, **kwargs, **asked)

    return call


def attention(q, k, v, m=None, dropout_p=0.0, **options):
    return aicf.scaled_dot_product_attention(q, k, v, m, dropout_p=dropout_p, **options)


def multi_head(
    query, key, value, width, heads, in_weight, in_bias, bias_k, bias_v, zero_attn, dropout_p,
    out_weight, out_bias, training=True, key_padding_mask=None, need_weights=True, attn_mask=None,
    use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None, v_proj_weight=None,
    static_k=None, static_v=None, average_attn_weights=True, is_causal=False,
):  # fmt: skip
    batched = query.ndim == 3
    if not batched:
        query, key, value = (x.reshape((x.shape[0], 1, x.shape[1])) for x in (query, key, value))
    (length, n, _), size = query.shape, width // heads
    if not use_separate_proj_weight:
        q_proj_weight, k_proj_weight, v_proj_weight = aicf.split(in_weight, 3)
    biases = aicf.split(in_bias, 3) if in_bias is not None else [None] * 3
    q, k, v = (
        aicf.linear(x, w, b)
        for x, w, b in zip(
            (query, key, value), (q_proj_weight, k_proj_weight, v_proj_weight), biases, strict=True
        )
    )
    more = 0
    if bias_k is not None:
        k, v = (
            aicf.concat([x, aicf.broadcast_to(b.reshape((1, 1, width)), (1, n, width))])
            for x, b in ((k, bias_k), (v, bias_v))
        )
        more += 1
    q, k, v = (x.reshape((x.shape[0], n * heads, size)).transpose(0, 1) for x in (q, k, v))
    if zero_attn:
        k, v = (aicf.pad(x, ((0, 0), (0, 1), (0, 0))) for x in (k, v))
        more += 1
    scores = q @ k.transpose(-1, -2) / math.sqrt(size)
    if attn_mask is not None:
        if attn_mask.dtype == "bool":
            zero = aicf.zeros_like(attn_mask, scores.dtype)
            attn_mask = aicf.where(attn_mask, -np.inf, zero)
        scores = scores + attn_mask.pad((*((0, 0),) * (attn_mask.ndim - 1), (0, more)))
    weights = aicf.softmax(scores, -1)
    if dropout_p and training:
        weights = aicf.dropout(weights, dropout_p)
    y = (weights @ v).transpose(0, 1).reshape((length * n, width))
    y = aicf.linear(y, out_weight, out_bias).reshape((length, n, width))
    if not batched:
        y = y.reshape((length, width))
    if not need_weights:
        return y
    weights = weights.reshape((n, heads, length, -1))
    if average_attn_weights:
        weights = weights.mean(1)
    return y, weights if batched else weights.reshape(weights.shape[1:])


def safe_softmax(x, dim, dtype=None):
    """0 where all of a line is -inf."""
    x = x.cast(dtype) if dtype else x
    empty = aicf.equal(aicf.max(x, dim, True), -np.inf)
    return aicf.where(empty, 0.0, aicf.softmax(aicf.where(empty, 0.0, x), dim))


def renormed(x, p, dim, maxnorm):
    over = [d for d in range(x.ndim) if d != dim % x.ndim]
    norm = aicf.vector_norm(x, over, True, p)
    return x * aicf.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


def spread(x, size=None, scale_factor=None, mode="nearest", **options):
    return aicf.interpolate(
        x,
        list(size) if isinstance(size, (tuple, list)) else size,
        scale_factor,
        mode,
        **options,
    )


def triplets(*xs, distance_function=None, **options):
    """PyTorch's samples bring its own functions of a distance."""
    name = getattr(distance_function, "__name__", type(distance_function).__name__).lower()
    own = {"pairwise_distance": aicf.pairwise_distance, "pairwisedistance": aicf.pairwise_distance}
    fn = None if distance_function is None else own[name]
    return aicf.triplet_margin_with_distance_loss(*xs, distance_function=fn, **options)


def hot(x, num_classes=-1):
    if num_classes == -1:
        num_classes = int(np.max(numbers(x))) + 1
    return aicf.one_hot(x, num_classes, "int64")


def bags(w, i, offsets=None, sparse=False, scale_grad_by_freq=False, norm_type=2.0, **options):
    return aicf.embedding_bag(i, w, offsets, **options)


def table_rows(w, i, sparse=False, scale_grad_by_freq=False, norm_type=2.0, **options):
    return aicf.embedding(i, w, **options)


def sampled(x, grid, mode, padding, align):
    return aicf.grid_sample(
        x,
        grid,
        ("bilinear", "nearest", "bicubic")[mode],
        ("zeros", "border", "reflection")[padding],
        align,
    )


# ---- drawn: of their shape and dtype


def drawn(low=0.0, high=1.0):
    return lambda x, dtype=None, **_: uniform(x.graph, x.shape, low, high, dtype or x.dtype)


def uniform(g, shape, low, high, dtype):
    u = g.random_uniform(list(shape), float(low), float(high), "float64")
    return u.cast(dtype)


def of_uniform(fn):
    """fn(u, *args) of numbers between 0 and 1, in x's shape."""
    return lambda x, *args: fn(uniform(x.graph, x.shape, 1e-9, 1.0, x.dtype), *args)


def integers(g, low, high, shape=None, dtype=None, **_):
    if shape is None:
        low, high, shape = 0, low, high
    return g.random_int(list(shape), int(low), int(high), "int64").cast(dtype or "int64")


def integers_like(x, low, high=None, dtype=None, **_):
    low, high = (0, low) if high is None else (low, high)
    return integers(x.graph, low, high, x.shape, dtype or x.dtype)


def normal_of(g, mean, std=1.0, size=None, dtype=None, **_):
    given = [v for v in (mean, std) if isinstance(v, aicf.Value)]
    shape = np.broadcast_shapes(*(v.shape for v in given)) if given else tuple(size)
    dtype = dtype or (given[0].dtype if given else "float32")
    return g.random_normal(list(shape), 0.0, 1.0, "float64").cast(dtype) * std + mean


def chosen(x, count, replacement=False):
    if not replacement:
        noise = -aicf.log(-aicf.log(uniform(x.graph, x.shape, 1e-9, 1.0, "float64")))
        return aicf.topk(aicf.log(x).cast("float64") + noise, count)[1]
    wide = aicf.broadcast_to(aicf.expand_dims(aicf.log(x), -2), (*x.shape[:-1], count, x.shape[-1]))
    return aicf.categorical(wide)


def leaky(x, lower=1 / 8, upper=1 / 3, training=False, **_):
    slope = uniform(x.graph, x.shape, lower, upper, x.dtype) if training else (lower + upper) / 2
    return aicf.where(x < 0, x * slope, x)


def of_graph(fn):
    """fn(graph, ...) for ops that may have no tensor among their arguments."""
    fn.of_graph = True
    return fn
