"""The roads through aicf on which tests/memory.py lets memory run out."""

import ctypes
import os
import tempfile

import aicf
import numpy as np
from aicf import _core, optim
from tensors import CapsuleTensor

DEVICE = os.environ.get("MEMORY_DEVICE", "cpu")
WIDE = 96  # enough for its products to be cut among threads


def held():
    """What steps hold: bytes, or pieces on the fake device."""
    if DEVICE == "cpu":
        return _core.cpu_memory()[0]
    return ctypes.CDLL("libcuda.so.1").fake_cuda_held()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mlp(name="mlp", width=WIDE, batch=64, optimizer=None):
    g = aicf.Graph(name)
    x, t = g.input("x", (batch, width)), g.input("t", (batch, 4))
    y = g.dense("2", aicf.relu(g.dense("0", x, width)), 4)
    loss = aicf.mse_loss(y, t)
    g.minimize(loss, optimizer or optim.Adam(lr=1e-2), clip_norm=1.0)
    g.output("loss", loss)
    g.output("y", y, keep=2)
    return g


def average():
    g = aicf.Graph("average")
    ema = g.state("ema", (4,))
    g.assign(ema, ema * 0.5 + g.param("2.b", (4,)))
    return g


def negated():
    g = aicf.Graph("negated")
    g.output("y", -g.param("w", (8,)))
    return g


def mlp_inputs(width=WIDE, batch=64):
    return {"x": numbers(batch, width), "t": numbers(batch, 4, seed=1)}


class Road:
    """One thing a user does, which may be cut off anywhere.

    `fresh`: every time in a process that has done nothing before. `prepare` makes what the road
    starts from.
    """

    fresh = False

    def prepare(self):
        pass

    def act(self):
        """Does it, and returns what a run without a failure must give again."""
        raise NotImplementedError

    def again(self):
        """Does it after a failure."""
        return self.act()

    def state(self):
        """What an act that raises leaves as it was."""

    def restore(self):
        """Takes back what an act changed."""


# ---- graphs


class Build(Road):
    """Every kind of call that builds; each one that raises leaves the graph as it was."""

    def prepare(self):
        self.texts, self.graph, self.done = [], None, 0
        g = lambda: self.graph  # noqa: E731
        self.parts = (  # of one call each
            lambda v: aicf.Graph("built"),
            lambda v: g().input("x", (4, 6)),
            lambda v: g().dense("a", v[1], 6),
            lambda v: aicf.gelu(v[2]),
            lambda v: v[3] * 2.0,
            lambda v: g().param("w", (6,), init=numbers(6)),
            lambda v: aicf.layer_norm(v[4], 6, v[5]),
            lambda v: aicf.concat([v[6], v[3]], axis=1),
            lambda v: v[7][:, 1:7:2],
            lambda v: g().random_normal((4, 3)),
            lambda v: aicf.dropout(v[8], 0.25),
            lambda v: g().constant([[1.0, 2.0, 3.0]]),
            lambda v: aicf.maximum(v[10], v[11]),
            lambda v: aicf.mse_loss(v[12], v[8]),
            lambda v: g().backward(v[13], [v[5]])[v[5]],
            lambda v: g().step_count(),
            lambda v: optim.step_decay(v[15], 0.1, 5),
            lambda v: g().minimize(v[13], optim.AdamW(lr=v[16]), clip_norm=1.0),
            lambda v: g().state("ema", (6,)),
            lambda v: g().assign(v[18], v[14]),
            lambda v: g().output("loss", v[13], keep=3),
            lambda v: aicf.custom_gradient(lambda x: (aicf.round(x), lambda dy: dy * x))(v[3]),
            lambda v: v[21] * v[6],
            lambda v: aicf.jvp(v[22], v[5], v[5]),
            lambda v: g().output("along", v[23]),
            lambda v: aicf.scan(lambda c, x: (c * 0.5 + x, aicf.sin(c)), v[5], v[6])[1],
            lambda v: aicf.sum(v[25]),
            lambda v: aicf.grad(v[26], v[5]),
            lambda v: g().output("slope", v[27]),
        )
        self.act()

    def act(self):
        self.graph, self.values, self.done = None, [], 0
        return self.build()

    def again(self):
        if self.done:
            found, wanted = str(self.graph), self.texts[self.done - 1]
            assert found == wanted, f"part {self.done} left\n{found}\nof\n{wanted}"
        return self.build()

    def build(self):
        for part in self.parts[self.done :]:
            value = part(self.values)
            self.graph = self.graph or value
            self.values.append(value)
            self.done += 1
            if len(self.texts) < self.done:
                self.texts.append(str(self.graph))
        return self

    def result(self, _):
        return self.graph.to_json()


class Look(Road):
    def prepare(self):
        self.graph = mlp()

    def act(self):
        g = self.graph
        return (str(g), g.to_dot(), g.to_json(), str(g.lower()), str(g.verify()))

    def state(self):
        return self.graph.to_json()


class Stages(Look):
    def act(self):
        core = self.graph._core
        stages = core.stages(_core.pass_names())
        return [(s.name, s.text, s.ops, s.peak_bytes) for s in stages], core.lower_text()


class FromJson(Road):
    def prepare(self):
        self.text = mlp(width=8, batch=4).to_json()

    def act(self):
        return aicf.Graph.from_json(self.text).to_json()


# ---- compile


class Compile(Road):
    options = {}

    def make(self):
        return mlp()

    def prepare(self):
        self.graph = self.make()

    def act(self):
        step = self.graph.compile(device=DEVICE, **self.options)
        return str(step.plan), {name: array.numpy() for name, array in step.params.items()}

    def state(self):
        return self.graph.to_json(), held()


class CompileWide(Compile):
    """Ops of every family, and a precision that rewrites the graph."""

    options = {"math": "mixed", "passes": "default", "seed": 3}

    def act(self):
        before = _core.narrow_any_size(True)  # small as its products are
        try:
            return super().act()
        finally:
            _core.narrow_any_size(before)

    def make(self):
        g = aicf.Graph("wide")
        image, labels = g.input("image", (2, 3, 8, 8)), g.input("labels", (2,), "int64")
        kernel = g.param("kernel", (4, 3, 3, 3))
        x = aicf.max_pool2d(aicf.conv2d(image, kernel, padding=1), 2)
        x = aicf.permute(aicf.reshape(x, (2, 4, 16)), (0, 2, 1))
        x = aicf.scaled_dot_product_attention(x, x, aicf.gelu(x), causal=True)
        x = aicf.dropout(aicf.layer_norm(x, 4), 0.5) + aicf.sum(x, 1, keepdims=True)
        logits = g.dense("head", aicf.reshape(x, (2, 64)), 5)
        loss = aicf.cross_entropy(logits, labels)
        g.minimize(loss, optim.SGD(lr=0.1, momentum=0.9), clip_norm=1.0)
        g.output("loss", loss)
        return g


class CompileShared(Compile):
    """Onto the storage of another step, whose state stays."""

    def prepare(self):
        super().prepare()
        self.other = self.graph.compile(device=DEVICE, seed=5)
        self.options = {"share": self.other, "params": {"opt.lr": np.float32(0.01)}}

    def state(self):
        return super().state(), self.other.state_dict()


class Program(Road):
    """The CUDA program of a graph, which needs no device."""

    def prepare(self):
        self.graph = mlp()

    def act(self):
        if not hasattr(_core, "cuda_programs"):
            return None
        return _core.cuda_programs(self.graph._core, _core.pass_names())


# ---- a step


def exported(array):
    return CapsuleTensor(array.__dlpack__(max_version=(1, 0), copy=True), DEVICE)


class Call(Road):
    """Whole steps; one that raises has changed no param or state."""

    def prepare(self):
        self.step = mlp().compile(device=DEVICE)
        self.inputs = mlp_inputs()
        self.step(**self.inputs)
        self.before = self.step.state_dict()

    def run(self):
        return self.step(**self.inputs)

    def act(self):
        return self.run()

    def result(self, outputs):
        found = {name: outputs[name].numpy() for name in outputs if name != "y"}
        return found, self.step.state_dict()

    def state(self):
        return self.step.state_dict(), held()

    def restore(self):
        self.step.load_state_dict(self.before)


class CallLists(Call):
    """Inputs that have to be converted: lists, strides, other tensors of ours."""

    def prepare(self):
        super().prepare()
        self.inputs["x"] = np.asfortranarray(self.inputs["x"])
        self.inputs["t"] = self.inputs["t"].tolist()


class Replay(Call):
    def run(self):
        return self.step.replay(2)


class Run(Call):
    def run(self):
        return self.step.run(**self.inputs)


class Capture(Call):
    def run(self):
        self.step.reset()
        self.step.capture()
        return self.step.replay()

    def state(self):  # but not what is held: the old form is let go
        return self.step.state_dict()


class Parallel(Call):
    """The first parallel region of a process, which starts the threads."""

    fresh = True

    def prepare(self):  # reads no step: nothing has run in this process
        self.step = mlp().compile(device=DEVICE)
        self.inputs = mlp_inputs()
        self.before = self.step.state_dict()


class Sharing(Call):
    """A step on the storage of two others, made, run and let go."""

    def prepare(self):
        super().prepare()
        self.ema = average().compile(device=DEVICE, share=self.step)
        self.mine = numbers(4, seed=7)

    def run(self):
        third = mlp("third").compile(device=DEVICE, share=[self.step, self.ema])
        if DEVICE == "cpu":  # bound memory, which a step waits for at its end
            third.bind(x=self.inputs["x"].copy())
            return third(t=self.inputs["t"])
        return third(**self.inputs)

    def state(self):
        return self.step.state_dict(), self.ema.state_dict()


class Bind(Call):
    """Other storage for all params: for all or for none."""

    def prepare(self):
        super().prepare()
        self.own = {name: array.numpy() * 2 for name, array in self.step.params.items()}

    def act(self):
        self.step.bind(**{name: array.copy() for name, array in self.own.items()})

    def result(self, _):
        return self.step.state_dict()

    def state(self):
        return self.step.state_dict()


class Rebind(Call):
    """A step whose input lies elsewhere since the last one."""

    def run(self):
        self.step.bind(x=self.inputs["x"].copy())
        return self.step.replay()


class Write(Call):
    """All values at once, some of them read from where others are written."""

    def prepare(self):
        super().prepare()
        self.values = {name: array * 2 for name, array in self.before.items()}

    def act(self):
        self.step.load_state_dict(self.values)

    def result(self, _):
        return self.step.state_dict()


class Overlap(Write):
    """A value that is read from its own storage in another order."""

    def act(self):
        self.step.params["0.W"] = np.from_dlpack(self.step.params["0.W"]).T


class Set(Write):
    def act(self):
        self.step.set("opt.lr", 0.5)


class Read(Call):
    def run(self):
        return self.step.state_dict()

    def result(self, found):
        return found


class Save(Call):
    """To a file, which is whole or not there."""

    def prepare(self):
        super().prepare()
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "state.safetensors")
        self.step.save(self.path)
        self.step.replay()
        self.before = self.step.state_dict()

    def act(self):
        self.step.save(self.path)

    def result(self, _):
        with open(self.path, "rb") as file:
            return file.read()

    def state(self):
        return self.result(None), os.listdir(self.folder), self.step.state_dict()

    def restore(self):
        kept = self.step.state_dict()
        self.step.set("opt.lr", 0.25)
        self.step.save(self.path)
        self.step.load_state_dict(kept)


class Load(Save):
    def act(self):
        self.step.load(self.path)

    def result(self, _):
        return self.step.state_dict()

    def restore(self):
        self.step.load_state_dict(self.before)


class Export(Save):
    """The whole step to a file."""

    def prepare(self):
        super().prepare()
        self.path = os.path.join(self.folder, "step.aicf")
        self.step.export(self.path)

    def act(self):
        self.step.export(self.path)

    def restore(self):
        kept = self.step.state_dict()
        self.step.set("opt.lr", 0.25)
        self.step.export(self.path)
        self.step.load_state_dict(kept)


class LoadStep(Export):
    """A step from a file, which is a new one or none."""

    def act(self):
        return aicf.load_step(self.path)

    def result(self, step):
        return {} if step is None else step.state_dict()

    def state(self):
        return os.listdir(self.folder), self.step.state_dict()

    def restore(self):
        pass


def imported(array):
    """As another framework reads it."""
    if DEVICE == "cpu":
        return np.from_dlpack(array)
    return array.__dlpack__(stream=2, max_version=(1, 0)) is not None


class Arrays(Call):
    """What comes out, and how other libraries read it."""

    def act(self):
        out, step = self.step.outputs, self.step
        loss, weight = out["loss"], step.params["0.W"]
        copy = weight.copy()
        return (
            float(loss),
            loss.item(),
            loss.numpy(),
            np.asarray(weight),
            imported(weight),
            np.from_dlpack(copy),
            weight[1:3],
            (copy == weight),
            repr(weight),
            weight.shape,
            out["y"].numpy(),
            out.get("nothing"),
            list(out.keys()),
            weight.__dlpack__(copy=True) is not None,
            weight.__dlpack__(max_version=(1, 0)) is not None,
            len(out.values()),
        )

    def result(self, found):
        return found


class Plan(Call):
    def act(self):
        plan = self.step.plan
        return str(plan), plan.to_json(), plan.report.lines, self.step.trace, repr(self.step)

    def result(self, found):
        return found


class OpCall(Road):
    def prepare(self):
        self.a, self.b = numbers(64, 96), numbers(96, 128, seed=1)
        self.c = np.zeros((64, 128), np.float32)
        self.rows = np.zeros(64, np.float32)

    def act(self):
        aicf.op_call("gemm", [self.a, self.b], [self.c])
        aicf.op_call(aicf.OpKind.reduce_sum, [self.c], [self.rows], {"axes": [1]}, sync="none")
        aicf.op_call("neg", [self.a.T], [np.empty((96, 64), np.float32)], sync="event").wait()
        return self.c.copy(), self.rows.copy()


class DeviceCall(Road):
    """op_call on the device's own tensors, bound to a step as well."""

    def prepare(self):
        self.step = negated().compile(device=DEVICE)

    def act(self):
        w = self.step.params["w"]
        first, second = (exported(w) for _ in range(2))
        aicf.op_call("neg", [first], [second])
        self.step.bind(w=exported(w))
        self.step.replay()
        return w.numpy()


class Schema(Road):
    def act(self):
        specs = [((64, 32), "float32"), ((32, 8), "float32")]
        schemas = [_core.lowered_schema(name) for name in ("gemm", "reduce_sum", "adam_step")]
        return schemas, aicf.workspace_bytes("gemm", specs), _core.op_names()


class Everything(Road):
    """A first training step, from the graph on."""

    fresh = True

    def act(self):
        step = mlp(width=16, batch=4).compile(device=DEVICE)
        out = step(**mlp_inputs(16, 4))
        return float(out["loss"]), step.state_dict()


class Errors(Road):
    """Refusals, whose texts are memory too."""

    def prepare(self):
        self.graph = mlp(width=8, batch=4)
        self.step = self.graph.compile(device=DEVICE)

    def act(self):
        x = aicf.Graph("other").input("x", (2, 3))
        said = []
        for act in (
            lambda: self.graph.input("x", (4, 8)),
            lambda: aicf.matmul(x, x),
            lambda: self.step(x=numbers(3, 3)),
            lambda: self.step.params["none"],
            lambda: self.step.load_state_dict({}),
            lambda: aicf.Graph.from_json("{}"),
            lambda: aicf.op_call("gemmm", [], []),
            lambda: self.graph.compile(device="abacus"),
            lambda: self.step(x=object()),
        ):
            try:
                act()
            except MemoryError:
                raise
            except aicf.Error as error:
                said.append(f"{type(error).__name__} {error}"[:200])
        return said

    def state(self):
        return self.graph.to_json()


ROADS = {
    road.__name__.lower(): road
    for road in globals().copy().values()
    if isinstance(road, type) and issubclass(road, Road) and road is not Road
}
CUDA_ROADS = [
    "compile",
    "compileshared",
    "call",
    "calllists",
    "replay",
    "run",
    "capture",
    "sharing",
    "write",
    "set",
    "read",
    "arrays",
    "devicecall",
]
