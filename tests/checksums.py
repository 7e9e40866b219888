"""Sums over all 2**32 float32 inputs of every unary op, on any device.

    python tests/checksums.py --device cuda --out tests/data/unary_checksums.json
    python tests/checksums.py --device cpu --compare tests/data/unary_checksums.json

The inputs are 256 slices of 2**24 bit patterns; a slice's sum is that of the results' bits, each
times an odd number of its place, modulo 2**32, with every NaN counted as one pattern.
"""

import argparse
import json
import sys
import time

import aicf
import numpy as np

OPS = [
    "abs", "neg", "sign", "floor", "round", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh",
    "sigmoid", "silu", "gelu_tanh", "gelu_erf", "erf", "softplus", "relu",
]  # fmt: skip
SLICES, SLICE = 256, 1 << 24
NAN = np.uint32(0x7FC00000)


def arrays(device):
    """NumPy, or CuPy for tensors on the GPU."""
    if device == "cpu":
        return np
    import cupy

    return cupy


class Summer:
    def __init__(self, device):
        self.xp = arrays(device)
        self.place = self.xp.arange(SLICE, dtype=np.uint32)
        self.weight = self.place * 2 + 1
        self.y = self.xp.empty(SLICE, np.float32)

    def sum(self, op, index):
        """The sum of one slice of one op."""
        x = (self.place + np.uint32(index * SLICE)).view(np.float32)
        aicf.op_call(op, [x], [self.y])
        bits = self.y.view(np.uint32)
        bits[self.xp.isnan(self.y)] = NAN
        return int((bits * self.weight).sum(dtype=np.uint32))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out")
    parser.add_argument("--compare")
    parser.add_argument("--ops", nargs="*", default=OPS)
    args = parser.parse_args()
    wanted = {}
    if args.compare:
        with open(args.compare) as file:
            wanted = json.load(file)["sums"]
    summer, sums, parted = Summer(args.device), {}, []
    for op in args.ops:
        start = time.perf_counter()
        found = " ".join(f"{summer.sum(op, i):08x}" for i in range(SLICES))
        sums[op] = found
        if op in wanted and wanted[op] != found:
            parted.append(op)
        took = time.perf_counter() - start
        print(f"{op}: {took:.1f} s{' DIFFERS' if op in parted else ''}", flush=True)
    if args.out:
        record = {"device": args.device, "slices": SLICES, "sums": sums}
        with open(args.out, "w") as file:
            file.write(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if parted else 0)


if __name__ == "__main__":
    main()
