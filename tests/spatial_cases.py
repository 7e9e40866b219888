"""Rows of the table of layers for images and signals."""

import itertools
import math

import aicf
import numpy as np
from layer_cases import layer


def conv_transpose(x, w, b, stride, padding, output_padding, groups, dilation):
    """Each element of x puts its kernel into the result, one after the other."""
    n, depth, *sizes = x.shape
    outs, *kernel = w.shape[1:]
    spans = [
        (s - 1) * st + d * (k - 1) + 1 + more
        for s, st, k, d, more in zip(sizes, stride, kernel, dilation, output_padding, strict=True)
    ]
    y = np.zeros((n, groups * outs, *spans))
    for c in range(depth):
        into = slice(c // (depth // groups) * outs, (c // (depth // groups) + 1) * outs)
        for at in itertools.product(*map(range, sizes)):
            for tap in itertools.product(*map(range, kernel)):
                place = [
                    a * s + t * d for a, s, t, d in zip(at, stride, tap, dilation, strict=True)
                ]
                y[(slice(None), into, *place)] += (
                    x[(slice(None), c, *at)][:, None] * w[(c, slice(None), *tap)]
                )
    inside = [slice(p, span - p) for p, span in zip(padding, spans, strict=True)]
    y = y[(slice(None), slice(None), *inside)]
    return y + b.reshape(-1, *[1] * len(sizes))


def conv(x, w, b, stride, padding, dilation, groups):
    """Of signals, one output after the other."""
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding)])
    count = (x.shape[2] - (w.shape[2] - 1) * dilation - 1) // stride + 1
    depth, outs = w.shape[1], w.shape[0] // groups
    y = np.zeros((x.shape[0], w.shape[0], count))
    for o, i in itertools.product(range(w.shape[0]), range(count)):
        g = o // outs
        part = x[:, g * depth : (g + 1) * depth, i * stride :: dilation][..., : w.shape[2]]
        y[:, o, i] = (part * w[o]).sum((1, 2))
    return y + b[:, None]


for _stride, _padding, _dilation, _groups in (
    (1, 0, 1, 1),
    (2, 1, 1, 2),
    (1, 2, 2, 1),
    (3, 0, 1, 4),
):
    _o = {"stride": _stride, "padding": _padding, "dilation": _dilation, "groups": _groups}
    layer(
        f"conv1d_{_stride}_{_padding}_{_dilation}_{_groups}",
        {"x": (2, 4, 9), "w": (4, 4 // _groups, 3), "b": (4,)},
        lambda x, w, b, _o=_o: aicf.conv1d(x, w, b, **_o),
        lambda x, w, b, _o=_o: conv(x, w, b, **_o),
        lambda t, F, x, w, b, _o=_o: F.conv1d(x, w, b, **_o),
    )
for _stride, _padding, _more, _groups, _dilation in (
    (1, 0, 0, 1, 1), (2, 1, 1, 2, 1), (3, 0, 2, 1, 1), (1, 2, 0, 4, 2), (2, 1, 1, 1, 2),
    (2, 3, 1, 1, 1),
):  # fmt: skip
    _o = {"stride": _stride, "padding": _padding, "output_padding": _more, "groups": _groups,
          "dilation": _dilation}  # fmt: skip
    _label = "_".join(map(str, _o.values()))
    for _rank, _name in ((1, "conv_transpose1d"), (2, "conv_transpose2d")):
        layer(
            f"{_name}_{_label}",
            {"x": (2, 4, 4, 3)[: _rank + 2], "w": (4, 3, 3, 2 + (_padding > 0))[: _rank + 2],
             "b": (3 * _groups,)},
            lambda x, w, b, _n=_name, _o=_o: getattr(aicf, _n)(x, w, b, **_o),
            lambda x, w, b, _o=_o, _r=_rank: conv_transpose(
                x, w, b, **{k: v if k == "groups" else [v] * _r for k, v in _o.items()}
            ),
            lambda t, F, x, w, b, _n=_name, _o=_o: getattr(F, _n)(x, w, b, **_o),
        )  # fmt: skip
for _kernel, _options in ((2, {}), (3, {"stride": 1, "padding": 1}), (3, {"stride": 2})):
    for _name, _how in (("max_pool1d", np.max), ("avg_pool1d", np.mean)):
        _fill = -np.inf if _how is np.max else 0.0
        layer(
            f"{_name}_{_kernel}_{_options}",
            {"x": (2, 3, 9)},
            lambda x, _n=_name, _k=_kernel, _o=_options: getattr(aicf, _n)(x, _k, **_o),
            lambda x, _h=_how, _f=_fill, _k=_kernel, _o=_options: _h(
                np.lib.stride_tricks.sliding_window_view(
                    np.pad(x, [(0, 0), (0, 0), (_o.get("padding", 0),) * 2], constant_values=_f),
                    _k, 2,
                )[:, :, :: _o.get("stride", _k)], -1,
            ),
            lambda t, F, x, _n=_name, _k=_kernel, _o=_options: getattr(F, _n)(x, _k, **_o),
        )  # fmt: skip


def adaptive(x, axis, count):
    size = x.shape[axis]
    spans = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    return np.stack([x.take(range(a, b), axis).mean(axis) for a, b in spans], axis)


for _size in (1, 2, 3, 4, 7):
    layer(
        f"adaptive_avg_pool1d_{_size}",
        {"x": (2, 3, 8)},
        lambda x, _s=_size: aicf.adaptive_avg_pool1d(x, _s),
        lambda x, _s=_size: adaptive(x, 2, _s),
        lambda t, F, x, _s=_size: F.adaptive_avg_pool1d(x, _s),
    )
for _sizes in ((1, 1), (3, 2), (5, 4)):
    layer(
        f"adaptive_avg_pool2d_{_sizes}",
        {"x": (2, 3, 6, 8)},
        lambda x, _s=_sizes: aicf.adaptive_avg_pool2d(x, _s),
        lambda x, _s=_sizes: adaptive(adaptive(x, 2, _s[0]), 3, _s[1]),
        lambda t, F, x, _s=_sizes: F.adaptive_avg_pool2d(x, _s),
    )


def group_norm(x, groups, w=1.0, b=0.0):
    rows = x.reshape(x.shape[0], groups, -1)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    channels = (-1, *[1] * (x.ndim - 2))
    return rows.reshape(x.shape) * np.reshape(w, channels) + np.reshape(b, channels)


for _shape, _groups in (((2, 6, 3, 2), 3), ((3, 4), 2), ((2, 4, 5), 1), ((2, 4, 5), 4)):
    layer(
        f"group_norm_{_shape}_{_groups}",
        {"x": _shape, "w": (_shape[1],), "b": (_shape[1],)},
        lambda x, w, b, _g=_groups: aicf.group_norm(x, _g, w, b),
        lambda x, w, b, _g=_groups: group_norm(x, _g, w, b),
        lambda t, F, x, w, b, _g=_groups: F.group_norm(x, _g, w, b),
    )
layer(
    "instance_norm",
    {"x": (2, 3, 4, 5)},
    aicf.instance_norm,
    lambda x: group_norm(x, 3),
    lambda t, F, x: F.instance_norm(x),
)
for _p in (1.0, 2.0, 3.0):
    layer(
        f"normalize_{_p}",
        lambda rng: {"x": np.vstack([rng.uniform(-2, 2, (3, 4)), np.zeros((1, 4))])},
        lambda x, _p=_p: aicf.normalize(x, _p),
        lambda x, _p=_p: x / np.maximum((abs(x) ** _p).sum(1, keepdims=True) ** (1 / _p), 1e-12),
        lambda t, F, x, _p=_p: F.normalize(x, _p),
        smooth=False,
    )
for _shape, _r in (((2, 8, 3, 2), 2), ((9, 2, 3), 3)):
    layer(
        f"pixel_shuffle_{_r}",
        {"x": _shape},
        lambda x, _r=_r: aicf.pixel_shuffle(x, _r),
        lambda x, _r=_r: np.stack(
            [
                np.stack([x[..., _r * i + j :: _r * _r, :, :] for j in range(_r)], -1)
                for i in range(_r)
            ],
            -3,
        ).reshape(*x.shape[:-3], x.shape[-3] // _r**2, x.shape[-2] * _r, x.shape[-1] * _r),
        lambda t, F, x, _r=_r: F.pixel_shuffle(x, _r),
    )
    layer(
        f"pixel_unshuffle_{_r}",
        {"x": _shape},
        lambda x, _r=_r: aicf.pixel_unshuffle(aicf.pixel_shuffle(x, _r), _r) * x,
        lambda x: x * x,
        lambda t, F, x, _r=_r: F.pixel_unshuffle(F.pixel_shuffle(x, _r), _r) * x,
    )


def cubic(x, axis, at):
    """Between the four elements around a place; a = -0.75."""
    low, y = math.floor(at), 0.0
    for tap in range(low - 1, low + 3):
        d = abs(at - tap)
        near = 1.25 * d**3 - 2.25 * d**2 + 1
        share = near if d <= 1 else -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
        y = y + share * x.take(min(max(tap, 0), x.shape[axis] - 1), axis)
    return y


def resized(x, axis, count, step, mode, align):
    """One element after the other."""
    old, parts = x.shape[axis], []
    for i in range(count):
        if mode.startswith("nearest"):
            half = 0.5 if mode == "nearest-exact" else 0
            parts.append(x.take(min(int((i + half) * step), old - 1), axis))
            continue
        at = i * (old - 1) / max(count - 1, 1) if align else (i + 0.5) * step - 0.5
        if mode == "bicubic":
            parts.append(cubic(x, axis, at))
            continue
        at = max(at, 0)
        low = min(int(at), old - 1)
        near, far = x.take(low, axis), x.take(min(low + 1, old - 1), axis)
        parts.append(near * (1 - (at - low)) + far * (at - low))
    return np.stack(parts, axis)


def interpolated(x, size=None, scale_factor=None, mode="nearest", align_corners=False, **given):
    for axis in range(2, x.ndim):
        if size is not None:
            count = size[axis - 2]
            step = x.shape[axis] / count
        else:
            count, step = int(x.shape[axis] * scale_factor), 1 / scale_factor
            step = x.shape[axis] / count if given else step
        if mode == "area":
            x = adaptive(x, axis, count)
        else:
            x = resized(x, axis, count, step, mode, align_corners)
    return x


TORCH_MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}
for _shape, _given in itertools.product(
    ((2, 3, 7), (2, 3, 4, 5), (1, 2, 3, 2, 4)), ({"size": 1}, {"scale_factor": 2.0}, {"size": 0})
):
    for _mode, _align in (("nearest", False), ("linear", False), ("linear", True)):
        _o = dict(_given, mode=_mode)
        if "size" in _o:  # smaller, or larger
            _o["size"] = [s + 3 if _o["size"] else s - 1 for s in _shape[2:]]
        if _align:
            _o["align_corners"] = True

        def _torch(t, F, x, _o=_o):
            mode = TORCH_MODES[x.ndim] if _o["mode"] == "linear" else "nearest"
            return F.interpolate(x, **{**_o, "mode": mode})

        layer(
            f"interpolate_{_shape}_{_o}",
            {"x": _shape},
            lambda x, _o=_o: aicf.interpolate(x, **_o),
            lambda x, _o=_o: interpolated(x, **_o),
            _torch,
        )

for _mode, _shape, _o in (
    ("nearest-exact", (2, 5), {"scale_factor": 1.7}),
    ("nearest-exact", (4, 5), {"size": [7, 3]}),
    ("area", (5, 4), {"size": [3, 6]}),
    ("area", (7,), {"scale_factor": 0.5}),
    ("bicubic", (3, 5), {"size": [7, 4]}),
    ("bicubic", (4, 3), {"scale_factor": 2.3, "align_corners": True}),
    ("bilinear", (4, 3), {"scale_factor": 1.7}),
    ("bilinear", (4, 3), {"scale_factor": 1.7, "recompute_scale_factor": True}),
    ("trilinear", (2, 3, 2), {"size": [3, 2, 4]}),
):
    layer(
        f"interpolate_{_mode}_{_o}",
        {"x": (1, 2, *_shape)},
        lambda x, _o=_o, _m=_mode: aicf.interpolate(x, mode=_m, **_o),
        lambda x, _o=_o, _m=_mode: interpolated(x, mode=_m, **_o),
        lambda t, F, x, _o=_o, _m=_mode: F.interpolate(x, mode=_m, **_o),
    )
layer(
    "channel_shuffle",
    {"x": (2, 6, 2, 3)},
    lambda x: aicf.square(aicf.channel_shuffle(x, 3)),
    lambda x: x[:, [0, 2, 4, 1, 3, 5]] ** 2,
    lambda t, F, x: F.channel_shuffle(x, 3) ** 2,
)
PADS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
for _mode, _numpy in PADS.items():
    layer(
        f"pad_{_mode}",
        {"x": (2, 3, 4)},
        lambda x, _m=_mode: aicf.pad(x, [(0, 0), (1, 2), (3, 0)], mode=_m),
        lambda x, _n=_numpy: np.pad(x, [(0, 0), (1, 2), (3, 0)], _n),
        lambda t, F, x, _m=_mode: F.pad(x[None], (3, 0, 1, 2), _m)[0],
    )
    layer(
        f"pad_{_mode}_and_crop",
        {"x": (2, 3, 4)},
        lambda x, _m=_mode: aicf.pad(x, [(0, 0), (0, -1), (-2, 2)], mode=_m),
        lambda x, _n=_numpy: (
            np.pad(x[..., 2:], [(0, 0), (0, 0), (0, 2)], _n)
            if _n == "wrap"
            else np.pad(x, [(0, 0), (0, 0), (0, 2)], _n)[..., 2:]
        )[:, :-1],
        lambda t, F, x, _m=_mode: F.pad(x[None], (-2, 2, 0, -1), _m)[0],
    )
layer(
    "pad_symmetric",
    {"x": (2, 3)},
    lambda x: aicf.pad(x, [(5, 0), (2, 7)], mode="symmetric"),
    lambda x: np.pad(x, [(5, 0), (2, 7)], "symmetric"),
)
for _widths in ([(-1, 2), (3, -2)], [(-1, -1), (-2, 0)], [(-3, 4), (5, -6)]):
    layer(
        f"pad_crop_{_widths}",
        {"x": (3, 4)},
        lambda x, _w=_widths: aicf.pad(x, _w, 0.5),
        lambda x, _w=_widths: np.pad(
            x, [(max(a, 0), max(b, 0)) for a, b in _w], constant_values=0.5
        )[tuple(slice(max(-a, 0), -max(-b, 0) or None) for a, b in _w)],
        -6 not in _widths[1]
        and (lambda t, F, x, _w=_widths: F.pad(x, (*_w[1], *_w[0]), value=0.5)),
    )  # fmt: skip


def brought_in(u, size, padding, align):
    if padding == "reflection":
        low, high = (0, size - 1) if align else (-0.5, size - 0.5)
        while high > low and not low <= u <= high:
            u = 2 * low - u if u < low else 2 * high - u
        u = u if high > low else 0.0
    return u if padding == "zeros" else min(max(u, 0.0), size - 1.0)


def sampled(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    """One place after the other, one tap after the other."""
    size = x.shape[2:]
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for place in np.ndindex(*grid.shape[:-1]):
        axes = []
        for a, m in enumerate(size):
            u = grid[place][len(size) - 1 - a] + 1
            u = u * (m - 1) / 2 if align_corners else (u * m - 1) / 2
            if mode == "bicubic":
                ends = range(math.floor(u) - 1, math.floor(u) + 3)
                unit = np.eye(4)
                share = [cubic(one, 0, u - ends[0]) for one in unit]
                axes.append([(brought_in(i, m, padding_mode, align_corners), s)
                             for i, s in zip(ends, share, strict=True)])  # fmt: skip
                continue
            u = brought_in(u, m, padding_mode, align_corners)
            low = math.floor(u)
            near = [(round(u), 1.0)]
            axes.append(near if mode == "nearest" else [(low, low + 1 - u), (low + 1, u - low)])
        for taps in itertools.product(*axes):
            at = [int(i) for i, _ in taps]
            if all(0 <= i < m for i, m in zip(at, size, strict=True)):
                part = x[(place[0], slice(None), *at)] * math.prod(s for _, s in taps)
                y[(place[0], slice(None), *place[1:])] += part
    return y


for _n, _mode, _padding, _align in (
    *itertools.product((2,), ("bilinear", "bicubic"), ("zeros", "border", "reflection"), (0, 1)),
    (2, "nearest", "zeros", 0), (2, "nearest", "reflection", 1), (2, "nearest", "border", 0),
    (3, "bilinear", "zeros", 0), (3, "bilinear", "reflection", 1), (3, "nearest", "border", 1),
):  # fmt: skip
    _o = {"mode": _mode, "padding_mode": _padding, "align_corners": bool(_align)}
    layer(
        f"grid_sample_{_n}_{'_'.join(map(str, _o.values()))}",
        lambda rng, _n=_n: {"x": rng.uniform(-2, 2, (2, 2, 3, 4, 2)[: _n + 2]),
                            "grid": rng.uniform(-1.6, 1.6, (2, 2, 3, 1)[: _n + 1] + (_n,))},
        lambda x, grid, _o=_o: aicf.grid_sample(x, grid, **_o),
        lambda x, grid, _o=_o: sampled(x, grid, **_o),
        lambda t, F, x, grid, _o=_o: F.grid_sample(x, grid, **_o),
        fixed=("grid",) if _mode == "nearest" else (),
    )  # fmt: skip
for _size, _align in itertools.product(((2, 3, 4, 5), (1, 2, 3, 1, 2)), (False, True)):

    def _places(theta, size, align):
        y = np.zeros((*size[:1], *size[2:], len(size) - 2))
        for n, *at in np.ndindex(y.shape[:-1]):
            place = [
                (2 * i / (m - 1) - 1 if m > 1 else 0) if align else (2 * i + 1) / m - 1
                for i, m in zip(at, size[2:], strict=True)
            ]
            y[(n, *at)] = theta[n] @ [*place[::-1], 1]
        return y

    layer(
        f"affine_grid_{_size}_{_align}",
        {"theta": (_size[0], len(_size) - 2, len(_size) - 1)},
        lambda theta, _s=_size, _a=_align: aicf.affine_grid(theta, _s, _a),
        lambda theta, _s=_size, _a=_align, _f=_places: _f(theta, _s, _a),
        # of an axis of one element PyTorch warns
        not (_align and 1 in _size[2:])
        and (lambda t, F, theta, _s=_size, _a=_align: F.affine_grid(theta, _s, _a)),
    )
for _columns in (255, 256, 257, 513):  # a fold takes 256 columns of a row at a time
    for _stride in (1, 2):
        layer(
            f"unfold_row_{_columns}_{_stride}",
            {"x": (1, 1, 2, _columns)},
            lambda x, _s=_stride: aicf.unfold(x, (2, 3), 1, 1, _s),
            lambda x, _s=_stride: unfolded(x, (2, 3), 1, _s),
            lambda t, F, x, _s=_stride: F.unfold(x, (2, 3), 1, 1, _s),
            smooth=False,
        )


def unfolded(x, kernel, padding, stride):
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    cut = np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))[:, :, ::stride, ::stride]
    return np.moveaxis(cut, (4, 5), (2, 3)).reshape(1, kernel[0] * kernel[1], -1)
