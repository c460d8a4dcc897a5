"""WAL appends/s for 1 to 256 concurrent writers: the real `Wal` and the real `DiskThread` on a real directory, next to the disk's raw fdatasync rate.

A writer has one append outstanding and issues the next when that one is durable. Each writes to a group of its own, so that nothing is shared but the
batch: all appends that are ready in one turn of the event loop are staged and sealed together, as the host does. The raw rate is taken right before
each run, since other tenants move a disk's speed within seconds. CPU is that of the whole process, the disk thread included.
Afterwards the files are recovered, and must hold every acknowledged append, in order. Not here: Raft, peers, HTTP."""

import asyncio
import gc
import os
import struct
import tempfile
import time
from collections import deque
from typing import Any

from anabranch_node.core.effects import DiskFailed, Synced
from anabranch_node.core.raft import entry, membership
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.records import EntriesAppended, HardState, SnapshotMark
from anabranch_node.drivers.disk_threads import DiskThread
from anabranch_node.drivers.fs import OsFs
from anabranch_node.drivers.wal_disk import WalDisk, WalDiskOptions, WalEvent, WalFiles
from anabranch_node.wal.batch import Position
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.recovery import recover
from anabranch_node.wal.segment import encode_sync_mark
from anabranch_node.wal.wal import Wal
from anabranch_proto.ids import NodeIdentity
from tests.bench import fsync

WRITERS = (1, 16, 64, 256)
PAYLOAD_BYTES = 200
SECONDS = 0.6
RAW_SECONDS = 0.3
RAW_SEGMENT_BYTES = 8 << 20
_ME = NodeIdentity("bench", 1, 1)
_STAMP = struct.Struct("<II")  # writer, number of its append

try:
    import uvloop

    LOOP = "uvloop"
    _new_loop = uvloop.new_event_loop
except ImportError:
    LOOP = "asyncio"
    _new_loop = asyncio.new_event_loop


def run(directory: str, scale: float) -> list[dict[str, float]]:
    """One round: a row per number of writers. `directory` is on the disk in question; nothing stays there."""
    rows = []
    with tempfile.TemporaryDirectory(dir=directory) as root:
        for writers in WRITERS:
            raw = fsync.raw(root, RAW_SECONDS * scale, RAW_SEGMENT_BYTES)
            rows.append({"writers": writers, **_measure(f"{root}/{writers}", writers, SECONDS * scale, raw)})
    return rows


def drop_disturbed(rounds: list[list[dict[str, Any]]]) -> None:
    """Take the ratios out of every row whose two sides were not measured on the same, free machine.

    A runnable neighbour makes a sync of 0.2 ms wait for a scheduler's slice of 4 ms; whichever side that hits, the ratio is then the scheduler's.
    The ratio of medians stands if neither median was slowed: the raw one by the fastest raw sync of all rounds, the other by its own fastest tenth.
    The ratio of rates, which a few stalls on the raw side flatter, stands only if the mean of neither side is far from its median, too."""
    floor_us = min(row["raw_p10_us"] for rows in rounds for row in rows)
    for rows in rounds:
        for row in rows:
            slowed = row["raw_p50_us"] > 2 * floor_us or row["p50_us"] > 2 * row["p10_us"]
            raw_mean_us = 1e6 / row["raw_syncs_per_s"]
            mean_us = 1e6 * row["appends_per_sync"] / row["appends_per_s"]
            if slowed:
                row["ratio_of_medians"] = None
            if slowed or raw_mean_us > 1.5 * row["raw_p50_us"] or mean_us > 1.5 * row["p50_us"]:
                row["ratio_to_raw"] = None


def _measure(root: str, writers: int, seconds: float, raw: dict[str, float]) -> dict[str, float]:
    disk = _open(root)[0]
    wal = Wal(_ME, WalOptions())
    mark = SnapshotMark(0, 0, membership.encode(Configuration(voters=(1,))), 1, 0)
    effects = wal.open()
    for writer in range(writers):
        wal.stage(writer, writer + 1, mark)
        wal.stage(writer, writer + 1, HardState(1, writer + 1, 0))
    events = disk.perform([*effects, *wal.seal()[1]])
    assert events == [Synced(wal.ticket)], events
    wal.on_synced(wal.ticket)
    gc.collect()
    gc.freeze()
    loop = _new_loop()
    try:
        load = _Writers(wal, disk, writers, loop)
        elapsed_s, cpu_s = load.measure(seconds)
    finally:
        loop.close()
        gc.unfreeze()
    _check(root, load.acked)
    appends = sum(load.acked)
    latencies_us = sorted(took_s * 1e6 for took_s, count in load.took for _ in range(count))
    return {
        "appends_per_s": appends / elapsed_s,
        "appends_per_sync": appends / len(load.took),
        "p10_us": latencies_us[len(latencies_us) // 10],
        "p50_us": latencies_us[len(latencies_us) // 2],
        "cpu_us_per_append": cpu_s / appends * 1e6,
        "raw_syncs_per_s": raw["syncs_per_s"],
        "raw_p10_us": raw["p10_us"],
        "raw_p50_us": raw["p50_us"],
        "ratio_to_raw": appends / elapsed_s / raw["syncs_per_s"],
        "ratio_of_medians": appends / len(load.took) * raw["p50_us"] / latencies_us[len(latencies_us) // 2],
    }


def _open(root: str) -> tuple[WalDisk, WalFiles]:
    # No spares: one segment holds a run, and zero-filling another meanwhile would be measured, too.
    disk = WalDisk(OsFs(), root, WalDiskOptions(spare_segments=0), lambda segment, offset: encode_sync_mark(_ME, Position(segment, offset)))
    return disk, disk.open()


def _check(root: str, acked: list[int]) -> None:
    disk, files = _open(root)
    disk.close()
    recovered = recover(_ME, files.segments, files.sync_mark or None, WalOptions())
    assert recovered.torn is None, recovered.torn
    found = {replica.group: replica.entries for replica in recovered.groups.values()}
    for writer, count in enumerate(acked):
        stamps = [_STAMP.unpack_from(data, entry.HEADER.size) for data in found[writer]]
        assert stamps == [(writer, number) for number in range(1, len(stamps) + 1)], f"writer {writer}: not in order"
        assert len(stamps) == count, f"writer {writer}: {count} acknowledged, {len(stamps)} found"


class _Writers:
    def __init__(self, wal: Wal, disk: WalDisk, writers: int, loop: asyncio.AbstractEventLoop) -> None:
        self.wal = wal
        self.disk = disk
        self.loop = loop
        self.filling = os.urandom(PAYLOAD_BYTES - _STAMP.size)
        self.acked = [0] * writers
        self.ready = list(range(writers))
        self.waiting: deque[tuple[int, list[int], float]] = deque()  # ticket, writers, since when
        self.took: list[tuple[float, int]] = []  # seconds and appends, for each batch
        self.scheduled = False
        self.failed = ""

    def measure(self, seconds: float) -> tuple[float, float]:
        """Seconds that passed, and seconds of CPU."""
        self.thread = DiskThread(self.disk, lambda events: self.loop.call_soon_threadsafe(self._on_events, events) and None)
        started, cpu = time.perf_counter(), time.process_time()
        self.end = started + seconds
        self._turn()
        self.loop.run_forever()
        took = time.perf_counter() - started, time.process_time() - cpu
        self.thread.close()
        assert not self.failed, self.failed
        assert not self.waiting, "all appends that were issued are acknowledged"
        return took

    def _on_events(self, events: list[WalEvent]) -> None:
        now = time.perf_counter()
        for event in events:
            if isinstance(event, Synced):
                self.wal.on_synced(event.ticket)
                while self.waiting and self.waiting[0][0] <= event.ticket:
                    _, writers, since = self.waiting.popleft()
                    for writer in writers:
                        self.acked[writer] += 1
                    self.ready += writers
                    self.took.append((now - since, len(writers)))
            elif isinstance(event, DiskFailed):
                self.failed = event.reason
                self.loop.stop()
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self._turn)  # the end of the turn: everything that is ready by then shares one batch

    def _turn(self) -> None:
        self.scheduled = False
        now = time.perf_counter()
        if now >= self.end:
            if not self.waiting:
                self.loop.stop()
            return
        if not self.ready:
            return
        writers, self.ready = self.ready, []
        stage, acked, filling = self.wal.stage, self.acked, self.filling
        for writer in writers:
            number = acked[writer] + 1
            stage(writer, writer + 1, EntriesAppended(number, [entry.encode(1, entry.COMMANDS_V1, _STAMP.pack(writer, number) + filling)]))
        ticket, effects = self.wal.seal()
        self.waiting.append((ticket, writers, now))
        taken = self.thread.submit(effects)
        assert taken, "the queue of the disk thread is full"
