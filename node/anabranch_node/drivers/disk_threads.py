"""Threads for the disks, so that the loop never waits: one that writes and syncs the log, a small pool for snapshots.

Before us: the loop submits effects. After us: wal_disk.py and snapshot_disk.py perform them; what they report goes back through `report`.
Queues are bounded in bytes, and whoever is refused is told when there is room. Not here: the order of file operations."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Generic, TypeVar

from anabranch_node.core.effects import DiskFailed, SegmentCreate, SnapshotAppend, SnapshotReceive, SnapshotsDelete, WalWrite
from anabranch_node.drivers.snapshot_disk import SnapshotDisk, SnapshotEffect, SnapshotEvent
from anabranch_node.drivers.telemetry import Histogram
from anabranch_node.drivers.wal_disk import WalDisk, WalEffect, WalEvent

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
        self.sync_us = Histogram()  # written by whoever performs, which is one thread at a time
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

    def perform_now(self, effects: Sequence[WalEffect]) -> list[WalEvent]:
        """On the caller's own thread. Only while nothing is queued: then the log's thread sleeps, and only the caller could wake it."""
        assert self._lane.queued_bytes == 0, self._lane.queued_bytes
        return self._perform([effects])

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
        started = perf_counter()
        synced = disk.sync()
        if synced:
            self.sync_us.observe(int((perf_counter() - started) * 1e6))
            events += synced
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
