"""The order of file operations: what is written, synced and renamed before what. Production and simulator run this same code over their own `Fs`.

Before us: engine/ said which bytes go where (core/effects.py). After us: fs.py, or tests/sim/sim_disk.py. WalDisk and SnapshotDisk do as they are
told in the caller's thread; DiskThread and SnapshotPool give them threads, so that the loop never waits. Not here: what the bytes mean."""

import contextlib
import errno
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from anabranch_node.core.effects import (
    DiskFailed,
    DiskSpace,
    SegmentCreate,
    SegmentDelete,
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
    Synced,
    SyncMark,
    WalBytes,
    WalRead,
    WalWrite,
)
from anabranch_node.drivers.fs import File, Fs
from anabranch_node.wal.recovery import SegmentFile
from anabranch_node.wal.snapshot_file import Expected, SnapshotHeader, SnapshotReader, SnapshotWriter, check_place
from anabranch_proto.formats import FormatError

WalEffect = SegmentCreate | SegmentDelete | WalWrite | SyncMark | WalRead
WalEvent = Synced | WalBytes | DiskFailed | DiskSpace
SnapshotEffect = SnapshotOpen | SnapshotAppend | SnapshotFinish | SnapshotRead | SnapshotReceive | SnapshotLoad | SnapshotsDelete
SnapshotEvent = SnapshotAppended | SnapshotSaved | SnapshotBytes | SnapshotReceived | SnapshotVerified | SnapshotLoaded | SnapshotFailed | DiskFailed

SYNC_MARK_FILE_BYTES = 4096
_ZERO_CHECK_BYTES = 1 << 20
_SEGMENT_NAME = re.compile(r"(\d{16})\.seg")
_SPARE_NAME = re.compile(r"spare-(\d+)")
_SNAPSHOT_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.snap")


# --- the shared log --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WalDiskOptions:
    segment_bytes: int = 64 << 20
    spare_segments: int = 2
    """The reserve: with a full disk this many segments can still be written, enough for votes, snapshots and the deletes that make room."""


class WalFiles(NamedTuple):
    """What was found, for wal/recovery.py: segments in ascending order, and the last sync mark (empty if there never was one)."""

    segments: list[SegmentFile]
    sync_mark: bytes


class WalDisk:
    """One node's log. `write` applies effects in order, `sync` makes them durable. After DiskFailed it never writes or syncs again.

    refill_spares() may run on another thread than the rest: the two share only the list of finished spares."""

    def __init__(self, fs: Fs, root: str, options: WalDiskOptions, encode_sync_mark: Callable[[int, int], bytes]) -> None:
        self.options = options
        self.failed = ""
        self._fs = fs
        self._root = root
        self._folder = f"{root}/wal"
        self._encode_sync_mark = encode_sync_mark
        self._newest = -1
        self._file: File | None = None  # of the newest segment, the only one that is ever written
        self._mark: File | None = None
        self._dirty = False
        self._unlinked = False
        self._ticket_written = 0
        self._ticket_synced = 0
        self._spares: list[int] = []
        self._spare_next = 0
        self._space: DiskSpace | None = None

    def open(self) -> WalFiles:
        """Once, before anything else. Raises OSError naming the file. Everything that is returned is durable: a dead process may have left it
        in the page cache only, and the node is about to vote and acknowledge on the strength of it."""
        fs = self._fs
        fs.makedirs(self._folder)
        numbers = []
        for name in fs.listdir(self._folder):
            if name.endswith(".tmp"):
                fs.unlink(f"{self._folder}/{name}")
            elif match := _SEGMENT_NAME.fullmatch(name):
                numbers.append(int(match[1]))
            elif match := _SPARE_NAME.fullmatch(name):
                self._adopt_spare(int(match[1]))
        segments = [self._read_segment(number, newest=number == max(numbers)) for number in sorted(numbers)]
        mark = self._open_mark()
        fs.fsync_dir(self._folder)
        fs.fsync_dir(self._root)
        self._newest = max(numbers, default=-1)
        return WalFiles(segments, mark)

    def perform(self, effects: Sequence[WalEffect]) -> list[WalEvent]:
        """All effects, then one sync."""
        events: list[WalEvent] = []
        for effect in effects:
            events += self.write(effect)
        return events + self.sync()

    def write(self, effect: WalEffect) -> list[WalEvent]:
        if self.failed:
            return [WalBytes(effect.request, b"", f"the disk failed: {self.failed}")] if isinstance(effect, WalRead) else []
        events: list[WalEvent] = []
        try:
            if isinstance(effect, WalWrite):
                assert effect.ticket > self._ticket_written, (effect.ticket, self._ticket_written)
                self._dirty = True
                self._file_of(effect.segment).pwrite(effect.offset, effect.data)
                self._ticket_written = effect.ticket
            elif isinstance(effect, WalRead):
                events.append(self._read(effect))
            elif isinstance(effect, SegmentDelete):
                self._delete(effect)
            else:
                # A roll and a mark both say that everything before them is durable.
                events += self.sync()
                if self._dirty:  # the sync failed
                    return events
                if isinstance(effect, SegmentCreate):
                    self._create(effect)
                else:
                    self._note_mark(effect)
        except OSError as error:
            events += self._fail(type(effect).__name__, error)
        return events

    def sync(self) -> list[WalEvent]:
        """One fdatasync for everything since the last. Synced(highest ticket), nothing if nothing was written, DiskFailed once."""
        if self.failed or not self._dirty:
            return []
        assert self._file is not None
        try:
            self._file.fdatasync()
        except OSError as error:
            return self._fail("fdatasync", error)
        self._dirty = False
        if self._ticket_synced == self._ticket_written:
            return []
        self._ticket_synced = self._ticket_written
        return [Synced(self._ticket_synced)]

    def refill_spares(self) -> list[WalEvent]:
        """Make what is missing of the reserve: slow, so off the hot path, again after every SegmentCreate and now and then while the disk is full.

        A full disk or a bad block under a spare is no error, it is DiskSpace with fewer spares: nothing depends on this file yet."""
        if self.failed:
            return []
        try:
            while len(self._spares) < self.options.spare_segments and self._fs.free_bytes(self._folder) >= self.options.segment_bytes:
                self._spares.append(self._make_spare())
        except OSError:
            pass
        try:
            free_bytes = self._fs.free_bytes(self._folder)
        except OSError:
            free_bytes = 0
        now, before = DiskSpace(len(self._spares), free_bytes), self._space
        moved = before is None or abs(before.free_bytes - now.free_bytes) >= self.options.segment_bytes
        if before is None or before.spare_segments != now.spare_segments or moved:
            self._space = now
            return [now]
        return []

    @property
    def spares_missing(self) -> int:
        return self.options.spare_segments - len(self._spares)

    def close(self) -> None:
        for file in (self._file, self._mark):
            if file is not None:
                file.close()
        self._file = self._mark = None

    def _path(self, segment: int) -> str:
        return f"{self._folder}/{segment:016d}.seg"

    def _file_of(self, segment: int) -> File:
        assert segment == self._newest, (segment, self._newest)
        if self._file is None:
            self._file = self._fs.open(self._path(segment))
        return self._file

    def _create(self, effect: SegmentCreate) -> None:
        assert effect.segment > self._newest, (effect.segment, self._newest)
        if self._file is not None:
            self._file.close()
            self._file = None
        path = self._path(effect.segment)
        if self._spares:
            source = f"{self._folder}/spare-{self._spares.pop(0)}"
            file = self._fs.open(source)
        else:
            source = f"{path}.tmp"
            file = self._fs.create(source)
            file.zero_fill(max(self.options.segment_bytes, len(effect.data)))
        self._file = file
        # A crash before the rename is durable leaves a spare that is no longer all zeros: open() looks, and drops it.
        file.pwrite(0, effect.data)
        file.fdatasync()
        self._fs.rename(source, path)
        self._fs.fsync_dir(self._folder)
        self._unlinked = False
        self._newest = effect.segment

    def _delete(self, effect: SegmentDelete) -> None:
        assert effect.segment != self._newest, effect.segment
        if self._unlinked:
            # Durable in order, so that a power loss cannot bring back an old segment while a later one stays away.
            self._fs.fsync_dir(self._folder)
        with contextlib.suppress(FileNotFoundError):  # it is gone: that is what was asked for
            self._fs.unlink(self._path(effect.segment))
        self._unlinked = True

    def _read(self, effect: WalRead) -> WalBytes:
        """A read that fails harms nobody but its reader: what is durable is unaffected."""
        try:
            if effect.segment == self._newest:
                data = self._file_of(effect.segment).pread(effect.offset, effect.length)
            else:
                file = self._fs.open(self._path(effect.segment))
                try:
                    data = file.pread(effect.offset, effect.length)
                finally:
                    file.close()
        except OSError as error:
            return WalBytes(effect.request, b"", _reason("read", error))
        if len(data) != effect.length:
            problem = f"{self._path(effect.segment)}: {len(data)} bytes at {effect.offset}, {effect.length} were asked for"
            return WalBytes(effect.request, b"", problem)
        return WalBytes(effect.request, data)

    def _note_mark(self, effect: SyncMark) -> None:
        assert self._mark is not None
        self._mark.pwrite(0, self._encode_sync_mark(effect.segment, effect.offset))
        self._mark.fdatasync()

    def _fail(self, what: str, error: OSError) -> list[WalEvent]:
        self.failed = _reason(what, error)
        return [DiskFailed(self.failed)]

    def _read_segment(self, number: int, newest: bool) -> SegmentFile:
        file = self._fs.open(self._path(number))
        try:
            file.fdatasync()
            if newest:
                # If the last process stopped because this fdatasync failed, the cache shows bytes that the disk does not have.
                file.forget_cached()
            return SegmentFile(number, f"wal/{number:016d}.seg", file.read_all())
        finally:
            file.close()

    def _open_mark(self) -> bytes:
        path = f"{self._folder}/synced"
        try:
            self._mark = self._fs.open(path)
        except FileNotFoundError:
            self._mark = self._create_zeroed(f"{path}.tmp", path, SYNC_MARK_FILE_BYTES)
        self._mark.fdatasync()
        self._mark.forget_cached()
        mark = self._mark.pread(0, len(self._encode_sync_mark(0, 0)))
        return mark if any(mark) else b""

    def _adopt_spare(self, number: int) -> None:
        self._spare_next = max(self._spare_next, number + 1)
        path = f"{self._folder}/spare-{number}"
        file = self._fs.open(path)
        try:
            size = file.size()
            usable = size == self.options.segment_bytes and len(self._spares) < self.options.spare_segments
            for offset in range(0, size if usable else 0, _ZERO_CHECK_BYTES):
                piece = file.pread(offset, _ZERO_CHECK_BYTES)
                usable = usable and piece == bytes(len(piece))
        finally:
            file.close()
        if usable:
            self._spares.append(number)
        else:
            self._fs.unlink(path)

    def _make_spare(self) -> int:
        number = self._spare_next
        self._spare_next += 1
        path = f"{self._folder}/spare-{number}"
        self._create_zeroed(f"{path}.tmp", path, self.options.segment_bytes).close()
        return number

    def _create_zeroed(self, temporary: str, path: str, size: int) -> File:
        """A zero-filled file whose bytes and name are durable, or nothing at all."""
        file = self._fs.create(temporary)
        try:
            file.zero_fill(size)
            file.fdatasync()
            self._fs.rename(temporary, path)
            self._fs.fsync_dir(self._folder)
        except OSError:
            file.close()
            for name in (temporary, path):
                with contextlib.suppress(OSError):
                    self._fs.unlink(name)
            raise
        return file


# --- snapshots -------------------------------------------------------------------------------------------------------------------

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
            except (OSError, FormatError, ValueError) as error:
                reason = _reason(type(effect).__name__, error) if isinstance(error, OSError) else str(error)
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
        for other in [other for other in self._incoming if other[:2] == key[:2]]:
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
            for key in [key for key in table if key[:2] == (effect.group, effect.replica) and (effect.keep is None or key < effect.keep)]:
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


def _reason(what: str, error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return f"{what}: {error.filename}: {name}: {error.strerror}"


# --- threads ---------------------------------------------------------------------------------------------------------------------

Effect = TypeVar("Effect")
Event = TypeVar("Event")
_EFFECT_BYTES = 200
"""What an effect weighs in a queue besides its data."""


class _Lane(Generic[Effect, Event]):
    """A thread and its queue. Only one thread submits, so the byte counters have one writer each and need no lock.

    `perform` gets what is queued, at most `gather_max` at a time. Room is made before the report, and a submitter that was refused is always
    told, if need be with no events: it may be waiting for nothing else."""

    def __init__(
        self,
        name: str,
        perform: Callable[[list[Effect]], list[Event]],
        report: Callable[[list[Event]], None],
        fail: Callable[[str], None],
        queue_bytes_max: int,
        gather_max: int,
    ) -> None:
        self._queue: SimpleQueue[tuple[Effect, int] | None] = SimpleQueue()
        self._perform = perform
        self._report = report
        self._fail = fail
        self._bytes_max = queue_bytes_max
        self._gather_max = gather_max
        self._bytes_in = 0
        self._bytes_out = 0
        self._refused = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def queued_bytes(self) -> int:
        return self._bytes_in - self._bytes_out

    def submit(self, effect: Effect, size: int) -> bool:
        assert not self._closed, "submitted after close"
        if not self._has_room(size):
            self._refused = True  # first, then look again: the thread makes room first, then looks whether anyone waits
            if not self._has_room(size):
                return False
        self._bytes_in += size
        self._queue.put((effect, size))
        return True

    def close(self) -> None:
        """What was submitted is done first."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _has_room(self, size: int) -> bool:
        queued = self._bytes_in - self._bytes_out
        return queued == 0 or queued + size <= self._bytes_max

    def _run(self) -> None:
        queue, last = self._queue, False
        while not last:
            taken = [queue.get()]
            with contextlib.suppress(Empty):
                while len(taken) < self._gather_max and taken[-1] is not None:
                    taken.append(queue.get_nowait())
            items = [item for item in taken if item is not None]
            last = len(items) < len(taken)
            try:
                try:
                    events = self._perform([effect for effect, _ in items]) if items else []
                finally:
                    self._bytes_out += sum(size for _, size in items)
                if events or self._refused:
                    self._refused = False
                    self._report(events)
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")


class DiskThread:
    """The log's own thread: takes everything that is queued, writes it, syncs ONCE, reports. While it syncs the next batch gathers: group commit.

    `report(events)` is called on our threads; the loop passes one that goes through call_soon_threadsafe. submit() is the loop's alone and answers
    False when `queue_bytes_max` would be passed: nothing of it was taken, and the loop turns no group until the next report (maybe an empty one)."""

    def __init__(
        self, disk: WalDisk, report: Callable[[list[WalEvent]], None], queue_bytes_max: int = 64 << 20, space_interval_s: float = 1.0
    ) -> None:
        self._disk = disk
        self._report = report
        self._space_interval_s = space_interval_s
        self._wake = threading.Event()
        self._wake.set()
        self._closing = False
        # 4096 turns a sync: far above what can gather in one, low enough that a flood cannot keep the first of them waiting for ever.
        self._lane = _Lane[Sequence[WalEffect], WalEvent]("anabranch-wal", self._perform, report, self._fail, queue_bytes_max, gather_max=4096)
        # Zero-filling 64 MiB takes 0.1 s and more; on the log's thread every append of that time would wait for it.
        self._spare_thread = threading.Thread(target=self._keep_spares, name="anabranch-spares", daemon=True)
        self._spare_thread.start()

    @property
    def queued_bytes(self) -> int:
        return self._lane.queued_bytes

    def submit(self, effects: Sequence[WalEffect]) -> bool:
        size = _EFFECT_BYTES * len(effects)
        for effect in effects:
            if isinstance(effect, WalWrite | SegmentCreate):
                size += len(effect.data)
        return self._lane.submit(effects, size)

    def close(self) -> None:
        """Performs what was submitted, ends both threads, closes the files."""
        self._lane.close()
        self._closing = True
        self._wake.set()
        self._spare_thread.join()
        self._disk.close()

    def _perform(self, batches: list[Sequence[WalEffect]]) -> list[WalEvent]:
        disk = self._disk
        events: list[WalEvent] = []
        for effects in batches:
            for effect in effects:
                events += disk.write(effect)
        events += disk.sync()
        if disk.spares_missing:
            self._wake.set()
        return events

    def _keep_spares(self) -> None:
        while True:
            self._wake.wait(self._space_interval_s)
            self._wake.clear()
            if self._closing:
                return
            try:
                events = self._disk.refill_spares()
                if events:
                    self._report(events)
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        """A bug, or a report that nobody takes any more: either way nothing may be acknowledged from here on."""
        if not self._disk.failed:
            self._disk.failed = reason
            with contextlib.suppress(Exception):
                self._report([DiskFailed(reason)])


class SnapshotPool:
    """Two threads for snapshot files: compression and fsync of a large file must hold up neither the loop nor the log.

    All effects of one (group, replica) go to the same thread, so they keep their order. submit() is the loop's alone; False: see DiskThread."""

    def __init__(
        self, disk: SnapshotDisk, report: Callable[[list[SnapshotEvent]], None], threads: int = 2, queue_bytes_max_per_thread: int = 32 << 20
    ) -> None:
        self._disk = disk
        self._report = report
        # One at a time: a slow file must not hold back the answer for the one before.
        self._lanes = [
            _Lane[SnapshotEffect, SnapshotEvent](
                f"anabranch-snapshots-{number}", disk.perform, report, self._fail, queue_bytes_max_per_thread, gather_max=1
            )
            for number in range(threads)
        ]

    @property
    def queued_bytes(self) -> int:
        return sum(lane.queued_bytes for lane in self._lanes)

    def submit(self, effect: SnapshotEffect) -> bool:
        group, replica = (effect.group, effect.replica) if isinstance(effect, SnapshotsDelete) else effect.key[:2]
        size = _EFFECT_BYTES
        if isinstance(effect, SnapshotAppend):
            size += len(effect.chunk)
        elif isinstance(effect, SnapshotReceive):
            size += len(effect.data)
        return self._lanes[hash((group, replica)) % len(self._lanes)].submit(effect, size)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self._disk.close()

    def _fail(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            self._report([DiskFailed(reason)])
