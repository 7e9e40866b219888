"""A compiled step as a file: the step that is loaded has the bits of the one that was exported, and
a damaged file is a FormatError before anything runs."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import aicf
import file_mutants
import numpy as np
import pytest
from aicf import verify
from conftest import DEVICES
from test_cuda_fake import driver  # noqa: F401
from test_cuda_fake import run as run_fake

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

HERE = Path(__file__).parent
MUTANTS = 3000
INVALID_IMAGE = 200


def network(keep=1, batch=6):
    g = aicf.Graph("network")
    x, t = g.input("x", (batch, 5)), g.input("t", (batch,), "int64")
    y = aicf.dropout(aicf.tanh(g.dense("0", x, 70)), 0.25)
    y = g.dense("1", aicf.layer_norm(y, (70,)), 4)
    loss = aicf.cross_entropy(y, t)
    g.minimize(loss, aicf.optim.AdamW(lr=0.01), clip_norm=1.0)
    g.output("loss", loss, keep=keep)
    g.output("y", y)
    return g


def batches(step, count, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {name: step._array(name) for name in step._leaves("input")}
    types = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    for _ in range(count):
        yield {
            name: rng.integers(0, 4, shape).astype(dtype)
            if dtype.startswith("int")
            else rng.standard_normal(shape).astype(dtype)
            for name, (dtype, shape) in types.items()
        }


def run(step, count, seed=0):
    """The bytes of every output of some steps, and of the state at the end."""
    seen = []
    for batch in batches(step, count, seed):
        out = step(**batch)
        seen.append({name: array.numpy().tobytes() for name, array in out.items()})
    return seen, {name: value.tobytes() for name, value in step.state_dict().items()}


def exported(step, path, **options):
    step.export(path, **options)
    return aicf.load_step(path)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", verify.CASES)
def test_the_reference_steps(name, device, tmp_path):
    step = verify.build(name, verify.CASES[name]).compile(device=device)
    again = exported(step, tmp_path / "step.aicf")
    assert run(again, 100) == run(step, 100)
    assert again.device == step.device and again.trace == step.trace


@pytest.mark.parametrize("math", ["fp32", "bf16", "mixed"])
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_dropout_rings_and_modes(device, keep, math, tmp_path):
    step = network(keep).compile(device=device, math=math, seed=7)
    run(step, 5, seed=1)
    again = exported(step, tmp_path / "step.aicf")
    for name, value in step.state_dict().items():
        assert again.state_dict()[name].tobytes() == value.tobytes(), name
    fresh = network(keep).compile(device=device, math=math, seed=7)
    fresh.load_state_dict(step.state_dict())
    assert run(again, 100) == run(fresh, 100)


def test_without_state_it_begins_as_the_graph_says(tmp_path):
    step = network().compile(device="cpu", seed=3)
    first = step.state_dict()
    began = run(step, 20)
    again = exported(step, tmp_path / "step.aicf", state=False)
    assert {k: v.tobytes() for k, v in again.state_dict().items()} == {
        k: v.tobytes() for k, v in first.items()
    }
    assert run(again, 20) == began


def test_the_same_step_is_the_same_file(tmp_path):
    for name in ("a", "b"):
        network().compile(device="cpu", seed=3).export(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    aicf.load_step(tmp_path / "a").export(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_step_that_shares_or_is_bound(tmp_path):
    """What lay elsewhere has memory of its own in the step that is loaded."""
    train = network().compile(device="cpu")
    g = aicf.Graph("evaluate")
    x = g.input("x", (9, 5))
    g.output("y", g.dense("1", aicf.layer_norm(aicf.tanh(g.dense("0", x, 70)), (70,)), 4))
    part = g.compile(device="cpu", share=train)
    bound = np.ones((70, 5), np.float32)
    part.bind(**{"0.W": bound})
    again = exported(part, tmp_path / "part.aicf")
    assert run(again, 3) == run(part, 3)
    before = train.state_dict()["0.W"].copy()
    again.params["0.W"] = np.zeros((70, 5), np.float32)
    assert (bound == 1).all() and (train.state_dict()["0.W"] == before).all()
    # Files of steps that shared can share again.
    train.export(tmp_path / "train.aicf")
    trainer = aicf.load_step(tmp_path / "train.aicf")
    evaluator = aicf.load_step(tmp_path / "part.aicf", share=trainer)
    run(trainer, 3)
    assert evaluator.params["1.W"].numpy().tobytes() == trainer.params["1.W"].numpy().tobytes()


def test_what_a_step_can_do(tmp_path):
    step = network(keep=3).compile(device="cpu")
    again = exported(step, tmp_path / "step.aicf")
    assert again.plan.to_json() == step.plan.to_json() and again.plan.report.ok
    again.set("opt.lr", 0.5)
    again.save(tmp_path / "state.safetensors")
    step.load(tmp_path / "state.safetensors")
    assert float(step.state["opt.lr"]) == 0.5
    x = np.zeros((6, 5), np.float32)
    again.bind(x=x)
    again.reset()
    assert not again.captured
    again(t=np.zeros(6, np.int64))
    again.capture()
    again.replay(4)
    assert again.outputs["loss"].shape == (3,)
    quiet = aicf.load_step(tmp_path / "step.aicf", capture=False)
    assert not quiet.captured and run(quiet, 2) == run(aicf.load_step(tmp_path / "step.aicf"), 2)


def test_other_threads_and_instruction_sets(tmp_path):
    """Kernels are chosen where the file is loaded, and give the same bits."""
    step = network(batch=300).compile(device="cpu")
    step.export(tmp_path / "step.aicf")
    want = run(step, 5)
    script = (
        "import sys, aicf, hashlib; from test_export import run; "
        f"print(hashlib.sha256(repr(run(aicf.load_step({str(tmp_path / 'step.aicf')!r}), 5))"
        ".encode()).hexdigest())"
    )
    for isa, threads in (("baseline", 1), ("", 3), ("", 8)):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(HERE), "AICF_CPU_ISA": isa,
                 "AICF_NUM_THREADS": str(threads)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == hashlib.sha256(repr(want).encode()).hexdigest(), isa


# ---- files that are wrong


def changed(file, at, form, value):
    data = bytearray(file)
    struct.pack_into("<" + form, data, at, value)
    return bytes(data)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "step.aicf"
    network(keep=2).compile(device="cpu").export(path)
    return path.read_bytes()


def refused(path, file, text):
    path.write_bytes(file)
    with pytest.raises(aicf.FormatError, match=text) as error:
        aicf.load_step(path)
    assert str(path) in str(error.value)


def test_another_version_says_what_to_do(file, tmp_path):
    path = tmp_path / "step.aicf"
    for at in (8, 12):
        (ours,) = struct.unpack_from("<I", file, at)
        for version in {0, ours - 1, ours + 1, 2**32 - 1}:
            refused(path, changed(file, at, "I", version), "export the step again")
    refused(path, b"{}", "need a file that Step.export wrote")
    refused(path, b"", "need a file")
    for size in (63, 64, 255, 1000, len(file) - 1):
        refused(path, file[:size], "need|damaged")
    refused(path, file + b"\0", "bytes")


def record(file, *path, to):
    """The file with one field of its plan changed, sums and all: the n-th of a kind."""
    head, parts = file_mutants.split(file)
    fields = file_mutants.Fields(bytes(parts[0])).fields
    what, number = path
    form, at, size, _ = [f for f in fields if f[3] == what][number]
    if form == "s":
        parts[0][at : at + size] = to
    else:
        struct.pack_into("<" + form, parts[0], at, to)
    return file_mutants.join(head, parts)


@pytest.mark.parametrize(
    ("what", "number", "to", "text"),
    [
        ("op name", 0, None, "unknown in this version of aicf; export"),
        ("op digest", 0, 5, "another one in this version of aicf; export"),
        ("device", 0, 2, "a device is 2"),
        ("launch", 0, 3, "kind 3; this version runs kernels, foreign ones and loops"),
        ("launch", 0, 2, 'kind 2 has candidate ""; need a library'),
        ("launch", 0, 5, "a launch is 5"),
        ("shape rank", 0, 9, "rank 9"),
        ("shape", 0, 2**62, "more than 2\\*\\*63 bytes"),
        ("shape", 0, -1, "negative"),
        ("role", 0, 6, "a role is 6"),
        ("region", 0, 9, "a region is 9"),
        ("place offset", 0, 2**40, "lies at 1099511627776"),
        ("place bytes", 0, 1, "1 bytes"),
        ("storage", 0, 2**31 - 1, "lies in"),
        ("view value", 0, -1, "names %-1"),
        ("strides", 0, 2**62, "does not have"),
        ("offset", 0, -1, "does not have"),
        ("step input", 0, 300, "names operand 300"),
        ("wait", 0, 10**6, "waits for op"),
        ("values count", 0, 2**32 - 1, "items, where"),
        ("regions count", 0, 2, "it has 2 regions; need 9"),
        ("moment_of", -1, 0, "moment"),
        ("keep", 0, 0, "keeps 0"),
        ("assign", 0, 0, "assign"),
    ],
)
def test_wrong_fields(file, tmp_path, what, number, to, text):
    if what == "op name":
        to = b"x" * _size(file, what)
    refused(tmp_path / "step.aicf", record(file, what, number, to=to), text)


def _size(file, what):
    fields = file_mutants.Fields(bytes(file_mutants.split(file)[1][0])).fields
    return next(f[2] for f in fields if f[3] == what)


def test_names_stand_once(file, tmp_path):
    head, parts = file_mutants.split(file)
    fields = file_mutants.Fields(bytes(parts[0])).fields
    names = [f for f in fields if f[3] == "name" and f[2] == 1]  # x and t
    assert len(names) >= 2
    parts[0][names[1][1]] = parts[0][names[0][1]]
    refused(tmp_path / "step.aicf", file_mutants.join(head, parts), 'named "x"')
    parts[0][names[1][1]] = 0xFF
    refused(tmp_path / "step.aicf", file_mutants.join(head, parts), "not UTF-8")


def test_no_number_attribute_is_trouble(tmp_path):
    """NaN is a number as others where an attribute is one."""
    g = aicf.Graph("clip")
    g.output("y", aicf.clip(g.input("x", (4,)), -1.0, 1.0))
    path = tmp_path / "clip.aicf"
    g.compile(device="cpu").export(path)
    data = record(path.read_bytes(), "attr", 0, to=float("nan"))
    path.write_bytes(data)
    step = aicf.load_step(path)
    step(x=np.zeros(4, np.float32))
    assert step.plan.report.ok


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["concat", "cumsum", "softmax"])
def test_an_axis_counted_from_the_end(name, axis, tmp_path):
    """It is the same axis, for a file may say it so."""
    g = aicf.Graph("axis")
    x = g.input("x", (5, 7))
    y = aicf.concat([x, x], axis) if name == "concat" else getattr(aicf, name)(x, axis)
    g.output("y", y)
    path = tmp_path / "axis.aicf"
    step = g.compile(device="cpu")
    step.export(path)
    path.write_bytes(record(path.read_bytes(), "attr", 0, to=axis - 2))
    assert run(aicf.load_step(path), 2) == run(step, 2)


def whole_file(graph, path):
    """The sections of an exported step, and where its record's fields and lists lie."""
    graph.compile(device="cpu").export(path)
    head, parts = file_mutants.split(path.read_bytes())
    return head, parts, file_mutants.Fields(bytes(parts[0]))


def test_a_region_of_numbers(tmp_path):
    """A step on numbers has no place among pointwise ones, nor is it their anchor."""
    path, key = tmp_path / "step.aicf", struct.pack("<I", 8) + b"step_inc"
    _, parts, _ = whole_file(network(), path)
    at = parts[0].index(key)
    schema = bytes(parts[0][at : at + len(key) + 8])
    g = aicf.Graph("ints")
    g.output("o", -(g.input("x", (), "int32") * g.input("y", (), "int32")))
    head, parts, _ = whole_file(g, path)
    at = parts[0].index(struct.pack("<I", 3) + b"neg")
    parts[0][at : at + 7 + 8] = schema
    refused(path, file_mutants.join(head, parts), "step step_inc is not pointwise")


def test_where_a_product_is_made(tmp_path):
    """A product is made in the first output, which must hold its dtype."""
    path = tmp_path / "step.aicf"
    g = aicf.Graph("product")
    h = g.input("x", (64, 64)) @ g.param("w", (64, 64))
    g.output("a", h)
    g.output("b", aicf.cast(h, "float16"))
    head, parts, fields = whole_file(g, path)
    _, ends, _ = next(entry for entry in fields.lists if entry[2] == "outputs")
    plan = parts[0]
    first, second = plan[ends[0] : ends[1]], plan[ends[1] : ends[2]]
    plan[ends[0] : ends[2]] = second + first
    for _, at, _, what in fields.fields:
        if what in ("step input", "step output"):
            (number,) = struct.unpack_from("<i", plan, at)
            if number in (2, 3):
                struct.pack_into("<i", plan, at, 5 - number)
    refused(path, file_mutants.join(head, parts), "is no region of a product")


@pytest.mark.parametrize("room", [2**58, 2**62])
@pytest.mark.parametrize("at", [2**58, 2**58 + 256, 2**63 - 256])
def test_no_end_of_scratch_overflows(tmp_path, at, room):
    path = tmp_path / "step.aicf"
    g = aicf.Graph("scratch")
    x = g.input("x", (70, 90), "bfloat16")
    g.output("y", x @ g.param("w", (90, 80), "bfloat16"))
    head, parts, fields = whole_file(g, path)
    for _, place, _, what in fields.fields:
        if what in ("scratch", "scratch room"):
            struct.pack_into("<q", parts[0], place, at if what == "scratch" else room)
    refused(path, file_mutants.join(head, parts), "scratch")


REGIONS = ("params", "grads", "moments", "state", "inputs", "outputs", "temps", "constants",
           "counters")  # fmt: skip
MUCH = 512 << 20


@pytest.mark.parametrize("region", REGIONS)
def test_no_region_is_larger_than_what_lies_in_it(file, tmp_path, region):
    """A small file cannot ask for much memory; scratch and counters are the kernels' affair."""
    number = REGIONS.index(region)
    large = record(file, "region bytes", number, to=MUCH)
    path = tmp_path / "step.aicf"
    if region in ("temps", "counters"):  # of a CPU these follow from the kernels at hand
        path.write_bytes(file)
        want = aicf.load_step(path).plan.regions
        path.write_bytes(large)
        assert aicf.load_step(path).plan.regions == want
        return
    refused(path, large, f"region {region} has {MUCH} bytes; need at most")


def test_no_gap_makes_a_region_large(file, tmp_path):
    """Nor does a value that lies far behind the others of its region."""
    head, parts = file_mutants.split(file)
    fields = file_mutants.Fields(bytes(parts[0])).fields
    places = [
        tuple(f[1] for f in fields[i : i + 4]) for i, f in enumerate(fields) if f[3] == "region"
    ]
    plan, inputs = parts[0], REGIONS.index("inputs")
    region, offset, _, _ = next(place for place in places if plan[place[0]] == inputs)
    struct.pack_into("<q", plan, offset, MUCH)
    sizes = [f[1] for f in fields if f[3] == "region bytes"]
    struct.pack_into("<q", plan, sizes[inputs], MUCH + 4096)
    refused(tmp_path / "step.aicf", file_mutants.join(head, parts), "region inputs has")


def test_what_is_shared_takes_no_memory_again(tmp_path):
    """Of a step that is loaded beside one with the same params and states nothing of them is kept;
    where it has some of its own, these alone lie in its regions."""
    train = network().compile(device="cpu")
    path = tmp_path / "train.aicf"
    train.export(path)
    alone = aicf.load_step(path)
    again = aicf.load_step(path, share=alone)
    regions = again.plan.regions
    assert [regions[name] for name in ("params", "moments", "state")] == [0, 0, 0], regions
    for name in ("params", "moments", "state"):
        assert alone.plan.regions[name] == train.plan.regions[name] > 0
    assert again.plan.report.ok
    taken = run(again, 3)
    assert {name: value.tobytes() for name, value in alone.state_dict().items()} == taken[1]
    assert run(train, 3) == taken
    # A part of it is shared: two params, and of the states the learning rate.
    g = aicf.Graph("part")
    g.state("opt.lr", (), init=0.0)
    other = g.state("other", (700,))
    g.assign(other, other + 1.0)
    x = g.input("x", (9, 5))
    y = g.dense("2", g.dense("0", x, 70), 3)
    g.output("y", aicf.sum(y) + aicf.sum(other))
    g.minimize(aicf.sum(y), aicf.optim.SGD(lr=0.5), name="own")
    part = g.compile(device="cpu")
    part.export(tmp_path / "part.aicf")
    shares = aicf.load_step(tmp_path / "part.aicf", share=train)
    assert 0 < shares.plan.regions["params"] == part.plan.regions["params"]
    assert shares.plan.report.ok and shares.plan.regions["state"] < part.plan.regions["state"]
    for name in ("2.W", "2.b", "other", "own.lr"):
        (shares.params if name in shares.params else shares.state)[name] = (
            part.params if name in part.params else part.state
        )[name].numpy()
    for name in ("0.W", "0.b"):
        part.params[name] = train.params[name].numpy()
    seen, state = run(part, 3)
    assert run(shares, 3) == (seen, state | {"opt.lr": train.state["opt.lr"].numpy().tobytes()})
    assert train.params["0.W"].numpy().tobytes() == part.params["0.W"].numpy().tobytes()
    shares.export(tmp_path / "shares.aicf")
    once_more = aicf.load_step(tmp_path / "shares.aicf")
    assert run(once_more, 3) == run(shares, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="measures by Linux's means")
def test_what_a_file_begins_with_is_not_kept(tmp_path):
    """Once it lies where it runs, no copy stays in the host's memory."""
    size = 4 << 20
    g = aicf.Graph("large")
    w = g.param("w", (size,), init=np.arange(size, dtype=np.float32))
    c = g.constant(np.arange(size, dtype=np.float32) % 7)
    g.assign(w, w + c)
    g.output("y", aicf.sum(w))
    path, again = tmp_path / "step.aicf", tmp_path / "again.aicf"
    g.compile(device="cpu").export(path)
    code = f"""
import aicf, ctypes, gc, os
def rss():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
aicf.load_step({str(path)!r}).run()
before = rss()
step = aicf.load_step({str(path)!r})
print(rss() - before)
step.export({str(again)!r})
try: step.export({str(again)!r} + 'x', state=False)
except aicf.GraphError as error: print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    held = 4 * size * 3  # the param, the constant, and what the step makes of them
    assert int(said[0]) < held, said
    assert again.read_bytes() == path.read_bytes()
    assert "what it began with" in said[1]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "tpu", 5])
def test_another_device(file, tmp_path, device):
    path = tmp_path / "step.aicf"
    path.write_bytes(file)
    with pytest.raises((aicf.Unsupported, aicf.GraphError), match="device"):
        aicf.load_step(path, device)


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.aicf"):
        aicf.load_step(tmp_path / "none.aicf")
    with pytest.raises(aicf.FormatError, match="a folder"):
        aicf.load_step(tmp_path)
    with pytest.raises(FileNotFoundError):
        network().compile(device="cpu").export(tmp_path / "none" / "step.aicf")


def test_mutants():
    """Of damaged files none crashes, hangs, or runs unverified."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "file_mutants.py"), "--count", str(MUTANTS)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    said = done.stdout + done.stderr[-500:]
    assert done.returncode == 0, said
    tally = json.loads(done.stdout.splitlines()[-1])
    assert tally["mutants"] == MUTANTS and tally["faults"] == 0, said
    # Enough of them on each way, or the changes have lost their teeth.
    assert tally["FormatError"] > MUTANTS // 2 and tally["run"] > MUTANTS // 10, tally


# ---- a GPU's file, on a driver without one

FAKE = """
import sys
import numpy as np
sys.path[:] = {path!r} + sys.path
import aicf
from aicf import verify
name, case = next(iter(verify.CASES.items()))
x = np.zeros((case.batch, case.inputs), np.float32)
t = np.zeros((case.batch, case.outputs), np.float32)
"""
EXPORT = """
step = verify.build(name, case).compile(device="cuda")
step.export({file!r})
print(step.plan.to_json())
print(step.trace)
"""
LOAD = """
for attempt in range(2):
    try:
        step = aicf.load_step({file!r})
        step(x=x, t=t)
        step.replay(3)
        if attempt == 0:
            print(step.plan.to_json())
            print(step.trace)
        step.export({file!r} + ".again")
        assert open({file!r}, "rb").read() == open({file!r} + ".again", "rb").read()
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""


def test_a_file_for_a_gpu(driver, tmp_path):  # noqa: F811
    """It loads with the code that it holds: with no kernel cache, and no compiler, at hand."""
    file = str(tmp_path / "step.aicf")
    fake = FAKE.format(path=[])
    exported, _ = run_fake(driver, fake + EXPORT.format(file=file))
    loaded, counts = run_fake(
        driver, fake + LOAD.format(file=file), AICF_CACHE_DIR=tmp_path / "empty"
    )
    assert loaded == exported + "done\ndone\n"
    assert not list(tmp_path.glob("empty/*")), "it was compiled again"
    assert not any(counts[key] for key in ("device", "streams", "graphs", "execs")), counts


def test_a_damaged_file_for_a_gpu(driver, tmp_path):  # noqa: F811
    """Launches, maps and code that do not fit are a FormatError before the driver sees them."""
    file = tmp_path / "step.aicf"
    run_fake(driver, FAKE.format(path=[]) + EXPORT.format(file=str(file)))
    head, parts = file_mutants.split(file.read_bytes())
    rng = np.random.default_rng(0)
    for i in range(60):
        changed = [bytearray(part) for part in parts]
        which = changed[1] if i % 3 else changed[0]
        which[int(rng.integers(len(which)))] ^= int(rng.integers(1, 256))
        (tmp_path / f"{i}.aicf").write_bytes(file_mutants.join(head, changed))
    script = FAKE.format(path=[]) + (
        f"for i in range(60):\n"
        f"    try:\n"
        f"        aicf.load_step({str(tmp_path)!r} + f'/{{i}}.aicf', capture=False)\n"
        f"        print('loaded')\n"
        f"    except aicf.Error as error:\n"
        f"        print(type(error).__name__, error)\n"
    )
    out, _ = run_fake(driver, script, AICF_CACHE_DIR=tmp_path / "empty")
    kinds = [line.split()[0] for line in out.splitlines() if not line.startswith("[FAIL]")]
    assert kinds.count("FormatError") > 20, out


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuModuleGetFunction"])
def test_stored_code_that_the_driver_refuses(driver, tmp_path, call):  # noqa: F811
    file = str(tmp_path / "step.aicf")
    fake = FAKE.format(path=[])
    run_fake(driver, fake + EXPORT.format(file=file))
    out, _ = run_fake(
        driver, fake + LOAD.format(file=file), FAKE_CUDA_CALL=call, FAKE_CUDA_CODE=INVALID_IMAGE
    )
    first, *rest = out.splitlines()
    assert first.startswith("Unsupported") and "export the step on this device" in first, out
    assert rest[-1] == "done", out
