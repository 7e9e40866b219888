"""`python -m aicf verify`: the reference training step, checked end to end on this machine.

Linear-ReLU-Linear, MSE, Adam: once with the sizes of the reference run (batch 64, 8-8-8) and once
with sizes that all differ (batch 5, 7-6-3), since equal sizes hide miswiring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import optim
from .graph import Graph
from .losses import mse_loss
from .ops import linear, relu
from .step import Step

LR, BETA1, BETA2, EPS = 1e-3, 0.9, 0.999, 1e-8
PARAMS = ("0.W", "0.b", "2.W", "2.b")
FORWARD = ["gemm", "bias_add", "relu", "gemm", "bias_add"]
OPTIMIZER = ["step_inc", "bias_corr", "adam_step", "adam_step", "adam_step", "adam_step"]
BACKWARD = {"mse_grad": 1, "relu_bwd": 1, "gemm": 5, "reduce_sum": 2, "mse_loss": 1}


class Case(NamedTuple):
    """Sizes of one reference graph."""

    batch: int
    inputs: int
    hidden: int
    outputs: int


CASES = {"train_step_aicf_only": Case(64, 8, 8, 8), "train_step_distinct": Case(5, 7, 6, 3)}


class Log:
    """Prints a line a check and remembers whether any failed."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self.write = write
        self.records: list[dict[str, Any]] = []

    @property
    def failed(self) -> list[str]:
        return [record["text"] for record in self.records if not record["ok"]]

    def check(self, ok: bool, text: str) -> None:
        self.records.append({"ok": bool(ok), "text": text})
        self.write(f"{'[OK]' if ok else '[FAIL]'} {text}")


def build(name: str, case: Case) -> Graph:
    """The reference step as a graph with outputs `loss` and `y`."""
    g = Graph(name)
    x = g.input("x", (case.batch, case.inputs))
    t = g.input("t", (case.batch, case.outputs))
    w0 = g.param("0.W", (case.hidden, case.inputs))
    b0 = g.param("0.b", (case.hidden,))
    w2 = g.param("2.W", (case.outputs, case.hidden))
    b2 = g.param("2.b", (case.outputs,))
    y = linear(relu(linear(x, w0, b0)), w2, b2)
    loss = mse_loss(y, t)
    g.minimize(loss, optim.Adam(lr=LR, betas=(BETA1, BETA2), eps=EPS))
    g.output("loss", loss)
    return g


def reference_step(state: dict[str, np.ndarray], x: np.ndarray, t: np.ndarray) -> float:
    """One step of the same training in NumPy float64, written without aicf; returns the loss."""
    h = x @ state["0.W"].T + state["0.b"]
    a = np.maximum(h, 0)
    y = a @ state["2.W"].T + state["2.b"]
    dy = 2 / y.size * (y - t)
    dh = (dy @ state["2.W"]) * (h > 0)
    grads = {"0.W": dh.T @ x, "0.b": dh.sum(0), "2.W": dy.T @ a, "2.b": dy.sum(0)}
    state["opt.step"] += 1
    k = float(state["opt.step"])
    for name, grad in grads.items():
        m, v = state[f"opt.m.{name}"], state[f"opt.v.{name}"]
        m += (1 - BETA1) * (grad - m)
        v += (1 - BETA2) * (grad * grad - v)
        m_hat, v_hat = m / (1 - BETA1**k), v / (1 - BETA2**k)
        state[name] -= LR * m_hat / (np.sqrt(v_hat) + EPS)
    return float(((y - t) ** 2).mean())


def state_hash(step: Step) -> str:
    """SHA-256 over every byte of every param and state, names included."""
    digest = hashlib.sha256()
    for name, array in step.state_dict().items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _sequence(
    step: Step, start: dict[str, np.ndarray], count: int, advance: Callable[[], Any]
) -> tuple[list[str], list[float]]:
    """From a full restore: the hash of all state after each step, and how far params moved."""
    step.load_state_dict(start)
    hashes, moved = [], []
    before = {name: start[name] for name in PARAMS}
    for _ in range(count):
        advance()
        hashes.append(state_hash(step))
        after = {name: step.params[name].numpy() for name in PARAMS}
        moved.append(max(float(np.abs(after[name] - before[name]).max()) for name in PARAMS))
        before = after
    return hashes, moved


def _check_plan(log: Log, step: Step, lowered: list[dict[str, Any]]) -> None:
    """The lowered list, the plan, and what the backend holds of it."""
    log.write("=== LOWERED OPS ===")
    for index, op in enumerate(lowered):
        ids = " ".join(
            f"({', '.join('%' + str(view['value']) for view in op[side])})"
            for side in ("inputs", "outputs")
        )
        log.write(f"[lower {index:02}] op={op['op']} attrs={op['attrs']} {ids}")
    log.write("=== PLAN ===")
    plan = step.plan
    log.write(str(plan).rstrip())
    for ok, text in plan.report.lines:
        log.check(ok, f"[plan] {text.removeprefix('[plan] ')}")
    log.check(step.captured, "[capture] done")
    log.write("=== TRACE OPS (runtime) ===")
    trace = step.trace
    for index, launch in enumerate(trace):
        log.write(f"[trace {index:02}] op={launch.op} kernel={launch.kernel}")
    planned = [(op["op"], op["kernel"]) for op in plan.ops]
    log.check(
        planned == [tuple(launch) for launch in trace],
        f"[trace] equals the plan: {len(trace)} launches, none filtered",
    )
    names = [op["op"] for op in lowered]
    counts = {op: names.count(op) for op in BACKWARD}
    log.check(
        names[:5] == FORWARD and names[-6:] == OPTIMIZER and counts == BACKWARD,
        "[lowering] match: forward slice OK, backward OK, optim slice OK (adam_step x4)",
    )


def _check_first_step(
    log: Log, step: Step, start: dict[str, np.ndarray], reference_loss: float
) -> None:
    """After one step: against the float64 step and against Adam's own size."""
    first = step.state_dict()
    change = max(float(np.abs(first[p] - start[p]).max()) for p in PARAMS)
    largest = {
        k: max(float(np.abs(first[f"opt.{k}.{p}"]).max()) for p in PARAMS) for k in ("m", "v")
    }
    log.check(
        0 < change < 1e-2 and int(first["opt.step"]) == 1,
        f"[adam] state mutation OK on replay: max_param_diff={change:.6e}, "
        f"max_m={largest['m']:.6e}, max_v={largest['v']:.6e}, step={int(first['opt.step'])}",
    )
    log.check(
        abs(change - LR) < 0.05 * LR, f"[adam] first step moves a parameter by about lr={LR:g}"
    )
    loss = float(step.outputs["loss"])
    error = abs(loss - reference_loss) / abs(reference_loss)
    log.check(error < 1e-5, f"[loss] {loss:.9f}, float64 relative error {error:.1e}")


def _check_steps(
    log: Log, step: Step, replays: int, wide: dict[str, np.ndarray], advance: Callable[[], Any]
) -> None:
    """After one step: all states against those in float64, which `advance` takes a step further."""
    worst = 0.0
    for index in range(replays):
        if index:
            step.replay()
            advance()
        now = step.state_dict()
        worst = max(
            worst, *(float(np.abs(now[key] - wide[key]).max()) for key in now if key in wide)
        )
    log.check(
        worst < 1e-5, f"[float64] {replays} steps: every state within {worst:.1e} of the reference"
    )


def _check_determinism(log: Log, step: Step, start: dict[str, np.ndarray], replays: int) -> None:
    """Replayed twice, run op by op, and replayed in one call: the same bytes."""
    a_hashes, a_moved = _sequence(step, start, replays, step.replay)
    for index, moved in enumerate(a_moved):
        log.write(f"[A {index:02}] stepdiff={moved:.6e} state={a_hashes[index][:16]}")
    b_hashes, b_moved = _sequence(step, start, replays, step.replay)
    for index, moved in enumerate(b_moved):
        log.write(f"[B {index:02}] stepdiff={moved:.6e} state={b_hashes[index][:16]}")
    log.check(
        a_hashes == b_hashes and a_moved == b_moved and len(set(a_hashes)) == replays,
        f"Determinism OK: {replays} replays, every byte of every state tensor equal at every step",
    )
    eager, _ = _sequence(step, start, replays, step.run)
    log.check(
        eager == a_hashes, f"Eager OK: {replays} steps run op by op, same bytes as the replays"
    )
    step.load_state_dict(start)
    step.replay(replays)
    log.check(
        state_hash(step) == a_hashes[-1], f"replay({replays}) in one call ends on the same bytes"
    )


def _check_case(log: Log, name: str, device: str, replays: int, seed: int, dump: bool) -> None:
    case = CASES[name]
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((case.batch, case.inputs)).astype(np.float32)
    t = rng.standard_normal((case.batch, case.outputs)).astype(np.float32)
    graph = build(name, case)
    step = graph.compile(device=device, seed=seed)
    start = step.state_dict()
    wide = {key: value.astype(np.float64) for key, value in start.items()}

    def reference() -> float:
        return reference_step(wide, x.astype(np.float64), t.astype(np.float64))

    log.write(f"--- {name}: batch {case.batch}, {case.inputs}-{case.hidden}-{case.outputs}")
    first_loss = reference()
    log.check(np.isfinite(first_loss), f"reference forward loss = {first_loss:.9f} (NumPy float64)")
    log.check(step.device.startswith(device.split(":")[0]), f"backend: {step.device}")
    for param in PARAMS:
        log.write(f"[param] {param} {start[param].shape} {start[param].dtype} {step.device}")
    if dump:
        log.write("=== IR DUMP ===")
        log.write(graph.to_json().rstrip())
    for ok, text in graph.verify().lines:
        log.check(ok, text)
    _check_plan(log, step, graph.lower())
    step(x=x, t=t)
    _check_first_step(log, step, start, first_loss)
    _check_steps(log, step, replays, wide, reference)
    _check_determinism(log, step, start, replays)


def run(
    device: str = "auto",
    replays: int = 20,
    seed: int = 0,
    dump: bool = False,
    write: Callable[[str], Any] = print,
) -> Log:
    """Runs every check on both reference graphs and returns the log."""
    log = Log(write)
    write(
        "=== aicf verify: IR shapes + topo + lowering + plan + runtime trace "
        "+ determinism(full restore) ==="
    )
    from .device import resolve_device

    target = resolve_device(device)
    write(f"replays={replays}, seed={seed}, device={target}")
    for name in CASES:
        _check_case(log, name, target, replays, seed, dump)
    write("OK" if not log.failed else f"FAILED: {len(log.failed)} checks")
    return log
