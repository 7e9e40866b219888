"""The convolutional and the transformer example: few steps, held-out loss falls, checkpoint."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name, steps, needs, fall",
    [("digits_conv", 40, "sklearn", 0.5), ("char_transformer", 12, "numpy", 0.95)],
)
@pytest.mark.parametrize("bar", [True, False])
def test_learns(name, steps, needs, fall, bar, tmp_path, monkeypatch, capsys):
    """With tqdm where it is installed, and with plain lines."""
    pytest.importorskip(needs)
    module = load(name)
    if not bar:
        monkeypatch.setattr(module, "tqdm", None)
    before, after = module.main(["--steps", str(steps), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert after < before * fall
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert f"from the checkpoint: held-out loss {after:.4f}" in out
    assert bar or f"step {steps}/{steps}\n" in out
