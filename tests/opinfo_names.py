"""How aicf says each of PyTorch's ops: a public function, or an expression of a few.

Takes PyTorch's arguments in PyTorch's order, tensors being Values. `opinfo` runs the table; the
expressions are in `opinfo_said`.
"""

import inspect
import math

import aicf
import numpy as np
from opinfo_said import (
    AXES,
    along,
    as_state,
    attention,
    bags,
    both_truth,
    bounded,
    by_axis,
    by_norm,
    cast_to,
    chained,
    chosen,
    converted,
    corrected,
    diagonal_of,
    diagonal_put,
    divided,
    drawn,
    entropy,
    expanded,
    extreme,
    filled,
    flat,
    flattened,
    gathered,
    grids,
    hot,
    in_chunks,
    in_float,
    in_sections,
    index_reduced,
    indexed,
    inner,
    integers,
    integers_like,
    kept_by,
    kth,
    leaky,
    lifted,
    lower_median,
    mask_scattered,
    masked,
    masked_mean,
    masked_norm,
    masked_normalize,
    masked_var,
    mean_beside,
    moved,
    multi_head,
    nan_median,
    native_group_norm,
    native_layer_norm,
    normal_of,
    numbers,
    of_graph,
    of_truth,
    of_uniform,
    one_sized,
    ordered,
    padded,
    part_of,
    place_as,
    put_at,
    put_line,
    ranked,
    renormed,
    repeated,
    reshaped,
    rolled,
    rounded,
    safe_softmax,
    sampled,
    scaled,
    scattered,
    searched,
    shares_of,
    sizes_in,
    sliding,
    split_at,
    spread,
    summed_to,
    table_rows,
    take_one,
    taken_along,
    triplets,
    truth,
    unflattened,
    uniform,
    whole_sum,
    with_beta,
    wrapped,
)


def _names(text):
    return text.split()


# What has no meaning in a static graph of real tensors, or is no function of tensors.
WITHOUT_MEANING = {
    "complex numbers": _names(
        "angle cdouble cfloat chalf complex conj conj_physical imag polar real "
        "resolve_conj resolve_neg view_as_complex view_as_real mH H isreal vdot "
        "fft.fft fft.fft2 fft.fftn fft.fftshift fft.hfft fft.hfft2 fft.hfftn fft.ifft "
        "fft.ifft2 fft.ifftn fft.ifftshift fft.ihfft fft.ihfft2 fft.ihfftn fft.irfft "
        "fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftn istft stft"
    ),
    "the shape depends on the data": _names(
        "argwhere masked_select nonzero nonzero_static unique unique_consecutive "
        "combinations item histogramdd histc histogram bincount"
    ),
    "storage and strides": _names(
        "as_strided as_strided_copy as_strided_scatter empty "
        "empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ "
        "resize_as_ to_sparse sparse.mm sparse.sampled_addmm hash_tensor nextafter frexp"
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
# What would have one, and aicf does not do.
OUT_OF_SCOPE = {
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
}
EXCLUDED = {
    name: reason
    for group in (WITHOUT_MEANING, OUT_OF_SCOPE)
    for reason, names in group.items()
    for name in names
}

# Results that two right implementations do not share: shape and dtype alone are compared.
RANDOM = set(
    _names(
        "bernoulli cauchy exponential geometric log_normal normal rand_like randint "
        "randint_like randn randn_like uniform multinomial nn.functional.dropout "
        "nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout "
        "nn.functional.feature_alpha_dropout nn.functional.rrelu"
    )
)


def random(name, sample):
    """Whether a sample's result is drawn."""
    if sample.kwargs.get("dropout_p"):
        return True
    if name == "nn.functional.multi_head_attention_forward":
        return sample.args[9] > 0 and sample.kwargs.get("training", True)
    return name in RANDOM


# ---- the table

MASKED = {
    "sum": (by_axis(aicf.sum, *AXES), 0.0),
    "prod": (by_axis(aicf.prod, *AXES), 1.0),
    "amax": (by_axis(aicf.max, *AXES), -np.inf),
    "amin": (by_axis(aicf.min, *AXES), np.inf),
    "argmax": (place_as(aicf.argmax), -np.inf),
    "argmin": (place_as(aicf.argmin), np.inf),
    "cumsum": (by_axis(aicf.cumsum, "dim"), 0.0),
    "cumprod": (by_axis(aicf.cumprod, "dim"), 1.0),
    "softmax": (by_axis(aicf.softmax, "dim"), -np.inf),
    "log_softmax": (by_axis(aicf.log_softmax, "dim"), -np.inf),
    "softmin": (by_axis(aicf.softmin, "dim"), np.inf),
    "logsumexp": (by_axis(aicf.logsumexp, *AXES), -np.inf),
    "median": (lambda *a, **k: nan_median(*a, **k)[0], np.nan),
}


SAID_AS = {
    # reductions
    "sum": whole_sum(by_axis(aicf.sum, *AXES)),
    "prod": whole_sum(by_axis(aicf.prod, *AXES)),
    "nansum": by_axis(aicf.nansum, *AXES),
    "mean": by_axis(aicf.mean, *AXES),
    "nanmean": by_axis(aicf.nanmean, *AXES),
    "all": of_truth(by_axis(aicf.all, *AXES)),
    "any": of_truth(by_axis(aicf.any, *AXES)),
    "amax": by_axis(aicf.max, *AXES),
    "amin": by_axis(aicf.min, *AXES),
    "aminmax": lambda x, **k: (by_axis(aicf.min)(x, **k), by_axis(aicf.max)(x, **k)),
    "max": extreme(aicf.max, aicf.argmax, aicf.maximum),
    "min": extreme(aicf.min, aicf.argmin, aicf.minimum),
    "argmax": by_axis(aicf.argmax, *AXES),
    "argmin": by_axis(aicf.argmin, *AXES),
    "logsumexp": in_float(by_axis(aicf.logsumexp, *AXES)),
    "var": corrected(aicf.var),
    "std": corrected(aicf.std),
    "var_mean": lambda *a, **k: (corrected(aicf.var)(*a, **k), corrected(mean_beside)(*a, **k)),
    "std_mean": lambda *a, **k: (corrected(aicf.std)(*a, **k), corrected(mean_beside)(*a, **k)),
    "median": lower_median,
    "nanmedian": nan_median,
    "quantile": shares_of(aicf.quantile),
    "nanquantile": shares_of(aicf.nanquantile),
    "kthvalue": kth,
    "count_nonzero": by_axis(aicf.count_nonzero, "dim"),
    "norm": by_norm,
    "linalg.vector_norm": lambda x, ord=2, dim=None, keepdim=False, dtype=None: by_norm(
        x, ord, dim, keepdim, dtype
    ),
    "dist": lambda a, b, p=2: aicf.vector_norm(a - b, ord=p),
    "cumsum": whole_sum(by_axis(aicf.cumsum, "dim")),
    "cumprod": whole_sum(by_axis(aicf.cumprod, "dim")),
    "cummax": by_axis(aicf.cummax, "dim"),
    "cummin": by_axis(aicf.cummin, "dim"),
    "trapezoid": lambda y, x=None, dim=-1, dx=1.0: aicf.trapezoid(y, x, dx, dim),
    "trapz": lambda y, x=None, dim=-1, dx=1.0: aicf.trapezoid(y, x, dx, dim),
    "cumulative_trapezoid": lambda y, x=None, dim=-1, dx=1.0: aicf.cumulative_trapezoid(
        y, x, dx, dim
    ),
    "equal": lambda a, b: aicf.all(aicf.equal(a, b)),
    "allclose": lambda a, b, **k: aicf.all(aicf.isclose(a, b, **k)),
    **{f"masked.{name}": masked(*how) for name, how in MASKED.items()},
    "masked.mean": masked_mean,
    "masked.var": masked_var,
    "masked.std": lambda *a, **k: aicf.sqrt(masked_var(*a, **k)),
    "masked.norm": masked_norm,
    "masked.normalize": masked_normalize,
    "masked.logaddexp": lambda a, b, input_mask=None, other_mask=None: aicf.logaddexp(
        kept_by(input_mask, a, -np.inf), kept_by(other_mask, b, -np.inf)
    ),
    # elements
    "logical_and": both_truth(aicf.logical_and),
    "logical_or": both_truth(aicf.logical_or),
    "logical_xor": both_truth(aicf.logical_xor),
    "logical_not": both_truth(aicf.logical_not),
    "where": lambda a, c, b: aicf.where(c, a, b),
    "clamp": bounded,
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
    "sub": scaled(aicf.sub),
    "add": scaled(aicf.add),
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
    "bitwise_not": aicf.bitwise_invert,
    "addcmul": lambda x, a, b, value=1: x + a * b * value,
    "addcdiv": lambda x, a, b, value=1: x + a / b * value,
    "lerp": aicf.lerp,
    "copysign": lifted(aicf.copysign),
    "round": rounded,
    "rad2deg": in_float(lambda x: x * (180 / np.pi)),
    "deg2rad": in_float(lambda x: x * (np.pi / 180)),
    "frac": lambda x: x - aicf.trunc(x),
    "sgn": aicf.sign,
    "positive": lambda x: x,
    "float_power": lambda a, b: (
        a.cast("float64") ** (b.cast("float64") if isinstance(b, aicf.Value) else b)
    ),
    "isposinf": lambda x: aicf.equal(x, np.inf),
    "isneginf": lambda x: aicf.equal(x, -np.inf),
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: aicf.nan_to_num(
        x, nan or 0.0, posinf, neginf
    ),
    "ldexp": lambda x, e: x * aicf.exp2(e.cast(x.dtype)),
    "special.entr": entropy,
    "isin": lambda x, values, assume_unique=False, invert=False: (
        aicf.logical_not(aicf.isin(x, values)) if invert else aicf.isin(x, values)
    ),
    "masked_fill": filled,
    "fill": lambda x, value: aicf.full_like(x, float(numbers(value))),
    "zero_": aicf.zeros_like,
    "zeros_like": lambda x, dtype=None, **_: aicf.zeros_like(x, dtype),
    "ones_like": lambda x, dtype=None, **_: aicf.ones_like(x, dtype),
    "full_like": lambda x, v, dtype=None, **_: aicf.full_like(x, v, dtype),
    # dtypes
    "bool": lambda x, **_: truth(x),
    "double": cast_to("float64"),
    "float": cast_to("float32"),
    "half": cast_to("float16"),
    "bfloat16": cast_to("bfloat16"),
    "int": cast_to("int32"),
    "long": cast_to("int64"),
    "byte": cast_to("uint8"),
    "char": cast_to("int8"),
    "short": cast_to("int16"),
    "to": converted,
    # shapes
    "T": lambda x: x.T,
    "mT": lambda x: x.transpose(-1, -2),
    "t": lambda x: x.T if x.ndim > 1 else x,
    "cat": lambda xs, dim=0: aicf.concat([x for x in xs if x.shape != (0,)] or xs, dim),
    "stack": lambda xs, dim=0: aicf.stack(xs, dim),
    "unsqueeze": lambda x, dim: aicf.expand_dims(x, dim),
    "squeeze": one_sized,
    "expand": expanded,
    "expand_as": lambda x, y: aicf.broadcast_to(x, y.shape),
    "reshape": reshaped,
    "reshape_as": lambda x, y: x.reshape(y.shape),
    "view": reshaped,
    "view_as": lambda x, y: x.reshape(y.shape),
    "ravel": lambda x: x.reshape((-1,)),
    "flatten": flattened,
    "unflatten": unflattened,
    "permute": lambda x, *d: x.permute(sizes_in(d)),
    "transpose": lambda x, a, b: aicf.transpose(x, a, b) if x.ndim else x,
    "movedim": moved,
    "select": take_one,
    "narrow": part_of,
    "slice": lambda x, dim=0, start=None, end=None, step=1: take_one(
        x, dim, slice(start, end, step)
    ),
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
    "roll": rolled,
    "repeat": lambda x, *n: aicf.tile(x, sizes_in(n)),
    "repeat_interleave": repeated,
    "unfold": sliding,
    "sum_to_size": summed_to,
    "hstack": aicf.hstack,
    "vstack": aicf.vstack,
    "dstack": aicf.dstack,
    "column_stack": aicf.column_stack,
    "atleast_1d": lambda *xs: [aicf.atleast_1d(x) for x in flat(xs)],
    "atleast_2d": lambda *xs: [aicf.atleast_2d(x) for x in flat(xs)],
    "atleast_3d": lambda *xs: [aicf.atleast_3d(x) for x in flat(xs)],
    "block_diag": lambda *xs: aicf.block_diag(flat(xs)),
    "broadcast_tensors": lambda *xs: aicf.broadcast_arrays(list(xs)),
    "meshgrid": grids,
    "cartesian_prod": lambda *xs: (
        aicf.stack([x.reshape((-1,)) for x in aicf.meshgrid(list(xs), "ij")], -1)
        if len(xs) > 1
        else xs[0]
    ),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: (
        x
        if n == 0
        else aicf.diff(aicf.concat([v for v in (prepend, x, append) if v is not None], dim), n, dim)
    ),
    "gradient": lambda x, spacing=None, dim=None, edge_order=1: aicf.gradient(
        x,
        [numbers(s) for s in flat(spacing)] if isinstance(spacing, (list, tuple)) else spacing or 1,
        dim,
        edge_order,
    ),
    "diagonal": diagonal_of,
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: diagonal_of(x, offset, dim1, dim2),
    "diagonal_scatter": diagonal_put,
    "diagflat": lambda x, offset=0: aicf.diag(x.reshape((-1,)), offset),
    "diag_embed": lambda x, offset=0, dim1=-2, dim2=-1: aicf.diag_embed(x, offset, dim1, dim2),
    "trace": lambda x: aicf.sum(aicf.diagonal(x)),
    "linalg.matrix_power": aicf.matrix_power,
    "linalg.vander": lambda x, N=None: aicf.vander(x, N, True),
    # copies of views
    **dict.fromkeys(("clone", "contiguous", "alias_copy"), lambda x, **_: x),
    # order and indices
    "sort": ordered,
    "msort": lambda x: aicf.sort(x, 0),
    "argsort": lambda *a, **k: ordered(*a, **k)[1],
    "topk": lambda x, k, dim=-1, largest=True, sorted=True: by_axis(
        lambda x, axis: aicf.topk(x, k, axis, largest)
    )(x, dim=dim),
    "searchsorted": searched,
    "bucketize": lambda x, bounds, **k: searched(bounds, x, **k),
    "__getitem__": indexed,
    "take": lambda x, i: aicf.take(x.reshape((-1,)), wrapped(i, math.prod(x.shape))),
    "take_along_dim": taken_along,
    "gather": gathered,
    "index_select": ranked(aicf.index_select),
    "index_fill": lambda x, dim, i, value: ranked(
        lambda x, dim, i: aicf.index_fill(x, dim, i, value)
    )(x, dim, i),
    "index_copy": ranked(aicf.index_copy),
    "index_add": lambda x, dim, i, y, alpha=1: ranked(aicf.index_add)(x, dim, i, y * alpha),
    "index_put": put_at,
    "put": put_line,
    "index_reduce": index_reduced,
    "scatter": scattered,
    "scatter_add": ranked(aicf.scatter_add),
    "scatter_reduce": ranked(aicf.scatter_reduce),
    "masked_scatter": mask_scattered,
    "select_scatter": lambda x, y, dim, index: aicf.slice_scatter(
        x, aicf.expand_dims(y, dim), dim, index % x.shape[dim], index % x.shape[dim] + 1
    ),
    "slice_scatter": lambda x, y, dim=0, start=None, end=None, step=1: aicf.slice_scatter(
        x, y, dim, start or 0, end, step
    ),
    "unravel_index": aicf.unravel_index,
    # products
    "mm": aicf.matmul,
    "bmm": aicf.matmul,
    "mv": aicf.matmul,
    "dot": aicf.matmul,
    "inner": inner,
    "addmm": with_beta(aicf.matmul),
    "addmv": with_beta(aicf.matmul),
    "baddbmm": with_beta(aicf.matmul),
    "addbmm": with_beta(lambda a, b: (a @ b).sum(0)),
    "addr": with_beta(aicf.outer),
    "linalg.multi_dot": chained,
    "linalg.vecdot": lambda a, b, dim=-1: (a * b).sum(dim),
    "tensordot": lambda a, b, dims=2: aicf.tensordot(a, b, dims),
    "einsum": lambda xs, equation: aicf.einsum(equation, *xs),
    "cross": lambda a, b, dim=None: aicf.cross(a, b, a.shape.index(3) if dim is None else dim),
    "linalg.cross": lambda a, b, dim=-1: aicf.cross(a, b, dim),
    "cdist": lambda a, b, p=2.0, compute_mode=None: aicf.cdist(a, b, p),
    "cov": lambda x, correction=1, fweights=None, aweights=None: aicf.cov(
        x, correction, fweights, aweights
    ),
    "renorm": renormed,
    # layers
    "softmax": by_axis(aicf.softmax, "dim"),
    "log_softmax": by_axis(aicf.log_softmax, "dim"),
    "nn.functional.softmin": by_axis(aicf.softmin, "dim"),
    "torch.ops.aten._safe_softmax.default": safe_softmax,
    "nn.functional.glu": by_axis(aicf.glu, "dim"),
    "nn.functional.normalize": along(aicf.normalize),
    "nn.functional.cosine_similarity": along(aicf.cosine_similarity),
    "nn.functional.pairwise_distance": along(aicf.pairwise_distance),
    "nn.functional.hardtanh": lambda x, min_val=-1.0, max_val=1.0: aicf.hardtanh(
        x, min_val, max_val
    ),
    "nn.functional.rrelu": leaky,
    "nn.functional.dropout": lambda x, p=0.5, training=True: aicf.dropout(x, p) if training else x,
    "nn.functional.one_hot": hot,
    "nn.functional.embedding": table_rows,
    "nn.functional.embedding_bag": bags,
    "nn.functional.pad": padded,
    "constant_pad_nd": lambda x, widths, value=0: padded(x, widths, "constant", value),
    "nn.functional.upsample_nearest": spread,
    "nn.functional.upsample_bilinear": lambda x, **k: spread(
        x, mode="bilinear", align_corners=True, **k
    ),
    "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.multi_head_attention_forward": multi_head,
    "nn.functional.batch_norm": as_state(aicf.batch_norm),
    "nn.functional.instance_norm": as_state(aicf.instance_norm),
    "native_layer_norm": native_layer_norm,
    "native_group_norm": native_group_norm,
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d"), sampled),
    "nn.functional.triplet_margin_with_distance_loss": triplets,
    # drawn
    "rand_like": drawn(),
    "randn_like": lambda x, dtype=None, **_: normal_of(
        x.graph, 0.0, 1.0, x.shape, dtype or x.dtype
    ),
    "randn": of_graph(lambda g, *size, **k: normal_of(g, 0.0, 1.0, sizes_in(size), **k)),
    "randint": of_graph(integers),
    "randint_like": integers_like,
    "normal": of_graph(normal_of),
    "uniform": lambda x, low, high: uniform(x.graph, x.shape, low, high, x.dtype),
    "exponential": of_uniform(lambda u, rate=1.0: -aicf.log(u) / rate),
    "cauchy": of_uniform(lambda u, median=0, sigma=1: aicf.tan(np.pi * (u - 0.5)) * sigma + median),
    "geometric": of_uniform(lambda u, p: aicf.ceil(aicf.log(u) / math.log(1 - p))),
    "log_normal": lambda x, mean=1.0, std=2.0: aicf.exp(
        normal_of(x.graph, mean, std, x.shape, x.dtype)
    ),
    "multinomial": chosen,
}
COPIES = _names(
    "expand permute narrow squeeze t transpose unbind unfold unsqueeze diagonal "
    "split_with_sizes view"
)
SAID_AS |= {f"{name}_copy": SAID_AS[name] for name in COPIES}


def meaning_of(name):
    """The function that stands for a PyTorch op, or None."""
    if name in SAID_AS:
        return SAID_AS[name]
    last = name.rpartition(".")[2].lstrip("_")
    fn = getattr(aicf, last, None)
    return fn if callable(fn) and not inspect.isclass(fn) else None
