"""Pages as programs. The Python blocks of a page run one after another in one namespace.

- a text block is what the block before it prints, to the letter, but for the line in `file:line`
  and what ` ... ` between blanks leaves out;
- a Python block that begins with `# raises NAME` raises it; the text block after it is the last
  line of the traceback;
- an sh block's lines that begin with aicf are run, in this process; its other lines are not;
- `needs: a, b` in the page's head names packages without which it cannot run.
"""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import aicf
from aicf import command

ROOT = Path(__file__).resolve().parents[1]


class Block(NamedTuple):
    language: str
    content: str
    line: int  # of its first line in the page


def blocks(page):
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in found]


def needs(page):
    """The packages that a page names."""
    head = re.match(r"---\nneeds: (.*)\n---\n", (ROOT / page).read_text())
    return re.split(r",\s*", head[1]) if head else []


def run_python(block, page, names):
    """What the block prints, or the last line of the traceback that it announces."""
    code = compile("\n" * (block.line - 1) + block.content, page, "exec")
    printed = io.StringIO()
    announced = re.match(r"# raises ([\w.]+)", block.content)
    with contextlib.redirect_stdout(printed):
        if not announced:
            exec(code, names)
            return printed.getvalue()
        try:
            exec(code, names)
        except Exception as error:
            kind = type(error).__name__
            known = f"aicf.{kind}" if isinstance(error, aicf.Error) else kind
            assert known == announced[1], f"{page}:{block.line}: raised {known}: {error}"
            return f"{known}: {error}\n"
    raise AssertionError(f"{page}:{block.line}: raised nothing, announced {announced[1]}")


def run_shell(block, page):
    """What its lines that begin with aicf print."""
    content = block.content
    if not hasattr(aicf._core, "cuda_info"):
        content = content.replace("aicf cache size\n", "")
    printed = io.StringIO()
    for line in content.splitlines():
        program, *args = shlex.split(line, comments=True) or [""]
        if program == "aicf":
            with contextlib.redirect_stdout(printed):
                try:
                    status = command.main(args)
                except SystemExit as ended:  # --help
                    status = ended.code
            assert not status, f"{page}:{block.line}: {line}: {status}"
    return printed.getvalue()


def alike(printed, shown):
    """Whether a text block shows what was printed."""
    places = re.compile(r"\b[\w./<>]+\.(md|py):\d+")
    printed, shown = (places.sub("file:line", text.rstrip()) for text in (printed, shown))
    return re.fullmatch(re.escape(shown).replace(r"\ \.\.\.\ ", ".*"), printed) is not None


def run_page(page):
    """Runs all blocks of a page, as the first of a program, and returns its namespace."""
    aicf.nn.seed(0)
    names, printed = {"__name__": "__main__"}, ""
    for block in blocks(page):
        if block.language == "python":
            printed = run_python(block, page, names)
        elif block.language == "sh":
            printed = run_shell(block, page)
        elif block.language == "text":
            where = f"{page}:{block.line}"
            assert alike(printed, block.content), f"{where}\n{printed}"
    return names


def notebook_needs(notebook):
    """The packages that a notebook names in its metadata."""
    return json.loads((ROOT / notebook).read_text())["metadata"].get("needs", [])
