"""Our HTTP/2 endpoint against a peer that speaks frame by frame: in pieces, padded, slow, rude. grpcio as the other side: test_grpc_interop.py.

Every test runs on asyncio's loop and on uvloop, whose transports differ in when they write and pause. Nothing waits for a length of time,
except where a time-out is what the test is about."""

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_node.drivers import http2_frames as h2
from anabranch_node.drivers.grpc_peer import Hello, PeerNet, PeerOptions, PeerUnavailable
from anabranch_node.drivers.http2_connection import Http2Connection, Http2Limits
from anabranch_node.drivers.peer_packets import FrameQueue, FrameReader, head_of_frame, read_one_frame
from anabranch_proto import peer_pb2 as pb
from tests.unit.http2_wire import REQUEST, Wire, WireServer, accept_hello, frames, hello, message

DEADLINE_S = 20
FAST = PeerOptions(backoff_min_s=0.01, backoff_max_s=0.05)


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(test: Coroutine[Any, Any, None]) -> None:
        with warnings.catch_warnings():
            # uvloop's close() never returns if its warning of a transport that a failed test left open is turned into an error.
            warnings.simplefilter("ignore", ResourceWarning)
            request.param(asyncio.wait_for(test, DEADLINE_S))

    return run


Run = Callable[[Coroutine[Any, Any, None]], None]


class Node:
    """Node 2 of cluster c; it knows node 1, which the tests play."""

    def __init__(self, options: PeerOptions = FAST) -> None:
        self.frames: list[bytes] = []
        self.lost: list[int] = []
        self.changed = asyncio.Event()
        self.net = PeerNet(options, Hello(1, "c", 2, 20), self.on_frame, self.on_lost, self.on_call, lambda node, bulk: self.changed.set())

    async def start(self, knows: dict[int, tuple[int, str]] | None = None) -> "Node":
        await self.net.start("127.0.0.1", 0)
        self.net.set_peers({1: (10, "127.0.0.1:1")} if knows is None else knows)
        return self

    def on_frame(self, node: int, data: bytes) -> None:
        self.frames.append(data)
        self.changed.set()

    def on_lost(self, node: int) -> None:
        self.lost.append(node)
        self.changed.set()

    async def on_call(self, method: str, payload: bytes) -> bytes:
        return payload

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


# --- reading ---------------------------------------------------------------------------------------------------------------------


def test_a_session_arrives_whole_when_it_comes_byte_by_byte(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port, greet=False)
        session = h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: 1 << 20}) + wire.headers(1) + h2.frame(h2.DATA, 0, 1, message(hello()))
        session += head_of_frame(1, 3) + b"one" + h2.frame(h2.PING, 0, 0, b"12345678") + h2.frame(h2.DATA, 0, 1, message(frames(b"two", b"three")))
        for position in range(len(session)):
            wire.write(session[position : position + 1])
            await wire.writer.drain()
            await asyncio.sleep(0)
        await node.until(lambda: len(node.frames) == 3)
        assert node.frames == [b"one", b"two", b"three"]
        assert await wire.until(h2.PING) == (h2.PING, h2.ACK, 0, b"12345678")
        wire.close()
        await node.until(lambda: node.lost == [1])
        await node.net.stop()

    run(test())


def test_any_cut_of_a_session_reads_the_same(run: Run) -> None:
    """Without sockets: every pair of cuts around the interesting places."""

    async def test() -> None:
        wire = Wire(None, None)  # type: ignore[arg-type]
        session = h2.PREFACE + h2.settings({}) + wire.headers(1) + h2.frame(h2.DATA, 0, 1, message(hello()))
        body = head_of_frame(1, 3) + b"one" + h2.frame(h2.DATA, 0, 1, message(frames(b"two", b"three")))
        for step in range(1, 60):
            node = Node()
            node.net.set_peers({1: (10, "x")})
            connection = node.net._accept()
            connection.connection_made(FakeTransport())
            data = session + body
            for position in range(0, len(data), step):
                connection.data_received(data[position : position + step])
            assert node.frames == [b"one", b"two", b"three"], step
            connection.connection_lost(None)
            assert node.lost == [1]

    run(test())


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.buffered_bytes = 0
        self.ended = ""

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered_bytes

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def test_padding_priorities_and_continuations(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        block = wire.encoder.encode([*REQUEST, ("x-long", "a" * 200)])
        first = bytes([4]) + b"\0\0\0\0\x10" + block[:20] + b"pad!"
        wire.write(h2.frame(h2.HEADERS, h2.PADDED | h2.PRIORITIZED, 1, first))
        wire.write(h2.frame(h2.CONTINUATION, 0, 1, block[20:21]) + h2.frame(h2.CONTINUATION, 0, 1, b""))
        wire.write(h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[21:]))
        padded = message(hello())
        wire.data(1, bytes([7]) + padded[:9] + bytes(7), h2.PADDED)
        wire.data(1, bytes([0]) + padded[9:], h2.PADDED)
        wire.write(h2.frame(h2.PRIORITY, 0, 1, bytes(5)) + h2.frame(0xEE, 0xFF, 1, b"unknown"))
        wire.data(1, bytes([255]) + message(frames(b"padded")) + bytes(255), h2.PADDED)
        await node.until(lambda: node.frames == [b"padded"])
        wire.close()
        await node.net.stop()

    run(test())


def test_messages_and_data_frames_need_not_agree(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.open()
        large = bytes(range(256)) * 1024
        packets = message(frames(b"a")) + message(frames(b"b")) + message(frames(large)) + message(frames(b"c", b"d"))
        for position in range(0, len(packets), 10_007):
            wire.data(1, packets[position : position + 10_007])
        await node.until(lambda: len(node.frames) == 5)
        assert node.frames == [b"a", b"b", large, b"c", b"d"]
        wire.data(1, b"", h2.END_STREAM)
        assert (await wire.trailers())["grpc-status"] == "0"
        await node.until(lambda: node.lost == [1])
        wire.close()
        await node.net.stop()

    run(test())


def test_credit_comes_back_in_large_steps(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.open()
        await wire.until(h2.SETTINGS, where=lambda frame: h2.read_settings(frame[3], 0, len(frame[3]))[:1] != [] and len(frame[3]) == 6)
        payload = message(frames(bytes(1 << 20)[:-64]))
        for _ in range(9):
            wire.data(1, payload)
            await wire.writer.drain()
        updates = [await wire.until(h2.WINDOW_UPDATE) for _ in range(2)]
        assert {stream for _, _, stream, _ in updates} == {0, 1}
        assert all(int.from_bytes(increment) > 8 << 20 for _, _, _, increment in updates)
        wire.close()
        await node.net.stop()

    run(test())


# --- writing ---------------------------------------------------------------------------------------------------------------------


def test_an_exhausted_window_stops_us_and_more_of_it_resumes(run: Run) -> None:
    async def test() -> None:
        got = bytearray()

        async def script(wire: Wire) -> None:
            await accept_hello(wire, {h2.INITIAL_WINDOW_SIZE: 200})
            await asyncio.Event().wait()

        server = await WireServer(script).start()
        node = await Node().start({3: (30, f"127.0.0.1:{server.port}")})
        await node.until(lambda: node.net.is_connected(3) and node.net.is_connected(3, True))
        sent = [bytes([number]) * 100 for number in range(20)]
        for data in sent:
            assert node.net.send(3, False, data)
        assert node.net.queued_bytes(3, False) > 1000
        # Which of the two connections is the control lane: the one that has data.
        readers = [asyncio.ensure_future(wire.until(h2.DATA)) for wire in server.wires]
        done, waiting = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        wire = server.wires[readers.index(next(iter(done)))]
        got += next(iter(done)).result()[3]
        said = len(message(hello(pb.CONTROL, node=2, to=3)))
        assert len(got) <= 200 - said, "what the hello left of the window"
        wire.write(h2.window_update(1, 50) + h2.frame(h2.PING, 0, 0, b"barrier!"))
        while (frame := await wire.until(h2.DATA, h2.PING))[0] == h2.DATA:
            got += frame[3]
        assert len(got) == 250 - said, "all of the window, and not a byte more"
        wire.write(h2.settings({h2.INITIAL_WINDOW_SIZE: 0}) + h2.frame(h2.PING, 0, 0, b"barrier!"))
        await wire.until(h2.PING)
        wire.write(h2.settings({h2.INITIAL_WINDOW_SIZE: 1 << 20}))
        found: list[bytes] = []
        while len(found) < len(sent):
            got += (await wire.until(h2.DATA))[3]
            found = whole_frames(bytes(got))
        assert found == sent
        assert node.net.queued_bytes(3, False) == 0
        assert node.lost == []
        await node.net.stop()
        await server.stop()

    run(test())


def whole_frames(data: bytes) -> list[bytes]:
    """The frames of the whole messages at the front."""
    found: list[bytes] = []
    while len(data) >= 5 and len(data) >= 5 + int.from_bytes(data[1:5]):
        end = 5 + int.from_bytes(data[1:5])
        found += pb.Packet.FromString(data[5:end]).frames
        data = data[end:]
    return found


def test_frames_are_no_larger_than_the_other_side_allows(run: Run) -> None:
    async def test() -> None:
        sizes: list[int] = []
        got = bytearray()
        enough = asyncio.Event()

        async def script(wire: Wire) -> None:
            await accept_hello(wire, {h2.INITIAL_WINDOW_SIZE: 1 << 24, h2.MAX_FRAME_SIZE: 20_000})
            wire.write(h2.window_update(0, 1 << 24))
            while True:
                payload = (await wire.until(h2.DATA))[3]
                sizes.append(len(payload))
                got.extend(payload)
                if len(got) > 300_000:
                    enough.set()

        server = await WireServer(script).start()
        node = await Node().start({3: (30, f"127.0.0.1:{server.port}")})
        await node.until(lambda: node.net.is_connected(3, True))
        data = bytes(range(250)) * 1200
        assert node.net.send(3, True, data)
        await enough.wait()
        assert whole_frames(bytes(got)) == [data]
        assert max(sizes) == 20_000
        await node.net.stop()
        await server.stop()

    run(test())


# --- ends ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "trailers", "goaway", "garbage", "closed"])
def test_however_the_server_ends_a_lane_it_is_lost_once_and_dialled_again(run: Run, how: str) -> None:
    async def test() -> None:
        count = 0
        again = asyncio.Event()

        async def script(wire: Wire) -> None:
            nonlocal count
            count += 1
            if count > 2:
                again.set()
                await asyncio.Event().wait()
            await accept_hello(wire, {})
            await barrier.wait()
            if how == "reset":
                wire.write(h2.rst_stream(1, h2.CANCEL))
            elif how == "trailers":
                wire.write(wire.headers(1, [("grpc-status", "3"), ("grpc-message", "no%20more")], h2.END_STREAM))
            elif how == "goaway":
                wire.write(h2.goaway(0, h2.ENHANCE_YOUR_CALM, "too_many_pings"))
            elif how == "garbage":
                wire.write(b"\xff" * 100)
            else:
                return
            await asyncio.Event().wait()

        barrier = asyncio.Event()
        server = await WireServer(script).start()
        node = await Node().start({3: (30, f"127.0.0.1:{server.port}")})
        await node.until(lambda: node.net.is_connected(3) and node.net.is_connected(3, True))
        barrier.set()
        await node.until(lambda: node.lost == [3])
        await again.wait()
        assert node.lost == [3]
        await node.net.stop()
        await server.stop()

    run(test())


def test_a_goaway_lets_the_streams_it_names_go_on(run: Run) -> None:
    async def test() -> None:
        got: list[bytes] = []
        lanes_warned: list[int] = []
        arrived, warned = asyncio.Event(), asyncio.Event()

        async def script(wire: Wire) -> None:
            await accept_hello(wire, {})
            wire.write(h2.goaway(1, h2.NO_ERROR, "") + h2.frame(h2.PING, 0, 0, b"barrier!"))
            await wire.until(h2.PING)
            lanes_warned.append(1)
            if len(lanes_warned) == 2:
                warned.set()
            got.extend(whole_frames((await wire.until(h2.DATA))[3]))
            if len(got) == 2:
                arrived.set()
            await asyncio.Event().wait()

        server = await WireServer(script).start()
        node = await Node().start({3: (30, f"127.0.0.1:{server.port}")})
        await node.until(lambda: node.net.is_connected(3) and node.net.is_connected(3, True))
        await warned.wait()
        assert node.net.send(3, False, b"control")
        assert node.net.send(3, True, b"bulk")
        await arrived.wait()
        assert sorted(got) == [b"bulk", b"control"]
        assert node.lost == []
        await node.net.stop()
        await server.stop()

    run(test())


def test_sending_into_a_dying_connection_never_raises(run: Run) -> None:
    async def test() -> None:
        async def script(wire: Wire) -> None:
            await accept_hello(wire, {h2.INITIAL_WINDOW_SIZE: 1 << 30})
            wire.write(h2.window_update(0, 1 << 30))
            await wire.until(h2.DATA)
            wire.writer.transport.abort()

        server = await WireServer(script).start()
        node = await Node().start({3: (30, f"127.0.0.1:{server.port}")})
        for bulk in (False, True):
            while not node.net.is_connected(3, bulk):  # noqa: ASYNC110 - it comes and goes
                await asyncio.sleep(0)
            breaks = len(node.lost)
            while len(node.lost) == breaks:
                for size in (1, 1000, 100_000):
                    node.net.send(3, bulk, bytes(size))
                await asyncio.sleep(0)
        await node.net.stop()
        await server.stop()

    run(test())


def test_a_client_that_resets_its_stream_is_lost_and_may_open_another(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.open(1)
        await wire.until(h2.DATA)
        wire.write(h2.rst_stream(1, h2.CANCEL))
        await node.until(lambda: node.lost == [1])
        wire.data(1, message(frames(b"too late")))  # it crosses the end of its stream
        wire.open(3)
        wire.data(3, message(frames(b"in time")))
        await node.until(lambda: node.frames == [b"in time"])
        wire.close()
        await node.net.stop()

    run(test())


def test_a_silent_peer_is_noticed_by_its_missing_ping(run: Run) -> None:
    async def test() -> None:
        silent = asyncio.Event()

        async def script(wire: Wire) -> None:
            await accept_hello(wire, {})
            _, _, _, payload = await wire.until(h2.PING)
            wire.write(h2.frame(h2.PING, h2.ACK, 0, payload))
            silent.set()
            await asyncio.Event().wait()

        server = await WireServer(script).start()
        options = PeerOptions(backoff_min_s=5, backoff_max_s=5, keepalive_interval_ms=60, keepalive_timeout_ms=40)
        node = await Node(options).start({1: (10, "127.0.0.1:1"), 3: (30, f"127.0.0.1:{server.port}")})
        await node.until(lambda: node.net.is_connected(3) and node.net.is_connected(3, True))
        await silent.wait()
        assert node.lost == []
        await node.until(lambda: node.lost == [3])
        # The other way round: our server's own pings.
        wire = await Wire.dial(node.net.port)
        wire.open()
        await wire.until(h2.PING)
        await wire.closed()
        await node.net.stop()
        await server.stop()

    run(test())


# --- bounds ----------------------------------------------------------------------------------------------------------------------

BAD = {
    "a first frame that is not SETTINGS": (h2.PREFACE + h2.frame(h2.PING, 0, 0, bytes(8)), h2.PROTOCOL_ERROR),
    "an enormous frame": (h2.PREFACE + h2.settings({}) + b"\xff\xff\xff\0\0\0\0\0\1", h2.FRAME_SIZE_ERROR),
    "a frame larger than a stranger may send": (h2.PREFACE + h2.settings({}) + h2.frame(h2.DATA, 0, 1, bytes(16385))[:9], h2.FRAME_SIZE_ERROR),
    "data of no stream": (h2.PREFACE + h2.settings({}) + h2.frame(h2.DATA, 0, 0, b"x"), h2.PROTOCOL_ERROR),
    "data of a stream that was never opened": (h2.PREFACE + h2.settings({}) + h2.frame(h2.DATA, 0, 9, b"x"), h2.PROTOCOL_ERROR),
    "headers of stream 0": (h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, 4, 0, b"\x82"), h2.PROTOCOL_ERROR),
    "a stream that only a server may open": (h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, 4, 2, b"\x82"), h2.PROTOCOL_ERROR),
    "headers that do not decode": (h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), h2.COMPRESSION_ERROR),
    "more padding than frame": (h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, 12, 1, b"\xffxx"), h2.PROTOCOL_ERROR),
    "a continuation of nothing": (h2.PREFACE + h2.settings({}) + h2.frame(h2.CONTINUATION, 4, 1, b"\x82"), h2.PROTOCOL_ERROR),
    "an interrupted header block": (h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, 0, 1, b"\x82") + h2.settings({}), h2.PROTOCOL_ERROR),
    "a push promise": (h2.PREFACE + h2.settings({}) + h2.frame(h2.PUSH_PROMISE, 4, 1, bytes(8)), h2.PROTOCOL_ERROR),
    "a short ping": (h2.PREFACE + h2.settings({}) + h2.frame(h2.PING, 0, 0, b"x"), h2.FRAME_SIZE_ERROR),
    "a short reset": (h2.PREFACE + h2.settings({}) + h2.frame(h2.RST_STREAM, 0, 1, b"x"), h2.FRAME_SIZE_ERROR),
    "a short GOAWAY": (h2.PREFACE + h2.settings({}) + h2.frame(h2.GOAWAY, 0, 0, b"x"), h2.FRAME_SIZE_ERROR),
    "a window that grows by nothing": (h2.PREFACE + h2.settings({}) + h2.window_update(0, 0), h2.PROTOCOL_ERROR),
    "a window beyond its limit": (h2.PREFACE + h2.settings({}) + h2.window_update(0, (1 << 31) - 1), h2.FLOW_CONTROL_ERROR),
    "settings in odd bytes": (h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0, b"xxxxx"), h2.FRAME_SIZE_ERROR),
    "settings of a stream": (h2.PREFACE + h2.frame(h2.SETTINGS, 0, 1), h2.PROTOCOL_ERROR),
    "a frame size that may not be": (h2.PREFACE + h2.settings({h2.MAX_FRAME_SIZE: 1}), h2.PROTOCOL_ERROR),
    "an initial window that may not be": (h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: 1 << 31}), h2.FLOW_CONTROL_ERROR),
}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_rule_ends_the_connection_with_its_code(run: Run, name: str) -> None:
    async def test() -> None:
        data, expected = BAD[name]
        node = await Node().start()
        wire = await Wire.dial(node.net.port, greet=False)
        wire.write(data)
        assert (await wire.goaway())[0] == expected
        await wire.closed()
        wire.close()
        await still_works(node)
        await node.net.stop()

    run(test())


async def still_works(node: Node) -> None:
    wire = await Wire.dial(node.net.port)
    wire.open()
    wire.data(1, message(frames(b"still works")))
    await node.until(lambda: node.frames[-1:] == [b"still works"])
    wire.close()


FLOODS: dict[str, Callable[[Wire], bytes]] = {
    "ping": lambda wire: h2.frame(h2.PING, 0, 0, bytes(8)),
    "ping acknowledgement": lambda wire: h2.frame(h2.PING, h2.ACK, 0, bytes(8)),
    "settings": lambda wire: h2.settings({}),
    "settings acknowledgement": lambda wire: h2.frame(h2.SETTINGS, h2.ACK, 0),
    "reset": lambda wire: h2.rst_stream(1, h2.CANCEL),
    "empty data": lambda wire: h2.frame(h2.DATA, 0, 1),
    "padding": lambda wire: h2.frame(h2.DATA, h2.PADDED, 1, b"\x05" + bytes(5)),
    "priority": lambda wire: h2.frame(h2.PRIORITY, 0, 1, bytes(5)),
    "unknown": lambda wire: h2.frame(0xEE, 0, 1, b"?"),
    "goaway": lambda wire: h2.goaway(0, 0, ""),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_frames_that_carry_nothing_ends_the_connection(run: Run, kind: str) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.open()
        await wire.until(h2.DATA)
        wire.write(FLOODS[kind](wire) * 5000)
        assert (await wire.goaway())[0] == h2.ENHANCE_YOUR_CALM
        await wire.closed()
        wire.close()
        await still_works(node)
        await node.net.stop()

    run(test())


def test_streams_opened_and_reset_in_haste_end_the_connection(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.write(b"".join(wire.headers(stream) + h2.rst_stream(stream, h2.CANCEL) for stream in range(1, 6001, 2)))
        assert (await wire.goaway())[0] == h2.ENHANCE_YOUR_CALM
        await wire.closed()
        assert node.net._rpcs == 0
        wire.close()
        await node.net.stop()

    run(test())


def test_header_blocks_are_bounded_in_bytes_frames_and_decoded_size(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        many = h2.frame(h2.CONTINUATION, 0, 1, bytes(4096)) * 5
        empty = h2.frame(h2.CONTINUATION, 0, 1) * 40
        bomb = Wire(None, None).encoder.encode([("x", "y" * 3000)]) + b"\xbe" * 50  # type: ignore[arg-type]  # one entry, named fifty times
        for data, code in (
            (h2.frame(h2.HEADERS, 0, 1, b"\x82") + many, h2.ENHANCE_YOUR_CALM),
            (h2.frame(h2.HEADERS, 0, 1, b"\x82") + empty, h2.ENHANCE_YOUR_CALM),
            (h2.frame(h2.HEADERS, h2.END_HEADERS, 1, bomb), h2.COMPRESSION_ERROR),
        ):
            wire = await Wire.dial(node.net.port)
            wire.write(data)
            assert (await wire.goaway())[0] == code
            await wire.closed()
            wire.close()
        await still_works(node)
        await node.net.stop()

    run(test())


def test_a_message_is_refused_at_its_prefix(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.open(1)
        wire.data(1, h2.PREFIX.pack(0, 0xFFFFFFFF) + b"x")
        trailers = await wire.trailers()
        assert trailers["grpc-status"] == str(h2.INVALID_ARGUMENT)
        wire.open(3)
        wire.data(3, h2.PREFIX.pack(1, 3) + b"zip")
        assert (await wire.trailers())["grpc-status"] == str(h2.INVALID_ARGUMENT)
        # A stranger's first message, and a call.
        wire.write(wire.headers(5))
        wire.data(5, h2.PREFIX.pack(0, 1 << 20))
        assert (await wire.trailers())["grpc-status"] == "0", "refused as no hello"
        call = [(key, value.replace("Frames", "Call")) for key, value in REQUEST]
        wire.write(wire.headers(7, call))
        wire.data(7, h2.PREFIX.pack(0, 5 << 20))
        assert (await wire.trailers())["grpc-status"] == str(h2.RESOURCE_EXHAUSTED)
        wire.write(wire.headers(9, call, h2.END_STREAM))
        assert (await wire.trailers())["grpc-status"] == str(h2.INVALID_ARGUMENT)
        wire.close()
        await node.net.stop()
        assert node.net._rpcs == node.net._calls_bytes == 0

    run(test())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({":path": "/anabranch.Peer/Other"}, {"grpc-status": str(h2.UNIMPLEMENTED)}),
        ({":method": "GET"}, {":status": "405"}),
        ({"content-type": "text/html"}, {":status": "415"}),
    ],
)
def test_a_request_that_is_not_for_us_is_answered_so(run: Run, change: dict[str, str], expected: dict[str, str]) -> None:
    async def test() -> None:
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.write(wire.headers(1, [(key, change.get(key, value)) for key, value in REQUEST]))
        trailers = await wire.trailers()
        assert expected.items() <= trailers.items()
        wire.close()
        await node.net.stop()

    run(test())


def test_calls_connections_and_streams_are_counted(run: Run) -> None:
    async def test() -> None:
        node = await Node(PeerOptions(rpcs_max=2, connections_max=2)).start()
        wire = await Wire.dial(node.net.port)
        wire.write(wire.headers(1) + wire.headers(3) + wire.headers(5))
        assert (await wire.trailers())["grpc-status"] == str(h2.RESOURCE_EXHAUSTED)
        second = await Wire.dial(node.net.port)
        await second.until(h2.SETTINGS)
        third = await Wire.dial(node.net.port)
        await second.closed()  # it did nothing, and made room
        wire.write(h2.rst_stream(1, h2.CANCEL) + h2.frame(h2.PING, 0, 0, b"barrier!"))
        await wire.until(h2.PING)
        third.open()
        await third.until(h2.DATA)
        fourth = await Wire.dial(node.net.port)
        await fourth.closed()
        for each in (wire, third):
            each.close()
        await node.net.stop()
        node = await Node().start()
        wire = await Wire.dial(node.net.port)
        wire.write(b"".join(wire.headers(stream) for stream in range(1, 259, 2)))
        _, _, stream, code = await wire.until(h2.RST_STREAM)
        assert (stream, int.from_bytes(code)) == (257, h2.REFUSED_STREAM)
        wire.close()
        await node.net.stop()

    run(test())


def test_who_says_nothing_is_not_kept(run: Run) -> None:
    async def test() -> None:
        node = await Node(PeerOptions(hello_timeout_s=0.05, keepalive_interval_ms=300, keepalive_timeout_ms=100)).start()
        silent = await Wire.dial(node.net.port, greet=False)
        assert (await silent.goaway())[1] == "no greeting in time"
        wire = await Wire.dial(node.net.port)
        wire.write(wire.headers(1))
        assert await wire.trailers() == {":status": "200", "content-type": "application/grpc", "grpc-status": "4", "grpc-message": "no hello"}
        _, _, _, payload = await wire.until(h2.PING)
        wire.write(h2.frame(h2.PING, h2.ACK, 0, payload))
        assert await wire.goaway() == (h2.NO_ERROR, "idle")
        for each in (silent, wire):
            each.close()
        await node.net.stop()

    run(test())


def test_who_makes_us_answer_and_does_not_read_is_cut_off(run: Run) -> None:
    async def test() -> None:
        connection = Http2Connection(Http2Limits(), accept=lambda headers: None)  # type: ignore[arg-type,return-value]
        transport = FakeTransport()
        connection.connection_made(transport)
        connection.data_received(h2.PREFACE + h2.settings({}))
        connection.pause_writing()
        connection.data_received(h2.frame(h2.PING, 0, 0, bytes(8)))
        assert not transport.ended
        transport.buffered_bytes = 9 << 20
        connection.data_received(h2.frame(h2.PING, 0, 0, bytes(8)))
        assert transport.ended == "aborted"

    run(test())


def test_a_call_to_something_else_fails_and_hangs_on_nothing(run: Run) -> None:
    async def test() -> None:
        node = await Node().start()

        async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            writer.close()

        other = await asyncio.start_server(http1, "127.0.0.1", 0)
        with pytest.raises(PeerUnavailable):
            await node.net.call(f"127.0.0.1:{other.sockets[0].getsockname()[1]}", "view", b"", 5)
        with pytest.raises(PeerUnavailable):
            await node.net.call("no-such-name.invalid:1", "view", b"", 5)
        with pytest.raises(PeerUnavailable, match="RESOURCE_EXHAUSTED"):
            await node.net.call(f"127.0.0.1:{node.net.port}", "view", bytes(5 << 20), 5)
        other.close()
        await node.net.stop()
        assert not node.net._dialled

    run(test())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=40)), max_size=12), st.binary(max_size=30))
def test_no_bytes_raise_or_stay(pieces: list[tuple[int, int, int, bytes]], tail: bytes) -> None:
    async def test() -> None:
        node = Node()
        node.net.set_peers({1: (10, "x")})
        connection = node.net._accept()
        transport = FakeTransport()
        connection.connection_made(transport)
        wire = Wire(None, None)  # type: ignore[arg-type]
        connection.data_received(h2.PREFACE + h2.settings({}) + wire.headers(1) + h2.frame(h2.DATA, 0, 1, message(hello())))
        for kind, flags, stream, payload in pieces:
            connection.data_received(h2.frame(kind, flags, stream, payload))
        connection.data_received(tail)
        assert b"internal error" not in transport.written
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert node.net._rpcs == node.net._calls_bytes == 0
        assert not connection._rest

    asyncio.run(test())


# --- packets ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, (1 << 20) - 64])
def test_a_frame_alone_is_spelled_as_protobuf_spells_it(size: int) -> None:
    data = bytes(size)
    spelled = head_of_frame(1, size) + data
    packet = bytes(pb.Packet(frames=[data]).SerializeToString())
    assert spelled == h2.frame(h2.DATA, 0, 1, message(packet))
    assert read_one_frame(spelled, 14, len(spelled)) == data
    queue = FrameQueue(1 << 20)
    queue.add(data)
    assert queue.take() == message(packet)
    assert queue.take() is None
    assert queue.queued_bytes == 0


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_what_is_read_by_hand_is_what_protobuf_reads(data: bytes) -> None:
    for packet in (data, b"\x12" + data):
        by_hand = read_one_frame(packet, 0, len(packet))
        if by_hand is not None:
            assert pb.Packet.FromString(packet) == pb.Packet(frames=[by_hand])


def test_a_queue_gives_back_what_it_was_given() -> None:
    got: list[bytes] = []
    queue = FrameQueue(1024)
    reader = FrameReader(1 << 20, 1, lambda node, data: got.append(data))
    sent = [bytes([number % 251]) * (number * 37 % 3000) for number in range(200)]
    for data in sent:
        queue.add(data)
    while (packet := queue.take()) is not None:
        assert len(packet) <= 1024 + 5
        reader.read(packet, 5, len(packet))
    assert got == sent
    assert queue.queued_bytes == 0
