"""Times attention on a GPU: both families of our kernels beside PyTorch's, by head size and length.

    python bench/attention_gpu.py [--lengths 1024 4096] [--heads 64 128] [--rounds 7] [--json FILE]

Operands are bfloat16 and random: 16,384 tokens in batches of one length, heads of 2,048 columns,
causal. Forward alone, and the backward alone: for ours, the time of a step with both less that of
the forward's. Each library's calls are replayed from a CUDA graph, by turns. TFLOP/s count two
products of the half of the scores that is not masked forward, and five backward; a ratio is the
peer's time over our default's in the same round: above 1, ours is faster. PyTorch's backends are
cuDNN's and FlashAttention's; "deterministic" is PyTorch's backward where it promises equal bits, as
ours always does.
"""

import argparse
import datetime
import json
import statistics
from pathlib import Path

import aicf
from aicf import _core
from conftest import versions
from rows_gpu import BF16, numbers, take_turns

TOKENS, COLUMNS = 16384, 2048


def shape_of(length, head):
    return TOKENS // length, COLUMNS // head, length, head


def flops(length, head, backward):
    products = 5 if backward else 2
    return products * 2 * TOKENS * (COLUMNS // head) * length * head / 2


def ours(length, head, backward, kind):
    """A step of one pass; of the backward, the forward's results are states."""
    shape = shape_of(length, head)
    g = aicf.Graph("attention")
    q, k, v = (g.state(n, shape, BF16, init=numbers(shape, BF16, i)) for i, n in enumerate("qkv"))
    y = aicf.scaled_dot_product_attention(q, k, v, causal=True)
    if not backward:
        g.output("y", y)
    else:
        dy = g.state("dy", shape, BF16, init=numbers(shape, BF16, 3))
        for name, value in g.backward(y, [q, k, v], grad=dy).items():
            g.output(f"d{name.name}", value)
    known = _core.cuda_candidates(g._core, _core.pass_names())
    chosen = {at: kind for at, names in known.items() if kind in names}
    if kind and not chosen:
        return None
    return g.compile(device="cuda", candidates=chosen)


def theirs(length, head, backward, backend, deterministic):
    """A CUDA graph of PyTorch's call; None where the backend does not do it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = shape_of(length, head)
    data = [torch.from_numpy(numbers(shape, "float32", i)).cuda().bfloat16() for i in range(4)]
    operands, dy = [x.requires_grad_(backward) for x in data[:3]], data[3]
    torch.use_deterministic_algorithms(deterministic)
    attention = torch.nn.functional.scaled_dot_product_attention
    try:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(side):
                y = attention(*operands, is_causal=True)

                def call():
                    if backward:
                        return torch.autograd.grad(y, operands, dy, retain_graph=True)
                    return attention(*operands, is_causal=True)

                call()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph, stream=side):
                    kept = call()
            torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"{backend}: {str(error).splitlines()[0]}", flush=True)
        return None
    finally:
        torch.use_deterministic_algorithms(False)
    return graph, (y, kept, dy)


def measured(length, head, backward, rounds):
    import torch

    calls, held = {}, []
    for name, kind in (("aicf", ""), ("aicf wgmma", "wgmma"), ("aicf mma.sync", "mma")):
        for both in (False, True)[: 1 + backward]:  # a step with a backward has its forward too
            if step := ours(length, head, both, kind):
                calls[name if both == backward else f"{name} forward"] = (
                    step.replay,
                    step.synchronize,
                )
    forms = [("cuDNN", "CUDNN_ATTENTION", False), ("flash", "FLASH_ATTENTION", False)]
    if backward:
        forms.append(("deterministic", "FLASH_ATTENTION", True))
    for name, backend, deterministic in forms:
        if made := theirs(length, head, backward, backend, deterministic):
            held.append(made)
            graph = made[0]
            calls[name] = (
                lambda n, graph=graph: [graph.replay() for _ in range(n)],
                torch.cuda.synchronize,
            )
    taken = take_turns(calls, rounds)
    for name in [name for name in taken if f"{name} forward" in taken]:
        forward = taken.pop(f"{name} forward")
        taken[name] = [a - b for a, b in zip(taken[name], forward, strict=True)]
    row = {"head": head, "length": length, "pass": "backward" if backward else "forward"}
    row["tflop_s"] = {
        name: flops(length, head, backward) / statistics.median(seconds) / 1e12
        for name, seconds in taken.items()
    }
    row["ratio"] = {}
    for name in taken:
        ratios = [t / s for s, t in zip(taken["aicf"], taken[name], strict=True)]
        row["ratio"][name] = [statistics.median(ratios), min(ratios), max(ratios)]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--heads", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import torch

    rows = []
    for head in given.heads:
        for length in given.lengths:
            for backward in (False, True):
                rows.append(row := measured(length, head, backward, given.rounds))
                figures = "  ".join(f"{n} {t:.0f}" for n, t in row["tflop_s"].items())
                print(
                    f"head {head} length {length:5} {row['pass']:8} TFLOP/s: {figures}", flush=True
                )
                if given.json:
                    about = {
                        "command": "python bench/attention_gpu.py",
                        "date": datetime.date.today().isoformat(),
                        "device": torch.cuda.get_device_name(),
                        "versions": versions(),
                        "rounds": given.rounds,
                    }
                    given.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
