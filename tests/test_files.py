"""Every file that is opened: only regular ones, in bounded time and memory; what the safetensors
package refuses is refused, and what it accepts is loaded with the same values."""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import time

import aicf
import numpy as np
import pytest
from aicf import __main__, files, verify
from aicf.json_text import MOST_RECORD
from aicf.serialize import DTYPES, read_graph_file

LONGEST = 2100  # characters of a message


def state_step(**types):
    """A step that holds states alone."""
    g = aicf.Graph("states")
    for name, (shape, dtype) in types.items():
        g.state(name, shape, dtype)
    return g.compile(device="cpu")


def checkpoint(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def empty_graph(**more):
    return {"graph": "g", "version": 1, "values": {}, "nodes": [], **more}


# ---- kinds of file


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name must be short
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


def make_sparse(path):
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


STRANGE = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": make_pipe,
    "a socket": make_socket,
    "a character device": lambda path: path.symlink_to("/dev/zero"),
    "need": make_sparse,
    "No such file": lambda path: path.symlink_to("nothing"),
    "symbolic links": lambda path: path.symlink_to(path.name),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", STRANGE)
def test_only_regular_files_are_read(tmp_path, what, capsys):
    path = tmp_path / "strange"
    STRANGE[what](path)
    step = state_step(s=((2,), "float32"))
    for read in (step.load, lambda p: read_graph_file("dump", p)):
        with pytest.raises((aicf.FormatError, OSError), match=what) as caught:
            read(path)
        assert str(path) in str(caught.value)
    assert __main__.main(["dump", str(path)]) == 2
    assert what in capsys.readouterr().err


def test_a_link_to_a_file_is_read(tmp_path):
    step = state_step(s=((2,), "float32"))
    step.state["s"] = np.float32([1, 2])
    step.save(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    other = state_step(s=((2,), "float32"))
    other.load(tmp_path / "link")
    assert (other.state["s"].numpy() == [1, 2]).all()


@pytest.mark.parametrize("how", ["shorter", "longer", "other"])
def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch, how):
    step = state_step(s=((1000,), "float32"))
    path = tmp_path / "state"
    step.save(path)
    step.state["s"] = np.ones(1000, np.float32)
    before, calls, real = verify.state_hash(step), [], files.mmap.mmap

    def map(*args, **named):
        calls.append(args)  # the header has been read by now
        with open(path, "r+b") as file:
            if how == "shorter":
                file.truncate(path.stat().st_size - 5)
            elif how == "longer":
                file.seek(0, 2)
                file.write(b"\0")
            else:
                file.seek(-1, 2)
                file.write(b"\1")
        os.utime(path, ns=(1, 1))
        return real(*args, **named)

    monkeypatch.setattr(files.mmap, "mmap", map)
    with pytest.raises(aicf.FormatError, match="shorter|changed"):
        step.load(path)
    assert verify.state_hash(step) == before and len(calls) == 1


@pytest.mark.parametrize("call", ["stat", "open", "fstat", "readv"])
def test_a_call_that_fails_while_reading(tmp_path, monkeypatch, call):
    step = state_step(s=((2,), "float32"))
    step.save(tmp_path / "state")
    open_files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

    def fail(*args, **named):
        raise OSError(5, "planted")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, call, fail)
        with pytest.raises(OSError, match="planted"):
            step.load(tmp_path / "state")
    if open_files:
        assert len(os.listdir("/proc/self/fd")) == open_files


# ---- headers, against the safetensors package

R = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
EMPTY = b'{"dtype":"F32","shape":[0],"data_offsets":[%d,%d]}'
HEADERS = {
    "plain": b'{"a":' + R + b"}",
    "space before": b' {"a":' + R + b"}",
    "space behind": b'{"a":' + R + b"}\n\t ",
    "spaces within": b'{ "a"\n:\t{ "dtype" : "F32" ,"shape":[ 2 ] , "data_offsets" : [0 ,8 ] } }',
    "zero byte behind": b'{"a":' + R + b"}\0",
    "text behind": b'{"a":' + R + b"}{}",
    "metadata twice": b'{"__metadata__":{},"__metadata__":{},"a":' + R + b"}",
    "metadata": b'{"__metadata__":{"a":"b","c\\n":"\\u00e9\\ud83d\\ude00"},"a":' + R + b"}",
    "a key of the metadata twice": b'{"__metadata__":{"a":"b","a":"c"},"a":' + R + b"}",
    "metadata null": b'{"__metadata__":null,"a":' + R + b"}",
    "metadata list": b'{"__metadata__":[],"a":' + R + b"}",
    "metadata number": b'{"__metadata__":{"a":1},"a":' + R + b"}",
    "metadata object": b'{"__metadata__":{"a":{}},"a":' + R + b"}",
    "metadata surrogate": b'{"__metadata__":{"a":"\\ud800"},"a":' + R + b"}",
    "metadata surrogate behind": b'{"__metadata__":{"a":"\\udc00x"},"a":' + R + b"}",
    "metadata half a pair": b'{"__metadata__":{"a":"\\ud83d\\u0041"},"a":' + R + b"}",
    "metadata no UTF-8": b'{"__metadata__":{"a":"\xff"},"a":' + R + b"}",
    "metadata control": b'{"__metadata__":{"a":"\n"},"a":' + R + b"}",
    "metadata escape": b'{"__metadata__":{"a":"\\x41"},"a":' + R + b"}",
    "metadata short escape": b'{"__metadata__":{"a":"\\u12"},"a":' + R + b"}",
    "unknown field": b'{"a":{"x":[1,{"y":null}],"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "unknown NaN": b'{"a":{"x":NaN,"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "unknown infinity": b'{"a":{"x":-Infinity,"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "unknown surrogate": b'{"a":{"x":"\\ud800","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "unknown beyond floats": b'{"a":{"x":1e999,"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "unknown deep": b'{"a":{"x":%s%s,"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    % (b"[" * 90, b"]" * 90),
    "unknown too deep": b'{"a":{"x":%s%s,"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    % (b"[" * 200, b"]" * 200),
    "bottomless": b'{"a":' + b"[" * 10**6,
    "field twice": b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "field missing": b'{"a":{"dtype":"F32","data_offsets":[0,8]}}',
    "float size": b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}',
    "exponent": b'{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}',
    "minus zero": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}',
    "leading zero": b'{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}',
    "true": b'{"a":{"dtype":"F32","shape":[2,true],"data_offsets":[0,8]}}',
    "digits": b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}' % (b"9" * 10**5),
    "shape text": b'{"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}',
    "shape null": b'{"a":{"dtype":"F32","shape":null,"data_offsets":[0,8]}}',
    "three offsets": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}',
    "one offset": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}',
    "offsets turned": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}',
    "offsets wrap": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,0]}}',
    "gap": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
    "bytes behind": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "beyond the end": b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
    "dtype null": b'{"a":{"dtype":null,"shape":[2],"data_offsets":[0,8]}}',
    "dtype small": b'{"a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}}',
    "dtype escaped": b'{"a":{"dtype":"\\u004632","shape":[2],"data_offsets":[0,8]}}',
    "name escaped": b'{"\\u0061":' + R + b"}",
    "name surrogate": b'{"\\ud800":' + R + b"}",
    "name control": b'{"a\n":' + R + b"}",
    "name no UTF-8": b'{"a\xff":' + R + b"}",
    "empty tensors": b'{"a":' + R + b',"z":' + EMPTY % (0, 0) + b',"y":' + EMPTY % (8, 8) + b"}",
    "empty within": b'{"a":' + R + b',"z":' + EMPTY % (4, 4) + b"}",
    "byte order mark": b'\xef\xbb\xbf{"a":' + R + b"}",
    "UTF-16": ('{"a":' + R.decode() + "}").encode("utf-16"),
    "comma behind": b'{"a":' + R + b",}",
    "no comma": b'{"a":' + R + b'"b":' + R + b"}",
    "top number": b'{"a":' + R + b',"b":3}',
    "top null": b'{"a":' + R + b',"b":null}',
    "list": b'[{"a":' + R + b"}]",
    "nothing": b"",
    "spaces": b" " * 100,
    "open": b'{"a":' + R,
    "open string": b'{"a',
    "brackets crossed": b'{"a":{"dtype":"F32","shape":[2},"data_offsets":[0,8]]}',
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_against_safetensors(tmp_path, name):
    theirs = pytest.importorskip("safetensors")
    body = np.float32([1.5, -2.5]).tobytes()
    data = checkpoint(HEADERS[name], body)
    path = tmp_path / "state"
    path.write_bytes(data)
    types = {"a": ((2,), "float32")}
    if name == "empty tensors":
        types |= {"z": ((0,), "float32"), "y": ((0,), "float32")}
    step = state_step(**types)
    before = verify.state_hash(step)
    try:
        theirs.deserialize(data)
    except theirs.SafetensorError:
        with pytest.raises(aicf.FormatError) as caught:
            step.load(path)
        assert len(str(caught.value)) < LONGEST
        assert verify.state_hash(step) == before
    else:
        step.load(path)
        assert step.state["a"].numpy().tobytes() == body


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":' + R + b',"a":' + R + b"}",  # the last one would win
        b'{"a":["F32",[2],[0,8]]}',  # a record without its keys
        b'{"a":{"dtype":"F32","shape":[2,1,1,1,1,1,1,1,1],"data_offsets":[0,8]}}',
    ],
)
def test_refused_here_alone(tmp_path, header):
    path = tmp_path / "state"
    path.write_bytes(checkpoint(header, bytes(8)))
    with pytest.raises(aicf.FormatError, match='"a"'):
        state_step(a=((2,), "float32")).load(path)


def test_the_longest_header(tmp_path):
    """100 MB are read, as everywhere else; a byte more is refused before it is read."""
    path = tmp_path / "state"
    text = b'{"a":' + R + b"}"
    step = state_step(a=((2,), "float32"))
    for length, fits in ((100_000_000, True), (100_000_001, False)):
        path.write_bytes(struct.pack("<Q", length))
        with open(path, "ab") as file:
            file.write(text)
            file.write(b" " * (length - len(text)))
            file.write(bytes(8))
        if fits:
            step.load(path)
        else:
            with pytest.raises(aicf.FormatError, match="100000001"):
                step.load(path)


@pytest.mark.parametrize("code", DTYPES)
def test_dtypes_are_equal_or_refused(tmp_path, code):
    path = tmp_path / "state"
    size = np.dtype("uint16" if code == "BF16" else DTYPES[code]).itemsize
    record = {"dtype": code, "shape": [3], "data_offsets": [0, 3 * size]}
    path.write_bytes(checkpoint({"s": record}, bytes(3 * size)))
    for dtype in DTYPES.values():
        step = state_step(s=((3,), dtype))
        if dtype == DTYPES[code]:
            step.load(path)
            continue
        with pytest.raises(aicf.DTypeError, match=f'"s" is {DTYPES[code]}; need {dtype}'):
            step.load(path)


def test_what_does_not_fit_is_named(tmp_path):
    path = tmp_path / "state"
    state_step(a=((2,), "float32"), b=((2,), "float32")).save(path)
    with pytest.raises(aicf.ShapeError, match=r'"b" has shape \(2,\); need \(3,\)'):
        state_step(a=((2,), "float32"), b=((3,), "float32")).load(path)
    with pytest.raises(aicf.GraphError, match='missing \\["c"\\], unknown \\["b"\\]'):
        state_step(a=((2,), "float32"), c=((2,), "float32")).load(path)


def test_messages_are_short(tmp_path):
    path, step = tmp_path / "state", state_step(s=((2,), "float32"))
    long = "n" * 10**5
    shape = [2**62] * 40_000
    files_ = [
        {"s": {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}},
        {long: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        {long: {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}},
        {"s": {"dtype": long, "shape": [2], "data_offsets": [0, 8]}},
        {f"{i}{long[:500]}": json.loads(R) for i in range(300)},
        {f"{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(3000)},
    ]
    for header in files_:
        path.write_bytes(checkpoint(header, bytes(8)))
        start = time.process_time()
        with pytest.raises(aicf.Error) as caught:
            step.load(path)
        assert len(str(caught.value)) < LONGEST and time.process_time() - start < 1
    value = {"id": 0, "name": "v", "shape": [2], "dtype": "float32", "role": "input"}
    node = {"id": 0, "op": "Neg", "inputs": [0], "outputs": [0], "attrs": {}}
    graphs = [
        empty_graph(values={"0": {**value, "shape": shape}}),
        empty_graph(values={"0": {**value, "dtype": long}}),
        empty_graph(values={"0": {**value, "role": long}}),
        empty_graph(values={long: value}),
        empty_graph(values={"0": value}, nodes=[{**node, "op": long}]),
        empty_graph(values={"0": value}, nodes=[{**node, "attrs": {long: 1}}]),
        empty_graph(values={"0": {**value, "role": "param", "init": {"kind": long}}}),
        empty_graph(
            values={str(i): {**value, "id": i, "name": long[:200]} for i in range(300)},
            outputs=[{"name": "y", "value": 0}] * 300,
        ),
        empty_graph(version=10**19),
        {**empty_graph(), "graph": [long]},
    ]
    for record in graphs:
        start = time.process_time()
        with pytest.raises(aicf.FormatError) as caught:
            aicf.Graph.from_json(json.dumps(record))
        assert len(str(caught.value)) < LONGEST and time.process_time() - start < 1


# ---- graphs as JSON

SOUND = json.dumps(empty_graph())
NOT_JSON = {
    "NaN": SOUND.replace("1", "NaN"),
    "Infinity": SOUND[:-1] + ', "more": Infinity}',
    "-Infinity": SOUND[:-1] + ', "more": [-Infinity]}',
    "beyond floats": SOUND[:-1] + ', "more": 1e999}',
    "digits": SOUND[:-1] + ', "more": ' + "7" * 10**5 + "}",
    "key twice": SOUND[:-1] + ', "graph": "h"}',
    "key twice within": SOUND[:-1] + ', "more": {"a": 1, "a": 2}}',
    "unknown key twice": SOUND[:-1] + ', "more": 1, "more": 2}',
    "byte order mark": b"\xef\xbb\xbf" + SOUND.encode(),
    "UTF-16": SOUND.encode("utf-16"),
    "bytes behind": SOUND + "{}",
    "zero byte behind": SOUND + "\0",
    "surrogate": SOUND.replace('"g"', '"\\udfff"'),
    "surrogate as it is": SOUND.replace('"g"', '"\ud800"'),
    "control character": SOUND.replace('"g"', '"a\x01"'),
    "single quotes": SOUND.replace('"', "'"),
    "comment": "/* */" + SOUND,
    "long record": SOUND[:-1] + ', "more": "' + "x" * MOST_RECORD + '"}',
    "many keys": SOUND[:-1] + "".join(f', "k{i}": 0' for i in range(100)) + "}",
}


def test_sound_text_is_read():
    assert aicf.Graph.from_json(SOUND).verify()
    more = SOUND[:-1] + ', "more": [{"a": -1.5e-3}, null, true, "\\ud83d\\ude00"]}'
    assert aicf.Graph.from_json(bytearray(more.encode())).verify()


@pytest.mark.parametrize("name", NOT_JSON)
def test_text_that_is_not_json(name):
    start = time.process_time()
    with pytest.raises(aicf.FormatError, match="from_json") as caught:
        aicf.Graph.from_json(NOT_JSON[name])
    assert len(str(caught.value)) < LONGEST and time.process_time() - start < 1


def test_numbers_that_json_lacks():
    """They are written as text, so that every reader of JSON reads the file, and come back."""
    g = aicf.Graph("infinite")
    x = g.input("x", (3,))
    g.state("low", (2,), init=aicf.init.constant(-np.inf))
    g.state("NaN", (2,), init=aicf.init.constant(np.nan))
    g.output("y", aicf.clip(x, 0.5, None))

    def refuse(name):
        raise AssertionError(name)

    text = g.to_json()
    json.loads(text, parse_constant=refuse)
    again = aicf.Graph.from_json(text)
    assert again.to_json() == text
    step = again.compile(device="cpu")
    assert (step.state["low"].numpy() == -np.inf).all()
    assert np.isnan(step.state["NaN"].numpy()).all()
    np.testing.assert_array_equal(step(x=np.float32([0, 1, np.inf]))["y"], [0.5, 1, np.inf])
    json.loads(step.plan.to_json(), parse_constant=refuse)
    assert "NaN" in [value["name"] for value in step.plan.values.values()]
    assert [op["attrs"]["hi"] for op in g.lower() if "hi" in op["attrs"]] == [np.inf]


def test_values_in_any_order():
    g = aicf.Graph("order")
    g.output("y", g.input("x", (3,)) * 2.0 + 1.0)
    record = json.loads(g.to_json())
    for order in (sorted, reversed):
        keys = order(list(record["values"]))
        turned = {**record, "values": {key: record["values"][key] for key in keys}}
        sections = dict(reversed(list(turned.items())))
        assert aicf.Graph.from_json(json.dumps(sections)).to_json() == g.to_json()


def test_long_content(make_rng):
    """A constant of megabytes among small records, and one that is not where it belongs."""
    g = aicf.Graph("content")
    array = make_rng(0).standard_normal(300_000).astype(np.float32)
    g.output("y", g.input("x", (300_000,)) + g.constant(array))
    text = g.to_json()
    again = aicf.Graph.from_json(text)
    assert again.to_json() == text
    wrong = re.sub(r'"init": (\{"kind": "data", "bytes": "[0-9a-f]{9999,}"\})', r'"more": \1', text)
    assert wrong != text
    with pytest.raises(aicf.FormatError):
        aicf.Graph.from_json(wrong)


@pytest.mark.parametrize("name", ["!", "NaN", '"', "a\\!"])
def test_long_content_beside_any_name(name):
    """No text in the record is taken for the place of the content."""
    g = aicf.Graph("content")
    g.output("y", g.param(name, (20_000,), init=np.arange(20_000, dtype=np.float32)))
    again = aicf.Graph.from_json(g.to_json())
    assert again.to_json() == g.to_json()


@pytest.mark.parametrize("decoy", [r"\u0021", "NaN"])
def test_long_content_is_not_moved(decoy):
    """Content that stands elsewhere is refused, whatever stands in its place."""
    g = aicf.Graph("content")
    g.output("y", g.param("w", (20_000,), init=np.arange(20_000, dtype=np.float32)))
    text = g.to_json()
    content = re.search(r'"bytes": ?"([0-9a-f]{9999,})"', text)[1]
    for here in (f'"{decoy}"', decoy):
        moved = text.replace(f'"{content}"', f'{here}, "more": {{"bytes": "{content}"}}')
        assert moved != text
        with pytest.raises(aicf.FormatError):
            aicf.Graph.from_json(moved)


# ---- time and memory

MEASURE = """
import ctypes, sys, time
import aicf
from aicf.serialize import read_graph_file

def memory(key):
    with open("/proc/self/status") as file:
        return int(file.read().split(key + ":")[1].split()[0]) << 10

paths = sys.argv[1:]
g = aicf.Graph("state")
g.state("s", (1 << 21,))
step = g.compile(device="cpu")
for path in paths:
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)  # what lies free would hide what is asked for
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is now's
    before, start = memory("VmRSS"), time.process_time()
    try:
        step.load(path) if path.endswith("state") else read_graph_file("measure", path)
        what = "loaded"
    except (aicf.Error, OSError) as error:
        what = type(error).__name__
    print(what, memory("VmHWM") - before, time.process_time() - start)
"""


def chain(count):
    value = {"name": "v", "shape": [2], "dtype": "float32", "device": "any", "role": "temp"}
    record = empty_graph(outputs=[{"name": "y", "value": count}])
    record["values"] = {str(i): {"id": i, **value} for i in range(count + 1)}
    record["values"]["0"]["role"] = "input"
    record["nodes"] = [
        {"id": i, "op": "Neg", "inputs": [i], "outputs": [i + 1], "attrs": {}} for i in range(count)
    ]
    return json.dumps(record).encode()


def many_tensors(count):
    one = b'"%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
    return checkpoint(
        b"{" + b",".join(one % (i, i, i + 1) for i in range(count)) + b"}", bytes(count)
    )


def constant_graph(size):
    value = b'{"id":0,"name":"c","dtype":"uint8","shape":[%d],"role":"constant","init":%s}'
    init = b'{"kind":"data","bytes":"%s"}' % (b"5a" * size)
    return b'{"graph":"g","values":{"0":' + value % (size, init) + b'},"nodes":[]}'


M = 1 << 20
LARGE = {  # of n MiB; a quarter of it where each record costs the reader a call
    "whole state": lambda n: checkpoint(
        {"s": {"dtype": "F32", "shape": [M * 2], "data_offsets": [0, 8 * M]}}, bytes(8 * M)
    ),
    "lists state": lambda n: checkpoint(b'{"a":[' + b"[]," * (n * M // 3) + b"1]}"),
    "open state": lambda n: checkpoint(b'{"a":' + b"[" * (n * M)),
    "metadata state": lambda n: checkpoint(
        b'{"__metadata__":{"a":"' + b"\\n" * (n * M // 2) + b'"}}'
    ),
    "wide state": lambda n: checkpoint(
        b'{"__metadata__":{"a":"' + "\U0001f600".encode() * (n * M // 4) + b'"}}'
    ),
    "quotes state": lambda n: checkpoint(b"{" + b'"' * (n * M)),
    "backslashes state": lambda n: checkpoint(b'{"' + b"\\" * (n * M) + b'":'),
    "spaces state": lambda n: checkpoint(b"{" + b" " * (n * M) + b"}"),
    "tensors state": lambda n: many_tensors(n * M // 240),
    "sparse state": lambda n: checkpoint(b'{"s":' + R + b"}"),
    "lists graph": lambda n: (
        b'{"graph":"g","values":{},"nodes":[[' + b"[]," * (n * M // 3) + b"1]]}"
    ),
    "records graph": lambda n: (
        b'{"graph":"g","values":{},"nodes":[' + b"{}," * (n * M // 3) + b"1]}"
    ),
    "keys graph": lambda n: (
        b'{"graph":"g","nodes":[],"values":{'
        + b",".join(b'"%d":[]' % i for i in reversed(range(n * M // 44)))
        + b"}}"
    ),
    "other graph": lambda n: b'{"graph":"g","x":[' + b"[]," * (n * M // 3) + b"1]}",
    "constant graph": lambda n: constant_graph(n * M // 2),
    "chain graph": lambda n: chain(n * M // 760),
}


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="measured by /proc")
def test_time_and_memory(tmp_path):
    """At most three times the file and 4 MiB, in time that grows as the file does."""
    sizes, paths = (2, 8), []
    for name, make in LARGE.items():
        for n in sizes:
            path = tmp_path / f"{n} {name}"
            path.write_bytes(make(n))
            if "sparse" in name:
                os.truncate(path, 1 << 40)
            paths.append(path)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, check=True
    )
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == len(paths)
    took = {}
    for path, (what, used, seconds) in zip(paths, found, strict=True):
        n, name = path.name.split(" ", 1)
        print(f"{path.name}: {what}, {int(used) / M:.1f} MiB, {float(seconds):.2f} s")
        assert (what == "loaded") == (name.split()[0] in ("whole", "constant", "chain")), path.name
        size = 0 if "sparse" in name else path.stat().st_size
        assert int(used) <= 3 * size + 4 * M, path.name
        took[name, int(n)] = float(seconds)
    for name in LARGE:
        small, large = (took[name, n] for n in sizes)
        assert large <= 8 * small + 0.1, f"{name}: {small:.2f} s, four times the size {large:.2f} s"
