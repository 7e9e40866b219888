"""What people who know other libraries look for, and what it is here."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .arguments import is_it

_ARRAY = "a NumPy array is a constant: beside Values it is taken as it is, Graph.constant makes one"
_NOT_NEEDED = "it is not needed: minimize, backward and grad alone make gradients"
_NO_DATA = "it has no data while the graph is built: make it an output"
_DEVICE = "the device is said where it is compiled: device= of function and Graph.compile"
_DEVICE_OF_VALUES = "all Values of a step lie where it is compiled for: device= of Graph.compile"
_SIZE_OF_DATA = "its result's size would depend on data: aicf.where and aicf.one_hot keep sizes"
_UNCHANGED = "it is not needed: a Value never changes and is contiguous"
_SEED = "seeds are said where they count: seed= of function and Graph.compile, aicf.nn.seed"

# A name of this library, or a text.
_MEANT = {
    **dict.fromkeys(("cat", "concatenate"), "concat"),
    **dict.fromkeys(("view", "view_as"), "reshape"),
    **dict.fromkeys(("mm", "bmm"), "matmul"),
    **dict.fromkeys(("jit", "compile"), "function"),
    **dict.fromkeys(
        ("astype", "bool", "double", "float", "half", "int", "long", "to", "type", "type_as"),
        "cast",
    ),
    **dict.fromkeys(("expand", "expand_as"), "broadcast_to"),
    **dict.fromkeys(("chunk", "array_split"), "split"),
    **dict.fromkeys(("bincount", "histc", "masked_select", "nonzero", "unique"), _SIZE_OF_DATA),
    **dict.fromkeys(("norm", "linalg"), "vector_norm"),
    "absolute": "abs",
    "addmm": "it is a @ b + c",
    "baddbmm": "it is a @ b + c",
    "allclose": "isclose",
    "device": _DEVICE_OF_VALUES,
    "narrow": "slice",
    "repeat_interleave": "repeat",
    "swapaxes": "transpose",
    "clamp": "clip",
    "dim": "ndim",
    "ravel": "flatten",
    "size": "shape",
    "stop_gradient": "detach",
    "unsqueeze": "expand_dims",
    **dict.fromkeys(
        ("arange", "array", "asarray", "empty", "eye", "from_numpy", "full", "linspace", "ones",
         "tensor", "Tensor", "zeros"),
        _ARRAY,
    ),
    **dict.fromkeys(("rand",), "random numbers are of a graph: Graph.random_uniform"),
    **dict.fromkeys(("randn", "normal"), "random numbers are of a graph: Graph.random_normal"),
    **dict.fromkeys(("randint",), "random numbers are of a graph: Graph.random_int"),
    **dict.fromkeys(("randperm",), "random numbers are of a graph: Graph.random_permutation"),
    **dict.fromkeys(
        ("no_grad", "enable_grad", "inference_mode", "requires_grad", "requires_grad_",
         "set_grad_enabled", "zero_grad"),
        _NOT_NEEDED,
    ),
    **dict.fromkeys(("item", "numpy", "tolist", "data"), _NO_DATA),
    **dict.fromkeys(("cpu", "cuda", "to_device"), _DEVICE),
    **dict.fromkeys(("clone", "contiguous", "copy"), _UNCHANGED),
    **dict.fromkeys(("manual_seed", "seed"), _SEED),
    "backward": "Graph.minimize(loss, optimizer) and Graph.backward(loss) make gradients",
    "grad": "Graph.backward(loss) and aicf.grad give gradients",
    **dict.fromkeys(
        ("GRUCell", "LSTMCell", "RNN", "RNNCell"), "aicf.scan runs a cell over a sequence"
    ),
    **dict.fromkeys(("CosineAnnealingLR", "cosine", "cosine_decay_schedule"), "warmup_cosine"),
    **dict.fromkeys(("ExponentialLR", "MultiStepLR", "StepLR"), "step_decay"),
    **dict.fromkeys(
        ("LambdaLR", "LRScheduler", "lr_scheduler"),
        "a rate is a number, or a Value that the step computes of Graph.step_count",
    ),
    "functional": "the functions are aicf's own, as aicf.relu",
    "numel": "its shape is known: math.prod(x.shape)",
}  # fmt: skip


_WHERE = "device= of function and Graph.compile says where, dtype= of a layer its dtype"
_OF_A_MODULE = {
    **dict.fromkeys(("bfloat16", "cpu", "cuda", "double", "float", "half", "to"), _WHERE),
    **dict.fromkeys(("compile", "jit"), "aicf.function compiles what calls it"),
    **dict.fromkeys(("load", "save"), "aicf.save(path, module) and aicf.load, or state_dict()"),
    "apply": "modules() and named_modules() give the parts",
    "zero_grad": _NOT_NEEDED,
}


def instead_of(name: str, known: Iterable[str]) -> str:
    """What follows "<Module> has no attribute <name>"."""
    return f"; {_OF_A_MODULE[name]}" if name in _OF_A_MODULE else is_it(name, known)


def instead(name: str, known: Iterable[str], elsewhere: Collection[str] = ()) -> str:
    """What follows "there is no <name>": ' (is it "concat"?)', "; it is aicf.concat", or "".

    Args:
        known: the names that could have been written in its place.
        elsewhere: where else the library has names, as "aicf.nn.Linear".
    """
    if name.startswith("_"):
        return ""
    known, said = list(known), _MEANT.get(name, name)
    if said in known:
        return f' (is it "{said}"?)'
    if found := [path for path in elsewhere if path.rpartition(".")[2] == said]:
        return f"; it is {found[0]}"
    return f"; {said}" if name in _MEANT else is_it(name, known)
