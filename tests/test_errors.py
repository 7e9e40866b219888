"""Malformed calls: each raises its typed error whose text names the op or argument, the values and
the fix; nothing is written, and the same process still runs the reference step bit for bit."""

import re

import aicf
import numpy as np
import pytest
from aicf import verify

FIX = re.compile(
    r"need|cast|give |use |leave it out|call capture|take another|assigned once|never mix|it has |"
    r"make it|at most|reads|without|resolve|does not fit",
)
BUILTIN = {
    aicf.GraphError: ValueError,
    aicf.ShapeError: ValueError,
    aicf.DTypeError: TypeError,
    aicf.FormatError: ValueError,
    aicf.DeviceUnavailable: RuntimeError,
    aicf.CaptureError: RuntimeError,
    aicf.StaleOutput: RuntimeError,
    aicf.BadValue: ValueError,
    aicf.Unsupported: NotImplementedError,
}


def wide_W(b):
    return b.W.cast("float64")


class Bench:
    """A graph to make mistakes in, and a running step to make them on."""

    def __init__(self):
        g = self.g = aicf.Graph("bench")
        self.x = g.input("x", (4, 3))
        self.y = g.input("y", (4, 3))
        self.z = g.input("z", (5, 2))
        self.d = g.input("d", (4, 3), "float64")
        self.h = g.input("h", (4, 3), "float16")
        self.n = g.input("n", (4,), "int64")
        self.u = g.input("u", (4, 3), "uint8")
        self.m = g.input("m", (4, 3), "bool")
        self.v = g.input("v", (3,))
        self.s = g.input("s", ())
        self.e = g.input("e", (0, 3))
        self.W = g.param("W", (2, 3))
        self.b = g.param("b", (2,))
        self.k = g.state("k", (), "int32")
        self.K = g.constant([[1.0, 2.0]])
        self.other = aicf.Graph("other")
        self.alien = self.other.input("alien", (4, 3))

        t = aicf.Graph("train")
        x = t.input("x", (4, 3))
        y = t.dense("0", x, 2)
        loss = aicf.mse_loss(y, t.input("t", (4, 2)))
        t.minimize(loss, aicf.optim.Adam(lr=1e-2))
        t.output("loss", loss)
        t.output("y", y)
        t.output("ring", loss, keep=3)
        self.train = t
        self.step = t.compile(device="cpu")
        rng = np.random.default_rng(0)
        self.xb = rng.standard_normal((4, 3)).astype(np.float32)
        self.tb = rng.standard_normal((4, 2)).astype(np.float32)
        self.step(x=self.xb, t=self.tb)

    def compile_other(self, share, **changed):
        """A second Step that shares and differs from the first."""
        g = aicf.Graph("second")
        w = g.param("0.W", changed.get("shape", (2, 3)), changed.get("dtype", "float32"))
        g.output("w", w * 1.0)
        return g.compile(device="cpu", share=share)

    def stale(self):
        out = self.step(x=self.xb, t=self.tb)
        self.step.replay()
        return out["loss"].numpy()

    def read_only(self):
        array = np.zeros((2, 3), np.float32)
        array.flags.writeable = False
        return array


def strided(shape):
    return np.zeros([2 * s for s in shape], np.float32)[tuple(slice(None, None, 2) for _ in shape)]


G, S, D = aicf.GraphError, aicf.ShapeError, aicf.DTypeError
F, U, C = aicf.FormatError, aicf.Unsupported, aicf.CaptureError

# error, words that the text must hold, call
TABLE = [
    # operators and pointwise functions
    (S, ["add", "f32[4, 3]", "f32[5, 2]"], lambda b: b.x + b.z),
    (S, ["sub", "f32[4, 3]", "f32[5, 2]"], lambda b: b.x - b.z),
    (S, ["mul", "f32[4, 3]", "f32[5, 2]"], lambda b: b.x * b.z),
    (S, ["div", "f32[4, 3]", "f32[5, 2]"], lambda b: b.x / b.z),
    (S, ["pow", "f32[4, 3]", "f32[5, 2]"], lambda b: b.x**b.z),
    (S, ["maximum", "f32[5, 2]"], lambda b: aicf.maximum(b.x, b.z)),
    (S, ["minimum", "f32[5, 2]"], lambda b: aicf.minimum(b.x, b.z)),
    (S, ["lt", "f32[5, 2]"], lambda b: b.x < b.z),
    (S, ["eq", "f32[5, 2]"], lambda b: aicf.equal(b.x, b.z)),
    (S, ["where", "f32[5, 2]"], lambda b: aicf.where(b.m, b.x, b.z)),
    (D, ["add", "f32[4, 3]", "f64[4, 3]", "cast"], lambda b: b.x + b.d),
    (D, ["mul", "f32[4, 3]", "f16[4, 3]", "cast"], lambda b: b.x * b.h),
    (D, ["sub", "f64[4, 3]", "f16[4, 3]", "cast"], lambda b: b.d - b.h),
    (D, ["add", "f32[4, 3]", "u8[4, 3]", "cast"], lambda b: b.x + b.u),
    (D, ["gt", "f32[4, 3]", "f64[4, 3]", "cast"], lambda b: b.x > b.d),
    (D, ["add", "bool[4, 3]", "cast"], lambda b: b.m + b.m),
    (D, ["neg", "bool[4, 3]", "cast"], lambda b: -b.m),
    (D, ["abs", "bool[4, 3]", "cast"], lambda b: abs(b.m)),
    (D, ["relu", "bool[4, 3]", "cast"], lambda b: aicf.relu(b.m)),
    (D, ["div", "u8[4, 3]", "cast"], lambda b: b.u / b.u),
    (D, ["pow", "i64[4]", "cast"], lambda b: b.n**b.n),
    (D, ["exp", "i64[4]", "cast"], lambda b: aicf.exp(b.n)),
    (D, ["log", "i64[4]", "cast"], lambda b: aicf.log(b.n)),
    (D, ["sqrt", "u8[4, 3]", "cast"], lambda b: aicf.sqrt(b.u)),
    (D, ["tanh", "bool[4, 3]", "cast"], lambda b: aicf.tanh(b.m)),
    (D, ["sigmoid", "i64[4]", "cast"], lambda b: aicf.sigmoid(b.n)),
    (D, ["gelu", "i64[4]", "cast"], lambda b: aicf.gelu(b.n)),
    (D, ["floor", "bool[4, 3]", "cast"], lambda b: aicf.floor(b.m)),
    (D, ["isnan", "bool[4, 3]", "cast"], lambda b: aicf.isnan(b.m)),
    (D, ["logical_and", "f32[4, 3]", "bool"], lambda b: b.x & b.m),
    (D, ["logical_or", "u8[4, 3]", "bool"], lambda b: b.m | b.u),
    (D, ["bitwise_xor", "f32[4, 3]", "bool"], lambda b: b.x ^ b.x),
    (D, ["bitwise_xor", "f32[4, 3]", "bool"], lambda b: ~b.x),
    (D, ["where", "condition", "f32[4, 3]", "bool"], lambda b: aicf.where(b.x, b.x, b.y)),
    (D, ["where", "f32[4, 3]", "f64[4, 3]"], lambda b: aicf.where(b.m, b.x, b.d)),
    (D, ["cast", "float31"], lambda b: aicf.cast(b.x, "float31")),
    (D, ["cast", "complex64"], lambda b: b.x.cast("complex64")),
    (D, ["1.5", "int64"], lambda b: b.n + 1.5),
    (D, ["300", "uint8", "255"], lambda b: b.u + 300),
    (D, ["-1", "uint8"], lambda b: b.u + -1),
    (aicf.Error, ["nan"], lambda b: b.n + float("nan")),
    (aicf.Error, ["int64"], lambda b: b.n + 2**64),
    (aicf.Error, ["float32"], lambda b: b.x + 10**400),
    (G, ["gelu", "'fast'"], lambda b: aicf.gelu(b.x, approximate="fast")),
    (G, ["add", "list"], lambda b: b.x + [1.0, 2.0]),
    (G, ["add", "list"], lambda b: b.x + [1.0, 1.0, 1.0]),
    (D, ["mul", "i64"], lambda b: np.ones(3, np.int64) * b.x),
    (G, ["add", "str"], lambda b: b.x + "1"),
    (G, ["mul", "NoneType"], lambda b: b.x * None),
    (G, ["add", "complex"], lambda b: b.x + 1j),
    (G, ["exp", "1.0", "float"], lambda b: aicf.exp(1.0)),
    (G, ["add", "at least one Value"], lambda b: aicf.add(1.0, 2.0)),
    (G, ["bench", "other", "never mix"], lambda b: b.x + b.alien),
    (G, ["bench", "other", "never mix"], lambda b: aicf.matmul(b.x, b.alien.T)),
    (G, ["bool", "%0 f32[4, 3]", "where"], lambda b: bool(b.x)),
    (G, ["bool"], lambda b: b.x < b.y < b.x),
    (G, ["len", "%0 f32[4, 3]", "shape"], lambda b: len(b.x)),
    (G, ["float", "%0 f32[4, 3]", "output"], lambda b: float(b.x)),
    (G, ["int", "%0 f32[4, 3]", "output"], lambda b: int(b.x)),
    (G, ["iteration", "%0 f32[4, 3]"], lambda b: list(b.x)),
    (G, ["array", "%0 f32[4, 3]", "output"], lambda b: np.asarray(b.x)),
    # movement
    (S, ["reshape", "f32[4, 3]", "[5, 2]", "12", "10"], lambda b: b.x.reshape((5, 2))),
    (S, ["reshape", "f32[4, 3]", "[5, -1]"], lambda b: b.x.reshape((5, -1))),
    (S, ["reshape", "[-1, -1]"], lambda b: b.x.reshape((-1, -1))),
    (S, ["reshape", "-2"], lambda b: b.x.reshape((-2, 6))),
    (S, ["8"], lambda b: b.x.reshape((1,) * 9)),
    (S, ["reshape"], lambda b: b.x.reshape((2.5, 6))),
    (S, ["reshape"], lambda b: b.x.reshape("ab")),
    (S, ["reshape"], lambda b: b.x.reshape(None)),
    (S, ["reshape"], lambda b: b.x.reshape((2**62, 2**62, 12))),
    (S, ["reshape"], lambda b: b.g.input("none", (0,)).reshape((2**62, 2**62))),
    (S, ["reshape"], lambda b: b.x.reshape((2**70,))),
    (G, ["reshape", "x is 3"], lambda b: aicf.reshape(3, (1,))),
    (S, ["permute", "f32[4, 3]", "once"], lambda b: b.x.permute((0, 0))),
    (S, ["permute", "f32[4, 3]", "once"], lambda b: b.x.permute((0,))),
    (S, ["permute", "f32[4, 3]", "once"], lambda b: b.x.permute((0, 2))),
    (S, ["permute"], lambda b: b.x.permute((0, "1"))),
    (S, ["permute", "f32[4, 3]", "once"], lambda b: b.x.permute(1)),
    (G, ["permute", "int"], lambda b: aicf.permute(1, (0,))),
    (S, ["transpose", "0", "2"], lambda b: b.x.transpose(0, 2)),
    (S, ["T: ", "rank 2", "x.mT"], lambda b: b.v.T),
    (S, ["T: ", "rank 2", "x.mT"], lambda b: b.x[None].T),
    (S, ["transpose"], lambda b: b.v.mT),
    (S, ["transpose"], lambda b: b.x.transpose("0", 1)),
    (S, ["broadcast_to", "f32[4, 3]", "[4, 4]"], lambda b: b.x.broadcast_to((4, 4))),
    (S, ["broadcast_to", "f32[4, 3]", "[3]"], lambda b: b.x.broadcast_to((3,))),
    (S, ["broadcast_to", "f32[4, 3]", "[4, 1]"], lambda b: b.x.broadcast_to((4, 1))),
    (S, ["broadcast_to", "-1"], lambda b: b.x.broadcast_to((-1, 3))),
    (S, ["broadcast_to"], lambda b: b.x.broadcast_to(4)),
    (S, ["broadcast_to"], lambda b: b.s.broadcast_to((2**40, 2**40))),
    (G, ["index", "slice(None, None, 0)", "f32[4, 3]"], lambda b: b.x[::0]),
    (G, ["index", "1.5"], lambda b: b.x[1.5:]),
    (S, ["index", "4 on axis 0", "[-4, 4)"], lambda b: b.x[np.array([0, 4])]),
    (G, ["index", "True"], lambda b: b.x[True]),
    (S, ["index", "at most 2"], lambda b: b.x[0, 0, 0]),
    (S, ["slice", "[0]", "[2, 2]", "2 numbers"], lambda b: b.x.slice((0,), (2, 2))),
    (S, ["slice", "[1]", "f32[4, 3]"], lambda b: b.x.slice((0, 0), (2, 2), (1,))),
    (G, ["index", "step"], lambda b: b.x.slice((0, 0), (2, 2), (1, 0))),
    (S, ["stack", "'a'"], lambda b: aicf.stack([b.x, b.y], "a")),
    (S, ["expand_dims", "'a'"], lambda b: b.x.expand_dims("a")),
    (S, ["take", "'a'"], lambda b: b.x.take(b.n, "a")),
    (S, ["concat", "'a'"], lambda b: aicf.concat([b.x, b.y], "a")),
    (S, ["concat", "axis 5"], lambda b: aicf.concat([b.x], 5)),
    (G, ["concat", "at least one"], lambda b: aicf.concat([])),
    (G, ["concat", "Values"], lambda b: aicf.concat(b.x)),
    (S, ["split", "2.0"], lambda b: b.x.split(2.0)),
    (S, ["split", "3 sections", "4"], lambda b: b.x.split(3)),
    (S, ["squeeze", "[0, 0]", "once"], lambda b: b.x[:1].squeeze((0, 0))),
    (S, ["squeeze", "[0, -2]", "once"], lambda b: b.x[:1].squeeze((0, -2))),
    (S, ["pad", "2 (int)", "pairs"], lambda b: b.x.pad(2)),
    (D, ["pad", "0.5", "i64[4]"], lambda b: b.n.pad([(1, 1)], 0.5)),
    (D, ["pad", "-1", "u8[4, 3]"], lambda b: b.u.pad([(1, 1), (0, 0)], -1)),
    # arguments of another kind
    (D, ["clip", "min", "'a'"], lambda b: b.x.clip("a", 3)),
    (G, ["clip", "nan"], lambda b: b.x.clip(float("nan"), 3)),
    (D, ["leaky_relu", "negative_slope", "None"], lambda b: aicf.leaky_relu(b.x, None)),
    (S, ["layer_norm", "normalized_shape", "None"], lambda b: aicf.layer_norm(b.x, None)),
    (S, ["max_pool2d", "kernel_size", "2.5"], lambda b: aicf.max_pool2d(b.x[None], 2.5)),
    (S, ["max_pool2d", "[2, 2]", "half"], lambda b: aicf.max_pool2d(b.x[None], 2, 1, 2)),
    (S, ["avg_pool2d", "[2, 2]", "half"], lambda b: aicf.avg_pool2d(b.x[None], 3, 1, 2)),
    (
        S,
        ["scaled_dot_product_attention", "width 0"],
        lambda b: aicf.scaled_dot_product_attention(b.x[:, :0], b.x[:, :0], b.x),
    ),
    (G, ["setitem", "aicf.where"], lambda b: b.x.__setitem__(0, 1.0)),
    (G, ["Graph", "name", "None"], lambda b: aicf.Graph(None)),
    (G, ["name", "ud800", "UTF-8"], lambda b: b.g.input("\ud800", (2,))),
    (G, ["name", "ud800", "UTF-8"], lambda b: b.g.output("\ud800", b.x)),
    (G, ["batch"], lambda b: aicf.trace(lambda g, x: {"y": x}, batch=(2, 3))),
    # reductions
    (S, ["sum", "axis 2", "[-2, 2)"], lambda b: b.x.sum(2)),
    (S, ["sum", "axis -3", "[-2, 2)"], lambda b: b.x.sum(-3)),
    (S, ["sum", "twice"], lambda b: b.x.sum((0, 0))),
    (S, ["sum", "twice"], lambda b: b.x.sum((1, -1))),
    (S, ["sum", "1.5"], lambda b: b.x.sum(1.5)),
    (S, ["sum", "'0'"], lambda b: b.x.sum("0")),
    (S, ["sum", "None"], lambda b: b.x.sum((0, None))),
    (D, ["sum", "bool[4, 3]", "cast"], lambda b: b.m.sum()),
    (D, ["mean", "u8[4, 3]", "cast"], lambda b: b.u.mean()),
    (D, ["max", "bool[4, 3]", "cast"], lambda b: b.m.max()),
    (S, ["max", "f32[0, 3]", "size 0"], lambda b: b.e.max()),
    (S, ["min", "f32[0, 3]", "size 0"], lambda b: b.e.min(0)),
    (S, ["mean", "axis 5"], lambda b: b.x.mean(5)),
    (G, ["sum", "list"], lambda b: aicf.sum([1.0, 2.0])),
    (S, ["softmax", "axis 2", "f32[4, 3]"], lambda b: aicf.softmax(b.x, 2)),
    (S, ["log_softmax", "axis -3", "f32[4, 3]"], lambda b: aicf.log_softmax(b.x, -3)),
    (S, ["softmax", "axis -1", "f32[]"], lambda b: aicf.softmax(b.s)),
    (D, ["softmax", "i64[4]", "cast"], lambda b: aicf.softmax(b.n)),
    (aicf.Error, ["softmax", "axis"], lambda b: aicf.softmax(b.x, axis=0.5)),
    (aicf.Error, ["axis"], lambda b: aicf.softmax(b.x, axis=2**70)),
    # products
    (S, ["matmul", "f32[4, 3]", "f32[5, 2]"], lambda b: b.x @ b.z),
    (S, ["matmul", "f32[4, 3]"], lambda b: b.x @ b.y),
    (S, ["matmul", "f32[3]", "f32[4, 3]"], lambda b: b.v @ b.x),
    (S, ["matmul", "f32[]"], lambda b: b.x @ b.s),
    (S, ["matmul", "batch"], lambda b: b.x.reshape((2, 2, 3)) @ b.x.reshape((4, 3, 1))),
    (D, ["matmul", "f32[4, 3]", "f64[3, 4]", "cast"], lambda b: b.x @ b.d.T),
    (D, ["matmul", "u8[4, 3]", "cast"], lambda b: b.u @ b.u.T),
    (S, ["matmul"], lambda b: b.x @ np.ones((2, 2), np.float32)),
    (S, ["linear", "f32[5, 2]", "f32[2, 3]", "(out, in)"], lambda b: aicf.linear(b.z, b.W)),
    (S, ["linear", "f32[3]", "rank 2"], lambda b: aicf.linear(b.x, b.v)),
    (S, ["linear", "f32[3]", "b.shape[0]"], lambda b: aicf.linear(b.x, b.W, b.v)),
    (S, ["linear", "rank 1"], lambda b: aicf.linear(b.x, b.W, b.K)),
    (S, ["linear", "f32[]"], lambda b: aicf.linear(b.s, b.W)),
    (D, ["linear", "f64[4, 3]", "f32[2, 3]"], lambda b: aicf.linear(b.d, b.W)),
    (D, ["linear", "u8[4, 3]"], lambda b: aicf.linear(b.u, b.W)),
    (S, ["dense", "rank 0"], lambda b: b.g.dense("q", b.s, 3)),
    (S, ["dense.W", "-1"], lambda b: b.g.dense("dense", b.x, -1)),
    (S, ["dense2", "2.5"], lambda b: b.g.dense("dense2", b.x, 2.5)),
    (G, ["dense", "int"], lambda b: b.g.dense("q", 5, 2)),
    # losses
    (S, ["mse_loss", "f32[4, 3]", "f32[5, 2]"], lambda b: aicf.mse_loss(b.x, b.z)),
    (S, ["mse_loss", "f32[4, 3]", "f32[3]"], lambda b: aicf.mse_loss(b.x, b.v)),
    (D, ["mse_loss", "f32[4, 3]", "f64[4, 3]"], lambda b: aicf.mse_loss(b.x, b.d)),
    (D, ["mse_loss", "i64[4]"], lambda b: aicf.mse_loss(b.n, b.n)),
    (D, ["cross_entropy", "f32[3]", "int32"], lambda b: aicf.cross_entropy(b.x.T, b.v)),
    (S, ["cross_entropy", "f32[5, 2]", "i64[4]"], lambda b: aicf.cross_entropy(b.z, b.n)),
    (S, ["cross_entropy", "f32[3]", "rank 2"], lambda b: aicf.cross_entropy(b.v, b.n)),
    (S, ["cross_entropy", "rank 1"], lambda b: aicf.cross_entropy(b.x, b.u)),
    (D, ["cross_entropy", "u8"], lambda b: aicf.cross_entropy(b.u, b.n)),
    # leaves
    (G, ['"x"', "taken", "%0"], lambda b: b.g.input("x", (1,))),
    (G, ['"W"', "taken"], lambda b: b.g.param("W", (1,))),
    (G, ['"k"', "taken"], lambda b: b.g.state("k", (1,))),
    (G, ["name"], lambda b: b.g.input("", (1,))),
    (S, ['"q"', "[-1, 2]"], lambda b: b.g.input("q", (-1, 2))),
    (S, ["q", "2"], lambda b: b.g.input("q", 2)),
    (S, ["q", "2.5"], lambda b: b.g.input("q", (2.5,))),
    (S, ["q", "None"], lambda b: b.g.input("q", (None, 3))),
    (S, ["9", "8"], lambda b: b.g.input("q", (1,) * 9)),
    (S, ['"q"', "4611686018427387904"], lambda b: b.g.input("q", (2**62, 2**62))),
    (aicf.Error, ["q"], lambda b: b.g.input("q", (2**70,))),
    (aicf.Error, ["5"], lambda b: b.g.input(5, (2,))),
    (D, ["float33"], lambda b: b.g.input("q", (2,), "float33")),
    (D, ["complex128"], lambda b: b.g.input("q", (2,), np.complex128)),
    (S, ["q", "f32[3]", "f32[2]"], lambda b: b.g.param("q", (2,), init=np.zeros(3, np.float32))),
    (D, ["q", "f64[2]", "f32[2]"], lambda b: b.g.param("q", (2,), init=np.zeros(2))),
    (G, ["q", "spiral"], lambda b: b.g.param("q", (2,), init=("spiral",))),
    (aicf.Error, ["q"], lambda b: b.g.param("q", (2,), init="zeros")),
    (aicf.Error, ["q"], lambda b: b.g.param("q", (2,), init=("uniform",))),
    (aicf.Error, ["q"], lambda b: b.g.param("q", (2,), init=object())),
    (aicf.Error, ["constant"], lambda b: b.g.constant([[1.0], [1.0, 2.0]])),
    (aicf.Error, ["constant"], lambda b: b.g.constant("text")),
    (D, ["constant", "float9"], lambda b: b.g.constant(1.0, "float9")),
    (D, ["constant", "int32"], lambda b: b.g.constant(1.5, "int32")),
    (D, ["constant", "complex"], lambda b: b.g.constant(np.zeros(2, np.complex64))),
    # assign, output
    (G, ["assign", '"x"', "input"], lambda b: b.g.assign(b.x, b.y)),
    (G, ["assign", "temp"], lambda b: b.g.assign(b.x + b.y, b.y)),
    (S, ["assign", '"W"', "f32[4, 3]", "f32[2, 3]"], lambda b: b.g.assign(b.W, b.x)),
    (D, ["assign", '"k"', "i32[]", "f32[]"], lambda b: b.g.assign(b.k, b.s)),
    (G, ["assign", "int"], lambda b: b.g.assign(b.W, 1)),
    (G, ["assign", "other"], lambda b: b.g.assign(b.W, b.alien)),
    (
        G,
        ["assign", "0.W", "assigned once"],
        lambda b: b.train.assign(
            aicf.Value(b.train, b.train._core.find("0.W")),
            aicf.Value(b.train, b.train._core.find("0.W")),
        ),
    ),
    (G, ['"loss"', "taken"], lambda b: b.train.output("loss", aicf.Value(b.train, 0))),
    (G, ['"q"', "keep is 0"], lambda b: b.g.output("q", b.x, keep=0)),
    (G, ['"q"', "keep is -3"], lambda b: b.g.output("q", b.x, keep=-3)),
    (aicf.Error, ["q", "keep"], lambda b: b.g.output("q", b.x, keep=2.5)),
    (aicf.Error, ["q", "keep"], lambda b: b.g.output("q", b.x, keep=2**40)),
    (G, ["output", "float"], lambda b: b.g.output("q", 1.0)),
    (G, ["output", "other"], lambda b: b.g.output("q", b.alien)),
    # backward, minimize
    (S, ["backward", "f32[4, 3]", "rank 0"], lambda b: b.g.backward(b.x * 2.0, [b.x])),
    (D, ["backward", "i64[]", "float"], lambda b: b.g.backward(b.n.sum(), [b.x])),
    (G, ["backward", '"y"', "does not depend"], lambda b: b.g.backward(b.x.sum(), [b.y])),
    (D, ["backward", '"u"', "u8"], lambda b: b.g.backward(aicf.cast(b.u, "float32").sum(), [b.u])),
    (S, ["backward", "grad", "f32[5, 2]"], lambda b: b.g.backward(b.x + b.y, [b.x], grad=b.z)),
    (G, ["backward", "wrt is [1]"], lambda b: b.g.backward(b.x.sum(), [1])),
    (G, ["backward", "float"], lambda b: b.g.backward(1.0)),
    (G, ["backward", "other"], lambda b: b.g.backward(b.alien.sum(), [b.x])),
    (
        G,
        ["backward", "lt", "has no gradient", '"x"'],
        lambda b: b.g.backward(aicf.cast(b.x < b.y, "float32").sum(), [b.x]),
    ),
    (
        G,
        ["backward", "cast", "int32", '"x"'],
        lambda b: b.g.backward(b.x.cast("int32").cast("float32").sum(), [b.x]),
    ),
    (S, ["backward", "f32[4, 3]", "rank 0"], lambda b: aicf.grad(b.x * 2.0, b.x)),
    (G, ["grad: wrt", "Value"], lambda b: aicf.grad(b.x.sum(), 3)),
    (G, ["jvp: value", "Value"], lambda b: aicf.jvp(1.0, b.x, b.x)),
    (G, ["minimize", "at least one"], lambda b: b.g.minimize(b.x.sum(), aicf.optim.SGD())),
    (S, ["backward", "f32[4, 3]"], lambda b: b.g.minimize(b.x * 2.0, aicf.optim.SGD())),
    (aicf.Error, ["minimize"], lambda b: b.g.minimize(b.W.sum(), "adam")),
    (G, ["minimize", "Adam"], lambda b: b.g.minimize(b.W.sum(), aicf.optim.Adam)),
    (G, ["Adam", "betas", "(0.9,)", "pair"], lambda b: aicf.optim.Adam(betas=(0.9,))),
    (G, ["AdamW", "betas", "0.9", "pair"], lambda b: aicf.optim.AdamW(betas=0.9)),
    (G, ["Adam", "betas[1]", "1.0", "[0, 1.0)"], lambda b: aicf.optim.Adam(betas=(0.9, 1.0))),
    (D, ["Adam", "betas[0]", "'a'"], lambda b: aicf.optim.Adam(betas=("a", 0.9))),
    (G, ["SGD", "lr", "-0.1", "[0, inf)"], lambda b: aicf.optim.SGD(lr=-0.1)),
    (G, ["SGD", "lr", "nan"], lambda b: aicf.optim.SGD(lr=float("nan"))),
    (G, ["SGD", "momentum", "-1"], lambda b: aicf.optim.SGD(momentum=-1)),
    (G, ["SGD", "nesterov", "'no'"], lambda b: aicf.optim.SGD(nesterov="no")),
    (G, ["AdamW", "weight_decay", "-2"], lambda b: aicf.optim.AdamW(weight_decay=-2)),
    (G, ["RMSprop", "eps", "inf"], lambda b: aicf.optim.RMSprop(eps=float("inf"))),
    (
        G,
        ["clip_norm", "0", "> 0"],
        lambda b: b.g.minimize(b.W.sum(), aicf.optim.SGD(), clip_norm=0),
    ),
    (G, ["max_norm", "-1", "> 0"], lambda b: aicf.optim.clip_grad_norm({b.W: b.W}, -1)),
    (D, ["SGD", "lr", "fast"], lambda b: b.g.minimize(b.W.sum(), aicf.optim.SGD(lr="fast"))),
    (aicf.Error, ["lr", "f32[3]"], lambda b: b.g.minimize(b.W.sum(), aicf.optim.SGD(lr=b.v))),
    # update
    (G, ["update", "at least one"], lambda b: b.g.update({}, aicf.optim.SGD())),
    (G, ["update", "'x'", "param"], lambda b: b.g.update({b.x: b.y}, aicf.optim.SGD())),
    (S, ["update", "f32[4, 3]", "f32[2, 3]"], lambda b: b.g.update({b.W: b.x}, aicf.optim.SGD())),
    (G, ["update", "other"], lambda b: b.g.update({b.W: b.alien}, aicf.optim.SGD())),
    (D, ["update", "f32[2, 3]", "f64"], lambda b: b.g.update({b.W: wide_W(b)}, aicf.optim.SGD())),
    (G, ["update", "Adam"], lambda b: b.g.update({b.W: b.W * 2.0}, "adam")),
    (G, ["low", "2", "1"], lambda b: b.g.random_uniform((2,), 2.0, 1.0)),
    (aicf.Error, ["low", "nan"], lambda b: b.g.random_uniform((2,), float("nan"), 1.0)),
    (aicf.Error, ["trace", "list"], lambda b: aicf.trace(lambda g, x: [x], x=(2,))),
    # compile
    (G, ["device", "gpu"], lambda b: b.train.compile(device="gpu")),
    (G, ["device", "cpu:1"], lambda b: b.train.compile(device="cpu:1")),
    (aicf.DeviceUnavailable, ["cuda"], lambda b: b.train.compile(device="cuda:99")),
    (aicf.Error, ["device"], lambda b: b.train.compile(device=None)),
    (G, ["seed", "-1"], lambda b: b.train.compile(seed=-1)),
    (G, ["seed", "1.5"], lambda b: b.train.compile(seed=1.5)),
    (G, ["seed"], lambda b: b.train.compile(seed=2**64)),
    (G, ["passes", "fastest"], lambda b: b.train.compile(passes=("fastest",))),
    (G, ["passes", "none"], lambda b: b.train.compile(passes="none")),
    (G, ["math", "fp8", "tf32"], lambda b: b.train.compile(math="fp8")),
    (G, ["math", "Mixed", "mixed"], lambda b: b.train.compile(device="cpu", math="Mixed")),
    (G, ["capture", "'no'"], lambda b: b.train.compile(capture="no")),
    (G, ["passes", "(1,)", "fuse"], lambda b: b.train.compile(passes=(1,))),
    (G, ["params", "[1]", "mapping"], lambda b: b.train.compile(params=[1])),
    (D, ["0.b", "bytes"], lambda b: b.train.compile(params={"0.b": b"12345678"})),
    (G, ["graph", "None"], lambda b: aicf.Step(None)),
    (G, ["deterministic", "'no'"], lambda b: b.train.compile(deterministic="no")),
    (G, ["sync", "later", "full"], lambda b: b.step.run(x=b.xb, t=b.tb, sync="later")),
    (G, ["sync", "3", "full"], lambda b: b.step.run(x=b.xb, t=b.tb, sync=3)),
    (G, ["nothing", "0.W"], lambda b: b.train.compile(params={"nothing": 1.0})),
    (
        S,
        ["0.W", "f32[2, 2]", "f32[2, 3]"],
        lambda b: b.train.compile(params={"0.W": np.zeros((2, 2), np.float32)}),
    ),
    (D, ["0.W", "f64[2, 3]"], lambda b: b.train.compile(params={"0.W": np.zeros((2, 3))})),
    (G, ["share", "1"], lambda b: b.train.compile(share=[1])),
    (aicf.Error, ["share"], lambda b: b.train.compile(share=5)),
    (S, ["0.W", "f32[2, 3]", "f32[3, 2]"], lambda b: b.compile_other(b.step, shape=(3, 2))),
    (D, ["0.W", "f64[2, 3]", "f32[2, 3]"], lambda b: b.compile_other(b.step, dtype="float64")),
    # calls of a step
    (G, ["input", '"t"', "f32[4, 2]", "missing"], lambda b: b.step(x=b.xb)),
    (G, ["input", "missing"], lambda b: b.step()),
    (G, ['"q"', "input x"], lambda b: b.step(x=b.xb, t=b.tb, q=b.xb)),
    (
        G,
        ['"0.W"', "param"],
        lambda b: b.step(x=b.xb, t=b.tb, **{"0.W": np.zeros((2, 3), np.float32)}),
    ),
    (S, ['"x"', "f32[3, 4]", "f32[4, 3]"], lambda b: b.step(x=b.xb.T, t=b.tb)),
    (S, ['"x"', "f32[5, 3]"], lambda b: b.step(x=np.zeros((5, 3), np.float32), t=b.tb)),
    (S, ['"x"', "f32[]"], lambda b: b.step(x=1.0, t=b.tb)),
    (D, ['"x"', "f64[4, 3]", "cast"], lambda b: b.step(x=b.xb.astype(float), t=b.tb)),
    (D, ['"x"', "f16[4, 3]", "cast"], lambda b: b.step(x=b.xb.astype(np.float16), t=b.tb)),
    (D, ["x", "complex"], lambda b: b.step(x=b.xb.astype(complex), t=b.tb)),
    (D, ["x", "uint16"], lambda b: b.step(x=b.xb.astype(np.uint16), t=b.tb)),
    (D, ["x"], lambda b: b.step(x=b.xb.astype(object), t=b.tb)),
    (D, ["x"], lambda b: b.step(x=b.xb.astype(">f4"), t=b.tb)),
    (aicf.Error, ["x"], lambda b: b.step(x="text", t=b.tb)),
    (aicf.Error, ["x"], lambda b: b.step(x=None, t=b.tb)),
    (aicf.Error, ["x"], lambda b: b.step(x=[[1.0], [1.0, 2.0]], t=b.tb)),
    (aicf.Error, ["x"], lambda b: b.step(x={"a": 1}, t=b.tb)),
    (D, ['"x"', "f64[4, 3]"], lambda b: b.step.run(x=b.xb.astype(float), t=b.tb)),
    (S, ['"t"', "f32[4, 3]"], lambda b: b.step.run(x=b.xb, t=b.xb)),
    (G, ['"q"'], lambda b: b.step.run(q=b.xb)),
    (aicf.Error, ['"0.W"', "param"], lambda b: b.step.run(**{"0.W": np.zeros((2, 3), np.float32)})),
    (G, ["replay", "-1"], lambda b: b.step.replay(-1)),
    (aicf.Error, ["replay", "1.5"], lambda b: b.step.replay(1.5)),
    (aicf.Error, ["replay"], lambda b: b.step.replay(2**70)),
    (C, ["replay", "capture()"], lambda b: b.train.compile(device="cpu", capture=False).replay()),
    (C, ["trace", "capture()"], lambda b: b.train.compile(device="cpu", capture=False).trace),
    (aicf.StaleOutput, ['"loss"', "copy()"], lambda b: b.stale()),
    (
        aicf.BadValue,
        ['"x"', "NaN at [0, 0]", "f32[4, 3]"],
        lambda b: b.train.compile(device="cpu", check=True)(x=b.xb * np.nan, t=b.tb),
    ),
    (G, ["output", '"q"', "loss"], lambda b: b.step.outputs["q"]),
    (G, ["y", "no step"], lambda b: b.train.compile(device="cpu").outputs["y"].numpy()),
    (G, ["stream", "cpu"], lambda b: b.step.replay(stream=0)),
    (G, ["stream", "'s'"], lambda b: b.step.replay(stream="s")),
    (G, ["stream", "cpu"], lambda b: b.step(x=b.xb, t=b.tb, stream=1)),
    # state
    (G, ['"q"', "opt.lr"], lambda b: b.step.set("q", 1.0)),
    (G, ['"0.W"'], lambda b: b.step.set("0.W", 1.0)),
    (S, ["opt.m.0.W", "(2, 3)"], lambda b: b.step.set("opt.m.0.W", 1.0)),
    (D, ["opt.lr", "'fast'"], lambda b: b.step.set("opt.lr", "fast")),
    (D, ["opt.lr"], lambda b: b.step.set("opt.lr", np.ones(1))),
    (D, ["opt.step", "int32"], lambda b: b.step.set("opt.step", 1.5)),
    (D, ["opt.step", "int32"], lambda b: b.step.set("opt.step", 2**40)),
    (G, ['"q"', "0.W"], lambda b: b.step.params["q"]),
    (G, ['"opt.lr"'], lambda b: b.step.params["opt.lr"]),
    (
        S,
        ['"0.W"', "f32[3, 2]"],
        lambda b: b.step.params.__setitem__("0.W", np.zeros((3, 2), np.float32)),
    ),
    (D, ['"0.W"', "f64[2, 3]"], lambda b: b.step.params.__setitem__("0.W", np.zeros((2, 3)))),
    (G, ["load_state_dict", "missing", "0.W"], lambda b: b.step.load_state_dict({})),
    (
        G,
        ["load_state_dict", "unknown", "q"],
        lambda b: b.step.load_state_dict({**b.step.state_dict(), "q": 1}),
    ),
    (
        S,
        ["load_state_dict", "0.b", "(3,)", "(2,)"],
        lambda b: b.step.load_state_dict({**b.step.state_dict(), "0.b": np.zeros(3, np.float32)}),
    ),
    (
        D,
        ["load_state_dict", "0.b", "float64"],
        lambda b: b.step.load_state_dict({**b.step.state_dict(), "0.b": np.zeros(2)}),
    ),
    (
        D,
        ["load_state_dict", "opt.step", "int64"],
        lambda b: b.step.load_state_dict({**b.step.state_dict(), "opt.step": np.int64(1)}),
    ),
    (aicf.Error, ["load_state_dict"], lambda b: b.step.load_state_dict(None)),
    (
        aicf.Error,
        ["load_state_dict", "0.b"],
        lambda b: b.step.load_state_dict({**b.step.state_dict(), "0.b": "ab"}),
    ),
    # bind
    (G, ['"q"'], lambda b: b.step.bind(q=b.xb)),
    (G, ['"self"', "x"], lambda b: b.step.bind(self=b.xb)),
    (G, ['"self"', "x"], lambda b: b.step(self=b.xb)),
    (G, ["ud800", "x"], lambda b: b.step(**{"\ud800": b.xb})),
    (G, ["ud800", "x"], lambda b: b.step.bind(**{"\ud800": b.xb})),
    (S, ["bind", '"x"', "f32[4, 2]", "f32[4, 3]"], lambda b: b.step.bind(x=b.tb)),
    (D, ["bind", '"x"', "f64"], lambda b: b.step.bind(x=b.xb.astype(float))),
    (S, ["bind", '"x"', "strides", "C order"], lambda b: b.step.bind(x=strided((4, 3)))),
    (G, ["bind", "0.W", "read-only"], lambda b: b.step.bind(**{"0.W": b.read_only()})),
    (aicf.Error, ["x"], lambda b: b.step.bind(x=[[0.0] * 3] * 4)),
    (aicf.Error, ["x"], lambda b: b.step.bind(x=None)),
    (G, ['"ring"', "keeps 3", "keep=1"], lambda b: b.step.bind(ring=np.zeros((3,), np.float32))),
    # files
    (F, ["from_json"], lambda b: aicf.Graph.from_json("")),
    (F, ["from_json"], lambda b: aicf.Graph.from_json("[]")),
    (F, ["from_json"], lambda b: aicf.Graph.from_json("{")),
    (F, ["from_json"], lambda b: aicf.Graph.from_json(b"\xff\xfe\x00")),
    (F, ["values"], lambda b: aicf.Graph.from_json('{"graph": "g", "nodes": []}')),
    (
        F,
        ["version", "2"],
        lambda b: aicf.Graph.from_json('{"graph": "g", "version": 2, "values": {}, "nodes": []}'),
    ),
    (F, ["from_json"], lambda b: aicf.Graph.from_json(None)),
    (F, ["from_json"], lambda b: aicf.Graph.from_json(5)),
]

ALLOWED_WITHOUT_FIX = (aicf.FormatError,)


@pytest.fixture(scope="module")
def bench():
    return Bench()


@pytest.fixture(scope="module")
def reference():
    """The reference step, a way to hash it, and the hash."""
    case = verify.CASES["train_step_distinct"]
    step = verify.build("reference", case).compile(device="cpu", seed=0)
    start = step.state_dict()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.batch, case.inputs)).astype(np.float32)
    t = rng.standard_normal((case.batch, case.outputs)).astype(np.float32)

    def run():
        step.load_state_dict(start)
        step(x=x, t=t)
        step.replay(2)
        return verify.state_hash(step)

    return run, run()


def test_table_size():
    assert len(TABLE) >= 150


@pytest.mark.parametrize("index", range(len(TABLE)))
def test_malformed_call(index, bench, reference):
    kind, words, call = TABLE[index]
    before = verify.state_hash(bench.step) if "stale" not in call.__code__.co_names else None
    with pytest.raises(aicf.Error) as caught:
        call(bench)
    error, text = caught.value, str(caught.value)
    assert isinstance(error, kind), f"{type(error).__name__}: {text}"
    assert not isinstance(error, aicf.InternalError), text
    if kind in BUILTIN:
        assert isinstance(error, BUILTIN[kind])
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    if kind is not aicf.FormatError:
        assert FIX.search(text), f"no fix in: {text}"
    if before:
        assert verify.state_hash(bench.step) == before, "the failed call wrote state"
    run, expected = reference
    assert run() == expected, "the reference step no longer gives the same bits"


def test_errors_are_typed():
    """Every error is an aicf.Error and the builtin that a Python programmer expects."""
    for kind, builtin in BUILTIN.items():
        assert issubclass(kind, aicf.Error) and issubclass(kind, builtin)
    assert issubclass(aicf.OutOfMemory, MemoryError)


def test_failed_calls_leave_the_graph_alone():
    """A call that raises appends nothing."""
    g = aicf.Graph("still")
    x, w = g.input("x", (4, 3)), g.param("w", (4, 3))
    g.param("taken.b", (2,))
    g.state("k.eps", (), init=aicf.init.constant(3.0))
    mean, wide, twice = g.state("mean", (3,)), x.cast("float64"), w * 2.0
    hidden, loss = aicf.cast(x, "int32").sum(), (w * 1.0).sum()
    calls = [
        lambda: g.input("x", (1,)),
        lambda: x.reshape((5, 2)),
        lambda: x.sum(4),
        lambda: aicf.cast(x, "nothing"),
        lambda: g.backward(hidden, [x]),
        lambda: g.backward(loss, [x, w]),
        lambda: x @ x,
        lambda: g.dense("d", x, 2, bias="yes"),
        lambda: g.dense("taken", x, 3),
        lambda: g.minimize(loss, aicf.optim.Adam(lr=x)),
        lambda: g.minimize(loss, aicf.optim.Adam(), name="k"),
        lambda: g.minimize(loss, aicf.optim.SGD(momentum=0.9), clip_norm=x),
        lambda: g.update({w: twice}, aicf.optim.AdamW(eps=x)),
        lambda: g.random_uniform((2,), 2.0, 1.0),
        lambda: aicf.dropout(x, 2.0),
        lambda: aicf.layer_norm(x, 3, w, wide),
        lambda: aicf.batch_norm(x, mean, w),
    ]
    for call in calls:
        x.cast("int32")  # something to keep
        before = g.to_json()
        with pytest.raises(aicf.Error):
            call()
        assert g.to_json() == before


def test_late_error_names_the_users_line():
    """What only the whole graph shows still points at the line that made the node."""
    g = aicf.Graph("late")
    w = g.param("w", (3,))
    hidden = aicf.cast(w > 0.0, "float32")
    with pytest.raises(aicf.GraphError, match=r"test_errors\.py:\d+"):
        g.backward(hidden.sum(), [w])
