"""Custom ops that tests share, and that processes of their own import."""

import aicf
import numpy as np

# u sigmoid(alpha u), u = x + b, in terms of scalar.h: the same bits on every device.
SWISH = """
AICF_FN void run(const Args& a, int64_t i) {
    const float u = a.x[i] + a.b[i % a.b.size];
    a.out[i] = u * scalar::sigmoid(static_cast<float>(a.alpha) * u);
}
"""


def swish_gradient(dy, x, b, out, alpha):
    u = x + b
    s = aicf.sigmoid(alpha * u)
    dx = dy * (s + alpha * u * s * (1.0 - s))
    return dx, aicf.sum(dx, axis=0)


@aicf.custom_op(
    cpu=SWISH, cuda=SWISH, gradient=swish_gradient, dtypes={"x": "float32", "b": ["float32"]}
)
def swish_bias(x, b, *, alpha=1.702):
    """x and a row b as the op's function sees them: specs."""
    if x.shape[-1:] != b.shape:
        raise aicf.ShapeError(f"swish_bias: x is {x.shape}, b {b.shape}; need b of x's last axis")
    return x


COPY = "AICF_FN void run(const Args& a, int64_t i) { a.out[i] = a.x[i]; }"


@aicf.custom_op(cpu=COPY, cuda=COPY)
def copied(x):
    return x


# A sum of each row in ascending order, and how long it was.
ROWS = """
AICF_FN void run(const Args& a, int64_t row) {
    float sum = 0;
    for (int64_t j = 0; j < a.x.shape[1]; j++) sum += a.x.at(row, j);
    a.total[row] = a.scale ? sum * static_cast<float>(a.factor) : sum;
    a.count[row] = a.x.shape[1];
}
"""


def rows_gradient(dtotal, dcount, x, total, count, factor, scale):
    assert dcount is None, "whole numbers have no gradient"
    return aicf.broadcast_to(aicf.reshape(dtotal, (*x.shape[:1], 1)), x.shape) * (
        float(factor) if scale else 1.0
    )


@aicf.custom_op(
    cpu=ROWS, cuda=ROWS, outputs=["total", "count"], gradient=rows_gradient, strided=True,
    unit_axes=1, order="ascending", dtypes={"x": "float32"},
)  # fmt: skip
def row_sums(x, *, factor: int, scale=False):
    return [aicf.Spec(x.shape[:1], "float32"), aicf.Spec(x.shape[:1], "int64")]


def define(name, **options):
    def fn(x):
        return x

    fn.__name__ = name
    return aicf.custom_op(**options)(fn)


def compile_one(op, device="cpu", **attrs):
    g = aicf.Graph("g")
    g.output("y", op(g.input("x", (3,)), **attrs))
    return g.compile(device=device)


BLOCK = """
AICF_FN void run(const Args& a, int64_t row) {
    __shared__ float part[64];
    float sum = 0;
    for (int64_t j = threadIdx.x; j < a.x.shape[1]; j += blockDim.x) sum += a.x.at(row, j);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p bra end; end: }" ::"r"(threadIdx.x));
    if (threadIdx.x == 0) a.out[row] = part[0];
}
"""


@aicf.custom_op(
    cuda=BLOCK, threads=64, unit_axes=1, order="64 lanes, halved", dtypes={"x": "float32"}
)
def block_sums(x):
    return aicf.Spec(x.shape[:1], "float32")


def host_gradient(dy, x, out, factor):
    return dy * factor


@aicf.custom_op(host=lambda x, factor: np.sort(x, axis=-1) * np.float32(factor),
                gradient=host_gradient)  # fmt: skip
def hosted(x, *, factor=1.0):
    return x


def gpu_graph():
    g = aicf.Graph("g")
    x, b = g.input("x", (40, 7)), g.input("b", (7,))
    y = swish_bias(x, b)
    g.output("y", y)
    total, count = row_sums(aicf.permute(y, (1, 0)), factor=2)
    g.output("total", total)
    g.output("count", count)
    g.output("block", block_sums(y))
    return g
