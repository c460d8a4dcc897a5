"""The order of file operations of the shared log: what is written, synced and renamed before what. Production and simulator run this same code
over their own `Fs`.

Before us: wal/wal.py said which bytes go where (core/effects.py). After us: fs.py, or tests/sim/sim_disk.py. It works in the caller's thread;
disk_threads.py gives it one of its own. Not here: what the bytes mean."""

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch_node.core.effects import DiskFailed, DiskSpace, SegmentCreate, SegmentDelete, Synced, SyncMark, WalBytes, WalRead, WalWrite
from anabranch_node.drivers.fs import File, Fs, os_reason
from anabranch_node.wal.recovery import SegmentFile

WalEffect = SegmentCreate | SegmentDelete | WalWrite | SyncMark | WalRead
WalEvent = Synced | WalBytes | DiskFailed | DiskSpace

SYNC_MARK_FILE_BYTES = 4096
_ZERO_CHECK_BYTES = 1 << 20
_SEGMENT_NAME = re.compile(r"(\d{16})\.seg")
_SPARE_NAME = re.compile(r"spare-(\d+)")


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
            return WalBytes(effect.request, b"", os_reason("read", error))
        if len(data) != effect.length:
            problem = f"{self._path(effect.segment)}: {len(data)} bytes at {effect.offset}, {effect.length} were asked for"
            return WalBytes(effect.request, b"", problem)
        return WalBytes(effect.request, data)

    def _note_mark(self, effect: SyncMark) -> None:
        assert self._mark is not None
        self._mark.pwrite(0, self._encode_sync_mark(effect.segment, effect.offset))
        self._mark.fdatasync()

    def _fail(self, what: str, error: OSError) -> list[WalEvent]:
        self.failed = os_reason(what, error)
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
