"""Files: graphs as JSON, state as safetensors. Nothing here runs code from a file."""

from __future__ import annotations

import json
import math
import os
import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ._core import DTypeError, FormatError, Graph, GraphError, GraphReader, ShapeError
from .files import Source, read_whole, shown, write_whole
from .json_text import MOST_RECORD, JsonText

_MAX_GRAPH = 1 << 28  # bytes of JSON text
_MOST_BODIES = 8
_MAX_MESSAGE = 2000  # characters of an error about a file
_SEED_ROLES = {  # files written before roles existed name their leaves so
    "x": "input",
    "t": "input",
    "W": "param",
    "b": "param",
    "step": "state",
    "m": "state",
    "v": "state",
}
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has none


def listed(names: Iterable[Any], most: int = 20) -> str:
    """Names as an error lists them."""
    known = list(names)
    rest = f", and {len(known) - most} more" if len(known) > most else ""
    return "[" + ", ".join(shown(name) for name in known[:most]) + rest + "]"


def read_record(text: str) -> Any:
    """What our own dumps of lowered ops and plans say; numbers that JSON lacks stand there as
    text."""
    if not any(f'"{name}"' in text for name in _NUMBERS):
        return json.loads(text)
    return json.loads(text, object_hook=_with_numbers)


def _with_numbers(record: dict[str, Any]) -> dict[str, Any]:
    if "attrs" in record:
        record["attrs"] = {key: _number(value) for key, value in record["attrs"].items()}
    return record


def _number(value: Any) -> Any:
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


def _short(value: Any) -> str:
    return repr(str(value)[:60])


def _get(record: Any, key: str, kind: type | tuple[type, ...], where: str, *default: Any) -> Any:
    if not isinstance(record, dict):
        raise FormatError(f"{where}: is a {type(record).__name__}; need an object")
    value = record.get(key, *default)
    if value is None and default:
        return default[0]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        need = getattr(kind, "__name__", "a number")
        raise FormatError(f'{where}: "{key}" is {_short(value)}; need {need}')
    return value


def _ints(record: Any, key: str, where: str) -> list[int]:
    values = _get(record, key, list, where)
    for value in values:
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise FormatError(f'{where}: "{key}" holds {_short(value)}; need 64-bit integers')
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
        content = _get(record, "bytes", (str, bytes), where)
        try:
            return content if isinstance(content, bytes) else bytes.fromhex(content)
        except ValueError:
            raise FormatError(f'{where}: "bytes" is no hexadecimal text') from None
    numbers = {"zeros": 0, "seed": 0, "constant": 1, "uniform": 2, "normal": 2}
    if kind not in numbers:
        known = ", ".join(numbers)
        raise FormatError(f"{where}: unknown init {shown(kind)}; need one of {known}, data")
    plain = {key: _number(value) for key, value in record.items()}
    return (kind, *(float(_get(plain, key, (int, float), where)) for key in "ab"[: numbers[kind]]))


def read_graph(text: str | bytes | bytearray, strict: bool, depth: int = 0) -> Graph:
    """Rebuilds a graph from JSON text; FormatError for whatever is wrong with it. `depth`: in how
    many others a body is."""
    if not isinstance(text, (str, bytes, bytearray)):
        raise FormatError(f"from_json: got {type(text).__name__}; need the text of a graph")
    if len(text) > _MAX_GRAPH:
        raise FormatError(f"from_json: {len(text)} bytes; need at most {_MAX_GRAPH}")
    try:
        data = text.encode() if isinstance(text, str) else text
        return _read(JsonText(data, "from_json"), strict, depth)
    except (FormatError, GraphError, ShapeError, DTypeError) as error:
        problem = str(error)
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"from_json: {error}"
    if len(problem) > _MAX_MESSAGE:
        problem = f"{problem[:_MAX_MESSAGE]} ... ({len(problem)} characters)"
    raise FormatError(problem)


def read_graph_file(doing: str, path: str | os.PathLike, strict: bool = True) -> Graph:
    """The graph in a file. Raises: FormatError; OSError with the path."""
    return read_graph(read_whole(doing, path, _MAX_GRAPH), strict)


_SECTIONS = ("graph", "version", "values", "nodes", "outputs", "assigns", "gradients")


class _File:
    """A graph's text, where its sections begin, and each of its values."""

    def __init__(self, text: JsonText) -> None:
        self.text = text
        self._places: dict[str, int] = {}
        self._values = np.zeros(0, np.uint32)
        for count, key in enumerate(text.members()):
            if key in self._places or count == 64:
                what = f"the key {shown(key)} stands twice" if count < 64 else "more than 64 keys"
                raise FormatError(f"from_json: {what} at the top")
            self._places[key] = text.at
            if key == "values":
                self._find_values()
            elif key in _SECTIONS:
                text.skip()
            else:
                text.value()  # nothing that is read, yet JSON
        text.end()

    def _find_values(self) -> None:
        """Where the values stand, in the order of their ids."""
        ids, places = array("i"), array("I")
        for key in self.text.members():
            if not (key.isascii() and key.isdigit() and len(key) < 10) or str(int(key)) != key:
                raise FormatError(f"values: the key {shown(key)}; need ids 0, 1, 2, ... as text")
            ids.append(int(key))
            places.append(self.text.at)
            self.text.skip()
        if not ids:
            return
        found = np.zeros(len(ids), np.uint32)  # no value stands at the very beginning
        if max(ids) < len(ids):
            found[ids] = places
        if not found.all():
            raise FormatError(
                f"values[{int(found.argmin())}]: missing, or one stands twice; need ids 0 to "
                f"{len(ids) - 1} without gaps"
            )
        self._values = found

    def value(self, key: str, kind: type, *default: Any) -> Any:
        record = {}
        if key in self._places:
            self.text.at = self._places[key]
            record[key] = self.text.value()
        return _get(record, key, kind, "from_json", *default)

    def records(self, key: str, optional: bool = False) -> Iterator[Any]:
        """The items of a section one by one."""
        if key not in self._places:
            if not optional:
                raise FormatError(f'from_json: "{key}" is missing')
            return
        self.text.at = self._places[key]
        for _ in self.text.items():
            yield self.text.value()  # whoever takes it leaves the text where it is

    def values(self) -> Iterator[Any]:
        """The values in the order of their ids."""
        if "values" not in self._places:
            raise FormatError('from_json: "values" is missing')
        for place in self._values:
            self.text.at = int(place)
            yield self.text.value()

    def produced(self) -> bytearray:
        """1 for each value that some node lists as its output."""
        marks = bytearray(len(self._values))
        for node in self.records("nodes"):
            if isinstance(node, dict) and isinstance(node.get("outputs"), list):
                for id in node["outputs"]:
                    if isinstance(id, int) and 0 <= id < len(marks):
                        marks[id] = 1
        return marks


def _read(text: JsonText, strict: bool, depth: int) -> Graph:
    if depth > _MOST_BODIES:
        raise FormatError(f"from_json: more than {_MOST_BODIES} bodies stand inside each other")
    file = _File(text)
    name, version = file.value("graph", str), file.value("version", int, 1)
    if version != 1:
        raise FormatError(f"from_json: version {version} is newer than this build reads; need 1")
    reader = GraphReader(name, strict)
    produced: bytearray | None = None
    for index, record in enumerate(file.values()):
        where = f"values[{index}]"
        value_name = _get(record, "name", str, where)
        role = _get(record, "role", str, where, None)
        if role is None:
            if produced is None:
                produced = file.produced()
            role = "temp" if produced[index] else _SEED_ROLES.get(value_name, "temp")
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
    for index, node in enumerate(file.records("nodes")):
        where = f"nodes[{index}]"
        if _id(node, "id", where, index) != index:
            raise FormatError(f"{where}: id is {node['id']}; need ids 0, 1, 2, ... in order")
        ids = [_ints(node, key, where) for key in ("inputs", "outputs")]
        if any(not -(2**31) <= id < 2**31 for one in ids for id in one):
            raise FormatError(f"{where}: names an id beyond 2**31")
        attrs = _get(node, "attrs", dict, where, {})
        for key, attr in attrs.items():
            if key == "body" and isinstance(attr, dict):
                attrs[key] = read_graph(json.dumps(attr), strict, depth + 1)
                continue
            if not isinstance(attr, (bool, int, float, str, list)):
                kind = type(attr).__name__
                raise FormatError(f"{where}: attribute {shown(key)} is a {kind}")
            if isinstance(attr, list):
                _ints(attrs, key, where)
            elif isinstance(attr, int) and not -(2**63) <= attr < 2**63:
                raise FormatError(f"{where}: attribute {shown(key)} does not fit 64 bits")
        attrs = {key: _number(attr) for key, attr in attrs.items()}
        op, line = _get(node, "op", str, where), _get(node, "where", str, where, "")
        reader.node(op, ids[0], ids[1], attrs, _id(node, "grad_of", where, -1), line)
    for record in file.records("outputs", optional=True):
        keep = _id(record, "keep", "outputs", 1)
        reader.output(_get(record, "name", str, "outputs"), _id(record, "value", "outputs"), keep)
    for record in file.records("assigns", optional=True):
        reader.assign(_id(record, "target", "assigns"), _id(record, "source", "assigns"))
    for record in file.records("gradients", optional=True):
        loss, value, grad = (_id(record, key, "gradients") for key in ("loss", "value", "grad"))
        reader.gradient(loss, value, grad, _id(record, "seed", "gradients", -1))
    return reader.finish()


# ---- safetensors: 8-byte header length, JSON header, then the tensors without gaps

DTYPES = {
    "F32": "float32",
    "F64": "float64",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
}
_CODES = {name: code for code, name in DTYPES.items()}
_SIZES = {code: 2 if code == "BF16" else np.dtype(name).itemsize for code, name in DTYPES.items()}
_MAX_HEADER = 100_000_000  # bytes, as everywhere else
_MAX_RANK = 8

Types = Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape by name


def _byte_count(code: str, shape: Iterable[int]) -> int | None:
    """Bytes of a tensor; None where a product on the way does not fit 63 bits."""
    count = _SIZES[code]
    for size in shape:
        count *= size
        if count >= 2**63:
            return None
    return count


def _plain(value: Any) -> Any:
    """What JSON holds of arrays of rank 0, in lists and dicts too."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    if type(value) is dict:
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if type(value) is list else value


def _metadata_text(where: str, metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """What a file says of itself: texts as they are, all else as JSON, which "json" lists."""
    texts, written = {"format": "aicf", "version": "1"}, []
    for key, value in ({} if metadata is None else metadata).items():
        if not isinstance(key, str) or key in (*texts, "json"):
            raise GraphError(
                f"{where}: metadata has the key {key!r}; need a str, not format, version or json"
            )
        try:
            value = _plain(value)  # noqa: PLW2901
            text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
            if not isinstance(value, str):
                written.append(key)
                if json.loads(text) != value:
                    raise TypeError("it would come back as another value")
            if len(json.dumps(key + text)) > MOST_RECORD:
                raise ValueError("it could not be read")
            (key + text).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise GraphError(
                f"{where}: metadata {shown(key)} is {_short(value)}: {error}; need what JSON holds"
            ) from None
        texts[key] = text
    if written:
        texts["json"] = json.dumps(written)
    return texts


def write_tensors(
    path: str | os.PathLike,
    types: Types,
    content: Callable[[str], np.ndarray],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a file of safetensors; `content` gives the elements of one at a time, those of a
    bfloat16 as uint16."""
    where, offset = f"save {shown(os.fspath(path), 200)}", 0
    header: dict[str, Any] = {"__metadata__": _metadata_text(where, metadata)}
    for name, (dtype, shape) in types.items():
        if name == "__metadata__":
            raise GraphError(f'{where}: the name "{name}" is safetensors\'s own; need another')
        if len(json.dumps(name)) > MOST_RECORD:
            raise GraphError(f"{where}: the name {shown(name)} could not be read; need a short one")
        size = _byte_count(_CODES[dtype], shape)
        if size is None:
            raise GraphError(f"{where}: {shown(name)} has shape {shape}, which no file can hold")
        ends = [offset, offset + size]
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": ends}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER:
        raise GraphError(f"{where}: names and shapes take {len(text)} bytes; need {_MAX_HEADER}")

    def pieces() -> Iterator[Any]:
        yield struct.pack("<Q", len(text)) + text
        for name in types:
            yield np.ascontiguousarray(content(name)).reshape(-1).view(np.uint8)

    write_whole("save", path, pieces())


class _Header:
    """What a header says. It is checked as a whole, and kept is where each record stands."""

    def __init__(self, text: JsonText, where: str) -> None:
        self._text, self._where = text, where
        self.records: dict[str, int] = {}
        self.metadata_at: int | None = None
        begins, ends = array("q"), array("q")
        for name in text.members():
            at = text.at
            if name == "__metadata__":
                if self.metadata_at is not None:
                    raise FormatError(f"{where}: __metadata__ stands twice")
                self.metadata_at = at if self._pass_metadata(text) else -1
                continue
            _, _, begin, end = self._tensor(name, text.value())
            begins.append(begin)
            ends.append(end)
            if name in self.records:
                raise FormatError(f"{where}: tensor {shown(name)}: the name stands twice")
            self.records[name] = at
        text.end()
        self.bytes = self._check_tiled(begins, ends)

    def tensor(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        """dtype, shape, and between which bytes of the body it lies."""
        self._text.at = self.records[name]
        return self._tensor(name, self._text.value())

    @staticmethod
    def _pass_metadata(text: JsonText) -> bool:
        """Whether there is some; null stands for none."""
        start = text.at
        try:
            for _ in text.members():
                text.skip_text()
        except FormatError:
            text.at = start
            if text.value() is not None:
                raise
            return False
        return True

    def _tensor(self, name: str, record: Any) -> tuple[str, tuple[int, ...], int, int]:
        where = f"{self._where}: tensor {shown(name)}"
        code = _get(record, "dtype", str, where)
        if code not in _SIZES:
            need = ", ".join(_SIZES)
            raise FormatError(f"{where}: unknown dtype {shown(code)}; need one of {need}")
        shape, ends = _ints(record, "shape", where), _ints(record, "data_offsets", where)
        if len(shape) > _MAX_RANK or len(ends) != 2:
            raise FormatError(
                f"{where}: {len(shape)} dimensions and {len(ends)} offsets; need at most "
                f"{_MAX_RANK}, and 2"
            )
        begin, end = ends
        if min(shape, default=0) < 0 or begin < 0:
            raise FormatError(f"{where}: shape {shape}, data_offsets {ends}; need none below 0")
        size = _byte_count(code, shape)
        if size is None:
            raise FormatError(f"{where}: shape {shape} is too large")
        if end - begin != size:
            raise FormatError(f"{where}: bytes {begin} to {end} do not hold {code}{shape}")
        return DTYPES[code], tuple(shape), begin, end

    def _check_tiled(self, begins: array, ends: array) -> int:
        """Bytes of all tensors, which must lie without gap or overlap."""
        first, last = np.array(begins), np.array(ends)
        order = np.lexsort((last, first))
        first, last = first[order], last[order]
        wrong = np.flatnonzero(first[1:] != last[:-1])
        if first.size and first[0] != 0 or wrong.size:
            at = last[wrong[0]] if wrong.size and first[0] == 0 else 0
            raise FormatError(f"{self._where}: tensors overlap or leave a gap at byte {at}")
        return int(last[-1]) if last.size else 0


class TensorFile:
    """A file of safetensors that is sound as a whole: what it lists, and where that lies, which is
    read when it is looked at.

    Raises: FormatError; OSError with the path.
    """

    def __init__(self, path: str | os.PathLike, doing: str) -> None:
        self._source = Source(doing, path)
        try:
            self._read()
        except BaseException:
            self._source.close()
            raise

    def _read(self) -> None:
        source = self._source
        self.where, size = source.where, source.size
        if size < 8:
            raise FormatError(
                f"{self.where}: {size} bytes; need a safetensors file, with its header"
            )
        start = source.read(8)
        (length,) = struct.unpack("<Q", start)
        if length > min(_MAX_HEADER, size - 8):
            told = f"header of {length} bytes in a file of {size}"
            if start.startswith((b"PK\x03\x04", b"\x80")):  # zip, pickle
                told = "it is a zip or a pickle, as torch.save and np.savez write"
            raise FormatError(f"{self.where}: {told}; need a safetensors file")
        self._text = JsonText(source.read(length), self.where)
        self._header = header = _Header(self._text, self.where)
        if header.bytes != size - 8 - length:
            raise FormatError(
                f"{self.where}: {size - 8 - length} bytes after the header; its tensors have "
                f"{header.bytes}"
            )
        self._body = memoryview(source.map())[8 + length :]

    def names(self) -> Collection[str]:
        """Those of all tensors."""
        return self._header.records.keys()

    def type(self, name: str) -> tuple[str, tuple[int, ...]]:
        """dtype and shape."""
        return self._header.tensor(name)[:2]

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._source.close()

    def metadata(self) -> dict[str, Any]:
        """What `write_tensors` was given; of a file of other programs the texts it has."""
        found: dict[str, Any] = {}
        at = self._header.metadata_at
        if at is not None and at >= 0:
            self._text.at = at
            for key in self._text.members():
                found[key] = self._text.text()
        if found.pop("format", None) != "aicf":
            return found
        found.pop("version", None)
        try:
            for key in json.loads(found.pop("json", "[]")):
                found[key] = json.loads(found[key])
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise FormatError(f"{self.where}: metadata that no save has written: {error}") from None
        return found

    def check_unchanged(self) -> None:
        """FormatError when another program has written to the file since it was opened."""
        self._source.check_unchanged()

    def content(self, name: str) -> Any:
        """The elements where they lie in the file, read only: an array, of a bfloat16 the bytes."""
        dtype, shape, begin, end = self._header.tensor(name)
        if dtype == "bfloat16":
            return self._body[begin:end]
        try:
            found = np.frombuffer(self._body[begin:end], dtype=dtype).reshape(shape)
        except (ValueError, OverflowError):  # without elements, yet beyond what NumPy can index
            raise FormatError(f"{self.where}: {shown(name)}: shape {shape} is too large") from None
        if dtype == "bool" and found.view(np.uint8).max(initial=0) > 1:
            raise FormatError(f"{self.where}: {shown(name)}: a bool byte is neither 0 nor 1")
        return found
