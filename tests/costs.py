"""What functions composed of several ops cost: launches, and bytes moved for each element.

    python tests/costs.py [--out docs/costs.md]

From the plans of a CPU and of a GPU (132 processors, sm_90a), which needs none. test_costs.py holds
the page to what this prints.
"""

import argparse
import json
import math
from pathlib import Path

import aicf
from aicf import _core

PAGE = Path(__file__).parents[1] / "docs" / "costs.md"
# Ops one by one: in one block of threads a function small enough is one launch, whatever it does.
APART = [name for name in _core.pass_names() if name != "block"]
VALUES = {  # what the calls below are given
    **dict.fromkeys(("x", "y", "z", "p"), ((1024, 1024), "float32")),
    "row": ((1024,), "float32"),
    "points": ((1024, 3), "float32"),
    "corners": ((1024, 3), "int64"),
    "cube": ((8, 3, 3), "float32"),
    "places": ((1024, 1024), "int64"),
    "labels": ((1024,), "int64"),
    "image": ((8, 16, 32, 32), "float32"),
    "signal": ((8, 16, 1024), "float32"),
    "volume": ((2, 16, 16, 16, 16), "float32"),
    "heads": ((8, 16, 64, 32), "float32"),
    "theta": ((8, 2, 3), "float32"),
    "grid": ((8, 32, 32, 2), "float32"),
    "w1": ((16, 16, 3), "float32"),
    "w2": ((16, 16, 3, 3), "float32"),
    "w3": ((16, 16, 3, 3, 3), "float32"),
    "channels": ((16,), "float32"),
    "halves": ((8, 16, 16, 16), "int64"),
    "frames": ((128, 8, 32), "float32"),
    "spoken": ((8, 12), "int64"),
    "w_in": ((96, 32), "float32"),
    "w_out": ((32, 32), "float32"),
    "taps": ((3, 32, 32), "float32"),
}
CALLS = {
    "Sums and norms": [
        *("var(x, 1)", "std(x, 1)", "logsumexp(x, 1)", "softmin(x)", "normalize(x)"),
        *("layer_norm(x, 1024, row, row)", "rms_norm(x, 1024, row)"),
        *("group_norm(image, 4, channels, channels)", "instance_norm(image, channels, channels)"),
        "local_response_norm(image, 5)",
        "scaled_dot_product_attention(heads, heads, heads, causal=True)",
        *("bilinear(points, points, cube)", "embedding_bag(places[:, :8], x)"),
    ],
    "Elements": [
        *("square(x)", "reciprocal(x)", "ceil(x)", "trunc(x)", "isinf(x)", "isfinite(x)"),
        *("signbit(x)", "copysign(x, y)", "logaddexp(x, y)"),
        *("full_like(x, 2.0)", "zeros_like(x)", "ones_like(x)", "count_nonzero(x, 1)"),
        *("remainder(x, y)", "bitwise_invert(places)"),
        *("any(x, 1)", "all(x, 1)", "argmin(x, 1)", "one_hot(labels, 1024)"),
    ],
    "Shapes and products": [
        *("flip(x)", "moveaxis(x, 0, 1)", "repeat(x, 2, 1)", "roll(x, 1, 1)", "tile(x, 2)"),
        *("diagonal(x)", "diag(row)", "diff(x)", "unstack(x)[0]", "broadcast_arrays([x, row])[1]"),
        *("meshgrid([row, row])[0]", "vecdot(x, y)", "cross(points, points)"),
        *("vector_norm(x, 1)", "vector_norm(x, 1, ord=3.0)"),
        *("tril(x)", "triu(x)", "outer(row, row)", "tensordot(x, y, 1)"),
        'einsum("ij,jk->ki", x, y)',
    ],
    "By position and in order": [
        *("take_along_axis(x, places, 1)", "gather(x, 1, places)", "index_select(x, 1, labels)"),
        *("scatter(x, 1, places, y)", "scatter_add(x, 1, places, y)"),
        *("index_add(x, 0, labels, y)", "searchsorted(row, x)"),
        *("argsort(x)", "sort(x)", "topk(x, 8)[0]", "median(x, 1)", "quantile(x, 0.9, 1)"),
        *("nanquantile(x, 0.9, 1)", "unravel_index(places, (32, 32))[0]"),
        *('scatter_reduce(x, 1, places, y, "sum")', 'scatter_reduce(x, 1, places, y, "mean")'),
        'scatter_reduce(points, 1, corners, points, "amax")',
        *("cumprod(x, 1)", "cummax(x, 1)[0]", "cummin(x, 1)[0]", "linear_recurrence(x, y, 1)"),
    ],
    "Statistics and special values": [
        *("nansum(x, 1)", "nanmean(x, 1)", "cov(x)", "corrcoef(x)", "trapezoid(x, dx=0.1)"),
        *("cumulative_trapezoid(x, dx=0.1)", "fmax(x, y)", "fmin(x, y)", "heaviside(x, 0.5)"),
        *("lerp(x, y, 0.5)", "logit(p)", "sinc(x)", "xlogy(x, p)", "nan_to_num(x)"),
        *("isclose(x, y)", "isin(labels, labels)", "logaddexp2(x, y)", "xlog1py(x, p)"),
        "gradient(x)[0]",
    ],
    "Assembly": [
        *("hstack([x, y])", "vstack([x, y])", "dstack([x, y])", "column_stack([x, y])"),
        *("atleast_1d(x)", "atleast_2d(row)", "atleast_3d(x)", "block_diag([x, y])"),
        *("kron(row, row)", "rot90(x)", "diag_embed(row)", "matrix_power(x, 3)", "vander(row, 4)"),
        *("masked_fill(x, x > 0.0, 0.0)", "index_fill(x, 0, labels, 0.0)"),
        *("index_copy(x, 0, labels, y)", "slice_scatter(x, y[:512], 0, 256, 768)"),
    ],
    "Random draws": [
        *("bernoulli(p)", "categorical(x)", "gumbel_softmax(x)", "gumbel_softmax(x, hard=True)"),
    ],
    "Activations": [
        *("relu6(x)", "hardtanh(x)", "hardsigmoid(x)", "hardswish(x)", "selu(x)", "celu(x)"),
        *("mish(x)", "logsigmoid(x)", "softsign(x)", "tanhshrink(x)", "softshrink(x)"),
        *("hardshrink(x)", "threshold(x, 0.1, 0.0)", "prelu(x, row)", "glu(x)"),
    ],
    "Losses": [
        *("mse_loss(x, y)", "l1_loss(x, y)", "smooth_l1_loss(x, y)", "huber_loss(x, y)"),
        *("cross_entropy(x, labels)", "cross_entropy(x, labels, label_smoothing=0.1)"),
        *("cross_entropy(x, p)", "nll_loss(x, labels)", "kl_div(x, p)"),
        *("binary_cross_entropy(p, y)", "binary_cross_entropy_with_logits(x, y)"),
        *("poisson_nll_loss(x, y)", "gaussian_nll_loss(x, y, z)", "soft_margin_loss(x, y)"),
        *("hinge_embedding_loss(x, y)", "margin_ranking_loss(x, y, z)"),
        *("cosine_similarity(x, y)", "cosine_embedding_loss(x, y, row)"),
        *("pairwise_distance(x, y)", "triplet_margin_loss(x, y, z)"),
        *("cdist(points, points)", "pdist(points)", "multi_margin_loss(x, labels)"),
        *("multilabel_margin_loss(points, corners)", "multilabel_soft_margin_loss(x, p)"),
        "triplet_margin_with_distance_loss(x, y, z, aicf.cosine_similarity)",
        "linear_cross_entropy(x, p, labels)",
        "ctc_loss(frames, spoken, [128] * 8, [12] * 8)",
    ],
    "Layers": [
        *("dropout1d(signal)", "dropout2d(image)", "dropout3d(volume)"),
        *("alpha_dropout(x, 0.1, True)", "feature_alpha_dropout(image, 0.1, True)"),
        "rrelu(x, training=True)",
        "multi_head_attention_forward(frames, frames, frames, 32, 4, w_in, None, None, None, "
        "False, 0.0, w_out, None)[0]",
    ],
    "Signals, images and volumes": [
        *("conv1d(signal, w1, padding=1)", "conv2d(image, w2, padding=1)"),
        *("conv3d(volume, w3, padding=1)", "conv_tbc(frames, taps, taps[0, 0], 1)"),
        *("conv_transpose1d(signal, w1, stride=2)", "conv_transpose2d(image, w2, stride=2)"),
        "conv_transpose3d(volume, w3, stride=2)",
        *("unfold(image, 3)", "fold(aicf.unfold(image, 3), 32, 3)"),
        *("max_pool1d(signal, 2)", "max_pool2d(image, 2)", "max_pool3d(volume, 2)"),
        "max_pool2d(image, 2, return_indices=True)[1]",
        *("avg_pool1d(signal, 2)", "avg_pool2d(image, 2)", "avg_pool3d(volume, 2)"),
        "avg_pool2d(image, 3, 2, 1, count_include_pad=False)",
        *("lp_pool1d(signal, 2, 2)", "lp_pool2d(image, 2, 2)", "lp_pool3d(volume, 2, 2)"),
        *("adaptive_avg_pool1d(signal, 3)", "adaptive_avg_pool2d(image, 3)"),
        *("adaptive_avg_pool3d(volume, 3)", "adaptive_max_pool1d(signal, 3)"),
        *("adaptive_max_pool2d(image, 3)", "adaptive_max_pool3d(volume, 3)"),
        "max_unpool1d(signal[:, :, :256], halves.reshape((8, 16, 256)), 2)",
        "max_unpool2d(image[:, :, :16, :16], halves, 2)",
        "max_unpool3d(image[:, :, :16, :16].reshape((8, 16, 4, 8, 8)), "
        "halves.reshape((8, 16, 4, 8, 8)), 2)",
        *("interpolate(image, scale_factor=2.0)", "interpolate(image, 64, mode='bilinear')"),
        *("interpolate(image, 64, mode='bicubic')", "interpolate(image, 12, mode='area')"),
        *("pixel_shuffle(image, 2)", "pixel_unshuffle(image, 2)", "channel_shuffle(image, 4)"),
        *("affine_grid(theta, (8, 16, 32, 32))", "grid_sample(image, grid)"),
        "pad(image, [(0, 0), (0, 0), (1, 1), (1, 1)], mode='reflect')",
    ],
}


def planned(call, device, gradients):
    """(launches, bytes for each element of the largest operand); None: there is no gradient."""
    g = aicf.Graph("cost")
    used = [name for name in VALUES if any(name == word for word in words(call))]
    values = {name: g.input(name, *VALUES[name]) for name in used}
    y = eval(f"aicf.{call}", {"aicf": aicf, **values})  # noqa: S307
    g.output("y", y)
    if gradients:
        wrt = [value for value in values.values() if value.dtype == "float32"]
        if not wrt or not y.dtype.startswith("float"):
            return None
        dy = g.input("dy", y.shape, y.dtype)
        try:
            grads = g.backward(y, wrt, grad=dy)
        except aicf.GraphError:  # a target of -1 and 1 takes none
            try:
                grads = g.backward(y, wrt[:-1], grad=dy)
            except aicf.GraphError:
                return None
        for i, grad in enumerate(grads.values()):
            g.output(f"d{i}", grad)
    if device == "cpu":
        ops = g.compile(device="cpu", capture=False).plan.ops
    else:
        ops = json.loads(_core.cuda_plan(g._core, APART))["ops"]
    size = max(math.prod(VALUES[name][0]) for name in used)
    return len(ops), sum(op["bytes_moved"] for op in ops) / size


def words(call):
    return "".join(c if c.isalnum() or c == "_" else " " for c in call).split()


def row_of(call):
    """Both targets in one cell where they differ."""
    cells = [f"`{call}`"]
    for gradients in (False, True):
        cpu, gpu = (planned(call, device, gradients) for device in ("cpu", "gpu"))
        if cpu is None or gpu is None:
            cells += ["–", "–"]
            continue
        for a, b in zip(cpu, gpu, strict=True):
            one, other = f"{a:.3g}", f"{b:.3g}"
            cells.append(one if one == other else f"{one} / {other}")
    return f"| {' | '.join(cells)} |"


HEAD = """# What functions cost

A function composed of several ops has no kernel of its own: the passes make as few launches of it
as they can. Of each call: launches, and the bytes that they move for each element of the largest
operand (a pass over float32 reads or writes 4); of the function alone, and with the gradients of
its float operands. Where a CPU and a GPU differ, both stand there. No time is measured: these are
plans, and `python tests/costs.py --out docs/costs.md` writes this page.

The operands: {operands}.
"""


def page():
    names = {}
    for name, (shape, dtype) in VALUES.items():
        names.setdefault(f"{dtype}{list(shape)}", []).append(f"`{name}`")
    lines = [HEAD.format(operands="; ".join(f"{', '.join(n)} {t}" for t, n in names.items()))]
    for title, calls in CALLS.items():
        lines += [
            f"## {title}\n",
            "| | launches | bytes | with gradients: launches | bytes |",
            "| --- |" + " ---: |" * 4,
            *(row_of(call) for call in calls),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    text = page()
    if options.out:
        options.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
