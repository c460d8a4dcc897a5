"""How far group commit gets on this disk: raw fdatasync next to appends/s through DiskThread, for 1 to 256 concurrent writers.

A writer is an outstanding append that is issued again when its Synced arrives. All writers live on one event loop, as in production: what arrives
in one turn becomes one WalWrite. Not measured: Raft, HTTP, and peers. `python -m tests.bench.fsync DIRECTORY` prints the table."""

import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from anabranch_node.core.effects import DiskFailed, SegmentCreate, SegmentDelete, Synced, WalWrite
from anabranch_node.drivers.disk_threads import DiskThread
from anabranch_node.drivers.fs import OsFs
from anabranch_node.drivers.wal_disk import WalDisk, WalDiskOptions, WalEffect, WalEvent
from anabranch_proto.checksum import crc32c

SEGMENT_BYTES = 64 << 20
SECTOR = 512
APPEND_BYTES = 200
SWITCH_INTERVAL_S = 0.0005
"""As production: with Python's 5 ms the loop waits for the interpreter lock whenever the disk thread runs."""

EncodeBatch = Callable[[list[bytes]], bytes]


def encode_batch(appends: list[bytes]) -> bytes:
    """Stands in for wal/batch.py: lengths, bodies, a checksum, padded to sectors."""
    body = b"".join([part for append in appends for part in (len(append).to_bytes(4, "little"), append)])
    data = crc32c(body).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body
    return data.ljust(-(-len(data) // SECTOR) * SECTOR, b"\0")


def run(
    directory: str, seconds: float = 0.5, rounds: int = 5, encode: EncodeBatch = encode_batch, writers: tuple[int, ...] = (1, 16, 64, 256)
) -> dict[str, Any]:
    """`directory` must exist, on the disk in question. Leaves nothing behind.

    Every round measures the raw rate and then each number of writers, and a ratio is taken within its round: other tenants move the disk's
    speed by 10x within seconds. `ratio_to_raw` is against syncs/s as counted; `ratio_to_raw_p50` against 1/p50 of the raw sync, which a few
    stalls do not move, so it is the lower and the safer one. `disturbed` says that the figures are of the machine's load and not of the disk."""
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        raws: list[dict[str, float]] = []
        rows: dict[int, list[dict[str, float]]] = {count: [] for count in writers}
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=directory) as root:
                raws.append(now := raw(root, seconds))
                for count in writers:
                    row = group_commit(f"{root}/{count}", count, seconds, encode)
                    row["ratio_to_raw"] = row["appends_per_s"] / now["syncs_per_s"]
                    row["ratio_to_raw_p50"] = row["appends_per_s"] * now["p50_us"] / 1e6
                    rows[count].append(row)
    finally:
        sys.setswitchinterval(switch_interval_s)
    typical = _medians(raws)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}",
        "load_average": round(os.getloadavg()[0], 1),
        # Quiet, the best and the typical round differ by a third; a runnable neighbour turns 0.2 ms into a scheduler's 4 ms.
        "disturbed": typical["p50_us"] > 2 * min(each["p50_us"] for each in raws) or os.getloadavg()[0] > (os.cpu_count() or 1),
        "rounds": rounds,
        "raw": typical,
        "group_commit": [{"writers": count, **_medians(rows[count])} for count in writers],
    }


def raw(root: str, seconds: float, segment_bytes: int = SEGMENT_BYTES) -> dict[str, float]:
    """4 KiB and one fdatasync, again and again, into a zero-filled segment: the fastest that one writer without company can be."""
    path = f"{root}/raw"
    file = OsFs().create(path)
    try:
        file.zero_fill(segment_bytes)
        file.fsync()
        data = os.urandom(4096)
        took: list[float] = []
        offset = 0
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            file.pwrite(offset, data)
            file.fdatasync()
            took.append(time.perf_counter() - start)
            offset = (offset + 4096) % segment_bytes
    finally:
        file.close()
        os.unlink(path)
    return {"syncs_per_s": len(took) / sum(took), **_percentiles(took)}


def group_commit(root: str, writers: int, seconds: float, encode: EncodeBatch) -> dict[str, float]:
    os.mkdir(root)
    disk = WalDisk(OsFs(), root, WalDiskOptions(SEGMENT_BYTES, 2), lambda segment, offset: bytes(32))
    disk.open()
    disk.refill_spares()
    return asyncio.run(_Writers(disk, writers, encode).measure(seconds))


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}


class _Writers:
    def __init__(self, disk: WalDisk, writers: int, encode: EncodeBatch) -> None:
        self.disk = disk
        self.encode = encode
        self.body = os.urandom(APPEND_BYTES)
        self.idle = writers
        self.waiting: list[tuple[int, int, float]] = []  # ticket, appends, since when
        self.segment, self.offset, self.ticket = 0, SEGMENT_BYTES, 0
        self.took: list[tuple[float, int]] = []
        self.failed = ""

    async def measure(self, seconds: float) -> dict[str, float]:
        self.loop = asyncio.get_running_loop()
        self.done = self.loop.create_future()
        self.scheduled = False
        self.thread = DiskThread(self.disk, self.report)
        cpu, start = time.process_time(), time.perf_counter()
        self.end = start + seconds
        self.turn()
        await self.done
        elapsed, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        self.thread.close()
        assert not self.failed, self.failed
        appends = sum(count for _, count in self.took)
        return {
            "appends_per_s": appends / elapsed,
            "appends_per_sync": appends / len(self.took),
            "p50_us": _percentiles([took for took, count in self.took for _ in range(count)])["p50_us"],
            "cpu_us_per_append": cpu_s / appends * 1e6,
        }

    def report(self, events: list[WalEvent]) -> None:
        self.loop.call_soon_threadsafe(self.on_events, events)

    def on_events(self, events: list[WalEvent]) -> None:
        now = time.perf_counter()
        for event in events:
            if isinstance(event, Synced):
                while self.waiting and self.waiting[0][0] <= event.ticket:
                    _, count, since = self.waiting.pop(0)
                    self.took.append((now - since, count))
                    self.idle += count
            elif isinstance(event, DiskFailed):
                self.failed = event.reason
                self.done.set_result(None)
        if not self.scheduled and not self.failed:
            self.scheduled = True
            self.loop.call_soon(self.turn)  # the end of the turn: everything that came by then goes out at once

    def turn(self) -> None:
        self.scheduled = False
        now = time.perf_counter()
        if now >= self.end:
            if not self.waiting and not self.done.done():
                self.done.set_result(None)
            return
        if not self.idle:
            return
        data = self.encode([self.body] * self.idle)
        effects: list[WalEffect] = []
        if self.offset + len(data) > SEGMENT_BYTES:
            self.segment += 1
            effects.append(SegmentCreate(self.segment, bytes(SECTOR)))
            if self.segment > 1:
                effects.append(SegmentDelete(self.segment - 1))
            self.offset = SECTOR
        self.ticket += 1
        effects.append(WalWrite(self.ticket, self.segment, self.offset, data))
        self.offset += len(data)
        self.waiting.append((self.ticket, self.idle, now))
        self.idle = 0
        assert self.thread.submit(effects)


def _percentiles(took: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=100)
    return {"p10_us": round(cuts[9] * 1e6, 1), "p50_us": round(cuts[49] * 1e6, 1), "p99_us": round(cuts[98] * 1e6, 1)}


def main() -> None:
    result = run(sys.argv[1] if len(sys.argv) > 1 else ".")
    print(f"{result['machine']}, load {result['load_average']}, median of {result['rounds']} rounds")
    if result["disturbed"]:
        print("DISTURBED: other work ran beside this; the figures say nothing about the disk")
    print("raw fdatasync of 4 KiB: " + ", ".join(f"{name} {value}" for name, value in result["raw"].items()))
    for row in result["group_commit"]:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
