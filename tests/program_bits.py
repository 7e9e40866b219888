"""The bits of many programs as one table: what a change that must keep every bit is held against.

    python tests/program_bits.py [--device cuda] [--dumps]             compare with the table
    python tests/program_bits.py --write                               write the table anew

The table holds the rows of the op table in two sizes, random graphs, loops, and the training steps
of the examples, as computed on a CPU. Every instruction set has the same bits, and so has a GPU,
save in products of 16-bit numbers: there its tensor cores' order is declared, which a CPU computes
too when asked for it. --dumps writes the digests of the lowered lists and plans as well, which may
differ from one version to the next.
"""

import argparse
import hashlib
import importlib.util
import json
import sys
import time
import zlib
from pathlib import Path

import aicf
import numpy as np
import test_random_graphs as random_graphs
from aicf import _core
from boundary import digest
from op_cases import CASES, SIZES
from test_ops import arg_dtype, as_list, draw

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "data" / "program_bits.json"
LARGER = {letter: 37 + i for i, letter in enumerate(SIZES)}
RANDOM_GRAPHS, RANDOM_STEPS = 400, 100
EXAMPLE_STEPS = 5


def rows_of_op_table():
    """(name, graph, batches) of each row, dtype and size."""
    for case in CASES:
        for dtype in case.dtypes:
            for kind, sizes in (("table", SIZES), ("larger", LARGER)):
                rng = np.random.default_rng([zlib.crc32(case.id.encode()), 5])
                arrays = [draw(arg, dtype, sizes, rng) for arg in case.args]
                g = aicf.Graph("row")
                try:
                    values = [
                        g.input(f"x{i}", array.shape, arg_dtype(arg, dtype))
                        for i, (arg, array) in enumerate(zip(case.args, arrays, strict=True))
                    ]
                    for i, y in enumerate(as_list(case.build(g, *values))):
                        g.output(f"y{i}", y)
                except aicf.ShapeError:  # the row holds for its own sizes alone
                    continue
                feed = {f"x{i}": array for i, array in enumerate(arrays)}
                yield f"op {case.id} {dtype} {kind}", g, [feed]


def random_programs():
    """Graphs with their gradients."""
    for number in range(RANDOM_GRAPHS):
        rng = np.random.default_rng([number, 17])
        dtype = "float32" if number % 2 else "float64"
        inputs, program = random_graphs.random_program(rng, int(rng.integers(5, 26)), 1e-3)
        count = len(inputs) + len(program)
        wanted = sorted({count - 1, *(int(w) for w in rng.integers(len(inputs), count, 2))})
        values = random_graphs.interpret(inputs, program)
        weights = [rng.uniform(-1, 1, values[at].shape) for at in wanted]
        g, _ = random_graphs.build_program(inputs, program, wanted, dtype, weights)
        yield f"graph {number}", g, [{f"x{i}": x.astype(dtype) for i, x in enumerate(inputs)}]


def random_steps():
    """Training steps of an MLP, three batches each."""
    for number in range(RANDOM_STEPS):
        rng = np.random.default_rng([number, 18])
        batch, width, classes = (int(n) for n in rng.integers(1, 140, 3))
        inside = int(rng.integers(1, 300))
        optimizer, _ = random_graphs.random_optimizer(rng)
        activation = str(rng.choice(list(random_graphs.ACTIVATIONS)))
        g = aicf.Graph("train")
        hidden = getattr(aicf, activation)(g.dense("0", g.input("x", (batch, width)), inside))
        loss = aicf.cross_entropy(g.dense("1", hidden, classes), g.input("t", (batch,), "int64"))
        g.minimize(loss, optimizer)
        g.output("loss", loss)
        yield (
            f"step {number}",
            g,
            [
                {
                    "x": rng.standard_normal((batch, width)).astype("f"),
                    "t": rng.integers(0, classes, batch),
                }
                for _ in range(3)
            ],
        )


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example_steps():
    """The training steps of examples/, on random data of their shapes."""
    rng = np.random.default_rng(19)
    digits, conv, text = (example(n) for n in ("digits", "digits_conv", "char_transformer"))
    letters = 90
    for name, g, feed in (
        ("digits", digits.train_graph(digits.BATCH), lambda: {
            "x": rng.random((digits.BATCH, 64), "f"),
            "labels": rng.integers(0, 10, digits.BATCH).astype("i"),
        }),
        ("digits_conv", conv.train_graph(100), lambda: {
            "x": rng.random((conv.BATCH, 1, 8, 8), "f"),
            "labels": rng.integers(0, 10, conv.BATCH).astype("i"),
        }),
        ("char_transformer", text.train_graph(letters, 100), lambda: {
            "x": rng.integers(0, letters, (text.BATCH, text.LENGTH)).astype("i"),
            "next": rng.integers(0, letters, text.BATCH * text.LENGTH).astype("i"),
        }),
    ):  # fmt: skip
        yield f"example {name}", g, [feed() for _ in range(EXAMPLE_STEPS)]
    for name in ("gradient_penalty", "maml", "pinn"):  # gradients of gradients
        module = example(name)
        feeds = [module.batch(rng) for _ in range(EXAMPLE_STEPS)]
        yield f"example {name}", module.train_graph(), feeds


def loop_programs():
    """Loops with their gradients: a recurrence of two orders, recurrent layers, random numbers and
    gradients of one's own inside, bounded loops and choices; three batches each."""
    rng = np.random.default_rng(20)

    def program(name, build, arrays):
        g = aicf.Graph("loop")
        values = [g.input(f"x{i}", shape, "float32") for i, shape in enumerate(arrays)]
        results, wrt = build(g, *values)
        for i, y in enumerate(results):
            g.output(f"y{i}", y)
        loss = sum((aicf.sum(y * y) for y in results[1:]), aicf.sum(results[0] * results[0]))
        first = aicf.grad(loss, wrt)
        second = aicf.grad(sum((aicf.sum(d * d) for d in first[1:]), aicf.sum(first[0])), wrt)
        for order, grads in ((1, first), (2, second)):
            for i, d in enumerate(grads):
                g.output(f"d{order}.{i}", d)
        feeds = [
            {f"x{i}": rng.uniform(-1, 1, s).astype("f") for i, s in enumerate(arrays)}
            for _ in range(3)
        ]
        return f"loop {name}", g, feeds

    def recurrence(dropped, own, **options):
        @aicf.custom_gradient
        def straight(v):
            return aicf.tanh(v), lambda dy: dy * (v * v + 1.0)

        def build(g, x, h, w):
            def turn(c, row):
                c = aicf.linear(c, w) + row
                c = straight(c) if own else aicf.tanh(c)
                return (aicf.dropout(c, 0.3) if dropped else c), c

            last, ys = aicf.scan(turn, h, x, **options)
            return [last, ys], [x, h, w]

        return build

    def layer(fn):
        def build(g, x, w_ih, w_hh):
            y, last = fn(x, [w_ih, w_hh])
            return [y, *(last if isinstance(last, tuple) else [last])], [x, w_ih, w_hh]

        return build

    def bounded(g, x):
        y = aicf.while_loop(lambda c: aicf.sum(c * c) < 90.0, lambda c: c * 1.5 + x, x, 6)
        return [aicf.cond(aicf.sum(x) > 0.0, aicf.sin, aicf.dropout, y)], [x]

    for turns, width in ((5, 7), (33, 48)):
        arrays = (turns, 9, width), (9, width), (width, width)
        for dropped, own in ((False, False), (True, False), (False, True)):
            for options in ({}, {"reverse": True}, {"save": "recompute"}):
                name = f"{turns} {dropped} {own} {options}"
                yield program(name, recurrence(dropped, own, **options), arrays)
        for fn, gates in ((aicf.lstm, 4), (aicf.gru, 3)):
            shapes = (turns, 9, width), (gates * width, width), (gates * width, width)
            yield program(f"{turns} {fn.__name__}", layer(fn), shapes)
        yield program(f"{turns} bounded", bounded, [(turns, width)])


SOURCES = (rows_of_op_table, random_programs, random_steps, example_steps, loop_programs)


def results(step, batches):
    """The digest of every result after each batch, and of the state after the last."""
    found = {}
    for at, batch in enumerate(batches):
        found |= {f"{at} {name}": array.numpy() for name, array in step(**batch).items()}
    return digest(found | {f"state {k}": v for k, v in step.state_dict().items()})


def text_digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def table(device, part=(0, 1)):
    """name -> digests of results, of the lowered list and of the plan."""
    found, number = {}, 0
    for source in SOURCES:
        for name, g, batches in source():
            number += 1
            if number % part[1] != part[0]:
                continue
            step = g.compile(device=device, seed=3, checks="off")
            lowered = text_digest(json.dumps(g.lower(), sort_keys=True, default=str))
            found[name] = [results(step, batches), lowered, text_digest(str(step.plan))]
    return found


def on_tensor_cores(names, cores):
    """The digests of results that a CPU has in the order of such tensor cores."""
    return {
        name: results(g.compile(seed=3, tensor_cores=cores, checks="off"), batches)
        for source in SOURCES
        for name, g, batches in source()
        if name in names
    }


def differing(device, part=(0, 1)):
    """The table found, and the names of the programs whose bits are not those wanted.

    A program that the table does not know, a new op's, has nothing to be held against.
    """
    found, wanted = table(device, part), json.loads(TABLE.read_text())
    other = [name for name, digests in found.items() if wanted.get(name, digests[0]) != digests[0]]
    halves = {name for name in other if "float16" in name}
    if device != "cpu" and halves:
        cores = _core.cuda_info()["devices"][0]["arch"].rstrip("af")
        wanted |= on_tensor_cores(halves, cores)
        other = [name for name in other if wanted.get(name) != found[name][0]]
    if part == (0, 1):
        other += sorted(set(wanted) - set(found))
    return found, other


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--dumps", type=Path, help="write all digests here")
    parser.add_argument("--part", default="0/1", help="every Nth program: K/N")
    options = parser.parse_args()
    begin = time.perf_counter()
    if options.write:
        bits = {name: digests[0] for name, digests in table("cpu").items()}
        TABLE.write_text(json.dumps(bits, indent=0) + "\n")
    found, other = differing(options.device, tuple(map(int, options.part.split("/"))))
    if options.dumps:
        options.dumps.write_text(json.dumps(found, indent=0) + "\n")
    took = f"{time.perf_counter() - begin:.0f} s"
    print(
        f"{len(found)} programs on {options.device}, {took}: {len(other)} differ",
        *other[:50],
        sep="\n",
    )
    sys.exit(bool(other))


if __name__ == "__main__":
    main()
