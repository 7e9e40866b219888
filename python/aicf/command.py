"""Looks into graphs, compiled steps and this machine: the command `aicf`.

Exit status: 0 all is well, 1 a check failed or what was printed could not be written, 2 it was not
used right or could not be done, 130 ended by Ctrl-C, 141 by the end of whoever read its output.
`profile` and `export` end with the status of their script where it is not 0.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NoReturn

from . import Error, Graph, __version__, _core
from .device import resolve_device
from .files import read_whole, write_whole
from .profile import KINDS
from .progress import Progress
from .serialize import read_graph_file
from .step import MATH_MODES, Step
from .units import bytes_text, printable

_MOST_TIMES = 1 << 26  # bytes of a file of times
_KERNEL = re.compile(rb'extern "C" __global__ void [^{]*?\baicf_(\w+?)(?:_[0-9a-f]{16})?\(')
_ARCH = re.compile(rb"arch (sm_\w+)\n")


def _graph_of(doing: str, path: str, strict: bool = True) -> Graph:
    graph = Graph()
    graph._core = read_graph_file(doing, path, strict)
    return graph


def _compiled(graph: Graph, args: argparse.Namespace, capture: bool = False) -> Step:
    with Progress(f"compiling {graph.name}"):
        return graph.compile(
            device=args.device or "cpu",
            math=args.math or "fp32",
            seed=getattr(args, "seed", None) or 0,
            capture=capture,
        )


# ---- verify, info, bench


def _verify(args: argparse.Namespace) -> int:
    from . import verify

    write = (lambda text: None) if args.json else print
    log = verify.run(args.device, args.replays, args.seed, args.dump, write)
    if args.json:
        print(json.dumps({"ok": not log.failed, "checks": log.records}, indent=1))
    return 1 if log.failed else 0


def _info(args: argparse.Namespace) -> int:
    from .info import facts, text_of

    found = facts(__version__)
    print(json.dumps([fact._asdict() for fact in found], indent=1) if args.json else text_of(found))
    return 0


def _bench(args: argparse.Namespace) -> int:
    from . import benchmark

    device = resolve_device(args.device)
    if args.json:
        timings = [t._asdict() for t in benchmark.run(device, args.math, args.rounds)]
        print(json.dumps({"device": device, "math": args.math, "steps": timings}, indent=1))
        return 0
    print(f"{device}, math {args.math}, {args.rounds} rounds of each")
    print(benchmark.head())
    for timing in benchmark.run(device, args.math, args.rounds):
        print(benchmark.line(timing), flush=True)
    return 0


# ---- programs


def _profile(args: argparse.Namespace) -> int:
    from .profile import profiler

    with open(args.script, "rb"):  # one that is not there is told of before anything runs
        pass
    with profiler() as found:
        status = _script(args.script, args.rest)
    if not found.profiles:
        print(f"aicf profile: {printable(args.script)} ran no step", file=sys.stderr)
        return status or 2
    for profile in found.profiles:
        print(profile.table(args.by) + "\n")
    if args.trace is not None:
        found.save(args.trace)
        events = sum(len(profile.launches) * profile.steps for profile in found.profiles)
        print(f"{args.trace}: {events} launches")
    return status


def _export(args: argparse.Namespace) -> int:
    target = args.output or os.path.splitext(args.file)[0] + ".aicf"
    place = os.path.abspath(target)  # before a program goes to another folder
    if _same_file(args.file, target):
        args.error(f"-o would write over {args.file}; need another file")
    if Path(args.file).suffix == ".py":
        given = [
            f"--{name}" for name in ("device", "math", "seed") if getattr(args, name) is not None
        ]
        if given:
            args.error(f"{given[0]} is what the program says itself; it is of a graph file")
        with open(args.file, "rb"), _compiled_steps() as steps:
            status = _script(args.file, args.rest)
        if status:
            return status
        step = _chosen(steps, args)
    else:
        if args.step is not None or args.rest:
            args.error(f"{args.file} is no program; --step and what follows -- are for one")
        step = _compiled(_graph_of("export", args.file), args)
    step.export(place)
    size = bytes_text(os.path.getsize(place))
    print(f"{target}: {len(step.lowered)} launches on {step.device}, {size}")
    return 0


@contextmanager
def _compiled_steps() -> Iterator[dict[str, Step]]:
    """Those that are compiled meanwhile by the names of their graphs, of each the last."""
    steps: dict[str, Step] = {}
    compiled = Graph.compile

    def compile(graph: Graph, *rest: Any, **options: Any) -> Step:
        step: Step = compiled(graph, *rest, **options)
        steps.pop(graph.name, None)
        steps[graph.name] = step
        return step

    Graph.compile = compile  # type: ignore[method-assign,assignment]
    try:
        yield steps
    finally:
        Graph.compile = compiled  # type: ignore[method-assign]


def _chosen(steps: dict[str, Step], args: argparse.Namespace) -> Step:
    names = ", ".join(map(printable, steps))
    if not steps:
        args.error(f"{printable(args.file)} compiled no step")
    if args.step is None and len(steps) > 1:
        args.error(f"{printable(args.file)} compiled {names}; --step says which")
    if args.step is not None and args.step not in steps:
        args.error(f"--step {printable(args.step)} was not compiled; there is {names}")
    return steps[args.step] if args.step is not None else next(iter(steps.values()))


def _script(path: str, rest: list[str]) -> int:
    """Runs a program as `python path` would, and returns its exit status."""
    words, folders = sys.argv, sys.path
    sys.argv, sys.path = [path, *rest], [os.path.dirname(os.path.abspath(path)), *folders]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as stopped:
        if stopped.code is None or isinstance(stopped.code, int):
            return stopped.code or 0
        print(stopped.code, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path = words, folders
    return 0


# ---- graphs


def _dump_passes(stages: list[_core.Stage], whole: bool) -> None:
    """What each pass made; with the graph that they begin with if `whole`."""
    before = stages[0]
    if whole:
        print(before.text)
    print(
        f"--- before: {before.ops} ops, {before.bytes_moved} bytes moved, "
        f"peak {before.peak_bytes} bytes"
    )
    for last, stage in pairwise(stages):
        if stage.text == last.text:
            print(f"--- after {stage.name}: unchanged")
            continue
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
            _dump_passes(found, args.stage == "passes" or args.math == "mixed")
        elif stage == "lowered":
            print(graph._core.lower_text(args.math))
        elif stage == "plan":
            print(_compiled(graph, args).plan)
    return 0


def _summary(args: argparse.Namespace) -> int:
    if args.math is not None and args.device is None:
        args.error("--math says how a step computes: it needs --device")
    graph = _graph_of("summary", args.file)
    if args.device is None:
        print(graph.summary(args.depth))
    else:
        print(_compiled(graph, args).summary(args.depth))
    return 0


def _view(args: argparse.Namespace) -> int:
    target = args.output or str(Path(args.file).with_suffix(".html"))
    files = {"the graph": args.file, "--times": args.times, "-o": target, "--svg": args.svg}
    given = [(name, path) for name, path in files.items() if path is not None]
    for (first, one), (second, other) in combinations(given, 2):
        if second in ("-o", "--svg") and _same_file(one, other):
            args.error(f"{second} would write over {first}, {one}; need another file")
    graph = _graph_of("view", args.file)
    times = None if args.times is None else _times(args.times)
    step = _compiled(graph, args)
    step.to_html(target, times)
    print(f"{target}: {len(step.lowered)} launches")
    if args.svg is not None:
        write_whole("view", args.svg, [step.plan.to_svg().encode()])
        print(f"{args.svg}: {bytes_text(step.plan.regions['temps'])} of temporaries")
    return 0


def _same_file(one: str, other: str) -> bool:
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _times(path: str) -> list[float]:
    text = read_whole("view", path, _MOST_TIMES)
    try:
        times: Any = json.loads(text)
    except ValueError as error:
        raise _core.FormatError(
            f"view: {path} is no JSON: {error}; need a list of seconds"
        ) from None
    if not isinstance(times, list):
        raise _core.FormatError(f"view: {path} holds no list; need one of seconds, one a launch")
    return times


# ---- the cache


def _cache_folder() -> tuple[Path | None, dict[str, Any]]:
    if not hasattr(_core, "cuda_info"):
        raise _core.Unsupported("cache: this build has no CUDA backend and so no compiled kernels")
    found = _core.cuda_info()
    folder = Path(found["cache"])
    return folder if folder.is_dir() else None, found


def _cache_list(args: argparse.Namespace) -> int:
    folder, _ = _cache_folder()
    for entry in sorted(folder.glob("*.cubin")) if folder else []:
        try:
            size = entry.stat().st_size
            with entry.open("rb") as file:  # the key stands first: architecture, then the program
                begin = file.read(1 << 20)
        except OSError:  # another process removed it
            continue
        name, arch = _KERNEL.search(begin), _ARCH.search(begin)
        what = "times of kernels" if b"tuned kernel\n" in begin else "?"
        what = name[1].decode() if name else what
        machine = arch[1].decode() if arch else "?"
        print(f"{bytes_text(size):>9}  {machine:8}{what}  {entry.name[:12]}")
    return _cache_size(args)


def _cache_size(args: argparse.Namespace) -> int:
    _, found = _cache_folder()
    print(f"{found['cache']}: {found['cache_entries']} kernels, {bytes_text(found['cache_bytes'])}")
    return 0


def _cache_clear(args: argparse.Namespace) -> int:
    _cache_folder()
    print(f"{_core.clear_cuda_cache()} kernels removed")
    return 0


def _cache_warm(args: argparse.Namespace) -> int:
    from . import verify

    _cache_folder()
    for name in [args.file] if args.file else list(verify.CASES):
        graph = _graph_of("warm", name) if args.file else verify.build(name, verify.CASES[name])
        passes = _core.pass_names()
        with Progress(f"compiling {name}"):
            programs = _core.cuda_programs(
                graph._core, passes, args.processors, args.arch, args.math
            )
            cubins = _core.cuda_cubins(programs, args.arch)
        print(f"{name}: {len(cubins)} kernels, {sum(map(len, cubins))} bytes for {args.arch}")
    return 0


# ---- the words of the command line


class _Parser(argparse.ArgumentParser):
    """One line for what is wrong with a call."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if int(text) < least:
            raise ValueError
        return int(text)

    number.__name__ = f"number of at least {least}"  # what argparse calls it in an error
    return number


def _parser() -> _Parser:
    about, _, status = (__doc__ or "").partition("\n\n")
    parser = _Parser(prog="aicf", description=about, epilog=status)
    parser.add_argument("--version", action="version", version=f"aicf {__version__}")
    parser.add_argument(
        "--cmake-dir",
        action="version",
        version=str(Path(_core.__file__).parent / "cmake"),
        help="print where CMake's find_package(aicf) looks: pass it as aicf_DIR",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(name: str, run: Any, about: str, *, on: Any = commands) -> _Parser:
        made: _Parser = on.add_parser(name, help=about, description=f"{about}.")
        made.set_defaults(run=run, error=made.error)
        return made

    def where(made: _Parser, device: str | None = "cpu") -> None:
        made.add_argument("--device", default=device, help="auto, cpu or cuda:<index>"
                          + (f" (default: {device})" if device else ""))  # fmt: skip
        made.add_argument("--math", default="fp32" if device else None, choices=MATH_MODES,
                          help="as compile's (default: fp32)")  # fmt: skip

    verify = command("verify", _verify, "The reference training step, checked end to end")
    verify.add_argument("--device", default="auto", help="auto, cpu or cuda:<index>")
    verify.add_argument("--replays", type=_at_least(2), default=20, help="steps to compare")
    verify.add_argument("--seed", type=int, default=0, help="of data and params")
    verify.add_argument("--dump", action="store_true", help="print the IR as JSON")
    verify.add_argument("--json", action="store_true", help="print the checks as JSON alone")

    info = command("info", _info, "What was found here, where, and what brings the rest")
    info.add_argument("--json", action="store_true", help="the same as JSON")

    dump = command("dump", _dump, "A graph file at each stage, with the same ids")
    dump.add_argument("file", help="a graph, as Graph.to_json writes it")
    where(dump)
    dump.add_argument("--stage", choices=["ir", "passes", "lowered", "plan", "dot"],
                      help="one of them alone (default: all but dot)")  # fmt: skip
    dump.add_argument("--lenient", action="store_true", help="read a broken graph to see why")

    summary = command("summary", _summary, "The layers of a graph file and what they cost")
    summary.add_argument("file", help="a graph, as Graph.to_json writes it")
    summary.add_argument("--depth", type=_at_least(1), help="parts of a layer's name told apart")
    where(summary, None)

    view = command("view", _view, "A page with the IR, the lowered ops and the launches")
    view.add_argument("file", help="a graph, as Graph.to_json writes it")
    view.add_argument("-o", "--output", help="the page (default: beside the graph, as .html)")
    view.add_argument("--svg", help="the memory over time as a picture, to this file")
    view.add_argument("--times", help="a JSON file: a list of seconds, one a launch")
    where(view)

    profile = command("profile", _profile, "A program with each launch of its steps timed")
    profile.add_argument("script", help="what python would run; its own arguments follow --")
    profile.add_argument("--by", choices=KINDS, default="launch",
                         help="what a line of the table stands for (default: launch)")  # fmt: skip
    profile.add_argument("--trace", help="all steps for Perfetto, to this file; .gz is compressed")

    export = command("export", _export, "A compiled step as a file, for load_step and C++")
    export.add_argument("file", help="a graph, as Graph.to_json writes it, or a program (.py), "
                        "which runs; its own arguments follow --")  # fmt: skip
    export.add_argument("-o", "--output", help="the file (default: beside the other, as .aicf)")
    export.add_argument("--step", help="of a program the step to take, by the name of its graph")
    export.add_argument(
        "--seed", type=_at_least(0), help="of a graph's initial values (default: 0)"
    )
    where(export, None)

    bench = command("bench", _bench, "Four training steps timed: median and spread")
    where(bench, "auto")
    bench.add_argument(
        "--rounds", type=_at_least(1), default=9, help="timings of each (default: 9)"
    )
    bench.add_argument("--json", action="store_true", help="all timings as JSON")

    cache = commands.add_parser("cache", help="Compiled GPU kernels on disk",
                                description="Compiled GPU kernels on disk.")  # fmt: skip
    actions = cache.add_subparsers(dest="action", required=True, metavar="action")
    command("list", _cache_list, "Each kernel: its size, architecture and name", on=actions)
    command("size", _cache_size, "Where they are, how many and how large", on=actions)
    command("clear", _cache_clear, "Removes them all", on=actions)
    warm = command("warm", _cache_warm, "Compiles a graph's kernels; needs no GPU", on=actions)
    warm.add_argument("file", nargs="?", help="a graph file (default: the graphs of verify)")
    warm.add_argument("--arch", default="sm_90a", help="of the device (default: sm_90a)")
    warm.add_argument("--processors", type=_at_least(1), default=132, help="multiprocessors of it")
    warm.add_argument("--math", default="fp32", choices=MATH_MODES, help="as compile's")
    return parser


def _own_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Those of a command, and those that follow -- for the program that it runs."""
    if not words or words[0] not in ("profile", "export") or "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _drop_output() -> None:
    """What is still to be written goes nowhere, so that no error follows at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names in any encoding
            stream.reconfigure(errors="backslashreplace")
    doing = "aicf"
    try:
        try:
            words, rest = _own_words(sys.argv[1:] if argv is None else argv)
            args = _parser().parse_args(words, argparse.Namespace(rest=rest))
            doing = f"aicf {args.command}"
            status: int = args.run(args)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where an error can still be told
        return status
    except BrokenPipeError:  # whoever reads has seen enough
        _drop_output()
        return 141  # as a shell counts a process that SIGPIPE ended
    except KeyboardInterrupt:
        return 130  # as a shell counts a process that SIGINT ended
    except (Error, OSError) as error:
        text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        print(f"{doing}: {text}", file=sys.stderr)
        if isinstance(error, OSError) and error.filename is None:  # files give their names
            _drop_output()
            return 1
        return 2
