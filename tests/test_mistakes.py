"""The text that each of a hundred mistakes gets, kept in data/mistakes.txt; and what each must say.

    python tests/test_mistakes.py

writes the file again, with the texts of today, for a person to read.
"""

import re
from pathlib import Path

import aicf
import numpy as np
import pytest

FILE = Path(__file__).parent / "data" / "mistakes.txt"
SCENE = """
g = aicf.Graph("scene")
x, w, d = g.input("x", (4, 3)), g.param("w", (3, 3)), g.constant(np.zeros((4, 3)))
labels = g.input("labels", (4,), "int64")
image = g.constant(np.zeros((1, 2, 5, 5), np.float32))
kernel = g.constant(np.zeros((2, 2, 3, 3), np.float32))
scores = x @ w
loss = aicf.cross_entropy(scores, labels)
sgd = aicf.optim.SGD(lr=0.1)
g.minimize(loss, sgd)
for name, value, keep in (("loss", loss, 1), ("scores", scores, 1), ("kept", loss, 3)):
    g.output(name, value, keep)
zeros, ones = np.zeros((4, 3), np.float32), np.ones(4, np.int64)
step = g.compile(device="cpu")
before = step(x=zeros, labels=ones)
ran = step(x=zeros, labels=ones)
"""


def entries():
    """Pairs of a mistake and the text it gets."""
    found = re.findall(r"^>>> (.*)\n(.*)\n", FILE.read_text(), re.M)
    assert len(found) >= 60
    return found


def text_of(mistake):
    """What a user reads last, of the mistake in a file of its own."""
    scope = {"aicf": aicf, "np": np}
    exec(compile(SCENE, "scene.py", "exec"), scope)
    run, state = scope["step"].steps_run, scope["step"].state_dict()
    try:
        exec(compile(mistake, "mistake.py", "exec"), scope)
    except Exception as error:
        assert scope["step"].steps_run == run
        for name, array in scope["step"].state_dict().items():
            np.testing.assert_array_equal(array, state[name])
        kind = type(error)
        known = f"aicf.{kind.__name__}" if issubclass(kind, aicf.Error) else kind.__name__
        return f"{known}: {error}"
    return "nothing"


@pytest.mark.parametrize("mistake, text", entries() if __name__ != "__main__" else [])
def test_text(mistake, text):
    """Whatever numbers the values have that functions make."""
    found, kept = (re.sub(r"%\d+", "%", words) for words in (text_of(mistake), text))
    assert found == kept


# What has no value to show, or is Python's own way to say it.
NO_NEED = (
    "it has no data while the graph is built",
    "values of two graphs never mix",
    "there is no '",
    "No such file or directory",
    "use aicf.where or aicf.concat",
    "already assigned",
    "leave it out of wrt",
    "read or copy() it",
    "give it, bind it",
    "it has ",
    "call capture() first",
    "assign the whole",
    "cast it",
)


def test_each_says_what_would_be_right_and_where():
    """The line, where a graph is built; what is needed, or what to do instead."""
    for mistake, text in entries():
        assert re.search(r"\bneed\b", text) or any(part in text for part in NO_NEED), text
        assert ": " in text and len(text) < 700, text
        builds = re.match(
            r"(x|aicf\.(?!load_step|crossentropy|save|no_such|Graph\(\))|g\.(?!compile))", mistake
        )
        if builds and "AttributeError" not in text:
            assert "(mistake.py:1)" in text, text
        if re.match(r"step[(.]|g\.compile|ran|before", mistake):
            assert "mistake.py" not in text


if __name__ == "__main__":
    mistakes = [mistake for mistake, _ in entries()]
    FILE.write_text("".join(f">>> {mistake}\n{text_of(mistake)}\n" for mistake in mistakes))
