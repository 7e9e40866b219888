"""What a save leaves, whatever fails: the old file or the new one, whole, and nothing else."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import files

ROOT_USER = os.geteuid() == 0


def small_step(number=0.0):
    g = aicf.Graph("small")
    g.state("s", (3,), init=aicf.init.constant(number))
    return g.compile(device="cpu")


@pytest.fixture
def step():
    return small_step(1.0)


def left_over(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.startswith(".aicf"))


def content(path):
    other = small_step()
    other.load(path)
    return float(other.state["s"].numpy()[0])


# ---- the file that is there


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666, 0o755])
def test_the_mode_is_kept(step, tmp_path, mode):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    path.chmod(mode)
    step.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode and content(path) == 1


def test_a_new_file_has_the_umasks_mode(step, tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)  # it belongs to the whole process
            step.save(tmp_path / "state")
    finally:
        assert os.umask(before) == 0o027
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o640


def test_a_secret_is_never_readable(step, tmp_path, monkeypatch):
    """Neither the file nor its temporary one has more mode bits than the old file."""
    path, seen = tmp_path / "state", []
    path.write_bytes(b"old")
    path.chmod(0o600)
    real = os.write

    def write(fd, data):
        seen.extend(stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir())
        return real(fd, data)

    monkeypatch.setattr(files.os, "write", write)
    step.save(path)
    assert len(seen) >= 4 and set(seen) == {0o600}


@pytest.mark.skipif(not ROOT_USER, reason="only root gives files away")
def test_the_owner_is_kept(step, tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    step.save(path)
    now = path.stat()
    assert (now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (1234, 4321, 0o640)


@pytest.mark.skipif(not ROOT_USER, reason="only root gives files away")
def test_an_owner_that_cannot_be_kept(step, tmp_path, monkeypatch):
    """The new group gains nothing that the old file gave to its own."""
    path = tmp_path / "state"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    path.chmod(0o4664)

    def refuse(*args):
        raise PermissionError(errno.EPERM, "planted")

    monkeypatch.setattr(files.os, "fchown", refuse)
    step.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_that_may_not_be_written(step, tmp_path, monkeypatch):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if ROOT_USER:  # who may write everything
        monkeypatch.setattr(files.os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=str(path)):
        step.save(path)
    assert path.read_bytes() == b"old" and left_over(tmp_path) == []


def test_links_are_followed(step, tmp_path):
    real, link = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    link.mkdir()
    (real / "state").write_bytes(b"old")
    (link / "one").symlink_to("../real/state")
    (link / "two").symlink_to(link / "one")
    (link / "new").symlink_to("../real/new")
    for name in ("two", "new"):
        step.save(link / name)
        assert (link / name).is_symlink() and content(link / name) == 1
    assert sorted(os.listdir(real)) == ["new", "state"]
    (link / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=f"{link}/loop"):
        step.save(link / "loop")
    assert sorted(os.listdir(link)) == ["loop", "new", "one", "two"]


@pytest.mark.parametrize("what", ["folder", "pipe", "device", "link to a device"])
def test_only_regular_files_are_replaced(step, tmp_path, what):
    path = tmp_path / "strange"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link to a device":
        path.symlink_to("/dev/null")
    else:
        path = Path("/dev/null")
        if ROOT_USER:  # a node of its own, for a wrong program would replace the machine's
            path = tmp_path / "null"
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("no device nodes here")
    before = path.stat()
    with pytest.raises(aicf.FormatError, match="regular file") as caught:
        step.save(path)
    assert str(path) in str(caught.value)
    assert path.stat().st_ino == before.st_ino and left_over(tmp_path) == []


def test_paths(step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step.save("state")
    step.save("./state")
    step.save(b"state")
    longest = "n" * 255
    step.save(longest)
    assert content(longest) == 1
    for path, error in {
        "": FileNotFoundError,
        "no/state": FileNotFoundError,
        "state/": NotADirectoryError,
        "state/x": NotADirectoryError,
        "new/": FileNotFoundError,
        "n" * 256: OSError,
    }.items():
        with pytest.raises(error) as caught:
            step.save(path)
        assert caught.value.filename == path and "save" in str(caught.value)
    assert sorted(os.listdir()) == sorted(["state", longest])


def test_saving_twice_gives_the_same_bytes(step, tmp_path):
    step.save(tmp_path / "a")
    step.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# ---- failing calls


class Calls:
    """The os module, with one call failing or cut short."""

    def __init__(self, fail_at=-1, number=0, limit=None):
        self.names, self.fail_at, self.number, self.limit = [], fail_at, number, limit

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args, **named):
            self.names.append(name)
            if len(self.names) - 1 == self.fail_at:
                if name == "close":
                    real(*args)  # the kernel closes it all the same
                raise OSError(self.number, os.strerror(self.number))
            if name == "write" and self.limit is not None:
                args = (args[0], args[1][: self.limit])
            return real(*args, **named)

        return call


CALLS = "stat access open fstat scandir write fchown fchmod fsync rename unlink close".split()
ERRORS = (
    "EINTR EIO ENOSPC EDQUOT EROFS EACCES EPERM EXDEV EBUSY ENAMETOOLONG EMFILE EINVAL ENOENT"
).split()


def descriptors():
    return len(os.listdir("/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd"))


@pytest.mark.parametrize("target", ["new", "old", "link"])
def test_each_call_failing(tmp_path, monkeypatch, target):
    """Every call of a save fails in turn, in every way: the error names the path, the file is the
    old or the new one, no temporary is left."""
    path, real = tmp_path / "state", tmp_path / "state"
    if target == "link":
        real = tmp_path / "elsewhere"
        path.symlink_to(real)
    new, old = small_step(2.0), small_step(1.0)
    new.save(tmp_path / "wanted")
    wanted = (tmp_path / "wanted").read_bytes()

    def begin():
        real.unlink(missing_ok=True)
        if target != "new":
            old.save(real)
            real.chmod(0o640)
            if ROOT_USER:
                os.chown(real, 1234, 4321)

    begin()
    before = real.read_bytes() if target != "new" else None
    counted = Calls()
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", counted)
        new.save(path)
    assert real.read_bytes() == wanted
    assert {"stat", "open", "write", "close"} <= set(counted.names)
    synced = [name for name in counted.names if name in ("write", "fsync", "rename")]
    assert synced[-4:] == ["write", "fsync", "rename", "fsync"]  # the file, then its folder
    open_before, outcomes = descriptors(), set()
    for at, name in enumerate(counted.names):
        for error in ERRORS:
            begin()
            calls = Calls(at, getattr(errno, error))
            with monkeypatch.context() as patch:
                patch.setattr(files, "os", calls)
                try:
                    new.save(path)
                    outcome = "saved"
                except OSError as raised:
                    outcome = "raised"
                    assert raised.errno == getattr(errno, error) and raised.filename == str(path)
            text = f"{name} at {at} with {error}: {outcome}"
            now = real.read_bytes() if real.exists() else None
            assert calls.names[at] == name, text
            assert now in (before, wanted), text
            assert now == wanted or outcome == "raised", text
            assert left_over(tmp_path) == [], text
            outcomes.add((name, outcome, now == wanted))
    assert descriptors() == open_before
    assert {("write", "raised", False), ("rename", "raised", False), ("fsync", "raised", True)} <= (
        outcomes
    )


@pytest.mark.parametrize("limit", [1, 7, 0])
def test_short_writes(step, tmp_path, monkeypatch, limit):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", Calls(limit=limit))
        if limit:
            step.save(path)
        else:  # a file system that takes nothing must not be asked for ever
            with pytest.raises(OSError, match="nothing was written"):
                step.save(path)
    assert left_over(tmp_path) == []
    if limit:
        assert content(path) == 1
    else:
        assert path.read_bytes() == b"old"


def test_a_file_larger_than_allowed(tmp_path):
    """A true failure of the kernel in the midst of writing."""
    g = aicf.Graph("large")
    g.state("s", (1 << 18,))
    step, path = g.compile(device="cpu"), tmp_path / "state"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        with pytest.raises(OSError, match=str(path)):
            step.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == b"old" and left_over(tmp_path) == []


def test_what_interrupts_leaves_nothing(step, tmp_path, monkeypatch):
    def interrupt(fd):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        step.save(tmp_path / "state")
    assert os.listdir(tmp_path) == []


# ---- several writers

WRITER = """
import os, sys
from aicf import files
folder = os.open(sys.argv[1], os.O_RDONLY)
name, file = files._new_temporary(folder, 0o600)
os.write(file, b"half")
print(name, flush=True)
sys.stdin.read()
"""


def test_dead_writers_are_swept_and_live_ones_left(step, tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    names = [writer.stdout.readline().decode().strip() for writer in writers]
    others = [".aicf", ".aicf-notes", ".aicf-1-0123456789abcdef.writing.bak"]
    for name in others:
        (tmp_path / name).write_text("another program's")
    folder, link = f".aicf-1-{'0' * 16}.writing", f".aicf-2-{'0' * 16}.writing"
    (tmp_path / folder).mkdir()
    (tmp_path / link).symlink_to(tmp_path / others[0])
    pipe = f".aicf-3-{'0' * 16}.writing"
    os.mkfifo(tmp_path / pipe)
    kept = [*others, folder, link, pipe]
    step.save(tmp_path / "state")
    assert left_over(tmp_path) == sorted([*names, *kept])
    writers[0].kill()
    writers[0].communicate()
    step.save(tmp_path / "state")
    assert left_over(tmp_path) == sorted([names[1], *kept])
    assert (tmp_path / names[1]).read_bytes() == b"half"
    writers[1].communicate()  # it ends without having finished its file
    step.save(tmp_path / "state")
    assert left_over(tmp_path) == sorted(kept)


def test_a_sweeper_that_comes_first(step, tmp_path, monkeypatch):
    """A file that is swept between its creation and its lock is made again."""
    real, made = os.open, []

    def open_swept(path, flags, *args, **named):
        file = real(path, flags, *args, **named)
        if flags & os.O_CREAT:
            made.append(path)
            if len(made) < 4:
                os.unlink(tmp_path / path)
        return file

    monkeypatch.setattr(files.os, "open", open_swept)
    step.save(tmp_path / "state")
    assert len(set(made)) == 4 and os.listdir(tmp_path) == ["state"]


def test_file_systems_without_locks(step, tmp_path, monkeypatch):
    """A save works there, and nothing is swept where nobody can tell the dead from the living."""

    def refuse(file, how):
        raise OSError(errno.ENOLCK, "planted")

    other = tmp_path / f".aicf-1-{'0' * 16}.writing"
    other.write_text("someone's")
    monkeypatch.setattr(files.fcntl, "flock", refuse)
    step.save(tmp_path / "state")
    assert content(tmp_path / "state") == 1 and left_over(tmp_path) == [other.name]


SAVERS = """
import os, sys
import aicf
path, number = sys.argv[1], int(sys.argv[2])
g = aicf.Graph("wide")
g.state("s", (20_000,), init=aicf.init.constant(number))
step = g.compile(device="cpu")
for _ in range(15):
    step.save(path)
"""


def test_savers_of_one_path(tmp_path):
    """Four processes save to one path while it is read: every read finds one of them, whole."""
    path = tmp_path / "state"
    g = aicf.Graph("wide")
    g.state("s", (20_000,))
    reader = g.compile(device="cpu")
    reader.save(path)
    savers = [subprocess.Popen([sys.executable, "-c", SAVERS, path, str(n)]) for n in (1, 2, 3, 4)]
    seen, deadline = set(), time.monotonic() + 120
    while any(saver.poll() is None for saver in savers):
        reader.load(path)
        values = reader.state["s"].numpy()
        assert (values == values[0]).all()
        seen.add(float(values[0]))
        assert time.monotonic() < deadline
    assert [saver.returncode for saver in savers] == [0] * 4
    assert len(seen) > 1 and seen <= {0, 1, 2, 3, 4}
    assert os.listdir(tmp_path) == ["state"]


def test_numbers_of_every_kind_come_back(tmp_path):
    """NaN payloads, both zeros, subnormals: bits, not numbers, are stored."""
    g = aicf.Graph("bits")
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        g.state(dtype, (64,), dtype)
    step = g.compile(device="cpu")
    rng, path = np.random.default_rng(0), tmp_path / "state"
    step.save(path)
    data = bytearray(path.read_bytes())
    length = 64 * (4 + 2 + 2 + 8)
    data[-length:] = rng.integers(0, 256, length, np.uint8).tobytes()
    path.write_bytes(data)
    step.load(path)
    step.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data
