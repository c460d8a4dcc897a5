"""`python -m tests.bench.extension_bench`: what append-batch and bootstrap cost, on one durable node and on three.

Before us: tests/process/cluster.py. After us: http_load.py's connections and readers, in this process. append-batch is compared with single appends
of the same size at equal connections, in the same run; bootstrap is judged by the server's CPU time per megabyte and by what its memory grows by
while a client reads. Every answer is checked. Not here: other servers, which have neither (http_bench.py)."""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import uvloop

from tests.bench.http_load import (
    BINARY,
    Job,
    LoadFailed,
    Reader,
    Tally,
    Window,
    _closed_loop,
    header,
    render,
    rss_bytes,
    stream_path,
)
from tests.process.cluster import Cluster

FRAME_BYTES: Final = 256
FRAMES: Final = 100
CONNECTIONS: Final = 64
MESSAGES: Final = 100_000
MESSAGE_BYTES: Final = 256
BATCH_RATIO_MIN: Final = 5.0
BOOTSTRAP_MB_PER_CPU_S_MIN: Final = 50.0
BOOTSTRAP_RSS_MAX_MB: Final = 64.0
RSS_SAMPLE_S: Final = 0.005


def frames(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


async def single(job: Job) -> tuple[float, float]:
    """(appends/s, CPU us per append)"""
    body = os.urandom(FRAME_BYTES)
    tally = Tally(lambda number, host: render("POST", stream_path(job.tag, number), host, BINARY, body), (b"204",), None)
    result, connections = await _closed_loop(job, tally, lambda number, host: render("PUT", stream_path(job.tag, number), host, BINARY))
    for connection in connections:
        connection.transport.abort()
    if result["wrong"]:
        raise LoadFailed(str(result["wrong_shown"]))
    return result["ops_per_s"], result["cpu_us_per_op"]


async def batched(job: Job) -> tuple[float, float]:
    body = frames([os.urandom(FRAME_BYTES)] * FRAMES)
    tally = Tally(lambda number, host: render("POST", stream_path(job.tag, number) + "/append-batch", host, BINARY, body), (b"200",), None)
    result, connections = await _closed_loop(job, tally, lambda number, host: render("PUT", stream_path(job.tag, number), host, BINARY))
    for connection in connections[:4]:
        with Reader(job.targets[0]) as reader:
            data = reader.whole(stream_path(job.tag, connection.number))
        if len(data) != connection.right * FRAMES * FRAME_BYTES:
            raise LoadFailed(f"stream {connection.number} holds {len(data)} bytes after {connection.right} batches")
    for connection in connections:
        connection.transport.abort()
    if result["wrong"]:
        raise LoadFailed(str(result["wrong_shown"]))
    return result["ops_per_s"] * FRAMES, result["cpu_us_per_op"] / FRAMES


class Peak:
    """The most memory that the processes held while it looked."""

    def __init__(self, pids: list[int]) -> None:
        self.most = self.first = rss_bytes(pids)
        self._pids = pids
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(RSS_SAMPLE_S):
            self.most = max(self.most, rss_bytes(self._pids))

    @property
    def growth_mb(self) -> float:
        return (self.most - self.first) / 1e6


def bootstrap(targets: list[str], pids: list[int]) -> tuple[float, float, float]:
    """(MB per CPU-second of the server, MB/s, growth of its memory in MB)"""
    path = stream_path("bootstrap", 0)
    with Reader(targets[0]) as writer:
        if (answer := writer.ask(render("PUT", path, writer.host, BINARY)))[0] != b"201":
            raise LoadFailed(f"create answered {answer[1][:300]!r}")
        for first in range(0, MESSAGES, 500):
            body = frames([b"%08d" % number + b"x" * (MESSAGE_BYTES - 8) for number in range(first, first + 500)])
            if (answer := writer.ask(render("POST", path + "/append-batch", writer.host, BINARY, body)))[0] != b"200":
                raise LoadFailed(f"append-batch answered {answer[1][:300]!r}")
    time.sleep(1.0)  # what filling it cost is not what reading it costs
    cpu_s = took_s = megabytes = 0.0
    with Peak(pids) as peak:
        for number in range(5):
            with Reader(targets[number % len(targets)]) as reader:
                window = Window(pids)
                window.begin()
                status, head, pieces = reader.ask(render("GET", path + "/bootstrap", reader.host))
                window.end()
            body = b"".join(pieces)
            boundary = (header(head, b"content-type") or b"").rpartition(b"=")[2]
            parts = body.count(b"\r\n--" + boundary + b"\r\n")
            if status != b"200" or parts != MESSAGES or not body.endswith(b"\r\n--" + boundary + b"--\r\n"):
                raise LoadFailed(f"bootstrap answered {status!r} with {parts} messages")
            cpu_s += window.server_cpu_s
            took_s += window.seconds
            megabytes += len(body) / 1e6
    return megabytes / cpu_s, megabytes / took_s, peak.growth_mb


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.extension_bench", description="Measure append-batch and bootstrap.")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case")
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where data is written: the disk in question (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write everything here")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, float]] = {}
    for nodes in (1, 3):
        with tempfile.TemporaryDirectory(dir=options.dir.resolve()) as folder, Cluster(nodes, Path(folder)) as cluster:
            targets, pids = [node.client for node in cluster.nodes], [node.pid for node in cluster.nodes]
            one = uvloop.run(single(Job("append", targets, pids, "single", CONNECTIONS, options.seconds)))
            many = uvloop.run(batched(Job("append", targets, pids, "batch", CONNECTIONS, options.seconds)))
            boot = bootstrap(targets, pids)
            found[f"{nodes} node(s)"] = {
                "single_per_s": one[0],
                "single_cpu_us": one[1],
                "batched_per_s": many[0],
                "batched_cpu_us": many[1],
                "ratio": many[0] / one[0],
                "bootstrap_mb_per_cpu_s": boot[0],
                "bootstrap_mb_per_s": boot[1],
                "bootstrap_rss_growth_mb": boot[2],
            }
            print(
                f"{nodes} node(s), {CONNECTIONS} connections, {FRAME_BYTES} B: single {one[0]:,.0f} appends/s ({one[1]:.1f} CPU us each); "
                f"append-batch of {FRAMES}: {many[0]:,.0f} appends/s ({many[1]:.1f} CPU us each) = {many[0] / one[0]:.1f}x "
                f"(floor {BATCH_RATIO_MIN:g}x)\n"
                f"    bootstrap of {MESSAGES:,} x {MESSAGE_BYTES} B: {boot[0]:.0f} MB per CPU-second (floor {BOOTSTRAP_MB_PER_CPU_S_MIN:g}), "
                f"{boot[1]:.0f} MB/s, memory +{boot[2]:.1f} MB (at most {BOOTSTRAP_RSS_MAX_MB:g})",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
