"""A namespace of the Array API standard whose functions each compile and run a graph of aicf.

For the standard's public test suite, which wants arrays that hold data: storage, printing, Python
numbers and the standard's rules of dtypes, which aicf does not have, are NumPy's; what is computed
is aicf's. `array_api` runs the suite.
"""

import builtins
import math
import types

import aicf
import numpy as np

__array_api_version__ = "2024.12"
__version__ = aicf.__version__
e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
bool = np.dtype("bool")  # noqa: A001
uint8, int8, int16 = np.dtype("uint8"), np.dtype("int8"), np.dtype("int16")
int32, int64 = np.dtype("int32"), np.dtype("int64")
float32, float64 = np.dtype("float32"), np.dtype("float64")


class Array:
    """Data, and functions of it."""

    __array_priority__ = 100

    def __init__(self, data):
        self.data = np.asarray(data)
        if self.data.dtype.name not in DTYPES:
            raise TypeError(f"no dtype {self.data.dtype}")

    dtype = property(lambda self: self.data.dtype)
    shape = property(lambda self: self.data.shape)
    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)
    device = property(lambda self: "cpu")
    T = property(lambda self: matrix_transpose(self) if self.ndim == 2 else _refuse("T of rank 2"))
    mT = property(lambda self: matrix_transpose(self))

    def __array_namespace__(self, api_version=None):
        import array_namespace

        return array_namespace

    def __repr__(self):
        return f"Array({self.data!r})"

    def _scalar(self, kind, *kinds):
        if self.ndim or self.dtype.kind not in kinds:
            raise TypeError(f"{kind.__name__} of {self!r}")
        return kind(self.data[()])

    def __bool__(self):
        return self._scalar(builtins.bool, "b", "i", "u", "f")

    def __int__(self):
        return self._scalar(int, "b", "i", "u", "f")

    def __float__(self):
        return self._scalar(float, "b", "i", "u", "f")

    def __complex__(self):
        return self._scalar(complex, "b", "i", "u", "f")

    def __index__(self):
        return self._scalar(int, "i", "u")

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return (self[i] for i in range(len(self.data)))

    def __dlpack__(self, /, *, stream=None, max_version=None, dl_device=None, copy=None):
        options = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self.data.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def to_device(self, device, /, *, stream=None):
        if device != "cpu":
            raise ValueError(device)
        return self

    def __getitem__(self, key):
        keys = key if isinstance(key, tuple) else (key,)
        if builtins.any(isinstance(k, (Array, np.ndarray)) for k in keys):
            return _indexed(self, keys)
        return _run(lambda x: x[key], self)

    def __setitem__(self, key, value):
        """Arrays of a graph are never written to; the suite fills its own by this."""
        key = tuple(k.data if isinstance(k, Array) else k for k in _tuple(key))
        value = value.data if isinstance(value, Array) else value
        if np.result_type(self.dtype, value) != self.dtype:
            raise TypeError(f"{value!r} put into {self.dtype}")
        self.data[key] = value


def _tuple(x):
    return x if isinstance(x, tuple) else (x,)


def _refuse(why):
    raise NotImplementedError(why)


def _compiled(fn, kinds):
    g = aicf.Graph("call")
    values = [g.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(kinds)]
    result = fn(*values)
    several = isinstance(result, (list, tuple))
    outputs = list(result) if several else [result]
    for i, y in enumerate(outputs):
        g.output(f"y{i}", y)
    return (g.compile(device="cpu") if outputs else None), several, len(outputs)


def _run(fn, *arrays):
    """fn of the arrays as Values, compiled and run."""
    for x in arrays:
        if not isinstance(x, Array):
            raise TypeError(f"{x!r} is no array")
    step, several, count = _compiled(fn, [(x.shape, x.dtype.name) for x in arrays])
    if step is None:
        return []
    out = step(**{f"x{i}": x.data for i, x in enumerate(arrays)})
    results = [Array(out[f"y{i}"].numpy()) for i in range(count)]
    return results if several else results[0]


def _indexed(x, keys):
    """Masks, and arrays of integers: places in the flattened array, taken."""
    given = tuple(k.data if isinstance(k, Array) else k for k in keys)
    places = np.arange(x.size).reshape(x.shape)[given]
    return _run(lambda v, i: aicf.take(v.reshape((-1,)), i), x, Array(places))


# ---- dtypes


def result_type(*given):
    arrays = [x.dtype if isinstance(x, Array) else x for x in given]
    dtypes = [x for x in arrays if isinstance(x, np.dtype)]
    numbers = [x for x in arrays if not isinstance(x, np.dtype)]
    if not dtypes:
        raise TypeError("no array or dtype")
    kinds = {"iu" if d.kind in "iu" else d.kind for d in dtypes}
    if len(kinds) > 1:
        raise TypeError(f"{dtypes} have no common dtype")
    result = np.result_type(*dtypes)
    for number in numbers:
        whole = "iu" if isinstance(number, int) else "f"
        kind = "b" if isinstance(number, builtins.bool) else whole
        if result.kind not in {"b": "b", "iu": "iuf", "f": "f"}[kind]:
            raise TypeError(f"{number!r} with {result}")
    if result.name not in DTYPES:
        raise TypeError(f"no dtype {result}")
    return result


def can_cast(from_, to, /):
    return np.can_cast(from_.dtype if isinstance(from_, Array) else from_, to)


def isdtype(dtype, kind):
    kinds = {
        "bool": "b",
        "signed integer": "i",
        "unsigned integer": "u",
        "integral": "iu",
        "real floating": "f",
        "complex floating": "c",
        "numeric": "iufc",
    }
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, k) for k in kind)
    return dtype.kind in kinds[kind] if isinstance(kind, str) else dtype == kind


def finfo(type, /):
    info = np.finfo(type.dtype if isinstance(type, Array) else type)
    names = ("eps", "max", "min", "smallest_normal")
    return types.SimpleNamespace(
        bits=info.bits, dtype=info.dtype, **{n: float(getattr(info, n)) for n in names}
    )


def iinfo(type, /):
    info = np.iinfo(type.dtype if isinstance(type, Array) else type)
    return types.SimpleNamespace(
        bits=info.bits, dtype=info.dtype, max=int(info.max), min=int(info.min)
    )


class _Info:
    def capabilities(self):
        return {"boolean indexing": True, "data-dependent shapes": False, "max dimensions": 8}

    def default_device(self):
        return "cpu"

    def devices(self):
        return ["cpu"]

    def default_dtypes(self, *, device=None):
        return {
            "real floating": float64,
            "complex floating": None,
            "integral": int64,
            "indexing": int64,
        }

    def dtypes(self, *, device=None, kind=None):
        every = {name: np.dtype(name) for name in DTYPES}
        return {n: d for n, d in every.items() if kind is None or isdtype(d, kind)}


def __array_namespace_info__():
    return _Info()


def astype(x, dtype, /, *, copy=True, device=None):
    return _run(lambda v: v.cast(dtype.name), x)


def _cast(v, dtype):
    return v if v.dtype == dtype.name else v.cast(dtype.name)


# ---- creation: data comes from NumPy


def asarray(obj, /, *, dtype=None, device=None, copy=None):
    data = obj.data if isinstance(obj, Array) else _plain(obj)
    if isinstance(obj, (list, tuple)) and dtype is None:
        data = np.asarray(data)
    made = np.array(data, dtype=dtype, copy=copy)
    return Array(made)


def _plain(obj):
    if isinstance(obj, (list, tuple)):
        return [_plain(x) for x in obj]
    return obj.data[()] if isinstance(obj, Array) else obj


def from_dlpack(x, /, *, device=None, copy=None):
    return Array(np.from_dlpack(x, **({} if copy is None else {"copy": copy})))


def arange(start, /, stop=None, step=1, *, dtype=None, device=None):
    start, stop = (0, start) if stop is None else (start, stop)
    return Array(np.arange(start, stop, step, dtype=dtype))


def empty(shape, *, dtype=None, device=None):
    return Array(np.zeros(shape, dtype or float64))


def zeros(shape, *, dtype=None, device=None):
    return Array(np.zeros(shape, dtype or float64))


def ones(shape, *, dtype=None, device=None):
    return Array(np.ones(shape, dtype or float64))


def full(shape, fill_value, *, dtype=None, device=None):
    fill_value = fill_value.data[()] if isinstance(fill_value, Array) else fill_value
    return Array(np.full(shape, fill_value, dtype))


def eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None):
    return Array(np.eye(n_rows, n_cols, k, dtype or float64))


def linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True):
    return Array(np.linspace(start, stop, num, dtype=dtype or float64, endpoint=endpoint))


def zeros_like(x, /, *, dtype=None, device=None):
    return _run(lambda v: aicf.zeros_like(v, (dtype or x.dtype).name), x)


def ones_like(x, /, *, dtype=None, device=None):
    return _run(lambda v: aicf.ones_like(v, (dtype or x.dtype).name), x)


empty_like = zeros_like


def full_like(x, /, fill_value, *, dtype=None, device=None):
    dtype = dtype or x.dtype
    if isinstance(fill_value, Array):
        return broadcast_to(astype(fill_value, dtype), x.shape)
    if dtype.kind == "b":
        return _run(lambda v: aicf.full_like(v, int(fill_value), "int32").cast("bool"), x)
    return _run(lambda v: aicf.full_like(v, fill_value, dtype.name), x)


def tril(x, /, *, k=0):
    return _run(lambda v: aicf.tril(v, k), x)


def triu(x, /, *, k=0):
    return _run(lambda v: aicf.triu(v, k), x)


def meshgrid(*arrays, indexing="xy"):
    dtype = result_type(*arrays) if arrays else None
    return _run(lambda *vs: aicf.meshgrid([_cast(v, dtype) for v in vs], indexing), *arrays)


# ---- elements


def _unary(name, fn=None, kinds="biuf"):
    fn = fn or getattr(aicf, name)

    def call(x, /):
        if x.dtype.kind not in kinds:
            raise TypeError(f"{name} of {x.dtype}")
        return _run(fn, x)

    call.__name__ = name
    return call


for _name in (
    "acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 reciprocal sin sinh "
    "sqrt tan tanh"
).split():
    globals()[_name] = _unary(_name, kinds="f")
for _name in "ceil floor isfinite isinf isnan round sign square trunc abs".split():
    globals()[_name] = _unary(_name, kinds="iuf")
signbit = _unary("signbit", kinds="f")
negative = _unary("negative", aicf.neg, "iuf")
positive = _unary("positive", lambda v: v, "iuf")
logical_not = _unary("logical_not", kinds="b")
bitwise_invert = _unary("bitwise_invert", kinds="biu")
real = _unary("real", lambda v: v, "iuf")
conj = _unary("conj", lambda v: v, "iuf")


def _pair(x1, x2):
    """Both as arrays of one dtype."""
    if not isinstance(x1, Array) and not isinstance(x2, Array):
        raise TypeError("need an array")
    dtype = result_type(x1, x2)
    x1, x2 = (x if isinstance(x, Array) else Array(np.asarray(x, dtype)) for x in (x1, x2))
    return x1, x2, dtype


def _binary(name, fn, kinds="biuf"):
    def call(x1, x2, /):
        x1, x2, dtype = _pair(x1, x2)
        if dtype.kind not in kinds:
            raise TypeError(f"{name} of {dtype}")
        return _run(lambda a, b: fn(_cast(a, dtype), _cast(b, dtype)), x1, x2)

    call.__name__ = name
    return call


for _name, _fn, _kinds in (
    ("add", aicf.add, "iuf"),
    ("subtract", aicf.sub, "iuf"),
    ("multiply", aicf.mul, "iuf"),
    ("divide", aicf.div, "f"),
    ("pow", aicf.pow, "iuf"),
    ("floor_divide", aicf.floor_divide, "iuf"),
    ("remainder", aicf.remainder, "iuf"),
    ("atan2", aicf.atan2, "f"),
    ("copysign", aicf.copysign, "f"),
    ("hypot", aicf.hypot, "f"),
    ("logaddexp", aicf.logaddexp, "f"),
    ("maximum", aicf.maximum, "iuf"),
    ("minimum", aicf.minimum, "iuf"),
    ("bitwise_and", aicf.bitwise_and, "biu"),
    ("bitwise_or", aicf.bitwise_or, "biu"),
    ("bitwise_xor", aicf.bitwise_xor, "biu"),
    ("bitwise_left_shift", aicf.bitwise_left_shift, "iu"),
    ("bitwise_right_shift", aicf.bitwise_right_shift, "iu"),
    ("logical_and", aicf.logical_and, "b"),
    ("logical_or", aicf.logical_or, "b"),
    ("logical_xor", aicf.logical_xor, "b"),
    ("equal", aicf.equal, "biuf"),
    ("not_equal", aicf.not_equal, "biuf"),
    ("less", aicf.less, "iuf"),
    ("less_equal", aicf.less_equal, "iuf"),
    ("greater", aicf.greater, "iuf"),
    ("greater_equal", aicf.greater_equal, "iuf"),
):
    globals()[_name] = _binary(_name, _fn, _kinds)


def clip(x, /, min=None, max=None):
    if x.dtype.kind not in "iuf":
        raise TypeError(f"clip of {x.dtype}")
    y = x
    for bound, limit in ((min, aicf.maximum), (max, aicf.minimum)):
        if bound is None:
            continue
        if isinstance(bound, Array):
            y = _run(lambda a, b, f=limit: f(a, _cast(b, x.dtype)), y, bound)
        else:
            y = _run(lambda a, f=limit, b=bound: f(a, b), y)
    return y


def where(condition, x1, x2, /):
    x1, x2, dtype = _pair(x1, x2)
    return _run(lambda c, a, b: aicf.where(c, _cast(a, dtype), _cast(b, dtype)), condition, x1, x2)


def _operators():
    named = {
        "add": "add",
        "sub": "subtract",
        "mul": "multiply",
        "truediv": "divide",
        "floordiv": "floor_divide",
        "mod": "remainder",
        "pow": "pow",
        "and": "bitwise_and",
        "or": "bitwise_or",
        "xor": "bitwise_xor",
        "lshift": "bitwise_left_shift",
        "rshift": "bitwise_right_shift",
        "matmul": "matmul",
    }
    for short, name in named.items():
        fn = globals()[name]

        def plain(self, other, /, fn=fn):
            if not isinstance(other, (Array, builtins.bool, int, float)):
                return NotImplemented
            return fn(self, other)

        def turned(self, other, /, fn=fn):
            return fn(other, self)

        def in_place(self, other, /, fn=fn):
            result = fn(self, other)
            if result.dtype != self.dtype or result.shape != self.shape:
                raise TypeError("in place: another dtype or shape")
            self.data = result.data
            return self

        setattr(Array, f"__{short}__", plain)
        setattr(Array, f"__r{short}__", turned)
        setattr(Array, f"__i{short}__", in_place)
    compared = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                "gt": "greater", "ge": "greater_equal"}  # fmt: skip
    for short, name in compared.items():
        fn = globals()[name]
        setattr(Array, f"__{short}__", lambda self, other, /, fn=fn: fn(self, other))
    single = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}
    for short, name in single.items():
        fn = globals()[name]
        setattr(Array, f"__{short}__", lambda self, /, fn=fn: fn(self))
    Array.__hash__ = None


# ---- reductions


def _wide(dtype, given):
    """Sums of small integers have the default integer type."""
    if given is not None:
        return given
    return int64 if dtype.kind in "i" else dtype


def _axes_of(axis):
    return list(axis) if isinstance(axis, tuple) else axis


def _reduction(name, fn, kinds="iuf", wide=False):
    def call(x, /, *, axis=None, keepdims=False):
        if x.dtype.kind not in kinds:
            raise TypeError(f"{name} of {x.dtype}")
        return _run(lambda v: fn(v, _axes_of(axis), keepdims), x)

    call.__name__ = name
    return call


max, min = _reduction("max", aicf.max), _reduction("min", aicf.min)  # noqa: A001
mean = _reduction("mean", aicf.mean, "f")
all, any = _reduction("all", aicf.all, "biuf"), _reduction("any", aicf.any, "biuf")  # noqa: A001
count_nonzero = _reduction("count_nonzero", aicf.count_nonzero, "biuf")


def _summed(name, fn):
    def call(x, /, *, axis=None, dtype=None, keepdims=False):
        if x.dtype.kind not in "iuf":
            raise TypeError(f"{name} of {x.dtype}")
        to = _wide(x.dtype, dtype)
        return _run(lambda v: fn(_cast(v, to), _axes_of(axis), keepdims), x)

    call.__name__ = name
    return call


sum, prod = _summed("sum", aicf.sum), _summed("prod", aicf.prod)  # noqa: A001


def var(x, /, *, axis=None, correction=0.0, keepdims=False):
    return _run(lambda v: aicf.var(v, _axes_of(axis), correction, keepdims), x)


def std(x, /, *, axis=None, correction=0.0, keepdims=False):
    return _run(lambda v: aicf.std(v, _axes_of(axis), correction, keepdims), x)


def argmax(x, /, *, axis=None, keepdims=False):
    return _run(lambda v: aicf.argmax(v, axis, keepdims), x)


def argmin(x, /, *, axis=None, keepdims=False):
    return _run(lambda v: aicf.argmin(v, axis, keepdims), x)


def _cumulative(name, fn, first):
    def call(x, /, *, axis=None, dtype=None, include_initial=False):
        if x.dtype.kind not in "iuf":
            raise TypeError(f"{name} of {x.dtype}")
        if axis is None and x.ndim != 1:
            raise ValueError("axis")
        to, at = _wide(x.dtype, dtype), 0 if axis is None else axis

        def values(v):
            y = fn(_cast(v, to), at)
            if include_initial:
                widths = [(int(d == at % v.ndim), 0) for d in range(v.ndim)]
                y = aicf.pad(y, widths, first)
            return y

        return _run(values, x)

    call.__name__ = name
    return call


cumulative_sum = _cumulative("cumulative_sum", aicf.cumsum, 0)
cumulative_prod = _cumulative("cumulative_prod", aicf.cumprod, 1)


def diff(x, /, *, axis=-1, n=1, prepend=None, append=None):
    given = [v for v in (prepend, x, append) if v is not None]
    if n == 0:
        return x
    return _run(lambda *vs: aicf.diff(aicf.concat(list(vs), axis), n, axis), *given)


# ---- order and indices


def sort(x, /, *, axis=-1, descending=False, stable=True):
    return _run(lambda v: aicf.sort(v, axis, descending), x)


def argsort(x, /, *, axis=-1, descending=False, stable=True):
    return _run(lambda v: aicf.argsort(v, axis, descending), x)


def searchsorted(x1, x2, /, *, side="left", sorter=None):
    if not isinstance(x2, Array):
        x2 = Array(np.asarray(x2, x1.dtype))
    dtype = result_type(x1, x2)
    given = [x1, x2] + ([] if sorter is None else [sorter])

    def places(s, v, *order):
        s = aicf.take(s, order[0]) if order else s
        return aicf.searchsorted(_cast(s, dtype), _cast(v, dtype), side)

    return _run(places, *given)


def take(x, indices, /, *, axis=None):
    at = 0 if axis is None else axis
    n = x.shape[at]
    return _run(lambda v, i: aicf.take(v, aicf.where(i < 0, i + n, i), at), x, _signed(indices))


def take_along_axis(x, indices, /, *, axis=-1):
    n = x.shape[axis]
    return _run(
        lambda v, i: aicf.take_along_axis(v, aicf.where(i < 0, i + n, i), axis), x, _signed(indices)
    )


def _signed(indices):
    return astype(indices, int64) if indices.dtype.itemsize < 4 else indices


# ---- shapes


def broadcast_arrays(*arrays):
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def broadcast_to(x, /, shape):
    return _run(lambda v: aicf.broadcast_to(v, shape), x)


def concat(arrays, /, *, axis=0):
    dtype = result_type(*arrays)

    def joined(*vs):
        vs = [_cast(v, dtype) for v in vs]
        return aicf.concat([v.reshape((-1,)) for v in vs] if axis is None else vs, axis or 0)

    return _run(joined, *arrays)


def stack(arrays, /, *, axis=0):
    dtype = result_type(*arrays)
    return _run(lambda *vs: aicf.stack([_cast(v, dtype) for v in vs], axis), *arrays)


def expand_dims(x, /, axis):
    axes = _tuple(axis)
    rank = x.ndim + len(axes)
    if builtins.any(not -rank <= a < rank for a in axes):
        raise IndexError(f"axis {axis} of rank {rank}")

    def wider(v):
        for a in sorted(a % rank for a in axes):
            v = aicf.expand_dims(v, a)
        return v

    return _run(wider, x)


def squeeze(x, /, axis):
    return _run(lambda v: aicf.squeeze(v, _axes_of(axis)), x)


def flip(x, /, *, axis=None):
    return _run(lambda v: aicf.flip(v, _axes_of(axis)), x)


def roll(x, /, shift, *, axis=None):
    return _run(lambda v: aicf.roll(v, _axes_of(shift), _axes_of(axis)), x)


def moveaxis(x, source, destination, /):
    return _run(lambda v: aicf.moveaxis(v, _axes_of(source), _axes_of(destination)), x)


def permute_dims(x, /, axes):
    return _run(lambda v: aicf.permute(v, axes), x)


def reshape(x, /, shape, *, copy=None):
    return _run(lambda v: aicf.reshape(v, shape), x)


def tile(x, repetitions, /):
    return _run(lambda v: aicf.tile(v, repetitions), x)


def repeat(x, repeats, /, *, axis=None):
    if isinstance(repeats, Array) and repeats.size == 1:
        repeats = int(repeats.data.reshape(()))
    if not isinstance(repeats, Array):
        return _run(lambda v: aicf.repeat(v, repeats, axis), x)
    flat = reshape(x, (-1,)) if axis is None else x
    at = axis or 0
    places = Array(np.repeat(np.arange(flat.shape[at]), repeats.data))
    return _run(lambda v, i: aicf.take(v, i, at), flat, places)


def unstack(x, /, *, axis=0):
    return tuple(_run(lambda v: aicf.unstack(v, axis), x))


# ---- products


def matmul(x1, x2, /):
    dtype = result_type(x1, x2)
    return _run(lambda a, b: aicf.matmul(_cast(a, dtype), _cast(b, dtype)), x1, x2)


def matrix_transpose(x, /):
    return _run(lambda v: aicf.transpose(v, -1, -2), x)


def tensordot(x1, x2, /, *, axes=2):
    dtype = result_type(x1, x2)
    axes = axes if isinstance(axes, int) else [list(a) for a in axes]
    return _run(lambda a, b: aicf.tensordot(_cast(a, dtype), _cast(b, dtype), axes), x1, x2)


def vecdot(x1, x2, /, *, axis=-1):
    dtype = result_type(x1, x2)
    return _run(lambda a, b: aicf.vecdot(_cast(a, dtype), _cast(b, dtype), axis), x1, x2)


class linalg:  # noqa: N801
    """The extension, but for decompositions."""

    matmul, matrix_transpose = staticmethod(matmul), staticmethod(matrix_transpose)
    tensordot, vecdot = staticmethod(tensordot), staticmethod(vecdot)

    @staticmethod
    def cross(x1, x2, /, *, axis=-1):
        x1, x2, dtype = _pair(x1, x2)
        if axis < -builtins.min(x1.ndim, x2.ndim) or axis >= 0:
            raise ValueError(f"axis {axis}")

        def crossed(a, b):
            a, b = aicf.broadcast_arrays([_cast(a, dtype), _cast(b, dtype)])
            return aicf.cross(a, b, axis)

        return _run(crossed, x1, x2)

    @staticmethod
    def outer(x1, x2, /):
        dtype = result_type(x1, x2)
        return _run(lambda a, b: aicf.outer(_cast(a, dtype), _cast(b, dtype)), x1, x2)

    @staticmethod
    def diagonal(x, /, *, offset=0):
        return _run(lambda v: aicf.diagonal(v, offset), x)

    @staticmethod
    def trace(x, /, *, offset=0, dtype=None):
        to = _wide(x.dtype, dtype)
        return _run(lambda v: aicf.sum(aicf.diagonal(_cast(v, to), offset), -1), x)

    @staticmethod
    def matrix_power(x, n, /):
        return _run(lambda v: aicf.matrix_power(v, n), x)

    @staticmethod
    def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
        return _run(lambda v: aicf.vector_norm(v, _axes_of(axis), keepdims, ord), x)

    @staticmethod
    def matrix_norm(x, /, *, keepdims=False, ord="fro"):
        def norm(v):
            if ord == "fro":
                return aicf.vector_norm(v, [-2, -1], keepdims)
            if ord in (1, -1, inf, -inf):
                over, among = (-2, -1) if builtins.abs(ord) == 1 else (-1, -2)
                sums = aicf.sum(aicf.abs(v), over, True)
                y = (aicf.max if ord > 0 else aicf.min)(sums, among, True)
                return y if keepdims else aicf.squeeze(y, [-2, -1])
            raise aicf.Unsupported(f"matrix_norm: ord is {ord}; need singular values")

        return _run(norm, x)


_operators()
