"""The few verbs our files need, and the real file system behind them. tests/sim/sim_disk.py is the other one.

Before us: wal_disk.py, snapshot_disk.py and data_dir.py, which own the order of these calls. Not here: any decision, and any retry. EINTR is retried
by Python itself (PEP 475); short reads and writes are continued here; every OSError names its file."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_ZEROS = bytes(1 << 20)
_ZERO_FILL_SYNC_BYTES = 4 << 20


class File(Protocol):
    """An open file. Reads see what was written, durable or not."""

    def pwrite(self, offset: int, data: bytes) -> None:
        """All of `data`, or an OSError."""

    def pread(self, offset: int, length: int) -> bytes:
        """Fewer bytes only at the end of the file."""

    def read_all(self) -> bytes: ...

    def size(self) -> int: ...

    def zero_fill(self, size: int) -> None:
        """Really write zeros from 0 to `size`: an allocated but unwritten block costs a metadata commit at its first fdatasync."""

    def fdatasync(self) -> None:
        """Bytes and size are durable; the name is not. After an error what is on the disk is unknown, for ever: never call it again."""

    def fsync(self) -> None: ...

    def forget_cached(self) -> None:
        """Read from the disk from now on. The kernel keeps what it failed to write as if it were clean, even for the next process."""

    def close(self) -> None: ...


class Fs(Protocol):
    """Paths are plain strings with "/". Names are durable after fsync_dir of their folder."""

    def create(self, path: str) -> File:
        """A new empty file, open for reading and writing. FileExistsError if the name is taken."""

    def open(self, path: str) -> File:
        """An existing file, open for reading and writing. FileNotFoundError."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`. Both in the same folder."""

    def unlink(self, path: str) -> None:
        """FileNotFoundError if it is not there."""

    def fsync_dir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]:
        """Sorted names, files and folders alike."""

    def makedirs(self, path: str) -> bool:
        """True if something had to be made."""

    def free_bytes(self, path: str) -> int: ...


class OsFile:
    __slots__ = ("_fd", "_path")

    def __init__(self, path: str, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o640)
        self._path = path

    def pwrite(self, offset: int, data: bytes) -> None:
        with _naming(self._path):
            written = os.pwrite(self._fd, data, offset)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], offset + written)

    def pread(self, offset: int, length: int) -> bytes:
        with _naming(self._path):
            data = os.pread(self._fd, length, offset)
            if len(data) == length:
                return data
            pieces = [data]  # the end of the file, or a read past the kernel's limit of 2 GiB a call
            while data and (missing := length - sum(map(len, pieces))):
                data = os.pread(self._fd, missing, offset + length - missing)
                pieces.append(data)
            return b"".join(pieces)

    def read_all(self) -> bytes:
        return self.pread(0, self.size())

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def zero_fill(self, size: int) -> None:
        with _naming(self._path):
            for offset in range(0, size, len(_ZEROS)):
                self.pwrite(offset, _ZEROS[: size - offset])
                if (offset + len(_ZEROS)) % _ZERO_FILL_SYNC_BYTES == 0:
                    # In small steps: the log's fdatasync would have to wait behind one flush of 64 MiB.
                    os.fdatasync(self._fd)

    def fdatasync(self) -> None:
        with _naming(self._path):
            os.fdatasync(self._fd)

    def fsync(self) -> None:
        with _naming(self._path):
            os.fsync(self._fd)

    def forget_cached(self) -> None:
        with _naming(self._path):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class OsFs:
    def create(self, path: str) -> OsFile:
        return OsFile(path, os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> OsFile:
        return OsFile(path, 0)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _naming(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def makedirs(self, path: str) -> bool:
        if os.path.isdir(path):
            return False
        os.makedirs(path, mode=0o750, exist_ok=True)
        return True

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Calls on a descriptor do not know the file's name; the person who reads the error needs it."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


def os_reason(what: str, error: OSError) -> str:
    """For messages: what was tried, on which file, and the error by its name."""
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return f"{what}: {error.filename}: {name}: {error.strerror}"
