"""Random graphs and random training steps against float64 interpreters written without aicf."""

import math

import aicf
import numpy as np
import pytest
from compare import assert_bits
from conftest import outputs_of

FIXED_GRAPHS, FRESH_GRAPHS = 170, 40
FIXED_STEPS, FRESH_STEPS = 48, 8
SECOND = 60

# ---- random graphs: a program is a list of (op, operand positions, attributes)

SMOOTH = {
    "neg": np.negative,
    "exp": lambda x: np.exp(np.minimum(x, 3)),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "square": lambda x: x * x,
    "sqrt1": lambda x: np.sqrt(x * x + 0.5),
    "log1": lambda x: np.log(x * x + 0.5),
    "rsqrt1": lambda x: 1 / np.sqrt(x * x + 0.5),
    "scale": lambda x: x * 0.5 - 1.25,
    "erf": np.vectorize(math.erf, otypes=[float]),
}
KINKED = {  # and the distance of each element to its kink
    "relu": (lambda x: np.maximum(x, 0), np.abs),
    "abs": (np.abs, np.abs),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), np.abs),
    "clip": (lambda x: np.clip(x, -1.5, 1.5), lambda x: np.abs(np.abs(x) - 1.5)),
    "floor": (np.floor, lambda x: np.abs(x - np.rint(x))),
    "round": (np.rint, lambda x: np.abs(x - np.floor(x) - 0.5)),
    "sign": (np.sign, np.abs),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), np.abs),
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div1": lambda a, b: a / (b * b + 1.0),
}
CHOICES = {"maximum": np.maximum, "minimum": np.minimum}


def aicf_unary(name, x):
    special = {
        "exp": lambda x: aicf.exp(aicf.minimum(x, 3.0)),
        "square": lambda x: x * x,
        "sqrt1": lambda x: aicf.sqrt(x * x + 0.5),
        "log1": lambda x: aicf.log(x * x + 0.5),
        "rsqrt1": lambda x: aicf.rsqrt(x * x + 0.5),
        "scale": lambda x: x * 0.5 - 1.25,
        "clip": lambda x: aicf.clip(x, -1.5, 1.5),
    }
    return special.get(name, getattr(aicf, name, None))(x)


def evaluate(op, args, attrs):
    """One op of a program in NumPy."""
    x = args[0]
    if op in SMOOTH:
        return SMOOTH[op](x)
    if op in KINKED:
        return KINKED[op][0](x)
    if op in BINARY or op in CHOICES:
        return (BINARY.get(op) or CHOICES[op])(*args)
    if op in ("sum", "mean", "max", "min"):
        return getattr(np, op)(x, axis=tuple(attrs["axis"]), keepdims=attrs["keepdims"])
    if op == "softmax":
        e = np.exp(x - x.max(attrs["axis"], keepdims=True))
        return e / e.sum(attrs["axis"], keepdims=True)
    if op == "log_softmax":
        z = x - x.max(attrs["axis"], keepdims=True)
        return z - np.log(np.exp(z).sum(attrs["axis"], keepdims=True))
    if op == "layer_norm":
        z = x - x.mean(-1, keepdims=True)
        return z / np.sqrt((z * z).mean(-1, keepdims=True) + attrs["eps"])
    if op == "permute":
        return x.transpose(attrs["axes"])
    if op == "reshape":
        return x.reshape(attrs["shape"])
    if op == "broadcast_to":
        return np.broadcast_to(x, attrs["shape"])
    if op == "matmul":
        return args[0] @ args[1] / 4
    if op == "where":
        return np.where(args[0] < args[1], args[0], args[2])
    raise KeyError(op)


def emit(op, args, attrs):
    """The same op in aicf."""
    x = args[0]
    if op in SMOOTH or op in KINKED:
        return aicf_unary(op, x)
    if op == "div1":
        return args[0] / (args[1] * args[1] + 1.0)
    if op == "matmul":
        return args[0] @ args[1] / 4.0
    if op == "where":
        return aicf.where(args[0] < args[1], args[0], args[2])
    return getattr(aicf, op)(*args, **attrs)


def margin(op, args, attrs):
    """How far the result is from a point where it jumps or bends."""
    with np.errstate(all="ignore"):
        if op == "exp":
            return np.abs(args[0] - 3).min(initial=9)
        if op in KINKED:
            return KINKED[op][1](args[0]).min(initial=9)
        if op in CHOICES or op == "where":
            return np.abs(args[0] - args[1]).min(initial=9)
        if op in ("max", "min") and args[0].size:
            x = args[0] if op == "max" else -args[0]
            axes = tuple(attrs["axis"])
            top = x.max(axis=axes, keepdims=True)
            ties = (x == top).sum(axis=axes)
            if (ties > 1).any():
                return 0.0
            return (top - x)[x != top].min(initial=9)
    return 9.0


def random_op(rng, values):
    """One random op that fits the values made so far: (op, operand positions, attributes)."""

    def pick(fits=lambda v: True):
        among = [i for i, v in enumerate(values) if fits(v)]
        # Late values are likelier, so that programs grow deep.
        return None if not among else among[int(rng.beta(2, 1) * len(among) * 0.9999)]

    kind = rng.choice(
        ["smooth", "kinked", "binary", "choice", "reduce", "rows", "move", "matmul", "where"],
        p=[0.17, 0.1, 0.17, 0.05, 0.14, 0.15, 0.12, 0.07, 0.03],
    )
    i = pick()
    x = values[i]
    if kind == "smooth":
        return str(rng.choice(list(SMOOTH))), [i], {}
    if kind == "kinked":
        return str(rng.choice(list(KINKED))), [i], {}
    if kind in ("binary", "choice", "where"):

        def fits(v):
            try:
                shape = np.broadcast_shapes(v.shape, x.shape)
            except ValueError:
                return False
            return math.prod(shape) <= 400

        j = pick(fits)
        if kind == "where":
            k = pick(lambda v: v.shape == x.shape)
            return "where", [i, j, k], {}
        table = BINARY if kind == "binary" else CHOICES
        return str(rng.choice(list(table))), [i, j], {}
    if kind == "reduce":
        count = int(rng.integers(0, x.ndim + 1))
        axes = sorted(int(a) for a in rng.choice(x.ndim, count, replace=False)) if x.ndim else []
        attrs = {"axis": axes, "keepdims": bool(rng.integers(2))}
        return str(rng.choice(["sum", "mean", "max", "min"])), [i], attrs
    if kind == "rows":
        if not x.ndim:
            return None
        fn = str(rng.choice(["softmax", "log_softmax", "layer_norm"]))
        if fn == "layer_norm":
            return fn, [i], {"normalized_shape": x.shape[-1], "eps": 0.25}
        axis = -1 if rng.integers(4) else int(rng.integers(x.ndim))
        return fn, [i], {"axis": axis}
    if kind == "matmul":
        if x.ndim < 1:
            return None
        inner = x.shape[-1]
        j = pick(
            lambda v: v.ndim == 2 and v.shape[0] == inner or v.ndim == 1 and v.shape == (inner,)
        )
        return None if j is None else ("matmul", [i, j], {})
    which = rng.integers(3)
    if which == 0:
        return "permute", [i], {"axes": [int(a) for a in rng.permutation(x.ndim)]}
    if which == 1:
        shape = [int(s) for s in x.shape]
        if len(shape) >= 2 and rng.integers(2):
            at = int(rng.integers(len(shape) - 1))
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif len(shape) < 5:
            shape.insert(int(rng.integers(len(shape) + 1)), 1)
        return "reshape", [i], {"shape": shape}
    shape = [int(s) if s != 1 else int(rng.integers(1, 4)) for s in x.shape]
    if len(shape) < 4:
        shape.insert(0, int(rng.integers(1, 4)))
    return ("broadcast_to", [i], {"shape": shape}) if math.prod(shape) <= 400 else None


def random_program(rng, length, clearance):
    """Inputs and a program whose values stay moderate and away from jumps."""
    sizes = [int(s) for s in rng.choice([1, 2, 3, 4, 5, 6, 7], 4, replace=False)]
    inputs = []
    for _ in range(int(rng.integers(2, 5))):
        rank = int(rng.integers(0, 4))
        inputs.append(rng.uniform(-2, 2, [int(rng.choice(sizes)) for _ in range(rank)]))
    inputs = [np.float32(x).astype(np.float64) for x in inputs]
    values, program = list(inputs), []
    while len(program) < length:
        chosen = random_op(rng, values)
        if chosen is None:
            continue
        op, positions, attrs = chosen
        args = [values[p] for p in positions]
        with np.errstate(all="ignore"):
            result = np.asarray(evaluate(op, args, attrs))
        if result.size > 400 or result.ndim > 5 or np.abs(result).max(initial=0) > 100:
            continue
        if margin(op, args, attrs) < clearance:
            continue
        program.append(chosen)
        values.append(result)
    return inputs, program


def interpret(inputs, program):
    values = list(inputs)
    for op, positions, attrs in program:
        values.append(np.asarray(evaluate(op, [values[p] for p in positions], attrs)))
    return values


def build_program(inputs, program, wanted, dtype, weights):
    """The graph: every wanted value an output, their weighted sum the loss, its gradients too."""
    g = aicf.Graph("random")
    leaves = [g.input(f"x{i}", x.shape, dtype) for i, x in enumerate(inputs)]
    values = list(leaves)
    for op, positions, attrs in program:
        values.append(emit(op, [values[p] for p in positions], attrs))
    loss = None
    for n, position in enumerate(wanted):
        g.output(f"y{position}", values[position])
        term = aicf.sum(values[position] * g.constant(np.asarray(weights[n], dtype)))
        loss = term if loss is None else loss + term
    g.output("loss", loss)
    reached = [i for i in range(len(inputs)) if reaches(program, wanted, i, len(inputs))]
    grads = g.backward(loss, [leaves[i] for i in reached])
    for i in reached:
        g.output(f"d{i}", grads[leaves[i]])
    return g, reached


def reaches(program, wanted, leaf, leaves):
    """Whether a wanted value comes from the leaf other than by conditions of `where`, which have no
    gradient."""
    on = {leaf}
    for n, (op, positions, _) in enumerate(program):
        chosen = [positions[0], positions[2]] if op == "where" else positions
        if on.intersection(chosen):
            on.add(leaves + n)
    return bool(on.intersection(wanted))


def check_random_graph(rng, device):
    dtype = "float64" if rng.integers(3) else "float32"
    clearance = 1e-3 if dtype == "float64" else 3e-2
    inputs, program = random_program(rng, int(rng.integers(5, 26)), clearance)
    count = len(inputs) + len(program)
    wanted = {count - 1, *(int(w) for w in rng.integers(len(inputs), count, 2))}
    wanted = sorted(wanted)
    values = interpret(inputs, program)
    weights = [rng.uniform(-1, 1, values[p].shape) for p in wanted]
    weights = [np.float32(w).astype(np.float64) for w in weights]
    g, reached = build_program(inputs, program, wanted, dtype, weights)
    feed = {f"x{i}": x.astype(dtype) for i, x in enumerate(inputs)}

    results = []
    for passes in ("default", ()):
        step = g.compile(device=device, passes=passes)
        results.append(outputs_of(step.run(**feed)))
        results.append(outputs_of(step(**feed)))
        results.append(outputs_of(step.replay()))
    got = results[0]
    for other in results[1:]:
        for name, array in got.items():
            assert_bits(other[name], array, name)

    small = [v.astype(np.float32) for v in inputs]
    rough = interpret(small, program) if dtype == "float32" else values
    for p in wanted:
        scale = max(1.0, np.abs(values[p]).max(initial=0))
        limit = 1e-10 * scale
        if dtype == "float32":
            limit = 2e-4 * scale + 50 * np.abs(rough[p] - values[p]).max(initial=0)
        error = np.abs(got[f"y{p}"] - values[p]).max(initial=0)
        assert error <= limit, f"%{p}: off by {error}, limit {limit}\n{g}"
    if dtype == "float32":
        return

    # The gradient along one random direction, against a difference quotient of the interpreter.
    directions = [rng.uniform(-1, 1, x.shape) for x in inputs]
    h = 1e-6

    def loss_at(t):
        moved = [x + t * d for x, d in zip(inputs, directions, strict=True)]
        out = interpret(moved, program)
        return sum((out[p] * w).sum() for p, w in zip(wanted, weights, strict=True))

    slope = (loss_at(h) - loss_at(-h)) / (2 * h)
    along = sum((got[f"d{i}"] * directions[i]).sum() for i in reached)
    size = sum(np.abs(got[f"d{i}"] * directions[i]).sum() for i in reached) + abs(loss_at(0)) + 1
    assert abs(slope - along) <= 1e-5 * size, f"gradient {along}, differences {slope}\n{g}"


@pytest.mark.parametrize("seed", range(FIXED_GRAPHS))
def test_random_graph(seed, device, make_rng):
    check_random_graph(make_rng(seed), device)


@pytest.mark.parametrize("index", range(FRESH_GRAPHS))
def test_random_graph_fresh(index, device, make_rng, fresh_seed):
    check_random_graph(make_rng(1000 + fresh_seed + index), device)


def check_second_derivatives(rng, device):
    """The slope along a direction and its gradient, against differences of that slope."""
    inputs, program = random_program(rng, int(rng.integers(4, 16)), 1e-2)
    last = len(inputs) + len(program) - 1
    values = interpret(inputs, program)
    weights = rng.uniform(-1, 1, values[last].shape)
    directions = [rng.uniform(-1, 1, x.shape) for x in inputs]
    reached = [i for i in range(len(inputs)) if reaches(program, [last], i, len(inputs))]
    if not reached:
        return
    g = aicf.Graph("second")
    made = [g.input(f"x{i}", x.shape, "float64") for i, x in enumerate(inputs)]
    leaves, along = [made[i] for i in reached], [g.constant(directions[i]) for i in reached]
    for op, positions, attrs in program:
        made.append(emit(op, [made[p] for p in positions], attrs))
    loss = aicf.sum(made[last] * g.constant(weights))
    slopes = [aicf.sum(a * d) for a, d in zip(aicf.grad(loss, leaves), along, strict=True)]
    slope = sum(slopes[1:], slopes[0])
    g.output("slope", slope)
    g.output("jvp", aicf.jvp(loss, leaves, along))
    for i, bend in zip(reached, aicf.grad(slope, leaves), strict=True):
        g.output(f"bend{i}", bend)

    step, plain = (g.compile(device=device, passes=passes) for passes in ("default", ()))
    feed = {f"x{i}": x for i, x in enumerate(inputs)}
    got = outputs_of(step(**feed))
    for name, array in outputs_of(plain(**feed)).items():
        assert_bits(array, got[name], name)
    moves, h = [rng.uniform(-1, 1, x.shape) for x in inputs], 1e-5
    sides = []
    for sign in (h, -h):
        moved = {f"x{i}": inputs[i] + sign * m * (i in reached) for i, m in enumerate(moves)}
        sides.append(float(step(**moved)["slope"]))
    bends = [got[f"bend{i}"] * moves[i] for i in reached]
    size = sum(np.abs(b).sum() for b in bends) + abs(got["slope"]) + 1
    assert abs(got["jvp"] - got["slope"]) <= 1e-11 * size, f"jvp {got['jvp']}, {got['slope']}\n{g}"
    quotient, change = (sides[0] - sides[1]) / (2 * h), sum(b.sum() for b in bends)
    assert abs(quotient - change) <= 1e-4 * size, f"{change}, by differences {quotient}\n{g}"


@pytest.mark.parametrize("seed", range(SECOND))
def test_second_derivatives(seed, device, make_rng):
    check_second_derivatives(make_rng(5000 + seed), device)


# ---- random training steps

ACTIVATIONS = {
    "relu": (lambda x: np.maximum(x, 0), lambda x, y: (x > 0) * 1.0),
    "tanh": (np.tanh, lambda x, y: 1 - y * y),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x, y: y * (1 - y)),
    "silu": (
        lambda x: x / (1 + np.exp(-x)),
        lambda x, y: (1 + x * (1 - 1 / (1 + np.exp(-x)))) / (1 + np.exp(-x)),
    ),
    "softplus": (lambda x: np.logaddexp(0, x), lambda x, y: 1 / (1 + np.exp(-x))),
}


class NumpySGD:
    def __init__(self, lr):
        self.lr = lr

    def update(self, name, p, grad, k):
        p -= self.lr * grad


class NumpyAdam:
    def __init__(self, lr, betas, eps):
        self.lr, self.betas, self.eps, self.m, self.v = lr, betas, eps, {}, {}

    def update(self, name, p, grad, k):
        b1, b2 = self.betas
        m = self.m[name] = b1 * self.m.get(name, 0) + (1 - b1) * grad
        v = self.v[name] = b2 * self.v.get(name, 0) + (1 - b2) * grad * grad
        p -= self.lr * (m / (1 - b1**k)) / (np.sqrt(v / (1 - b2**k)) + self.eps)


def random_optimizer(rng):
    lr = float(rng.choice([1e-3, 3e-3, 1e-2]))
    if rng.integers(2):
        return aicf.optim.SGD(lr=10 * lr), NumpySGD(10 * lr)
    betas, eps = (float(rng.choice([0.8, 0.9])), float(rng.choice([0.99, 0.999]))), 1e-4
    return aicf.optim.Adam(lr=lr, betas=betas, eps=eps), NumpyAdam(lr, betas, eps)


def forward_backward(params, layers, x, target, loss_kind):
    """The loss and d loss / d param of an MLP, by hand."""
    inner, outer = [], [x]
    for n, (activation, bias) in enumerate(layers):
        z = outer[-1] @ params[f"{n}.W"].T
        if bias:
            z = z + params[f"{n}.b"]
        inner.append(z)
        outer.append(ACTIVATIONS[activation][0](z) if activation else z)
    y = outer[-1]
    if loss_kind == "mse":
        loss, d = ((y - target) ** 2).mean(), 2 * (y - target) / y.size
    else:
        z = y - y.max(1, keepdims=True)
        logp = z - np.log(np.exp(z).sum(1, keepdims=True))
        rows = np.arange(len(y))
        loss, d = -logp[rows, target].mean(), np.exp(logp)
        d[rows, target] -= 1
        d /= len(y)
    grads = {}
    for n in reversed(range(len(layers))):
        activation, bias = layers[n]
        if activation:
            d = d * ACTIVATIONS[activation][1](inner[n], outer[n + 1])
        grads[f"{n}.W"] = d.T @ outer[n]
        if bias:
            grads[f"{n}.b"] = d.sum(0)
        d = d @ params[f"{n}.W"]
    return loss, grads


def check_training_step(rng, device):
    dtype = str(rng.choice(["float64", "float32"]))
    depth = int(rng.integers(1, 4))
    sizes = [int(s) for s in rng.choice(np.arange(2, 14), depth + 2, replace=False)]
    batch, sizes = sizes[0], sizes[1:]
    layers = []
    for n in range(depth):
        activation = None if n == depth - 1 else str(rng.choice(list(ACTIVATIONS)))
        layers.append((activation, bool(rng.integers(4))))
    loss_kind = str(rng.choice(["mse", "cross_entropy"]))
    optimizer, reference = random_optimizer(rng)

    g = aicf.Graph("train")
    x = g.input("x", (batch, sizes[0]), dtype)
    y = x
    for n, (activation, bias) in enumerate(layers):
        y = g.dense(str(n), y, sizes[n + 1], bias=bias)
        if activation:
            y = getattr(aicf, activation)(y)
    if loss_kind == "mse":
        loss = aicf.mse_loss(y, g.input("t", y.shape, dtype))
        target = rng.standard_normal(y.shape).astype(dtype)
    else:
        loss = aicf.cross_entropy(y, g.input("t", (batch,), "int64"))
        target = rng.integers(0, sizes[-1], batch)
    g.minimize(loss, optimizer)
    g.output("loss", loss)
    feed = {"x": rng.standard_normal((batch, sizes[0])).astype(dtype), "t": target}

    seed = int(rng.integers(2**31))
    step = g.compile(device=device, seed=seed)
    again = g.compile(device=device, seed=seed, passes=())
    params = {name: array.numpy().astype(np.float64) for name, array in step.params.items()}
    wide = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feed.items()}
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    for k in range(1, 21):
        got = float(step(**feed)["loss"] if k % 2 else step.replay()["loss"])
        again.run(**feed)
        want, grads = forward_backward(params, layers, wide["x"], wide["t"], loss_kind)
        assert abs(got - want) <= tolerance * max(abs(want), 1e-3), f"step {k}: {got}, need {want}"
        for name, grad in grads.items():
            reference.update(name, params[name], grad, k)
    for name, array in step.params.items():
        error = np.abs(array.numpy() - params[name]).max()
        limit = 20 * tolerance * max(1, np.abs(params[name]).max())
        assert error <= limit, f"{name}: off by {error}\n{g}"
    other = again.state_dict()
    for name, array in step.state_dict().items():
        assert_bits(other[name], array, f"eager without passes, {name}")


@pytest.mark.parametrize("seed", range(FIXED_STEPS))
def test_training_step(seed, device, make_rng):
    check_training_step(make_rng(seed), device)


@pytest.mark.parametrize("index", range(FRESH_STEPS))
def test_training_step_fresh(index, device, make_rng, fresh_seed):
    check_training_step(make_rng(1000 + fresh_seed + index), device)
