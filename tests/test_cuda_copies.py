"""Products by wgmma of copies in 16 bits, of which some rows, columns or terms are made before and
the rest beside the products: sizes around those where the rest begins."""

import re

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits

# What m, n and k are multiples of while a size is sought at which some are copied beside.
BASES = {"rows": (512, 72, 72), "columns": (136, 512, 136), "terms": (72, 136, 1024)}
AXIS = {"rows": 0, "columns": 1, "terms": 2}


def product(sizes, layout):
    """Of a and b, "n" or "t" for turned each, whole or parts ("p") that begin anywhere."""
    m, n, k = sizes
    g, past = aicf.Graph("product"), 3 if layout[0] == "p" else 0
    values, shapes = [], {}
    for name, (rows, cols), how in (("a", (m, k), layout[1]), ("b", (k, n), layout[2])):
        turned = how == "t"
        lines = (cols, rows) if turned else (rows, cols)
        shapes[name] = lines[0] + past, lines[1] + 2 * past
        x = g.input(name, shapes[name])[past:, past : past + lines[1]]
        values.append(x.T if turned else x)
    g.output("y", aicf.matmul(*values))
    return g, shapes


def firsts(g, math, processors):
    """Of each kernel what there is of before products are made: (rows, columns or terms, number);
    of no kernel that copies all."""
    ((signature, names),) = _core.cuda_candidates(
        g._core, _core.pass_names(), math=math, processors=processors
    ).items()
    found = {}
    for name in names:
        if "_copies" in name or "_right" in name:
            (text,) = _core.cuda_programs(
                g._core, _core.pass_names(), processors=processors, math=math,
                candidates={signature: name},
            )  # fmt: skip
            some = re.search(r"_First \{\n(?:.* = 0;\n)*.*(rows|columns|terms) = ([1-9]\d*);", text)
            if some:
                found[name] = some[1], int(some[2])
    others = [name for name in names if name.startswith(("64x64", "128x128"))]
    return signature, found, others[0]


def sizes_of(way, math, layout, past, processors):
    """Sizes of which a kernel copies all but what lies up to `past` behind its `way`'s first."""
    axis = AXIS[way]
    for scale in range(1, 60):
        sizes = [x * (scale if i == axis else -(-processors * scale // 40)) for i, x in
                 enumerate(BASES[way])]  # fmt: skip
        sizes[axis] += past
        _, found, _ = firsts(product(sizes, layout)[0], math, processors)
        if any(kind == way for kind, _ in found.values()):
            return sizes
    pytest.fail(f"no size has {way} that are copied beside products")


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.usefixtures("any_size_narrows")
@pytest.mark.parametrize(("layout", "past"), [("nnn", 1), ("ntt", 33), ("pnt", 67), ("ptn", 129)])
@pytest.mark.parametrize("way", AXIS)
def test_bits_of_what_is_copied_beside(way, layout, past, make_rng):
    """Twice, with counters that the launch before left; a kernel that copies nothing has the same
    order."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    math = ("bf16", "fp16")[past % 4 == 1]
    sizes = sizes_of(way, math, layout, past, processors)
    (g, shapes), rng = product(sizes, layout), make_rng(past)
    signature, found, other = firsts(g, math, processors)
    feeds = [
        {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        for _ in range(2)
    ]

    def results(name):
        step = g.compile(device="cuda", math=math, candidates={signature: name})
        return [step(**feed)["y"].numpy() for feed in feeds]

    want = results(other)
    chosen = sorted(name for name, (kind, _) in found.items() if kind == way)
    for name in chosen[past % len(chosen) :][:2]:
        for got, as_said in zip(results(name), want, strict=True):
            assert_bits(got, as_said, f"{sizes} by {name}, {found[name]}")
