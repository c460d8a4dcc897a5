"""The order of file operations of snapshots: a file that has its name is complete, checked and durable. Production and simulator run this same code.

Before us: engine/snapshots.py. After us: fs.py, or tests/sim/sim_disk.py. It works in the caller's thread; disk_threads.py gives it a pool.
Not here: the layout of the file (wal/snapshot_file.py), and when one is written (engine/snapshots.py)."""

import contextlib
import re
from collections.abc import Sequence

from anabranch_node.core.effects import (
    DiskFailed,
    SnapshotAppend,
    SnapshotAppended,
    SnapshotBytes,
    SnapshotFailed,
    SnapshotFinish,
    SnapshotKey,
    SnapshotLoad,
    SnapshotLoaded,
    SnapshotOpen,
    SnapshotRead,
    SnapshotReceive,
    SnapshotReceived,
    SnapshotSaved,
    SnapshotsDelete,
    SnapshotVerified,
)
from anabranch_node.drivers.fs import File, Fs, os_reason
from anabranch_node.wal.snapshot_file import Expected, SnapshotHeader, SnapshotReader, SnapshotWriter, check_place

SnapshotEffect = SnapshotOpen | SnapshotAppend | SnapshotFinish | SnapshotRead | SnapshotReceive | SnapshotLoad | SnapshotsDelete
SnapshotEvent = SnapshotAppended | SnapshotSaved | SnapshotBytes | SnapshotReceived | SnapshotVerified | SnapshotLoaded | SnapshotFailed | DiskFailed

_SNAPSHOT_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.snap")


_SNAPSHOT_SYNC_BYTES = 8 << 20
"""A large snapshot is flushed as it grows: the log's fdatasync would have to wait behind one flush of all of it."""


class _Partial:
    """A file that nothing depends on yet."""

    __slots__ = ("expected_size", "file", "path", "size", "unsynced", "writer")

    def __init__(self, file: File, path: str, expected_size: int) -> None:
        self.file = file
        self.path = path
        self.expected_size = expected_size
        self.writer = SnapshotWriter()
        self.size = 0
        self.unsynced = 0

    def append(self, data: bytes) -> None:
        self.file.pwrite(self.size, data)
        self.size += len(data)
        self.unsynced += len(data)
        if self.unsynced >= _SNAPSHOT_SYNC_BYTES:
            self.file.fdatasync()
            self.unsynced = 0


class SnapshotDisk:
    """`snapshots/<group>/<replica>-<index>-<term>.snap`. A file that has this name is complete, checked and durable.

    Effects of one (group, replica) come in order and from one thread at a time; different replicas may use different threads."""

    def __init__(self, fs: Fs, root: str, cluster_id: str | None = None) -> None:
        self._fs = fs
        self._root = root
        self._folder = f"{root}/snapshots"
        self._cluster_id = cluster_id
        self._writing: dict[SnapshotKey, _Partial] = {}
        self._incoming: dict[SnapshotKey, _Partial] = {}
        self._sizes: dict[SnapshotKey, int] = {}  # of files that this process finished: it knows that they are whole
        self._durable_folders: set[int] = set()

    def scan(self) -> dict[tuple[int, int], list[SnapshotKey]]:
        """Once, at the start: the finished snapshots of each (group, replica), oldest first. Left-over temporary files are dropped.
        The names are durable afterwards: a dead process may have renamed without living to fsync the folder."""
        found: dict[tuple[int, int], list[SnapshotKey]] = {}
        self._fs.makedirs(self._folder)
        for group in (int(name) for name in self._fs.listdir(self._folder) if name.isdecimal()):
            for name in self._fs.listdir(f"{self._folder}/{group}"):
                if name.endswith((".writing", ".incoming")):
                    self._fs.unlink(f"{self._folder}/{group}/{name}")
                elif match := _SNAPSHOT_NAME.fullmatch(name):
                    key = SnapshotKey(group, int(match[1]), int(match[2]), int(match[3]))
                    found.setdefault((group, key.replica), []).append(key)
            self._fs.fsync_dir(f"{self._folder}/{group}")
            self._durable_folders.add(group)
        self._fs.fsync_dir(self._folder)
        self._fs.fsync_dir(self._root)
        return {replica: sorted(keys) for replica, keys in found.items()}

    def perform(self, effects: Sequence[SnapshotEffect]) -> list[SnapshotEvent]:
        events: list[SnapshotEvent] = []
        for effect in effects:
            if isinstance(effect, SnapshotsDelete):
                self._delete(effect)
                continue
            try:
                event = self._one(effect)
            except Exception as error:  # whatever it is: nothing depends on this file yet, so nobody but this snapshot fails
                reason = os_reason(type(effect).__name__, error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                event = SnapshotFailed(effect.key, reason)
                self._give_up(effect)
            if event is not None:
                events.append(event)
        return events

    def close(self) -> None:
        for partial in (*self._writing.values(), *self._incoming.values()):
            partial.file.close()
        self._writing.clear()
        self._incoming.clear()

    def _one(self, effect: SnapshotOpen | SnapshotAppend | SnapshotFinish | SnapshotRead | SnapshotReceive | SnapshotLoad) -> SnapshotEvent | None:
        if isinstance(effect, SnapshotOpen):
            self._open(effect)
            return None
        if isinstance(effect, SnapshotAppend):
            return self._append(effect)
        if isinstance(effect, SnapshotFinish):
            return self._finish(effect)
        if isinstance(effect, SnapshotReceive):
            return self._receive(effect)
        if isinstance(effect, SnapshotRead):
            return self._read(effect)
        return self._load(effect)

    def _path(self, key: SnapshotKey) -> str:
        return f"{self._folder}/{key.group}/{key.replica}-{key.index}-{key.term}.snap"

    def _expected(self, key: SnapshotKey) -> Expected:
        return Expected(self._cluster_id, key.group, key.index, key.term)

    def _start(self, key: SnapshotKey, suffix: str, expected_size: int) -> _Partial:
        path = self._path(key) + suffix
        self._fs.makedirs(f"{self._folder}/{key.group}")
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(path)
        return _Partial(self._fs.create(path), path, expected_size)

    def _open(self, effect: SnapshotOpen) -> None:
        self._drop(self._writing, effect.key)
        check_place(SnapshotHeader.decode(effect.header, self._path(effect.key)), self._expected(effect.key), self._path(effect.key))
        partial = self._writing[effect.key] = self._start(effect.key, ".writing", 0)
        partial.append(partial.writer.start(effect.header))

    def _append(self, effect: SnapshotAppend) -> SnapshotAppended:
        partial = self._unfinished(effect.key)
        partial.append(partial.writer.chunk(effect.chunk))
        return SnapshotAppended(effect.key)

    def _finish(self, effect: SnapshotFinish) -> SnapshotSaved:
        partial = self._unfinished(effect.key)
        partial.append(partial.writer.end())
        self._publish(effect.key, partial)
        del self._writing[effect.key]
        return SnapshotSaved(effect.key, partial.size)

    def _unfinished(self, key: SnapshotKey) -> _Partial:
        partial = self._writing.get(key)
        if partial is None:
            raise ValueError(f"{self._path(key)}: not being written; its start failed or it was deleted since")
        return partial

    def _receive(self, effect: SnapshotReceive) -> SnapshotReceived | SnapshotVerified:
        key = effect.key
        if effect.size == self._sizes.get(key):
            return SnapshotVerified(key)  # a duplicate of what is already complete
        for other in [other for other in list(self._incoming) if other[:2] == key[:2]]:
            if other != key or self._incoming[other].expected_size != effect.size:
                self._drop(self._incoming, other)  # one at a time per replica: the leader now sends another file
        partial = self._incoming.get(key)
        if effect.offset != (partial.size if partial else 0):
            return SnapshotReceived(key, partial.size if partial else 0)
        if effect.offset + len(effect.data) > effect.size:
            raise ValueError(f"{self._path(key)}: a piece ends at {effect.offset + len(effect.data)}, the file at {effect.size}")
        if partial is None:
            partial = self._incoming[key] = self._start(key, ".incoming", effect.size)
        partial.append(effect.data)
        if partial.size < effect.size:
            return SnapshotReceived(key, partial.size)
        for _ in SnapshotReader(partial.file.pread, partial.size, partial.path, self._expected(key)).chunks():
            pass
        self._publish(key, partial)
        del self._incoming[key]
        return SnapshotVerified(key)

    def _publish(self, key: SnapshotKey, partial: _Partial) -> None:
        partial.file.fsync()
        self._fs.rename(partial.path, self._path(key))
        self._fs.fsync_dir(f"{self._folder}/{key.group}")
        if key.group not in self._durable_folders:
            self._fs.fsync_dir(self._folder)
            self._fs.fsync_dir(self._root)
            self._durable_folders.add(key.group)
        partial.file.close()
        self._sizes[key] = partial.size

    def _read(self, effect: SnapshotRead) -> SnapshotBytes:
        file = self._fs.open(self._path(effect.key))
        try:
            return SnapshotBytes(effect.request, effect.key, effect.offset, file.pread(effect.offset, effect.length), file.size())
        finally:
            file.close()

    def _load(self, effect: SnapshotLoad) -> SnapshotLoaded:
        path = self._path(effect.key)
        file = self._fs.open(path)
        try:
            reader = SnapshotReader(file.pread, file.size(), path, self._expected(effect.key))
            return SnapshotLoaded(effect.key, reader.header.encode(), list(reader.chunks()))
        finally:
            file.close()

    def _delete(self, effect: SnapshotsDelete) -> None:
        """Not made durable at once: a file that comes back after a power loss is old, not wrong, and is deleted again.
        For the same reason an error here is left to the next time."""
        for table in (self._writing, self._incoming):
            for key in [key for key in list(table) if key[:2] == (effect.group, effect.replica) and (effect.keep is None or key < effect.keep)]:
                self._drop(table, key)
        folder = f"{self._folder}/{effect.group}"
        with contextlib.suppress(OSError):
            for name in self._fs.listdir(folder):
                match = _SNAPSHOT_NAME.match(name)
                if match is None or int(match[1]) != effect.replica:
                    continue
                key = SnapshotKey(effect.group, effect.replica, int(match[2]), int(match[3]))
                if effect.keep is None or key < effect.keep:
                    self._sizes.pop(key, None)
                    with contextlib.suppress(OSError):
                        self._fs.unlink(f"{folder}/{name}")

    def _give_up(self, effect: SnapshotEffect) -> None:
        if isinstance(effect, SnapshotOpen | SnapshotAppend | SnapshotFinish):
            self._drop(self._writing, effect.key)
        elif isinstance(effect, SnapshotReceive):
            self._drop(self._incoming, effect.key)
        elif isinstance(effect, SnapshotLoad):
            self._sizes.pop(effect.key, None)

    def _drop(self, table: dict[SnapshotKey, _Partial], key: SnapshotKey) -> None:
        partial = table.pop(key, None)
        if partial is not None:
            partial.file.close()
            with contextlib.suppress(OSError):
                self._fs.unlink(partial.path)
