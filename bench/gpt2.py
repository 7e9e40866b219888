"""Times the training step of GPT-2 124M on a GPU beside PyTorch's compiled step in a CUDA graph.

    python bench/gpt2.py [rows ...] [--rounds 7] [--losses 50 [--batches 1]] [--alone] [--json FILE]

A batch is rows x 1024 random tokens; our math is "mixed", PyTorch's is autocast to bfloat16 over
float32 params, both with AdamW (PyTorch's fused) over the same first weights. The two take turns;
milliseconds a step are medians of readings of three steps, launches and the peak of memory those
of our plan, PyTorch's peak what its allocator gave out. --losses: both are first run so many steps
on the same tokens, with a rate that rises to AdamW's over them, and so is PyTorch op by op, under
autocast and in float32; with --batches again for other tokens. Ours is within the noise of bfloat16
where it is as far from float32 as PyTorch's runs under autocast are. Then ours runs again, and from
a checkpoint of the middle, which must give equal bits. --alone: without PyTorch's compiled step.
"""

import argparse
import datetime
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
from aicf import _core
from compile_cuda import gpt2
from conftest import versions
from rows_gpu import take_turns

LENGTH, LETTERS, WIDTH, HEADS, LAYERS, STEPS, RATE = 1024, 50257, 768, 12, 12, 3, 6e-4


def loss_of(p, x, target):
    """The model of compile_cuda.gpt2 in PyTorch's functions; p: params by name, W as [out, in]."""
    import torch.nn.functional as functional

    def dense(name, h):
        return functional.linear(h, p[f"{name}.W"], p[f"{name}.b"])

    def norm(name, h):
        return functional.layer_norm(h, h.shape[-1:], p[f"{name}.scale"], p[f"{name}.shift"])

    rows, length = x.shape
    h = functional.embedding(x, p["tokens"]) + p["places"]
    for i in range(LAYERS):
        qkv = dense(f"{i}.qkv", norm(f"{i}.norm0", h)).view(rows, length, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + dense(f"{i}.out", y.transpose(1, 2).reshape(rows, length, WIDTH))
        wide = functional.gelu(dense(f"{i}.wide", norm(f"{i}.norm1", h)), approximate="tanh")
        h = h + dense(f"{i}.narrow", wide)
    logits = functional.linear(norm("norm", h), p["tokens"])
    return functional.cross_entropy(logits.view(rows * length, -1).float(), target)


class Peer:
    """PyTorch's step in a CUDA graph, from the step's first weights."""

    def __init__(self, params, tokens, targets):
        import torch

        self.p = {name: value.cuda().requires_grad_() for name, value in params.items()}
        self.x = torch.from_numpy(tokens).cuda().long()
        self.target = torch.from_numpy(targets).cuda().long()
        self.rate = torch.tensor(RATE, device="cuda")
        optimizer = torch.optim.AdamW(self.p.values(), lr=self.rate, fused=True, capturable=True)
        self.optimizer = optimizer
        compiled = torch.compile(lambda x, target: loss_of(self.p, x, target))

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                loss = compiled(self.x, self.target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        side, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=side):
                self.loss = step()
        self.restart(params, tokens, targets)

    def restart(self, params, tokens, targets):
        import torch

        with torch.no_grad():
            self.x.copy_(torch.from_numpy(tokens))
            self.target.copy_(torch.from_numpy(targets))
            for name, value in params.items():
                self.p[name].copy_(value)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        torch.cuda.synchronize()

    def losses(self, rates):
        losses = []
        for rate in rates:
            self.rate.fill_(rate)
            self.graph.replay()
            losses.append(self.loss.item())
        return losses

    def replay(self, times):
        for _ in range(times):
            self.graph.replay()


def eager_losses(params, tokens, targets, rates, autocast):
    """PyTorch's losses, op by op, under autocast or with every product in float32."""
    import torch

    p = {name: value.cuda().requires_grad_() for name, value in params.items()}
    x, target = (torch.from_numpy(array).cuda().long() for array in (tokens, targets))
    optimizer = torch.optim.AdamW(p.values(), lr=RATE, fused=True)
    losses = []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = loss_of(p, x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(step, tokens, targets, rates):
    losses = []
    for rate in rates:
        step.set("opt.lr", rate)
        losses.append(step(x=tokens, next=targets)["loss"].item())
    return losses


def rates_of(count):
    return [RATE * (i + 1) / count for i in range(count)]


def drawn(rows, seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, LETTERS, (rows, LENGTH), np.int32)
    return tokens, rng.integers(0, LETTERS, rows * LENGTH, np.int32)


FIRST = 10  # steps, before small differences have grown


def compared_losses(step, start, peer, params, rows, count, batches):
    """Of each batch of tokens each library's losses, step by step, by name."""
    rates, found = rates_of(count), []
    for seed in range(batches):
        tokens, targets = drawn(rows, seed)
        if seed:
            step.load_state_dict(start)
        losses = {"aicf": our_losses(step, tokens, targets, rates)}
        if peer:
            peer.restart(params, tokens, targets)
            losses["compiled"] = peer.losses(rates)
        losses["op by op"] = eager_losses(params, tokens, targets, rates, True)
        losses["float32"] = eager_losses(params, tokens, targets, rates, False)
        found.append(losses)
        for few in (FIRST, count):
            far = [f"{name} {x:.5f}, {most:.5f}" for name, (x, most) in distances(losses, few)]
            print(f"  tokens {seed}, {few} losses: far from float32 in the mean, at most: "
                  f"{'; '.join(far)}", flush=True)  # fmt: skip
    return found


def distances(losses, count):
    """How far the first losses of each are from those of float32: in the mean and at most."""
    for name, own in losses.items():
        if name != "float32":
            far = [abs(a - b) for a, b in zip(own[:count], losses["float32"], strict=False)]
            yield name, (statistics.fmean(far), max(far))


def repeats(rows, tokens, targets, losses):
    """Whether a second run has the first one's bits, and one from a checkpoint of its middle; of
    losses, and of params at the end."""
    rates, half = rates_of(len(losses)), len(losses) // 2
    steps = [gpt2(rows=rows, length=LENGTH).compile(device="cuda", math="mixed") for _ in range(2)]
    again = our_losses(steps[0], tokens, targets, rates[:half])
    with tempfile.TemporaryDirectory() as folder:
        steps[0].save(path := Path(folder) / "half.safetensors")
        steps[1].load(path)
    again += our_losses(steps[0], tokens, targets, rates[half:])
    restored = our_losses(steps[1], tokens, targets, rates[half:])
    ends = [{name: x.numpy().tobytes() for name, x in step.params.items()} for step in steps]
    found = {
        "again": again == losses,
        "restored": restored == losses[half:],
        "params": ends[0] == ends[1],
    }
    print(f"  equal bits: {found}", flush=True)
    return found


def measured(rows, given):
    step = gpt2(rows=rows, length=LENGTH).compile(device="cuda", math="mixed")
    tokens, targets = drawn(rows, 0)
    row = {
        "rows": rows,
        "launches": len(step.lowered),
        "peak_bytes": step.plan.peak_bytes,
    }
    calls, peer, params = {"aicf": (step.replay, step.synchronize)}, None, None
    if given.losses or not given.alone:
        import torch

        torch.set_float32_matmul_precision("highest")
        params = {name: torch.from_numpy(x.numpy().copy()) for name, x in step.params.items()}
    if not given.alone:
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        peer = Peer(params, tokens, targets)
        row["peer_peak_bytes"] = torch.cuda.max_memory_allocated()
        calls["torch"] = (peer.replay, torch.cuda.synchronize)
    if given.losses:
        start = step.state_dict()
        row["losses"] = compared_losses(
            step, start, peer, params, rows, given.losses, given.batches
        )
        row["repeats"] = repeats(rows, tokens, targets, row["losses"][0]["aicf"])
    step(x=tokens, next=targets)
    taken = take_turns(calls, given.rounds, most=STEPS)
    row["ms"] = {name: 1e3 * statistics.median(seconds) for name, seconds in taken.items()}
    row["quartiles_ms"] = {
        name: [1e3 * t for t in statistics.quantiles(seconds)[::2]]
        for name, seconds in taken.items()
    }
    row["tokens_per_s"] = {name: rows * LENGTH / ms * 1e3 for name, ms in row["ms"].items()}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", nargs="*", type=int, default=[4, 16, 32])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--losses", type=int, default=0)
    parser.add_argument("--batches", type=int, default=1, help="whose losses are compared")
    parser.add_argument("--alone", action="store_true", help="without PyTorch's compiled step")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = {
        "command": "python bench/gpt2.py",
        "date": datetime.date.today().isoformat(),
        "device": _core.cuda_info()["devices"][0]["name"],
        "versions": versions(),
        "rounds": given.rounds,
        "rows": [],
    }
    for rows in given.rows:
        results["rows"].append(row := measured(rows, given))
        for name, ms in row["ms"].items():
            rate = row["tokens_per_s"][name]
            print(f"{rows:3} x {LENGTH} tokens, {name:6}: {ms:7.2f} ms, {rate:9.0f} tokens/s")
        peaks = [row[name] / 1e9 for name in ("peak_bytes", "peer_peak_bytes") if name in row]
        print(f"    {row['launches']} launches, peak {' and '.join(f'{x:.2f}' for x in peaks)} GB",
              flush=True)  # fmt: skip
        if given.json:
            given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
