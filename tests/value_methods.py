"""The methods of Value as type checkers and editors read them, from the functions that they are.

    python tests/value_methods.py [--out python/aicf/_methods.pyi]

test_typing.py holds the file to what this prints.
"""

import argparse
import inspect
from pathlib import Path

import aicf

FILE = Path(aicf.__file__).with_name("_methods.pyi")
HEAD = '''"""Methods of Value, as `python tests/value_methods.py --out FILE` writes them."""

from collections.abc import Sequence
from typing import overload

from .arguments import DTypeName
from .graph import Data, Operand, Value

class Methods:
    __slots__ = ()
'''


def method(name, fn):
    """The signature of a function whose first argument is the Value."""
    signature = inspect.signature(fn)
    *_, last = signature.parameters.values()
    if last.annotation == "Spread":
        returns = signature.return_annotation
        return "".join(
            f"    @overload\n    def {name}(self, {given}) -> {returns}: ...\n"
            for given in (f"{last.name}: Sequence[int]", f"*{last.name}: int")
        )
    takes = ["self"]
    for p in [*signature.parameters.values()][1:]:
        assert p.kind is p.POSITIONAL_OR_KEYWORD, f"{name}: {p} is described otherwise"
        default = "" if p.default is p.empty else f" = {p.default!r}"
        takes.append(f"{p.name}: {p.annotation}{default}")
    line = f"    def {name}({', '.join(takes)}) -> {signature.return_annotation}: ..."
    if len(line) > 100:
        takes = "".join(f"        {part},\n" for part in takes)
        line = f"    def {name}(\n{takes}    ) -> {signature.return_annotation}: ..."
    return line.replace('"', "'").replace("'", '"') + "\n"


def text():
    found = {
        name: fn
        for name, fn in sorted(vars(aicf.Value).items())
        if not name.startswith("_") and inspect.isfunction(fn)
    }
    return HEAD + "".join(method(name, fn) for name, fn in found.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    if out:
        out.write_text(text())
    else:
        print(text(), end="")
