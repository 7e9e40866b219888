"""Graphs damaged in their structure: what `verify` lets pass must compile and run.

    python tests/mutants.py --count 100000 --seed 7

A mutant is the dump of a sound graph with one to three things changed. Reading it raises an
aicf.Error, or `verify` names what is wrong, or it compiles under any passes and math mode and runs.
Prints the tally, and for each fault the seed and number that bring the mutant back (`--only`).
"""

import argparse
import collections
import faulthandler
import json
import math
import resource
import signal
import sys

import aicf
import numpy as np
from op_cases import CASES, SIZES
from test_ops import arg_dtype, as_list
from test_random_graphs import build_program, random_program

MOST_BYTES = 3 << 30  # of address space: a mutant that asks for more must meet OutOfMemory
MOST_TEXT = 2048  # bytes of a message
MOST_SECONDS = 20  # of the processor: a busy machine does not fail a mutant
MOST_FLOPS = 1e7  # a larger mutant is compiled, but not run
MATH = ("fp32", "tf32", "fp16", "bf16", "fp32x", "mixed")
PASSES = ("default", (), *((name,) for name in aicf._core.pass_names()))

# ---- sound graphs


def training(dtype, loss_kind, optimizer, keep=1):
    g = aicf.Graph("train")
    x = g.input("x", (6, 5), dtype)
    y = aicf.dropout(aicf.tanh(g.dense("0", x, 7)), 0.25)
    y = g.dense("1", aicf.layer_norm(y, (7,)), 4)
    if loss_kind == "mse":
        loss = aicf.mse_loss(y, g.input("t", (6, 4), dtype))
    else:
        loss = aicf.cross_entropy(y, g.input("t", (6,), "int64"))
    g.minimize(loss, optimizer, clip_norm=1.0)
    g.output("loss", loss, keep=keep)
    g.output("y", y)
    return g


def convolution():
    g = aicf.Graph("convolution")
    x = g.input("x", (2, 3, 6, 6))
    w = g.param("w", (4, 3, 3, 3))
    y = aicf.max_pool2d(aicf.relu(aicf.conv2d(x, w, padding=1)), 2)
    loss = aicf.mean(y * y)
    g.minimize(loss, aicf.optim.SGD(lr=0.1, momentum=0.9))
    g.output("loss", loss)
    return g


def attention():
    g = aicf.Graph("attention")
    q, k, v = (g.dense(name, g.input(f"x{name}", (2, 3, 4)), 4) for name in "qkv")
    y = aicf.scaled_dot_product_attention(q, k, v)
    g.minimize(aicf.mean(y), aicf.optim.AdamW(lr=0.1))
    g.output("y", y)
    return g


def loose_ends():
    """States that are read, kept and swapped; constants alone; nodes that reach nothing."""
    g = aicf.Graph("ends")
    x, s = g.input("x", (3, 4)), g.state("s", (3, 4))
    other, n = g.state("other", (3, 4)), g.state("n", (), "int32")
    c = g.constant(np.arange(12, dtype=np.float32).reshape(3, 4))
    g.assign(s, other)
    g.assign(other, s)
    g.assign(n, n + 1)
    aicf.exp(x)
    g.output("x", x)
    g.output("s", s + c.T.reshape((3, 4)), keep=3)
    g.output("again", s)
    g.output("c", aicf.sum(c * 2.0) + aicf.sum(c[1:, ::2]))
    g.output("random", g.random_normal((2, 2)))
    g.output("picked", aicf.take(c, g.constant([2, 0], "int32"), 0))
    return g


def case_graph(case):
    dtype = case.dtypes[0]
    g = aicf.Graph("case")
    leaves = [
        g.input(f"x{i}", [SIZES[letter] for letter in arg.dims], arg_dtype(arg, dtype))
        for i, arg in enumerate(case.args)
    ]
    results = as_list(case.build(g, *leaves))
    for i, y in enumerate(results):
        g.output(f"y{i}", y)
    if not isinstance(case.grad, str) and case.grad:
        wrt = [leaves[i] for i in case.grad]
        for i, grad in enumerate(g.backward(aicf.sum(results[0]), wrt).values()):
            g.output(f"d{i}", grad)
    return g


def sound_graphs():
    """The dumps that mutants are made from."""
    graphs = [
        training("float32", "mse", aicf.optim.Adam(lr=0.01), keep=3),
        training("float64", "labels", aicf.optim.SGD(lr=0.1)),
        training("float32", "labels", aicf.optim.AdamW(lr=0.01)),
        convolution(),
        attention(),
        loose_ends(),
    ]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        inputs, program = random_program(rng, 12, 1e-3)
        last = len(inputs) + len(program) - 1
        weights = [np.float32(rng.uniform(-1, 1, np.shape(x))) for x in [0.0]]
        try:
            g, _ = build_program(
                inputs,
                [*program, ("mean", [last], {"axis": None, "keepdims": False})],
                [last + 1],
                "float32",
                weights,
            )
        except aicf.GraphError:  # no gradient reaches an input
            continue
        graphs.append(g)
    graphs += [case_graph(case) for case in CASES]
    return [g.to_json() for g in graphs]


FEATURED = 16  # of the sound graphs, the first: half of the mutants are made from these


# ---- changes

NAMES = ["", "x", "0.W", "opt.step", "rng.seed", "rng.step", "n\nl", "\0", "é", "a" * 70000,
         "output.y.ring", "stream", "__metadata__"]  # fmt: skip
NUMBERS = [-2, -1, 0, 1, 2, 3, 7, 8, 9, 255, 256, 65536, 2**20, 2**31 - 1, 2**31, 2**40, 2**62,
           2**63 - 1, -(2**63), 0.5, -0.0, 1e-320, 1e308, 1e400, float("nan")]  # fmt: skip
ODD = [None, True, False, "", "x", [], [0], [-1], [0, 0], [2**40], {}, *NUMBERS]
DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "int8",
    "int16",
    "f33",
]
ROLES = ["input", "param", "state", "constant", "temp", "output"]


class Change:
    """The changes, each a method that edits the record; nothing where it does not apply."""

    def __init__(self, record, rng):
        self.record, self.rng = record, rng
        self.values, self.nodes = list(record["values"].values()), record["nodes"]

    def pick(self, items):
        items = list(items)
        return items[int(self.rng.integers(len(items)))] if items else None

    def id(self):
        """An id, likely of a value of the graph."""
        if self.rng.integers(20) == 0:
            return self.pick([-1, -2, len(self.values), 2**31 - 1, -(2**31)])
        return int(self.rng.integers(len(self.values)))

    def alike(self, id):
        """A value of the same shape and dtype."""
        if not 0 <= id < len(self.values):
            return self.id()
        to = self.values[id]
        return self.pick(
            v["id"] for v in self.values if (v["shape"], v["dtype"]) == (to["shape"], to["dtype"])
        )

    def side(self):
        node = self.pick(self.nodes)
        return node[self.pick(["inputs", "outputs"])] if node else []

    def operand(self):
        if ids := self.side():
            ids[int(self.rng.integers(len(ids)))] = self.id()

    def operand_alike(self):
        if ids := self.side():
            at = int(self.rng.integers(len(ids)))
            ids[at] = self.alike(ids[at])

    def swap_operands(self):
        a, b = self.side(), self.side()
        if a and b:
            a[0], b[-1] = b[-1], a[0]

    def operand_count(self):
        ids = self.side()
        if ids and self.rng.integers(2):
            ids.pop(int(self.rng.integers(len(ids))))
        else:
            ids.append(self.id())

    def drop_node(self):
        if self.nodes:
            del self.nodes[int(self.rng.integers(len(self.nodes)))]
            self.renumber()

    def repeat_node(self):
        if self.nodes:
            node = json.loads(json.dumps(self.pick(self.nodes)))
            if self.rng.integers(2):  # with results of its own
                for i, id in enumerate(node["outputs"]):
                    if 0 <= id < len(self.values):
                        new = dict(self.values[id], id=len(self.values))
                        self.record["values"][str(len(self.values))] = new
                        self.values.append(new)
                        node["outputs"][i] = new["id"]
            self.nodes.insert(int(self.rng.integers(len(self.nodes) + 1)), node)
            self.renumber()

    def move_node(self):
        if self.nodes:
            node = self.nodes.pop(int(self.rng.integers(len(self.nodes))))
            self.nodes.insert(int(self.rng.integers(len(self.nodes) + 1)), node)
            self.renumber()

    def renumber(self):
        for i, node in enumerate(self.nodes):
            node["id"] = i

    def other_op(self):
        if node := self.pick(self.nodes):
            node["op"] = self.pick([*aicf._core.op_names(), "NoSuchOp"])

    def op_of_its_arity(self):
        if node := self.pick(self.nodes):
            other = self.pick(n for n in self.nodes if len(n["inputs"]) == len(node["inputs"]))
            node["op"], node["attrs"] = other["op"], dict(other["attrs"])

    def attribute(self):
        node = self.pick(n for n in self.nodes if n["attrs"])
        if node:
            node["attrs"][self.pick(node["attrs"])] = self.pick(ODD)

    def attribute_number(self):
        node = self.pick(n for n in self.nodes if n["attrs"])
        if not node:
            return
        key = self.pick(node["attrs"])
        attr = node["attrs"][key]
        if isinstance(attr, list):
            attr[: int(self.rng.integers(2))] = [self.pick(n for n in NUMBERS if type(n) is int)]
        elif isinstance(attr, bool):
            node["attrs"][key] = not attr
        elif isinstance(attr, (int, float)):
            node["attrs"][key] = self.pick(n for n in NUMBERS if type(n) is type(attr))

    def attribute_set(self):
        if node := self.pick(self.nodes):
            if node["attrs"] and self.rng.integers(2):
                del node["attrs"][self.pick(node["attrs"])]
            else:
                node["attrs"][self.pick(["axis", "order", "math", "x", ""])] = self.pick(ODD)

    def shape(self):
        shape = self.pick(self.values)["shape"]
        what = int(self.rng.integers(3))
        if what == 0 and shape:
            shape[int(self.rng.integers(len(shape)))] = self.pick(
                n for n in NUMBERS if type(n) is int
            )
        elif what == 1 and shape:
            shape.pop()
        else:
            shape.insert(0, self.pick([0, 1, 2, 2**40]))

    def shape_everywhere(self):
        """One size becomes another in all shapes: such a graph often stays sound."""
        sizes = [size for v in self.values for size in v["shape"]]
        old = self.pick(sizes)
        new = self.pick([0, 1, 2, 3, 1000, 2**20, 2**31, 2**40, 2**58, 2**62])
        for v in self.values:
            v["shape"] = [new if size == old else size for size in v["shape"]]
        for node in self.nodes:
            for key, attr in node["attrs"].items():
                if isinstance(attr, list) and key not in ("axes", "permutation"):
                    node["attrs"][key] = [new if size == old else size for size in attr]

    def dtype(self):
        self.pick(self.values)["dtype"] = self.pick(DTYPES)

    def dtype_everywhere(self):
        old, new = self.pick(self.values)["dtype"], self.pick(DTYPES[:-1])
        for v in self.values:
            if v["dtype"] == old and v.get("init", {}).get("kind") != "data":
                v["dtype"] = new

    def role(self):
        self.pick(self.values)["role"] = self.pick(ROLES)

    def role_of_leaf(self):
        leaf = self.pick(v for v in self.values if v["role"] != "temp")
        if leaf:
            leaf["role"] = self.pick(ROLES[:3])

    def init(self):
        v = self.pick(self.values)
        kind = self.pick(["zeros", "constant", "uniform", "normal", "seed", "data", "x"])
        v["init"] = {"kind": kind, "a": self.pick(NUMBERS), "b": self.pick(NUMBERS)}
        if kind == "data":
            size = math.prod(v["shape"]) * 4
            v["init"]["bytes"] = "00" * int(self.pick([0, 1, size if 0 <= size < 4096 else 0]))

    def bytes(self):
        v = self.pick(v for v in self.values if v.get("init", {}).get("kind") == "data")
        if v and v["init"]["bytes"]:
            text = list(v["init"]["bytes"])
            for _ in range(int(self.rng.integers(1, 5))):
                text[int(self.rng.integers(len(text)))] = self.pick("0123456789abcdef")
            v["init"]["bytes"] = "".join(text)

    def name(self):
        v = self.pick(v for v in self.values if v["role"] != "temp") or self.values[0]
        v["name"] = self.pick([*NAMES, *(v["name"] for v in self.values)])

    def where(self):
        if node := self.pick(self.nodes):
            node["where"] = self.pick(NAMES)

    def moment(self):
        v = self.pick(self.values)
        v["moment_of"], v["slot"] = self.id(), self.pick([-1, 0, 1, 2, 7, 8, 2**20])

    def moment_again(self):
        marked = [v for v in self.values if "moment_of" in v]
        a, b = self.pick(marked), self.pick(marked)
        if a:
            a["moment_of"], a["slot"] = b["moment_of"], b["slot"]

    def forward_link(self):
        if node := self.pick(self.nodes):
            if "grad_of" in node and self.rng.integers(2):
                del node["grad_of"]
            else:
                node["grad_of"] = int(self.rng.integers(-2, len(self.nodes) + 1))

    def gradient(self):
        list = self.record["gradients"]
        if list and self.rng.integers(3):
            record = self.pick(list)
            record[self.pick(["loss", "value", "grad", "seed"])] = self.id()
        else:
            list.append({"loss": self.id(), "value": self.id(), "grad": self.id()})

    def assign(self):
        list = self.record["assigns"]
        what = int(self.rng.integers(4))
        if what == 0 and list:
            list.remove(self.pick(list))
        elif what == 1 and list:
            self.pick(list)[self.pick(["target", "source"])] = self.id()
        elif what == 2 and list:
            record = self.pick(list)
            record["source"] = self.alike(record["source"])
        else:
            target = self.pick(v["id"] for v in self.values if v["role"] in ("param", "state"))
            if target is not None:
                list.append({"target": target, "source": self.alike(target)})

    def output(self):
        list = self.record["outputs"]
        what = int(self.rng.integers(4))
        if what == 0 and list:
            list.remove(self.pick(list))
        elif what == 1 and list:
            self.pick(list)["value"] = self.id()
        elif what == 2 and list:
            self.pick(list)["name"] = self.pick([*NAMES, *(o["name"] for o in list)])
        else:
            list.append({"name": self.pick(["again", *NAMES]), "value": self.id(), "keep": 1})

    def keep(self):
        if record := self.pick(self.record["outputs"]):
            record["keep"] = self.pick([-1, 0, 2, 3, 1000, 2**20, 2**31, 2**40])

    def dangling(self):
        """What an assign, an output, a gradient or a node names has no producer."""
        like = self.pick(self.values)
        new = {"id": len(self.values), "name": "loose", "role": "temp"}
        self.record["values"][str(new["id"])] = {
            **new, "dtype": like["dtype"], "shape": list(like["shape"])
        }  # fmt: skip
        spots = [(a, "source") for a in self.record["assigns"]]
        spots += [(o, "value") for o in self.record["outputs"]]
        spots += [(d, key) for d in self.record["gradients"] for key in ("loss", "value", "grad")]
        spots += [(n[side], i) for n in self.nodes for side in ("inputs", "outputs")
                  for i in range(len(n[side]))]  # fmt: skip
        alike = [s for s in spots if s[0][s[1]] == like["id"]]
        if alike:
            record, key = self.pick(alike)
            record[key] = new["id"]

    def random_stream(self):
        nodes = [n for n in self.nodes if "stream" in n["attrs"]]
        if nodes:
            self.pick(nodes)["attrs"]["stream"] = self.pick([-1, 0, 1, 2**32, 2**63 - 1])

    def loop(self):
        """A node reads what it, or a later one, writes."""
        if self.nodes:
            at = int(self.rng.integers(len(self.nodes)))
            later = self.pick(self.nodes[at:])
            if self.nodes[at]["inputs"] and later["outputs"]:
                self.nodes[at]["inputs"][0] = later["outputs"][0]


CHANGES = [name for name in vars(Change) if name not in
           ("pick", "id", "alike", "side", "renumber") and not name.startswith("__")]  # fmt: skip


def mutant(seed, number, sound):
    """The text of a mutant, and what was changed."""
    rng = np.random.default_rng([seed, number])
    record = json.loads(sound[int(rng.integers(len(sound) if rng.integers(2) else FEATURED))])
    change, names = Change(record, rng), []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        names.append(CHANGES[int(rng.integers(len(CHANGES)))])
        getattr(change, names[-1])()
    return json.dumps(record), f"{record['graph']}: {', '.join(names)}"


# ---- the check


class Fault(Exception):
    """A mutant that was treated otherwise than promised."""


def refusal(error, *kinds):
    """The kind of an error, which must be one of `kinds` (none: any but InternalError)."""
    if not isinstance(error, kinds or aicf.Error) or isinstance(error, aicf.InternalError):
        raise Fault(f"{type(error).__name__}: {str(error)[:600]}") from error
    if len(str(error).encode()) > MOST_TEXT:
        raise Fault(f"a message of {len(str(error))} characters: {str(error)[:300]}") from error
    return type(error).__name__


def attempt(call, *kinds):
    """What the call returns, or the kind of its error."""
    try:
        return call(), ""
    except (
        aicf.Error,
        Warning,
        TypeError,
        ValueError,
        RuntimeError,
        MemoryError,
        IndexError,
    ) as error:
        return None, refusal(error, *kinds)


def run(graph, number):
    """Compiles and runs a graph that verifies; what it was refused for."""
    limits = (aicf.OutOfMemory, aicf.Unsupported, aicf.BadValue)
    outcome = ""
    attempt(lambda: graph._core.lower_text(), *limits)
    for text in (str, aicf.Graph.to_json, aicf.Graph.to_dot):
        attempt(lambda text=text: text(graph))
    ways = [("default", "fp32"), (PASSES[number % len(PASSES)], MATH[number // 3 % len(MATH)])]
    results = []
    for passes, math_mode in ways:
        step, error = attempt(
            lambda p=passes, m=math_mode: graph.compile(device="cpu", passes=p, math=m), *limits
        )
        if error:
            outcome = error
            continue
        if step.plan.flops > MOST_FLOPS or step.plan.bytes_moved > 100 * MOST_FLOPS:
            return "compiled"
        for once in (step.run, step.run, step.replay, lambda s=step: s.replay(2)):
            _, error = attempt(once, *limits)
            if error:
                return error
        results.append(attempt(step.state_dict, *limits)[0])
    return outcome or "run"


def look(text, number):
    """The fate of one mutant; Fault where it is not one of those promised."""
    loose, error = attempt(lambda: aicf.Graph.from_json(text, strict=False))
    if error:
        _, again = attempt(lambda: aicf.Graph.from_json(text))
        if not again:
            raise Fault("strict reading takes what the lenient one refuses")
        return "not read"
    report, error = attempt(loose.verify)
    if error:
        raise Fault(f"verify raised {error}")
    for call in (loose.to_json, loose.to_dot, loose.__str__, loose.lower):
        attempt(call)
    ends = [aicf.Value(loose, record["value"]) for record in json.loads(text)["outputs"][:1]]
    for end in ends:
        attempt(lambda y=end: loose.minimize(aicf.sum(y), aicf.optim.SGD(lr=0.1), name="again"))
    graph, error = attempt(lambda: aicf.Graph.from_json(text))
    if report.ok and error:
        raise Fault(f"verifies when read loosely, yet strict reading raises {error}")
    if not report.ok:
        _, error = attempt(lambda: loose.compile(device="cpu"))
        if not error:
            raise Fault("does not verify, yet it compiles")
        return "found by verify"
    return run(graph, number)


def on_alarm(signum, frame):
    raise Fault(f"takes longer than {MOST_SECONDS} s")


def judge(seed, numbers, make, look, most_faults):
    """The tally of what became of mutants, and how many were faults, each printed with what brings
    it back. `make`: a mutant of a number, and what was done; `look`: its fate, or Fault."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGPROF, on_alarm)
    tally, faults = collections.Counter(), 0
    for number in numbers:
        mutant, what = make(number)
        print(f"mutant {number} of seed {seed}: {what}", file=sys.stderr)
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        faulthandler.dump_traceback_later(15 * MOST_SECONDS, exit=True)  # of the clock on the wall
        try:
            tally[look(mutant, number)] += 1
        except Fault as fault:
            faults += 1
            print(f"mutant {number} of seed {seed} ({what}): {fault}", flush=True)
            if faults == most_faults:
                break
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
    return tally, faults


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one number; prints the mutant too")
    parser.add_argument("--most-faults", type=int, default=20)
    asked = parser.parse_args(argv)
    aicf._core.narrow_any_size(True)  # of graphs as small as these
    sound = sound_graphs()
    for text in sound:
        look(text, 0)
    numbers = range(asked.count) if asked.only is None else [asked.only]
    if asked.only is not None:
        print(mutant(asked.seed, asked.only, sound)[0])
    tally, faults = judge(
        asked.seed, numbers, lambda number: mutant(asked.seed, number, sound), look,
        asked.most_faults,
    )  # fmt: skip
    print(json.dumps({"graphs": len(sound), "mutants": len(numbers), "faults": faults, **tally}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
