"""`python -m tests.bench.memory`: what idle streams and idle live readers cost a node in RAM, measured on real processes over HTTP.

Before us: tests/process/cluster.py starts the nodes. After us: /proc, which tells their resident memory. The aims are DESIGN's: 100,000 idle
streams, each with one message of 100 bytes, in 300 MB per node; 1,000 SSE connections in 30 MB on top. A missed aim makes the run fail with 1, since
memory, unlike time, does not depend on who else uses the machine. Not here: memory under load (tests/process/overload.py)."""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any, Final

import uvloop

from tests.bench.http_load import BINARY, render, rss_bytes
from tests.process.cluster import Cluster

STREAMS: Final = 100_000
READERS: Final = 1_000
MESSAGE_BYTES: Final = 100
CONNECTIONS: Final = 128
PIPELINED: Final = 8
"""Requests that a connection has sent: the node takes them up one by one, but never waits for us."""
STREAMS_AIM_BYTES: Final = 300_000_000
READERS_AIM_BYTES: Final = 30_000_000
TIMEOUT_S: Final = 300.0
SETTLED_BYTES: Final = 1 << 20
SETTLED_S: Final = 1.0


class WrongAnswer(RuntimeError):
    """A node answered something else than success: the figure would mean nothing."""


def path(number: int) -> str:
    return f"/v1/stream/documents/document-{number:08d}"


async def fill(address: str, numbers: range) -> None:
    """A create and an append per stream, pipelined on one connection; every answer is looked at."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = os.urandom(MESSAGE_BYTES)
    for first in range(0, len(numbers), PIPELINED):  # a stream that is there already answers 200
        batch = numbers[first : first + PIPELINED]
        # First all creates, then all appends: two turns for a batch, and one request in the log per turn is no requirement of ours.
        for method, good in (("PUT", (b"201", b"200")), ("POST", (b"204",))):
            writer.write(b"".join(render(method, path(n), address, BINARY, body if method == "POST" else b"") for n in batch))
            for number in batch:
                head = await reader.readuntil(b"\r\n\r\n")
                if head[9:12] not in good:
                    raise WrongAnswer(f"{method} {path(number)}: {head!r}")
    writer.close()


async def serving(address: str) -> None:
    """A node is ready before the groups of a new cluster have their first leaders; until then it answers 503."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return await fill(address, range(1))
        except WrongAnswer:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def follow(address: str, number: int) -> asyncio.StreamWriter:
    """An SSE reader at the tail of its own stream, once its first event is there."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(render("GET", path(number) + "?offset=now&live=sse", address, ("Accept: text/event-stream",)))
    head = await reader.readuntil(b"\r\n\r\n")
    if head[9:12] != b"200":
        raise WrongAnswer(f"a live read: {head!r}")
    await reader.readuntil(b"event: control")
    return writer


async def settled(pids: list[int]) -> list[int]:
    """Resident bytes of each process, once they have not moved for a while: the last segments and snapshots are being written."""
    deadline = time.monotonic() + 20
    now = [rss_bytes([pid]) for pid in pids]
    while time.monotonic() < deadline:
        await asyncio.sleep(SETTLED_S)
        before, now = now, [rss_bytes([pid]) for pid in pids]
        if all(abs(a - b) < SETTLED_BYTES for a, b in zip(before, now, strict=True)):
            break
    return now


async def measure(nodes: int, streams: int, readers: int) -> list[dict[str, Any]]:
    cluster = Cluster(nodes)
    with cluster:
        pids = [node.pid for node in cluster.nodes]
        for node in cluster.nodes:
            await serving(node.client)
        empty = await settled(pids)
        began = time.monotonic()
        async with asyncio.timeout(TIMEOUT_S):
            share = -(-streams // CONNECTIONS)
            spans = [range(at, min(at + share, streams)) for at in range(0, streams, share)]
            await asyncio.gather(*(fill(cluster.nodes[i % nodes].client, span) for i, span in enumerate(spans)))
        took_s = time.monotonic() - began
        full = await settled(pids)
        writers = []
        for at in range(0, readers, 100):
            batch = range(at, min(at + 100, readers))
            # All on the first node: the aim is per node.
            writers += await asyncio.gather(*(follow(cluster.nodes[0].client, n % streams) for n in batch))
        live = await settled(pids)
        for writer in writers:
            writer.close()
    return [
        {
            "node": node.name,
            "nodes": nodes,
            "streams": streams,
            "readers": readers if node is cluster.nodes[0] else 0,
            "filled_in_s": round(took_s, 1),
            "empty_bytes": empty[i],
            "full_bytes": full[i],
            "live_bytes": live[i],
        }
        for i, node in enumerate(cluster.nodes)
    ]


def show(row: dict[str, Any]) -> list[str]:
    """One node's line; returns the aims it misses."""
    empty, full, live = row["empty_bytes"], row["full_bytes"], row["live_bytes"]
    each = (full - empty) / row["streams"]
    print(
        f"{row['nodes']} node(s), {row['node']}: RSS {empty / 1e6:.1f} MB empty, {full / 1e6:.1f} MB with {row['streams']} streams"
        f" (+{(full - empty) / 1e6:.1f} MB, {each:.0f} B per stream; filled in {row['filled_in_s']} s)"
    )
    missed = []
    scale = row["streams"] / STREAMS
    # The aim is for the whole process; a shorter run may grow by its share of what an empty node leaves of it.
    if full - empty > (STREAMS_AIM_BYTES - empty) * scale:
        missed.append(f"{row['node']}: {full / 1e6:.1f} MB with {row['streams']} streams, aim {STREAMS_AIM_BYTES / 1e6:.0f} MB with {STREAMS}")
    if row["readers"]:
        grown = live - full
        print(f"    {row['readers']} SSE readers: +{grown / 1e6:.1f} MB, {grown / row['readers']:.0f} B each; aim {READERS_AIM_BYTES / 1e6:.0f} MB")
        if grown > READERS_AIM_BYTES * row["readers"] / READERS:
            missed.append(f"{row['node']}: {row['readers']} SSE readers take {grown / 1e6:.1f} MB")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description="Resident memory of idle streams and idle live readers.")
    parser.add_argument("--nodes", type=int, action="append", help="nodes of the cluster; may be repeated (default: 1; three take minutes to fill)")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--readers", type=int, default=READERS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    missed: list[str] = []
    for nodes in options.nodes or [1]:
        rows += uvloop.run(measure(nodes, options.streams, options.readers))
        if not options.json:
            for row in rows[-nodes:]:
                missed += show(row)
            sys.stdout.flush()
    if options.json:
        print(json.dumps(rows, indent=1))
    for each in missed:
        print(f"MISSED {each}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
