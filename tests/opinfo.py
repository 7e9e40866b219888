"""How many of PyTorch's own op samples aicf computes, and how many of its functions it has.

    python tests/opinfo.py [op ...] [--refused] [--each N] [--json FILE]

Needs torch and expecttest. Each sample of PyTorch's op tests becomes a graph whose tensors are
inputs and whose other arguments are passed on as they are; results are compared in float64 (in
float32 or integers where an op has no float64). A sample is `right`, `refused` with an error of
words, or `wrong`; samples whose tensors are complex, empty of a shape or made by a random generator
are run and compared by shape and dtype alone where nothing else can be said.
"""

import argparse
import collections
import inspect
import json
import sys
import warnings

import aicf
import numpy as np

REFUSALS = (aicf.GraphError, aicf.ShapeError, aicf.DTypeError, aicf.Unsupported, TypeError)


# What has no meaning in a static graph of real tensors, by reason.
def _names(text):
    return text.split()


WITHOUT_MEANING = {
    "complex numbers": _names(
        "angle cdouble cfloat chalf complex conj conj_physical imag polar real "
        "resolve_conj resolve_neg view_as_complex view_as_real mH H isreal vdot"
    ),
    "Fourier transforms, which need complex numbers": _names(
        "fft.fft fft.fft2 fft.fftn fft.fftshift fft.hfft fft.hfft2 fft.hfftn fft.ifft "
        "fft.ifft2 fft.ifftn fft.ifftshift fft.ihfft fft.ihfft2 fft.ihfftn fft.irfft "
        "fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftn istft stft"
    ),
    "the shape depends on the data": _names(
        "argwhere masked_select nonzero nonzero_static unique unique_consecutive "
        "combinations masked_scatter item equal allclose histogramdd histc histogram "
        "bincount"
    ),
    "storage, strides and copies of it": _names(
        "as_strided as_strided_copy as_strided_scatter alias_copy clone contiguous empty "
        "empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ "
        "resize_as_ set_ to_sparse sparse.mm sparse.sampled_addmm sparse.reduce zero_ "
        "fill view_copy expand_copy permute_copy narrow_copy squeeze_copy t_copy "
        "transpose_copy unbind_copy unfold_copy unsqueeze_copy diagonal_copy "
        "split_with_sizes_copy hash_tensor put nextafter frexp"
    ),
    "decompositions of matrices": _names(
        "cholesky cholesky_inverse cholesky_solve geqrf ormqr qr svd svd_lowrank "
        "pca_lowrank lu lu_solve lu_unpack logdet matrix_exp pinverse triangular_solve "
        "linalg.cholesky linalg.cholesky_ex linalg.cond linalg.det linalg.eig linalg.eigh "
        "linalg.eigvals linalg.eigvalsh linalg.householder_product linalg.inv "
        "linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve "
        "linalg.lstsq linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve "
        "linalg.matrix_norm linalg.matrix_rank linalg.norm linalg.pinv linalg.qr "
        "linalg.slogdet linalg.solve linalg.solve_ex linalg.solve_triangular linalg.svd "
        "linalg.svdvals linalg.tensorinv linalg.tensorsolve"
    ),
    "special functions": _names(
        "digamma lgamma polygamma mvlgamma i0 igamma igammac erfinv special.polygamma "
        "special.i0e special.i1 special.i1e special.zeta special.ndtri special.log_ndtr "
        "special.erfcx special.airy_ai special.bessel_j0 special.bessel_j1 "
        "special.bessel_y0 special.bessel_y1 special.modified_bessel_i0 "
        "special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1 "
        "special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 "
        "special.spherical_bessel_j0 special.chebyshev_polynomial_t "
        "special.chebyshev_polynomial_u special.chebyshev_polynomial_v "
        "special.chebyshev_polynomial_w special.hermite_polynomial_h "
        "special.hermite_polynomial_he special.laguerre_polynomial_l "
        "special.legendre_polynomial_p special.shifted_chebyshev_polynomial_t "
        "special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v "
        "special.shifted_chebyshev_polynomial_w"
    ),
    "constants, which NumPy makes": _names(
        "arange eye full linspace logspace new_full new_ones new_zeros ones zeros "
        "tril_indices triu_indices signal.windows.bartlett signal.windows.blackman "
        "signal.windows.cosine signal.windows.exponential signal.windows.gaussian "
        "signal.windows.general_cosine signal.windows.general_hamming "
        "signal.windows.hamming signal.windows.hann signal.windows.kaiser "
        "signal.windows.nuttall"
    ),
    "PyTorch's own tools": _names(
        "jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary "
        "jiterator_binary_return_by_ref jiterator_unary broadcast_shapes scalar_tensor "
        "torch._scaled_mm torch._scaled_mm_v2 torch.ops.aten._efficient_attention_forward "
        "torch.ops.aten._flash_attention_forward _batch_norm_with_update "
        "_native_batch_norm_legit native_batch_norm native_dropout_backward "
        "_segment_reduce _softmax_backward_data _unsafe_masked_index "
        "_unsafe_masked_index_put_accumulate _upsample_bilinear2d_aa _chunk_cat "
        "max_pool2d_with_indices_backward nn.functional.fractional_max_pool2d "
        "nn.functional.fractional_max_pool3d nn.functional.linear_cross_entropy"
    ),
}
EXCLUDED = {name: reason for reason, names in WITHOUT_MEANING.items() for name in names}

# Results that two right implementations do not share, so that shape and dtype alone are compared.
RANDOM = set(
    _names(
        "bernoulli cauchy exponential geometric log_normal normal rand_like randint "
        "randint_like randn randn_like uniform multinomial nn.functional.dropout "
        "nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout "
        "nn.functional.feature_alpha_dropout nn.functional.rrelu"
    )
)

# PyTorch's name, and how aicf says it: a public function or method, or an expression of them.
SAID_AS = {}


def said(*names):
    def keep(fn):
        for name in names:
            SAID_AS[name] = fn
        return fn

    return keep


RENAMED = {"dim": "axis", "keepdim": "keepdims", "dims": "axis", "unbiased": "correction"}
NEITHER = object()


def by_axis(fn, *order):
    """`fn` with PyTorch's words for axes; `order` names those by position; casts to a dtype."""

    def call(x, *args, **kwargs):
        kwargs |= dict(zip(order, args, strict=False))
        dtype = kwargs.pop("dtype", None)
        kwargs = {RENAMED.get(key, key): value for key, value in kwargs.items()}
        if dtype:
            x = x.cast(dtype)
        if kwargs.get("axis", NEITHER) == ():
            kwargs["axis"] = None
        if x.ndim == 0 and kwargs.get("axis") in (0, -1, (0,), (-1,), [0], [-1]):
            x = x.reshape((1,))
            y = fn(x, **kwargs)
            back = [v.reshape(()) if v.shape == (1,) else v for v in flat(y)]
            return back if isinstance(y, tuple) else back[0]
        return fn(x, **kwargs)

    return call


def truth(x):
    return x if x.dtype == "bool" else aicf.not_equal(x, 0)


def of_truth(fn):
    return lambda *xs: fn(*(truth(x) for x in xs))


def in_float(fn):
    """What takes floats alone, of any numbers."""
    return lambda *xs: fn(*(x if "float" in x.dtype else x.cast("float32") for x in xs))


def extreme(reduce, arg, binary):
    def call(x, *args, **kwargs):
        if args and isinstance(args[0], aicf.Value) or "other" in kwargs:
            return binary(x, *args, **kwargs)
        if not args and "dim" not in kwargs:
            return reduce(x)
        return (
            by_axis(reduce, "axis", "keepdims")(x, *args, **kwargs),
            by_axis(arg, "axis", "keepdims")(x, *args, **kwargs),
        )

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


def divided(a, b, rounding_mode=None):
    how = {None: aicf.div, "floor": aicf.floor_divide, "trunc": lambda a, b: aicf.trunc(a / b)}
    return how[rounding_mode](a, b)


def split_at(x, sizes, dim=0):
    n = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, n - at) for at in range(0, max(n, 1), sizes)]
    at, parts = 0, []
    for size in sizes:
        index = [slice(None)] * x.ndim
        index[dim] = slice(at, at + size)
        parts.append(x[tuple(index)])
        at += size
    return parts


def in_chunks(x, chunks, dim=0):
    return split_at(x, max(1, -(-x.shape[dim] // chunks)), dim)


def in_sections(x, how, dim=0):
    n = x.shape[dim]
    if isinstance(how, int):
        sizes = [n // how + (i < n % how) for i in range(how)]
    else:
        ends = [min(e if e >= 0 else n + e, n) for e in (*how, n)]
        sizes = [max(b - a, 0) for a, b in zip((0, *ends), ends, strict=False)]
    return split_at(x, sizes, dim)


def like(value):
    """Of a constant: x, *args -> its shape."""
    return lambda x, *args, dtype=None, **_: aicf.broadcast_to(
        x.graph.constant(value, dtype or x.dtype), x.shape
    )


def take_one(x, dim, index):
    at = [slice(None)] * x.ndim
    at[dim] = index
    return x[tuple(at)]


def part_of(x, dim, start, length):
    at = [slice(None)] * x.ndim
    at[dim] = slice(start, start + length)
    return x[tuple(at)]


def with_beta(product):
    def call(c, a, b, beta=1, alpha=1):
        y = product(a, b) * alpha if alpha != 1 else product(a, b)
        if beta == 0:  # what c holds does not count, not even NaN
            return y + aicf.zeros_like(c)
        return (c * beta if beta != 1 else c) + y

    return call


AXES = ("dim", "keepdim")
for _fn in ("sum", "prod", "mean", "all", "any", "median", "logsumexp", "argmax", "argmin"):
    SAID_AS[_fn] = by_axis(getattr(aicf, _fn), *AXES)
for _fn in ("softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin"):
    SAID_AS[_fn] = by_axis(getattr(aicf, _fn), "dim")
SAID_AS |= {
    "special.softmax": SAID_AS["softmax"],
    "special.log_softmax": SAID_AS["log_softmax"],
    "nn.functional.softmin": by_axis(aicf.softmin, "dim"),
    "all": lambda x, *a, **k: by_axis(aicf.all, *AXES)(truth(x), *a, **k),
    "any": lambda x, *a, **k: by_axis(aicf.any, *AXES)(truth(x), *a, **k),
    "amax": by_axis(aicf.max, *AXES),
    "amin": by_axis(aicf.min, *AXES),
    "aminmax": lambda x, **k: (by_axis(aicf.min)(x, **k), by_axis(aicf.max)(x, **k)),
    "max": extreme(aicf.max, aicf.argmax, aicf.maximum),
    "min": extreme(aicf.min, aicf.argmin, aicf.minimum),
    "var": corrected(aicf.var),
    "std": corrected(aicf.std),
    "var_mean": lambda x, *a, **k: (
        corrected(aicf.var)(x, *a, **k),
        corrected(lambda x, correction=1, **k: aicf.mean(x, **k))(x, *a, **k),
    ),
    "std_mean": lambda x, *a, **k: (
        corrected(aicf.std)(x, *a, **k),
        corrected(lambda x, correction=1, **k: aicf.mean(x, **k))(x, *a, **k),
    ),
    "logical_and": of_truth(aicf.logical_and),
    "logical_or": of_truth(aicf.logical_or),
    "logical_xor": of_truth(aicf.logical_xor),
    "logical_not": of_truth(aicf.logical_not),
    "where": lambda c, a, b: aicf.where(c, a, b),
    "cat": lambda xs, dim=0: aicf.concat([x for x in xs if x.shape != (0,)] or xs, dim),
    "stack": lambda xs, dim=0: aicf.stack(xs, dim),
    "clamp": lambda x, lo=None, hi=None, min=None, max=None: bounded(
        x, lo if min is None else min, hi if max is None else max
    ),
    "clamp_min": aicf.maximum,
    "clamp_max": aicf.minimum,
    "div": divided,
    "true_divide": aicf.div,
    "eq": aicf.equal,
    "ge": aicf.greater_equal,
    "gt": aicf.greater,
    "le": aicf.less_equal,
    "lt": aicf.less,
    "ne": aicf.not_equal,
    "rsub": lambda a, b, alpha=1: b - a * alpha,
    "sub": lambda a, b, alpha=1: a - b * alpha if alpha != 1 else a - b,
    "add": lambda a, b, alpha=1: a + b * alpha if alpha != 1 else a + b,
    "__radd__": lambda a, b: b + a,
    "__rsub__": lambda a, b: b - a,
    "__rmul__": lambda a, b: b * a,
    "__rdiv__": lambda a, b: b / a,
    "__rpow__": lambda a, b: b**a,
    "__rmod__": lambda a, b: b % a,
    "__rmatmul__": lambda a, b: b @ a,
    "__rand__": lambda a, b: b & a,
    "__ror__": lambda a, b: b | a,
    "__rxor__": lambda a, b: b ^ a,
    "__getitem__": lambda x, i: x[i],
    "T": lambda x: x.T,
    "mT": lambda x: x.transpose(-1, -2),
    "t": lambda x: x.T,
    "acosh": aicf.acosh,
    "bool": lambda x: truth(x),
    "unsqueeze": lambda x, dim: aicf.expand_dims(x, dim),
    "squeeze": lambda x, dim=None: aicf.squeeze(x, one_sized(x, dim)),
    "expand": lambda x, *s: aicf.broadcast_to(x, kept_sizes(x, s)),
    "expand_as": lambda x, y: aicf.broadcast_to(x, y.shape),
    "reshape": lambda x, s: x.reshape(s),
    "reshape_as": lambda x, y: x.reshape(y.shape),
    "view": lambda x, *s: x.reshape(s[0] if isinstance(s[0], (tuple, list)) else s),
    "view_as": lambda x, y: x.reshape(y.shape),
    "ravel": lambda x: x.reshape((-1,)),
    "flatten": lambda x, start_dim=0, end_dim=-1: flattened(x, start_dim, end_dim),
    "unflatten": lambda x, dim, sizes: unflattened(x, dim, sizes),
    "permute": lambda x, *d: x.permute(d[0] if isinstance(d[0], (tuple, list)) else d),
    "movedim": aicf.moveaxis,
    "swapaxes": aicf.transpose,
    "select": take_one,
    "narrow": lambda x, dim, start, length: part_of(x, dim, start, length),
    "split": split_at,
    "split_with_sizes": split_at,
    "unsafe_split": split_at,
    "chunk": in_chunks,
    "unsafe_chunk": in_chunks,
    "tensor_split": in_sections,
    "hsplit": lambda x, how: in_sections(x, how, 0 if x.ndim == 1 else 1),
    "vsplit": lambda x, how: in_sections(x, how, 0),
    "dsplit": lambda x, how: in_sections(x, how, 2),
    "unbind": lambda x, dim=0: [take_one(x, dim, i) for i in range(x.shape[dim])],
    "flip": lambda x, dims: aicf.flip(x, dims),
    "fliplr": lambda x: aicf.flip(x, 1),
    "flipud": lambda x: aicf.flip(x, 0),
    "roll": lambda x, shifts, dims=(): aicf.roll(x, shifts, dims if dims != () else None),
    "repeat": lambda x, *n: aicf.tile(x, n[0] if isinstance(n[0], (tuple, list)) else n),
    "repeat_interleave": lambda x, n, dim=None, **_: aicf.repeat(x, n, dim),
    "zeros_like": like(0),
    "ones_like": like(1),
    "full_like": lambda x, v, **k: like(v)(x, **k),
    "mm": aicf.matmul,
    "bmm": aicf.matmul,
    "mv": aicf.matmul,
    "dot": aicf.matmul,
    "inner": lambda a, b: (
        a @ b.transpose(-1, -2)
        if a.ndim and b.ndim > 1
        else (a * b).sum(-1)
        if a.ndim and b.ndim
        else a * b
    ),
    "addmm": with_beta(aicf.matmul),
    "addmv": with_beta(aicf.matmul),
    "baddbmm": with_beta(aicf.matmul),
    "addbmm": with_beta(lambda a, b: (a @ b).sum(0)),
    "addr": with_beta(aicf.outer),
    "addcmul": lambda x, a, b, value=1: x + a * b * value,
    "addcdiv": lambda x, a, b, value=1: x + a / b * value,
    "lerp": lambda a, b, w: a + (b - a) * w,
    "linalg.multi_dot": lambda xs: chained(xs),
    "linalg.vecdot": lambda a, b, dim=-1: (a * b).sum(dim),
    "trace": lambda x: aicf.sum(aicf.where(eye_of(x), x, 0.0)),
    "sort": lambda x, dim=-1, descending=False, stable=True: (
        by_axis(aicf.sort)(x, dim=dim, descending=descending),
        by_axis(aicf.argsort)(x, dim=dim, descending=descending),
    ),
    "msort": lambda x: aicf.sort(x, 0),
    "argsort": lambda x, dim=-1, descending=False, stable=True: by_axis(aicf.argsort)(
        x, dim=dim, descending=descending
    ),
    "topk": lambda x, k, dim=-1, largest=True, sorted=True: by_axis(
        lambda x, axis: aicf.topk(x, k, axis, largest)
    )(x, dim=dim),
    "take_along_dim": lambda x, i, dim=None: (
        aicf.take_along_axis(x.reshape((-1,)), i.reshape((-1,)), 0)
        if dim is None
        else aicf.take_along_axis(x, wrapped(i, x.shape[dim]), dim)
    ),
    "index_add": lambda x, dim, i, y, alpha=1: aicf.index_add(x, dim, i, y * alpha),
    "take": lambda x, i: aicf.take(x.reshape((-1,)), wrapped(i, int(np.prod(x.shape)))),
    "nn.functional.embedding": lambda table, i, **k: aicf.embedding(i, table, **k),
    "nn.functional.one_hot": lambda x, num_classes: aicf.one_hot(x, num_classes, "int64"),
    "tensordot": lambda a, b, dims=2: aicf.tensordot(a, b, dims),
    "einsum": lambda xs, equation: aicf.einsum(equation, *xs),
    "round": lambda x, decimals=0: (
        aicf.round(x) if not decimals else refuse("round has no decimals")
    ),
    "rad2deg": lambda x: in_float(lambda x: x * (180 / np.pi))(x),
    "deg2rad": lambda x: in_float(lambda x: x * (np.pi / 180))(x),
    "frac": lambda x: x - aicf.trunc(x),
    "sgn": aicf.sign,
    "positive": lambda x: x,
    "exp2": aicf.exp2,
    "searchsorted": lambda s, x, out_int32=False, right=False, side=None, sorter=None: searched(
        s, x, out_int32, right, side, sorter
    ),
    "quantile": lambda x, q, dim=None, keepdim=False, interpolation="linear": (
        aicf.quantile(x, q, dim, keepdim)
        if interpolation == "linear"
        else refuse(f"interpolation {interpolation}")
    ),
}


def refuse(why):
    raise aicf.Unsupported(why)


def bounded(x, lo, hi):
    if lo is not None:
        x = aicf.maximum(x, lo)
    return x if hi is None else aicf.minimum(x, hi)


def one_sized(x, dim):
    if dim is None:
        return None
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d for d in dims if x.ndim and x.shape[d] == 1]


def kept_sizes(x, sizes):
    sizes = list(sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes)
    extra = len(sizes) - x.ndim
    return [x.shape[i - extra] if s == -1 else s for i, s in enumerate(sizes)]


def flattened(x, first, last):
    if x.ndim == 0:
        return x.reshape((1,))
    first, last = first % x.ndim, last % x.ndim
    return x.reshape(
        (*x.shape[:first], int(np.prod(x.shape[first : last + 1])), *x.shape[last + 1 :])
    )


def unflattened(x, dim, sizes):
    dim, sizes = dim % x.ndim, list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[dim] // -int(np.prod(sizes))
    return x.reshape((*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


def eye_of(x):
    return x.graph.constant(np.eye(*x.shape, dtype=bool))


def chained(xs):
    result = xs[0]
    for x in xs[1:]:
        result = result @ x
    return result


def searched(s, x, out_int32, right, side, sorter):
    if sorter is not None:
        s = aicf.take_along_axis(s, sorter, -1)
    found = aicf.searchsorted(s, x, right=right or side == "right")
    return found.cast("int32") if out_int32 else found


def searched_in(x, bounds, out_int32=False, right=False):
    return searched(bounds, x, out_int32, right, None, None)


def filled(x, where, value):
    return aicf.where(
        where, aicf.cast(value, x.dtype) if isinstance(value, aicf.Value) else value, x
    )


def of_ints(fn):
    return lambda x, **k: aicf.cast(x, fn)


SAID_AS |= {
    "atleast_1d": lambda *xs: [at_least(x, 1) for x in flat(xs)],
    "atleast_2d": lambda *xs: [at_least(x, 2) for x in flat(xs)],
    "atleast_3d": lambda *xs: [at_least(x, 3) for x in flat(xs)],
    "hstack": lambda xs: aicf.concat([at_least(x, 1) for x in xs], 0 if xs[0].ndim < 2 else 1),
    "vstack": lambda xs: aicf.concat([at_least(x, 2) for x in xs], 0),
    "dstack": lambda xs: aicf.concat([at_least(x, 3) for x in xs], 2),
    "bucketize": searched_in,
    "masked_fill": filled,
    "bitwise_not": lambda x: ~x,
    "broadcast_tensors": lambda *xs: aicf.broadcast_arrays(list(xs)),
    "meshgrid": lambda *xs, indexing="ij": aicf.meshgrid(flat(xs), indexing),
    "linalg.cross": lambda a, b, dim=-1: aicf.cross(a, b, dim),
    "linalg.vector_norm": lambda x, ord=2, dim=None, keepdim=False, dtype=None: aicf.vector_norm(
        x.cast(dtype) if dtype else x, dim, keepdim, ord
    ),
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: diagonal_of(x, offset, dim1, dim2),
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: diagonal_of(x, offset, dim1, dim2),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: (
        x
        if n == 0
        else aicf.diff(aicf.concat([v for v in (prepend, x, append) if v is not None], dim), n, dim)
    ),
    "float_power": lambda a, b: (
        a.cast("float64") ** (b.cast("float64") if isinstance(b, aicf.Value) else b)
    ),
    "isposinf": lambda x: aicf.equal(x, np.inf),
    "isneginf": lambda x: aicf.equal(x, -np.inf),
    "count_nonzero": lambda x, dim=None: aicf.count_nonzero(x, dim),
    "dist": lambda a, b, p=2: aicf.vector_norm(a - b, ord=p),
    "double": of_ints("float64"),
    "float": of_ints("float32"),
    "half": of_ints("float16"),
    "bfloat16": of_ints("bfloat16"),
    "int": of_ints("int32"),
    "long": of_ints("int64"),
    "byte": of_ints("uint8"),
    "zeros_like": lambda x, dtype=None, **_: aicf.zeros_like(x, dtype),
    "ones_like": lambda x, dtype=None, **_: aicf.ones_like(x, dtype),
    "full_like": lambda x, v, dtype=None, **_: aicf.full_like(x, v, dtype),
    "nn.functional.dropout": lambda x, p=0.5, training=True: aicf.dropout(x, p) if training else x,
    "xlogy": None,
    "outer": lambda a, b: aicf.outer(a, b),
    "signal.windows": None,
}
SAID_AS = {name: fn for name, fn in SAID_AS.items() if fn is not None}


def sliding(x, axis, size, step):
    """Tensor.unfold: windows of an axis."""
    count = (x.shape[axis] - size) // step + 1
    return aicf.stack([part_of(x, axis, i * step, size) for i in range(count)], axis).moveaxis(
        axis % x.ndim + 1, -1
    )


def by_norm(x, p=2, dim=None, keepdim=False, dtype=None):
    x = x.cast(dtype) if dtype else x
    return by_axis(lambda x, axis=None, keepdims=False: aicf.vector_norm(x, axis, keepdims, p))(
        x, dim=dim, keepdim=keepdim
    )


SAID_AS |= {
    "unfold": sliding,
    "lerp": aicf.lerp,
    "hstack": aicf.hstack,
    "vstack": aicf.vstack,
    "dstack": aicf.dstack,
    "column_stack": aicf.column_stack,
    "atleast_1d": lambda *xs: [aicf.atleast_1d(x) for x in flat(xs)],
    "atleast_2d": lambda *xs: [aicf.atleast_2d(x) for x in flat(xs)],
    "atleast_3d": lambda *xs: [aicf.atleast_3d(x) for x in flat(xs)],
    "block_diag": lambda *xs: aicf.block_diag(flat(xs)),
    "nansum": by_axis(aicf.nansum, *AXES),
    "nanmean": by_axis(aicf.nanmean, *AXES),
    "trapezoid": lambda y, x=None, dim=-1, dx=1.0: aicf.trapezoid(y, x, dx, dim),
    "trapz": lambda y, x=None, dim=-1, dx=1.0: aicf.trapezoid(y, x, dx, dim),
    "cumulative_trapezoid": lambda y, x=None, dim=-1, dx=1.0: aicf.cumulative_trapezoid(
        y, x, dx, dim
    ),
    "cov": lambda x, correction=1, fweights=None, aweights=None: (
        aicf.cov(x, correction) if fweights is None and aweights is None else refuse("weights")
    ),
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: aicf.nan_to_num(
        x, nan or 0.0, posinf, neginf
    ),
    "linalg.matrix_power": lambda x, n: aicf.matrix_power(x, n),
    "linalg.vander": lambda x, N=None: aicf.vander(x, N, True),
    "diagflat": lambda x, offset=0: aicf.diag(x.reshape((-1,)), offset),
    "diag_embed": lambda x, offset=0, dim1=-2, dim2=-1: (
        aicf.diag_embed(x, offset) if (dim1, dim2) == (-2, -1) else refuse("other axes")
    ),
    "masked_fill": filled,
    "isin": lambda x, values, assume_unique=False, invert=False: (
        aicf.logical_not(aicf.isin(x, values)) if invert else aicf.isin(x, values)
    ),
    "select_scatter": lambda x, y, dim, index: aicf.slice_scatter(
        x, aicf.expand_dims(y, dim), dim, index % x.shape[dim], index % x.shape[dim] + 1
    ),
    "slice_scatter": lambda x, y, dim=0, start=None, end=None, step=1: aicf.slice_scatter(
        x, y, dim, start or 0, end, step
    ),
    "norm": lambda x, p=2, dim=None, keepdim=False, dtype=None: by_norm(
        x, 2 if p in ("fro", None) else p, dim, keepdim, dtype
    ),
    "masked.norm": lambda x, p, *a, mask=None, **k: by_norm(
        x
        if mask is None
        else aicf.where(aicf.broadcast_to(mask, x.shape), x, np.inf if p < 0 else 0.0),
        p,
        *a,
        **k,
    ),
    "nn.functional.pad": lambda x, widths, mode="constant", value=None: padded(
        x, widths, mode, value
    ),
    "constant_pad_nd": lambda x, widths, value=0: padded(x, widths, "constant", value),
    "nn.functional.scaled_dot_product_attention": lambda q, k, v, m=None, dropout_p=0.0, **o: (
        refuse("dropout draws other numbers")
        if dropout_p
        else aicf.scaled_dot_product_attention(q, k, v, m, **o)
    ),
    **dict.fromkeys(
        ("grid_sampler_2d", "grid_sampler_3d"),
        lambda x, grid, mode, padding, align: aicf.grid_sample(
            x,
            grid,
            ("bilinear", "nearest", "bicubic")[mode],
            ("zeros", "border", "reflection")[padding],
            align,
        ),
    ),
    "cdist": lambda a, b, p=2.0, compute_mode=None: aicf.cdist(a, b, p),
    "nn.functional.embedding_bag": lambda w, i, offsets=None, **k: aicf.embedding_bag(
        i, w, offsets, **k
    ),
}


def padded(x, widths, mode, value):
    pairs = [tuple(widths[i : i + 2]) for i in range(0, len(widths), 2)][::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    names = {"replicate": "edge", "circular": "wrap"}
    if mode == "constant":
        return aicf.pad(x, pairs, value or 0)
    return aicf.pad(x, pairs, mode=names.get(mode, mode))


def at_least(x, rank):
    shape = {0: (1,) * rank, 1: {1: x.shape, 2: (1, *x.shape), 3: (1, *x.shape, 1)}[rank]}.get(
        x.ndim, (*x.shape, *(1,) * (rank - x.ndim))
    )
    return x.reshape(shape)


def diagonal_of(x, offset, dim1, dim2):
    rest = [d for d in range(x.ndim) if d not in (dim1 % x.ndim, dim2 % x.ndim)]
    return aicf.diagonal(x.permute((*rest, dim1 % x.ndim, dim2 % x.ndim)), offset)


def taken_along(x, i, dim):
    if dim is None:
        x, i, dim = x.reshape((-1,)), i.reshape((-1,)), 0
    return aicf.take_along_axis(x, wrapped(i, x.shape[dim]), dim)


def wrapped(indices, n):
    return aicf.where(indices < 0, indices + n, indices)


def lower_median(x, dim=None, keepdim=False):
    """PyTorch's: of an even number the lower of the two in the middle; and where it lies."""
    if dim is None:
        return aicf.sort(x.reshape((-1,)), 0)[(int(np.prod(x.shape)) - 1) // 2]

    def call(x, axis, keepdims):
        at, n = aicf.argsort(x, axis), x.shape[axis]
        place = part_of(at, axis, (n - 1) // 2, 1)
        value = aicf.take_along_axis(x, place, axis)
        return tuple(v if keepdims else aicf.squeeze(v, axis) for v in (value, place))

    return by_axis(call)(x, dim=dim, keepdim=keepdim)


def masked(fn, identity):
    """A reduction of what a mask lets through."""

    def call(x, *args, mask=None, **kwargs):
        if mask is not None:
            x = aicf.where(aicf.broadcast_to(mask, x.shape), x, identity)
        return SAID_AS[fn](x, *args, **kwargs)

    return call


SAID_AS["median"] = lower_median
for _fn, _identity in {
    "sum": 0.0,
    "prod": 1.0,
    "amax": -np.inf,
    "amin": np.inf,
    "argmax": -np.inf,
    "argmin": np.inf,
    "cumsum": 0.0,
    "cumprod": 1.0,
    "softmax": -np.inf,
    "log_softmax": -np.inf,
    "logsumexp": -np.inf,
}.items():
    SAID_AS[f"masked.{_fn}"] = masked(_fn, _identity)


def meaning_of(name):
    """The function that stands for a PyTorch op, or None."""
    if name in SAID_AS:
        return SAID_AS[name]
    last = name.rpartition(".")[2].lstrip("_")
    fn = getattr(aicf, last, None)
    return fn if callable(fn) and not inspect.isclass(fn) else None


# ---- one sample


class Feed:
    """Makes the inputs of a graph of the tensors among a sample's arguments."""

    def __init__(self, torch, g):
        self.torch, self.g, self.arrays = torch, g, {}

    def __call__(self, x):
        if isinstance(x, self.torch.Tensor):
            if x.is_complex() or x.is_sparse:
                raise aicf.DTypeError(f"feed: {x.dtype} has no counterpart")
            name = f"x{len(self.arrays)}"
            self.arrays[name] = x.detach()
            dtype = str(x.dtype).removeprefix("torch.")
            return self.g.input(name, tuple(x.shape), dtype)
        if isinstance(x, self.torch.dtype):
            return str(x).removeprefix("torch.")
        if isinstance(x, (list, tuple)):
            return type(x)([self(part) for part in x]) if type(x) in (list, tuple) else x
        if isinstance(x, dict):
            return {key: self(part) for key, part in x.items()}
        return x


def flat(results):
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return [one for part in results for one in flat(part)]
    return [results]


def run(torch, op, sample):
    """`right`, or (`refused` | `wrong`, why)."""
    fn = meaning_of(op.name)
    if fn is None:
        return "refused", "no function of that meaning"
    g = aicf.Graph("sample")
    feed = Feed(torch, g)
    try:
        values = flat(fn(feed(sample.input), *feed(sample.args), **feed(sample.kwargs)))
        for i, value in enumerate(values):
            if not isinstance(value, aicf.Value):
                return "refused", f"gave {type(value).__name__}"
            g.output(f"y{i}", value)
        step = g.compile(device="cpu")
        got = step(**feed.arrays)
        arrays = [torch.from_dlpack(got[f"y{i}"]) for i in range(len(values))]
        arrays = [(x.float() if x.dtype == torch.bfloat16 else x).numpy() for x in arrays]
    except REFUSALS as error:
        return "refused", f"{type(error).__name__}: {error}"
    except (ValueError, AttributeError, IndexError, NotImplementedError) as error:
        return "refused", f"{type(error).__name__}: {error}"
    wanted = flat(op.op(sample.input, *sample.args, **sample.kwargs))
    wanted = [x for x in wanted if isinstance(x, torch.Tensor)]
    if len(wanted) > len(arrays):
        return "wrong", f"{len(arrays)} results, and PyTorch has {len(wanted)}"
    for have, want in zip(arrays, wanted, strict=False):
        want = want.detach().resolve_conj()
        want = (want.float() if want.dtype == torch.bfloat16 else want).numpy()
        if have.shape != want.shape:
            return "wrong", f"shape {have.shape}, and PyTorch's is {want.shape}"
        if op.name in RANDOM:
            continue
        if want.dtype.kind == "f":
            size = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
            bound = 2e-7 if want.dtype == np.float64 else 2e-3 if want.dtype == np.float16 else 2e-5
            close = np.isclose(have, want, rtol=bound, atol=bound * size, equal_nan=True)
        else:
            close = have == want
        if not np.all(close):
            return "wrong", f"{np.count_nonzero(~close)} of {close.size} elements differ"
    return "right", ""


def samples_of(torch, op, each):
    """An op's samples in float64, or the first dtype that it has."""
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool):
        if dtype in op.dtypes:
            torch.manual_seed(0)
            made = list(op.sample_inputs("cpu", dtype, requires_grad=False))
            return made[:: max(1, len(made) // each)][:each] if each else made
    return []


def count(only=(), each=0):
    """Rows {name, right, refused, wrong, why} of ops with a meaning here."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.filterwarnings("ignore")
    rows = []
    for op in op_db:
        if (only and op.name not in only) or op.name in EXCLUDED:
            continue
        row = collections.Counter()
        why = collections.Counter()
        try:
            samples = samples_of(torch, op, each)
        except RuntimeError as error:
            print(f"{op.name}: {error}", file=sys.stderr)
            continue
        for sample in samples:
            outcome, reason = run(torch, op, sample)
            row[outcome] += 1
            if reason:
                why[f"{outcome}: {reason.splitlines()[0][:140]}"] += 1
        rows.append({"name": op.name + op.variant_test_name, **row, "why": dict(why)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--each", type=int, default=0, help="at most that many samples of an op")
    parser.add_argument("--refused", action="store_true", help="say why, op by op")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = count(args.ops, args.each)
    total = collections.Counter()
    for row in rows:
        for outcome in ("right", "refused", "wrong"):
            total[outcome] += row.get(outcome, 0)
        if args.refused or row.get("wrong"):
            for why, times in row["why"].items():
                if args.refused or why.startswith("wrong"):
                    print(f"{row['name']:<40} {times:>4}  {why}")
    samples = sum(total.values())
    have = sum(row.get("right", 0) > 0 for row in rows)
    whole = sum(row.get("right", 0) > 0 and not row.get("refused") for row in rows)
    print(
        f"{have} of {len(rows)} ops with a meaning here, {whole} with all their samples; "
        f"{total['right']} of {samples} samples right ({total['right'] / max(samples, 1):.1%}), "
        f"{total['refused']} refused, {total['wrong']} wrong"
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
