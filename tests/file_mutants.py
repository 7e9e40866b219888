"""Damaged files of compiled steps: each is refused by a FormatError, or is a step that verifies.

    python tests/file_mutants.py --count 100000 --seed 7

A mutant is a sound file with bytes changed, cut, moved or swapped. Most get their checksums right
again, and most changes are made to a field of the plan: a count, an id, a size, a stride, an
attribute. What loads must verify, run and leave the machine alone. Prints the tally, and for each
fault the seed and number that bring the mutant back (`--only`).
"""

import argparse
import itertools
import json
import os
import struct
import sys
import tempfile

import aicf
import numpy as np
from mutants import MOST_TEXT, Fault, judge, sound_graphs

MOST_WORK = 1e7  # flops and bytes of a step that is run
SECTIONS = ("plan", "kernels", "code", "constants", "state")
HEADER, ENTRY, ALIGN = 64, 32, 64
NUMBERS = (0, 1, 2, 3, 7, 8, 9, 63, 64, 127, 128, 255, 256, 1000, 65535, 65536, 2**31 - 1, 2**31,
           2**32 - 1, 2**40, 2**58, 2**62, 2**63 - 256, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2,
           2**64 - 256)  # fmt: skip
DOUBLES = (0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e300, 5e-324)


def round_up(size):
    return (size + ALIGN - 1) // ALIGN * ALIGN


def checksum(data):
    """As docs/format.md says."""
    total, mask = 0xCBF29CE484222325, 2**64 - 1
    padded = bytes(data) + bytes(-len(data) % 8)
    for (word,) in [*struct.iter_unpack("<Q", padded), (len(data),)]:
        total = (total ^ word) * 0x100000001B3 & mask
        total = (total << 29 | total >> 35) & mask
    return total


def split(file):
    """The sections of a file, and its head."""
    parts = []
    for i in range(len(SECTIONS)):
        offset, size = struct.unpack_from("<QQ", file, HEADER + ENTRY * i + 8)
        parts.append(bytearray(file[offset : offset + size]))
    return bytearray(file[:16]), parts


def join(head, parts, kinds=(1, 2, 3, 4, 5)):
    """The file of these sections, its sums right."""
    at, table, body = round_up(HEADER + ENTRY * len(parts)), b"", b""
    start = at
    for kind, part in zip(kinds, parts, strict=True):
        table += struct.pack("<IIQQQ", kind, 0, at, len(part), checksum(part))
        body += bytes(part) + bytes(round_up(len(part)) - len(part))
        at = start + len(body)
    first = bytes(head) + struct.pack("<QIIQ", at, len(parts), 0, checksum(table))
    return (first.ljust(HEADER, b"\0") + table).ljust(start, b"\0") + body


class Fields:
    """Where the fields of a plan's record lie: (kind, offset, size, what it is)."""

    def __init__(self, data):
        self.data, self.at, self.fields, self.lists = data, 0, [], []
        self.head()

    def number(self, form, what):
        size = struct.calcsize(form)
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.fields.append((form, self.at, size, what))
        self.at += size
        return value

    def text(self, what):
        size = self.number("I", f"{what} length")
        self.fields.append(("s", self.at, size, what))
        self.at += size

    def list(self, each, what):
        at, count = self.at, self.number("I", f"{what} count")
        ends = [self.at]
        for _ in range(count):
            each()
            ends.append(self.at)
        self.lists.append((at, ends, what))

    def dims(self, what):
        for _ in range(self.number("B", f"{what} rank")):
            self.number("q", what)

    def view(self):
        self.number("i", "view value")
        self.number("B", "dtype")
        self.dims("shape")
        self.dims("strides")
        self.number("q", "offset")

    def attrs(self):
        self.list(self.attr, "attrs")

    def attr(self):
        self.text("attr name")
        kind = self.number("B", "attr kind")
        if kind == 3:
            self.text("attr text")
        elif kind == 4:
            self.list(lambda: self.number("q", "attr item"), "attr items")
        else:
            self.number("Bqd"[kind], "attr")

    def step(self):
        self.number("I", "step op")
        self.list(lambda: self.number("i", "step input"), "step inputs")
        self.list(lambda: self.number("i", "step output"), "step outputs")
        self.attrs()
        self.number("i", "node")

    def op(self, member=False):
        self.number("I", "op")
        self.list(self.view, "inputs")
        self.list(self.view, "outputs")
        self.attrs()
        self.number("i", "node")
        self.list(self.step, "body")
        self.list(self.view, "inner")
        self.text("candidate")
        if not member:
            self.list(lambda: self.op(True), "members")

    def planned(self):
        loop = self.number("B", "launch") == 4
        self.op()
        for what in ("counters", "scratch", "scratch room"):
            self.number("q", what)
        self.number("i", "lane")
        self.list(lambda: self.number("i", "wait"), "waits")
        if loop:
            self.plan()

    def value(self):
        self.text("name")
        self.number("B", "dtype")
        self.dims("shape")
        self.number("B", "role")
        self.number("i", "producer")
        self.number("B", "init")
        self.number("d", "init number")
        self.number("d", "init number")
        self.number("i", "moment_of")
        self.number("i", "slot")

    def place(self):
        self.number("B", "region")
        self.number("q", "place offset")
        self.number("q", "place bytes")
        self.number("i", "storage")

    def output(self):
        self.text("output name")
        for what in ("output value", "keep", "ring", "position"):
            self.number("i", what)

    def schema(self):
        self.text("op name")
        self.number("Q", "op digest")

    def head(self):
        self.number("B", "device")
        self.text("arch")
        self.number("i", "processors")
        self.number("Q", "seed")
        self.text("plan name")
        self.text("math")
        self.number("B", "deterministic")
        self.number("q", "temps without reuse")
        self.list(self.schema, "schemas")
        self.plan()
        self.list(self.index_use, "indices")
        assert self.at == len(self.data), "the record is described otherwise"

    def index_use(self):
        self.number("i", "index leaf")
        self.view()
        self.number("q", "rows")
        self.number("B", "ignores")
        self.number("q", "ignored")
        self.number("i", "node")
        for what in ("taker", "source", "operand"):
            self.text(what)

    def plan(self):
        self.list(self.value, "values")
        self.list(self.place, "places")
        self.list(self.planned, "ops")
        self.list(self.output, "outputs")
        self.list(lambda: [self.number("i", "assign") for _ in range(2)], "assigns")
        self.list(lambda: self.number("q", "region bytes"), "regions")


class Change:
    """The ways to damage a file; each takes and leaves its sections."""

    def __init__(self, parts, fields, rng, schemas):
        self.parts, self.fields, self.rng, self.schemas = parts, fields, rng, schemas

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def value(self, form, old):
        size = struct.calcsize(form)
        if form == "d":
            return struct.pack("<d", self.pick(DOUBLES))
        whole = int.from_bytes(old, "little")
        near = (
            whole + int(self.rng.integers(-2, 3)),
            whole ^ 1 << int(self.rng.integers(8 * size)),
            self.pick(NUMBERS),
            int(self.rng.integers(12)),
            -1 - int(self.rng.integers(3)),
        )
        return (self.pick(near) % (1 << 8 * size)).to_bytes(size, "little")

    def set(self, field):
        form, at, size, _ = field
        plan = self.parts[0]
        if form == "s":
            for _ in range(int(self.rng.integers(1, 3)) if size else 0):
                plan[at + int(self.rng.integers(size))] = self.pick(b"abc019(.\x00\xff\xc3")
        else:
            plan[at : at + size] = self.value(form, plan[at : at + size])

    def field(self):
        self.set(self.pick(self.fields.fields))

    def field_of_a_kind(self):
        """So that rare kinds have their turn."""
        kind = self.pick(sorted({what for *_, what in self.fields.fields}))
        self.set(self.pick([f for f in self.fields.fields if f[3] == kind]))

    def like_another(self):
        """One field takes the value of another of its kind."""
        form, at, size, what = self.pick(self.fields.fields)
        alike = [f for f in self.fields.fields if f[3] == what and f[2] == size]
        _, other, _, _ = self.pick(alike)
        self.parts[0][at : at + size] = self.parts[0][other : other + size]

    def everywhere(self):
        """One number of a kind becomes another wherever it stands: such a plan may stay sound."""
        form, at, size, what = self.pick([f for f in self.fields.fields if f[0] in "iq"])
        old = bytes(self.parts[0][at : at + size])
        new = self.value(form, old)
        for other, place, bytes_, kind in self.fields.fields:
            if other == form and self.parts[0][place : place + bytes_] == old and (
                kind == what or form == "q"):  # fmt: skip
                self.parts[0][place : place + bytes_] = new

    def list_item(self):
        """An item of a list is left out, doubled, or changes places with the next."""
        lists = [entry for entry in self.fields.lists if len(entry[1]) > 1]
        at, ends, _ = self.pick(lists)
        plan, i = self.parts[0], int(self.rng.integers(len(ends) - 1))
        item = plan[ends[i] : ends[i + 1]]
        (count,) = struct.unpack_from("<I", plan, at)
        what = int(self.rng.integers(3))
        if what == 0:
            del plan[ends[i] : ends[i + 1]]
            count -= 1
        elif what == 1:
            plan[ends[i] : ends[i]] = item
            count += 1
        elif i + 2 < len(ends):
            plan[ends[i] : ends[i + 2]] = plan[ends[i + 1] : ends[i + 2]] + item
        struct.pack_into("<I", plan, at, count % 2**32)

    def list_from_another(self):
        """An item of a list of the same kind is put in."""
        what = self.pick(sorted({entry[2] for entry in self.fields.lists if len(entry[1]) > 1}))
        lists = [entry for entry in self.fields.lists if entry[2] == what]
        _, from_ends, _ = self.pick([entry for entry in lists if len(entry[1]) > 1])
        i = int(self.rng.integers(len(from_ends) - 1))
        item = bytes(self.parts[0][from_ends[i] : from_ends[i + 1]])
        at, ends, _ = self.pick(lists)
        (count,) = struct.unpack_from("<I", self.parts[0], at)
        struct.pack_into("<I", self.parts[0], at, (count + 1) % 2**32)
        to = self.pick(ends)
        self.parts[0][to:to] = item

    def op_name(self):
        """Another op of the same library, with its own digest."""
        names = [f for f in self.fields.fields if f[3] in ("op", "step op")]
        form, at, size, _ = self.pick(names)
        count = sum(f[3] == "op name" for f in self.fields.fields)
        struct.pack_into("<I", self.parts[0], at, int(self.rng.integers(count)))

    def schema(self):
        """Another op of any file stands in for all that name one of this file."""
        _, ends, _ = next(entry for entry in self.fields.lists if entry[2] == "schemas")
        i = int(self.rng.integers(len(ends) - 1))
        self.parts[0][ends[i] : ends[i + 1]] = self.pick(self.schemas)

    def bytes(self):
        part = self.pick([p for p in self.parts if p])
        for _ in range(int(self.rng.choice([1, 1, 2, 8]))):
            part[int(self.rng.integers(len(part)))] = int(self.rng.integers(256))

    def cut(self):
        part = self.pick([p for p in self.parts if p])
        del part[int(self.rng.integers(len(part))) :]

    def longer(self):
        self.pick(self.parts).extend(self.rng.bytes(int(self.rng.integers(1, 100))))

    def swap(self):
        i, j = self.rng.integers(len(self.parts), size=2)
        self.parts[i], self.parts[j] = self.parts[j], self.parts[i]


TARGETED = ("field", "field_of_a_kind", "like_another", "everywhere", "list_item",
            "list_from_another", "op_name", "schema")  # fmt: skip
COARSE = ("bytes", "cut", "longer", "swap")


def sound_files(folder):
    """Files of steps of every kind, with how their records are laid out."""
    files = []
    path = os.path.join(folder, "sound.aicf")
    for i, text in enumerate(sound_graphs()):
        graph = aicf.Graph.from_json(text)
        for passes, mode in (("default", "fp32"), ((), "fp32"), ("default", "mixed")):
            if i % 3 and (mode, passes) != ("fp32", "default"):
                continue
            try:
                step = graph.compile(device="cpu", passes=passes, math=mode)
            except aicf.Error:
                continue
            step.export(path, state=bool(i % 2))
            with open(path, "rb") as file:
                files.append(file.read())
    return sorted(set(files), key=len)


def schemas_of(files):
    """The names and digests of ops that any of the files has."""
    found = set()
    for file in files:
        plan = bytes(split(file)[1][0])
        _, ends, _ = next(entry for entry in Fields(plan).lists if entry[2] == "schemas")
        found.update(plan[a:b] for a, b in itertools.pairwise(ends))
    return sorted(found)


def mutant(seed, number, files, known):
    """A damaged file, and what was done."""
    if "schemas" not in known:
        known["schemas"] = schemas_of(files)
    rng = np.random.default_rng([seed, number])
    which = int(rng.integers(len(files)))
    if which not in known:
        head, parts = split(files[which])
        known[which] = head, parts, Fields(bytes(parts[0]))
    head, parts, fields = known[which]
    names = []
    if rng.integers(10) == 0:  # as it stands, sums and all
        file = bytearray(files[which])
        for _ in range(int(rng.choice([1, 2, 16]))):
            file[int(rng.integers(min(len(file), int(rng.choice([64, 256, len(file)])))))] = int(
                rng.integers(256)
            )
        cut = int(rng.integers(len(file))) if rng.integers(4) == 0 else len(file)
        return bytes(file[:cut]), "raw"
    change = Change([bytearray(p) for p in parts], fields, rng, known["schemas"])
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        names.append(change.pick(COARSE if rng.integers(8) == 0 else TARGETED))
        getattr(change, names[-1])()
        if names[-1] not in ("field", "field_of_a_kind", "like_another", "everywhere", "op_name"):
            break  # fields have moved
    return join(head, change.parts), ", ".join(names)


def attempt(call, *kinds):
    try:
        return call(), ""
    except aicf.Error as error:
        if not isinstance(error, kinds):
            raise Fault(f"{type(error).__name__}: {str(error)[:600]}") from error
        if len(str(error).encode()) > MOST_TEXT:
            raise Fault(f"a message of {len(str(error))} characters") from error
        return None, type(error).__name__


def look(file, path):
    """The fate of one file; Fault where it is none of those promised."""
    with open(path, "wb") as out:
        out.write(file)
    # A step for a GPU where there is none, or an op that this device has no kernel for.
    limits = aicf.OutOfMemory, aicf.DeviceUnavailable, aicf.Unsupported
    step, error = attempt(lambda: aicf.load_step(path), aicf.FormatError, *limits)
    if error:
        return error
    if not step.plan.report.ok:
        raise Fault("loads, yet the plan does not verify")
    str(step.plan)
    if step.plan.flops > MOST_WORK or step.plan.bytes_moved > 100 * MOST_WORK:
        return "loaded"
    for once in (step.run, lambda: step.replay(2)):
        _, error = attempt(once, aicf.OutOfMemory)
        if error:
            return error
    outputs = step.outputs
    for name in outputs:
        outputs[name].numpy()
    step.state_dict()
    return "run"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one number; leaves the file at mutant.aicf")
    parser.add_argument("--most-faults", type=int, default=20)
    parser.add_argument("--pack", help="write them there for `harness files`, and run none")
    asked = parser.parse_args(argv)
    aicf._core.narrow_any_size(True)  # of graphs as small as these
    known = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mutant.aicf")
        files = sound_files(folder)
        for file in files:
            if split(file)[0] and join(*split(file)) != file:
                raise SystemExit("a sound file is laid out otherwise than is known here")
        numbers = range(asked.first, asked.first + asked.count)
        if asked.only is not None:
            numbers, path = [asked.only], "mutant.aicf"
        if asked.pack:
            with open(asked.pack, "wb") as pack:
                for number in numbers:
                    file, _ = mutant(asked.seed, number, files, known)
                    pack.write(struct.pack("<Q", len(file)) + file)
            return 0
        tally, faults = judge(
            asked.seed, numbers, lambda number: mutant(asked.seed, number, files, known),
            lambda file, _: look(file, path), asked.most_faults,
        )  # fmt: skip
    print(json.dumps({"files": len(files), "mutants": len(numbers), "faults": faults, **tally}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
