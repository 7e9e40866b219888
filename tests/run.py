"""Installs aicf with its test tools, then checks style, types and behaviour.

    python3 tests/run.py [--no-install] [pytest arguments]

Outside a virtual environment it makes and uses .venv. --no-install checks what is installed
already, an editable build for example.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0+cpu"
STUB = "python/aicf/_core.pyi"


def enter_venv() -> None:
    """Starts again inside .venv unless a virtual environment is active."""
    if sys.prefix != sys.base_prefix:
        return
    venv = ROOT / ".venv"
    if not (venv / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = str(venv / "bin" / "python")
    os.execv(python, [python, __file__, *sys.argv[1:]])


def pip_install(*args: str) -> bool:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    return subprocess.run([*pip, "-qq", *args], cwd=ROOT).returncode == 0


def install() -> None:
    print("== install", flush=True)
    settings = ["cmake.define.AICF_DEV=ON", "build-dir=build/test-{wheel_tag}"]
    # Not -C, which Debian 12's pip does not know.
    if not pip_install(".[test]", *(f"--config-settings={one}" for one in settings)):
        sys.exit("tests/run.py: the build failed")
    if importlib.util.find_spec("torch") is None and not pip_install(TORCH):
        print(f"warning: {TORCH} is not available here; the tests that need it are skipped")


def stub_is_current() -> bool:
    """The stub in the source tree is the one that the build generated."""
    find = "import aicf._core; print(aicf._core.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", find], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if found.returncode != 0:
        return False
    built = Path(found.stdout.strip()).with_name("_core.pyi")
    stub = ROOT / STUB
    if stub.exists() and stub.read_bytes() == built.read_bytes():
        return True
    print(f"{STUB} is out of date; run: cp {built} {STUB}")
    return False


def passes(*command: str | Path) -> bool:
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main() -> None:
    enter_venv()
    pytest_args = sys.argv[1:]
    if "--no-install" in pytest_args:
        pytest_args.remove("--no-install")
    else:
        install()

    python = sys.executable
    clang_format = Path(sysconfig.get_path("scripts"), "clang-format")
    suffixes = {".h", ".cpp", ".inl", ".cu", ".cuh"}
    cxx = sorted(
        p
        for d in ("src", "include", "examples", "tests")
        for p in (ROOT / d).rglob("*")
        if p.suffix in suffixes
    )
    checks = {
        "ruff": lambda: passes(python, "-m", "ruff", "check", "-q"),
        "ruff format": lambda: passes(python, "-m", "ruff", "format", "--check", "-q"),
        "clang-format": lambda: passes(clang_format, "--dry-run", "-Werror", *cxx),
        "stub": stub_is_current,
        "mypy": lambda: passes(python, "-m", "mypy"),
        "pytest": lambda: passes(
            python, "-m", "pytest", "-n", "auto", "--dist", "worksteal", *pytest_args
        ),
    }
    failed = []
    for name, check in checks.items():
        print(f"== {name}", flush=True)
        if not check():
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
