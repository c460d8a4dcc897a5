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
from anabranch_node.drivers.disk import DiskThread, WalDisk, WalDiskOptions, WalEffect, WalEvent
from anabranch_node.drivers.fs import OsFs
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


def run(directory: str, seconds: float = 2.0, encode: EncodeBatch = encode_batch, writers: tuple[int, ...] = (1, 16, 64, 256)) -> dict[str, Any]:
    """`directory` must exist, on the disk in question. Leaves nothing behind."""
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with tempfile.TemporaryDirectory(dir=directory) as root:
            before = raw(root, seconds)
            rows = [group_commit(f"{root}/{count}", count, seconds, encode) for count in writers]
            after = raw(root, seconds)
        # Other tenants move the figure within seconds, so the ratio is taken against the mean of both ends.
        rate = (before["syncs_per_s"] + after["syncs_per_s"]) / 2
        for row in rows:
            row["ratio_to_raw"] = round(row["appends_per_s"] / rate, 1)
        return {
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}",
            "raw": {
                "syncs_per_s": round(rate),
                "p50_us": round((before["p50_us"] + after["p50_us"]) / 2, 1),
                "p99_us": max(before["p99_us"], after["p99_us"]),
            },
            "group_commit": rows,
        }
    finally:
        sys.setswitchinterval(switch_interval_s)


def raw(root: str, seconds: float) -> dict[str, float]:
    """4 KiB and one fdatasync, again and again, into a zero-filled segment: the fastest that one writer without company can be."""
    path = f"{root}/raw"
    file = OsFs().create(path)
    try:
        file.zero_fill(SEGMENT_BYTES)
        file.fsync()
        data = os.urandom(4096)
        took: list[float] = []
        offset = 0
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            file.pwrite(offset, data)
            file.fdatasync()
            took.append(time.perf_counter() - start)
            offset = (offset + 4096) % SEGMENT_BYTES
    finally:
        file.close()
        os.unlink(path)
    return {"syncs_per_s": len(took) / sum(took), **_percentiles(took)}


def group_commit(root: str, writers: int, seconds: float, encode: EncodeBatch) -> dict[str, Any]:
    os.mkdir(root)
    disk = WalDisk(OsFs(), root, WalDiskOptions(SEGMENT_BYTES, 2), lambda segment, offset: bytes(32))
    disk.open()
    disk.refill_spares()
    return asyncio.run(_Writers(disk, writers, encode).measure(seconds))


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

    async def measure(self, seconds: float) -> dict[str, Any]:
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
            "writers": self.idle,
            "appends_per_s": round(appends / elapsed),
            "appends_per_sync": round(appends / len(self.took), 1),
            "p50_us": _percentiles([took for took, count in self.took for _ in range(count)])["p50_us"],
            "cpu_us_per_append": round(cpu_s / appends * 1e6, 2),
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
    return {"p50_us": round(cuts[49] * 1e6, 1), "p99_us": round(cuts[98] * 1e6, 1)}


def main() -> None:
    result = run(sys.argv[1] if len(sys.argv) > 1 else ".")
    print(result["machine"])
    print(f"raw fdatasync of 4 KiB: {result['raw']['syncs_per_s']}/s, p50 {result['raw']['p50_us']} us, p99 {result['raw']['p99_us']} us")
    for row in result["group_commit"]:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
