"""The peer plane: opaque frames to and from the other nodes over gRPC, and rare unary calls (join, view).

Before us: the loop sends one frame per peer, lane and turn (engine/outbox.py). After us: on_frame gives each whole frame to the other side's loop.
Each node dials each other node for its own sending direction, with one connection per lane, so that bulk never stands in front of a heartbeat.
The wire is gRPC (proto/peer.proto; any gRPC library can be the other side), spoken by http2_connection.py: a frame that finds room is written
within send(), and one that arrives is delivered within the read of its bytes; no task, future or timer belongs to a frame.
Not here: what frames mean, retries and acknowledgements (Raft's; a frame that finds no room is a lost packet)."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from anabranch_node.drivers import http2_frames as h2
from anabranch_node.drivers.grpc_streams import ClientStream, RefusedStream, ServerStream, connect, refuse_request, request_headers
from anabranch_node.drivers.http2_connection import Http2Connection, Http2Limits
from anabranch_node.drivers.http2_stream import Headers
from anabranch_node.drivers.peer_hello import (
    CallRefused,
    Hello,
    PeerCallFailed,
    PeerOptions,
    PeerRefusedHello,
    PeerTimeout,
    PeerUnavailable,
    check_hello,
    check_identity,
    decode_hello,
    identity_of,
    reason_name,
)
from anabranch_node.drivers.peer_lane import FRAMES_PATH, Lane
from anabranch_node.drivers.peer_packets import PACKET_OVERHEAD_BYTES, FrameReader, Garbage
from anabranch_proto import peer_pb2 as pb

__all__ = ["CallRefused", "Hello", "PeerCallFailed", "PeerNet", "PeerOptions", "PeerRefusedHello", "PeerTimeout", "PeerUnavailable"]

_CALL_PATH = "/anabranch.Peer/Call"
_MESSAGE_OVERHEAD_BYTES = 64 << 10
_REFUSALS_REMEMBERED_MAX = 256
_STOP_TIMEOUT_S = 0.5

_log = logging.getLogger("anabranch.peer")


class PeerNet:
    """Everything is called on, and calls back on, the event loop that start() ran on.

    on_lost(node) comes once per break: streams that end later but belong to the time before it are part of the same break. What we close
    ourselves is not a break. on_up(node, bulk) comes when a lane to the node opens."""

    def __init__(
        self,
        options: PeerOptions,
        hello: Hello,
        on_frame: Callable[[int, bytes], None],
        on_lost: Callable[[int], None],
        on_call: Callable[[str, bytes], Awaitable[bytes]],
        on_up: Callable[[int, bool], None] | None = None,
    ) -> None:
        self.options = options
        self.hello = hello
        self.port = 0
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_call = on_call
        self._on_up = on_up
        self._peers: dict[int, tuple[int, str]] = {}
        self._lanes: dict[tuple[int, bool], Lane] = {}
        self._inbound: dict[tuple[int, bool], _Inbound] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._epochs: dict[int, int] = {}
        self._said: dict[int, str] = {}
        self._refused: dict[int, str] = {}
        self._server: asyncio.Server | None = None
        self._accepted: dict[Http2Connection, None] = {}  # the oldest first
        self._dialled: set[Http2Connection] = set()
        self._gone = asyncio.Event()
        self._rpcs = self._calls_bytes = 0
        self.frames_sent = self.frames_dropped = 0
        self.reading = False  # frames that are sent now leave together when the read is over
        self.held_lanes: list[Lane] = []
        self._limits = Http2Limits(
            greeting_timeout_s=options.hello_timeout_s,
            keepalive_interval_s=options.keepalive_interval_ms / 1000,
            keepalive_timeout_s=options.keepalive_timeout_ms / 1000,
        )
        self._server_tls = _with_alpn(options.server_credentials)
        self._channel_tls = _with_alpn(options.channel_credentials)
        self._stopping = False

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        if host == "::":
            # As gRPC servers do: the IPv6 wildcard takes IPv4, too.
            listening = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=socket.has_dualstack_ipv6())
            self._server = await loop.create_server(self._accept, sock=listening, ssl=self._server_tls)
        else:
            self._server = await loop.create_server(self._accept, host, port, ssl=self._server_tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self._reconcile()

    async def stop(self) -> None:
        self._stopping = True
        for key in list(self._lanes):
            self._close_lane(key)
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=_STOP_TIMEOUT_S)
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in [*self._accepted, *self._dialled]:
            connection.close(h2.NO_ERROR, "the node stops")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S / 2):
                while self._accepted or self._dialled:
                    self._gone.clear()
                    await self._gone.wait()
        for connection in [*self._accepted, *self._dialled]:
            connection.abort()

    def set_hello(self, hello: Hello) -> None:
        if hello == self.hello:
            return
        self.hello = hello
        for key in list(self._lanes):
            self._close_lane(key)
        for inbound in list(self._inbound.values()):
            self._close_inbound(inbound)  # it was addressed to who we were
        self._reconcile()

    def set_peers(self, peers: dict[int, tuple[int, str]]) -> None:
        self._peers = {node: where for node, where in peers.items() if node != self.hello.node_id}
        for inbound in list(self._inbound.values()):
            known = self._peers.get(inbound.node)
            if known is None or known[0] != inbound.incarnation:
                self._close_inbound(inbound)
        for node in [node for node in self._said if node not in self._peers]:
            del self._said[node]
        self._reconcile()

    def send(self, node: int, bulk: bool, data: bytes) -> bool:
        lane = self._lanes.get((node, bulk))
        if lane is None or not lane.send(data):
            self.frames_dropped += 1
            return False
        self.frames_sent += 1
        return True

    def is_connected(self, node: int, bulk: bool = False) -> bool:
        lane = self._lanes.get((node, bulk))
        return lane is not None and lane.up

    @property
    def nodes_connected(self) -> int:
        return sum(lane.up for (_, bulk), lane in self._lanes.items() if not bulk)

    def queued_bytes(self, node: int, bulk: bool) -> int:
        lane = self._lanes.get((node, bulk))
        return 0 if lane is None else lane.queued_bytes

    async def call(self, address: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        request = pb.CallRequest(sender=identity_of(self.hello), method=method, payload=payload).SerializeToString()
        where = f"{method} at {address}"
        if len(request) > self.options.call_bytes_max + _MESSAGE_OVERHEAD_BYTES:
            raise PeerUnavailable(f"{where}: a request of {len(request)} bytes (RESOURCE_EXHAUSTED)")
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self.dial(address)
                try:
                    stream = _CallOut(self.options.call_bytes_max + _MESSAGE_OVERHEAD_BYTES)
                    connection.open_stream(stream, request_headers(_CALL_PATH, address, self.options.channel_credentials is not None, timeout_s))
                    stream.send_message(request, end=True)
                    code, text, data = await stream.result
                finally:
                    connection.close()
        except TimeoutError:
            raise PeerTimeout(f"{where}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise PeerUnavailable(f"{where}: {error} (UNAVAILABLE)") from None
        if code == h2.DEADLINE_EXCEEDED:
            raise PeerTimeout(f"{where}: {text}")
        if code == h2.INTERNAL:
            raise PeerCallFailed(f"{where}: {text}")
        if code != h2.OK or data is None:
            raise PeerUnavailable(f"{where}: {text or 'no answer'} ({h2.STATUS_NAMES[code]})")
        try:
            answer = pb.CallAnswer.FromString(data)
        except DecodeError:
            raise PeerUnavailable(f"{where}: the answer is not of this protocol") from None
        if answer.HasField("refusal"):
            raise PeerRefusedHello(reason_name(answer.refusal), answer.refusal.detail)
        return bytes(answer.payload)

    # --- outgoing ----------------------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        if self._server is None or self._stopping:
            return
        wanted = self._peers if self.hello.node_id != 0 else {}
        for key, lane in list(self._lanes.items()):
            if wanted.get(key[0]) != (lane.incarnation, lane.address):
                self._close_lane(key)
        for node, (incarnation, address) in wanted.items():
            for bulk in (False, True):
                if (node, bulk) not in self._lanes:
                    self._lanes[node, bulk] = Lane(self, node, incarnation, address, bulk)

    async def dial(self, address: str) -> Http2Connection:
        """A connection to somebody, its name resolved afresh."""
        connection = await connect(address, self._limits, self._channel_tls, self._ended)
        if not connection.closed:
            self._dialled.add(connection)
        return connection

    def _close_lane(self, key: tuple[int, bool]) -> None:
        lane = self._lanes.pop(key)
        lane.close()
        self._closing.add(lane.task)
        lane.task.add_done_callback(self._closing.discard)

    def opened(self, lane: Lane) -> int:
        """The epoch of the new connection: what ends in an older one was reported already."""
        self.say(lane.node, logging.INFO, f"node {lane.node} at {lane.address}: connected")
        if self._on_up is not None:
            self._on_up(lane.node, lane.bulk)
        return self._epochs.get(lane.node, 0)

    def broke(self, node: int, epoch: int) -> None:
        if self._stopping or epoch != self._epochs.get(node, 0):
            return
        self._epochs[node] = epoch + 1
        self._on_lost(node)

    def say(self, node: int, level: int, text: str) -> None:
        """Once per change: a peer that is away for a night fills no log."""
        if self._said.get(node) != text:
            self._said[node] = text
            _log.log(level, text)

    # --- incoming ----------------------------------------------------------------------------------------------------------------

    def _accept(self) -> Http2Connection:
        return Http2Connection(self._limits, self._accept_stream, self._opens, self._ended, self._on_read)

    def _opens(self, connection: Http2Connection) -> bool:
        """When there is no room, the oldest connection that does nothing makes it: strangers who only connect do not lock a peer out."""
        if self._stopping:
            return False
        if len(self._accepted) >= self.options.connections_max:
            idle = next((other for other in self._accepted if not other.streams), None)
            if idle is None:
                return False
            del self._accepted[idle]
            idle.abort()
        self._accepted[connection] = None
        return True

    def _on_read(self, begins: bool) -> None:
        self.reading = begins
        if self.held_lanes and not begins:
            lanes, self.held_lanes = self.held_lanes, []
            for lane in lanes:
                lane.flush()

    def _ended(self, connection: Http2Connection) -> None:
        self._accepted.pop(connection, None)
        self._dialled.discard(connection)
        self._gone.set()

    def _accept_stream(self, headers: Headers) -> ServerStream:
        refused = refuse_request(headers)
        if refused is not None:
            return refused
        path = headers.get(b":path", b"")
        if path not in (FRAMES_PATH.encode(), _CALL_PATH.encode()):
            return RefusedStream(h2.UNIMPLEMENTED, "no such method")
        if self._rpcs >= self.options.rpcs_max:
            return RefusedStream(h2.RESOURCE_EXHAUSTED, "too many calls")
        return _Inbound(self) if path == FRAMES_PATH.encode() else _CallIn(self)

    def _take_hello(self, stream: "_Inbound", data: bytes | None) -> None:
        hello = decode_hello(data)
        refusal = (
            pb.Refusal(reason=pb.BAD_HELLO, detail="the first packet is no hello") if hello is None else check_hello(self.hello, self._peers, hello)
        )
        if hello is None or refusal is not None:
            self._report_refused(hello, refusal)
            stream.answer(pb.Answer(receiver=identity_of(self.hello), refusal=refusal).SerializeToString())
            stream.end(h2.OK)
            return
        node, bulk = hello.sender.node_id, hello.lane == pb.BULK
        stream.accepted(node, hello.sender.incarnation, bulk, self._epochs.get(node, 0), self._on_frame)
        before = self._inbound.get((node, bulk))
        self._inbound[node, bulk] = stream
        if before is not None:
            before.end(h2.CANCELLED, "a newer connection took over")  # the older one is half open: nobody is at its other end
            self.broke(node, before.epoch)
            stream.epoch = self._epochs.get(node, 0)
        stream.answer(pb.Answer(receiver=identity_of(self.hello)).SerializeToString())
        for each in (False, True):
            if (lane := self._lanes.get((node, each))) is not None:
                lane.poke()  # it is there, so do not wait out the back-off

    def _inbound_ended(self, stream: "_Inbound") -> None:
        if self._inbound.get((stream.node, stream.bulk)) is stream:
            del self._inbound[stream.node, stream.bulk]
            self.broke(stream.node, stream.epoch)

    def _report_refused(self, hello: pb.Hello | None, refusal: pb.Refusal | None) -> None:
        assert refusal is not None
        node = 0 if hello is None else hello.sender.node_id
        text = f"{pb.Reason.Name(refusal.reason)}: {refusal.detail}"
        if self._refused.get(node) != text:
            if len(self._refused) >= _REFUSALS_REMEMBERED_MAX:
                self._refused.clear()
            self._refused[node] = text
            _log.warning("refused the hello of node %d: %s", node, text)

    def _close_inbound(self, inbound: "_Inbound") -> None:
        del self._inbound[inbound.node, inbound.bulk]
        inbound.end(h2.CANCELLED, "no longer wanted")

    async def _answer_call(self, stream: "_CallIn", data: bytes) -> None:
        try:
            request = pb.CallRequest.FromString(data)
        except DecodeError:
            stream.end(h2.INVALID_ARGUMENT, "not a call")
            return
        refusal = check_identity(self.hello, request.sender)
        if refusal is not None:
            answer = pb.CallAnswer(refusal=refusal)
        else:
            try:
                answer = pb.CallAnswer(payload=await self._on_call(request.method, request.payload))
            except CallRefused as refused:
                stream.end(h2.FAILED_PRECONDITION, str(refused))
                return
            except Exception as error:
                _log.exception("call %r failed", request.method)
                stream.end(h2.INTERNAL, f"{type(error).__name__}: {error}")
                return
        answered = answer.SerializeToString()
        if not stream.allows(len(answered)):
            stream.end(h2.RESOURCE_EXHAUSTED, "no room for the answer")
            return
        stream.answer(answered)
        stream.end(h2.OK)


class _Inbound(ServerStream):
    """A stream of frames from a node, from its hello on."""

    __slots__ = ("node", "incarnation", "bulk", "epoch", "_net", "_reader", "_late")

    def __init__(self, net: PeerNet) -> None:
        super().__init__(_MESSAGE_OVERHEAD_BYTES)  # until the hello is accepted: a stranger holds little
        self.node = self.incarnation = self.epoch = 0
        self.bulk = False
        self._net = net
        self._reader: FrameReader | None = None
        self._late: asyncio.TimerHandle | None = None
        net._rpcs += 1

    def on_headers(self, headers: Headers) -> None:
        self._late = asyncio.get_running_loop().call_later(self._net.options.hello_timeout_s, self.end, h2.DEADLINE_EXCEEDED, "no hello")

    def accepted(self, node: int, incarnation: int, bulk: bool, epoch: int, on_frame: Callable[[int, bytes], None]) -> None:
        self.node, self.incarnation, self.bulk, self.epoch = node, incarnation, bulk, epoch
        self._reader = FrameReader(self._net.options.frame_bytes_max, node, on_frame)
        self.length_max = self._net.options.packet_bytes_max + PACKET_OVERHEAD_BYTES + h2.PREFIX_BYTES
        self.connection.grow_frames(self.length_max)

    def on_message(self, data: bytes, start: int, end: int) -> None:
        reader = self._reader
        if reader is None:
            self._hear_hello(data[start:end])
            return
        try:
            reader.read(data, start, end)
        except Garbage as error:
            self._break(str(error))

    def on_broken(self, code: int, text: str) -> None:
        if self._reader is not None:
            self._break(text)
        else:
            self._hear_hello(None)

    def on_end(self, trailers: Headers) -> None:
        if self._reader is None:
            self._hear_hello(None)
        else:
            self.end(h2.OK)

    def on_closed(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._net._rpcs -= 1
        self._net._inbound_ended(self)

    def end(self, code: int, text: str = "") -> None:
        super().end(code, text)
        self.reset()  # unless the words above could be written: it must hear nothing more

    def _hear_hello(self, data: bytes | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._net._take_hello(self, data)

    def _break(self, text: str) -> None:
        _log.warning("node %d sent what is not of this protocol: %s", self.node, text)
        self.end(h2.INVALID_ARGUMENT, text)


class _CallIn(ServerStream):
    """A question from a node. What it makes us hold counts against one bound for all of them, until its answer has left."""

    __slots__ = ("_net", "_task", "_late", "_bytes")

    def __init__(self, net: PeerNet) -> None:
        super().__init__(net.options.call_bytes_max + _MESSAGE_OVERHEAD_BYTES)
        self._net = net
        self._task: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._bytes = 0
        net._rpcs += 1

    def on_headers(self, headers: Headers) -> None:
        self._late = asyncio.get_running_loop().call_later(self._net.options.call_life_s, self._expire)

    def allows(self, size: int) -> bool:
        if self._net._calls_bytes + size > self._net.options.calls_bytes_max:
            return False
        self._net._calls_bytes += size
        self._bytes += size
        return True

    def on_message(self, data: bytes, start: int, end: int) -> None:
        if self._task is not None:
            self.end(h2.INVALID_ARGUMENT, "more than one request")
        elif not self._bytes and not self.allows(end - start):
            self.end(h2.RESOURCE_EXHAUSTED, "no room for a call")
        else:
            self._task = asyncio.get_running_loop().create_task(self._net._answer_call(self, data[start:end]), name="peer-call")

    def on_end(self, trailers: Headers) -> None:
        if self._task is None:
            self.end(h2.INVALID_ARGUMENT, "no request")

    def on_closed(self) -> None:
        if self._late is not None:
            self._late.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()  # nobody waits for the answer any more
        self._net._calls_bytes -= self._bytes
        self._net._rpcs -= 1

    def _expire(self) -> None:
        self.end(h2.DEADLINE_EXCEEDED, f"not answered within {self._net.options.call_life_s:g} s")
        self.reset()  # if even this cannot be written


class _CallOut(ClientStream):
    """Our question. `result`: code, text and the answer's bytes; OSError when the connection is lost."""

    __slots__ = ("result", "_data")

    def __init__(self, message_bytes_max: int) -> None:
        super().__init__(message_bytes_max)
        self.result: asyncio.Future[tuple[int, str, bytes | None]] = asyncio.get_running_loop().create_future()
        self._data: bytes | None = None

    def on_message(self, data: bytes, start: int, end: int) -> None:
        self._data = data[start:end]

    def on_status(self, code: int, text: str) -> None:
        if not self.result.done():
            self.result.set_result((code, text, self._data))

    def on_lost(self, reason: str) -> None:
        if not self.result.done():
            self.result.set_exception(ConnectionError(reason))


def _with_alpn(context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if context is not None:
        context.set_alpn_protocols(["h2"])
    return context
