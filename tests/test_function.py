"""One function for any shape: the bits of graphs built by hand, one state, and what is refused."""

import gc
import threading
import warnings
import weakref
from typing import NamedTuple

import aicf
import numpy as np
import pytest
from compare import assert_bits
from function_models import CPU, batch, network, trainer


def by_hand(rows, model):
    g = aicf.Graph("hand")
    x, t = g.input("x", (rows, 4)), g.input("t", (rows, 1))
    loss = aicf.mse_loss(model(x), t)
    g.minimize(loss, aicf.optim.Adam(lr=1e-2))
    g.output("loss", loss)
    return g


# ---- the bits of steps by hand


def test_one_shape_has_the_bits_of_the_graph_by_hand():
    train, step = trainer(network()), by_hand(8, network()).compile(device="cpu")
    for seed in range(5):
        x, t = batch(seed=seed)
        assert_bits(train(x, t).numpy(), step(x=x, t=t)["loss"].numpy())
    assert train.state_dict().keys() == step.state_dict().keys()
    for name, array in step.state_dict().items():
        assert_bits(train.state_dict()[name], array, name)


def test_shapes_that_change_share_params_and_the_optimizers_state():
    train, model = trainer(network()), network()
    first = by_hand(8, model).compile(device="cpu")
    steps = {8: first, 5: by_hand(5, model).compile(device="cpu", share=first)}
    for i, rows in enumerate((8, 5, 5, 8, 5, 8)):
        x, t = batch(rows, i)
        assert_bits(train(x, t).numpy(), steps[rows](x=x, t=t)["loss"].numpy())
    assert int(train.states["opt.step"]) == 6
    for name, array in first.state_dict().items():
        assert_bits(train.state_dict()[name], array, name)
    assert [entry.arguments["x"] for entry in train.cache] == ["float32[5, 4]", "float32[8, 4]"]
    assert [entry.step.steps_run for entry in train.cache] == [3, 3]


def test_a_step_that_is_dropped_leaves_its_state():
    train = trainer(network(), cache=2)
    wide = trainer(network())
    for i, rows in enumerate((3, 4, 5, 3, 6, 4)):
        assert_bits(train(*batch(rows, i)).numpy(), wide(*batch(rows, i)).numpy())
    assert len(train.cache) == 2 and len(wide.cache) == 4
    gc.collect()
    for name, array in wide.state_dict().items():
        assert_bits(train.state_dict()[name], array, name)


def test_keywords_and_positions_are_one_call():
    train = trainer(network())
    x, t = batch()
    train(x, t), train(x, t=t), train(t=t, x=x), train(*[x], **{"t": t})
    assert len(train.cache) == 1 and train.cache[0].step.steps_run == 4
    with pytest.raises(TypeError, match="missing"):
        train(x)
    with pytest.raises(TypeError, match="no argument .z.; need x, t"):
        train(x, t, z=1)


# ---- arguments and results


class Pair(NamedTuple):
    a: object
    b: object


def test_nested_arguments_and_results():
    @aicf.function(**CPU)
    def fn(pair, named, *rest, scale=2.0, flag="add", **more):
        total = pair.a + pair.b * scale
        for one in (*named.values(), *rest, *more.values()):
            total = total + one if flag == "add" else total * one
        return {"total": total, "pair": Pair(pair.b, [pair.a, None]), "t": (total * 2.0,)}

    one, two = np.float32([1, 2]), np.float32([3, 4])
    out = fn(Pair(one, two), {"u": one, "v": two}, one, z=two)
    assert isinstance(out["pair"], Pair) and out["pair"].b[1] is None
    np.testing.assert_array_equal(out["total"], one + two * 2 + one + two + one + two)
    np.testing.assert_array_equal(out["pair"].a, two)
    np.testing.assert_array_equal(out["t"][0], out["total"].numpy() * 2)
    fn(Pair(one, two), {"v": two, "u": one}, one, z=two, scale=3.0)  # a float is an input
    assert len(fn.cache) == 1
    fn(Pair(one, two), {"u": one}, scale=np.float32(3), flag="mul")
    assert len(fn.cache) == 2 and "flag 'mul'" in repr(fn)


def test_arrays_of_other_libraries():
    torch = pytest.importorskip("torch")
    train, again = trainer(network()), trainer(network())
    for i in range(3):
        x, t = batch(seed=i)
        assert_bits(again(torch.from_numpy(x), torch.from_numpy(t)).numpy(), train(x, t).numpy())
    x, t = batch(seed=4)
    again(x, torch.from_numpy(t)), again(aicf.function(lambda x: x * 1.0, **CPU)(x), t)
    assert len(again.cache) == 1
    jax = pytest.importorskip("jax.numpy")
    again(jax.asarray(x), jax.asarray(t))
    assert len(again.cache) == 1 and again.cache[0].step.steps_run == 6


def test_numbers_are_inputs_or_part_of_the_key():
    @aicf.function(**CPU)
    def fn(x, power, by):
        return x**power * by

    x = np.float32([2, 3])
    np.testing.assert_array_equal(fn(x, 2, 0.5), x**2 / 2)
    np.testing.assert_array_equal(fn(x, 2, 3.0), x**2 * 3)
    np.testing.assert_array_equal(fn(x, 3, np.float32(1)), x**3)
    assert [entry.arguments["power"] for entry in fn.cache] == ["2", "3"]
    assert_bits(fn(x, True, 1.0).numpy(), x)  # True is not 1
    assert len(fn.cache) == 3


def test_dtypes_are_cast_where_that_is_asked():
    @aicf.function(dtypes={"float64": "float32", np.int32: np.int64}, **CPU)
    def fn(x, labels):
        return x, labels

    x, labels = fn(np.ones(2), np.ones(2, np.int32))
    assert (x.dtype, labels.dtype) == ("float32", "int64")
    fn(np.ones(2, np.float32), np.ones(2, np.int32)), fn(np.ones(2), np.ones(2, np.int32))
    assert len(fn.cache) == 1 and fn.cache[0].step.steps_run == 3
    with pytest.raises(aicf.DTypeError, match="f64.*cast one"):
        trainer(network())(np.ones((2, 4)), np.ones((2, 1)))


def test_results_are_copies_unless_that_is_not_wanted():
    train = trainer(network())
    losses = [train(*batch(seed=i)) for i in range(3)]
    assert len({float(loss) for loss in losses}) == 3
    live = trainer(network(), copy=False)
    first, _ = live(*batch(seed=0)), live(*batch(seed=1))
    with pytest.raises(aicf.StaleOutput):
        float(first)


# ---- modes


def test_train_and_eval_are_two_steps_over_one_state():
    class Drop(aicf.nn.Module):
        def forward(self, x):
            return aicf.dropout(x, 0.5, self.training)

    nn = aicf.nn
    model = nn.Sequential(nn.Linear(4, 8), Drop(), nn.Linear(8, 1))

    @aicf.function(**CPU)
    def run(x):
        return model(x)

    x, _ = batch()
    a, b = run(x).numpy(), run(x).numpy()
    assert (a != b).any()
    model.eval()
    assert_bits(run(x).numpy(), run(x).numpy())
    assert [entry.mode for entry in run.cache] == ["train", "eval"]
    model.train()
    run(x)
    assert len(run.cache) == 2
    model[1].eval()
    run(x)
    assert [entry.mode for entry in run.cache] == ["eval", "train", "mixed"]
    model[0].requires_grad_(False)
    run(x)
    assert len(run.cache) == 4


def test_functions_over_one_model_see_its_params():
    model = network()
    train = trainer(model)
    predict = aicf.function(lambda x: model(x), **CPU)
    x, t = batch()
    before = predict(x).numpy()
    for _ in range(3):
        train(x, t)
    after = predict(x).numpy()
    assert (before != after).any()
    assert_bits(after, aicf.function(lambda x: model(x), **CPU)(batch(8)[0]).numpy())
    assert_bits(model.state_dict()["0.weight"], train.params["0.weight"].numpy())
    model.load_state_dict({name: array * 0 for name, array in model.state_dict().items()})
    assert (predict(x).numpy() == 0).all() and (train.params["0.weight"].numpy() == 0).all()
    # a dropped function takes nothing along
    del train
    gc.collect()
    assert (predict(batch(3)[0]).numpy() == 0).all()


def test_functions_may_share_all_of_a_state():
    model = network()
    train = trainer(model)
    x, t = batch()
    train(x, t)

    @aicf.function(state=train, **CPU)
    def slow(x, t):
        loss = aicf.l1_loss(model(x), t)
        aicf.minimize(loss, aicf.optim.Adam(lr=1e-2))
        return loss

    slow(x, t)
    assert slow.state is train.state and int(train.states["opt.step"]) == 2
    train.set("opt.lr", 0.0)
    before = train.state_dict()
    slow(x, t)
    assert_bits(train.params["0.weight"].numpy(), before["0.weight"])
    state = aicf.State(by_hand(8, model).compile(device="cpu"))
    assert repr(state) == "aicf.State(4 params, 13 states)"
    assert repr(aicf.State()) == "aicf.State(empty)"


def test_another_number_for_the_optimizer_is_refused():
    model = network()

    @aicf.function(**CPU)
    def train(x, lr):
        loss = aicf.mean(model(x) ** 2)
        aicf.minimize(loss, aicf.optim.SGD(lr=float(lr)))
        return loss

    train(batch()[0], "0.5")
    with pytest.raises(aicf.GraphError, match=r'"opt.lr" is 0.25 here and 0.5'):
        train(batch()[0], "0.25")
    train.set("opt.lr", 0.25)
    train(batch(3)[0], "0.5"), train(batch()[0], "0.25")


def test_a_rate_may_be_an_input():
    model = network()

    @aicf.function(**CPU)
    def train(x, t, lr):
        loss = aicf.mse_loss(model(x), t)
        aicf.minimize(loss, aicf.optim.SGD(lr=lr), model)
        return loss

    x, t = batch()
    before = model.state_dict()
    train(x, t, 0.0)
    assert_bits(model.state_dict()["0.weight"], before["0.weight"])
    train(x, t, 0.1)
    assert (model.state_dict()["0.weight"] != before["0.weight"]).any() and len(train.cache) == 1


# ---- checkpoints


def test_one_checkpoint_for_all_its_steps(tmp_path):
    train = trainer(network())
    for rows in (8, 5, 8):
        train(*batch(rows))
    train.save(tmp_path / "f", metadata={"epoch": 1})
    want = [train(*batch(rows)).numpy() for rows in (5, 7)]

    again = trainer(network(seed=9))
    with pytest.raises(aicf.GraphError, match="no function has been traced yet"):
        again.load(tmp_path / "f")
    step = again.step(*batch(7))
    assert isinstance(step, aicf.Step) and step.steps_run == 0
    assert again.load(tmp_path / "f").missing == ()
    assert_bits(again(*batch(5)).numpy(), want[0])
    assert_bits(again(*batch(7)).numpy(), want[1])
    assert again.step(*batch(7)) is step
    again.load_state_dict(train.state_dict())
    assert_bits(again.state_dict()["0.weight"], train.state_dict()["0.weight"])


def test_a_gan_with_two_optimizers_and_one_checkpoint(tmp_path):
    def build(seed):
        nn = aicf.nn
        nn.seed(seed)
        maker = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), name="maker")
        judge = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1), name="judge")
        state = aicf.State()

        def right(y, wanted):
            return aicf.mean(aicf.softplus(-y if wanted else y))

        @aicf.function(state=state, **CPU)
        def learn(real, noise):
            made = aicf.detach(maker(noise))
            loss = right(judge(real), True) + right(judge(made), False)
            aicf.minimize(loss, aicf.optim.Adam(1e-2), judge, name="judge_opt")
            return loss

        @aicf.function(state=state, **CPU)
        def make(noise):
            loss = right(judge(maker(noise)), True)
            aicf.minimize(loss, aicf.optim.Adam(2e-2), maker, name="maker_opt")
            return loss

        return state, learn, make

    def run(learn, make, steps):
        rng = np.random.default_rng(steps)
        found = []
        for i in range(steps):
            rows = 16 if i % 2 else 11
            real = rng.normal(3, 1, (rows, 1)).astype(np.float32)
            noise = rng.standard_normal((rows, 2), np.float32)
            found += [float(learn(real, noise)), float(make(noise))]
        return found

    state, learn, make = build(0)
    run(learn, make, 4)
    moved = state.state_dict()
    assert int(moved["judge_opt.step"]) == int(moved["maker_opt.step"]) == 4
    assert not any(name.startswith("maker_opt.m.judge") for name in moved)
    state.save(tmp_path / "f")
    want = run(learn, make, 3)
    state, learn, make = build(1)
    run(learn, make, 1)
    aicf.load(tmp_path / "f", state)
    assert run(learn, make, 3) == want


# ---- what is said, and what is refused


def test_a_function_that_is_traced_too_often_says_why():
    train = trainer(network(), retraces=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(*batch(2)), train(*batch(3)), train(*batch(2))
    with pytest.warns(RuntimeWarning) as caught:
        train(*batch(4))
    said = str(caught[0].message)
    assert "train: traced 3 times" in said and caught[0].filename == __file__
    assert "x is float32[4, 4], last was float32[2, 4]" in said and "buckets=" in said
    with pytest.warns(RuntimeWarning, match="4 times"):
        train(*batch(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(*batch(6))


def test_a_call_that_is_refused_counts_as_no_trace():
    train = trainer(network(), retraces=3)
    train(*batch(2)), train(*batch(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(aicf.DTypeError):
                train(*(array.astype(np.float64) for array in batch(2)))
    with pytest.warns(RuntimeWarning, match="traced 3 times"):
        train(*batch(4))


def test_values_that_leak_are_refused():
    kept = []

    @aicf.function(**CPU)
    def fn(x):
        y = x * 2.0
        kept.append(y)
        return y + (kept[0] if len(kept) > 1 else 0.0)

    fn(np.ones(2, np.float32))
    with pytest.raises(aicf.GraphError, match="fn: .*earlier trace made and something kept"):
        kept[0] + 1.0
    with pytest.raises(aicf.GraphError, match="values of two graphs never mix"):
        fn(np.ones(3, np.float32))
    assert len(fn.cache) == 1
    with pytest.raises(aicf.GraphError, match='"x" is aicf.Value.* need arrays'):
        fn(kept[0])
    with pytest.raises(aicf.GraphError, match="float of value"):
        float(kept[0])


@pytest.mark.parametrize(
    "result", [3.0, "text", np.ones(2, np.float32), {"a": 1}, [None, (2,)], aicf]
)
def test_results_that_are_no_values(result):
    with pytest.raises(aicf.GraphError, match="result"):
        aicf.function(lambda x: result, **CPU)(np.ones(2, np.float32))


def test_a_result_may_be_nothing():
    @aicf.function(**CPU)
    def count(x):
        total = x.graph.state("total", ())
        x.graph.assign(total, total + aicf.sum(x))

    assert count(np.ones(3, np.float32)) is None and count(np.ones(4, np.float32)) is None
    assert float(count.states["total"]) == 7


def test_python_may_look_at_shapes_and_not_at_values():
    @aicf.function(**CPU)
    def fn(x):
        for _ in range(x.shape[0]):
            x = x + 1.0
        return x if x.ndim == 1 else aicf.sum(x, 1)

    np.testing.assert_array_equal(fn(np.zeros(3, np.float32)), [3, 3, 3])
    np.testing.assert_array_equal(fn(np.zeros((2, 2), np.float32)), [4, 4])

    @aicf.function(**CPU)
    def branch(x):
        return x if aicf.sum(x) > 0 else -x

    with pytest.raises(aicf.GraphError, match="bool of value"):
        branch(np.ones(2, np.float32))
    assert branch.cache == []


def test_a_trace_that_fails_leaves_nothing():
    model = network()
    fail = True

    @aicf.function(**CPU)
    def train(x, t):
        loss = aicf.mse_loss(model(x), t)
        aicf.minimize(loss, aicf.optim.Adam())
        if fail:
            raise RuntimeError("of the user's")
        return loss

    before = model.state_dict()
    with pytest.raises(RuntimeError, match="of the user's"):
        train(*batch())
    with pytest.raises(aicf.GraphError, match="traced yet"):
        train.state_dict()
    for name, array in before.items():
        assert_bits(model.state_dict()[name], array)
    fail = False
    train(*batch())


@pytest.mark.parametrize(
    "options",
    [
        {"cache": 0}, {"cache": True}, {"copy": 1}, {"retraces": "x"}, {"state": 5},
        {"dtypes": 5}, {"dtypes": {"float32": 3.5}}, {"device": 5}, {"math": "fp8"}, {"seed": -1},
        {"checks": "all"},
    ],
)  # fmt: skip
def test_options_that_are_wrong(options):
    with pytest.raises(aicf.Error):
        aicf.function(lambda x: x, **{**CPU, **options})(np.ones(2, np.float32))


def test_arguments_that_are_wrong():
    fn = aicf.function(lambda x: x["a"] * 1.0, **CPU)
    for wrong in ({"a": {1, 2}}, {"a": bytearray(2)}):
        with pytest.raises(aicf.GraphError, match='"x.a" is a .* without a hash'):
            fn(wrong)
    with pytest.raises(aicf.GraphError, match="keys"):
        fn({2.5: np.ones(2, np.float32)})
    with pytest.raises(aicf.GraphError, match="function: fn is 5"):
        aicf.function(5)
    with pytest.raises(aicf.Error):
        fn({"a": np.array(["text"])})


# ---- inside of others


def test_a_function_inside_of_another_is_a_part_of_it():
    model = network()
    forward = aicf.function(lambda x: model(x), **CPU)

    @aicf.function(**CPU)
    def both(x):
        return forward(x) * 2.0

    x, _ = batch()
    assert_bits(both(x).numpy(), forward(x).numpy() * 2)
    assert len(forward.cache) == 1


def test_methods_are_functions_too():
    class Trainer:
        def __init__(self, by):
            self.by = by

        @aicf.function(**CPU)
        def run(self, x):
            return x * self.by

    one, two = Trainer(2.0), Trainer(3.0)
    x = np.ones(2, np.float32)
    assert one.run(x)[0] == 2 and two.run(x)[0] == 3 and len(Trainer.run.cache) == 2


def test_threads_take_turns():
    train, alone = trainer(network()), trainer(network())
    losses, errors = [], []

    def work():
        try:
            for _ in range(50):
                losses.append(float(train(*batch(4))))
                train.step(*batch(5))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want = [float(alone(*batch(4))) for _ in range(150)]
    assert errors == [] and sorted(losses) == sorted(want)


# ---- with layers that have states


def test_batch_norm_and_dropout_by_modes():
    """Statistics that training moves are those that evaluation reads, in whichever function."""
    nn = aicf.nn
    nn.seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    train, predict = trainer(model), aicf.function(lambda x: model(x), **CPU)
    x, t = batch(16)
    model.eval()
    begun = predict(x).numpy()
    model.train()
    for rows in (16, 9, 16):
        train(*batch(rows))
    assert int(model.state_dict()["1.num_batches_tracked"]) == 3
    model.eval()
    assert (predict(x).numpy() != begun).any()
    assert_bits(predict(x).numpy(), predict(x).numpy())
    assert_bits(train.states["1.running_mean"].numpy(), model.state_dict()["1.running_mean"])
    assert [entry.mode for entry in predict.cache] == ["eval"]


def test_an_average_of_the_params_and_frozen_parts():
    model, mean = network(), network()
    model[0].requires_grad_(False)

    @aicf.function(**CPU)
    def train(x, t):
        loss = aicf.mse_loss(model(x), t)
        aicf.minimize(loss, aicf.optim.Adam(1e-2))
        loss.graph.ema(0.5)
        return loss

    before = model.state_dict()
    train(*batch(8)), train(*batch(5))
    assert set(train.averages()) == {"2.weight", "2.bias"}
    assert_bits(model.state_dict()["0.weight"], before["0.weight"])
    mean.load_state_dict({name: array.numpy() for name, array in train.averages().items()}, False)
    assert_bits(mean.state_dict()["2.bias"], train.averages()["2.bias"].numpy())
    model[0].requires_grad_(True)
    train(*batch(8))
    assert set(train.averages()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert (model.state_dict()["0.weight"] != before["0.weight"]).any()
    assert int(train.states["opt.step"]) == 3


def test_what_is_dropped_is_freed():
    """Steps beyond the bound, and with a function all of its own; the model keeps its content."""
    model = network()
    train = trainer(model, cache=2)
    steps = [weakref.ref(train.step(*batch(rows))) for rows in (2, 3, 4, 5)]
    gc.collect()
    assert [step() is None for step in steps] == [True, True, False, False]
    kept = weakref.ref(train.state._step)
    train(*batch(4))
    want = model.state_dict()
    del train
    gc.collect()
    assert [step() for step in steps] == [None] * 4 and kept() is not None  # the model's content
    for name, array in want.items():
        assert_bits(model.state_dict()[name], array)
    del model
    gc.collect()
    assert kept() is None


def test_a_float_may_be_static_and_a_module_a_function():
    @aicf.function(static="p", **CPU)
    def drop(x, p=0.5):
        return aicf.dropout(x, p)

    x = np.ones((4, 4), np.float32)
    assert_bits(drop(x, 0.0).numpy(), x)
    assert set(np.unique(drop(x, p=0.75))) <= {0, 4} and len(drop.cache) == 2
    drop(x, 0.75), drop(x), drop(x, 0.5)
    assert len(drop.cache) == 3
    for wrong in ("q", 5, [5]):
        with pytest.raises(aicf.GraphError, match="static"):
            aicf.function(lambda x: x, static=wrong, **CPU)
    with pytest.raises(aicf.GraphError, match="without a hash"):
        drop(x, x)

    model = network()
    predict = aicf.function(model, **CPU)
    assert_bits(predict(x).numpy(), aicf.function(lambda x: model(x), **CPU)(x).numpy())
    assert list(predict.cache[0].arguments) == ["x"] and repr(predict).startswith("aicf.function(")


def test_several_functions_in_one_file(tmp_path):
    """Storage that they share is written once; a name that two have for themselves is refused."""
    model = network()
    train, again = trainer(model), trainer(model)
    predict = aicf.function(model, **CPU)
    x, t = batch()
    train(x, t), again(x, t), predict(x)
    aicf.save(tmp_path / "f", train, predict)
    assert set(aicf.Checkpoint(tmp_path / "f")) == {*train.params, *train.states}
    with pytest.raises(aicf.GraphError, match=r'"opt\.lr" with storage of their own'):
        aicf.save(tmp_path / "g", train, again)
    aicf.save(tmp_path / "g", {"one": train, "two": again.states})
    want = train.state_dict()
    train(x, t)
    aicf.load(tmp_path / "g", {"one": train, "two": again.states})
    for name, array in want.items():
        assert_bits(train.state_dict()[name], array)


def test_arrays_that_are_defaults():
    """A call that leaves one out is known by what it gives, and runs on the default."""
    x = np.ones(3, np.float32)

    def scaled(x, by=2.0, and_by=np.full(3, 0.5, np.float32)):  # noqa: B008
        return x * by * and_by

    for options in ({}, {"dtypes": {"float64": "float32"}}):
        f = aicf.function(scaled, **CPU, **options)
        for _ in range(3):
            assert f(x).numpy().tolist() == [1.0] * 3
            assert f(x, 6.0).numpy().tolist() == [3.0] * 3
            assert f(x, and_by=x).numpy().tolist() == [2.0] * 3
            assert f(and_by=x * 4, x=x).numpy().tolist() == [8.0] * 3
            assert f(x.astype(np.float64) if options else x).numpy().tolist() == [1.0] * 3
        assert len(f.cache) == 1


def test_one_name_is_not_two_contents():
    """Modules of equal names have no part in each other's content by way of a state."""
    nn, x = aicf.nn, np.ones((1, 3), np.float32)
    one, other = nn.Linear(3, 1), nn.Linear(3, 1)
    own = other.state_dict()
    call = aicf.function(lambda model, x: model(x), **CPU)
    call(one, x)
    with pytest.raises(aicf.GraphError, match='"weight" is another Parameter in the state'):
        call(other, x)
    for name, array in other.state_dict().items():
        assert_bits(array, own[name], name)
    other.name = "other"
    want = x @ own["weight"].T + own["bias"]
    np.testing.assert_allclose(call(other, x).numpy(), want, rtol=1e-6)

    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    parts = aicf.function(lambda x: model[1](model[0](x)), **CPU)
    y = np.ones((4, 3), np.float32)
    parts(y)
    for part, kind in ((model[1], "Buffer"), (model, "Parameter")):
        if part is model:
            part[0] = nn.Linear(3, 3)
        else:
            part.running_mean = nn.Buffer(np.zeros(3, np.float32))
        with pytest.raises(aicf.GraphError, match=f"another {kind} in the state"):
            parts(y)
        parts = aicf.function(lambda x: model[1](model[0](x)), **CPU)
        parts(y)


def test_modes_of_what_a_module_is_part_of():
    model, x = network(), np.ones((2, 4), np.float32)
    f = aicf.function(lambda x: model[0](x) * (2.0 if model.training else 1.0), **CPU)
    twice = f(x).numpy()
    model.training = False
    assert_bits(f(x).numpy() * 2, twice)
