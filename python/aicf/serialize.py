"""Files: graphs as JSON, state as safetensors. Nothing here runs code from a file."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._core import FormatError, Graph, GraphError, GraphReader

_MAX_GRAPH = 1 << 28  # bytes of JSON text
_SEED_ROLES = {  # files written before roles existed name their leaves so
    "x": "input",
    "t": "input",
    "W": "param",
    "b": "param",
    "step": "state",
    "m": "state",
    "v": "state",
}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore
        raise FormatError(f'from_json: the key "{twice}" stands twice in one object')
    return result


def _get(record: Any, key: str, kind: type | tuple[type, ...], where: str, *default: Any) -> Any:
    if not isinstance(record, dict):
        raise FormatError(f"{where}: is a {type(record).__name__}; need an object")
    value = record.get(key, *default)
    if value is None and default:
        return default[0]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise FormatError(f'{where}: "{key}" is {str(value)[:60]!r}; need {kind}')
    return value


def _ints(record: Any, key: str, where: str) -> list[int]:
    values = _get(record, key, list, where)
    for value in values:
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise FormatError(f'{where}: "{key}" holds {str(value)[:60]!r}; need 64-bit integers')
    return values


def _id(record: Any, key: str, where: str, *default: int) -> int:
    value = _get(record, key, int, where, *default)
    if not -1 <= value < 2**31:
        raise FormatError(f'{where}: "{key}" is {value}; need an id below 2**31')
    return value


def _read_init(record: Any, where: str) -> Any:
    if record is None:
        return None
    kind = _get(record, "kind", str, where)
    if kind == "data":
        try:
            return bytes.fromhex(_get(record, "bytes", str, where))
        except ValueError:
            raise FormatError(f'{where}: "bytes" is no hexadecimal text') from None
    numbers = {"zeros": 0, "seed": 0, "constant": 1, "uniform": 2, "normal": 2}
    if kind not in numbers:
        raise FormatError(f'{where}: unknown init "{kind}"; need one of {", ".join(numbers)}, data')
    return (kind, *(float(_get(record, key, (int, float), where)) for key in "ab"[: numbers[kind]]))


def read_graph(text: str | bytes, strict: bool) -> Graph:
    """Rebuilds a graph from JSON text; FormatError for whatever is wrong with it."""
    if not isinstance(text, (str, bytes, bytearray)):
        raise FormatError(f"from_json: got {type(text).__name__}; need the text of a graph")
    if len(text) > _MAX_GRAPH:
        raise FormatError(f"from_json: {len(text)} bytes; need at most {_MAX_GRAPH}")
    try:
        file = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise FormatError("from_json: nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"from_json: no JSON text: {error}") from None
    name = _get(file, "graph", str, "from_json")
    version = _get(file, "version", int, "from_json", 1)
    if version != 1:
        raise FormatError(f"from_json: version {version} is newer than this build reads; need 1")
    try:
        return _read(file, name, strict)
    except (TypeError, OverflowError, UnicodeError) as error:
        raise FormatError(f"from_json: {error}") from None


def _read(file: Any, name: str, strict: bool) -> Graph:
    reader = GraphReader(name, strict)
    values = _get(file, "values", dict, "from_json")
    nodes = _get(file, "nodes", list, "from_json")
    produced = {
        id
        for node in nodes
        if isinstance(node, dict) and isinstance(node.get("outputs"), list)
        for id in node["outputs"]
        if isinstance(id, int)
    }
    for index in range(len(values)):
        where = f"values[{index}]"
        record = values.get(str(index))
        if record is None:
            raise FormatError(f"{where}: missing; need ids 0 to {len(values) - 1} without gaps")
        value_name = _get(record, "name", str, where)
        role = _get(record, "role", str, where, None)
        if role is None:
            role = "temp" if index in produced else _SEED_ROLES.get(value_name, "temp")
            value_name = f"{value_name}@{index}" if role != "temp" else value_name
        reader.value(
            _id(record, "id", where),
            value_name,
            _get(record, "dtype", str, where),
            _ints(record, "shape", where),
            role,
            _read_init(_get(record, "init", dict, where, None), where),
            _id(record, "moment_of", where, -1),
            _id(record, "slot", where, 0),
        )
    for index, node in enumerate(nodes):
        where = f"nodes[{index}]"
        if _id(node, "id", where, index) != index:
            raise FormatError(f"{where}: id is {node['id']}; need ids 0, 1, 2, ... in order")
        ids = [_ints(node, key, where) for key in ("inputs", "outputs")]
        if any(not -(2**31) <= id < 2**31 for one in ids for id in one):
            raise FormatError(f"{where}: names an id beyond 2**31")
        attrs = _get(node, "attrs", dict, where, {})
        for key, attr in attrs.items():
            if not isinstance(attr, (bool, int, float, str, list)):
                raise FormatError(f'{where}: attribute "{key}" is a {type(attr).__name__}')
            if isinstance(attr, list):
                _ints(attrs, key, where)
            elif isinstance(attr, int) and not -(2**63) <= attr < 2**63:
                raise FormatError(f'{where}: attribute "{key}" does not fit 64 bits')
        op, line = _get(node, "op", str, where), _get(node, "where", str, where, "")
        reader.node(op, ids[0], ids[1], attrs, _id(node, "grad_of", where, -1), line)
    for record in _get(file, "outputs", list, "from_json", []):
        keep = _id(record, "keep", "outputs", 1)
        reader.output(_get(record, "name", str, "outputs"), _id(record, "value", "outputs"), keep)
    for record in _get(file, "assigns", list, "from_json", []):
        reader.assign(_id(record, "target", "assigns"), _id(record, "source", "assigns"))
    for record in _get(file, "gradients", list, "from_json", []):
        loss, value, grad = (_id(record, key, "gradients") for key in ("loss", "value", "grad"))
        reader.gradient(loss, value, grad, _id(record, "seed", "gradients", -1))
    return reader.finish()


# ---- safetensors: 8-byte header length, JSON header, then the tensors without gaps

_DTYPES = {
    "F32": "float32",
    "F64": "float64",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "BOOL": "bool",
}
_CODES = {name: code for code, name in _DTYPES.items()}
_SIZES = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "BOOL": 1}
_MAX_HEADER = 100 << 20


def write_tensors(path: str | os.PathLike, tensors: Mapping[str, tuple[str, Any]]) -> None:
    """Writes name -> (dtype, raw array) as safetensors: to a temporary file, then renamed."""
    header: dict[str, Any] = {"__metadata__": {"format": "aicf", "version": "1"}}
    blobs, offset = [], 0
    for name, (dtype, array) in tensors.items():
        if name == "__metadata__":
            raise GraphError(
                f'save {os.fspath(path)!r}: the name "{name}" is safetensors\'s own; need another'
            )
        blob = np.ascontiguousarray(array).tobytes()
        ends = [offset, offset + len(blob)]
        header[name] = {"dtype": _CODES[dtype], "shape": list(array.shape), "data_offsets": ends}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    directory = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=".aicf-", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for blob in blobs:
                file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    directory_fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(directory_fd)  # the rename itself
    finally:
        os.close(directory_fd)


def read_tensors(path: str | os.PathLike) -> dict[str, tuple[str, np.ndarray]]:
    """Reads safetensors as name -> (dtype, array); bfloat16 comes as its uint16 bits."""
    with open(path, "rb") as file:
        data = file.read()
    where = f"load {os.fspath(path)!r}"
    if len(data) < 8:
        raise FormatError(f"{where}: {len(data)} bytes; need a header")
    (length,) = struct.unpack_from("<Q", data)
    if length > min(_MAX_HEADER, len(data) - 8):
        raise FormatError(f"{where}: header of {length} bytes in a file of {len(data)}")
    try:
        header = json.loads(data[8 : 8 + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: broken header: {error}") from None
    if not isinstance(header, dict):
        raise FormatError(f"{where}: the header is no object")
    header.pop("__metadata__", None)
    body, result, covered = memoryview(data)[8 + length :], {}, []
    for name, record in header.items():
        at = f'{where}: tensor "{name}"'
        code = _get(record, "dtype", str, at)
        if code not in _SIZES:
            raise FormatError(f"{at}: unknown dtype {code!r}; need one of {', '.join(_SIZES)}")
        shape, ends = _ints(record, "shape", at), _ints(record, "data_offsets", at)
        count = 1
        for size in shape:
            count *= size
        if len(shape) > 8 or min(shape, default=0) < 0 or len(ends) != 2:
            raise FormatError(f"{at}: shape {shape}, data_offsets {ends}")
        begin, end = ends
        if not 0 <= begin <= end <= len(body) or end - begin != count * _SIZES[code]:
            raise FormatError(f"{at}: bytes {begin} to {end} do not hold {code}{shape}")
        covered.append((begin, end))
        raw = "uint16" if code == "BF16" else _DTYPES[code]
        try:
            array = np.frombuffer(body[begin:end], dtype=raw).reshape(shape)
        except (ValueError, OverflowError):  # without elements, yet beyond what NumPy can index
            raise FormatError(f"{at}: shape {shape} is too large") from None
        if code == "BOOL" and (array.view(np.uint8) > 1).any():
            raise FormatError(f"{at}: a bool byte is neither 0 nor 1")
        result[name] = (_DTYPES[code], array)
    position = 0
    for begin, end in sorted(covered):
        if begin != position:
            raise FormatError(f"{where}: tensors overlap or leave a gap at byte {position}")
        position = end
    if position != len(body):
        raise FormatError(f"{where}: {len(body) - position} bytes belong to no tensor")
    return result
