"""Files on disk: only regular ones are read, and no more than was asked for; what is written is
there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from ._core import FormatError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}
_TEMPORARY = re.compile(r"\.aicf-\d+-[0-9a-f]{16}\.writing")
_ALONE = "need a file that nobody writes to meanwhile"
_MOST_AT_ONCE = 1 << 30  # bytes of one read or write call
_EACH = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def shown(text: str, most: int = 80) -> str:
    """A name out of a file as an error quotes it."""
    return f'"{text}"' if len(text) <= most else f'"{text[:most]}..." ({len(text)} characters)'


def _named(error: OSError, doing: str, path: str) -> OSError:
    """The same error with the path that the user gave."""
    text = error.strerror or "the call failed"
    return OSError(error.errno or errno.EIO, f"{doing}: {text}", path)


def _need_regular(status: os.stat_result, doing: str, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
        raise FormatError(f"{doing} {shown(path, 200)}: it is {kind}; need a regular file")


class Source:
    """A regular file that is open for reading and must stay as it is until it is closed.

    Raises: FormatError for any other kind of file; OSError with the path that was given.
    """

    def __init__(self, doing: str, path: str | os.PathLike[str]) -> None:
        self._doing, self._path = doing, os.fspath(path)
        self.where = f"{doing} {shown(self._path, 200)}"
        try:
            # To open a device may have an effect, so it is looked at before, too.
            _need_regular(os.stat(self._path), doing, self._path)
            self._fd = os.open(self._path, os.O_RDONLY | _EACH)
        except OSError as error:
            raise _named(error, doing, self._path) from None
        try:
            self._opened = os.fstat(self._fd)
            _need_regular(self._opened, doing, self._path)
        except BaseException:
            os.close(self._fd)
            raise
        self.size = self._opened.st_size

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def read(self, count: int) -> bytearray:
        """The next `count` bytes; the caller has compared `count` with `size`."""
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                got = os.readv(self._fd, [view[at : at + _MOST_AT_ONCE]])
            except OSError as error:
                raise _named(error, self._doing, self._path) from None
            if got == 0:
                raise FormatError(
                    f"{self.where}: it has become shorter while it was read; {_ALONE}"
                )
            at += got
        return data

    def map(self) -> mmap.mmap:
        """The whole file as memory, read from disk where it is looked at; it outlives this."""
        try:
            return mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
        except ValueError:  # longer than the file is by now
            raise FormatError(
                f"{self.where}: it has become shorter while it was read; {_ALONE}"
            ) from None
        except OSError as error:
            raise _named(error, self._doing, self._path) from None

    def check_unchanged(self) -> None:
        """FormatError when another program has written to the file since it was opened."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self.size, self._opened.st_mtime_ns):
            raise FormatError(f"{self.where}: it has changed while it was read; {_ALONE}")


def read_whole(doing: str, path: str | os.PathLike[str], most: int) -> bytearray:
    """All bytes of a regular file of at most `most` bytes."""
    with Source(doing, path) as source:
        if source.size > most:
            raise FormatError(f"{source.where}: {source.size} bytes; need at most {most}")
        data = source.read(source.size)
        source.check_unchanged()
        return data


# ---- writing


def write_whole(doing: str, path: str | os.PathLike[str], pieces: Iterable[Any]) -> None:
    """Writes the pieces, one-dimensional buffers of bytes, as the file's whole content.

    They go to a temporary file beside the target, which then takes its name: a reader finds the old
    content or the new one, each whole. A symbolic link is followed, mode and owner are kept.

    Raises: FormatError unless the target is a regular file or new; OSError with the path given.
    """
    given = os.fspath(path)
    try:
        _replace(doing, given, pieces)
    except OSError as error:
        raise _named(error, doing, given) from None


def _replace(doing: str, path: str, pieces: Iterable[Any]) -> None:
    old: os.stat_result | None = None
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(path)
    if old is not None:
        _need_regular(old, doing, path)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    target = os.path.realpath(path) if os.path.islink(path) else path
    folder_path, name = os.path.split(target)
    folder = os.open(folder_path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sweep(folder)
        temporary, file = _new_temporary(folder, 0o666 if old is None else 0o600)
        try:
            try:
                for piece in pieces:
                    _write(file, memoryview(piece))
                if old is not None:
                    _keep_owner_and_mode(file, old)
                os.fsync(file)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _remove(temporary, folder)
                raise
            _sync_folder(folder)
        finally:
            os.close(file)  # and with it the lock
    finally:
        os.close(folder)


def _new_temporary(folder: int, mode: int) -> tuple[str, int]:
    """A new file under a name of its own, locked: the lock goes when its writer ends, in whatever
    way, and tells others that the file may be swept."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        name = f".aicf-{os.getpid()}-{secrets.token_hex(8)}.writing"
        file = os.open(name, flags, mode, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # someone sweeps it already, before it was locked
            os.close(file)
            continue
        except OSError:  # no locks on this file system; then nobody can sweep here either
            return name, file
        try:
            if os.fstat(file).st_nlink == 1:
                return name, file
        except BaseException:
            _remove(name, folder)
            os.close(file)
            raise
        os.close(file)


def _sweep(folder: int) -> None:
    """Removes what writers left that were killed; whatever goes wrong here is left as it is."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    except OSError:
        return
    for name in names:
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | _EACH, dir_fd=folder)
        except OSError:
            continue
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its writer lives
                os.unlink(name, dir_fd=folder)
        except OSError:
            pass
        finally:
            os.close(file)


def _write(file: int, view: memoryview) -> None:
    at = 0
    while at < len(view):
        put = os.write(file, view[at : at + _MOST_AT_ONCE])
        if put <= 0:
            raise OSError(errno.EIO, "nothing was written")
        at += put


def _keep_owner_and_mode(file: int, old: os.stat_result) -> None:
    mode, new = stat.S_IMODE(old.st_mode), os.fstat(file)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(file, old.st_uid, old.st_gid)
        except OSError:  # then the new group, and set-id bits, may not gain what was another's
            mode = mode & 0o707 | (mode & 0o007) << 3
    os.fchmod(file, mode)


def _sync_folder(folder: int) -> None:
    """The rename itself reaches the disk; a file system without this has nothing to offer."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _remove(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):  # the error that led here says more
        os.unlink(name, dir_fd=folder)
