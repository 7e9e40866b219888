"""The short examples of aicf.function and aicf.nn: each runs and learns, in at most 30 lines."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import aicf
import pytest

RECIPES = sorted((Path(__file__).resolve().parents[1] / "examples/recipes").glob("*.py"))


def run(name, *args, needs=()):
    for package in needs:
        pytest.importorskip(package)
    path = next(path for path in RECIPES if path.stem == name)
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    aicf.nn.seed(0)
    return module.main(*args)


def test_they_are_short_and_on_the_page():
    page = (RECIPES[0].parents[2] / "docs/recipes.md").read_text()
    assert len(RECIPES) == 9
    for path in RECIPES:
        assert len(path.read_text().splitlines()) <= 30, path.name
        assert f"examples/recipes/{path.name}" in page


def test_tabular():
    best, last = run("tabular")
    assert best == last < 0.06


def test_images():
    assert run("images", 150) > 0.85


def test_language():
    first, last = run("language", 80)
    assert last < first / 3


def test_gan(tmp_path):
    mean, spread = run("gan", tmp_path / "gan", 1200)
    assert abs(mean - 3) < 0.5 and 0.1 < spread < 1
    names = set(aicf.Checkpoint(tmp_path / "gan"))
    assert {"maker.0.weight", "judges.m.judge.0.weight", "makes.step", "rng.step"} <= names


def test_training():
    loss, updates, shape = run("training", 150)
    assert loss < 0.1 and updates == 150 and shape == (1,)


def test_finetune():
    losses, kept, right = run("finetune", needs=["torch"])
    assert kept and losses[99] < losses[0] and losses[-1] < losses[99] and right > 0.9


def test_sizes():
    losses, steps = run("sizes", 150)
    assert sum(losses[-20:]) < sum(losses[:20]) / 10 and steps <= 6


def test_loader():
    """In a process of its own: the workers are forks, which a JAX beside them would not bear."""
    pytest.importorskip("torch")
    code = "import json, aicf, loader; print(json.dumps(loader.main()))"
    folder = RECIPES[0].parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    losses, seen = json.loads(done.stdout)
    assert sum(losses[-7:]) < sum(losses[:7]) / 2 and seen == ["float32[32, 8]", "float32[8, 8]"]


def test_to_jax():
    losses, theirs, ours = run("to_jax", 100, needs=["jax"])
    assert losses[-1] < losses[0] / 4 and theirs == pytest.approx(ours, rel=1e-4)
