"""Compiled kernels on disk: never a wrong load, whatever happens to the folder."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import aicf
import pytest
from aicf import _core

pytestmark = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)
ARCH = "sm_90a"


def program(i=0, length=1):
    table = ", ".join(str((i + 1) * k) for k in range(length))
    return (
        f'extern "C" __device__ int table[] = {{{table}}};\n'
        f'extern "C" __global__ void k(int* y) {{ y[0] = table[0] + {i}; }}\n'
    )


def compiled(text, arch=ARCH):
    (cubin,) = _core.cuda_cubins([text], arch)
    return cubin


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("AICF_CACHE_DIR", str(folder))
    return folder


def entries(folder):
    return sorted(folder.glob("*.cubin"))


def run(code, folder, **environment):
    """A process of its own: a warning is printed once a process."""
    env = {**os.environ, "AICF_CACHE_DIR": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", f"from aicf import _core\n{code}"],
        env={key: value for key, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_an_entry_is_made_and_used(cache):
    cubin = compiled(program())
    (entry,) = entries(cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    before = entry.stat()
    assert compiled(program()) == cubin
    assert entries(cache) == [entry] and entry.stat().st_ino == before.st_ino
    info = _core.cuda_info()
    assert (info["cache_entries"], info["cache_bytes"]) == (1, before.st_size)
    assert _core.clear_cuda_cache() == 1 and entries(cache) == []


def test_source_and_arch_are_in_the_key(cache):
    cubins = {compiled(program(i), arch) for i in range(2) for arch in ("sm_80", ARCH)}
    assert len(cubins) == 4 and len(entries(cache)) == 4


def test_a_kernel_is_compiled_once_whatever_graph_asks(cache):
    """Graphs that share a kernel share its entry; what is known is not written again."""

    def programs(*ops):
        g = aicf.Graph("some")
        x = g.input("x", (700,))
        for op in ops:
            g.output(op, aicf.cumsum(x, 0) if op == "cumsum" else aicf.cast(x, op))
        return _core.cuda_programs(g._core, ())

    both = programs("int32", "cumsum")
    (one,) = programs("int32")
    assert len(both) == 2 and one in both
    assert _core.cuda_cubins([one], ARCH)[0] in _core.cuda_cubins(both, ARCH)
    assert len(entries(cache)) == 2


def test_one_bad_program_among_many(cache):
    """The error is told, and what compiles beside it is right and whole."""
    good = [program(i) for i in range(6)]
    with pytest.raises(aicf.InternalError, match="refused a kernel"):
        _core.cuda_cubins([*good[:3], "no program", *good[3:]], ARCH)
    assert len(set(_core.cuda_cubins(good, ARCH))) == 6 and len(entries(cache)) == 6


FLIPPED = (0, 8, 12, 20, 40, 400, -1, -64, -65)
SIZED = ("cut", "grow", "empty", "swap", "sparse", "zeros", "huge")


@pytest.mark.parametrize("at", [*FLIPPED, *SIZED])
def test_a_damaged_entry_is_a_miss(cache, at):
    cubin = compiled(program())
    (entry,) = entries(cache)
    good = entry.read_bytes()
    bad = bytearray(good)
    if at == "cut":
        bad = bad[: len(bad) // 2]
    elif at == "grow":
        bad += b"x"
    elif at == "empty":
        bad = b""
    elif at in ("sparse", "zeros", "huge"):
        bad = bad[:100] if at == "sparse" else b""
    elif at == "swap":  # another program's entry under this name
        compiled(program(1))
        bad = next(e for e in entries(cache) if e != entry).read_bytes()
    else:
        bad[at] ^= 1
    entry.write_bytes(bad)
    if at in ("sparse", "zeros", "huge"):
        os.truncate(entry, 1 << 40 if at == "huge" else 200 << 20)
    assert compiled(program()) == cubin
    assert entry.read_bytes() == good, "the entry was not made again"


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "writable"])
def test_an_entry_that_is_no_plain_file_of_ours(cache, tmp_path, what):
    cubin = compiled(program())
    (entry,) = entries(cache)
    if what == "writable":
        entry.chmod(0o666)
    else:
        kept = entry.rename(tmp_path / "kept")
        if what == "link":
            entry.symlink_to(kept)
        elif what == "folder":
            entry.mkdir()
        else:
            os.mkfifo(entry)
    assert compiled(program()) == cubin
    if what != "folder":
        assert stat.S_ISREG(entry.lstat().st_mode)
        assert stat.S_IMODE(entry.lstat().st_mode) == 0o600


COMPILE = f"print(len(_core.cuda_cubins([{program()!r}], {ARCH!r})[0]))\n" * 2


@pytest.mark.parametrize("what", ["file", "writable", "link", "no home", "read-only"])
def test_an_unusable_folder(tmp_path, what):
    """Compiled in memory, with one warning."""
    folder, environment = tmp_path / "cache", {}
    if what == "file":
        folder.write_text("")
    elif what == "writable":
        folder.mkdir()
        folder.chmod(0o777)
    elif what == "link":
        (tmp_path / "real").mkdir()
        folder.symlink_to(tmp_path / "real")
    elif what == "read-only":
        folder = Path("/proc/aicf")
    else:
        environment = {"AICF_CACHE_DIR": None, "HOME": None, "XDG_CACHE_HOME": None}
    done = run(COMPILE, folder, **environment)
    assert len(set(done.stdout.split())) == 1
    assert done.stderr.count("not used") == 1, done.stderr


def test_sixteen_writers(cache):
    """All start at once on the same programs; each gets the same bytes."""
    code = "import hashlib\n" + "".join(
        f"print(hashlib.sha256(_core.cuda_cubins([{program(i)!r}], {ARCH!r})[0]).hexdigest())\n"
        for i in range(3)
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", f"from aicf import _core\n{code}"], stdout=subprocess.PIPE
        )
        for _ in range(16)
    ]
    assert len({writer.communicate()[0] for writer in writers}) == 1
    assert len(entries(cache)) == 3
    assert [name for name in os.listdir(cache) if name.startswith(".writing.")] == []


@pytest.mark.slow
def test_killed_while_writing(cache):
    """A hundred writers are killed at a temporary's sight: no torn entry is ever read."""
    programs = [program(i, 20_000) for i in range(4)]
    whole = [compiled(text) for text in programs]
    names = entries(cache)
    kept = [entry.read_bytes() for entry in names]
    n = in_writing = 0
    while in_writing < 100:  # a busy machine sees few of them
        n += 1
        assert n < 5000, f"{in_writing} of {n} writers were seen at work"
        names[n % 4].unlink(missing_ok=True)
        child = os.fork()
        if child == 0:  # NVRTC is loaded; the program is compiled, then written
            try:
                for text in programs:
                    compiled(text)
            finally:
                os._exit(0)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if any(name.startswith(".writing.") for name in os.listdir(cache)):
                in_writing += 1
                break
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                child = 0
                break
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for entry, good in zip(names, kept, strict=True):
            assert not entry.exists() or entry.read_bytes() == good, f"torn after kill {n}"
        for left in cache.glob(".writing.*"):
            left.unlink()
    assert [compiled(text) for text in programs] == whole


def test_what_killed_writers_left_is_swept(cache):
    """By the first that a process writes."""
    run(COMPILE, cache)
    old, new = cache / ".writing.1", cache / ".writing.2"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    run(COMPILE, cache)
    assert old.exists(), "nothing was written, so nothing is swept"
    run(COMPILE.replace("+ 0", "+ 1"), cache)
    assert not old.exists() and new.exists()
    assert _core.cuda_info()["cache_entries"] == 2


def test_two_threads_compile_a_program_once(cache, tmp_path):
    """The second waits for the first, also where the folder cannot be used; a refused program is
    refused for both."""
    code = """
import json, threading
texts = json.load(open(PATH))
def ask(into):
    try:
        into.append(_core.cuda_cubins(texts, "sm_90a"))
    except Exception as error:
        into.append(str(error)[:60])
results = [[], [], []]
threads = [threading.Thread(target=ask, args=(into,)) for into in results]
for t in threads: t.start()
for t in threads: t.join()
assert results[0] == results[1] == results[2], results
print(_core.cuda_info()["compiled"], type(results[0][0]).__name__)
"""
    path = tmp_path / "texts"
    code = code.replace("PATH", repr(str(path)))
    path.write_text(json.dumps([program(i, 20000) for i in range(2)]))
    for folder in (cache, "/dev/null"):
        assert run(code, folder).stdout.split() == ["2", "list"]
    path.write_text(json.dumps(['extern "C" __global__ void k() { no; }']))
    assert run(code, cache).stdout.split() == ["0", "str"]


def test_the_folder_is_held_to_its_limit(cache):
    """Those that were used longest ago go until at most 512 MiB are left; a load counts as use."""
    mib, now = 1 << 20, time.time()
    compiled(program())
    (used,) = entries(cache)
    os.utime(used, (now - 5000, now - 5000))
    names = [cache / f"{i:064x}.cubin" for i in range(7)]
    for i, name in enumerate(names):
        with name.open("wb") as file:
            file.truncate(100 * mib)  # takes no room on the disk
        name.chmod(0o600)
        os.utime(name, (now - 4000 + i, now - 4000 + i))
    code = "print(len(_core.cuda_cubins([TEXT], 'sm_90a')))"
    run(code.replace("TEXT", repr(program())), cache)  # from the folder
    assert set(entries(cache)) == {used, *names}
    run(code.replace("TEXT", repr(program(1))), cache)  # writes an entry
    left = set(entries(cache))
    assert left & set(names) == set(names[2:])
    assert used in left and len(left) == 7
    assert sum(name.stat().st_size for name in left) <= 512 * mib
