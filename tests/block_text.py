"""What the text of a step in one block does, warp by warp: its barriers, and what each member reads
and writes where."""

import json
import math
import re

from aicf import _core

WIDTH = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


def block_of(graph, arch="sm_90a"):
    """The sequence of a plan and its text; None where the ops stay apart."""
    passes = _core.pass_names()
    ops = json.loads(_core.cuda_plan(graph._core, passes, 132, arch, "fp32"))["ops"]
    if [op["op"] for op in ops] != ["sequence"]:
        return None
    (text,) = _core.cuda_programs(graph._core, passes, arch=arch)
    return ops[0], text


def _warps(condition, count):
    words = (condition or "True").replace("&&", "and").replace("||", "or")
    words = re.sub(r"(\d)u", r"\1", words)
    return [w for w in range(count) if eval(words, {"warp": w})]


def _branches(text, name, count):
    """What each branch of a turn of the loop over steps does, by the warps that take it:
    ("member", m, warps) and ("barrier", id, threads)."""
    loop = text[text.index("for (int64_t step = 0") :]
    loop = loop[: loop.index("    finish_copies();\n")]
    team = r"Grid{warp - (\d+)u, (\d+)u"
    ahead = {
        member: (first, size)
        for member, first, size in re.findall(rf"{name}_(\d+)_ahead\({name}_.*{team}", text)
    }
    event = re.compile(
        rf"(?:if \(([^{{;]*?)\) )?(?:{{  // node.*\n *{name}_(\d+)_body\(.*(?:{team}|ahead\d+\))"
        r"|(?:wait_for|meet_at)\((\d+), (\d+)\))"
    )
    parts = re.split(r"^ {8}(?:} else )?(?:if \((.*)\) )?{\n", loop, flags=re.MULTILINE)
    left, branches = range(count), []
    for condition, part in zip(parts[1::2], parts[2::2], strict=True):
        own = [w for w in left if w in _warps(condition, count)]
        left = [w for w in left if w not in own]
        events = []
        for condition, member, first, size, barrier, waiting in event.findall(part):
            if member:
                first, size = (first, size) if first else ahead[member]
                warps = [w for w in own if w in _warps(condition, count)]
                assert warps == list(range(int(first), int(first) + int(size)))
                events.append(("member", int(member), warps))
            else:
                assert 1 <= int(barrier) <= 15, f"barrier {barrier}; there are 16, one is all's"
                events.append(("barrier", int(barrier), int(waiting)))
        branches.append((own, events))
    assert not left, "some warps do nothing"
    return branches


def aligned_from_several(text):
    """The barriers of a step or a loop to which warps come by `bar.sync` from several branches."""
    entry = text[text.index("__shfl_sync(~0u, threadIdx.x / 32, 0)") :]
    places = {}
    for branch, part in enumerate(re.split(r"^ {8}} else ", entry, flags=re.MULTILINE)):
        for wait, barrier in re.findall(r"(wait_for|meet_at)\((\d+), ", part):
            places.setdefault(barrier, set()).add((branch, wait))
    return [
        barrier
        for barrier, waits in places.items()
        if len(waits) > 1 and any(wait == "wait_for" for _, wait in waits)
    ]


def _events(text, name, count, steps):
    """(step, "member", m, warps) and (step, "barrier", id, warps) of some steps, in an order that
    the barriers allow."""
    branches = _branches(text, name, count)
    programs = [
        [(step, *event) for step in range(steps) for event in events] for _, events in branches
    ]
    while any(programs):
        for program in programs:
            while program and program[0][1] == "member":
                yield program.pop(0)
        waiting = {}
        for (own, _), program in zip(branches, programs, strict=True):
            if program:
                waiting.setdefault(program[0][2], []).append((own, program))
        come = {barrier: sum(len(own) for own, _ in them) for barrier, them in waiting.items()}
        ready = [
            barrier
            for barrier, them in waiting.items()
            if all(program[0][3] == 32 * come[barrier] for _, program in them)
        ]
        if not any(programs):
            return
        assert ready, "a barrier waits for other warps than come"
        step = waiting[ready[0]][0][1][0][0]
        yield step, "barrier", ready[0], sorted(w for own, _ in waiting[ready[0]] for w in own)
        for _, program in waiting[ready[0]]:
            program.pop(0)


class _Values:
    """Where the values of a sequence lie."""

    def __init__(self, op, text, name):
        carried = op["attrs"]["carried"]
        self.inputs = [v["value"] for v in op["inputs"]]
        self.outputs = [v["value"] for v in op["outputs"]]
        self.over = {
            o: self.inputs[c] for o, c in zip(self.outputs, carried, strict=True) if c >= 0
        }
        self.next = {i: o for o, i in self.over.items()}
        self.used, self.place, size = [], {}, {}
        for v in op["inputs"] + op["outputs"]:
            size[v["value"]] = math.prod(v["shape"]) * WIDTH.get(v["dtype"], 1)
        for m, member in enumerate(op["members"]):
            part = text[text.index(f"struct {name}_{m}_Block {{") :].partition("default:")[0]
            places = re.findall(r"case \d+:\s*return (?:held_at<T>\(base, (\d+))?", part)
            views = [(v, False) for v in member["inputs"]] + [(v, True) for v in member["outputs"]]
            self.used.append([(v["value"], written) for v, written in views])
            for place, (v, _) in zip(places, views, strict=True):
                id, steps = v["value"], zip(v["shape"], v["strides"], strict=True)
                if id not in self.outputs + self.inputs:
                    ends = v["offset"] + sum((d - 1) * s for d, s in steps if s > 0) + 1
                    ends = ends if math.prod(v["shape"]) else 0
                    size[id] = max(size.get(id, 0), ends * WIDTH.get(v["dtype"], 1))
                self.place[id] = int(place) if place else None
        for copied, length, pitch, at in re.findall(
            r"copy_(?:in|out)<(\d+), \d+, \d+, (\d+), (\d+)>\(.*?shared \+ (\d+)", text
        ):
            for id, place in self.place.items():
                if place == int(at) and id in self.inputs + self.outputs:
                    size[id] = int(copied) // int(length) * int(pitch)
        self.size = size

    def extent(self, id):
        """Bytes of shared memory, or of a value that lies outside."""
        if self.place[id] is None:
            at = self.over.get(id, id)
            return ("global", at, at + 1)
        return ("shared", self.place[id], self.place[id] + self.size[id])


def _overlap(a, b):
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def problems_of(op, text, steps=3):
    """What goes wrong over some steps: accesses that no barrier orders, and operands that are not
    where they are read."""
    name = re.search(r"typedef Block<\d+> (\S+)_Block;", text)[1]
    count = int(re.findall(r"__launch_bounds__\((\d+)", text)[-1]) // 32
    values = _Values(op, text, name)
    clock = [[int(a == b) for a in range(count)] for b in range(count)]
    problems, before, holds = [], [], {}  # what was accessed so far; by extent, what lies there

    def put(extent, what):
        for other in [other for other in holds if _overlap(other, extent)]:
            del holds[other]
        holds[extent] = what

    for id in values.inputs:
        put(values.extent(id), (id, -1))
    for step, kind, number, warps in _events(text, name, count, steps):
        if kind == "barrier":
            met = [max(clock[w][q] for w in warps) for q in range(count)]
            for w in warps:
                clock[w] = [c + (q == w) for q, c in enumerate(met)]
            continue
        used = [(id, out, values.extent(id)) for id, out in values.used[number] if values.size[id]]
        for id, out, extent in used:
            for other, written, at, who, since in before:
                ordered = all(
                    clock[w][q] > then if w == q else clock[w][q] >= then
                    for w in warps
                    for q, then in zip(who, since, strict=True)
                )
                if (out or written) and _overlap(extent, at) and not ordered:
                    problems.append(f"step {step}: member {number} uses %{id} beside {other}")
        for id, out, extent in used:
            if out:
                continue
            want = (id, step)
            if id in values.inputs:
                want = (values.next[id], step - 1) if step and id in values.next else (id, -1)
            if holds.get(extent) != want:
                problems.append(
                    f"step {step}: member {number} finds {holds.get(extent)}, not {want}"
                )
        for id, out, extent in used:
            if out:
                put(extent, (id, step))
            own = [clock[w][w] for w in warps]
            before.append((f"member {number}", out, extent, warps, own))
        before = before[-3 * sum(map(len, values.used)) :]
    for id in values.outputs:
        if values.size[id] and holds.get(values.extent(id)) != (id, steps - 1):
            problems.append(f"%{id} is not there at the end")
    return problems
