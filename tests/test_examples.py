"""The examples really run, and three Steps share one set of parameters."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("digits", ROOT / "examples" / "digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(digits):
    return digits.load_data()


def same_bytes(a, b):
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def batch(digits, data, step, epoch=0):
    """The first or the last batch of an epoch, whichever the step takes."""
    chosen = digits.batches(len(data.train_y), epoch)[0 if step == "train" else -1]
    return {"x": data.train_x[chosen], "labels": data.train_y[chosen]}


def test_batches_cover_an_epoch_and_end_short(digits, data):
    found = digits.batches(len(data.train_y), 3)
    assert {len(rows) for rows in found[:-1]} == {digits.BATCH}
    assert 0 < len(found[-1]) < digits.BATCH
    assert sorted(np.concatenate(found)) == list(range(len(data.train_y)))


def test_training_learns(digits, data):
    steps = digits.compile_steps(data)
    assert digits.accuracy(steps, data) < 0.5
    losses = digits.train(steps, data, 5)
    assert losses[-1] < losses[0] / 3
    assert digits.accuracy(steps, data) > 0.9


@pytest.mark.parametrize("writer", ["train", "tail"])
def test_an_update_is_seen_by_the_other_steps(digits, data, writer):
    steps = digits.compile_steps(data)
    before = steps.train.state_dict()
    getattr(steps, writer)(**batch(digits, data, writer))
    after = getattr(steps, writer).state_dict()
    assert all(after[name].tobytes() != before[name].tobytes() for name in steps.train.params)
    assert same_bytes(steps.train.state_dict(), after)
    assert same_bytes(steps.tail.state_dict(), after)
    params = {name: after[name] for name in steps.train.params}
    assert same_bytes(steps.inference.state_dict(), params)

    alone = digits.inference_graph(len(data.test_y)).compile(params=params)
    logits = [step(x=data.test_x)["logits"].numpy() for step in (alone, steps.inference)]
    assert logits[0].tobytes() == logits[1].tobytes()


def test_a_write_through_the_inference_step_is_seen_by_the_training_steps(digits, data):
    steps = digits.compile_steps(data)
    steps.inference.params["0.b"] = np.arange(digits.HIDDEN, dtype=np.float32)
    written = steps.inference.params["0.b"].numpy().tobytes()
    assert written == np.arange(digits.HIDDEN, dtype=np.float32).tobytes()
    for step in (steps.train, steps.tail):
        assert step.params["0.b"].numpy().tobytes() == written


def test_sharing_equals_carrying_the_state_by_hand(digits, data):
    steps = digits.compile_steps(data)
    start = steps.train.state_dict()
    alone = {
        "train": digits.train_graph(digits.BATCH).compile(seed=1),
        "tail": digits.train_graph(len(data.train_y) % digits.BATCH).compile(seed=2),
    }
    carried = start
    for epoch, name in enumerate(["train", "tail", "train", "train", "tail"]):
        values = batch(digits, data, name, epoch)
        loss = getattr(steps, name)(**values)["loss"].numpy()
        alone[name].load_state_dict(carried)
        assert alone[name](**values)["loss"].numpy().tobytes() == loss.tobytes()
        carried = alone[name].state_dict()
        assert same_bytes(steps.train.state_dict(), carried)
        assert same_bytes(steps.tail.state_dict(), carried)


def test_killed_and_resumed_run_ends_on_the_same_bits(digits, tmp_path, capsys):
    digits.main(["--epochs", "3", "--out", str(tmp_path)])  # exits when the bits differ
    out = capsys.readouterr().out
    assert "resuming at step 50" in out
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_accuracy(digits, data):
    steps = digits.compile_steps(data)
    digits.train(steps, data, 30)
    assert digits.accuracy(steps, data) >= 0.97


def test_plain_progress(digits, data, monkeypatch, capsys):
    monkeypatch.setattr(digits, "tqdm", None)
    digits.train(digits.compile_steps(data), data, 1)
    assert capsys.readouterr().out.endswith("\n")


def test_picture_needs_matplotlib(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    digits.draw([1.0, 0.5], tmp_path / "loss.png")
    assert "matplotlib is not installed" in capsys.readouterr().out
    assert not (tmp_path / "loss.png").exists()


def test_a_search_is_so_many_trainings():
    """One step that is set back and trained by run_many = steps compiled and called anew."""
    sys.path.insert(0, str(ROOT / "examples"))
    import sweep

    x, t = sweep.pendulum(120, seed=0)
    rates = [1e-3, 1e-2]
    found = sweep.search(sweep.graph().compile(device="cpu", seed=0), rates, x, t)
    for rate in rates:
        step = sweep.graph().compile(device="cpu", seed=0)
        step.set("opt.lr", rate)
        for one, other in zip(x, t, strict=True):
            kept = step(x=one, t=other)["loss"]
        assert found[rate] == float(kept.numpy().mean())
    assert found[1e-2] < found[1e-3] < float(np.mean(t**2))
