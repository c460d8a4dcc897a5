"""Two real nodes, of which one holds all groups and the other sends everything on to it: whatever they export moves when its cause does, and nothing
is exported that nobody counts."""

import asyncio
import contextlib
import gc
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from anabranch_node.config import NodeConfig
from anabranch_node.drivers.node import Node, lag_entries
from anabranch_node.drivers.telemetry import exposition, histogram_by_bits
from anabranch_proto.admin import InitRequest
from tests.unit.service_world import GROUP, World

LIMIT_S = 30.0
STALL_S = 0.1
GROUPS = 6
STREAMS = [f"s{number}" for number in range(8)]
NOT_CAUSED_HERE = {
    "anabranch_slow_readers_dropped_total",  # test_http_protocol.py
    "anabranch_peer_frames_dropped_total",  # test_grpc_peer.py
}
MAY_BE_ZERO = {
    "anabranch_inflight_bytes",  # nothing is under way while we ask
    "anabranch_unsent_bytes",
    "anabranch_group_lag_entries",  # each group has one replica; see below
    "anabranch_group_fenced",
}


@pytest.fixture(autouse=True)
def process_settings() -> Iterator[None]:
    """A node tunes its process, which is this one."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    gc.unfreeze()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


def made(tmp_path: Path) -> list[Node]:
    ports = free_ports(6)
    nodes = []
    for number in range(2):
        client, admin, peer = (f"127.0.0.1:{port}" for port in ports[number * 3 : number * 3 + 3])
        nodes.append(
            Node(
                NodeConfig(
                    name=f"n{number}",
                    data_dir=str(tmp_path / str(number)),
                    client_listen=client,
                    admin_listen=admin,
                    peer_listen=peer,
                    client_advertise=client,
                    admin_advertise=admin,
                    peer_advertise=peer,
                    peers=(f"127.0.0.1:{ports[2]}",) if number else (),
                    tick_ms=10,
                    election_ticks=10,
                    heartbeat_ticks=2,
                    segment_bytes=32 << 20,
                )
            )
        )
    return nodes


async def until_told(node: Node) -> None:
    """Its admin plane answers: it can be told to init."""
    host, port = node.config.admin_listen.rsplit(":", 1)
    while True:
        with contextlib.suppress(ConnectionError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return
        await asyncio.sleep(0.01)


async def until_ready(node: Node) -> None:
    while not node.readyz()[0]:  # noqa: ASYNC110 - as a probe does
        await asyncio.sleep(0.01)


async def ask(node: Node, method: str, target: str, body: bytes = b"", mark: bytes = b"\r\n\r\n") -> bytes:
    """What comes up to `mark`; the connection is closed then."""
    host, port = node.config.client_listen.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{method} /v1/stream/{target} HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        return await reader.readuntil(mark)
    finally:
        writer.close()


def scraped(node: Node) -> dict[str, float]:
    """Each family's sum over its series; of a histogram its count, and its sum under its own name."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition(node.metrics()).decode()):
        totals.setdefault(family.name + ("_total" if family.type == "counter" else ""), 0.0)
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                name = sample.name.removesuffix("_count")
                totals[name] = totals.get(name, 0.0) + sample.value
            assert not any(stream in value for value in sample.labels.values() for stream in STREAMS)
    return totals


async def use(node: Node) -> None:
    """Appends, reads, live reads, and one that is refused."""
    for stream in STREAMS:
        assert b" 204 " in await ask(node, "POST", stream, b"hello")
        assert b"hello" in await ask(node, "GET", f"{stream}?offset=-1", mark=b"hello")
        assert b"hello" in await ask(node, "GET", f"{stream}?offset=-1&live=sse", mark=b"hello")
    assert b" 400 " in await ask(node, "GET", f"{STREAMS[0]}?offset=nonsense")


def test_whatever_is_exported_moves(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = made(tmp_path)
        runs = []
        try:
            for number, node in enumerate(nodes):
                runs.append(asyncio.create_task(node.run()))
                await until_told(node)
                if not number:
                    await node.init(InitRequest("c1", GROUPS, 1))
                await until_ready(node)
            for stream in STREAMS:
                assert b" 201 " in await ask(nodes[0], "PUT", stream)
            before = [scraped(node) for node in nodes]
            for node in nodes:
                await use(node)
            for group in nodes[0]._host.groups if nodes[0]._host else ():
                await nodes[0].snapshot(group)
            host, port = nodes[0].config.client_listen.rsplit(":", 1)
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /v1/stream/{STREAMS[0]}?offset=now&live=long-poll HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            time.sleep(STALL_S)  # noqa: ASYNC251 - the loop stalls, that is the purpose
            while not (scraped(nodes[0])["anabranch_snapshots_total"] and scraped(nodes[0])["anabranch_live_readers"]):  # noqa: ASYNC110 - two causes
                await asyncio.sleep(0.01)
            after = [scraped(node) for node in nodes]
            writer.close()
            judge(before, after)
        finally:
            for node in nodes:
                node.stop()
            await asyncio.gather(*runs)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), LIMIT_S))


def judge(before: list[dict[str, float]], after: list[dict[str, float]]) -> None:
    count = len(STREAMS)
    total = {name: sum(each[name] for each in after) for name in after[0]}
    rise = {name: total[name] - sum(each[name] for each in before) for name in total}
    assert {name for name in total if not total[name]} <= NOT_CAUSED_HERE | MAY_BE_ZERO
    at_rest = {name for name in total if name.endswith(("_total", "_seconds")) and rise[name] <= 0}
    assert at_rest <= NOT_CAUSED_HERE | {"anabranch_elections_total"}, "elections were before"
    # Both nodes were asked the same, and each counts what its own clients asked.
    for each, since in zip(after, before, strict=True):
        own = {name: each[name] - since[name] for name in each}
        assert (own["anabranch_appends_total"], own["anabranch_append_bytes_total"]) == (count, 5 * count)
        assert own["anabranch_append_seconds"] == count == own["anabranch_read_seconds"]
        assert own["anabranch_reads_total"] == 2 * count and own["anabranch_live_events_total"] >= count
        assert own["anabranch_read_bytes_total"] >= 2 * 5 * count
        assert own["anabranch_rejected_total"] == 1
        assert own["anabranch_responses_total"] == 3 * count + 1
        assert own["anabranch_peer_frames_sent_total"] > 0 < own["anabranch_peer_frames_received_total"]
        assert each["anabranch_node_info"] == each["anabranch_ready"] == each["anabranch_peers_reachable"] == 1
        assert each["anabranch_wal_live_segments"] >= 1
        assert each["anabranch_disk_free_bytes"] > 1 << 20
        assert own["anabranch_loop_stall_seconds_sum"] > STALL_S / 2
        assert 0 < each["anabranch_turn_seconds_sum"] <= each["anabranch_uptime_seconds"]
    holder, other = after
    assert holder["anabranch_group_hot_bytes"] == 2 * 5 * count
    assert 0 < holder["anabranch_fsync_seconds_sum"] < LIMIT_S
    assert rise["anabranch_commit_seconds"] >= 2 * count, "each append was alone in its entry"
    assert holder["anabranch_group_leader"] == holder["anabranch_elections_total"] == GROUPS + 1, "the meta group is one, too"
    assert holder["anabranch_snapshots_total"] <= GROUPS + 1
    assert (other["anabranch_forwarded_total"], holder["anabranch_forwarded_total"]) == (rise["anabranch_forwarded_total"], 0)


def test_the_leader_knows_how_far_its_slowest_replica_is_behind() -> None:
    world = World(holders=3)
    world.create()
    world.ticks(5)
    assert [lag_entries(node.host.groups[GROUP]) for node in world.nodes.values()] == [0, 0, 0]
    leader, slow = world.leader, world.follower()
    world.cut.add((leader, slow))
    for body in (b"a", b"b"):
        world.append(leader, body)
    assert {number: lag_entries(node.host.groups[GROUP]) for number, node in world.nodes.items()} == {1: 0, 2: 0, 3: 0} | {leader: 2}


def test_a_histogram_by_bits_promises_no_more_than_it_knows() -> None:
    histogram = histogram_by_bits([3, 2, 1, 4], 9)
    assert histogram.bounds_us == (1_000, 2_000, 4_000)
    assert (histogram.counts, histogram.count, histogram.sum_us) == ([3, 2, 1, 4], 10, 9_000)
