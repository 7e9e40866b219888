"""Plain attributes of modules, which a function that is traced reads."""

import warnings

import aicf
import numpy as np
import pytest
from aicf import nn
from compare import assert_bits

CPU = {"device": "cpu"}


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor, self.shifts, self.note, self.calls = 2.0, [1.0], "", 0

    def forward(self, x):
        self.calls += 1
        self.last = x * self.factor
        for shift in self.shifts:
            self.last = self.last + shift
        return self.last


def test_an_attribute_that_was_read_is_read_again_when_it_changes():
    """Those of layers and of one's own; what forward writes, or does not read, traces nothing."""
    model, ones = Scaled(), np.ones(3, np.float32)
    run = aicf.function(lambda x: model(x), **CPU)
    assert run(ones).tolist() == [3, 3, 3]
    run(np.ones(5, np.float32))
    model.note = "not read"
    assert run(ones).tolist() == [3, 3, 3] and len(run.cache) == model.calls == 2
    model.factor = 5.0
    assert run(ones).tolist() == [6, 6, 6] and len(run.cache) == 3
    model.factor = 2.0
    assert run(ones).tolist() == [3, 3, 3] and len(run.cache) == 3
    model.shifts.append(10.0)
    assert run(ones).tolist() == [13, 13, 13]
    model.shifts = [1.0]
    assert run(ones).tolist() == [3, 3, 3] and len(run.cache) == 4
    model.factor = 2
    assert run(ones).tolist() == [3, 3, 3] and len(run.cache) == 5  # 2 and 2.0 differ in a graph


def test_options_of_layers_that_change():
    model = nn.Sequential(nn.Dropout(0.5), nn.LayerNorm(4))
    run = aicf.function(lambda x: model(x), **CPU)
    x = np.random.default_rng(0).standard_normal((8, 4), np.float32)
    first = run(x).numpy()
    model[0].p = 0.0
    assert (run(x).numpy() != first).any()
    model.eval()
    before = run(x).numpy()
    model[1].eps = 0.5
    assert (run(x).numpy() != before).any()
    model[1].eps = 1e-5
    assert_bits(run(x).numpy(), before)
    assert len(run.cache) == 4


def test_the_warning_names_the_attribute():
    model, ones = Scaled(), np.ones(3, np.float32)
    run = aicf.function(lambda x: model(x), retraces=3, **CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model.factor in (1.0, 2.0):
            run(ones)
    model.factor = 4.0
    with pytest.warns(RuntimeWarning, match=r"now Scaled.factor is 4.0, was 2.0"):
        run(ones)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {"a": [1.0, (2.0, [3.0])]}
        self.some, self.pair, self.own = {4.0}, ([5.0], 0.0), []
        self.own.append(self.own)

    def forward(self, x):
        first, (second, (third,)) = self.table["a"]
        numbers = (first, second, third, *self.some, self.pair[0][0])
        return x * sum(numbers) if self.own else x


def test_what_is_changed_in_place_within_others_is_seen():
    """Lists in dicts in tuples, and sets; one that holds itself ends."""
    model, ones = Nested(), np.ones(2, np.float32)
    run = aicf.function(lambda x: model(x), **CPU)
    assert run(ones).tolist() == [15, 15]
    model.table["a"][0] = 10.0
    assert run(ones).tolist() == [24, 24]
    model.table["a"][1][1][0] = 0.0
    assert run(ones).tolist() == [21, 21]
    model.some.add(100.0)
    assert run(ones).tolist() == [121, 121]
    model.pair[0][0] = 0.0
    assert run(ones).tolist() == [116, 116]
    count = len(run.cache)
    run(ones)
    assert count == len(run.cache) == 5


def test_modes_that_take_turns_are_kept_once():
    """Nothing grows with the number of turns."""
    model, ones = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), np.ones((1, 2), np.float32)
    run = aicf.function(lambda x: model(x), **CPU)
    for _ in range(20):
        for mode in (True, False):
            model.train(mode)
            run(ones)
    assert len(run.cache) == 2 and all(len(entry.fast) <= 4 for entry in run._entries)
