"""The peer plane: opaque frames to and from the other nodes over gRPC, and rare unary calls (join, view).

Before us: the loop sends one frame per peer, lane and turn (engine/outbox.py). After us: on_frame gives each whole frame to the other side's loop.
Each node dials each other node for its own sending direction, with one connection per lane, so that bulk never stands in front of a heartbeat.
Not here: what frames mean, retries and acknowledgements (Raft's; a frame that finds no room is a lost packet), tasks per frame (grpc.aio costs
~120 us per message already, so that what waits in a lane travels in one message), TLS (PeerOptions takes the credentials)."""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from anabranch_proto import peer_pb2 as pb

VERSION = 1
"""Of everything said on this plane: hello, packets and the frames inside."""

_SERVICE = "anabranch.Peer"
_FRAME_OVERHEAD_BYTES = 64
"""What a queued frame weighs besides its data: a queue of empty frames is bounded, too."""
_PACKET_OVERHEAD_BYTES = 64
_REFUSALS_REMEMBERED_MAX = 256

_log = logging.getLogger("anabranch.peer")


class PeerError(Exception):
    """Something did not work with another node."""


class PeerRefusedHello(PeerError):
    """The other node answered, and wants nothing of us. `reason` is its name: WRONG_CLUSTER, WRONG_NODE, NEWER_VERSION..."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class PeerUnavailable(PeerError):
    """No answer. Whether a call was carried out is unknown."""


class CallRefused(Exception):
    """Raised by a handler of calls: a definite no, worth an answer and not a line in the log."""


class PeerTimeout(PeerUnavailable):
    """No answer in time."""


class PeerCallFailed(PeerUnavailable):
    """The other side's handler raised."""


class Hello(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    node_id: int
    incarnation: int


@dataclass(frozen=True)
class PeerOptions:
    server_credentials: Any = None  # grpc.ServerCredentials; None: plain text
    channel_credentials: Any = None  # grpc.ChannelCredentials; None: plain text
    control_queue_bytes_max: int = 4 << 20
    bulk_queue_bytes_max: int = 32 << 20
    packet_bytes_max: int = 1 << 20
    frame_bytes_max: int = 64 << 20
    call_bytes_max: int = 4 << 20
    rpcs_max: int = 1024
    hello_timeout_s: float = 5.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0
    keepalive_interval_ms: int = 10_000
    keepalive_timeout_ms: int = 5_000


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
        self._lanes: dict[tuple[int, bool], _Lane] = {}
        self._inbound: dict[tuple[int, bool], _Inbound] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._epochs: dict[int, int] = {}
        self._said: dict[int, str] = {}
        self._refused: dict[int, str] = {}
        self._server: Any = None
        self._stopping = False

    async def start(self, host: str, port: int) -> None:
        options = self.options
        server = grpc.aio.server(options=_server_options(options), maximum_concurrent_rpcs=options.rpcs_max)
        handlers = {
            "Frames": grpc.stream_stream_rpc_method_handler(self._serve_frames),
            "Call": grpc.unary_unary_rpc_method_handler(self._serve_call),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        if options.server_credentials is None:
            self.port = server.add_insecure_port(address)
        else:
            self.port = server.add_secure_port(address, options.server_credentials)
        await server.start()
        self._server = server
        self._reconcile()

    async def stop(self) -> None:
        self._stopping = True
        for key in list(self._lanes):
            self._close_lane(key)
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=0.5)
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

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
        return lane is not None and lane.send(data)

    def is_connected(self, node: int, bulk: bool = False) -> bool:
        lane = self._lanes.get((node, bulk))
        return lane is not None and lane.up

    def queued_bytes(self, node: int, bulk: bool) -> int:
        lane = self._lanes.get((node, bulk))
        return 0 if lane is None else lane.queued_bytes

    async def call(self, address: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        request = pb.CallRequest(sender=_identity(self.hello), method=method, payload=payload)
        channel = open_channel(address, self.options)
        try:
            invoke = channel.unary_unary(f"/{_SERVICE}/Call")
            data = await invoke(request.SerializeToString(), timeout=timeout_s)
            answer = pb.CallAnswer.FromString(data)
        except grpc.aio.AioRpcError as error:
            text = f"{method} at {address}: {error.details()}"
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise PeerTimeout(text) from None
            if error.code() == grpc.StatusCode.INTERNAL:
                raise PeerCallFailed(text) from None
            raise PeerUnavailable(f"{text} ({error.code().name})") from None
        except DecodeError:
            raise PeerUnavailable(f"{method} at {address}: the answer is not of this protocol") from None
        finally:
            await channel.close()
        if answer.HasField("refusal"):
            raise PeerRefusedHello(pb.Reason.Name(answer.refusal.reason), answer.refusal.detail)
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
                    self._lanes[node, bulk] = _Lane(self, node, incarnation, address, bulk)

    def _close_lane(self, key: tuple[int, bool]) -> None:
        lane = self._lanes.pop(key)
        lane.close()
        self._closing.add(lane.task)
        lane.task.add_done_callback(self._closing.discard)

    def _opened(self, lane: "_Lane") -> int:
        """The epoch of the new connection: what ends in an older one was reported already."""
        self._say(lane.node, logging.INFO, f"node {lane.node} at {lane.address}: connected")
        if self._on_up is not None:
            self._on_up(lane.node, lane.bulk)
        return self._epochs.get(lane.node, 0)

    def _broke(self, node: int, epoch: int) -> None:
        if self._stopping or epoch != self._epochs.get(node, 0):
            return
        self._epochs[node] = epoch + 1
        self._on_lost(node)

    def _say(self, node: int, level: int, text: str) -> None:
        """Once per change: a peer that is away for a night fills no log."""
        if self._said.get(node) != text:
            self._said[node] = text
            _log.log(level, text)

    # --- incoming ----------------------------------------------------------------------------------------------------------------

    async def _serve_frames(self, _: Any, context: Any) -> None:
        try:
            async with asyncio.timeout(self.options.hello_timeout_s):
                first = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello")
        hello = _decode_hello(first)
        refusal = pb.Refusal(reason=pb.BAD_HELLO, detail="the first packet is no hello") if hello is None else self._check_hello(hello)
        if hello is None or refusal is not None:
            self._report_refused(hello, refusal)
            await context.write(pb.Answer(receiver=_identity(self.hello), refusal=refusal).SerializeToString())
            return
        node, bulk = hello.sender.node_id, hello.lane == pb.BULK
        task = asyncio.current_task()
        assert task is not None
        inbound = _Inbound(node, hello.sender.incarnation, bulk, task, self._epochs.get(node, 0))
        before = self._inbound.get((node, bulk))
        self._inbound[node, bulk] = inbound
        if before is not None:
            before.task.cancel()  # the newer connection wins: the older one is half open, and nobody is at its other end
            self._broke(node, before.epoch)
            inbound.epoch = self._epochs.get(node, 0)
        try:
            await context.write(pb.Answer(receiver=_identity(self.hello)).SerializeToString())
            for each in (False, True):
                if (lane := self._lanes.get((node, each))) is not None:
                    lane.poke()  # it is there, so do not wait out the back-off
            await self._receive(context, node)
        except _Garbage as error:
            _log.warning("node %d sent what is not of this protocol: %s", node, error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            if self._inbound.get((node, bulk)) is inbound:
                del self._inbound[node, bulk]
                self._broke(node, inbound.epoch)

    async def _receive(self, context: Any, node: int) -> None:
        read, on_frame, parts = context.read, self._on_frame, _Parts(self.options)
        packet_type, end = pb.Packet, grpc.aio.EOF
        size_max = self.options.packet_bytes_max + _PACKET_OVERHEAD_BYTES
        while (data := await read()) is not end:
            if len(data) > size_max:
                raise _Garbage(f"a packet of {len(data)} bytes")
            try:
                packet = packet_type.FromString(data)
            except DecodeError:
                raise _Garbage("a packet that cannot be decoded") from None
            frames = packet.frames
            if frames:
                if parts.size:
                    raise _Garbage("a frame between the parts of another")
                for frame in frames:
                    on_frame(node, frame)
            elif packet.HasField("part"):
                whole = parts.add(packet.part)
                if whole is not None:
                    on_frame(node, whole)
            else:
                raise _Garbage("a packet without frames")

    def _check_hello(self, hello: pb.Hello) -> pb.Refusal | None:
        ours, theirs = self.hello, hello.sender
        refusal = _check_identity(ours, theirs)
        if refusal is not None:
            return refusal
        if ours.cluster_id != theirs.cluster_id:
            return pb.Refusal(reason=pb.WRONG_CLUSTER, detail=f"this is cluster {ours.cluster_id!r}, you are of {theirs.cluster_id!r}")
        if hello.lane not in (pb.CONTROL, pb.BULK) or theirs.node_id == 0:
            return pb.Refusal(reason=pb.BAD_HELLO, detail="without a lane or a node id")
        if ours.node_id == 0 or hello.expected_node_id != ours.node_id:
            return pb.Refusal(reason=pb.WRONG_NODE, detail=f"this is node {ours.node_id}, you expected {hello.expected_node_id}")
        if hello.expected_incarnation != ours.incarnation:
            detail = f"this is incarnation {ours.incarnation} of node {ours.node_id}, you expected {hello.expected_incarnation}"
            return pb.Refusal(reason=pb.WRONG_INCARNATION, detail=detail)
        known = self._peers.get(theirs.node_id)
        if known is None:
            return pb.Refusal(reason=pb.UNKNOWN_NODE, detail=f"node {theirs.node_id} is not known here")
        if known[0] != theirs.incarnation:
            detail = f"you are incarnation {theirs.incarnation} of node {theirs.node_id}, known here is {known[0]}"
            return pb.Refusal(reason=pb.WRONG_INCARNATION, detail=detail)
        return None

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
        inbound.task.cancel()

    async def _serve_call(self, data: bytes, context: Any) -> bytes:
        try:
            request = pb.CallRequest.FromString(data)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a call")
        refusal = _check_identity(self.hello, request.sender)
        if refusal is not None:
            return bytes(pb.CallAnswer(refusal=refusal).SerializeToString())
        try:
            payload = await self._on_call(request.method, request.payload)
        except CallRefused as refused:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
        except Exception as error:
            _log.exception("call %r failed", request.method)
            await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
        return bytes(pb.CallAnswer(payload=payload).SerializeToString())


class _Inbound:
    """One accepted stream of frames from a node."""

    __slots__ = ("node", "incarnation", "bulk", "task", "epoch")

    def __init__(self, node: int, incarnation: int, bulk: bool, task: "asyncio.Task[Any]", epoch: int) -> None:
        self.node, self.incarnation, self.bulk, self.task, self.epoch = node, incarnation, bulk, task, epoch


class _Lane:
    """Our frames to one node in one lane: a bounded queue and ONE task that connects, says hello and writes what waits, for ever."""

    def __init__(self, net: PeerNet, node: int, incarnation: int, address: str, bulk: bool) -> None:
        options = net.options
        self.node, self.incarnation, self.address, self.bulk = node, incarnation, address, bulk
        self.up = False
        self.queued_bytes = 0
        self._net = net
        self._options = options
        self._bytes_max = options.bulk_queue_bytes_max if bulk else options.control_queue_bytes_max
        self._whole_max = options.packet_bytes_max - _PACKET_OVERHEAD_BYTES
        self._queue: deque[bytes] = deque()
        self._offset = 0  # into the first frame, while it leaves in parts
        self._wake: asyncio.Future[None] | None = None
        self._broken = False
        self._closed = False
        self._attempt = 0
        self._poked = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._run(), name=f"peer-{node}-{'bulk' if bulk else 'control'}")

    def send(self, data: bytes) -> bool:
        size = len(data) + _FRAME_OVERHEAD_BYTES
        # A frame larger than the whole queue may stand in it alone, or it could never be sent.
        if not self.up or (self.queued_bytes and self.queued_bytes + size > self._bytes_max):
            return False
        if len(data) > self._options.frame_bytes_max:
            self._net._say(self.node, logging.ERROR, f"node {self.node}: a frame of more than {self._options.frame_bytes_max} bytes cannot be sent")
            return False
        self.queued_bytes += size
        self._queue.append(data)
        self._rouse()
        return True

    def poke(self) -> None:
        if not self.up:
            self._attempt = 0
            self._poked.set()

    def close(self) -> None:
        self._closed = True
        self.up = False
        self.task.cancel()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self) -> None:
        options = self._options
        loop = asyncio.get_running_loop()
        while True:
            self._poked.clear()
            since = loop.time()
            level, problem = logging.INFO, "the connection ended"
            try:
                await self._connection()
            except PeerRefusedHello as error:
                level, problem = logging.WARNING, f"hello refused, {error}"
            except grpc.aio.AioRpcError as error:
                problem = f"{error.code().name}: {error.details()}"
            except (TimeoutError, asyncio.InvalidStateError, grpc.aio.UsageError, DecodeError) as error:
                problem = f"{type(error).__name__}: {error}"
            self._net._say(self.node, level, f"node {self.node} at {self.address}: {problem}")
            if loop.time() - since > options.backoff_max_s:
                self._attempt = 0  # it was up for a while: a connection that breaks at once must not be tried in a tight loop
            delay_s = min(options.backoff_max_s, options.backoff_min_s * 2 ** min(self._attempt, 16)) * random.uniform(0.5, 1.0)
            self._attempt += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._poked.wait()

    async def _connection(self) -> None:
        # A new channel each time: the name is resolved afresh, and gRPC's own back-off, which knows nothing of ours, starts from nothing.
        channel = open_channel(self.address, self._options)
        epoch = -1
        try:
            self._broken = False
            call = channel.stream_stream(f"/{_SERVICE}/Frames")()
            call.add_done_callback(self._ended)
            async with asyncio.timeout(self._options.hello_timeout_s):
                await self._say_hello(call)
            self.up = True
            epoch = self._net._opened(self)
            while not self._broken:
                if self._queue:
                    await call.write(self._take())
                else:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
            raise grpc.aio.AioRpcError(await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details())
        finally:
            self.up = False
            self._wake = None
            self._queue.clear()
            self.queued_bytes = self._offset = 0
            if epoch >= 0 and not self._closed:
                self._net._broke(self.node, epoch)
            await channel.close()

    async def _say_hello(self, call: Any) -> None:
        ours = self._net.hello
        hello = pb.Hello(sender=_identity(ours), expected_node_id=self.node, expected_incarnation=self.incarnation)
        hello.lane = pb.BULK if self.bulk else pb.CONTROL
        await call.write(pb.Packet(hello=hello).SerializeToString())
        data = await call.read()
        if data is grpc.aio.EOF:
            raise PeerRefusedHello("BAD_HELLO", f"no answer to the hello: {await call.details()}")
        answer = pb.Answer.FromString(data)
        if answer.HasField("refusal"):
            raise PeerRefusedHello(pb.Reason.Name(answer.refusal.reason), answer.refusal.detail)
        there = answer.receiver
        if (there.cluster_id, there.node_id, there.incarnation) != (ours.cluster_id, self.node, self.incarnation):
            raise PeerRefusedHello("WRONG_NODE", f"the answer came from node {there.node_id}, incarnation {there.incarnation}")

    def _ended(self, _: Any) -> None:
        self._broken = True
        self.up = False
        self._rouse()

    def _take(self) -> bytes:
        """The next packet: a part of a large frame, or as many whole frames as fit."""
        queue, size_max = self._queue, self._whole_max
        head = queue[0]
        if len(head) > size_max:
            offset = self._offset
            data = head[offset : offset + size_max]
            self._offset = offset + len(data)
            if self._offset == len(head):
                self._offset = 0
                queue.popleft()
                self.queued_bytes -= len(head) + _FRAME_OVERHEAD_BYTES
            return bytes(pb.Packet(part=pb.Part(frame_bytes=len(head), offset=offset, data=data)).SerializeToString())
        frames, size = [], 0
        while queue and size + len(queue[0]) <= size_max:
            frame = queue.popleft()
            frames.append(frame)
            size += len(frame) + 5  # tag and length
            self.queued_bytes -= len(frame) + _FRAME_OVERHEAD_BYTES
        return bytes(pb.Packet(frames=frames).SerializeToString())


class _Garbage(Exception):
    """The other side does not keep to the protocol. The stream ends; nothing else does."""


class _Parts:
    """Puts a large frame together again. Memory grows with what has arrived, not with what was announced."""

    def __init__(self, options: PeerOptions) -> None:
        self.size = 0
        self._data = bytearray()
        self._size_max = options.frame_bytes_max

    def add(self, part: pb.Part) -> bytes | None:
        if part.offset == 0 and not self.size:
            self.size = part.frame_bytes
        arrived = len(self._data)
        if not 0 < part.frame_bytes <= self._size_max or part.frame_bytes != self.size or part.offset != arrived:
            raise _Garbage(f"a part at {part.offset} of {part.frame_bytes} after {arrived} of {self.size}")
        if not part.data or arrived + len(part.data) > self.size:
            raise _Garbage(f"a part of {len(part.data)} bytes at {arrived} of {self.size}")
        self._data += part.data
        if len(self._data) < self.size:
            return None
        whole = bytes(self._data)
        self._data = bytearray()
        self.size = 0
        return whole


def open_channel(address: str, options: PeerOptions) -> Any:
    if options.channel_credentials is None:
        return grpc.aio.insecure_channel(address, options=_channel_options(options))
    return grpc.aio.secure_channel(address, options.channel_credentials, options=_channel_options(options))


def _common_options(options: PeerOptions) -> list[tuple[str, int]]:
    message_bytes_max = max(options.call_bytes_max, options.packet_bytes_max) + (64 << 10)
    return [
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.keepalive_time_ms", options.keepalive_interval_ms),
        ("grpc.keepalive_timeout_ms", options.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _channel_options(options: PeerOptions) -> list[tuple[str, int]]:
    return [
        *_common_options(options),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.use_local_subchannel_pool", 1),  # shared ones would carry an old back-off into a new channel
    ]


def _server_options(options: PeerOptions) -> list[tuple[str, int]]:
    return [
        *_common_options(options),
        ("grpc.so_reuseport", 0),  # two nodes on one port must fail, not share it
        ("grpc.http2.min_ping_interval_without_data_ms", options.keepalive_interval_ms // 2),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _identity(hello: Hello) -> pb.Identity:
    return pb.Identity(version=hello.version, cluster_id=hello.cluster_id, node_id=hello.node_id, incarnation=hello.incarnation)


def _decode_hello(data: Any) -> pb.Hello | None:
    if not isinstance(data, bytes):
        return None
    try:
        packet = pb.Packet.FromString(data)
    except DecodeError:
        return None
    return packet.hello if packet.HasField("hello") and packet.hello.HasField("sender") else None


def _check_identity(ours: Hello, theirs: pb.Identity) -> pb.Refusal | None:
    """What holds for calls, too: there a node without a cluster may ask to join one."""
    if theirs.version < 1:
        return pb.Refusal(reason=pb.BAD_HELLO, detail=f"version {theirs.version} never existed")
    if theirs.version > ours.version:
        return pb.Refusal(reason=pb.NEWER_VERSION, detail=f"you speak version {theirs.version}, this node reads up to {ours.version}")
    if ours.cluster_id and theirs.cluster_id and ours.cluster_id != theirs.cluster_id:
        return pb.Refusal(reason=pb.WRONG_CLUSTER, detail=f"this is cluster {ours.cluster_id!r}, you are of {theirs.cluster_id!r}")
    return None
