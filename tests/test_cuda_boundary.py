"""Graphs around every size at which a CUDA kernel goes another way: the CPU's bits, whatever the
candidate, the passes and the way to run. tests/boundary.py draws them."""

import itertools

import boundary
import pytest
from aicf import _core
from boundary_programs import FAMILIES
from boundary_shapes import covered, table, targets

SHARDS = 6  # of a family: what one worker of many takes at a time


def same_as_cpu(case):
    """Whether all of the graph's ops have the CPU's bits on a GPU: products on tensor cores, those
    of attention too, have an order of their own."""
    return not any(
        op["op"].startswith(("gemm", "attention"))
        and op["inputs"][0]["dtype"] in ("float16", "bfloat16")
        for op in case.ops
    )


def candidate_sets(case, passes, **target):
    """Each other kernel that some product could have, all products at once."""
    names = [] if passes == "none" else _core.pass_names()
    known = _core.cuda_candidates(case.graph._core, names, **target)
    for i in range(1, max(map(len, known.values()), default=1)):
        yield {signature: found[min(i, len(found) - 1)] for signature, found in known.items()}


def check_on_cuda(seed, family, number, **target):
    """Every way to run one graph on the GPU, against the CPU."""
    case = boundary.Case(seed, family, number, "cuda")
    step = case.compile("all", 2)
    cpu = case.run(step, step.state_dict(), "captured", 2)
    exact = same_as_cpu(case)
    for passes in ("all", "none"):
        modes = boundary.MODES
        for candidates in itertools.chain([{}], candidate_sets(case, passes, **target)):
            step = case.compile(passes, 2, device="cuda", candidates=candidates)
            start, want = step.state_dict(), cpu if exact else None
            for mode in modes:
                found = case.run(step, start, mode, 2)
                want = found if want is None else want
                if apart := boundary.difference(found, want):
                    here = f"passes {passes}, {mode}, candidates {candidates}"
                    other = "the cpu" if exact else modes[0]
                    return f"{family}:{number} of seed {seed}: {here}: {apart} as with {other}"
            modes = ("captured",)
    return ""


def numbers(family, graphs=None, shard=0, shards=1):
    """The numbers of the graphs of a shard; without `graphs` enough to meet every threshold."""
    enough = max(72, len(targets(FAMILIES[family].quantities, "cuda")))
    each = enough if graphs is None else graphs // len(FAMILIES)
    return range(each * shard // shards, each * (shard + 1) // shards)


@pytest.mark.gpu
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, shard, request):
    graphs = request.config.getoption("--boundary-graphs")
    problems = [
        problem
        for number in numbers(family, graphs, shard, SHARDS)
        if (problem := check_on_cuda(boundary.SEED, family, number))
    ]
    assert not problems, "\n".join(problems)


pytestmark = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)


def test_every_threshold_is_met():
    """By the graphs that test_family draws; building them needs no GPU."""
    aims = {t for family in FAMILIES.values() for t in targets(family.quantities, "cuda")}
    assert {aim[:3] for aim in aims} == set(table("cuda"))
    hits = set()
    for family in FAMILIES:
        for number in numbers(family):
            hits |= set(covered(boundary.Case(boundary.SEED, family, number, "cuda").ops, "cuda"))
    places = {entry: at for at, entry in enumerate(table("cuda"))}
    assert not [aim for aim in sorted(aims) if (places[aim[:3]], aim[3]) not in hits]


def test_tiles_of_warp_roles_are_met():
    """Graphs drawn around them have such a kernel to choose."""
    aims = targets(FAMILIES["product"].quantities, "cuda")
    sizes = {aim[0]: {a[2] for a in aims if a[0] == aim[0]} for aim in aims if "roles" in aim[0]}
    assert {name: max(found) for name, found in sizes.items()} == {
        "roles.rows": 512, "roles.columns": 640, "roles.terms": 64
    }  # fmt: skip
    for number, aim in enumerate(aims):
        if not aim[0].startswith("roles."):
            continue
        case = boundary.Case(boundary.SEED, "product", number, "cuda")
        (names,) = _core.cuda_candidates(case.graph._core, _core.pass_names()).values()
        assert any(name.startswith("wgmma_") for name in names), (number, aim, names)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["product", "reduce", "rows"])
def test_programs(family, tmp_path, monkeypatch):
    """What the GPU would run of a graph is accepted by NVRTC, which needs no GPU."""
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    case = boundary.Case(boundary.SEED, family, 3, "cuda")
    for candidates in itertools.chain([{}], itertools.islice(candidate_sets(case, "all"), 1)):
        programs = _core.cuda_programs(case.graph._core, _core.pass_names(), candidates=candidates)
        cubins = _core.cuda_cubins(programs, "sm_90a")
        assert cubins and all(cubin[:4] == b"\x7fELF" for cubin in cubins)
