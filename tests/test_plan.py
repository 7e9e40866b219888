"""The plan: places, waits and lanes against a search over all pairs of ops, for both backends."""

import json
import math

import aicf
import pytest
from aicf import _core

ON_CUDA = pytest.mark.skipif(not hasattr(_core, "cuda_plan"), reason="no CUDA backend here")
PASSES = {"default": _core.pass_names(), "none": ()}
PASSES["apart"] = [name for name in PASSES["default"] if name != "update_epilogues"]
MIB = 1 << 20


def cuda_plan(g, passes="default"):
    """A plan for 132 processors of 9.0, which no GPU is asked for."""
    return json.loads(_core.cuda_plan(g._core, PASSES[passes]))


# ---- against every pair of ops


def touches(plan, op, apart=False):
    """(space, begin, end, writes) of an op's operands and scratch; with `apart` as if every
    temporary had bytes of its own and no op scratch."""
    found = []
    for key in ("inputs", "outputs"):
        for view in op[key]:
            place = plan["values"][str(view["value"])]
            own = apart and place["region"] == "temps"
            space = place["storage"] if own or place["offset"] < 0 else place["region"]
            begin = 0 if own else max(place["offset"], 0)
            found.append((space, begin, begin + place["bytes"], key == "outputs"))
    if op["scratch_bytes"] and not apart:
        found.append(("temps", op["scratch"], op["scratch"] + op["scratch_bytes"], True))
    return found


def meet(a, b):
    return any(
        x[0] == y[0] and x[1] < y[2] and y[1] < x[2] and (x[3] or y[3]) for x in a for y in b
    )


def waits_of(plan, apart=False):
    """For each op the fewest earlier ones that order it behind all whose memory it meets."""
    touched = [touches(plan, op, apart) for op in plan["ops"]]
    before, result = [], []
    for i in range(len(touched)):
        mine, waits = set(), []
        for j in range(i - 1, -1, -1):
            if j not in mine and meet(touched[i], touched[j]):
                waits.append(j)
                mine |= {j} | before[j]
        before.append(mine)
        result.append(sorted(waits))
    return result


def before_of(waits):
    """By op all that come before it."""
    before = []
    for some in waits:
        before.append(set(some).union(*(before[j] for j in some)))
    return before


def lives_of(plan):
    """(bytes, id, first op, last op) of every temporary in the list; the id of scratch is -1."""
    first, lives = {}, {}
    for i, op in enumerate(plan["ops"]):
        for view in op["inputs"] + op["outputs"]:
            id = view["value"]
            place = plan["values"][str(id)]
            first.setdefault(id, i)
            if place["region"] == "temps":
                root = place["storage"]
                begin, _ = lives.get(root, (i, i))
                lives[root] = (begin, i)
    found = [(plan["values"][str(id)]["bytes"], id, *life) for id, life in lives.items()]
    for i, op in enumerate(plan["ops"]):
        if op["scratch_bytes"]:
            found.append((op["scratch_bytes"], math.inf, i, i))
    return sorted(found, key=lambda life: (-life[0], life[1], life[2]))


def places_of(plan):
    """Every temporary at the lowest offset free over its life in the list, the largest first."""
    placed = []
    for bytes, id, begin, end in lives_of(plan):
        bytes = -(-bytes // 256) * 256
        busy = sorted((o, o + size) for o, size, b, e, _ in placed if b <= end and begin <= e)
        offset = 0
        for low, high in busy:
            if offset + bytes <= low:
                break
            offset = max(offset, high)
        placed.append((offset, bytes, begin, end, id))
    return placed


def placed_as(plan):
    return [
        plan["ops"][begin]["scratch"] if id == math.inf else plan["values"][str(id)]["offset"]
        for _, _, begin, _, id in places_of(plan)
    ]


def random_net(rng):
    """Layers, norms, shared params and skips, trained by a random optimizer."""
    g = aicf.Graph("net")
    widths = [int(w) for w in rng.choice([3, 5, 8, 16, 33], 3)]
    values = [g.input("x", (int(rng.choice([2, 7])), widths[0]))]
    shared = {}
    for i in range(int(rng.integers(4, 30))):
        x = values[int(rng.beta(3, 1) * len(values) * 0.9999)]
        width = x.shape[-1]
        match int(rng.integers(7)):
            case 0 | 1:
                y = g.dense(f"d{i}", x, int(rng.choice(widths)))
            case 2:
                y = aicf.relu(x)
            case 3:
                y = aicf.layer_norm(x, width)
            case 4:
                y = aicf.softmax(x)
            case 5:
                like = [v for v in values if v.shape == x.shape]
                y = x + like[int(rng.integers(len(like)))]
            case _:
                if width not in shared:
                    shared[width] = g.param(f"s{width}", (width,))
                y = aicf.tanh(x * shared[width])
        values.append(y)
    loss = aicf.mean(values[-1] * values[-1]) + aicf.sum(values[len(values) // 2]) * 0.5
    g.output("loss", loss)
    if g._core.reached_params(loss.id):
        optimizers = [aicf.optim.SGD(momentum=0.9), aicf.optim.Adam(), aicf.optim.AdamW()]
        g.minimize(loss, optimizers[int(rng.integers(3))])
    return g


@pytest.mark.parametrize("seed", range(40))
def test_plan_against_all_pairs(seed, make_rng):
    g = random_net(make_rng(seed))
    for passes in PASSES.values():
        plan = json.loads(g.compile(device="cpu", passes=passes, capture=False)._plan_json())
        assert [op["waits"] for op in plan["ops"]] == waits_of(plan)
        assert placed_as(plan) == [offset for offset, *_ in places_of(plan)]


@ON_CUDA
@pytest.mark.parametrize("seed", range(40))
def test_lanes_against_all_pairs(seed, make_rng):
    """Where fresh bytes cost little, no op waits for another for the sake of memory alone."""
    g = random_net(make_rng(seed))
    for passes in PASSES:
        plan = cuda_plan(g, passes)
        waits = [op["waits"] for op in plan["ops"]]
        assert waits == waits_of(plan) == waits_of(plan, apart=True)
        check_lanes(plan)


def check_lanes(plan, most=16):
    """In a lane each op comes after the one before it, save in the last of all."""
    before = before_of([op["waits"] for op in plan["ops"]])
    ends = {}
    for i, op in enumerate(plan["ops"]):
        end = ends.get(op["lane"])
        assert end is None or op["lane"] == most - 1 or end in before[i]
        ends[op["lane"]] = i
    assert set(ends) == set(range(len(ends))) and len(ends) <= most


# ---- scratch


def products(count, size, depth):
    """Products of so few tiles that each is split over its depth, and adds the parts in scratch."""
    g = aicf.Graph("products")
    for i in range(count):
        a, b = g.input(f"a{i}", (size, depth)), g.input(f"b{i}", (depth, size))
        g.output(f"y{i}", aicf.matmul(a, b))
    return g


def scratch_of(op):
    return range(op["scratch"], op["scratch"] + op["scratch_bytes"])


def disjoint(a, b):
    return a.stop <= b.start or b.stop <= a.start


@ON_CUDA
def test_independent_split_products_run_side_by_side():
    plan = cuda_plan(products(2, 256, 16384), "none")
    first, second = plan["ops"]
    assert first["scratch_bytes"] == second["scratch_bytes"] >= MIB
    assert first["waits"] == second["waits"] == []
    assert first["lane"] != second["lane"]
    assert disjoint(scratch_of(first), scratch_of(second))


@ON_CUDA
def test_products_one_after_another_share_scratch():
    g = aicf.Graph("chain")
    y = g.input("x", (256, 4096))
    for i in range(4):
        y = aicf.matmul(y, g.input(f"w{i}", (4096, 4096)))
    g.output("y", y)
    plan = cuda_plan(g, "none")
    scratch = [scratch_of(op) for op in plan["ops"] if op["scratch_bytes"]]
    assert len(scratch) >= 2
    assert plan["regions"]["temps"] < sum(map(len, scratch))


def test_scratch_of_a_cpu_is_shared_in_the_order_of_the_list():
    """One op runs at a time there, so fresh bytes would gain nothing."""
    g = products(3, 96, 300)
    plan = json.loads(g.compile(device="cpu", capture=False)._plan_json())
    scratch = [op for op in plan["ops"] if op["scratch_bytes"]]
    assert len(scratch) == 3 and {op["scratch"] for op in scratch} == {0}
    assert {op["lane"] for op in plan["ops"]} == {0}


def test_dump_shows_scratch():
    g = products(1, 96, 300)
    step = g.compile(device="cpu", capture=False)
    op = step.plan.ops[0]
    assert f"scratch=temps+{op['scratch']}[{op['scratch_bytes']}]" in str(step.plan)
    assert "workspace" not in step.plan.regions


def test_misplaced_scratch_is_found():
    """Over an operand, over a value that is read later, beyond the region, off its grid, and over
    what an op beside it reads."""
    g = aicf.Graph("misplaced")
    x, w = g.input("x", (96, 300)), g.input("w", (300, 96))
    one, two, kept, factor = x * 2.0, x * 3.0, x * 4.0, x * 5.0
    g.output("two", aicf.sum(two))
    g.output("one", aicf.sum(one))
    g.output("y", aicf.matmul(factor, w) + aicf.sum(kept))
    step = g.compile(device="cpu", passes=(), capture=False)
    ops, values = step.plan.ops, step.plan.values
    at = next(i for i, op in enumerate(ops) if op["op"] == "gemm")
    assert ops[at]["scratch_bytes"] > 0

    def told(offset):
        report = step._plan_report({at: offset})
        assert not report.ok, offset
        return str(report)

    place = {name: values[str(value.id)]["offset"] for name, value in
             {"two": two, "kept": kept, "factor": factor}.items()}  # fmt: skip
    assert f"reads %{kept.id}, whose storage was overwritten" in told(place["kept"])
    assert f"over its own %{factor.id}" in told(place["factor"])
    assert "but does not wait for it" in told(place["two"])
    for offset in (step.plan.regions["temps"], -256, ops[at]["scratch"] + 64):
        assert "need a multiple of 256 among them" in told(offset)
    assert step._plan_report({at: ops[at]["scratch"]}).ok


# ---- branches


def training(layers, width, batch, optimizer):
    """An MLP whose layers are updated one by one."""
    g = aicf.Graph("training")
    x = g.input("x", (batch, width))
    for i in range(layers):
        x = aicf.tanh(g.dense(str(i), x, width))
    loss = aicf.mse_loss(x, g.input("t", (batch, width)))
    g.output("loss", loss)
    g.minimize(loss, optimizer)
    return g


@ON_CUDA
@pytest.mark.parametrize("passes", ["apart", "none"])
def test_updates_run_beside_the_backward_chain(passes):
    """What makes weight gradients and what updates holds nobody up that leads to the input."""
    plan = cuda_plan(training(6, 256, 64, aicf.optim.Adam()), passes)
    before = before_of([op["waits"] for op in plan["ops"]])
    place, updated = plan["values"], {"grads", "params", "moments"}
    sides = {
        i
        for i, op in enumerate(plan["ops"])
        if {place[str(view["value"])]["region"] for view in op["outputs"]} <= updated
    }
    chain = [
        i
        for i, op in enumerate(plan["ops"])
        if i not in sides and op.get("anchor", op["op"]) == "gemm"
    ]
    assert len(sides) >= 6 and len(chain) >= 11
    for i in chain:
        assert not before[i] & sides, (i, before[i] & sides)
    assert waits_of(plan) == waits_of(plan, apart=True)
    check_lanes(plan)


# ---- memory


@ON_CUDA
@pytest.mark.parametrize("branches, length", [(3, 8), (24, 5)])
def test_growth_is_bounded(branches, length):
    """Independent branches of large values: in list order they need those of one alone."""
    g = aicf.Graph("branches")
    for b in range(branches):
        y = g.input(f"x{b}", (1, MIB))
        for i in range(length):
            y = aicf.softmax(y * g.input(f"s{b}.{i}", (16, 1)))
        g.output(f"y{b}", aicf.sum(y, 1))
    plan = cuda_plan(g, "none")
    rest = plan["peak_bytes"] - plan["regions"]["temps"]
    in_list = rest + max(offset + size for offset, size, *_ in places_of(plan))
    most = in_list + max(in_list // 10, 64 * MIB)
    assert in_list < plan["peak_bytes"] <= most
    assert [op["waits"] for op in plan["ops"]] == waits_of(plan)
    assert waits_of(plan) != waits_of(plan, apart=True)  # some wait for memory
    check_lanes(plan)
