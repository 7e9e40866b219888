"""compile(tune=True) and aicf.tune: kernels chosen by timing them; the choice changes no bit."""

import json
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core, command, tuning
from compare import assert_bits

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

needs_cuda = pytest.mark.skipif(not hasattr(_core, "cuda_info"), reason="no CUDA in this build")


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A folder of its own, few kernels and short measurements."""
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "SPREAD", 1 << 16)
    monkeypatch.setattr(tuning, "SPAN", 0.0)
    monkeypatch.setattr(tuning, "ROUNDS", 1)


def network(batch=64, width=96):
    g = aicf.Graph("net")
    h = aicf.relu(g.dense("0", g.input("x", (batch, width)), 64))
    loss = aicf.mse_loss(g.dense("1", h, 32), g.input("t", (batch, 32)))
    g.output("loss", loss)
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    return g


def feed(rng, batch=64, width=96):
    return {
        "x": rng.standard_normal((batch, width)).astype(np.float32),
        "t": rng.standard_normal((batch, 32)).astype(np.float32),
    }


def content(step):
    return {name: np.array(array) for name, array in step.state_dict().items()}


def test_a_cpu_has_nothing_to_choose(rng):
    g = network()
    found = aicf.tune(g, device="cpu")
    assert len(found) == 0 and found.candidates == {} and "one kernel an op" in str(found)
    step, values = g.compile(device="cpu", tune=True), feed(rng)
    plain = g.compile(device="cpu")
    assert step.plan.candidates == {} and float(step(**values)["loss"]) == float(
        plain(**values)["loss"]
    )
    assert len(aicf.tune(step)) == 0 and "<table" in found._repr_html_()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda g: g.compile(device="cpu", tune="yes"), r"compile: tune is 'yes'; need a bool"),
        (lambda g: aicf.tune(g, limit=0), r"tune: limit is 0; need 1 kernel or more"),
        (lambda g: aicf.tune(g, again=1), r"tune: again is 1; need a bool"),
        (lambda g: aicf.tune(3), r"tune: graph is 3; need an aicf.Graph or a Step"),
        (lambda g: aicf.tune(g, passes="all"), r"tune: passes is 'all'"),
        (lambda g: aicf.tune(g, math="fp8"), r"tune: math is 'fp8'"),
        (lambda g: aicf.tune(g, tensor_cores="sm_80"), r"tune: tensor_cores is 'sm_80'"),
        (
            lambda g: aicf.tune(g.compile(device="cpu"), device="cuda"),
            r"tune: device is 'cuda' and graph aicf.Step\(cpu.*which has its own; need the Graph",
        ),
        (lambda g: aicf.tune(g.compile(device="cpu"), math="bf16"), r"tune: math is 'bf16' and"),
        (lambda g: aicf.tune(g.compile(device="cpu"), passes=()), r"tune: passes is \(\) and"),
        (lambda g: aicf.function(lambda x: x, tune=1), r"function: tune is 1; need a bool"),
    ],
)
def test_what_is_no_tuning(call, text):
    with pytest.raises(aicf.GraphError, match=text):
        call(network())


def test_a_function_tunes_what_it_compiles(monkeypatch):
    """Each of its steps, by what compile(tune=True) takes."""
    asked, tuned = [], tuning.tuned

    def watched(core, title, device, *rest, **options):
        asked.append((title, device))
        return tuned(core, title, device, *rest, **options)

    monkeypatch.setattr(tuning, "tuned", watched)
    for tune in (False, True):
        f = aicf.function(lambda x: x * 2.0, device="cpu", tune=tune)
        for size in (2, 3, 2):
            f(np.ones(size, np.float32))
    assert asked == [("<lambda>", "cpu")] * 2


def test_a_step_of_a_file_has_no_graph(tmp_path):
    network().compile(device="cpu").export(tmp_path / "step.aicf")
    with pytest.raises(aicf.GraphError, match="from a file"):
        aicf.tune(aicf.load_step(tmp_path / "step.aicf"))


def test_what_is_kept_is_checked():
    """Another list of kernels, damage, or numbers that are no times are timed again."""
    good = b'{"a": 0.5, "b": 0.25}'
    assert tuning._times(good, ["a", "b"]) == {"a": 0.5, "b": 0.25}
    for text in (None, b"", b"\xff", b"[]", b'{"a": 0.5}',
                 b'{"a": 0.5, "b": "x"}',
                 b'{"a": 0.5, "b": NaN}', b'{"a": 0.5, "b": -1.0}',
                 b'{"a": 1, "b": 0.5}'):  # fmt: skip
        assert tuning._times(text, ["a", "b"]) is None, text
    assert tuning._times(good, ["a", "c"]) is None


class Clocked:
    """Trials of two kinds of op, whose kernels take the seconds that a table says."""

    choices = (
        ("gemm one", "gemm", ["a", "b", "c"], 2, 0.0, 1 << 20),
        ("gemm two", "gemm", ["a", "b"], 1, 0.0, 1 << 20),
    )
    seconds = {("gemm one", "a"): 3e-3, ("gemm one", "b"): 1e-3, ("gemm one", "c"): 2e-3,
               ("gemm two", "a"): 1.00e-3, ("gemm two", "b"): 0.99e-3}  # fmt: skip

    def __init__(self):
        self.built = []

    def build(self, wanted):
        self.built += wanted


@pytest.fixture
def clocked(monkeypatch):
    kept, timed = {}, []

    class OneStep:
        def __init__(self, trials, signature, name, copies, share):
            self.taken = copies * trials.seconds[signature, name]
            timed.append((signature, name))

    monkeypatch.setattr(_core, "Step", OneStep)
    monkeypatch.setattr(tuning, "_seconds", lambda step, turns: step.taken)
    monkeypatch.setattr(_core, "load_cached", kept.get, raising=False)
    monkeypatch.setattr(
        _core, "store_cached", lambda k, v: kept.update({k: v.encode()}), raising=False
    )
    return kept, timed


def test_the_quickest_is_taken_and_kept(clocked):
    """Unless it saves less than what is noise; a second call times nothing, `again` all."""
    kept, timed = clocked
    machine = {"name": "GPU", "arch": "sm_90a", "driver": "13.0"}
    trials = Clocked()

    def chosen(machine=machine, limit=6, again=False):
        timed.clear()
        trials.built.clear()
        found = tuning.choices(trials, machine, None, limit, again)
        assert trials.built == timed  # compiled side by side, before any is timed
        return found

    first = chosen()
    assert [one.kernel for one in first] == ["b", "a"] and len(timed) == 5
    assert [one.known for one in first] == [False, False]
    assert first[0].times == pytest.approx({"a": 3e-3, "b": 1e-3, "c": 2e-3})
    second = chosen()
    assert timed == [] and all(one.known for one in second) and len(kept) == 2
    assert [one.kernel for one in second] == ["b", "a"]
    assert len(chosen(again=True) and timed) == 5
    for other in ({**machine, "name": "other"}, {**machine, "driver": "13.1"}):
        assert len(chosen(other) and timed) == 5
    assert chosen(limit=1)[0].kernel == "a" and timed == [("gemm one", "a"), ("gemm two", "a")]
    table = str(tuning.Tuning("two on GPU", first))
    assert "two on GPU" in table and "total" in table and "7 ms" in table
    assert tuning.Tuning("two", first).candidates == {"gemm one": "b", "gemm two": "a"}


def test_a_table_of_the_package_goes_before_timing(clocked):
    """Where it has all kernels that would be timed, in any order; the cache goes before it."""
    kept, timed = clocked
    machine = {"name": "GPU", "arch": "sm_90a", "driver": "13.0"}
    trials = Clocked()
    times = {"gemm one": {"b": 3e-3, "c": 1e-3, "a": 2e-3, "d": 1e-4}, "gemm two": {"b": 1e-3}}

    def chosen(times=times, slower=(), limit=6, again=False):
        timed.clear()
        table = tuning.Table(times, {"gemm one": slower})
        return tuning.choices(trials, machine, table, limit, again)

    first = chosen()
    assert [(one.kernel, one.shipped, one.known) for one in first] == [
        ("c", True, True),
        ("a", False, False),  # the table has no "a": another list of kernels
    ]
    assert timed == [("gemm two", "a"), ("gemm two", "b")] and len(kept) == 1
    assert first[0].times == {"a": 2e-3, "b": 3e-3, "c": 1e-3}
    assert "shipped" in str(tuning.Tuning("two", first))
    assert chosen(slower=["c"])[0].kernel == "a" and timed == []
    assert chosen(slower=["a"])[0].kernel == "c"
    assert chosen(limit=2)[0].kernel == "a"  # of "a" and "b"
    assert chosen(times={})[0].kernel == "b" and len(timed) == 3
    again = chosen()[0]
    assert (again.kernel, again.known, again.shipped) == ("b", True, False) and timed == []


def test_a_step_whose_kernels_are_of_the_table_is_not_timed(clocked):
    machine = {"name": "GPU", "arch": "sm_90a", "driver": "13.0"}
    times, runs = {"a": 2e-3, "b": 1e-3}, []
    shipped = tuning.Choice("gemm", "one", 1, "a", "b", times, True, True)
    alone = tuning.Choice("gemm", "two", 1, "a", "b", times, False)
    same = tuning.Choice("gemm", "six", 1, "a", "a", times, False)

    def seconds(kernels):
        runs.append(kernels)
        return 1.0 + (kernels["two"] == "b")

    assert tuning._together([shipped, same], seconds, machine, False) == [shipped, same]
    assert runs == []
    found = tuning._together([shipped, alone], seconds, machine, False)
    assert [one.kernel for one in found] == ["b", "a"]
    assert runs == [{"one": "b", "two": "a"}, {"one": "b", "two": "b"}]


def test_tables_of_the_package():
    """Each is of one kind of device, and small."""
    paths = list(Path(aicf.__file__).parent.glob("tuned_*.json"))
    for path in paths:
        text = path.read_text(encoding="utf-8")
        arch, found = path.stem.removeprefix("tuned_"), json.loads(text)
        assert text.isascii() and len(text) < 200_000
        machine = {"arch": arch + "a", "processors": found["about"]["processors"]}
        table = tuning.shipped(machine)
        assert table.times and table.slower.keys() <= table.times.keys()
        for signature, times in table.times.items():
            assert len(times) > 1 and all(0 < seconds < 10 for seconds in times.values())
            assert set(table.slower.get(signature, ())) <= set(times)
        assert list(table.times) == sorted(table.times)
        assert tuning.shipped({**machine, "processors": 1}) is None
    assert tuning.shipped({"arch": "sm_80", "processors": 108}) is None


@needs_cuda
def test_the_table_serves_what_it_is_made_of():
    """Some of it: an entry is of no use once another kernel comes among the first."""
    table, asked, served = tuning.shipped({"arch": "sm_90a", "processors": 132}), 0, 0
    for size in (512, 1024, 2048, 4096):
        for dtype, maths in (("bfloat16", ["fp32"]), ("float32", ["fp32", "tf32", "bf16"])):
            g = aicf.Graph("product")
            a, b = (g.state(name, (size, size), dtype) for name in "ab")
            g.output("c", aicf.matmul(a, b))
            for math in maths:
                known = _core.cuda_candidates(g._core, _core.pass_names(), math=math)
                ((signature, names),) = known.items()
                asked += 1
                served += set(names[: tuning.LIMIT]) <= set(table.times.get(signature, ()))
    assert asked and served


def test_kernels_are_timed_one_by_one_where_there_is_no_room_for_more(clocked, monkeypatch):
    _, timed = clocked
    roomy, room = _core.Step, [1]

    def narrow(trials, signature, name, copies, share):
        if copies > room[0]:
            raise aicf.OutOfMemory(f"no room for {copies}")
        return roomy(trials, signature, name, copies, share)

    monkeypatch.setattr(_core, "Step", narrow)
    times = tuning._timed(Clocked(), "gemm one", ["a", "b"], 1 << 20)
    assert times == pytest.approx({"a": 3e-3, "b": 1e-3}) and len(timed) == 2
    room[0] = 0
    with pytest.raises(aicf.OutOfMemory):
        tuning._timed(Clocked(), "gemm one", ["a", "b"], 1 << 20)


def test_kernels_that_make_the_step_slower_are_left_out(clocked):
    """However quick they are alone; those that do not stay, and what is found is kept."""
    kept, _ = clocked
    machine = {"name": "GPU", "arch": "sm_90a", "driver": "13.0"}

    def entry(name, ops, default, kernel, times):
        return tuning.Choice("gemm", name, ops, default, kernel, times, False)

    found = [
        entry("small", 1, "a", "b", {"a": 2e-3, "b": 1e-3}),
        entry("large", 4, "a", "c", {"a": 2e-3, "c": 1e-3}),
        entry("same", 9, "a", "a", {"a": 2e-3, "b": 2e-3}),
    ]
    runs = []

    def seconds(kernels):
        runs.append(dict(kernels))
        return 10.0 + (kernels["large"] == "c") - 0.1 * (kernels["small"] == "b")

    for again in (False, False, True):
        chosen = tuning._together(found, seconds, machine, again)
        assert [one.kernel for one in chosen] == ["b", "a", "a"]
    assert len(runs) == 6 and len(kept) == 1
    assert runs[:3] == [
        {"small": "a", "large": "a", "same": "a"},
        {"small": "a", "large": "c", "same": "a"},
        {"small": "b", "large": "a", "same": "a"},
    ]
    changed = found[:2]
    assert tuning._kept(b'["small"]', changed) == ["small"]
    for text in (None, b"", b"\xff", b"{}", b"3", b'["same"]', b'["other"]', b"[[1]]"):
        assert tuning._kept(text, changed) is None, text


def test_a_step_without_room_for_another_keeps_what_is_quicker_alone(clocked):
    """Beside the step that is being tuned a device may have no memory for a whole one."""
    kept, _ = clocked
    machine = {"name": "GPU", "arch": "sm_90a", "driver": "13.0"}
    found = [tuning.Choice("gemm", "one", 1, "a", "b", {"a": 2e-3, "b": 1e-3}, False)]

    def seconds(kernels):
        raise aicf.OutOfMemory("no room")

    assert tuning._together(found, seconds, machine, False) == found
    assert not kept  # another time there may be room


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool", "int64"])
def test_whole_steps_are_timed_whatever_their_inputs(dtype, quick):
    g = aicf.Graph("n")
    h = g.dense("0", g.input("x", (4, 8)), 3)
    g.output("loss", aicf.cross_entropy(h, g.input("t", (4,), "int32")))
    g.output("u", aicf.flip(g.input("u", (4,), dtype), 0))
    assert 0 < tuning._whole(g._core, ("cpu", _core.pass_names(), "fp32", 0), {}) < 1


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("math", ["fp32", "bf16", "mixed"])
def test_a_tuned_step_has_the_bits_of_an_untuned_one(math, quick, rng):
    g = network()
    values = feed(rng)
    found = aicf.tune(g, device="cuda", math=math, limit=2)
    assert len(found) and all(len(one.times) == 2 for one in found)
    assert all(one.default in one.times and one.kernel in one.times for one in found)
    assert found.candidates.keys() == g.compile(device="cuda", math=math).plan.candidates.keys()
    ends = []
    for options in ({}, {"tune": True}, {"candidates": found.candidates}):
        step = g.compile(device="cuda", math=math, seed=3, **options)
        for _ in range(2):
            step(**values)
        ends.append(content(step))
        if "tune" in options:
            assert all(one.known for one in aicf.tune(step))
    for other in ends[1:]:
        for leaf, array in ends[0].items():
            assert_bits(other[leaf], array, leaf)


@needs_cuda
@pytest.mark.gpu
def test_a_table_of_the_package_changes_no_bit(quick, rng, monkeypatch):
    """Nothing is timed, and nothing kept."""
    g, values = network(), feed(rng)
    trials = _core.Trials(g._core, "cuda", _core.pass_names(), "fp32", 0)
    names = {entry[0]: entry[2] for entry in trials.choices}
    last = {signature: each[: tuning.LIMIT][-1] for signature, each in names.items()}
    table = tuning.Table(
        {
            signature: {name: 1e-6 if name == last[signature] else 1e-3 for name in each}
            for signature, each in names.items()
        },
        {},
    )
    monkeypatch.setattr(tuning, "shipped", lambda machine: table)
    plain = g.compile(device="cuda", seed=3)
    with monkeypatch.context() as without:
        for what in ("_timed", "_whole"):
            without.setattr(tuning, what, lambda *_: pytest.fail("timed"))
        step = g.compile(device="cuda", seed=3, tune=True)
        found = aicf.tune(step)
    assert step.plan.candidates == last == found.candidates
    assert all(one.shipped for one in found) and str(found).count("shipped") == len(found)
    assert plain.plan.candidates != last
    for one in (plain, step):
        one(**values)
    for leaf, array in content(plain).items():
        assert_bits(content(step)[leaf], array, leaf)
    assert not any(one.known for one in aicf.tune(step, again=True))


@needs_cuda
@pytest.mark.gpu
def test_what_trials_have_built_is_not_compiled_again(quick):
    trials = _core.Trials(network()._core, "cuda", _core.pass_names(), "fp32", 0)
    wanted = [(entry[0], name) for entry in trials.choices for name in entry[2][:2]]
    trials.build(wanted)
    before = _core.cuda_info()["compiled"]
    for signature, name in wanted:
        _core.Step(trials, signature, name, 2, []).replay(1)
    assert _core.cuda_info()["compiled"] == before
    with pytest.raises(aicf.Error, match="no op has this signature"):
        trials.build([("gemm", "near_8x16")])


@needs_cuda
def test_the_cache_lists_times(quick, capsys):
    """Beside compiled kernels, and removes them with these."""
    _core.store_cached("tuned kernel\n[]", '{"a": 1.0}')
    assert _core.load_cached("tuned kernel\n[]") == b'{"a": 1.0}'
    assert _core.load_cached("tuned kernel\n[1]") is None
    assert command.main(["cache", "list"]) == 0
    assert "times of kernels" in capsys.readouterr().out
    assert command.main(["cache", "clear"]) == 0
    assert _core.load_cached("tuned kernel\n[]") is None


@needs_cuda
@pytest.mark.gpu
def test_the_file_of_a_step_has_its_choices(quick, rng, tmp_path):
    g = network()
    (signature, names), *_ = _core.cuda_candidates(g._core, _core.pass_names()).items()
    step = g.compile(device="cuda", tune=True, candidates={signature: names[-1]}, seed=3)
    assert step.plan.candidates[signature] == names[-1]  # what is given goes before
    step.export(tmp_path / "step.aicf")
    loaded = aicf.load_step(tmp_path / "step.aicf")
    assert loaded.plan.candidates == step.plan.candidates and loaded.trace == step.trace


@needs_cuda
@pytest.mark.gpu
def test_attention_is_timed(quick):
    g = aicf.Graph("attention")
    q = g.param("q", (1, 2, 128, 64), "bfloat16", init=aicf.init.normal())
    g.output("y", aicf.scaled_dot_product_attention(q, q, q))
    found = aicf.tune(g, device="cuda")
    assert [sorted(one.times) for one in found] == [
        sorted(names) for names in _core.cuda_candidates(g._core, _core.pass_names()).values()
    ]
