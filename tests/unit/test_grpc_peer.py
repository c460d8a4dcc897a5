"""The peer plane over real loopback sockets: order, parts, refusals by name, lost and slow peers, garbage, calls.

Nothing waits for a length of time: each test waits for what it is about, with a deadline only for the case that it never comes."""

import asyncio
import logging
import signal
import socket
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest
import uvloop

from anabranch_node.drivers.grpc_peer import Hello, PeerCallFailed, PeerNet, PeerOptions, PeerRefusedHello, PeerTimeout, PeerUnavailable
from anabranch_proto import peer_pb2 as pb

DEADLINE_S = 20
FAST = PeerOptions(backoff_min_s=0.01, backoff_max_s=0.05)


class Node:
    """A PeerNet and what it was told, with a way to wait for more of it."""

    def __init__(self, node_id: int, cluster: str = "c", incarnation: int = 0, version: int = 1, options: PeerOptions = FAST) -> None:
        self.hello = Hello(version, cluster, node_id, incarnation or node_id * 10)
        self.frames: list[tuple[int, bytes]] = []
        self.lost: list[int] = []
        self.up: set[tuple[int, bool]] = set()
        self.answer: Callable[[str, bytes], Awaitable[bytes]] = self.echo
        self.changed = asyncio.Event()
        self.net = PeerNet(options, self.hello, self.on_frame, self.on_lost, self.on_call, on_up=self.on_up)

    async def start(self) -> "Node":
        await self.net.start("127.0.0.1", 0)
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.net.port}"

    @property
    def entry(self) -> dict[int, tuple[int, str]]:
        return {self.hello.node_id: (self.hello.incarnation, self.address)}

    def on_frame(self, node: int, data: bytes) -> None:
        self.frames.append((node, data))
        self.changed.set()

    def on_lost(self, node: int) -> None:
        self.lost.append(node)
        self.changed.set()

    def on_up(self, node: int, bulk: bool) -> None:
        self.up.add((node, bulk))
        self.changed.set()

    async def on_call(self, method: str, payload: bytes) -> bytes:
        return await self.answer(method, payload)

    async def echo(self, method: str, payload: bytes) -> bytes:
        return method.encode() + b":" + payload

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def connected(self, *nodes: int) -> None:
        await self.until(lambda: all(self.net.is_connected(node, bulk) for node in nodes for bulk in (False, True)))


class Loop:
    """Nodes run on uvloop; asyncio's own loop writes and pauses at other moments, so that both find something."""

    run: Callable[[Any], None] = asyncio.run


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"], autouse=True)
def each_loop(request: pytest.FixtureRequest) -> None:
    Loop.run = request.param


def run(test: Coroutine[Any, Any, None]) -> None:
    with warnings.catch_warnings():
        # uvloop's close() never returns if its warning of a transport that a failed test left open is turned into an error.
        warnings.simplefilter("ignore", ResourceWarning)
        Loop.run(asyncio.wait_for(test, DEADLINE_S))


async def pair(first: Node, second: Node) -> None:
    await asyncio.gather(first.start(), second.start())
    first.net.set_peers(second.entry | first.entry)
    second.net.set_peers(first.entry | second.entry)


async def stop(*nodes: Node) -> None:
    async with asyncio.timeout(1):
        await asyncio.gather(*(node.net.stop() for node in nodes))


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.changed = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.changed.set()

    async def until(self, text: str) -> None:
        while not any(text in line for line in self.lines):
            self.changed.clear()
            await self.changed.wait()


def test_frames_travel_both_ways_in_order_in_each_lane() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        await pair(a, b)
        await asyncio.gather(a.connected(2), b.connected(1))
        for number in range(500):
            for bulk in (False, True):
                assert a.net.send(2, bulk, b"%d-%d" % (bulk, number))
                assert b.net.send(1, bulk, b"%d-%d" % (bulk, number))
        for node, other in ((a, 2), (b, 1)):
            await node.until(lambda node=node: len(node.frames) == 1000)  # type: ignore[misc]
            for bulk in (False, True):
                got = [data for _, data in node.frames if data.startswith(b"%d-" % bulk)]
                assert got == [b"%d-%d" % (bulk, number) for number in range(500)]
            assert {sender for sender, _ in node.frames} == {other}
        await stop(a, b)
        assert a.lost == b.lost == [] or a.lost + b.lost in ([2], [1], [2, 1])  # who stops first is seen to go by the other

    run(test())


def test_a_large_frame_travels_in_parts_and_arrives_whole() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        await pair(a, b)
        await a.connected(2)
        sizes = [0, 1, (1 << 20) - 64, (1 << 20) - 63, 1 << 20, (5 << 20) + 3, 7]
        frames = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
        for frame in frames:
            assert a.net.send(2, True, frame)
        await b.until(lambda: len(b.frames) == len(frames))
        assert [data for _, data in b.frames] == frames
        assert a.net.queued_bytes(2, True) == 0
        await stop(a, b)

    run(test())


@pytest.mark.parametrize(
    ("other", "believed", "reason"),
    [
        ({"cluster": "d"}, {}, "WRONG_CLUSTER"),
        ({"version": 0}, {}, "NEWER_VERSION"),
        ({}, {"incarnation": 99}, "WRONG_INCARNATION"),
        ({}, {"node_id": 3}, "WRONG_NODE"),
        ({}, {"knows_us": False}, "UNKNOWN_NODE"),
        ({}, {"our_incarnation": 77}, "WRONG_INCARNATION"),
    ],
)
def test_a_wrong_hello_is_refused_by_name_and_reported_once(other: dict[str, Any], believed: dict[str, Any], reason: str) -> None:
    async def test() -> None:
        logged = Logged()
        logger = logging.getLogger("anabranch.peer")
        logger.addHandler(logged)
        try:
            a, b = Node(1), Node(2, **other)
            await asyncio.gather(a.start(), b.start())
            if believed.get("knows_us", True):
                b.net.set_peers({1: (believed.get("our_incarnation", 10), "127.0.0.1:1")})
            a.net.set_peers({believed.get("node_id", 2): (believed.get("incarnation", 20), b.address)})
            await logged.until(f"hello refused, {reason}")
            assert not a.net.send(2, False, b"x")
            # Once more what is right, and it connects: the refusal was tried again meanwhile without another line.
            b.net.set_hello(Hello(1, "c", 2, 20))
            b.net.set_peers(a.entry)
            a.net.set_peers({2: (20, b.address)})
            await a.connected(2)
            assert len([line for line in logged.lines if f"hello refused, {reason}" in line]) == 1
            await stop(a, b)
        finally:
            logger.removeHandler(logged)

    run(test())


def test_a_peer_that_is_back_on_another_port_is_found_after_set_peers() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        await pair(a, b)
        await asyncio.gather(a.connected(2), b.connected(1))
        await stop(b)
        await a.until(lambda: a.lost == [2])
        assert not a.net.send(2, False, b"x")
        again = await Node(2).start()
        again.net.set_peers(a.entry)
        a.net.set_peers(again.entry)
        await asyncio.gather(a.connected(2), again.connected(1))
        assert a.net.send(2, False, b"welcome")
        await again.until(lambda: again.frames == [(1, b"welcome")])
        assert a.lost == [2], "one break, one report"
        await stop(a, again)

    run(test())


CHILD = """
import asyncio, sys
from anabranch_node.drivers.grpc_peer import Hello, PeerNet, PeerOptions
async def main():
    async def on_call(method, payload): return b""
    up = lambda node, bulk: net.send(node, bulk, b"up")
    net = PeerNet(PeerOptions(), Hello(1, "c", 2, 20), lambda node, data: None, lambda node: None, on_call, up)
    await net.start("127.0.0.1", 0)
    net.set_peers({1: (10, sys.argv[1])})
    print(net.port, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_a_killed_process_is_reported_lost_once() -> None:
    async def test() -> None:
        a = await Node(1).start()
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, a.address, stdout=asyncio.subprocess.PIPE)
        try:
            assert child.stdout is not None
            port = int(await child.stdout.readline())
            a.net.set_peers({2: (20, f"127.0.0.1:{port}")})
            await a.connected(2)
            await a.until(lambda: len(a.frames) == 2)  # both of its lanes are here, too
        finally:
            child.send_signal(signal.SIGKILL)
            await child.wait()
        async with asyncio.timeout(1):
            await a.until(lambda: bool(a.lost))
            while a.net.is_connected(2, True) or a.net._inbound:  # noqa: ASYNC110 - a lane that goes down tells nobody
                await asyncio.sleep(0)
        assert a.lost == [2]
        await stop(a)

    run(test())


class Deaf:
    """A peer that accepts the hello and then reads nothing. Its window is small, so that next to nothing is under way to it."""

    async def start(self) -> "Deaf":
        self.release = asyncio.Event()
        self.server = grpc.aio.server(options=[("grpc.http2.lookahead_bytes", 64 << 10), ("grpc.http2.bdp_probe", 0)])
        handlers = {"Frames": grpc.stream_stream_rpc_method_handler(self.frames)}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("anabranch.Peer", handlers),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return self

    async def frames(self, _: Any, context: Any) -> None:
        await context.read()
        identity = pb.Identity(version=1, cluster_id="c", node_id=3, incarnation=30)
        await context.write(pb.Answer(receiver=identity).SerializeToString())
        await self.release.wait()


def test_a_slow_peer_fills_its_own_queue_and_delays_nobody() -> None:
    async def test() -> None:
        a, b, deaf = Node(1), Node(2), await Deaf().start()
        await pair(a, b)
        a.net.set_peers(b.entry | {3: (30, f"127.0.0.1:{deaf.port}")})
        await a.connected(2, 3)
        frame = bytes(256 << 10)
        taken = 0
        while a.net.send(3, True, frame):
            taken += len(frame)
        assert 31 << 20 < taken <= 32 << 20, "the bound of the bulk lane"
        assert a.net.send(3, False, b"its control lane has room")
        taken = 0
        while a.net.send(3, False, frame):
            taken += len(frame)
        assert 3 << 20 < taken <= 4 << 20, "the bound of the control lane"
        for number in range(100):
            assert a.net.send(2, True, b"%d" % number)
            await b.until(lambda number=number: len(b.frames) == number + 1)  # type: ignore[misc]
        assert a.net.queued_bytes(3, True) > 16 << 20, "the slow peer is still stuck"
        dropped, sent = a.net.frames_dropped, a.net.frames_sent
        assert (dropped, a.net.nodes_connected) == (2, 2) and sent > 200
        assert not a.net.send(9, False, b"to nobody")
        a.net.set_peers(b.entry)
        while a.net.frames_dropped < dropped + 64:  # noqa: ASYNC110 - what the queues held; nobody tells when they are let go
            await asyncio.sleep(0)
        assert (a.net.frames_sent, a.net.nodes_connected) == (sent, 1)
        deaf.release.set()
        await stop(a, b)
        await deaf.server.stop(None)

    run(test())


def test_garbage_on_the_port_does_no_harm() -> None:
    async def test() -> None:
        a, b = Node(1), Node(2)
        await pair(a, b)
        await a.connected(2)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 512):
            reader, writer = await asyncio.open_connection("127.0.0.1", b.net.port)
            with_reset = False
            try:
                writer.write(garbage)
                writer.write_eof()
                await reader.read()
            except OSError:  # the server was faster: reset, or not connected any more at the end of our own side
                with_reset = True
            assert with_reset or reader.at_eof()
            writer.close()
        for packets in (
            [b"\xff\xff\xff"],
            [pb.Packet(frames=[b"no hello"]).SerializeToString()],
        ):
            assert (await converse(b, packets)).refusal.reason == pb.BAD_HELLO
        assert a.net.send(2, False, b"still here")
        await b.until(lambda: b.frames == [(1, b"still here")])
        await stop(a, b)

    run(test())


@pytest.mark.parametrize(
    "packets",
    [
        [b"\xff\xff\xff"],
        [b""],
        [pb.Packet(part=pb.Part(frame_bytes=65 << 20, offset=0, data=b"x")).SerializeToString()],
        [pb.Packet(part=pb.Part(frame_bytes=10, offset=5, data=b"x")).SerializeToString()],
        [pb.Packet(part=pb.Part(frame_bytes=10, offset=0, data=b"x" * 11)).SerializeToString()],
        [pb.Packet(part=pb.Part(frame_bytes=10, offset=0, data=b"x")).SerializeToString(), pb.Packet(frames=[b"y"]).SerializeToString()],
        [pb.Packet(frames=[bytes(2 << 20)]).SerializeToString()],
    ],
)
def test_a_peer_that_breaks_the_protocol_loses_its_stream(packets: list[bytes]) -> None:
    async def test() -> None:
        b = await Node(2).start()
        b.net.set_peers({1: (10, "127.0.0.1:1")})
        identity = pb.Identity(version=1, cluster_id="c", node_id=1, incarnation=10)
        hello = pb.Hello(sender=identity, expected_node_id=2, expected_incarnation=20, lane=pb.BULK)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await converse(b, [pb.Packet(hello=hello).SerializeToString(), *packets], to_the_end=True)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert b.frames == []
        await b.until(lambda: b.lost == [1])
        await stop(b)

    run(test())


async def converse(node: Node, packets: list[bytes], to_the_end: bool = False) -> pb.Answer:
    channel = grpc.aio.insecure_channel(node.address)
    try:
        call = channel.stream_stream("/anabranch.Peer/Frames")()
        for packet in packets:
            await call.write(packet)
        answer: pb.Answer = pb.Answer.FromString(await call.read())
        if to_the_end:
            await call.read()
        return answer
    finally:
        await channel.close()


def test_a_call_is_answered_times_out_or_says_what_went_wrong() -> None:
    async def test() -> None:
        a, b = Node(0, cluster=""), Node(2)
        await asyncio.gather(a.start(), b.start())
        assert await a.net.call(b.address, "join", b"me", 5) == b"join:me"

        async def never(method: str, payload: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        async def wrong(method: str, payload: bytes) -> bytes:
            raise LookupError(f"no method {method}")

        b.answer = never
        with pytest.raises(PeerTimeout):
            await a.net.call(b.address, "view", b"", 0.05)
        b.answer = wrong
        with pytest.raises(PeerCallFailed, match="LookupError: no method view"):
            await a.net.call(b.address, "view", b"", 5)
        for hello, reason in ((Hello(1, "other", 1, 1), "WRONG_CLUSTER"), (Hello(2, "c", 1, 1), "NEWER_VERSION")):
            a.net.set_hello(hello)
            with pytest.raises(PeerRefusedHello) as caught:
                await a.net.call(b.address, "view", b"", 5)
            assert caught.value.reason == reason
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(PeerUnavailable):
                await a.net.call(f"127.0.0.1:{taken.getsockname()[1]}", "view", b"", 5)
        await stop(a, b)

    run(test())
