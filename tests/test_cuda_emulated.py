"""A sample of the GPU's tests on the GPU that there is not (emulate.py): what kernels compute, bit
by bit, blocks and threads in a shuffled order. All of them: see CONTRIBUTING.md."""

import subprocess
import sys
from pathlib import Path

import emulate
import pytest
from aicf import _core
from boundary_programs import FAMILIES
from test_cuda_boundary import SHARDS

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # kernels are compiled by g++
    pytest.mark.skipif(bool(emulate.missing()), reason=emulate.missing()),
    pytest.mark.skipif(not hasattr(_core, "cuda_info"), reason="this build has no CUDA backend"),
]


def run(emulated, major, order, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu and not slow"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark"]
    command += map(str, arguments)
    environment = emulate.environment(emulated, major=major, order=order)
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:]
    return done.stdout


@pytest.mark.parametrize(("major", "first"), [(8, 20), (9, 150)])
def test_a_sample(emulated, major, first):
    few = ["--boundary-graphs", SHARDS * len(FAMILIES), "--timeout", 600]
    out = run(emulated, major, first, "--every", 257, "--first", first, *few)
    assert " passed" in out and " failed" not in out


def test_what_steps_of_one_block_are_given(emulated):
    """Calls, replays and run_many: a launch reads arrays of the host and slices of a stack."""
    out = run(emulated, 9, 7, "tests/test_one_block.py", "-k", "given_stays and 8-8-8")
    assert "1 passed" in out


def test_long_kernels(emulated):
    """Launched without a graph, each behind the one before it and behind copies."""
    out = run(emulated, 9, 7, "tests/test_cuda_alone.py", "-k", "turn or copies")
    assert "2 passed" in out


@pytest.mark.parametrize(
    ("name", "chosen", "count"),
    [  # of float16, whose kernels are bfloat16's but for the dtype, some
        ("attention", "warp_roles and (bfloat16 or 300)", 37),
        ("candidates", "on_a_gpu", 9),
    ],
)
def test_warp_roles(emulated, name, chosen, count):
    """Barriers in shared memory, the copy engine, products of warpgroups, clusters."""
    assert f"{count} passed" in run(emulated, 9, 5, f"tests/test_{name}.py", "-k", chosen)


def test_limbs(emulated):
    """Three planes of a copy in the ring, whose places are free again one limb at a time."""
    chosen = "next_to_tiles or special_limbs"
    assert "5 passed" in run(emulated, 9, 7, "tests/test_limbs.py", "-k", chosen)


PRODUCT = """
import aicf
import numpy as np

rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, 33_000), (33_000, 96)))
g = aicf.Graph("product")
g.output("y", aicf.matmul(g.input("a", a.shape, "float16"), g.input("b", b.shape, "float16")))
cpu, cuda = (g.compile(device=device, math="fp16", tensor_cores=cores)(a=a, b=b)["y"].numpy()
             for device, cores in (("cpu", "sm_90"), ("cuda", None)))
print((cpu == cuda).all())
"""


def test_sums_that_are_added_in_turns(emulated):
    """A thread that reads the same count of two loops in a row does not wait for it to change."""
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=emulate.environment(emulated, major=9), text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True"], done.stderr


TURNS = """
import aicf
import numpy as np
from aicf import _core

rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((5, 2048), (2048, 1000)))
g = aicf.Graph("product")
g.output("y", aicf.matmul(g.input("a", a.shape, "float16"), g.input("b", b.shape, "float16")))
((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math="fp16").items()
split = [x for x in names if x.startswith("wgmma") and x.endswith("_8") and "cluster" not in x]
got = {g.compile(device="cuda", math="fp16", candidates={signature: name})(a=a, b=b)["y"].numpy()
       .tobytes() for name in ["64x64", *split]}
print(len(split) > 3, len(got))
"""


@pytest.mark.parametrize("order", [7, 150])
def test_turns_are_passed_on(emulated, order):
    """A turn's slot is filled again only when no lane still waits for it to be filled."""
    done = subprocess.run(
        [sys.executable, "-c", TURNS], env=emulate.environment(emulated, major=9, order=order),
        text=True, capture_output=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "1"], done.stderr


RUNS = """
import aicf
import numpy as np
from aicf import _core

rng = np.random.default_rng(0)
found = []
for (m, n, k), batch, turned in (((120, 392, 5000), (), True), ((120, 392, 4104), (2,), False)):
    a = rng.standard_normal((*batch, *((k, m) if turned else (m, k)))).astype(np.float16)
    b = rng.standard_normal((*batch, k, n)).astype(np.float16)
    g = aicf.Graph("product")
    x = g.input("a", a.shape, "float16")
    g.output("y", aicf.matmul(x.T if turned else x, g.input("b", b.shape, "float16")))
    want = g.compile(device="cpu", math="fp16", tensor_cores="sm_90")(a=a, b=b)["y"].numpy()
    known = _core.cuda_candidates(g._core, _core.pass_names(), processors=12)
    ((signature, names),) = known.items()
    for name in (name for name in names if name.endswith("_runs")):
        step = g.compile(device="cuda", candidates={signature: name})
        found += [step(a=a, b=b)["y"].numpy().tobytes() == want.tobytes() for _ in range(2)]
print(len(found) >= 8, all(found))
"""


@pytest.mark.parametrize("order", [7, 150])
def test_sums_are_handed_on(emulated, order):
    """From block to block, of which some begin after those that wait for none; counters are back at
    0 for the next launch."""
    environment = emulate.environment(emulated, major=9, processors=12, order=order)
    done = subprocess.run(
        [sys.executable, "-c", RUNS], env=environment, text=True, capture_output=True
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


CLUSTERS = """
import aicf
import numpy as np
from aicf import _core

rng = np.random.default_rng(0)
found = []
for (m, n, k), batch, turned in (((120, 136, 5000), (), True), ((136, 72, 4104), (2,), False)):
    a = rng.standard_normal((*batch, *((k, m) if turned else (m, k)))).astype(np.float16)
    b = rng.standard_normal((*batch, k, n)).astype(np.float16)
    g = aicf.Graph("product")
    x, y = g.input("a", a.shape, "float16"), g.input("b", b.shape, "float16")
    y = aicf.matmul(x.T if turned else x, y)
    g.output("y", y if turned else aicf.relu(y + g.input("c", (n,), "float16")))
    c = {} if turned else {"c": rng.standard_normal(n).astype(np.float16)}
    want = g.compile(device="cpu", math="fp16", tensor_cores="sm_90")(a=a, b=b, **c)["y"].numpy()
    known = _core.cuda_candidates(g._core, _core.pass_names(), processors=12)
    ((signature, names),) = known.items()
    for name in (name for name in names if "_cluster_" in name):
        step = g.compile(device="cuda", candidates={signature: name})
        found += [step(a=a, b=b, **c)["y"].numpy().tobytes() == want.tobytes() for _ in range(2)]
print(len(found), all(found))
"""


@pytest.mark.parametrize("order", [7, 150])
def test_a_cluster_shares_cuts(emulated, order):
    """The sum goes from block to block, in ascending order of cuts."""
    environment = emulate.environment(emulated, major=9, processors=12, order=order)
    done = subprocess.run(
        [sys.executable, "-c", CLUSTERS], env=environment, text=True, capture_output=True
    )
    assert done.stdout.split() == ["4", "True"], done.stderr


SHARED = """
import re
import sys

import aicf
import numpy as np
from aicf import _core

rng = np.random.default_rng(0)
found = []
for (m, n, k), turned in (((136, 392, 840), True), ((136, 328, 776), False)):
    a = rng.standard_normal((k, m) if turned else (m, k)).astype(np.float16)
    b = rng.standard_normal((n, k) if turned else (k, n)).astype(np.float16)
    g = aicf.Graph("product")
    x, y = g.input("a", a.shape, "float16"), g.input("b", b.shape, "float16")
    g.output("y", aicf.matmul(x.T, y.T) if turned else aicf.relu(aicf.matmul(x, y)))
    want = g.compile(device="cpu", math="fp16", tensor_cores="sm_90")(a=a, b=b)["y"].numpy()
    ((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names()).items()
    tiles = [name for name in names if re.search(r"x96|x160|by\\d|64x64_pair", name)]
    for name in tiles[(int(sys.argv[1]) + turned) % 2 :: 2]:
        step = g.compile(device="cuda", candidates={signature: name})
        if step(a=a, b=b)["y"].numpy().tobytes() != want.tobytes():
            print(name, turned)
        found.append(name)
print(len(found))
"""


@pytest.mark.parametrize("order", [7, 150])
def test_a_cluster_shares_operands(emulated, order):
    """A tile is brought once for all blocks that read it, and not before each has room; half of the
    tiles in each order."""
    environment = emulate.environment(emulated, major=9, processors=8, order=order)
    done = subprocess.run(
        [sys.executable, "-c", SHARED, str(order)], env=environment, text=True, capture_output=True
    )
    assert done.stdout.split() == ["6"], done.stdout + done.stderr


READINGS = """
import aicf
import numpy as np
from aicf import _core

rng = np.random.default_rng(0)
found, ways = [], set()
for m, n, k, left, right, most in (
    (160, 264, 200, "N", "N", 9),
    (160, 264, 200, "N", "T", 5),
    (136, 136, 4200, "T", "N", 4),
    (160, 264, 200, "T", "T", 3),
    (136, 136, 4200, "N", "N", 3),
    (72, 136, 1056, "N", "N", 2),  # the last cut has an odd number of steps
):
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((m, k), (k, n)))
    beside = rng.standard_normal((m, n)).astype(np.float32)
    g, feed, operands = aicf.Graph("product"), {"z": beside}, []
    for name, x, side in (("a", a, left), ("b", b, right)):
        feed[name] = np.ascontiguousarray(x if side == "N" else x.T)
        value = g.input(name, feed[name].shape)
        operands.append(value if side == "N" else aicf.permute(value, (1, 0)))
    y = aicf.matmul(*operands)
    g.output("y", y if most % 2 else aicf.tanh(y + g.input("z", beside.shape)))
    if most % 2:
        del feed["z"]
    want = g.compile(device="cpu", math="tf32", tensor_cores="sm_90")(**feed)["y"].numpy()
    known = _core.cuda_candidates(g._core, _core.pass_names(), math="tf32", processors=4)
    ((signature, names),) = known.items()
    taken = {}
    for name in (name for name in names if name.startswith("wgmma_")):
        way = next((one for one in ("turned", "right", "copies") if one in name), "lying")
        taken.setdefault(way, []).append(name)
    for name in (name for way in taken.values() for name in way[:most]):
        step = g.compile(device="cuda", math="tf32", candidates={signature: name})
        found.append(step(**feed)["y"].numpy().tobytes() == want.tobytes())
        if not found[-1]:
            print(m, n, k, left, right, name)
    ways |= {(left + right, way) for way in taken}
print(len(found) >= 30, all(found), *sorted(a + way for a, way in ways))
"""


@pytest.mark.parametrize("order", [0, 7])
def test_readings_of_tf32(emulated, order):
    """Where they lie, as those of the transpose, copied: the copy engine rounds all the same. 7:
    products are made late, when the words that they read have left their variables."""
    done = subprocess.run(
        [sys.executable, "-c", READINGS], env=emulate.environment(emulated, major=9, order=order),
        text=True, capture_output=True,
    )  # fmt: skip
    ways = ["NNcopies", "NNright", "NNturned", "NTlying", "TNcopies", "TNright"]
    ways += ["TTcopies", "TTlying"]
    assert done.stdout.split() == ["True", "True", *ways], done.stderr


BESIDE = """
import re

import aicf
import numpy as np
from aicf import _core

_core.narrow_any_size(True)
rng, passes = np.random.default_rng(0), _core.pass_names()
for math, (m, n, k), turned, name, part in (
    ("bf16", (1160, 136, 512), True, "64x64_copies", "rows"),
    ("bf16", (2184, 136, 512), False, "128x128_own_copies", "rows"),
    ("bf16", (136, 1160, 512), False, "128x128_pair_copies", "columns"),
    ("bf16", (136, 136, 4104), True, "128x256_pair_copies", "terms"),
):
    shapes = {"a": (k, m) if turned else (m, k), "b": (k, n)}
    g = aicf.Graph("product")
    a, b = (g.input(key, shape) for key, shape in shapes.items())
    g.output("y", aicf.matmul(a.T if turned else a, b))
    ((signature, _),) = _core.cuda_candidates(g._core, passes, math=math, processors=4).items()
    options = {"math": math, "candidates": {signature: "wgmma_" + name}}
    (text,) = _core.cuda_programs(g._core, passes, processors=4, **options)
    first = dict(re.findall(r"(rows|columns|terms) = ([1-9]\\d*)", text[text.index("_First {"):]))
    step = g.compile(device="cuda", **options)
    cpu = g.compile(device="cpu", math=math, tensor_cores="sm_90")
    same = []
    for _ in range(2):  # counters are at 0 again
        feed = {key: rng.standard_normal(x).astype(np.float32) for key, x in shapes.items()}
        same.append(step(**feed)["y"].numpy().tobytes() == cpu(**feed)["y"].numpy().tobytes())
    print(math, name, *first, same == [True, True])
"""


@pytest.mark.parametrize("order", [0, 7])
def test_what_is_copied_beside_products(emulated, order):
    """Tiles wait for the rest of what they read: rows, columns or terms."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], env=emulate.environment(emulated, major=9, order=order),
        text=True, capture_output=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "bf16 64x64_copies rows True",
        "bf16 128x128_own_copies rows True",
        "bf16 128x128_pair_copies columns True",
        "bf16 128x256_pair_copies terms True",
    ], done.stdout + done.stderr  # fmt: skip


def test_sizes_around_what_is_copied_beside(emulated):
    out = run(emulated, 9, 3, "tests/test_cuda_copies.py", "-k", "nnn or ptn")
    assert "6 passed" in out


COLUMNS = """
import sys

sys.path.append("tests")
import aicf
import numpy as np
from tensors import Layout, Tensor

x = np.random.default_rng(0).standard_normal((4096, 96)).astype(np.float32)
found = []
for device in ("cpu", "cuda"):
    given = Tensor("float32", Layout.c_order(x.shape), device, x)
    y = Tensor("float32", Layout.c_order((96,)), device)
    aicf.op_call("reduce_sum", [given.give()], [y.give()], attrs=dict(axes=[0], order="tree"))
    found.append(y.read().tobytes())
print(found[0] == found[1])
"""


def test_the_last_columns_read_no_further_than_parts_go(emulated):
    """Of 96 sums 64 are a block's and its last strip is half of one; parts end where an allocation
    does, behind which is memory that may not be read."""
    done = subprocess.run(
        [sys.executable, "-c", COLUMNS], env=emulate.environment(emulated), text=True,
        capture_output=True, cwd=HERE.parent,
    )  # fmt: skip
    assert done.stdout.split() == ["True"], (done.returncode, done.stderr)


SCRIPT = """
import aicf
import numpy as np

x = np.random.default_rng(0).standard_normal((3, 40_000)).astype(np.float32)
g = aicf.Graph("sums")
g.output("y", aicf.sum(g.input("x", x.shape), 1))
cpu, cuda = (g.compile(device=device)(x=x)["y"].numpy() for device in ("cpu", "cuda"))
print((cpu == cuda).all())
"""


def outcomes(emulated, tmp_path, script, source, whole, left, **options):
    """What a script says with the emulator, and with one that lacks something in a source."""
    hurt = tmp_path / "emulator"
    hurt.mkdir()
    for one in (HERE / "emulator").iterdir():
        text = one.read_text()
        assert one.name != source or text.count(whole) == 1
        (hurt / one.name).write_text(text.replace(whole, left) if one.name == source else text)
    found = {}
    for name, sources in {"whole": HERE / "emulator", "hurt": hurt}.items():
        environment = emulate.environment(emulated, **options) | {
            "EMULATOR_FOLDER": str(sources),
            "AICF_CACHE_DIR": str(tmp_path / name),
        }
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, text=True, capture_output=True
        )
        found[name] = done.stdout.split()
    return found


@pytest.mark.parametrize("order", [1, 2])
def test_a_missing_barrier_is_found(emulated, order, tmp_path):
    """One of the barriers of a block is left out of what the kernels find."""
    whole = "inline void __syncthreads() { emulated::emulated_api.barrier(0, 0, true); }"
    left = "inline void __syncthreads() {}"
    found = outcomes(emulated, tmp_path, SCRIPT, "device.h", whole, left, order=order)
    assert found["whole"] == ["True"]
    assert found["hurt"] in ([], ["False"])  # other bits, or the emulator ends it


ATTENTION = """
import aicf
import numpy as np
from aicf import _core

rng = np.random.default_rng(0)
g, feed = aicf.Graph("attention"), {}
for name in "qkv":
    feed[name] = rng.standard_normal((1, 1, 400, 64)).astype(np.float16)
y = aicf.scaled_dot_product_attention(*(g.input(n, feed[n].shape, "float16") for n in "qkv"))
g.output("y", y)
((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names()).items()
cpu = g.compile(device="cpu", tensor_cores="sm_90")(**feed)["y"].numpy()
cuda = g.compile(device="cuda", candidates={signature: "wgmma"})(**feed)["y"].numpy()
print(cpu.tobytes() == cuda.tobytes())
"""


def test_sums_read_too_early_are_found(emulated, tmp_path):
    """A wait for all products but the newest two, say, is one for all but the newest three."""
    whole, left = "left = static_cast<u32>(newest);", "left = static_cast<u32>(newest) + 1;"
    found = outcomes(emulated, tmp_path, ATTENTION, "hopper.h", whole, left, major=9, order=5)
    assert found["whole"] == ["True"] and found["hurt"] != ["True"]


LATE = """
import aicf
import ml_dtypes
import numpy as np

dtype = np.dtype({dtype!r} if {dtype!r} != "bfloat16" else ml_dtypes.bfloat16)
rng, g, feed = np.random.default_rng(0), aicf.Graph("late"), {{}}
for name, shape in {{"x": ({rows}, {width}), "v": (16, {width}), "w": (16, {width})}}.items():
    feed[name] = rng.standard_normal(shape).astype(dtype)
x, v, w = (g.input(name, one.shape, {dtype!r}) for name, one in feed.items())
made = aicf.relu(v.T @ w)
g.output("y", x @ (made.T if {turned} else made))
found = []
for options in ({{"device": "cpu", "tensor_cores": "sm_90"}}, {{"device": "cuda"}}):
    step = g.compile(math={math!r}, **options)
    found.append(step(**feed)["y"].numpy().tobytes())
print(step.lowered[-1]["kernel"], found[0] == found[1])
"""


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "turned", "kernel"),
    [
        (128, 512, "float32", False, "gemm_f32_near_16x32_t4_4"),
        (128, 512, "tf32", False, "gemm_f32_tf32_near_16x32_boxes_4"),
        (120, 1000, "float32", False, "gemm_f32_near_32x32_8"),
        (120, 1000, "float32", True, "gemm_f32_near_32x32_8"),
        (1030, 256, "float32", False, "gemm_f32_32x32"),
        (1024, 256, "float32", True, "gemm_f32_64x32"),
        (128, 520, "bfloat16", True, "gemm_bf16_near_32x32_boxes_5"),
        (2, 512, "float32", False, "gemm_f32_near_8x16_4"),
        (2, 512, "bfloat16", True, "gemm_bf16_thin"),
    ],
)
def test_products_that_read_too_early_are_found(emulated, rows, width, dtype, turned, kernel):
    """They begin beside the kernel that makes their right operand, which is NaN until they wait."""
    math = "tf32" if dtype == "tf32" else "fp32"
    dtype = "float32" if dtype == "tf32" else dtype
    script = LATE.format(rows=rows, width=width, dtype=dtype, math=math, turned=turned)
    said = []
    for fault in ({}, {"FAKE_CUDA_NOTHING_LATE": "gemm_"}):
        environment = emulate.environment(emulated, major=9, processors=132) | fault
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, text=True, capture_output=True
        )
        said.append(done.stdout.split())
    assert said == [[kernel, "True"], [kernel, "False"]]


LATE_TILES = """
import aicf
import ml_dtypes
import numpy as np
from aicf import _core

rng, g, feed = np.random.default_rng(0), aicf.Graph("late"), {{}}
for name, shape in {{"x": ({rows}, {width}), "v": (16, {width}), "w": (16, {width})}}.items():
    feed[name] = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
x, v, w = (g.input(name, one.shape, "bfloat16") for name, one in feed.items())
made = aicf.relu(v.T @ w)
g.output("y", aicf.relu(x @ made if {side!r} == "right" else made @ x.T))
known = _core.cuda_candidates(g._core, _core.pass_names())
(signature,) = (one for one, names in known.items() if "wgmma_128x128" in names)
want = g.compile(device="cpu", tensor_cores="sm_90")(**feed)["y"].numpy().tobytes()
for name in {names!r}:
    step = g.compile(device="cuda", candidates={{signature: "wgmma_" + name}})
    print(name, step(**feed)["y"].numpy().tobytes() == want)
"""


@pytest.mark.parametrize(
    ("side", "rows", "width", "names"),
    [
        ("right", 136, 264, ["64x128", "128x128_2by2", "128x128_pair"]),
        ("left", 136, 264, ["64x96_4by1", "128x128_own"]),
        ("left", 72, 776, ["128x128_cluster_5", "64x128"]),
    ],
)
def test_tiles_that_are_read_too_early_are_found(emulated, side, rows, width, names):
    """Tiles are copied before the kernel before is done, unless that makes an operand."""
    script = LATE_TILES.format(side=side, rows=rows, width=width, names=names)
    for fault, said in (({}, "True"), ({"FAKE_CUDA_NOTHING_LATE": "gemm_"}, "False")):
        environment = emulate.environment(emulated, major=9, processors=132) | fault
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, text=True, capture_output=True
        )
        assert done.stdout.split() == [x for name in names for x in (name, said)], done.stderr
