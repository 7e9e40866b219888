"""Trains GPT-2 (Radford et al., 2019) on a text, goes on where it was stopped, and writes.

    python examples/gpt2.py --small                              a minute on a CPU
    python examples/gpt2.py --text TEXT --tokenizer tokenizer.json   the one of 124M params
    python examples/gpt2.py --weights model.safetensors --tokenizer tokenizer.json --steps 0

Without --text it reads the topics of Python's help(); a text that ends in .bin is tokens, as
uint16. Without --tokenizer a token is a byte; tokenizer.json is Hugging Face's, as are the weights.
"""

import argparse
import functools
import json
import math
import re
import time
import unicodedata
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import aicf
import numpy as np
from aicf import nn, optim


class Sizes(NamedTuple):
    """A model, and what one pass forward and back takes of the text."""

    letters: int  # the tokens there are
    length: int  # of a sequence
    width: int
    heads: int
    layers: int
    rows: int  # sequences at a time
    rate: float  # the largest


LARGE = Sizes(50304, 1024, 768, 12, 12, 16, 6e-4)
SMALL = Sizes(256, 64, 128, 4, 4, 16, 3e-3)


# ---- the model, with the names of Hugging Face's


class Attention(nn.Module):
    def __init__(self, size: Sizes) -> None:
        self.heads = size.heads
        self.c_attn = nn.Linear(size.width, 3 * size.width)
        self.c_proj = nn.Linear(size.width, size.width)

    def forward(self, x: aicf.Value) -> aicf.Value:
        rows, length, width = x.shape
        parts = (rows, length, self.heads, width // self.heads)
        qkv = aicf.split(self.c_attn(x), 3, axis=-1)
        qkv = [aicf.permute(part.reshape(parts), (0, 2, 1, 3)) for part in qkv]
        y = aicf.scaled_dot_product_attention(*qkv, causal=True)
        return self.c_proj(aicf.permute(y, (0, 2, 1, 3)).reshape(x.shape))


class Perceptron(nn.Module):
    def __init__(self, size: Sizes) -> None:
        self.c_fc = nn.Linear(size.width, 4 * size.width)
        self.c_proj = nn.Linear(4 * size.width, size.width)

    def forward(self, x: aicf.Value) -> aicf.Value:
        return self.c_proj(aicf.gelu(self.c_fc(x), "tanh"))


class Block(nn.Module):
    def __init__(self, size: Sizes) -> None:
        self.ln_1, self.attn = nn.LayerNorm(size.width), Attention(size)
        self.ln_2, self.mlp = nn.LayerNorm(size.width), Perceptron(size)

    def forward(self, x: aicf.Value) -> aicf.Value:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """Its output layer is its table of tokens."""

    def __init__(self, size: Sizes, seed: int = 0) -> None:
        self.size = size
        self.recompute, self.chunk = False, None
        self.wte, self.wpe = (nn.Embedding(n, size.width) for n in (size.letters, size.length))
        self.h = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.ln_f = nn.LayerNorm(size.width)
        rng = np.random.default_rng(seed)
        for name, p in self.named_parameters():
            if p.ndim == 2:  # what is added to the residual stream begins small
                std = 0.02 / (math.sqrt(2 * size.layers) if name.endswith("c_proj.weight") else 1)
                p.set(rng.standard_normal(p.shape, np.float32) * np.float32(std))
            elif name.endswith("bias"):
                p.set(np.zeros(p.shape, np.float32))

    def forward(self, tokens: aicf.Value) -> aicf.Value:
        """What goes into the output layer, [tokens, width], of tokens [rows, length]."""
        x = self.wte(tokens) + self.wpe(np.arange(tokens.shape[1]))
        for block in self.h:
            x = aicf.remat(block, x) if self.recompute else block(x)
        return self.ln_f(x).reshape((-1, self.size.width))

    def loss(self, tokens: aicf.Value, following: aicf.Value) -> aicf.Value:
        table = self.wte.in_graph(tokens.graph)["weight"]
        x = self(tokens)
        return aicf.linear_cross_entropy(x, table, following.reshape((-1,)), chunk=self.chunk)

    def logits(self, tokens: aicf.Value, at: aicf.Value) -> aicf.Value:
        """Of the token behind position `at` of a single row."""
        x = aicf.take(self(tokens), at, 0)
        return aicf.linear(x, self.wte.in_graph(tokens.graph)["weight"])


def load_weights(path: Path) -> GPT2:
    """A model with the sizes and params of a file of Hugging Face's GPT-2."""
    found = {}
    for name, array in aicf.Checkpoint(path).items():
        name = name.removeprefix("transformer.")
        if re.search(r"^lm_head|\.attn\.(masked_)?bias$", name):
            continue  # the table of tokens again; which positions attend to which
        if re.search(r"c_(attn|proj|fc)\.weight$", name):
            array = array.T  # Conv1D has inputs first
        found[name] = array.astype(np.float32)
    letters, width = found["wte.weight"].shape
    layers = len([name for name in found if name.endswith("ln_1.weight")])
    length = len(found["wpe.weight"])
    size = LARGE._replace(
        letters=letters, length=length, width=width, heads=width // 64, layers=layers
    )
    model = GPT2(size)
    model.load_state_dict(found)
    return model


# ---- tokens


class Bytes:
    """A token is a byte."""

    letters = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


class BytePairs:
    """GPT-2's tokens: bytes of a word, joined pair by pair in the order of the file's merges."""

    def __init__(self, path: Path) -> None:
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        self.number: dict[str, int] = model["vocab"]
        self.text = {number: text for text, number in self.number.items()}
        self.letters = max(self.text) + 1
        merges = [one.split(" ") if isinstance(one, str) else one for one in model["merges"]]
        self.rank = {tuple(pair): i for i, pair in enumerate(merges)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the others follow 255
        hidden = [byte for byte in range(256) if byte not in shown]
        self.letter = {byte: chr(byte) for byte in shown}
        self.letter |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
        self.byte = {letter: byte for byte, letter in self.letter.items()}
        self.word = functools.cache(self._word)

    def encode(self, text: str) -> list[int]:
        kinds = {one: unicodedata.category(one)[0] for one in set(text)}
        words, digits = (
            "".join(re.escape(one) for one in sorted(kinds) if kinds[one] == kind) or "a"
            for kind in "LN"
        )
        pattern = (
            f"'s|'t|'re|'ve|'m|'ll|'d| ?[{words}]+| ?[{digits}]+| ?[^\\s{words}{digits}]+"
            r"|\s+(?!\S)|\s+"
        )
        return [token for word in re.findall(pattern, text) for token in self.word(word)]

    def _word(self, word: str) -> list[int]:
        parts = [self.letter[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(zip(parts, parts[1:], strict=False))
            best = min(pairs, key=lambda pair: self.rank.get(pair, math.inf))
            if best not in self.rank:
                break
            joined, i = [], 0
            while i < len(parts):
                both = i + 1 < len(parts) and (parts[i], parts[i + 1]) == best
                joined.append(parts[i] + parts[i + 1] if both else parts[i])
                i += 1 + both
            parts = joined
        return [self.number[part] for part in parts]

    def decode(self, tokens: list[int]) -> str:
        letters = "".join(self.text.get(token, "") for token in tokens)
        return bytes(self.byte[one] for one in letters if one in self.byte).decode(errors="replace")


def load_tokens(path: Path | None, tokenizer: Bytes | BytePairs) -> np.ndarray:
    if path is not None and path.suffix == ".bin":
        return np.memmap(path, np.uint16, "r")
    text = "\n".join(topics[name] for name in sorted(topics))
    return np.array(tokenizer.encode(path.read_text("utf-8") if path else text), np.uint16)


def batch(tokens: np.ndarray, size: Sizes, *seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pieces of the text, and the same moved by one token: always those of the seed."""
    starts = np.random.default_rng(seed).integers(0, len(tokens) - size.length, size.rows)
    pieces = tokens[starts[:, None] + np.arange(size.length + 1)].astype(np.int32)
    return pieces[:, :-1], pieces[:, 1:]


# ---- training


def trainer(model: GPT2, parts: int, updates: int, peak: float, **options: Any) -> aicf.Function:
    """train(x, following, last): adds to the gradients of an update; the last part makes it."""

    @aicf.function(**options)
    def train(x: aicf.Value, following: aicf.Value, last: bool) -> aicf.Value:
        loss = model.loss(x, following)
        g, grads = loss.graph, {}
        for p, grad in g.backward(loss * (1 / parts)).items():
            if parts > 1:
                total = g.state(f"sum.{p.name}", p.shape)
                grad = total + grad
                g.assign(total, aicf.zeros_like(grad) if last else grad)
            grads[p] = grad
        if last:
            warmup = min(updates // 10, 2000)
            rate = optim.warmup_cosine(g.step_count("opt.0"), peak, warmup, updates, peak / 10)
            groups = {  # weights decay; biases, norms and tables do not
                "*.c_*.weight": optim.AdamW(rate, (0.9, 0.95), weight_decay=0.1),
                "*": optim.AdamW(rate, (0.9, 0.95), weight_decay=0.0),
            }
            g.update(grads, groups, clip_norm=1.0)
        return loss

    return train


def write(model: GPT2, start: list[int], count: int, **options: Any) -> list[int]:
    """`start` and `count` more tokens, each one of the 50 that the model expects most."""
    size, rng, tokens = model.size, np.random.default_rng(0), list(start)

    @aicf.function(**options)
    def expected(tokens: aicf.Value, at: aicf.Value) -> aicf.Value:
        return model.logits(tokens, at)

    for _ in range(count):
        known = tokens[-size.length :]
        row = np.zeros((1, size.length), np.int32)
        row[0, : len(known)] = known
        logits = expected(row, np.int32(len(known) - 1)).numpy().reshape(-1).astype(np.float64)
        best = np.argsort(logits)[-50:]
        p = np.exp((logits[best] - logits[best[-1]]) / 0.8)
        tokens.append(int(rng.choice(best, p=p / p.sum())))
    return tokens


def main(argv: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="0.8M params and float32")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--steps", type=int, help="updates in all")
    parser.add_argument("--until", type=int, help="stop after this update")
    parser.add_argument("--parts", type=int, help="batches an update")
    parser.add_argument("--rows", type=int, help="sequences a batch")
    parser.add_argument("--recompute", action="store_true", help="less memory for more time")
    parser.add_argument("--chunk", type=int, help="tokens whose logits are there at a time")
    parser.add_argument("--rate", type=float, help="the largest learning rate")
    parser.add_argument("--out", type=Path, default=Path("gpt2_out"))
    parser.add_argument("--resume", action="store_true", help="go on from --out")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--write", type=int, default=100, help="tokens to write at the end")
    args = parser.parse_args(argv)

    size = SMALL if args.small else LARGE
    model = load_weights(args.weights) if args.weights else GPT2(size)
    size = model.size._replace(rows=args.rows or size.rows, rate=args.rate or size.rate)
    model.recompute, model.chunk = args.recompute, args.chunk
    tokenizer = BytePairs(args.tokenizer) if args.tokenizer else Bytes()
    if tokenizer.letters > size.letters:
        parser.error(f"--tokenizer has {tokenizer.letters} tokens, the model {size.letters}")
    tokens = load_tokens(args.text, tokenizer)
    cut = len(tokens) * 9 // 10
    if len(tokens) - cut <= size.length:
        parser.error(f"the text has {len(tokens)} tokens; need more than {10 * size.length}")
    steps = (300 if args.small else 20000) if args.steps is None else args.steps
    parts = args.parts or (1 if args.small else 32)
    options: dict[str, Any] = {"device": args.device, "math": "fp32" if args.small else "mixed"}
    count = sum(math.prod(p.shape) for p in model.parameters())
    print(f"{count} params, {len(tokens)} tokens, {parts * size.rows * size.length} an update")

    test = aicf.function(model.loss, **options)

    def held_out() -> float:
        losses = [float(test(*batch(tokens[cut:], size, 1, i))) for i in range(4)]
        return float(np.mean(losses))

    before = after = held_out()
    print(f"held-out loss {before:.4f} a token")
    if steps > 0:
        args.out.mkdir(parents=True, exist_ok=True)
        path, done = args.out / "checkpoint.safetensors", 0
        train = trainer(model, parts, steps, size.rate, **options)
        for last in {True, parts == 1}:
            train.step(*batch(tokens[:cut], size, 0), last)  # compiled, not run: all states exist
        if args.resume:
            train.load(path)
            done = int(aicf.Checkpoint(path).metadata["updates"])
        until = min(steps, args.until or steps)
        start, since = time.perf_counter(), done
        for i in range(done, until):
            for part in range(parts):
                given = batch(tokens[:cut], size, 0, i, part)
                loss = train(*given, part == parts - 1)
            if (i + 1) % 10 == 0 or i + 1 == until:
                said = f"update {i + 1}/{steps}  loss {float(loss):.4f}"  # waits for the device
                now = time.perf_counter()
                speed = (i + 1 - since) * parts * size.rows * size.length / (now - start)
                print(f"{said}  {speed:.0f} tokens/s", flush=True)
                start, since = now, i + 1
            if (i + 1) % 500 == 0 or i + 1 == until:
                train.save(path, metadata={"updates": i + 1})
        after = held_out()
        print(f"held-out loss {after:.4f} a token")
    if args.write:
        prompt = tokenizer.encode(args.prompt)
        print(tokenizer.decode(write(model, prompt, args.write, **options)))
    return before, after


if __name__ == "__main__":
    main()
