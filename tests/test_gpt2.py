"""examples/gpt2.py: its model is Hugging Face's, it learns, and it goes on where it was stopped."""

import importlib.util
import json
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEADS, LAYERS, LETTERS, LENGTH = 128, 2, 2, 301, 16


@pytest.fixture(scope="module")
def gpt2():
    spec = importlib.util.spec_from_file_location("gpt2", ROOT / "examples" / "gpt2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hugging_face(rng, prefix):
    """Tensors with the names and layouts of GPT2LMHeadModel."""
    made = {"wte.weight": (LETTERS, WIDTH), "wpe.weight": (LENGTH, WIDTH)}
    for i in range(LAYERS):
        for name, shape in (("c_attn", (WIDTH, 3 * WIDTH)), ("c_proj", (WIDTH, WIDTH))):
            made[f"h.{i}.attn.{name}.weight"] = shape
            made[f"h.{i}.attn.{name}.bias"] = shape[1:]
        for name, shape in (("c_fc", (WIDTH, 4 * WIDTH)), ("c_proj", (4 * WIDTH, WIDTH))):
            made[f"h.{i}.mlp.{name}.weight"] = shape
            made[f"h.{i}.mlp.{name}.bias"] = shape[1:]
        for name in ("ln_1", "ln_2"):
            made |= {f"h.{i}.{name}.weight": (WIDTH,), f"h.{i}.{name}.bias": (WIDTH,)}
    made |= {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    arrays = {}
    for name, shape in made.items():
        array = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        arrays[prefix + name] = array + np.float32("ln_" in name and name.endswith("weight"))
    for i in range(LAYERS):  # what files of the library hold beside the params
        arrays[f"{prefix}h.{i}.attn.bias"] = np.tri(LENGTH, dtype=np.float32)[None, None]
    if prefix:
        arrays["lm_head.weight"] = arrays[prefix + "wte.weight"]
    return arrays


def torch_logits(arrays, tokens):
    """GPT-2 in PyTorch, float64, of tensors as Hugging Face lays them out."""
    import torch

    p = {name: torch.from_numpy(array.astype(np.float64)) for name, array in arrays.items()}

    def norm(name, x):
        return torch.nn.functional.layer_norm(x, (WIDTH,), p[f"{name}.weight"], p[f"{name}.bias"])

    def conv1d(name, x):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    rows, length = tokens.shape
    x = p["wte.weight"][tokens] + p["wpe.weight"][:length]
    for i in range(LAYERS):
        q, k, v = (
            part.reshape(rows, length, HEADS, -1).transpose(1, 2)
            for part in conv1d(f"h.{i}.attn.c_attn", norm(f"h.{i}.ln_1", x)).chunk(3, -1)
        )
        weights = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        hidden = torch.ones(length, length).triu(1).bool()
        y = weights.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        x = x + conv1d(f"h.{i}.attn.c_proj", y.transpose(1, 2).reshape(rows, length, WIDTH))
        inner = conv1d(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x))
        x = x + conv1d(f"h.{i}.mlp.c_proj", torch.nn.functional.gelu(inner, approximate="tanh"))
    return (norm("ln_f", x) @ p["wte.weight"].T).numpy()


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_files_of_hugging_face_load_by_name(gpt2, prefix, tmp_path):
    pytest.importorskip("torch")
    numpy_files = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    arrays = hugging_face(rng, prefix)
    numpy_files.save_file(arrays, tmp_path / "model.safetensors")
    model = gpt2.load_weights(tmp_path / "model.safetensors")
    assert model.size[:5] == (LETTERS, LENGTH, WIDTH, HEADS, LAYERS)
    tokens = rng.integers(0, LETTERS, (3, LENGTH))
    wanted = torch_logits(
        {name.removeprefix(prefix): array for name, array in arrays.items()}, tokens
    )
    logits = aicf.function(
        lambda tokens: aicf.linear(
            model(tokens), model.wte.in_graph(aicf.current_graph())["weight"]
        ),
        device="cpu",
    )
    found = logits(tokens.astype(np.int32)).numpy().reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    short = tokens[:1].copy()
    short[:, 9:] = 0  # what stands behind a position does not change it
    one = aicf.function(lambda tokens, at: model.logits(tokens, at), device="cpu")
    found = one(short.astype(np.int32), np.int32(8)).numpy().reshape(-1)
    np.testing.assert_allclose(found, wanted[0, 8], rtol=0, atol=2e-5 * np.abs(wanted).max())


def run(gpt2, folder, *more):
    return gpt2.main(
        ["--small", "--device", "cpu", "--rows", "4", "--out", str(folder), "--write", "0", *more]
    )


def test_learns_and_writes(gpt2, tmp_path, capsys):
    before, after = run(gpt2, tmp_path, "--steps", "20", "--write", "5", "--prompt", "def ")
    said = capsys.readouterr().out
    assert abs(before - np.log(256)) < 0.5 and after < before - 1
    assert "update 20/20  loss" in said and said.splitlines()[-1].startswith("def ")


def test_stopped_and_resumed_ends_on_the_same_bits(gpt2, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole_loss = run(gpt2, whole, "--steps", "6", "--parts", "2")[1]
    run(gpt2, parts, "--steps", "6", "--parts", "2", "--until", "3")
    assert int(aicf.Checkpoint(parts / "checkpoint.safetensors").metadata["updates"]) == 3
    assert run(gpt2, parts, "--steps", "6", "--parts", "2", "--resume")[1] == whole_loss
    names = ["checkpoint.safetensors"] * 2
    one, other = (aicf.Checkpoint(f / name) for f, name in zip((whole, parts), names, strict=True))
    assert set(one) == set(other)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_less_memory(gpt2):
    """Blocks that the gradient makes again keep every bit; logits by chunks the loss."""
    size = gpt2.SMALL._replace(length=32, width=64, rows=4)
    x, following = gpt2.batch(np.arange(500) % 7, size, 0)
    losses, temps = [], []
    for recompute, chunk in ((False, None), (True, None), (True, 32)):
        model = gpt2.GPT2(size)
        model.recompute, model.chunk = recompute, chunk
        train = gpt2.trainer(model, 1, 10, 1e-2, device="cpu")
        losses.append([float(train(x, following, True)) for _ in range(3)])
        temps.append(train.step(x, following, True).plan.regions["temps"])
    assert losses[0] == losses[1] and temps[1] < 0.7 * temps[0]
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-4)


def test_parts_of_an_update_are_one_batch(gpt2):
    """Two batches of two rows move the params as one of four."""
    size = gpt2.SMALL._replace(length=8, width=32, layers=1, rows=4)
    x, following = gpt2.batch(np.arange(100) % 7, size, 0)
    moved = []
    for parts in (1, 2):
        model = gpt2.GPT2(size)
        train = gpt2.trainer(model, parts, 10, 1e-2, device="cpu")
        for _ in range(2):
            for part, (a, b) in enumerate(
                zip(np.split(x, parts), np.split(following, parts), strict=True)
            ):
                train(a, b, part == parts - 1)
        moved.append(model.state_dict())
        assert int(train.states["opt.0.step"]) == int(train.states["opt.1.step"]) == 2
    for name, start in gpt2.GPT2(size).state_dict().items():
        assert np.abs(moved[0][name] - start).max() > 0
        if not name.endswith("c_attn.bias"):  # a key's has no gradient but rounding
            np.testing.assert_allclose(moved[0][name], moved[1][name], atol=2e-4)


def test_what_decays(gpt2):
    """Without gradients, weights of layers shrink, and nothing else does."""
    size = gpt2.SMALL._replace(length=8, width=32, layers=1, rows=1)
    model = gpt2.GPT2(size)
    train = gpt2.trainer(model, 1, 10, 1e-2, device="cpu")
    x, following = gpt2.batch(np.arange(100) % 7, size, 0)
    train.step(x, following, True)
    decays = [name for name in train.numbers if name.endswith("weight_decay")]
    assert {name: float(train.numbers[name]) for name in decays} == {
        "opt.0.weight_decay": np.float32(0.1)
    }
    moments = {name for name in train.states if name.startswith("opt.0.m.")}
    assert moments == {
        f"opt.0.m.h.0.{name}.weight"
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }


def test_byte_pairs(gpt2, tmp_path):
    letters = dict(enumerate(map(chr, range(256))))
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    pairs = ["h e", "l l", "he ll", "\u0120 w", "hell o", "1 2", "\u00c3 \u00a9"]
    vocab = {letter: byte for byte, letter in letters.items()}
    vocab |= {pair.replace(" ", ""): 256 + i for i, pair in enumerate(pairs)}
    path = tmp_path / "tokenizer.json"
    for merges in (pairs, [pair.split(" ") for pair in pairs]):  # as older and newer files have it
        path.write_text(json.dumps({"model": {"vocab": vocab, "merges": merges}}))
        tokenizer = gpt2.BytePairs(path)
        text = "hello world, shell's é 123 4_5\n\n  x²"
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        joined = [tokenizer.text[token] for token in tokens]
        assert joined[:6] == ["hello", "\u0120w", "o", "r", "l", "d"]
        assert joined[joined.index("12") :][:2] == ["12", "3"] and "\u00c3\u00a9" in joined
        assert "sh" not in joined and tokenizer.letters == 256 + len(pairs)
    assert gpt2.Bytes().decode(gpt2.Bytes().encode("é")) == "é"


def test_texts(gpt2, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("abc" * 10)
    np.arange(300, dtype=np.uint16).tofile(tmp_path / "b.bin")
    tokenizer = gpt2.Bytes()
    assert gpt2.load_tokens(tmp_path / "a.txt", tokenizer).tolist() == list(b"abc") * 10
    assert gpt2.load_tokens(tmp_path / "b.bin", tokenizer)[299] == 299
    with pytest.raises(SystemExit):
        run(gpt2, tmp_path, "--text", str(tmp_path / "a.txt"))
    assert "the text has 30 tokens; need more than 640" in capsys.readouterr().err


def test_mixed_on_a_small_model(gpt2):
    """The math that the large model is trained with."""
    size = gpt2.SMALL._replace(length=8, width=32, layers=1, rows=4)
    x, following = gpt2.batch(np.arange(100) % 7, size, 0)
    train = gpt2.trainer(gpt2.GPT2(size), 1, 30, 1e-2, device="cpu", math="mixed")
    losses = [float(train(x, following, True)) for _ in range(30)]
    assert losses[-1] < losses[0] / 2 and train.step(x, following, True).plan.math == "mixed"


@pytest.mark.skipif(not hasattr(_core, "cuda_plan"), reason="this build has no CUDA backend")
@pytest.mark.parametrize("rows", [4, 16, 32])
def test_launches_of_a_training_step(rows):
    """Of a layer: 14 products and attentions, four norms and the sum before attention's gradients.
    Beside these: the embedding, casts and numbers, a norm, three products and the loss; the
    embedding's gradient, and sums of biases and updates, which some layers share."""
    spec = importlib.util.spec_from_file_location("cuda", ROOT / "bench" / "compile_cuda.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def plan(layers, passes):
        g = module.gpt2(rows, layers=layers)
        return json.loads(_core.cuda_plan(g._core, passes, 132, "sm_90a", math="mixed"))

    for layers, shared in ((3, 7), (12, 11)):
        now = plan(layers, _core.pass_names())
        assert len(now["ops"]) <= 19 * layers + 9 + shared
    apart = plan(12, [name for name in _core.pass_names() if name != "horizontal"])
    assert now["peak_bytes"] <= apart["peak_bytes"]
    updates = [at for at, op in enumerate(now["ops"]) if "adam_step" in op["kernel"]]
    assert len(updates) == 5 and updates[0] < len(now["ops"]) * 0.6, "beside the products"
