"""Ops of rows, windows and edges around the sizes at which the CPU's kernels go another way, beside
the same in NumPy, element by element.

    AICF_CPU_ISA=avx2 python tests/cpu_row_cases.py

says which instruction set it took.
"""

import aicf
import numpy as np
from compare import assert_bits

THREADS = (1, 2, 3, 8)
ROWS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 64, 65, 127, 128, 129, 255, 256, 257, 384, 512, 700)


def run(outputs, **arrays):
    """Arrays by name, the same with every number of threads."""
    g = aicf.Graph("g")
    values = {n: g.input(n, x.shape, x.dtype.name) for n, x in arrays.items()}
    for name, value in outputs(**values).items():
        g.output(name, value)
    step, found, before = g.compile(device="cpu"), None, aicf.num_threads()
    try:
        for threads in THREADS:
            aicf.set_num_threads(threads)
            now = {n: np.array(y.numpy()) for n, y in step(**arrays).items()}
            for name, y in now.items():
                assert_bits(y, (found or now)[name], f"{name} with {threads} threads")
            found = now
    finally:
        aicf.set_num_threads(before)
    return found


def rows_of(n, rng):
    """Whose exponentials reach down to the least numbers, with and without infinities and NaN."""
    x = rng.normal(0, 3, (40, n)).astype(np.float32)
    x[1] = 0
    x[2] *= 12
    x[3] = np.linspace(0, -103, n)
    x[4] = np.linspace(-66, -67, n)  # about the least that a quotient by its residuals takes
    x[4, n // 2] = 0
    x[5, n // 2] = np.inf
    x[6, -1] = np.nan
    x[7] = -np.inf
    x[8, ::2] = -np.inf
    return x


def softmax_divides(rng):
    """Each element is the rounded quotient of an exponential and the sum of its row."""
    for x in [rows_of(n, rng) for n in ROWS] + [np.zeros((1, (1 << 20) + 5), np.float32)]:

        def parts(x):
            e = aicf.exp(x - aicf.max(x, -1, keepdims=True))
            return {"y": aicf.softmax(x), "e": e, "sum": aicf.sum(e, -1, keepdims=True)}

        found = run(parts, x=x)
        with np.errstate(all="ignore"):
            assert_bits(found["y"], found["e"] / found["sum"], f"softmax {x.shape}")


def short_rows_are_summed(rng):
    for n, rows, dtype in (
        (n, rows, dtype)
        for n in (1, 2, 3, 4)
        for rows in (1, 3, 4, 15, 16, 17, 33, 4097)
        for dtype in ("float32", "float64", "float16", "int32")
    ):
        x = (rng.normal(0, 90, (rows, n))).astype(dtype)
        w = x.astype(np.float32) if dtype == "float16" else x
        wanted = [
            w[:, 0], w[:, :2].sum(1), (w[:, 0] + w[:, 2 % n]) + w[:, 1 % n],
            (w[:, 0] + w[:, 2 % n]) + (w[:, 1 % n] + w[:, 3 % n]),
        ][n - 1].astype(dtype)  # fmt: skip
        turned = np.ascontiguousarray(x.T)
        found = run(
            lambda x, t: {"y": aicf.sum(x, 1), "t": aicf.sum(aicf.permute(t, (1, 0)), 1)},
            x=x,
            t=turned,
        )
        for y in found.values():
            assert_bits(y, wanted, f"sum of {rows} x {n} {dtype}")


def windows_are_folded(rng):
    for columns in (3, 6, 14, 15, 16, 17, 18, 19, 33, 34, 256, 257):
        for stride, dilation, padding in ((1, 1, 0), (1, 1, 1), (1, 2, 1), (2, 1, 1)):
            if columns + 2 * padding <= 2 * dilation:
                continue
            places = [
                (s + 2 * padding - d - 1) // stride + 1
                for s, d in ((5, dilation), (columns, 2 * dilation))
            ]
            w = rng.standard_normal((2, 3 * 6, places[0] * places[1]), np.float32)
            w[0, 0, 0] = -0.0
            found = run(
                lambda w, c=columns, s=stride, d=dilation, p=padding: {
                    "y": aicf.fold(w, (5, c), (2, 3), d, p, s)
                },
                w=w,
            )["y"]
            wide = np.zeros((2, 3, 5 + 2 * padding, columns + 2 * padding), np.float32)
            parts = w.reshape(2, 3, 2, 3, *places)
            for i in range(2):
                for j in range(3):
                    to = wide[:, :, i * dilation :, j * dilation :]
                    to = to[:, :, : (places[0] - 1) * stride + 1 : stride]
                    to[..., : (places[1] - 1) * stride + 1 : stride] += parts[:, :, i, j]
            inner = slice(padding, -padding or None)
            assert_bits(found, wide[:, :, inner, inner], f"fold {columns} {stride} {dilation}")


def edges_are_filled(rng):
    for shape, widths in (
        ((5,), [(2, 3)]),
        ((0, 4), [(1, 0), (0, 2)]),
        ((7, 33), [(0, 0), (1, 1)]),
        ((3, 4, 9), [(1, 2), (0, 3), (4, 0)]),
        ((4, 3, 16, 17), [(0, 0), (0, 0), (1, 1), (1, 1)]),
        ((2, 3, 2, 3, 5), [(1, 0), (0, 1), (2, 0), (0, 0), (0, 1)]),
    ):
        for dtype in ("float32", "float64", "float16", "int8"):
            x = rng.normal(0, 50, shape).astype(dtype)
            axes = tuple(range(len(shape)))[::-1]
            turned = np.ascontiguousarray(x.transpose(axes))
            found = run(
                lambda x, t, w=widths, a=axes: {
                    "y": aicf.pad(x, w, 3.0),
                    "t": aicf.pad(aicf.permute(t, a), w, 3.0),
                    "back": aicf.pad(aicf.flip(x, -1), w, 3.0),
                },
                x=x,
                t=turned,
            )
            wanted = np.pad(x, widths, constant_values=3)
            assert_bits(found["y"], wanted, f"pad {shape} {dtype}")
            assert_bits(found["t"], wanted, f"pad {shape} {dtype} turned")
            assert_bits(found["back"], np.pad(x[..., ::-1], widths, constant_values=3), "flipped")


CASES = (softmax_divides, short_rows_are_summed, windows_are_folded, edges_are_filled)

if __name__ == "__main__":
    for case in CASES:
        case(np.random.default_rng(1))
    print(aicf._core.cpu_isa())
