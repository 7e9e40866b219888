"""20,000 damaged files: each is refused by a typed error, or read as any other reader reads it, in
bounded time and memory; a load that is refused leaves every bit of the state.

AICF_TEST_FILES=1000000 takes as many of each kind."""

import contextlib
import json
import os
import random
import re
import resource
import struct
import time

import aicf
import numpy as np
import pytest
from aicf import verify

COUNT = int(os.environ.get("AICF_TEST_FILES", 10_000))  # of each kind
MOST_SECONDS = 0.5  # of processor time for one file of less than 4 KB
MOST_GROWTH = 48 << 20  # bytes of memory over all of them
LONGEST = 2100  # characters of a message
CODES = (
    "BOOL F4 F6_E2M3 F8_E5M2 F8_E4M3 I8 U8 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64 f32 X"
).split()
ODD = [
    *(-1, 0, 1, 2, 3, 4, 7, 8, 9, 16, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, 2**64, 10**30),
    *(0.5, 2.0, -0.0, True, None, "", "x", "F32", [], [0], {}, {"a": 1}),
]
WORDS = (
    *(b"NaN", b"Infinity", b"-0", b"1e999", b"2.0", b"1e2", b"null", b"true", b'"', b"\\", b"{"),
    *(b"}", b"[", b"]", b",", b":", b"\\ud800", b"\\u0000", b"\xff", b"\0", b"\n", b"00", b"//"),
    *(b"9" * 25, b"[" * 200, b" " * 50, b"\xef\xbb\xbf", b"18446744073709551616"),
)


@contextlib.contextmanager
def bounded_memory():
    """What the block takes at its worst, over what was in use before it."""
    proc = os.path.exists("/proc/self/clear_refs")

    def memory(key):
        with open("/proc/self/status") as file:
            return int(file.read().split(key + ":")[1].split()[0]) << 10

    if proc:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak is now's
    before = memory("VmRSS") if proc else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    after = memory("VmHWM") if proc else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < MOST_GROWTH, f"{(after - before) >> 20} MiB"


def damage_bytes(random, data):
    """Flips, cuts, repeats, splices and hostile words: what needs no knowledge of the format."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not data:
            break
        at, length = random.randrange(len(data)), random.randrange(1, 24)
        what = random.randrange(8)
        if what == 0:
            data[at] ^= 1 << random.randrange(8)
        elif what == 1:
            data[at] = random.randrange(256)
        elif what == 2:
            data[at] = random.choice(b'0123456789-+.eE[]{},:" \\')
        elif what == 3:
            del data[at : at + length]
        elif what == 4:
            data[at:at] = data[at : at + length]
        elif what == 5:
            other = random.randrange(len(data))
            data[at : at + length] = data[other : other + random.randrange(1, 24)]
        elif what == 6:
            data[at : at + random.choice((0, 0, 1, length))] = random.choice(WORDS)
        else:
            del data[at if random.randrange(4) else 0 :]
    return bytes(data)


def places(record, path=()):
    items = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def damage_json(random, record):
    """Members exchanged, dropped, doubled and moved: well-formed, and of another meaning."""
    for _ in range(random.choice((1, 1, 2, 3))):
        found = list(places(record))
        if not found:
            break
        path = random.choice(found)
        at = record
        for key in path[:-1]:
            at = at[key]
        key, what = path[-1], random.randrange(6)
        other = record
        for step in random.choice(found):
            other = other[step]
        if what == 0:
            at[key] = random.choice(ODD)
        elif what == 1:
            at[key] = json.loads(json.dumps(other))
        elif what == 2:
            del at[key]
        elif what == 3 and isinstance(at, dict):
            at[random.choice((str(key) + "x", "0", "", "name", "é", "__metadata__"))] = at.pop(key)
        elif what == 4 and isinstance(at[key], int):
            at[key] += random.choice((-8, -4, -1, 1, 4, 8))
        elif isinstance(at, list):
            at.insert(random.randrange(len(at) + 1), at[key])
    return record


def write_json(random, record):
    """The same meaning in one of many forms."""
    indent, ascii_ = random.choice((None, None, None, 0, 1)), random.random() < 0.8
    separators = random.choice((None, (",", ":"), (" ,", " : "), ("\n,\t", ":\r")))
    text = json.dumps(record, indent=indent, ensure_ascii=ascii_, separators=separators)
    if random.randrange(20) == 0 and '"}' not in text:  # a member twice
        text = re.sub(r'("[a-z_]+": ?[^,{}\[\]]+),', r"\1,\1,", text, count=1)
    return text.encode("utf-8", "surrogatepass")


# ---- graphs


def base_graphs():
    g = aicf.Graph("train")
    x = g.input("x", (2, 3))
    g.minimize(aicf.sum(g.dense("0", x, 2)), aicf.optim.SGD(lr=0.1))
    g.output("late", aicf.clip(x, 0.5, None), keep=2)
    h = aicf.Graph("naïve")
    c = h.constant(np.float32([1, np.nan, -np.inf]))
    s = h.state("s", (3,), init=aicf.init.uniform(-1, 1))
    h.assign(s, s * c)
    h.output("y", aicf.reshape(s, (1, 3)))
    old = {
        "graph": "seed",
        "values": {
            "0": {"id": 0, "name": "x", "shape": [2], "dtype": "f32", "device": "any"},
            "1": {"id": 1, "name": "y", "shape": [2], "dtype": "f32", "device": "any"},
        },
        "nodes": [{"id": 0, "op": "ReLU", "inputs": [0], "outputs": [1], "attrs": {}}],
    }
    return [json.loads(text) for text in (g.to_json(), h.to_json(), json.dumps(old))]


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def test_damaged_graphs():
    bases = base_graphs()
    texts = [json.dumps(record).encode() for record in bases]
    for text in texts:
        assert aicf.Graph.from_json(text).verify()
    accepted = 0
    with bounded_memory():
        for seed in range(COUNT):
            chance = random.Random(seed)
            which = chance.randrange(len(bases))
            if chance.random() < 0.5:
                data = damage_bytes(chance, texts[which])
            else:
                data = write_json(chance, damage_json(chance, json.loads(texts[which])))
            start = time.thread_time()
            try:
                graph = aicf.Graph.from_json(data)
            except aicf.FormatError as error:
                assert len(str(error)) < LONGEST, seed
            except BaseException as error:
                raise AssertionError(f"seed {seed}: {data!r}") from error
            else:
                accepted += 1
                assert graph.verify(), seed
                json.loads(data.decode(), parse_constant=refuse_constant)
                text = graph.to_json()
                assert aicf.Graph.from_json(text).to_json() == text, seed
            assert time.thread_time() - start < MOST_SECONDS, seed
    print(f"{COUNT} files, {accepted} read")
    assert COUNT // 100 < accepted < COUNT // 2


# ---- safetensors

STATES = {
    "a": ((2, 3), "float32"),
    "wide": ((3,), "bfloat16"),
    "n": ((), "int64"),
    "none": ((0, 4), "float16"),
    "é": ((5,), "bool"),
    "b": ((2,), "uint8"),
}


def state_step():
    g = aicf.Graph("states")
    for name, (shape, dtype) in STATES.items():
        g.state(name, shape, dtype, aicf.init.constant(1))
    return g.compile(device="cpu")


def their_tensors(data, safetensors):
    """Bytes by name where the file holds just our states; "other" or "refused" else."""
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return "refused"
    tensors = dict(found)
    names = {"float32": "F32", "bfloat16": "BF16", "int64": "I64", "float16": "F16"}
    wanted = {
        name: (names.get(dtype, {"bool": "BOOL", "uint8": "U8"}.get(dtype)), list(shape))
        for name, (shape, dtype) in STATES.items()
    }
    if {name: (t["dtype"], list(t["shape"])) for name, t in tensors.items()} != wanted:
        return "other"
    if set(bytes(tensors["é"]["data"])) - {0, 1}:
        return "other"  # a bool that is neither
    return {name: bytes(t["data"]) for name, t in tensors.items()}


def state_bytes(step):
    arrays = {name: step.state[name].numpy() for name in STATES}
    arrays["wide"] = (arrays["wide"].view(np.uint32) >> 16).astype(np.uint16)
    return {name: array.tobytes() for name, array in arrays.items()}


def is_plain(header):
    """Without what this reader alone refuses: a name twice, or a record without its keys."""
    twice = []

    def pairs(items):
        twice.append(len({key for key, _ in items}) != len(items))
        return dict(items)

    record = json.loads(header, object_pairs_hook=pairs)
    return not any(twice) and not any(isinstance(value, list) for value in record.values())


def damage_checkpoint(chance, header, body):
    """A header or a body changed with the format in mind, and the length before it."""
    record, what = json.loads(header), chance.randrange(10)
    if what < 5:
        record = damage_json(chance, record)
    elif what == 5:  # the same tensors elsewhere
        items = list(record.items())
        chance.shuffle(items)
        record = dict(items)
        if chance.randrange(2):
            record["__metadata__"] = {"k": "v" * chance.randrange(300), "é\u2028": "\n"}
    elif what == 6:
        name = chance.choice(list(STATES))
        record[name]["dtype"] = chance.choice(CODES)
    elif what == 7:  # two tensors trade their bytes
        one, two = chance.sample(list(STATES), 2)
        key = chance.choice(("data_offsets", "shape", "dtype"))
        record[one][key], record[two][key] = record[two][key], record[one][key]
    elif what == 8:
        record[chance.choice(("new", "a ", "A"))] = {
            "dtype": chance.choice(CODES),
            "shape": [chance.choice((0, 1, 2))],
            "data_offsets": [len(body), len(body) + chance.choice((0, 0, 1, 4))],
        }
    else:
        body = damage_bytes(chance, body)
    text = write_json(chance, record)
    length = len(text) + (chance.choice(ODD[:17]) if chance.randrange(12) == 0 else 0)
    return struct.pack("<Q", length % 2**64) + text + body


def test_damaged_checkpoints(tmp_path):
    """safetensors is the judge of what is refused and what is read."""
    theirs = pytest.importorskip("safetensors")
    step, path = state_step(), tmp_path / "state"
    step.save(path)
    base = path.read_bytes()
    (length,) = struct.unpack_from("<Q", base)
    header, body = base[8 : 8 + length], base[8 + length :]
    state, loaded, refused = verify.state_hash(step), 0, 0
    with bounded_memory(), open(path, "r+b", buffering=0) as file:
        for seed in range(COUNT):
            chance = random.Random(seed)
            if chance.random() < 0.4:
                data = damage_bytes(chance, base)
            else:
                data = damage_checkpoint(chance, header, body)
            file.seek(0)
            file.write(data)
            file.truncate()
            start = time.thread_time()
            try:
                step.load(path)
            except aicf.Error as error:
                took, text = time.thread_time() - start, str(error)
                assert not isinstance(error, aicf.InternalError) and len(text) < LONGEST, seed
                assert verify.state_hash(step) == state, f"seed {seed}: {text}"
                judged = their_tensors(data, theirs)
                (length,) = struct.unpack_from("<Q", data.ljust(8, b"\0"))
                fits = isinstance(judged, dict) and is_plain(data[8 : 8 + length])
                assert not fits, f"seed {seed}: only we refuse it: {text}"
                assert isinstance(error, aicf.FormatError) or judged != "refused", seed
                refused += judged == "refused"
            except BaseException as error:
                raise AssertionError(f"seed {seed}: {data!r}") from error
            else:
                took = time.thread_time() - start
                judged = their_tensors(data, theirs)
                assert isinstance(judged, dict), f"seed {seed}: they say {judged}: {data!r}"
                assert state_bytes(step) == judged, seed
                state, loaded = verify.state_hash(step), loaded + 1
            assert took < MOST_SECONDS, seed
    print(f"{COUNT} files, {loaded} loaded, {refused} refused by safetensors")
    assert loaded > COUNT // 50 and refused > COUNT // 5
