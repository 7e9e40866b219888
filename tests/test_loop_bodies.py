"""What bodies of loops and choices may hold: random numbers, and gradients of one's own."""

import aicf
import numpy as np
import pytest
from compare import assert_bits
from conftest import outputs_of, run_modes
from custom_cases import copied, row_sums, swish_bias
from test_scan import on_threads

TURNS = 7


# ---- random numbers


def uniform(seed, counter, stream, shape):
    """What the op alone draws."""
    out = np.empty(shape, np.float32)
    scalars = np.array(seed), np.array(counter)
    attrs = {"shape": list(shape), "stream": stream, "last": float(np.nextafter(np.float32(1), 0))}
    aicf.op_call("random_uniform", list(scalars), [out], attrs)
    return out


def draws(turns=TURNS, outside=True):
    """Numbers of each turn, of each turn of a loop in a loop, and beside them."""
    g = aicf.Graph("draws")
    start = g.constant(0.0)
    if outside:
        g.output("outside", g.random_uniform((5,)))

    def turn(carry, _):
        return carry + 1.0, g.random_uniform((5,))

    def outer(carry, _):
        return aicf.scan(turn, carry, length=3)

    g.output("rows", aicf.scan(turn, start, length=turns)[1])
    g.output("reverse", aicf.scan(turn, start, length=turns, reverse=True)[1])
    g.output("nested", aicf.scan(outer, start, length=2)[1])
    return g


def test_each_turn_of_each_step_has_its_own_counter(device):
    """As many steps before, times the turns of one, plus the turns before; a stream each op."""
    step = draws().compile(device=device, seed=11)
    for number in range(3):
        got = outputs_of(step())
        assert_bits(got["outside"], uniform(11, number, 0, (5,)), "outside")
        for t in range(TURNS):
            counter = number * TURNS + t
            assert_bits(got["rows"][t], uniform(11, counter, 1, (5,)), f"row {t}")
            assert_bits(got["reverse"][t], uniform(11, counter, 2, (5,)), f"reverse {t}")
        for t in range(6):
            assert_bits(got["nested"][divmod(t, 3)], uniform(11, number * 6 + t, 3, (5,)), t)
    assert len({v.tobytes() for v in (*got["rows"], *got["reverse"], *got["nested"])}) == 16


def test_without_other_draws_the_states_are_made(device):
    """A first draw inside a body makes the graph's seed and counter, and these are saved."""
    step = draws(outside=False).compile(device=device, seed=4)
    step.replay(2)
    state = step.state_dict()
    want = outputs_of(step())
    assert state["rng.step"] == 2 and state["rng.seed"] == 4
    other = draws(outside=False).compile(device=device, seed=5)
    other.load_state_dict(state)
    for name, value in outputs_of(other()).items():
        assert_bits(value, want[name], name)


def lstm_with_dropout(g, x, h, c, w, masks=None, save="states"):
    """Dropout of what a turn hands on, the mask among its results; or of masks that are given."""

    def turn(carry, row):
        (h, c), (x, mask) = carry, row if masks is not None else (row, None)
        if mask is None:
            mask = aicf.dropout(h * 0.0 + 1.0, 0.4)
        i, f, g_, o = (aicf.linear(aicf.concat([x, h * mask], -1), part) for part in w)
        c = aicf.sigmoid(f) * c + aicf.sigmoid(i) * aicf.tanh(g_)
        return (aicf.sigmoid(o) * aicf.tanh(c), c), (aicf.sigmoid(o) * aicf.tanh(c), mask)

    rows = x if masks is None else (x, masks)
    (last, _), (ys, drawn) = aicf.scan(turn, (h, c), rows, save=save)
    loss = aicf.sum(ys * ys) + aicf.sum(last)
    grads = aicf.grad(loss, [x, h, c, *w])
    return {"ys": ys, "masks": drawn} | {f"d{i}": d for i, d in enumerate(grads)}


@pytest.mark.parametrize("save", ["states", "recompute"])
def test_the_gradient_draws_the_same_masks(save, device, rng):
    """Every gradient has the bits of those with the masks as operands."""
    arrays = {
        "x": rng.normal(size=(TURNS, 4, 3)).astype("f"),
        "h": rng.normal(size=(4, 5)).astype("f"),
        "c": rng.normal(size=(4, 5)).astype("f"),
    } | {f"w{i}": rng.normal(size=(5, 8)).astype("f") for i in range(4)}

    def graph(with_masks):
        g = aicf.Graph("lstm")
        values = {name: g.input(name, array.shape) for name, array in arrays.items()}
        masks = g.input("masks", (TURNS, 4, 5)) if with_masks else None
        w = [values[f"w{i}"] for i in range(4)]
        made = lstm_with_dropout(g, values["x"], values["h"], values["c"], w, masks, save)
        for name, value in made.items():
            g.output(name, value)
        return g.compile(device=device, seed=2)

    step, given = graph(False), graph(True)
    seen = []
    for _ in range(2):
        got = outputs_of(step(**arrays))
        seen.append(got["masks"])
        assert 0.3 < (got["masks"] == 0).mean() < 0.5
        assert len({row.tobytes() for row in got["masks"]}) == TURNS
        want = outputs_of(given(**arrays, masks=got["masks"]))
        for name, value in want.items():
            assert_bits(got[name], value, name)
    assert (seen[0] != seen[1]).any()


def test_random_numbers_on_threads_and_in_every_mode():
    """Eager, captured, with passes and without, on one thread and several: one sequence of bits."""

    def run(options, eager, threads):
        def made():
            step = draws().compile(seed=3, **options)
            return [outputs_of(step.run() if eager else step()) for _ in range(2)]

        return on_threads(threads, made)

    want = run({}, False, 1)
    for options in ({}, {"passes": ()}):
        for eager in (False, True):
            for got, one in zip(run(options, eager, 3), want, strict=True):
                for name, value in one.items():
                    assert_bits(got[name], value, f"{options}, {eager}, {name}")


def test_random_numbers_in_choices_and_bounded_loops(device):
    """A branch draws as the step does, a turn of while_loop as a turn of scan."""
    g = aicf.Graph("choices")
    x = g.input("x", (64,))
    g.output("y", aicf.cond(aicf.sum(x) > 0.0, aicf.dropout, lambda v: v * 2.0, x))
    kept = aicf.while_loop(
        lambda c: aicf.sum(c) > 40.0, lambda c: aicf.dropout(c, 0.3) * 0.7, x, max_steps=9
    )
    g.output("kept", kept)
    g.output("dx", aicf.grad(aicf.sum(kept), x))
    step = g.compile(device=device)
    first, second = outputs_of(step(x=np.ones(64, "f"))), outputs_of(step(x=np.ones(64, "f")))
    for got in (first, second):
        assert set(np.unique(got["y"])) == {0.0, 2.0}
        assert got["kept"].sum() <= 40.0 and (got["kept"] == 0).sum() > 8
        np.testing.assert_array_equal(got["dx"], got["kept"])  # of ones: each factor, or 0
    assert (first["y"] != second["y"]).any() and (first["kept"] != second["kept"]).any()
    np.testing.assert_array_equal(outputs_of(step(x=-np.ones(64, "f")))["y"], -2 * np.ones(64))


def test_streams_of_bodies_are_taken():
    """A draw behind a loop takes a number that no op inside has, in a file's graph too."""
    g = aicf.Graph.from_json(draws().to_json())
    assert g._core.free_stream() == 4
    g.output("more", g.random_uniform((5,)))
    got = outputs_of(g.compile(seed=11)())
    assert_bits(got["more"], uniform(11, 0, 4, (5,)))


# ---- gradients of one's own


@aicf.custom_gradient
def cube(x):
    """Its derivative is taken for 7 x², so that nobody's own rule is mistaken for it."""
    square = x * x
    return square * x, lambda dy: dy * square * 7.0


@aicf.custom_gradient
def times(x, y):
    return x * y, lambda dy: (dy * y, None)


def differentiated(loss, wrt):
    return {f"d{i}": d for i, d in enumerate(aicf.grad(loss, wrt))}


@pytest.mark.parametrize("save", ["states", "recompute"])
@pytest.mark.parametrize("reverse", [False, True])
def test_custom_gradient_in_a_loop(save, reverse, device, rng):
    """Its own rule is applied in every turn, with what it reads of the turn and of the graph."""
    arrays = {"x": rng.uniform(0.5, 1, (TURNS, 4)), "h": rng.uniform(0.5, 1, 4),
              "w": rng.uniform(0.5, 1, 4)}  # fmt: skip

    def build(g, x, h, w):
        @aicf.custom_gradient
        def scaled(v):
            return v * 0.5, lambda dy: dy * w * aicf.sum(w)

        def turn(c, row):
            c = scaled(cube(c)) + times(row, c)
            return c, cube(row)

        last, ys = aicf.scan(turn, h, x, save=save, reverse=reverse)
        loss = aicf.sum(last) + aicf.sum(ys)
        return {"last": last} | differentiated(loss, [x, h])

    def unrolled(g, x, h, w):
        @aicf.custom_gradient
        def scaled(v):
            return v * 0.5, lambda dy: dy * w * aicf.sum(w)

        ys, c = [], h
        for t in reversed(range(TURNS)) if reverse else range(TURNS):
            c = scaled(cube(c)) + times(x[t], c)
            ys.append(aicf.sum(cube(x[t])))
        loss = aicf.sum(c) + sum(ys[1:], ys[0])
        return {"last": c} | differentiated(loss, [x, h])

    got, want = run_modes(build, arrays, device), run_modes(unrolled, arrays, device)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-12, err_msg=name)


def test_second_derivatives_of_ones_own(device, rng):
    """cube's own slope 7 x² has the slope 14 x, in a loop too; a third is refused by name."""
    x = rng.uniform(0.5, 1, (3, 4))

    def build(g, x):
        total, _ = aicf.scan(
            lambda c, row: (c + aicf.sum(cube(row)), None), g.constant(0.0, "float64"), x
        )
        first = aicf.grad(total, x)
        return {"first": first, "second": aicf.grad(aicf.sum(first), x)}

    got = run_modes(build, {"x": x}, device)
    np.testing.assert_allclose(got["first"], 7 * x**2, rtol=1e-12)
    np.testing.assert_allclose(got["second"], 14 * x, rtol=1e-12)


@aicf.custom_gradient
def endless(x):
    """A sine whose gradient is of the same kind: gradients without end."""
    return aicf.sin(x), lambda dy: dy * endless(x + np.pi / 2)


def test_gradients_without_end(rng):
    """Two orders of them are kept; the third is refused by name, and nothing hangs."""
    g = aicf.Graph("g")
    x = g.input("x", (3, 4), "float64")
    total, _ = aicf.scan(
        lambda c, row: (c + aicf.sum(endless(row)), None), g.constant(0.0, "float64"), x
    )
    first = aicf.grad(total, x)
    second = aicf.grad(aicf.sum(first), x)
    g.output("second", second)
    with pytest.raises(aicf.GraphError, match="custom_gradient .* no third derivative"):
        aicf.grad(aicf.sum(second), x)
    array = rng.uniform(0.5, 1, (3, 4))
    np.testing.assert_allclose(outputs_of(g.compile()(x=array))["second"], -np.sin(array))


def test_custom_ops_in_a_loop(device, rng):
    """By sources, of one result and of several; the same bits as in a step without a loop."""
    arrays = {"x": rng.normal(size=(TURNS, 4, 3)).astype("f"), "b": rng.normal(size=3).astype("f")}

    def build(g, x, b):
        def turn(c, row):
            y = swish_bias(row, b)
            total, count = row_sums(y, factor=3, scale=True)
            return c + aicf.sum(total), (y, count)

        total, (ys, counts) = aicf.scan(turn, g.constant(0.0), x)
        return {"ys": ys, "counts": counts} | differentiated(total, [x, b])

    def plain(g, x, b):
        y = swish_bias(aicf.reshape(x, (-1, 3)), b)
        return {"ys": aicf.reshape(y, x.shape),
                "d0": aicf.grad(aicf.sum(y * 3.0), x)}  # fmt: skip

    got, want = run_modes(build, arrays, device), run_modes(plain, arrays, device)
    for name in want:
        assert_bits(got[name], want[name], name)
    np.testing.assert_array_equal(got["counts"], np.full((TURNS, 4), 3))
    np.testing.assert_allclose(got["d1"], got["d0"].sum((0, 1)), rtol=1e-5)


def test_a_callback_of_the_host_in_a_loop(rng):
    @aicf.custom_op(host=lambda x: np.sin(x), gradient=lambda dy, x, out: dy * aicf.cos(x),
                    replace=True)  # fmt: skip
    def host_sine(x):
        return x

    x = rng.normal(size=(5, 3)).astype("f")

    def build(g, x):
        total, _ = aicf.scan(
            lambda c, row: (c + aicf.sum(host_sine(row)), None), g.constant(0.0), x
        )
        return differentiated(total, [x])

    np.testing.assert_allclose(run_modes(build, {"x": x})["d0"], np.cos(x), rtol=1e-6)


def test_an_op_without_a_gradient_is_refused_by_name():
    g = aicf.Graph("g")
    x = g.input("x", (3, 4))
    total, _ = aicf.scan(lambda c, row: (c + aicf.sum(copied(row)), None), g.constant(0.0), x)
    with pytest.raises(aicf.GraphError, match="custom_op copied .* has no gradient here"):
        aicf.grad(total, x)


def test_ones_own_in_choices(device, rng):
    """In a branch, in a turn of while_loop, and in a loop inside a branch."""
    x = rng.uniform(1, 2, (2, 3))

    def build(g, x):
        def looped(v):
            return aicf.scan(lambda c, row: (c + cube(row), None), v[0] * 0.0, v)[0]

        p = aicf.sum(x) > 0.0
        y = aicf.cond(p, lambda v: cube(v), lambda v: v, x)
        z = aicf.while_loop(lambda c: aicf.sum(c) < 1e9, lambda c: cube(c), x, max_steps=2)
        u = aicf.cond(p, looped, lambda v: v[0], x)
        return {"y": aicf.grad(aicf.sum(y), x), "z": aicf.grad(aicf.sum(z), x),
                "u": aicf.grad(aicf.sum(u), x)}  # fmt: skip

    got = run_modes(build, {"x": x}, device)
    np.testing.assert_allclose(got["y"], 7 * x**2, rtol=1e-12)
    np.testing.assert_allclose(got["z"], 7 * x**2 * 7 * x**6, rtol=1e-12)
    np.testing.assert_allclose(got["u"], 7 * x**2, rtol=1e-12)


def test_a_file_keeps_the_gradients_of_a_body(rng):
    """Unlike those outside of bodies."""
    g = aicf.Graph("g")
    x = g.input("x", (4, 3), "float64")
    total, _ = aicf.scan(
        lambda c, row: (c + aicf.sum(cube(row)), None), g.constant(0.0, "float64"), x
    )
    g.output("total", total)
    loaded = aicf.Graph.from_json(g.to_json())
    values = [aicf.Value(loaded, v.id) for v in (total, x)]
    loaded.output("dx", aicf.grad(*values))
    array = rng.normal(size=(4, 3))
    np.testing.assert_allclose(outputs_of(loaded.compile()(x=array))["dx"], 7 * array**2)


def test_a_gradient_that_is_not_given_is_refused_in_a_loop():
    g = aicf.Graph("g")
    x, w = g.input("x", (4, 3)), g.input("w", (3,))

    @aicf.custom_gradient
    def scaled(v):
        return v * w, lambda dy: dy

    total, _ = aicf.scan(lambda c, row: (c + aicf.sum(scaled(row)), None), g.constant(0.0), x)
    assert aicf.grad(total, x).shape == (4, 3)
    with pytest.raises(aicf.GraphError, match="custom_gradient also uses"):
        aicf.grad(total, w)
