"""Rows of the table of layers: every option of convolutions and pools in one to three axes."""

import itertools

import aicf
import numpy as np
from layer_cases import layer


def each(value, n):
    return list(np.resize(value, n))


def places(size, kernel, stride, padding, dilation=1, ceil_mode=False):
    """By window of an axis, the places in x and how many of the padding belong to it."""
    windows, end = [], size + padding
    for start in itertools.count(-padding, stride):
        at = [start + t * dilation for t in range(kernel)]
        short = ceil_mode and start < size and (not windows or at[-1] - stride < end - 1)
        if at[-1] >= end and not short:
            return windows
        windows.append(([i for i in at if 0 <= i < size], sum(-padding <= i < end for i in at)))


def pooled(x, how, kernel, stride=None, padding=0, dilation=1, ceil_mode=False, n=2):
    """how(elements [..., k], how many with padding, their places) by window."""
    lead, size = x.shape[: x.ndim - n], x.shape[x.ndim - n :]
    given = (each(v, n) for v in (kernel, kernel if stride is None else stride, padding, dilation))
    axes = [places(*one, ceil_mode) for one in zip(size, *given, strict=True)]
    return gathered(x, axes, how, lead, size)


def gathered(x, axes, how, lead, size):
    flat, parts = x.reshape(*lead, -1), []
    for window in itertools.product(*axes):
        at = [np.ravel_multi_index(i, size) for i in itertools.product(*(w[0] for w in window))]
        parts.append(how(flat[..., at], np.prod([w[1] for w in window]), np.array(at)))
    return np.stack(parts, -1).reshape(*lead, *map(len, axes))


def maximum(part, count, at):
    return part.max(-1)


def index(part, count, at):
    return at[part.argmax(-1)]


def average(part, count, at):
    return part.sum(-1) / count


def average_inside(part, count, at):
    return part.mean(-1)


SHAPES = {1: (2, 3, 9), 2: (2, 5, 6), 3: (2, 4, 5, 4)}  # of two axes without one of channels
POOLS = (
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "dilation": 2, "stride": 1, "padding": 1},
)
for _n, _o in itertools.product((1, 2, 3), POOLS):
    _given = {("kernel" if k == "kernel_size" else k): v for k, v in _o.items()} | {"n": _n}
    _label = "_".join(map(str, _o.values()))
    layer(
        f"max_pool{_n}d_{_label}",
        {"x": SHAPES[_n]},
        lambda x, _n=_n, _o=_o: getattr(aicf, f"max_pool{_n}d")(x, **_o),
        lambda x, _g=_given: pooled(x, maximum, **_g),
        lambda t, F, x, _n=_n, _o=_o: getattr(F, f"max_pool{_n}d")(x, **_o),
    )
for _n in (1, 2, 3):
    layer(
        f"max_pool{_n}d_of_ties",
        lambda rng, _n=_n: {"x": np.round(rng.uniform(-1, 1, SHAPES[_n]))},
        lambda x, _n=_n: aicf.square(getattr(aicf, f"max_pool{_n}d")(x, 3, 1, 1)),
        lambda x, _n=_n: pooled(x, maximum, 3, 1, 1, n=_n) ** 2,
        lambda t, F, x, _n=_n: getattr(F, f"max_pool{_n}d")(x, 3, 1, 1) ** 2,
        smooth=False,
    )
    for _sizes in (3, (2,) + (None,) * (_n - 1)):
        _axes = [c or SHAPES[_n][a - _n] for a, c in enumerate(np.resize(_sizes, _n))]

        def _adaptive(x, how, _n=_n, _axes=_axes):
            size = x.shape[x.ndim - _n :]
            spans = [
                [(range(i * s // c, -(-(i + 1) * s // c)), 1) for i in range(c)]
                for s, c in zip(size, _axes, strict=True)
            ]
            return gathered(x, spans, how, x.shape[: x.ndim - _n], size)

        for _kind, _how in (("max", maximum), ("avg", average_inside)):
            _name = f"adaptive_{_kind}_pool{_n}d"
            layer(
                f"{_name}_{_sizes}",
                {"x": SHAPES[_n]},
                lambda x, _f=_name, _s=_sizes: getattr(aicf, _f)(x, _s),
                lambda x, _a=_adaptive, _h=_how: _a(x, _h),
                lambda t, F, x, _f=_name, _s=_sizes: getattr(F, _f)(x, _s),
            )
for _n, _inside in itertools.product((1, 2, 3), (True, False)):
    _o = {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}
    layer(
        f"avg_pool{_n}d_{_inside}",
        {"x": SHAPES[_n]},
        lambda x, _n=_n, _o=_o, _i=_inside: getattr(aicf, f"avg_pool{_n}d")(
            x, **_o, count_include_pad=_i
        ),
        lambda x, _n=_n, _i=_inside: pooled(
            x, average if _i else average_inside, 3, 2, 1, 1, True, _n
        ),
        lambda t, F, x, _n=_n, _o=_o, _i=_inside: getattr(F, f"avg_pool{_n}d")(
            x, **_o, count_include_pad=_i
        ),
    )
layer(
    "avg_pool2d_divisor",
    {"x": (2, 5, 6)},
    lambda x: aicf.avg_pool2d(x, 2, divisor_override=3),
    lambda x: pooled(x, average, 2) * 4 / 3,
    lambda t, F, x: F.avg_pool2d(x, 2, divisor_override=3),
)
for _p, _n in ((2.0, 1), (3.0, 2), (1.5, 3)):
    layer(
        f"lp_pool{_n}d_{_p}",
        lambda rng, _n=_n: {"x": rng.uniform(0.2, 2, SHAPES[_n])},
        lambda x, _n=_n, _p=_p: getattr(aicf, f"lp_pool{_n}d")(x, _p, 2, ceil_mode=True),
        lambda x, _n=_n, _p=_p: pooled(
            x, lambda part, count, at: ((part**_p).sum(-1) * 2**_n / len(at)) ** (1 / _p),
            2, ceil_mode=True, n=_n,
        ),
        lambda t, F, x, _n=_n, _p=_p: getattr(F, f"lp_pool{_n}d")(x, _p, 2, ceil_mode=True),
    )  # fmt: skip
for _n in (1, 2, 3):

    def _unpooled(x, n):
        y = np.zeros((*x.shape[: x.ndim - n], int(np.prod(x.shape[x.ndim - n :]))))
        at = pooled(x, index, 2, n=n).reshape(*y.shape[:-1], -1)
        part = pooled(x, maximum, 2, n=n).reshape(at.shape)
        np.put_along_axis(y, at, part, -1)
        return y.reshape(x.shape) ** 2

    def _there_and_back(x, n):
        y, i = getattr(aicf, f"max_pool{n}d")(x, 2, return_indices=True)
        return aicf.square(getattr(aicf, f"max_unpool{n}d")(y, i, 2, output_size=x.shape))

    def _torch_unpooled(t, F, x, n):
        y, i = getattr(F, f"max_pool{n}d")(x, 2, return_indices=True)
        return getattr(F, f"max_unpool{n}d")(y, i, 2, output_size=x.shape[-n:]) ** 2

    layer(
        f"max_unpool{_n}d",
        {"x": SHAPES[_n]},
        lambda x, _n=_n: _there_and_back(x, _n),
        lambda x, _n=_n: _unpooled(x, _n),
        lambda t, F, x, _n=_n: _torch_unpooled(t, F, x, _n),
    )


def conv(x, w, b=None, stride=1, edges=((0, 0),), dilation=1, groups=1):
    """One output after the other, of any count of axes."""
    n = w.ndim - 2
    stride, dilation = each(stride, n), each(dilation, n)
    x = np.pad(x, [(0, 0), (0, 0), *edges])
    size = [
        (m - (k - 1) * d - 1) // s + 1
        for m, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *size))
    depth, outs = w.shape[1], w.shape[0] // groups
    for o, *at in itertools.product(range(w.shape[0]), *map(range, size)):
        keys = [
            slice(i * s, i * s + (k - 1) * d + 1, d)
            for i, s, k, d in zip(at, stride, w.shape[2:], dilation, strict=True)
        ]
        part = x[(slice(None), slice(o // outs * depth, (o // outs + 1) * depth), *keys)]
        y[(slice(None), o, *at)] = (part * w[o]).sum(tuple(range(1, n + 2)))
    return y if b is None else y + b.reshape(-1, *[1] * n)


for _label, _x, _w, _o in (
    ("plain", (2, 2, 3, 4, 3), (3, 2, 2, 3, 2), {}),
    ("options", (1, 4, 5, 4, 5), (2, 2, 2, 1, 2),
     {"stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (1, 2, 2), "groups": 2}),
):  # fmt: skip
    layer(
        f"conv3d_{_label}",
        {"x": _x, "w": _w, "b": _w[:1]},
        lambda x, w, b, _o=_o: aicf.conv3d(x, w, b, **_o),
        lambda x, w, b, _o=_o: conv(
            x, w, b, _o.get("stride", 1), [(p, p) for p in _o.get("padding", (0, 0, 0))],
            _o.get("dilation", 1), _o.get("groups", 1),
        ),
        lambda t, F, x, w, b, _o=_o: F.conv3d(x, w, b, **_o),
    )  # fmt: skip
for _n in (1, 2, 3):
    layer(
        f"conv{_n}d_same_of_one",
        {"x": (2, 5, 4, 3)[: _n + 1], "w": (3, 2, 2, 4, 2)[: _n + 2]},
        lambda x, w, _n=_n: getattr(aicf, f"conv{_n}d")(x, w, padding="same", dilation=[2]),
        lambda x, w, _n=_n: conv(
            x[None], w, None, 1, [(k - 1, k - 1) for k in w.shape[2:]], 2
        )[0],
        # of even kernels PyTorch warns of a copy; (k - 1)·2 zeros are the same on both sides
        lambda t, F, x, w, _n=_n: getattr(F, f"conv{_n}d")(
            x, w, padding=[k - 1 for k in w.shape[2:]], dilation=2
        ),
    )  # fmt: skip
layer(
    "conv1d_same_of_an_even_kernel",
    {"x": (2, 2, 5), "w": (1, 2, 4)},
    lambda x, w: aicf.conv1d(x, w, padding="same"),
    lambda x, w: conv(x, w, edges=[(1, 2)]),
    lambda t, F, x, w: F.conv1d(F.pad(x, (1, 2)), w),
)
for _o in ({"stride": 2, "output_padding": 1, "padding": 1}, {"dilation": 2, "groups": 2}):
    layer(
        f"conv_transpose3d_{'_'.join(_o)}",
        {"x": (4, 2, 3, 2), "w": (4, 2, 2, 1, 3), "b": (2 * _o.get("groups", 1),)},
        lambda x, w, b, _o=_o: aicf.conv_transpose3d(x, w, b, **_o),
        lambda x, w, b, _o=_o: transposed(x, w, b, **_o),
        lambda t, F, x, w, b, _o=_o: F.conv_transpose3d(x, w, b, **_o),
    )


def transposed(x, w, b, stride=1, padding=0, output_padding=0, dilation=1, groups=1):
    """Of one volume: each element puts its kernel into the result."""
    n, outs = w.ndim - 2, w.shape[1]
    spans = [
        (m - 1) * stride + dilation * (k - 1) + 1 + output_padding
        for m, k in zip(x.shape[1:], w.shape[2:], strict=True)
    ]
    y = np.zeros((groups * outs, *spans))
    for c, *at in np.ndindex(x.shape):
        g = c // (x.shape[0] // groups)
        for tap in np.ndindex(w.shape[2:]):
            to = [a * stride + t * dilation for a, t in zip(at, tap, strict=True)]
            y[(slice(g * outs, (g + 1) * outs), *to)] += x[(c, *at)] * w[(c, slice(None), *tap)]
    y = y[(slice(None), *(slice(padding, m - padding) for m in spans))]
    return y + b.reshape(-1, *[1] * n)


def columns(x, kernel, stride=1, padding=0, dilation=1):
    """[N, C·kh·kw, windows], one element of the kernel after the other."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in each(padding, 2))])
    size = [m - (k - 1) * dilation for m, k in zip(x.shape[2:], kernel, strict=True)]
    parts = [
        x[:, :, i * dilation :, j * dilation :][:, :, : size[0], : size[1]][
            :, :, ::stride, ::stride
        ].reshape(*x.shape[:2], -1)
        for i, j in np.ndindex(kernel)
    ]
    return np.stack(parts, 2).reshape(x.shape[0], -1, parts[0].shape[-1])


def folded(y, size, kernel, **options):
    """By the windows of a picture of its own places."""
    single = y.ndim == 2
    y = y[None] if single else y
    shape = (1, y.shape[1] // np.prod(kernel), *size)
    at = columns(np.arange(1, np.prod(shape) + 1).reshape(shape), kernel, **options)[0]
    x = np.zeros((y.shape[0], np.prod(shape) + 1))
    for place in np.ndindex(at.shape):
        x[:, at[place]] += y[(slice(None), *place)]
    x = x[:, 1:].reshape(-1, *shape[1:])
    return x[0] if single else x


for _o in ({}, {"dilation": 2, "padding": (1, 0)}, {"stride": 2, "padding": 1}):
    layer(
        f"unfold_{'_'.join(_o)}",
        {"x": (2, 3, 5, 4)},
        lambda x, _o=_o: aicf.unfold(x, (2, 2), **_o),
        lambda x, _o=_o: columns(x, (2, 2), **_o),
        lambda t, F, x, _o=_o: F.unfold(x, (2, 2), **_o),
    )
    layer(
        f"fold_{'_'.join(_o)}",
        {"x": columns(np.zeros((2, 3, 5, 4)), (2, 2), **_o).shape} if _o else {"x": (12, 12)},
        lambda x, _o=_o: aicf.fold(x, (5, 4), (2, 2), **_o),
        lambda x, _o=_o: folded(x, (5, 4), (2, 2), **_o),
        lambda t, F, x, _o=_o: F.fold(x, (5, 4), (2, 2), **_o),
    )
