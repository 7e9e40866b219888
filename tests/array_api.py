"""The Array API standard's public test suite, as far as it applies, function by function.

    python tests/array_api.py SUITE [--examples 20]

SUITE is a checkout of github.com/data-apis/array-api-tests with its submodule array-api; the suite
also wants hypothesis and ndindex. Each function runs in `array_namespace`, a graph of aicf compiled
for each call, in the eight dtypes that the standard and aicf share. A function passes when all
tests of it pass; else its failures are said by reason. Writes tests/data/array_api.json and, of it,
the page docs/array_api.md.
"""

import argparse
import collections
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
RECORD = HERE / "data" / "array_api.json"
PAGE = HERE.parent / "docs" / "array_api.md"
VERSION = "2024.12"
SKIPPED = "complex64,complex128,uint16,uint32,uint64"

COMPLEX = "complex numbers"
DATA = "the shape depends on the data"
FACTORED = "a decomposition of a matrix"
NO_MEANING = {
    **dict.fromkeys("nonzero unique_all unique_counts unique_inverse unique_values".split(), DATA),
    **dict.fromkeys(
        "imag fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftfreq rfftfreq fftshift "
        "ifftshift".split(),
        COMPLEX,
    ),
}
ABSENT = {
    "nextafter": "the next number of a dtype is not reached by arithmetic",
    **dict.fromkeys(
        "cholesky det eigh eigvalsh inv matrix_rank pinv qr slogdet solve svd svdvals".split(),
        FACTORED,
    ),
}
AS_NUMPY = "as NumPy and PyTorch: of an infinite dividend NaN, by an infinite divisor 0 or -1"
KNOWN = {
    "pow": "`**` of integers is refused: cast first",
    "matmul": "`@` of integers is refused: cast first",
    "tensordot": "of integers, as `@`",
    "matrix_power": "of a negative power, which asks for an inverse",
    "floor_divide": AS_NUMPY,
    "signbit": "a NaN has no sign",
    "sign": "a zero keeps its sign",
}
# Of what makes arrays of no arrays, or describes dtypes.
BY_NUMPY = (
    "arange asarray can_cast empty eye finfo from_dlpack full iinfo isdtype linspace ones "
    "result_type zeros"
).split()
# A complex dtype is looked for though none is there.
FOUND = "    [(dt, dtype_nbits[dt]) for dt in complex_dtypes], key=lambda x: x[1]"
PATCH = (f"{FOUND}\n)[0]", f"{FOUND}, default=[None]\n)[0]")
OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "abs": "abs",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "pow", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "neg": "negative",
    "rshift": "bitwise_right_shift", "matmul": "matmul", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "pos": "positive",
    "invert": "bitwise_invert",
}  # fmt: skip


def functions(suite):
    """The standard's functions, those of its extensions too."""
    names = []
    stubs = suite / "array-api/src/array_api_stubs" / f"_{VERSION.replace('.', '_')}"
    for path in sorted(stubs.glob("*.py")):
        if path.stem.endswith("_functions") or path.stem in ("linalg", "fft"):
            text = path.read_text()
            block = text[text.index("__all__") :]
            names += re.findall(r'"(\w+)"', block[: block.index("]")])
    return sorted(set(names))


def function_of(test):
    """The function that a test's name is of, or None."""
    part = test.rpartition("::")[2]
    name, _, case = part.partition("[")
    if name in ("test_unary", "test_binary", "test_iop", "test_func_signature") or (
        "signature" in name or name == "test_has_names"
    ):
        case = re.split(r"[(\]]", case)[0]
        name = case.rpartition(".")[2].rpartition("-")[2]
    elif name in ("test_nan_propagation", "test_empty_arrays", "test_binary_with_scalars_real"):
        name = re.split(r"[(\]]", case)[0]
    else:
        name = re.sub(r"^test_(linalg_)?", "", name)
    inner = re.fullmatch(r"__[ir]?(\w+?)__", name)
    return OPERATORS.get(inner[1], None) if inner else name


def outcomes(suite, examples):
    """(test, outcome, text) of each test."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "suite"
        shutil.copytree(suite, copy, ignore=shutil.ignore_patterns(".git"))
        helpers = copy / "array_api_tests" / "dtype_helpers.py"
        text = helpers.read_text()
        if PATCH[0] in text:
            helpers.write_text(text.replace(*PATCH))
        env = os.environ | {
            "ARRAY_API_TESTS_MODULE": "array_namespace",
            "ARRAY_API_TESTS_SKIP_DTYPES": SKIPPED,
            "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
        }
        report = copy / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "array_api_tests"),
            *("--disable-deadline", "--derandomize", "--max-examples", str(examples)),
            *("--disable-extension", "fft", "--disable-data-dependent-shapes"),
            *(f"--junit-xml={report}", "--tb=line"),
        ]
        subprocess.run(command, cwd=copy, env=env, stdout=subprocess.DEVNULL, check=False)
        for case in ElementTree.parse(report).iter("testcase"):
            failed = [child for child in case if child.tag in ("failure", "error")]
            skipped = any(child.tag == "skipped" for child in case)
            text = " ".join((child.get("message") or "") + (child.text or "") for child in failed)
            outcome = "fail" if failed else "skip" if skipped else "pass"
            yield f"{case.get('classname')}::{case.get('name')}", outcome, text


def rows(suite, examples):
    """Of each function its tests by outcome; those of complex numbers are none."""
    tests = collections.defaultdict(collections.Counter)
    for test, outcome, text in outcomes(suite, examples):
        name = function_of(test)
        if "complex128" in text or "dtype=None" in text or "imag(x_i)" in test:
            outcome = "complex"
        tests[name][outcome] += 1
        if outcome == "fail":
            print(f"{test}: {text.splitlines()[0][:150] if text else ''}", file=sys.stderr)
    return {name: tests.get(name, collections.Counter()) for name in functions(suite)}


def groups(table):
    """The functions with a meaning here: right in all tests, failed in some, and absent."""
    here = {name: tests for name, tests in table.items() if name not in NO_MEANING}
    absent = [name for name in here if name in ABSENT]
    failed = [name for name, t in here.items() if name not in ABSENT and t.get("fail")]
    return [name for name in here if name not in absent and name not in failed], failed, absent


def page(record):
    table = record["functions"]
    right, failed, absent = groups(table)
    tests = sum(table[name].get("pass", 0) for name in right)
    lines = [
        "# Functions of the Array API",
        "",
        f"Of the {len(table)} functions of the Array API standard {VERSION}, those of its",
        f"extensions among them, {len(right + failed + absent)} have a meaning in a graph of",
        f"real tensors of fixed shapes. {len(right)} of these pass every test of the standard's",
        f"[public suite](https://github.com/data-apis/array-api-tests), {tests} in all, with",
        f"{record['examples']} examples each, in bool, uint8, int8, int16, int32, int64, float32",
        "and float64.",
        f"The run of {record['date']} was `{record['command']}` at the suite's",
        f"commit {record['commit'][:12]}.",
        "",
        "The suite wants arrays that hold data and promote dtypes. `tests/array_namespace.py`",
        "gives it such: it computes each function by a graph of aicf, compiled for each call. What",
        "makes arrays of none or describes dtypes is NumPy's:",
        f"{', '.join(n for n in right if n in BY_NUMPY)}.",
        "",
        "| function | tests right | tests failed | why |",
        "| --- | --- | --- | --- |",
    ]
    for name in failed:
        done = table[name]
        lines.append(f"| {name} | {done.get('pass', 0)} | {done['fail']} | {KNOWN[name]} |")
    for said, reasons, names in (
        ("not there", ABSENT, absent),
        ("no meaning here", NO_MEANING, [n for n in NO_MEANING if n in table]),
    ):
        for reason in dict.fromkeys(reasons[n] for n in names):
            of = ", ".join(n for n in names if reasons[n] == reason)
            lines.append(f"| {of} | – | – | {said}: {reason} |")
    return "\n".join([*lines, "", f"Right in all tests: {', '.join(right)}.", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("--examples", type=int, default=20)
    args = parser.parse_args()
    suite = args.suite.resolve()
    git = ["git", "-C", str(suite), "log", "-1", "--format=%H"]
    record = {
        "command": f"python tests/array_api.py SUITE --examples {args.examples}",
        "commit": subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "examples": args.examples,
        "functions": rows(suite, args.examples),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(page(record))


if __name__ == "__main__":
    main()
