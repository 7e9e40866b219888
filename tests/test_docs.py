"""The documentation: its site is built without a warning, links lead somewhere, code runs."""

import ast
import contextlib
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import aicf
import pages
import pytest
from aicf import command

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(str(p.relative_to(ROOT)) for p in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.ipynb"))
BUILDERS = ("sphinx", "myst_parser", "furo")

# What the default passes did is said on some pages, so those run as they are read: by default.
pytestmark = pytest.mark.passes


def program(page):
    return pages.blocks(page) and any(b.language in ("python", "sh") for b in pages.blocks(page))


@pytest.mark.parametrize("page", filter(program, PAGES))
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    for package in pages.needs(page):
        pytest.importorskip(package, reason=f"{page} needs {package}")
    monkeypatch.chdir(tmp_path)
    pages.run_page(page)


def shown(value):
    """What a notebook shows of the last expression of a cell; a page where it has one."""
    return getattr(value, "_repr_html_", lambda: None)() or repr(value)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_notebook_runs(notebook, tmp_path, monkeypatch):
    for package in pages.notebook_needs(notebook):
        pytest.importorskip(package, reason=f"{notebook} needs {package}")
    monkeypatch.chdir(tmp_path)
    record = json.loads((ROOT / notebook).read_text())
    names = {"__name__": "__main__"}
    for i, cell in enumerate(record["cells"]):
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None, "stored without outputs"
        tree = ast.parse("".join(cell["source"]), f"{notebook}[{i}]")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{notebook}[{i}]", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"{notebook}[{i}]", "eval"), names)
            assert value is None or len(shown(value)) > 0


def test_a_page_that_is_wrong_is_found(tmp_path, monkeypatch):
    """The checks above can fail."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    right = "```python\n# raises ValueError\nint('a')\n```\n"
    for text, error in [
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", AssertionError),
        ("```python\n# raises KeyError\nint('a')\n```\n", AssertionError),
        ("```python\n# raises ValueError\n```\n", AssertionError),
        (right + "\n```text\nValueError: no\n```\n", AssertionError),
        ("```sh\naicf dump nowhere.json\n```\n", AssertionError),
    ]:
        page.write_text(text)
        with pytest.raises(error):
            pages.run_page("page.md")
    page.write_text(right)
    pages.run_page("page.md")


def test_names_on_pages_exist():
    """Every `aicf.name` in the text, of the tables too."""
    wrong = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
        for name in re.findall(r"`aicf((?:\.\w+)+)", text):
            found = aicf
            for part in name[1:].split("."):
                found = getattr(found, part, None)
            if found is None and not (ROOT / f"include/aicf/aicf{name}").exists():
                wrong.append(f"{page}: aicf{name}")
    assert wrong == []


# ---- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    missing = [name for name in BUILDERS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: pip install furo myst-parser sphinx builds the site")
    out = tmp_path_factory.mktemp("site")
    command = ["-W", "--keep-going", "-n", "-q", "-d", out / ".doctrees", ROOT / "docs", out]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


class Page(HTMLParser):
    """The links of a page, and the places in it that a link may lead to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.add(value)
            elif name == "id":
                self.anchors.add(value)


def test_links_lead_somewhere(site):
    found = {path: Page(path) for path in site.rglob("*.html")}
    assert len(found) > 20
    wrong, followed = [], 0
    for path, page in found.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if re.match(r"\w+:", address):
                continue  # another site, or the picture itself
            address = address.partition("?")[0]
            target = (path.parent / unquote(address)).resolve() if address else path
            known = target.exists() and (target not in found or anchor in found[target].anchors)
            followed += 1
            if not known and anchor != "#":
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == [] and followed > 1000


def test_reference_is_complete(site):
    """Everything public has its place in the reference."""
    anchors = set()
    for path in (site / "reference").glob("*.html"):
        anchors |= Page(path).anchors
    public = [f"aicf.{name}" for name in aicf.__all__ if name not in ("init", "nn", "optim")]
    public += [f"aicf.nn.{name}" for name in aicf.nn.__all__ if name not in aicf.__all__]
    for module in (aicf.optim, aicf.init):
        for name, item in vars(module).items():
            if not name.startswith("_") and getattr(item, "__module__", "") == module.__name__:
                public.append(f"{module.__name__}.{name}")
    assert [name for name in public if name not in anchors] == []


def test_the_reference_has_no_bare_signatures(site):
    """What is bound from C++ without a docstring would show one."""
    bare = [str(path) for path in (site / "reference").glob("*.html")
            if "<p>(self) -&gt;" in path.read_text()]  # fmt: skip
    assert bare == []


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md", "docs/experiments.md"])
def test_figures_are_those_of_the_results(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    import tables

    text = (ROOT / page).read_text()
    assert "<!-- table: " in text
    assert tables.filled(text) == text, "run: python bench/tables.py"


def test_a_row_is_compared_with_a_copy_of_its_bytes(monkeypatch):
    """Of its passes' bytes, or in an older file with the rate of a large copy."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    import tables

    row = {"us": {"aicf": 16.0}, "tb_s": {"aicf": 3.0}}
    assert tables.of_copy({"copy_tb_s": 4.0}, row) == 0.75
    assert tables.of_copy({"copy_tb_s": 4.0}, row | {"copy_us": 14.0}) == 0.875


def test_a_case_is_named_beside_its_first_peer(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    import tables

    run = tables.runs("cpu")[0]
    cases = {row["case"]: row for row in run["rows"] if row["threads"] == 1}
    for section in (tables.STEPS, tables.PIECES):
        _, _, *rows = tables.compared("cpu", section, 1).split("\n\n")[1].splitlines()
        named = [row.split("|")[1].strip() for row in rows if row.split("|")[1].strip()]
        want = [case for case, row in cases.items() if row["section"] in section]
        assert sorted(named) == sorted(tables.NAMES.get(case, case) for case in want)


@pytest.mark.parametrize("name", ["sweep", "sweep_gpu"])
def test_the_picture_of_the_search_says_what_its_results_say(tmp_path, name):
    results, made = ROOT / f"bench/results/{name}.json", tmp_path / "search.svg"
    command = [sys.executable, "bench/sweep.py", "--draw", results, made]
    subprocess.run(command, cwd=ROOT, check=True)
    assert made.read_text() == (ROOT / f"docs/{name}.svg").read_text()
    for row in json.loads(results.read_text())["rows"]:
        assert row["name"] in made.read_text() and f"{row['s']:.3g} s" in made.read_text()


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_names_of_others_exist(package):
    """Those that docs/coming_from.md sets beside ours."""
    pytest.importorskip(package)
    text = (ROOT / "docs/coming_from.md").read_text()
    text = text.replace("`F.", "`torch.nn.functional.").replace("`jnp.", "`jax.numpy.")
    names = sorted(set(re.findall(rf"`({package}(?:\.\w+)+)`", text)))
    assert len(names) > 15
    missing = []
    for name in names:
        found = importlib.import_module(package)
        for i, part in enumerate(name.split(".")[1:], 1):
            if not hasattr(found, part):
                with contextlib.suppress(ImportError):
                    importlib.import_module(".".join(name.split(".")[: i + 1]))
            found = getattr(found, part, None)
        if found is None:
            missing.append(name)
    assert missing == []


def test_tests_that_pages_name_exist():
    wrong, found = [], 0
    for page in PAGES:
        for path, name in re.findall(r"`(?:tests/)?(\w+\.py)::(\w+)`", (ROOT / page).read_text()):
            found += 1
            if f"def {name}(" not in (ROOT / "tests" / path).read_text():
                wrong.append(f"{page}: {path}::{name}")
    assert wrong == [] and found > 20


def test_every_command_and_variable_is_documented():
    text = (ROOT / "docs/command.md").read_text()
    parser = command._parser()
    groups = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    names = [name for choices in groups for name in choices]
    assert "verify" in names
    assert [name for name in names if f"`aicf {name}" not in text] == []
    sources = [p for d in ("src", "python/aicf") for p in (ROOT / d).rglob("*.*") if p.is_file()]
    code = "".join(p.read_text() for p in sources if p.suffix in (".cpp", ".h", ".py"))
    variables = set(re.findall(r'"(AICF_[A-Z_]+)"', code))
    assert "AICF_DEVICE" in variables
    assert [name for name in sorted(variables) if f"`{name}`" not in text] == []


def test_links_of_the_source_lead_somewhere():
    """Those of the README, which is no page of the site, and of every page as it is read here."""
    wrong, followed = [], 0
    for page in [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"]:
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(<?([^)>]+)>?\)", text):
            if not re.match(r"\w+:", link):
                followed += 1
                address = urldefrag(link)[0]
                if address and not (ROOT / page).parent.joinpath(address).exists():
                    wrong.append(f"{page}: {link}")
    assert wrong == [] and followed > 50
