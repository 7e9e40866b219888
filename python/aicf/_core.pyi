"""
The compiler and runtime of aicf. Use the package `aicf`, not this module.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy


class Report:
    """What verify() found, line by line."""

    @property
    def ok(self) -> bool:
        """True when no line failed."""

    @property
    def lines(self) -> list[tuple[bool, str]]:
        """Pairs (ok, text)."""

    def __bool__(self) -> bool: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class GraphMark:
    """How much of a graph was built, for `rollback`."""

    @property
    def values(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    @property
    def assigns(self) -> int: ...

    @property
    def gradients(self) -> int: ...

class Stage:
    """A graph before any pass, or after one, and what it costs."""

    @property
    def name(self) -> str: ...

    @property
    def keeps_bits(self) -> bool: ...

    @property
    def text(self) -> str: ...

    @property
    def ops(self) -> int: ...

    @property
    def bytes_moved(self) -> int: ...

    @property
    def flops(self) -> int: ...

    @property
    def peak_bytes(self) -> int: ...

class Graph:
    """The intermediate representation; aicf.Graph is its public face."""

    def __init__(self, name: str) -> None: ...

    @property
    def where(self) -> str: ...

    @where.setter
    def where(self, arg: str, /) -> None: ...

    @property
    def name(self) -> str: ...

    def input(self, arg0: str, arg1: Sequence[int], arg2: str, /) -> int: ...

    def param(self, arg0: str, arg1: Sequence[int], arg2: str, arg3: object, /) -> int: ...

    def state(self, arg0: str, arg1: Sequence[int], arg2: str, arg3: object, /) -> int: ...

    def constant(self, array: object | None, dtype: str | None = None) -> int: ...

    def scalar(self, arg0: str, arg1: float, /) -> int: ...

    def emit(self, op: str, inputs: Sequence[int], attrs: dict = {}, name: str = '') -> list[int]: ...

    def assign(self, arg0: int, arg1: int, /) -> None: ...

    def output(self, arg0: str, arg1: int, arg2: int, /) -> None: ...

    def mark_moment(self, arg0: int, arg1: int, arg2: int, /) -> None: ...

    def mark(self) -> GraphMark: ...

    def rollback(self, arg: GraphMark, /) -> None: ...

    def placeholder(self, arg0: Sequence[int], arg1: str, /) -> int: ...

    def cut_body(self, arg0: str, arg1: GraphMark, arg2: Sequence[int], arg3: Sequence[int], /) -> tuple[Graph, list[int]]: ...

    def append_body(self, arg0: Graph, arg1: Sequence[int], /) -> list[int]: ...

    def results(self) -> list[tuple[list[int], str]]: ...

    def assigned(self, arg: int, /) -> int: ...

    def free_stream(self) -> int: ...

    def content(self, id: int) -> bytes | None:
        """The bytes of a constant, in C order; None of others."""

    def initial_number(self, id: int, said: bool = False) -> float | None:
        """
        What all elements begin with; `said`: none where that is the zero of nothing said.
        """

    def backward(self, loss: int, wrt: Sequence[int], seed: int, record: bool, own_rule: Callable) -> list[int]: ...

    def backward_all(self, results: Sequence[int], seeds: Sequence[int], wrt: Sequence[int]) -> list[int]:
        """Of several results, each with the gradient that reaches it."""

    def reached_params(self, arg: int, /) -> list[int]: ...

    def sources(self, arg0: int, arg1: Sequence[int], arg2: GraphMark, /) -> list[int]: ...

    def find(self, arg: str, /) -> int: ...

    def shape(self, arg: int, /) -> tuple: ...

    def dtype(self, arg: int, /) -> str: ...

    def role(self, arg: int, /) -> str: ...

    def value_name(self, arg: int, /) -> str: ...

    def describe(self, arg: int, /) -> str: ...

    def leaves(self, arg: str, /) -> list[int]: ...

    def verify(self) -> Report: ...

    def to_json(self) -> str: ...

    def op_names(self) -> list[str]: ...

    def nodes_since(self, arg: GraphMark, /) -> str: ...

    def to_text(self) -> str: ...

    def to_dot(self) -> str: ...

    def stages(self, passes: Sequence[str], device: str = 'cpu', math: str = 'fp32') -> list[Stage]: ...

    def lower_text(self, math: str = 'fp32') -> str: ...

    def lower_json(self) -> str: ...

class GraphReader:
    """Rebuilds a graph from the pieces of a file, checking each."""

    def __init__(self, name: str, strict: bool) -> None: ...

    def value(self, id: int, name: str, dtype: str, shape: Sequence[int], role: str, init: object | None, moment_of: int, slot: int) -> None: ...

    def node(self, arg0: str, arg1: Sequence[int], arg2: Sequence[int], arg3: dict, arg4: int, arg5: str, /) -> None: ...

    def output(self, arg0: str, arg1: int, arg2: int, /) -> None: ...

    def assign(self, arg0: int, arg1: int, /) -> None: ...

    def gradient(self, loss: int, value: int, grad: int, seed: int = -1) -> None: ...

    def finish(self) -> Graph: ...

def op_names() -> list[str]:
    """Names of all IR ops."""

def lowered_names() -> list[str]:
    """Names of all lowered ops."""

def pointwise_ops() -> list[str]:
    """
    Names of the IR ops that make one element of one element of each operand.
    """

def op_grad(arg: str, /) -> str:
    """Empty when the op has a gradient, else the written reason why not."""

def pass_names() -> list[str]:
    """The default pass list, in order."""

def narrow_any_size(any: bool) -> bool:
    """
    For tests: whether "mixed" takes products of any size in 16 bits, so that small ones reach these kernels. Returns what it was.
    """

def simplify_rules() -> list[tuple[str, str]]:
    """Name and reason of each rewrite of the pass simplify."""

class Array:
    """
    A tensor that a step hands out: NumPy and DLPack read it. It compares as NumPy's, element by element; bool() needs one element.
    """

    @property
    def shape(self) -> tuple:
        """
        The extent of each axis; of an output that keeps steps, how many it has first.
        """

    @property
    def dtype(self) -> str:
        """
        NumPy's name of it, or "bfloat16"; it equals the dtypes of NumPy, PyTorch and JAX.
        """

    @property
    def device(self) -> str:
        """"cpu" or "cuda:<index>"."""

    @property
    def ndim(self) -> int:
        """How many axes it has."""

    def numpy(self) -> numpy.ndarray:
        """
        A NumPy copy; bfloat16 comes as float32, which is exact. Raises StaleOutput for an output of an earlier step.
        """

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> object: ...

    def _keep(self) -> Array:
        """
        A copy that later runs leave alone, on the step's device and in the order of its work: nothing waits.
        """

    def copy(self) -> Array:
        """An Array that owns a copy in host memory."""

    def item(self, *at: int) -> Any:
        """
        The one element, or that at an index, as a Python number. Raises ShapeError when there are more.
        """

    def __float__(self) -> float: ...

    def __int__(self) -> int: ...

    def __bool__(self) -> bool: ...

    def __index__(self) -> int: ...

    def __round__(self, ndigits: object | None = None) -> Any: ...

    def __getitem__(self, arg: object, /) -> object: ...

    def __setitem__(self, key: object, value: object, /) -> None: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def __copy__(self) -> Array: ...

    def __deepcopy__(self, memo: object) -> Array: ...

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickle keeps: a NumPy array."""

    def __jax_array__(self) -> Any:
        """A copy, on the device of the step."""

    def __repr__(self) -> str: ...

    def __str__(self) -> str: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple: ...

    __dlpack_c_exchange_api__: object

    def __eq__(self, other: object, /) -> Any: ...

    def __ne__(self, other: object, /) -> Any: ...

    def __lt__(self, other: object, /) -> Any: ...

    def __le__(self, other: object, /) -> Any: ...

    def __gt__(self, other: object, /) -> Any: ...

    def __ge__(self, other: object, /) -> Any: ...

    def __add__(self, other: object, /) -> Any: ...

    def __radd__(self, other: object, /) -> Any: ...

    def __sub__(self, other: object, /) -> Any: ...

    def __rsub__(self, other: object, /) -> Any: ...

    def __mul__(self, other: object, /) -> Any: ...

    def __rmul__(self, other: object, /) -> Any: ...

    def __truediv__(self, other: object, /) -> Any: ...

    def __rtruediv__(self, other: object, /) -> Any: ...

    def __floordiv__(self, other: object, /) -> Any: ...

    def __rfloordiv__(self, other: object, /) -> Any: ...

    def __mod__(self, other: object, /) -> Any: ...

    def __rmod__(self, other: object, /) -> Any: ...

    def __divmod__(self, other: object, /) -> Any: ...

    def __rdivmod__(self, other: object, /) -> Any: ...

    def __pow__(self, other: object, /) -> Any: ...

    def __rpow__(self, other: object, /) -> Any: ...

    def __matmul__(self, other: object, /) -> Any: ...

    def __rmatmul__(self, other: object, /) -> Any: ...

    def __and__(self, other: object, /) -> Any: ...

    def __rand__(self, other: object, /) -> Any: ...

    def __or__(self, other: object, /) -> Any: ...

    def __ror__(self, other: object, /) -> Any: ...

    def __xor__(self, other: object, /) -> Any: ...

    def __rxor__(self, other: object, /) -> Any: ...

    def __lshift__(self, other: object, /) -> Any: ...

    def __rlshift__(self, other: object, /) -> Any: ...

    def __rshift__(self, other: object, /) -> Any: ...

    def __rrshift__(self, other: object, /) -> Any: ...

    __hash__: None  # type: ignore[assignment]

    def __neg__(self) -> Any: ...

    def __pos__(self) -> Any: ...

    def __abs__(self) -> Any: ...

    def __invert__(self) -> Any: ...

    def tolist(self) -> Any: ...

    def __contains__(self, element: object, /) -> bool: ...

    def all(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def any(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def argmax(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def argmin(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def argsort(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def astype(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def clip(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def conj(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def cumprod(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def cumsum(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def diagonal(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def dot(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def flatten(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def max(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def mean(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def min(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def nonzero(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def prod(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def ravel(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def repeat(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def reshape(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def round(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def searchsorted(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def squeeze(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def std(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def sum(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def swapaxes(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def take(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def tobytes(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def trace(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def transpose(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def var(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    def view(self, *args: object, **kwargs: object) -> Any:
        """NumPy's, of a copy."""

    @property
    def T(self) -> Any:
        """NumPy's, of a copy."""

    @property
    def flat(self) -> Any:
        """NumPy's, of a copy."""

    @property
    def imag(self) -> Any:
        """NumPy's, of a copy."""

    @property
    def mT(self) -> Any:
        """NumPy's, of a copy."""

    @property
    def real(self) -> Any:
        """NumPy's, of a copy."""

    @property
    def size(self) -> int:
        """How many elements it has."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

class Outputs:
    """The outputs of one run, by name."""

    def __getitem__(self, name: str, /) -> Array: ...

    def __len__(self) -> int: ...

    def __contains__(self, name: object, /) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def _ipython_key_completions_(self) -> list[str]: ...

    def __repr__(self) -> str: ...

    def keys(self) -> list[str]:
        """The names, in the order of the graph."""

    def values(self) -> list[Array]:
        """The Arrays, in the order of the graph."""

    def items(self) -> list[tuple[str, Array]]:
        """Pairs (name, Array), in the order of the graph."""

    def get(self, name: object | None, default: object | None = None) -> object:
        """The Array of that name, or `default`."""

class Trials:
    """The ops of a graph for which a device has several kernels."""

    def __init__(self, graph: Graph, device: str, passes: Sequence[str], math: str, tensor_cores: int) -> None: ...

    @property
    def choices(self) -> list[tuple[str, str, list[str], int, float, int]]:
        """
        Signature, title, kernels, number of ops, operations and bytes of operands.
        """

    def build(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Compiles kernels, by (signature, name), side by side."""

    def foreign(self, signature: str, most: int) -> list[str]:
        """
        Candidates by the device's library, for an op that is a launch of its own; at most so many.
        """

class Step:
    """A compiled step; aicf.Step is its public face."""

    @overload
    def __init__(self, trials: Trials, signature: str, kernel: str, copies: int, share: Sequence[Step]) -> None: ...

    @overload
    def __init__(self, graph: Graph, device: str, seed: int, capture: bool, share: Sequence[Step], passes: Sequence[str], math: str, deterministic: bool, candidates: Mapping[str, str], tensor_cores: int, check_indices: bool, held: Sequence[tuple[Step, Mapping[str, str]]]) -> None: ...

    @overload
    def __init__(self, file: object, where: str, device: object | None, capture: bool, share: Sequence[Step]) -> None: ...

    def _export(self, state: bool) -> list: ...

    def __call__(self, *inputs: object, **named: object) -> Outputs:
        """
        Copies the inputs in, by name or in the order in which the graph made them, runs one step and returns its outputs. stream= (of any framework, or its handle): the step comes after what the stream holds, and what the stream gets later comes after the step; nothing waits on the host.
        """

    def _call_one(self, inputs: tuple, output: object, copy: bool) -> Array:
        """
        The output of a call with these inputs, without the Outputs that hold it.
        """

    def replay(self, n: int = 1, stream: object | None = None) -> Outputs:
        """
        Runs the captured step n times on the inputs as they stand. On a GPU it returns while the last of them run, up to 40 ms of work; Ctrl-C ends it between two steps. stream: as in a call, but for that wait.
        """

    def run_many(self, *inputs: object, **named: object) -> Outputs:
        """
        Calls the step once for each element of a leading axis, which every input given has; outputs are those of the last step, of one that keeps steps those it keeps. The same bits as the calls; Ctrl-C ends it between two steps.
        """

    def run(self, *inputs: object, **named: object) -> Outputs:
        """Runs the same ops one by one, without the captured form."""

    def capture(self) -> None:
        """Builds the replayable form again."""

    def reset(self) -> None:
        """Drops the captured form; state stays."""

    def synchronize(self) -> None:
        """Waits until all enqueued work is done."""

    @property
    def captured(self) -> bool:
        """Whether a captured form is held."""

    @property
    def device(self) -> str:
        """"cpu" or "cuda:<index>"."""

    @property
    def outputs(self) -> Outputs:
        """The outputs of the last step."""

    @property
    def steps_run(self) -> int:
        """Steps run so far."""

    def _profile(self, n: object = 1, stream: object = None) -> tuple[Outputs, bytes, list[str], str]:
        """
        As replay, with each launch timed: the outputs, the times, what timed them and why nothing better did.
        """

    def _profile_call(self, *inputs: object, **named: object) -> tuple[Outputs, bytes, list[str], str]:
        """As a call; what it returns as _profile."""

    def _profile_run(self, *inputs: object, **named: object) -> tuple[Outputs, bytes, list[str], str]:
        """As run; what it returns as _profile."""

    def _launch_sizes(self) -> list[list[int]]: ...

    def _trace(self) -> list[tuple[str, str]]: ...

    def _stages(self) -> list[tuple[str, float]]: ...

    def _plan_text(self) -> str: ...

    def _plan_json(self) -> str: ...

    def _plan_report(self, scratch: Mapping[int, int] = {}) -> Report:
        """
        What the check says of the plan, with the scratch of ops, by number, moved.
        """

    def _leaves(self, arg: str, /) -> list[str]: ...

    def _array(self, arg: str, /) -> Array: ...

    def _storage(self, arg: str, /) -> int: ...

    def _write(self, name: str, tensor: object | None) -> None: ...

    def _read_all(self, arg: Sequence[str], /) -> list[Array]: ...

    def _write_all(self, arg: dict, /) -> None: ...

    def _bind(self, tensors: dict) -> None: ...

class Tap:
    """Values of a step; aicf.watch.Tap is its public face."""

    def __init__(self, step: Step, graph: Graph, mark: GraphMark, values: Sequence[int]) -> None: ...

    def read(self, i: int) -> Array: ...

    @property
    def step(self) -> int: ...

class Trap:
    """Checks of a step; aicf.watch.Trap is its public face."""

    def __init__(self, step: Step, graph: Graph, mark: GraphMark, layers: Sequence[str], indices: bool) -> None: ...

def tap_graph(graph: Graph, values: Sequence[int]) -> Graph:
    """The graph that a tap of these values runs."""

def trap_graph(graph: Graph) -> Graph:
    """The graph that a trap runs."""

def computes_indices(graph: Graph) -> bool:
    """
    Whether a step has to compute what it takes rows by to know that it is in range.
    """

def call_key(args: tuple, named: dict) -> tuple[tuple[object, ...], tuple[object, ...]] | None:
    """
    What a call is recognised by, and its arrays; None where an argument is none.
    """

def op_call(op: str, inputs: object | None, outputs: object | None, attrs: dict, stream: object | None, sync: str) -> str | None:
    """
    Runs one lowered op on the caller's tensors, and says of sync="event" where; aicf.op_call is its public face.
    """

def quick_op_call(checked: object, kind: object, event: object, placed: object) -> object:
    """
    What aicf.op_call is: `checked`, behind a look at what the usual arguments are.
    """

def eager_synchronize(device: str) -> None:
    """Waits for every op_call on the device."""

def eager_close() -> None:
    """
    Gives back what eager calls hold on every device; called when the interpreter ends.
    """

def workspace_bytes(op: str, inputs: Sequence[tuple[Sequence[int], str]], attrs: dict, device: str) -> int:
    """
    Bytes an op borrows during a call; aicf.workspace_bytes is its public face.
    """

def lowered_schema(op: str) -> dict:
    """
    What a lowered op takes and gives: operands, attributes, in-place pairs.
    """

def define_custom(digest: str, name: str, cpu: str, cuda: str, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> None:
    """Makes the sources of a custom op known."""

def set_host_caller(caller: object) -> None:
    """What runs the callbacks of custom ops."""

def cuda_info() -> dict:
    """
    What was found of the NVIDIA driver, NVRTC, devices and the kernel cache on disk.
    """

def cuda_problem() -> str:
    """Why no CUDA device can be used here; empty where one can."""

def clear_cuda_cache() -> int:
    """Removes every compiled kernel on disk; returns how many."""

def load_cached(key: str) -> bytes | None:
    """What the folder of compiled kernels holds under a key."""

def store_cached(key: str, payload: str) -> None:
    """Keeps it there, if it can be."""

def hold_cuda_tracing() -> object:
    """While it lives, what profiles attach to the process stays attached."""

class Nvtx:
    """The ranges of the library of NVTX at a path."""

    def __init__(self, path: str) -> None: ...

    def push(self, name: str) -> None:
        """Begins a range of this thread."""

    def pop(self) -> None:
        """Ends the range begun last."""

def cuda_thresholds() -> list[tuple[str, int, str, int]]:
    """Sizes at which CUDA kernels go another way, as `cpu_thresholds` says."""

def cuda_candidates(graph: Graph, passes: Sequence[str], processors: int = 132, arch: str = 'sm_90a', math: str = 'fp32') -> dict[str, list[str]]:
    """
    The kernels to choose from by op signature, the one chosen by itself first.
    """

def cuda_plan(graph: Graph, passes: Sequence[str], processors: int = 132, arch: str = 'sm_90a', math: str = 'fp32') -> str:
    """The plan of a graph on a GPU, as JSON; needs none."""

def cuda_programs(graph: Graph, passes: Sequence[str], processors: int = 132, arch: str = 'sm_90a', math: str = 'fp32', candidates: Mapping[str, str] = {}) -> list[str]:
    """The CUDA C++ programs of a graph's kernels, one each; needs no GPU."""

def cuda_cubins(programs: Sequence[str], arch: str) -> list[bytes]:
    """Compiles programs with NVRTC, through the cache on disk; needs no GPU."""

def cuda_log(program: str, arch: str) -> str:
    """
    What NVRTC and its assembler say of a program: registers, spills, what is serialized.
    """

def cuda_source(program: str) -> str:
    """
    A program as NVRTC gets it: with what it uses of the sources that it includes.
    """

def set_num_threads(count: int) -> None:
    """
    Use at most `count` threads of the CPU backend; 0 returns to the default.
    """

def cpu_isa() -> str:
    """The instruction set the CPU kernels in use were built for."""

def cpu_memory() -> tuple[int, int]:
    """Bytes that Steps hold in host memory, and the most they ever held."""

def cpu_thresholds() -> list[tuple[str, int, str, int]]:
    """
    Sizes at which CPU kernels go another way: (instruction set, bytes of an element, what is compared, value).
    """

def num_threads() -> int:
    """Threads the CPU backend uses."""

def philox(counter_low: int, counter_high: int, key: int) -> tuple:
    """The four words of Philox-4x32-10, the generator of every random op."""

class Error(Exception): ...

class GraphError(Error, ValueError): ...

class ShapeError(Error, ValueError): ...

class DTypeError(Error, TypeError): ...

class DeviceUnavailable(Error, RuntimeError): ...

class DeviceLost(Error, RuntimeError): ...

class OutOfMemory(Error, MemoryError): ...

class CaptureError(Error, RuntimeError): ...

class StaleOutput(Error, RuntimeError): ...
class BadValue(Error, ValueError):
    kind: str
    node: int | None
    op: str | None
    source: str | None
    layer: str | None
    value: int
    name: str
    index: tuple[int, ...] | None
    number: float | None

class FormatError(Error, ValueError): ...

class Unsupported(Error, NotImplementedError): ...

class InternalError(Error, RuntimeError): ...
