"""Runs a command on a GPU that there is not: kernels are compiled for the host and run on it.

    python tests/emulate.py [--folder FOLDER] [--major 8] [--processors 4] [--order N] [--races]
                            COMMAND ...
    python tests/emulate.py python -m pytest -m gpu tests/test_indexing.py

The driver is tests/fake_cuda's, NVRTC tests/emulator's, which compiles with g++; a kernel's threads
are fibers of one host thread. What a kernel computes is what a GPU would: values, orders, barriers,
bytes of shared memory. --order N (not 0) shuffles in which order blocks and threads take turns.
--races ends the command at the first two accesses of shared memory that nothing orders, whatever
the values were (emulator/races.h). What is not shown: times, and what depends on the order in which
one thread sees another's writes to global memory between barriers. --major 8 leaves out kernels
that need Hopper's instructions.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent


def header_folder():
    """Where cuda.h is; None where it is nowhere."""
    for folder in ("/usr/local/cuda/include", os.environ.get("CUDA_HOME", "") + "/include"):
        if (Path(folder) / "cuda.h").exists():
            return folder
    try:
        files = metadata.distribution("nvidia-cuda-runtime").files or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(f.locate().parent) for f in files if f.name == "cuda.h"), None)


def missing():
    """Why there can be no emulated GPU here; empty where there can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if not shutil.which("g++"):
        return "no g++ to compile kernels with"
    return "" if header_folder() else "no cuda.h to build the fake driver with"


def build_library(path, *sources):
    """A library of the tests', under the name of one that CUDA has."""
    os.makedirs(Path(path).parent, exist_ok=True)
    command = [
        "g++",
        "-std=c++20",
        "-O3",
        "-march=native",
        "-shared",
        "-fPIC",
        "-isystem",
        header_folder(),
    ]
    command += ["-I", HERE.parent / "src", f"-Wl,-soname,{Path(path).name}"]
    command += [*(HERE / source for source in sources), "-o", path, "-ldl"]
    subprocess.run([*map(str, command)], check=True)


def build_driver(folder):
    build_library(Path(folder) / "libcuda.so.1", "fake_cuda/fake_cuda.cpp", "fake_cuda/graphs.cpp",
                  "emulator/emulator.cpp", "emulator/races.cpp")  # fmt: skip


def build(folder):
    """The driver and NVRTC."""
    build_driver(folder)
    build_library(Path(folder) / "libnvrtc.so.13", "emulator/nvrtc.cpp")


WATCHED = "-O1 -g1 -fsanitize=thread --param tsan-instrument-func-entry-exit=0"


def environment(folder, major=8, processors=4, order=0, options="-O1", races=False):
    """What a process needs to have the GPU of `build`."""
    folder = Path(folder).resolve()
    options = WATCHED if races else options
    emulator = hashlib.sha256(options.encode())
    for source in sorted((HERE / "emulator").iterdir()):
        emulator.update(source.read_bytes())
    return (
        {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder),
            "LD_PRELOAD": str(folder / "libnvrtc.so.13"),  # found before that of a wheel
            "AICF_CACHE_DIR": str(folder / f"cache-{emulator.hexdigest()[:16]}"),
            "EMULATOR_COMPILER": "g++",
            "EMULATOR_FOLDER": str(HERE / "emulator"),
            "EMULATOR_OPTIONS": options,
            "EMULATED_ORDER": str(order),
            "FAKE_CUDA_MAJOR": str(major),
            "FAKE_CUDA_PROCESSORS": str(processors),
        }
        | ({"EMULATED_RACES": "1"} if races else {})
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="of what is built, and of compiled kernels: kept")
    parser.add_argument("--major", type=int, default=8, help="of the compute capability")
    parser.add_argument("--processors", type=int, default=4)
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--races", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if missing():
        sys.exit(missing())
    with tempfile.TemporaryDirectory() as fresh:
        folder = arguments.folder or fresh
        os.makedirs(folder, exist_ok=True)
        build(folder)
        env = environment(
            folder, arguments.major, arguments.processors, arguments.order, races=arguments.races
        )
        sys.exit(subprocess.run(arguments.command, env=env).returncode)


if __name__ == "__main__":
    main()
