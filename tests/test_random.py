"""The random generator: known answers, replays that differ, seeds that bring them back."""

import math

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits, rounded
from op_cases_layers import normals, philox_words, uniforms

# Random123's kat_vectors, philox4x32-10: counter words, key words, result words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, words", KNOWN)
def test_known_answers(counter, key, words):
    low, high = counter[0] | counter[1] << 32, counter[2] | counter[3] << 32
    assert _core.philox(low, high, key[0] | key[1] << 32) == words


@pytest.mark.parametrize("counter, key, words", KNOWN)
def test_reference_has_the_known_answers(counter, key, words):
    """The generator in plain Python, at whose counters the op table looks."""
    stream_key = 0x9E3779B97F4A7C15  # what stream 0 adds to the seed
    seed = (key[0] | key[1] << 32) ^ stream_key
    block, step = counter[0] | counter[1] << 32, counter[2] | counter[3] << 32
    if block == 0:
        assert tuple(philox_words(4, step, seed, 0)) == words
    else:
        assert _core.philox(block, step, seed ^ stream_key) == words


def noise(make, device="cpu", keep=1, **options):
    g = aicf.Graph("noise")
    g.output("y", make(g), keep=keep)
    return g.compile(device=device, **options)


MAKERS = {
    "uniform": lambda g: g.random_uniform((40, 50)),
    "normal": lambda g: g.random_normal((40, 50)),
    "mask": lambda g: aicf.dropout(g.constant(np.ones((40, 50), np.float32)), 0.3),
    "int": lambda g: g.random_int((40, 5), -7, 2**31),
    "permutation": lambda g: g.random_permutation(300),
    "classes": lambda g: aicf.categorical(g.constant(np.zeros((300, 9), np.float32))),
    "soft": lambda g: aicf.gumbel_softmax(g.constant(np.zeros((30, 9), np.float32)), 0.7),
    "truncated": lambda g: g.random_truncated_normal((300,)),
}
EACH = pytest.mark.parametrize("name", MAKERS)


@EACH
def test_thousand_replays(name, device):
    """All distinct; setting the counter back brings each again, bit for bit."""
    step = noise(MAKERS[name], device, seed=11)
    seen = [step.replay()["y"].numpy().tobytes() for _ in range(1000)]
    assert len(set(seen)) == 1000
    assert int(step.state["rng.step"]) == 1000
    step.set("rng.step", 0)
    again = [step.replay()["y"].numpy().tobytes() for _ in range(20)]
    assert again == seen[:20]
    same, other = noise(MAKERS[name], device, seed=11), noise(MAKERS[name], device, seed=12)
    assert same.replay()["y"].numpy().tobytes() == seen[0]
    assert other.replay()["y"].numpy().tobytes() not in seen


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "low, high", [(1.0, 2.0), (0.0, 1.0), (-2.0, -1.0), (-1.0, 0.0), (3.0, 3.0)]
)
def test_uniform_stays_below_high(low, high, dtype, device):
    """Rounding to the dtype never reaches `high`: a million numbers, most would in 16 bits."""
    make = lambda g: g.random_uniform((1 << 20,), low, high, dtype)  # noqa: E731
    y = noise(make, device, seed=1).replay()["y"].numpy()
    assert y.min() >= low
    assert y.max() < high or low == high == y.max()


@EACH
def test_eager_equals_replay(name, device):
    eager, replayed = (noise(MAKERS[name], device, seed=3) for _ in range(2))
    for _ in range(10):
        assert_bits(replayed.replay()["y"].numpy(), eager.run()["y"].numpy(), name)


@EACH
def test_threads_change_no_bit(name):
    results = []
    try:
        for threads in (1, 2, 3):
            aicf.set_num_threads(threads)
            results.append(noise(MAKERS[name], seed=4).replay(3)["y"].numpy().tobytes())
    finally:
        aicf.set_num_threads(0)
    assert len(set(results)) == 1


def test_resumed_from_checkpoint(device, tmp_path):
    """The seed and the counter are states: a loaded Step goes on with the same numbers."""
    first = noise(MAKERS["normal"], device, seed=5)
    first.replay(7)
    first.save(tmp_path / "half")
    second = noise(MAKERS["normal"], device, seed=6)
    second.load(tmp_path / "half")
    for _ in range(3):
        assert_bits(second.replay()["y"].numpy(), first.replay()["y"].numpy())


def test_values_by_reference(device):
    """Element, step, seed and stream alone say what a number is."""

    def make(g):
        g.output("other", g.random_normal((3, 5), 1.0, 2.0))
        return g.random_uniform((2, 7), -1.0, 3.0)

    step = noise(make, device, seed=9)
    for count in range(3):
        seed = int(step.state["rng.seed"])
        out = step.replay()
        want = normals((3, 5), seed, count, 0) * 2 + 1
        np.testing.assert_allclose(out["other"].numpy(), want, rtol=3e-6, atol=3e-6)
        want = uniforms((2, 7), seed, count, 1) * 4 - 1
        np.testing.assert_allclose(out["y"].numpy(), want, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_moments(dtype, device):
    count = 200_000
    u = noise(lambda g: g.random_uniform((count,), 2.0, 6.0, dtype), device).replay()["y"].numpy()
    z = noise(lambda g: g.random_normal((count,), 3.0, 0.5, dtype), device).replay()["y"].numpy()
    assert u.dtype == z.dtype == np.dtype(dtype)
    u, z = u.astype(np.float64), z.astype(np.float64)
    assert u.min() >= 2 and (u.max() < 6 or dtype == "float16")
    assert abs(u.mean() - 4) < 0.02 and abs(u.var() - 16 / 12) < 0.02
    assert abs(z.mean() - 3) < 0.01 and abs(z.std() - 0.5) < 0.005
    standard = (z - 3) / 0.5
    assert abs((standard**3).mean()) < 0.05 and abs((standard**4).mean() - 3) < 0.1
    assert abs((np.abs(standard) < 1).mean() - 0.6827) < 0.005
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("low, high", [(0, 7), (-3, 5), (5, 6), (2**40, 2**40 + 3), (0, 2**32)])
def test_whole_numbers(low, high, device):
    """Each as often as any other, none outside."""
    count = 100_000
    y = noise(lambda g: g.random_int((count,), low, high), device, seed=2).replay()["y"].numpy()
    assert y.dtype == np.int64 and y.min() >= low and y.max() < high
    parts = min(high - low, 8)
    share = np.bincount((y - low) * parts // (high - low), minlength=parts) / count
    assert np.abs(share - 1 / parts).max() < 0.005
    small = noise(lambda g: g.random_int((9,), 0, 3, "uint8"), device).replay()["y"].numpy()
    assert small.dtype == np.uint8 and small.max() < 3


@pytest.mark.parametrize("n", [0, 1, 5, 3000])
def test_permutations(n, device):
    """Every number once; each place sees each number alike."""
    step = noise(lambda g: g.random_permutation(n), device, seed=3)
    seen = np.stack([step.replay()["y"].numpy() for _ in range(600 if n == 5 else 2)])
    np.testing.assert_array_equal(np.sort(seen, 1), np.broadcast_to(np.arange(n), seen.shape))
    if n == 5:
        share = (seen[..., None] == np.arange(5)).mean(0)
        assert np.abs(share - 0.2).max() < 0.06


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bernoulli_and_classes(dtype, device):
    p = np.array([0.0, 0.1, 0.5, 0.9, 1.0], dtype)
    with np.errstate(divide="ignore"):
        logits = np.log(p)
    g = aicf.Graph("classes")
    many = aicf.broadcast_to(g.input("p", p.shape, dtype), (40_000, 5))
    scores = aicf.broadcast_to(g.input("l", p.shape, dtype), (40_000, 5))
    g.output("ones", aicf.bernoulli(many))
    g.output("classes", aicf.categorical(scores))
    g.output("across", aicf.categorical(scores.T, 0))
    g.output("hard", aicf.gumbel_softmax(scores, 0.5, hard=True))
    g.output("half", g.random_bernoulli((40_000,), 0.25))
    out = g.compile(device=device, seed=8)(p=p, l=logits)
    ones = out["ones"].numpy()
    assert ones.dtype == p.dtype and set(np.unique(ones)) == {0, 1}
    assert np.abs(ones.astype(float).mean(0) - p).max() < 0.01
    want = p.astype(float) / p.astype(float).sum()
    for name in ("classes", "across"):
        share = np.bincount(out[name].numpy(), minlength=5) / 40_000
        assert np.abs(share - want).max() < 0.01, name
    hard = out["hard"].numpy().astype(float)
    np.testing.assert_allclose(hard.sum(1), 1, atol=1e-3)
    assert np.abs(hard.mean(0) - want).max() < 0.01
    assert out["half"].numpy().dtype == bool and abs(out["half"].numpy().mean() - 0.25) < 0.01


def test_gradient_of_gumbel_softmax(device):
    """That of the softmax, hard or not, with the same noise."""
    found = []
    for hard in (False, True):
        g = aicf.Graph("gumbel")
        x = g.input("x", (6, 4))
        y = aicf.gumbel_softmax(x, 0.8, hard)
        g.output("y", y)
        g.output("dx", g.backward(aicf.sum(y * np.pi * x), [x])[x] - y * np.pi)
        found.append(g.compile(device=device, seed=5)(x=np.eye(6, 4, dtype=np.float32)))
    soft, hard = (one["y"].numpy() for one in found)
    np.testing.assert_array_equal(hard.argmax(1), soft.argmax(1))
    np.testing.assert_allclose(found[0]["dx"].numpy(), found[1]["dx"].numpy(), atol=1e-6)


@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (-0.5, 3.0), (1.0, 6.0), (-np.inf, np.inf)])
def test_truncated_normal(low, high, device):
    """Its distribution is the normal one between the limits."""
    make = lambda g: g.random_truncated_normal((100_000,), 1.0, 2.0, low, high, "float64")  # noqa: E731
    z = (noise(make, device, seed=6).replay()["y"].numpy() - 1) / 2
    assert z.min() >= low and z.max() <= high and np.isfinite(z).all()
    below = np.vectorize(math.erf)(np.linspace(-3, 4, 29) / math.sqrt(2)) / 2 + 0.5
    a, b = (math.erf(limit / math.sqrt(2)) / 2 + 0.5 for limit in (low, high))
    want = np.clip((below - a) / (b - a), 0, 1)
    got = (z[:, None] <= np.linspace(-3, 4, 29)).mean(0)
    assert np.abs(got - want).max() < 0.006


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda g, x: g.random_int((2,), 3, 3), "random_int: low is 3, high is 3"),
        (lambda g, x: g.random_permutation(-1), "random_permutation: n is -1"),
        (lambda g, x: g.random_bernoulli((2,), 1.5), "random_bernoulli: p is 1.5"),
        (lambda g, x: g.random_truncated_normal((2,), low=3.0, high=2.0), "need .* low < high"),
        (lambda g, x: g.random_truncated_normal((2,), low=30.0, high=31.0), "nothing of float64"),
        (lambda g, x: aicf.gumbel_softmax(x, 0.0), "gumbel_softmax: tau is 0"),
        (lambda g, x: aicf.categorical(x, 2), "categorical: axis 2"),
    ],
)
def test_draws_that_are_refused(call, text):
    g = aicf.Graph("refused")
    with pytest.raises(aicf.Error, match=text):
        call(g, g.input("x", (4, 3)))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout(p, device):
    """The kept share is 1 - p, kept elements grow by 1 / (1 - p), the gradient has the mask."""
    count = 100_000
    g = aicf.Graph("dropout")
    x = g.param("x", (count,), init=aicf.init.constant(3.0))
    y = aicf.dropout(x, p)
    g.output("y", y)
    g.output("dx", g.backward(y.sum(), [x])[x])
    out = g.compile(device=device).replay()
    y, dx = out["y"].numpy(), out["dx"].numpy()
    kept = y != 0
    assert abs(kept.mean() - (1 - p)) < 0.006
    np.testing.assert_allclose(y[kept], 3 / (1 - p), rtol=1e-6)
    np.testing.assert_allclose(dx, kept / (1 - p), rtol=1e-6)


def test_dropout_edges(device):
    """p = 1 leaves zeros, also of infinite x; not training is x itself."""
    g = aicf.Graph("edges")
    x = g.input("x", (4,))
    y = aicf.dropout(x, 1.0)
    g.output("y", y)
    g.output("dx", g.backward(y.sum(), [x])[x])
    assert aicf.dropout(x, 0.5, training=False) is x
    out = g.compile(device=device)(x=np.array([1, -2, np.inf, 0], np.float32))
    assert not out["y"].numpy().any() and not out["dx"].numpy().any()


def test_streams_differ(device):
    """Two random nodes of one graph share nothing."""
    g = aicf.Graph("streams")
    g.output("a", g.random_uniform((1000,)))
    g.output("b", g.random_uniform((1000,)))
    out = g.compile(device=device).replay()
    a, b = out["a"].numpy(), out["b"].numpy()
    assert (a != b).mean() > 0.99 and abs(np.corrcoef(a, b)[0, 1]) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("low, high", [(1.0, 2.0), (-1.0, 1.0), (0.0, 1e-3), (0.1, 0.3), (3, 3)])
def test_initial_uniform_stays_below_high(dtype, low, high):
    """[low, high) in the dtype itself: rounding reaches neither beyond low nor high."""
    g = aicf.Graph("uniform")
    g.param("p", (1 << 17,), dtype, aicf.init.uniform(low, high))
    values = g.compile(device="cpu").params["p"].numpy().astype(np.float64)
    first = low if dtype == "float64" else float(rounded(np.array(low), dtype))
    assert values.min() >= first
    assert values.max() < high or low == high
    assert abs(values.mean() - (low + high) / 2) < 0.01 * max(high - low, 0.1)


def test_initial_uniform_beyond_its_dtype():
    """`high` rounds to infinity in float16: the numbers stop at the largest finite one."""
    g = aicf.Graph("uniform")
    g.param("p", (1 << 12,), "float16", aicf.init.uniform(0, 1e5))
    values = g.compile(device="cpu").params["p"].numpy()
    assert np.isfinite(values).all() and values.max() == 65504


# ---- initial values against a generator of their own


def initial_words(name, seed, count):
    """The first two words of each element's block, as float32 multiples of 2^-24."""
    mask = np.uint64(2**32 - 1)
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64
    key ^= seed * 0x9E3779B97F4A7C15 % 2**64
    c = [np.arange(count, dtype=np.uint64), *(np.zeros(count, np.uint64) for _ in range(3))]
    k = [key & int(mask), key >> 32]
    for _ in range(10):
        high = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (high[1] >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            high[1] & mask,
            (high[0] >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            high[0] & mask,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return [(word >> np.uint64(8)) for word in c[:2]]


def initial_normals(words):
    """By the public functions of float32, whose bits a step has too."""
    one, two = ((word + np.uint64(i)).astype(np.float32) * np.float32(2**-24)
                for word, i in zip(words, (1, 0), strict=True))  # fmt: skip
    g = aicf.Graph("box muller")
    u, v = g.input("u", one.shape), g.input("v", two.shape)
    angle = v * float(np.float32(6.2831853))
    g.output("z", aicf.sqrt(aicf.log(u) * -2.0) * aicf.cos(angle))
    return g.compile(device="cpu", passes=())(u=one, v=two)["z"].numpy()


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 12345])
@pytest.mark.parametrize("name", ["w", "0.W", "a ñame of many bytes"])
@pytest.mark.parametrize("count", [1, 127, 129, 1025, 2 * 65536 + 3])
def test_initial_values_bit_for_bit(name, seed, count, device):
    """Of every dtype; behind whole vectors, blocks and parts that threads share out."""
    f32 = np.float32
    words = initial_words(name, seed, count)
    unit, z = words[0].astype(f32) * f32(2**-24), initial_normals(words)
    inits = {
        "uniform": (aicf.init.uniform(-0.5, 0.25), f32(-0.5) + f32(0.75) * unit),
        "normal": (aicf.init.normal(0.1, 0.02), f32(0.1) + f32(0.02) * z),
    }
    for init, expected in inits.values():
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            g = aicf.Graph("initial")
            g.param(name, (count,), dtype, init)
            got = g.compile(device=device, seed=seed, capture=False).params[name].numpy()
            wanted = expected.astype(np.float64)
            if init is inits["uniform"][0] and dtype in ("float16", "bfloat16"):
                wanted = np.minimum(wanted, 0.25 * (1 - 2.0 ** (-11 if dtype == "float16" else -8)))
            wanted = wanted if dtype == "float64" else rounded(wanted, dtype)
            assert_bits(got, wanted.astype(got.dtype))


def test_gumbel_noise_of_the_largest_draw(monkeypatch, device):
    """It is finite, so that what -inf hides is never drawn and a single class is sure."""
    monkeypatch.setattr(aicf.Graph, "random_uniform", lambda self, shape: self.input("u", shape))
    g = aicf.Graph("draw")
    g.output("drawn", aicf.categorical(g.constant(np.float32([-np.inf, 0.0]))))
    out = g.compile(device=device)(u=np.float32([0.5, 1 - 2.0**-24]))
    assert out["drawn"].item() == 1
    g = aicf.Graph("sure")
    g.output("share", aicf.gumbel_softmax(g.constant(np.float32([[1.0], [1.0]]))))
    out = g.compile(device=device)(u=np.float32([[0], [1 - 2.0**-24]]))
    assert out["share"].numpy().tolist() == [[1], [1]]


@pytest.mark.parametrize(
    "dtype, low, high",
    [("uint8", 0, 257), ("uint8", -1, 3), ("int8", -129, 0), ("bool", 0, 3), ("int16", 0, 2**16),
     ("float16", 0, 2**11 + 2), ("float32", -(2**24) - 1, 0), ("int32", 2**31, 2**31 + 1)],
)  # fmt: skip
def test_whole_numbers_that_the_dtype_does_not_hold(dtype, low, high):
    """They were wrapped or rounded, to other numbers."""
    g = aicf.Graph()
    with pytest.raises(aicf.DTypeError, match=rf"random_int: .* which {dtype} does not hold; need"):
        g.random_int((3,), low, high, dtype)
    assert g.random_int((3,), 0, 1, dtype).dtype == dtype
