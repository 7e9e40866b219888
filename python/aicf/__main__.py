"""Command line: verify, info, dump, cache."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from itertools import pairwise
from pathlib import Path

from . import Error, Graph, __version__, _core
from .device import resolve_device
from .serialize import read_graph_file
from .step import MATH_MODES


def _graph_of(doing: str, path: str, strict: bool = True) -> Graph:
    graph = Graph()
    graph._core = read_graph_file(doing, path, strict)
    return graph


def _verify(args: argparse.Namespace) -> int:
    from . import verify

    write = (lambda text: None) if args.json else print
    log = verify.run(args.device, args.replays, args.seed, args.dump, write)
    if args.json:
        print(json.dumps({"ok": not log.failed, "checks": log.records}, indent=1))
    return 1 if log.failed else 0


def _info(args: argparse.Namespace) -> int:
    print(f"aicf {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(f"cpu: kernels for {_core.cpu_isa()}, {_core.num_threads()} threads")
    if hasattr(_core, "cuda_info"):
        found = _core.cuda_info()
        for gpu in found["devices"]:
            print(
                f"{gpu['device']}: {gpu['name']}, {gpu['arch']}, "
                f"{gpu['multiprocessors']} multiprocessors, {gpu['free_bytes'] / 2**30:.1f} of "
                f"{gpu['total_bytes'] / 2**30:.1f} GiB free"
            )
        print(f"cuda: driver for {found['driver'] or 'none'}, NVRTC {found['nvrtc'] or 'none'}")
        if found["problem"]:
            print(f"cuda is not usable: {found['problem']}")
        print(f"cache: {found['cache']}, {found['cache_entries']} programs")
    else:
        print("cuda: this build has no CUDA backend")
    print(f'device="auto" means {resolve_device("auto")}')
    return 0


def _cache(args: argparse.Namespace) -> int:
    if not hasattr(_core, "cuda_info"):
        print("this build has no CUDA backend and no kernel cache")
        return 2
    if args.action == "clear":
        print(f"{_core.clear_cuda_cache()} kernels removed")
    elif args.action == "warm":
        from . import verify

        names = [args.file] if args.file else list(verify.CASES)
        for name in names:
            if args.file:
                graph = _graph_of("warm", name)
            else:
                graph = verify.build(name, verify.CASES[name])
            passes = _core.pass_names()
            programs = _core.cuda_programs(
                graph._core, passes, args.processors, args.arch, args.math
            )
            cubins = _core.cuda_cubins(programs, args.arch)
            size = sum(map(len, cubins))
            print(f"{name}: {len(cubins)} kernels, {size} bytes for {args.arch}")
    else:
        found = _core.cuda_info()
        print(f"{found['cache']}: {found['cache_entries']} kernels, {found['cache_bytes']} bytes")
    return 0


def _dump_passes(stages: list[_core.Stage], math: str) -> None:
    before = stages[0]
    if math == "mixed":  # the graph that the passes begin with
        print(before.text)
    print(
        f"--- before: {before.ops} ops, {before.bytes_moved} bytes moved, "
        f"peak {before.peak_bytes} bytes"
    )
    for last, stage in pairwise(stages):
        print(
            f"--- after {stage.name} ({'keeps' if stage.keeps_bits else 'changes'} bits): "
            f"ops {last.ops} -> {stage.ops}, bytes moved {last.bytes_moved} -> "
            f"{stage.bytes_moved}, peak {last.peak_bytes} -> {stage.peak_bytes}"
        )
        print(stage.text)


def _dump(args: argparse.Namespace) -> int:
    graph = _graph_of("dump", args.file, strict=not args.lenient)
    stages = [args.stage] if args.stage else ["ir", "passes", "lowered", "plan"]
    report = graph.verify()
    for stage in stages:
        if stage == "dot":
            print(graph.to_dot())
            continue
        print(f"=== {stage.upper()} ===")
        if stage == "ir":
            print(graph)
            print(report)
            if not report:
                return 1
        elif stage == "passes":
            device = resolve_device(args.device)
            found = graph._core.stages(_core.pass_names(), device, args.math)
            _dump_passes(found, args.math)
        elif stage == "lowered":
            print(graph._core.lower_text(args.math))
        elif stage == "plan":
            print(graph.compile(device=args.device, math=args.math, capture=False).plan)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m aicf", description=__doc__)
    parser.add_argument(
        "--cmake-dir",
        action="version",
        version=str(Path(_core.__file__).parent / "cmake"),
        help="print where CMake's find_package(aicf) looks: pass it as aicf_DIR",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="the reference training step, checked end to end")
    verify.add_argument("--device", default="auto")
    verify.add_argument("--replays", type=int, default=20)
    verify.add_argument("--seed", type=int, default=0)
    verify.add_argument("--dump", action="store_true", help="print the IR as JSON")
    verify.add_argument("--json", action="store_true", help="print the checks as JSON alone")
    verify.set_defaults(run=_verify)
    info = commands.add_parser("info", help="versions, devices, kernels")
    info.set_defaults(run=_info)
    cache = commands.add_parser("cache", help="compiled CUDA kernels on disk")
    cache.add_argument("action", choices=["info", "clear", "warm"])
    cache.add_argument("file", nargs="?", help="warm: a graph file (default: verify's graphs)")
    cache.add_argument("--arch", default="sm_90a", help="warm: the device to compile for")
    cache.add_argument(
        "--processors", type=int, default=132, help="warm: multiprocessors of that device"
    )
    cache.add_argument("--math", default="fp32", choices=MATH_MODES, help="warm: as compile's")
    cache.set_defaults(run=_cache)
    dump = commands.add_parser("dump", help="a graph file at each stage, with the same ids")
    dump.add_argument("file")
    dump.add_argument("--math", default="fp32", choices=MATH_MODES, help="as compile's")
    dump.add_argument("--stage", choices=["ir", "passes", "lowered", "plan", "dot"])
    dump.add_argument("--device", default="cpu")
    dump.add_argument("--lenient", action="store_true", help="read a broken graph to see why")
    dump.set_defaults(run=_dump)
    args = parser.parse_args(argv)
    if args.command == "verify" and args.replays < 2:
        parser.error("--replays: need at least 2")
    try:
        return args.run(args)
    except BrokenPipeError:  # whoever reads has seen enough; nothing more is written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Error, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
