"""One lane to one node: connect, say hello, send frames; after a break all over again, with a back-off and the name resolved afresh.

Before us: PeerNet.send (grpc_peer.py). After us: http2_stream.py and the socket. A frame that finds nothing waiting and room in the windows is
written at once; the queue is for a peer that is slower than we are, and is cleared by a break, as packets in a cable are.
Not here: which lanes there are, and what a break means (grpc_peer.py)."""

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from anabranch_node.drivers import http2_frames as h2
from anabranch_node.drivers.grpc_streams import ClientStream, request_headers
from anabranch_node.drivers.http2_connection import Http2Connection
from anabranch_node.drivers.peer_hello import PeerRefusedHello, identity_of, reason_name
from anabranch_node.drivers.peer_packets import FRAME_OVERHEAD_BYTES, HEAD_BYTES_MAX, FrameQueue, head_of_frame
from anabranch_proto import peer_pb2 as pb

if TYPE_CHECKING:
    from anabranch_node.drivers.grpc_peer import PeerNet

FRAMES_PATH = "/anabranch.Peer/Frames"
_ANSWER_BYTES_MAX = 64 << 10


class _Outbound(ClientStream):
    """One connection of a lane: hello, its answer, and then what the lane gives."""

    __slots__ = ("heard", "problem", "_lane")

    def __init__(self, lane: "Lane") -> None:
        super().__init__(_ANSWER_BYTES_MAX)
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.problem = ""
        self._lane = lane

    def on_message(self, data: bytes, start: int, end: int) -> None:
        if not self.heard.done():
            self.heard.set_result(data[start:end])

    def next_message(self) -> bytes | None:
        return self._lane.queue.take()

    def on_status(self, code: int, text: str) -> None:
        self.problem = f"{h2.STATUS_NAMES[code]}: {text}"

    def on_lost(self, reason: str) -> None:
        self.problem = f"UNAVAILABLE: {reason}"

    def on_closed(self) -> None:
        self._lane.ended(self)


class Lane:
    """Our frames to one node in one lane: a bounded queue for what the connection has no room for, and ONE task that connects again, for ever."""

    def __init__(self, net: "PeerNet", node: int, incarnation: int, address: str, bulk: bool) -> None:
        options = net.options
        self.node, self.incarnation, self.address, self.bulk = node, incarnation, address, bulk
        self.up = False
        self.queue = FrameQueue(options.packet_bytes_max)
        self._net = net
        self._options = options
        self._bytes_max = options.bulk_queue_bytes_max if bulk else options.control_queue_bytes_max
        self._whole_max = self.queue.whole_max
        self._stream: _Outbound | None = None
        self._over: asyncio.Future[None] | None = None
        self._closed = False
        self._held = False
        self._attempt = 0
        self._poked = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._run(), name=f"peer-{node}-{'bulk' if bulk else 'control'}")

    @property
    def queued_bytes(self) -> int:
        return self.queue.queued_bytes

    def send(self, data: bytes) -> bool:
        stream = self._stream
        if stream is None or not self.up:
            return False
        size = len(data)
        needed = size + HEAD_BYTES_MAX
        queue, connection = self.queue, stream.connection
        if (
            needed <= stream.send_window
            and needed <= connection.send_window
            and needed <= connection.send_frame_bytes_max
            and size <= self._whole_max
            and not (connection.paused or queue.queued_bytes or self._net.reading)
        ):
            head = head_of_frame(stream.id, size)
            counted = len(head) - h2.FRAME_HEAD_BYTES + size
            stream.send_window -= counted
            connection.send_window -= counted
            connection.write(head, data)
            return True
        # A frame larger than the whole queue may stand in it alone, or it could never be sent.
        if queue.queued_bytes and queue.queued_bytes + size + FRAME_OVERHEAD_BYTES > self._bytes_max:
            return False
        if size > self._options.frame_bytes_max:
            self._net.say(self.node, logging.ERROR, f"node {self.node}: a frame of more than {self._options.frame_bytes_max} bytes cannot be sent")
            return False
        queue.add(data)
        if not self._net.reading:
            stream.pump()
        elif not self._held:
            self._held = True
            self._net.held_lanes.append(self)
        return True

    def flush(self) -> None:
        """What was sent in answer to frames of one read leaves with one write: a system call costs as much as ten frames."""
        self._held = False
        if self._stream is not None and self.up:
            self._stream.pump()

    def poke(self) -> None:
        if not self.up:
            self._attempt = 0
            self._poked.set()

    def close(self) -> None:
        self._closed = True
        self.up = False
        self.task.cancel()

    def ended(self, stream: _Outbound) -> None:
        if stream is self._stream:
            self.up = False
            if not stream.heard.done():
                stream.heard.cancel()
            if self._over is not None and not self._over.done():
                self._over.set_result(None)

    async def _run(self) -> None:
        options = self._options
        loop = asyncio.get_running_loop()
        while True:
            self._poked.clear()
            since = loop.time()
            level = logging.INFO
            try:
                problem = await self._connection()
            except PeerRefusedHello as error:
                level, problem = logging.WARNING, f"hello refused, {error}"
            except TimeoutError:
                problem = f"DEADLINE_EXCEEDED: no answer within {options.hello_timeout_s:g} s"
            except OSError as error:
                problem = f"UNAVAILABLE: {error}"
            except DecodeError as error:
                problem = f"{type(error).__name__}: {error}"
            self._net.say(self.node, level, f"node {self.node} at {self.address}: {problem}")
            if loop.time() - since > options.backoff_max_s:
                self._attempt = 0  # it was up for a while: a connection that breaks at once must not be tried in a tight loop
            delay_s = min(options.backoff_max_s, options.backoff_min_s * 2 ** min(self._attempt, 16)) * random.uniform(0.5, 1.0)
            self._attempt += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._poked.wait()

    async def _connection(self) -> str:
        """From the dialling to the end, and why it ended."""
        connection: Http2Connection | None = None
        epoch = -1
        try:
            async with asyncio.timeout(self._options.hello_timeout_s):
                connection = await self._net.dial(self.address)
                stream = self._stream = _Outbound(self)
                self._over = asyncio.get_running_loop().create_future()
                connection.open_stream(stream, request_headers(FRAMES_PATH, self.address, self._options.channel_credentials is not None))
                await self._say_hello(stream)
            if not stream.done:
                self.up = True
                epoch = self._net.opened(self)
                await self._over
            return stream.problem or "the connection ended"
        finally:
            self.up = False
            self._stream = self._over = None
            self._net.frames_dropped += len(self.queue.frames)
            self.queue.clear()
            if epoch >= 0 and not self._closed:
                self._net.broke(self.node, epoch)
            if connection is not None:
                connection.close()

    async def _say_hello(self, stream: _Outbound) -> None:
        ours = self._net.hello
        hello = pb.Hello(sender=identity_of(ours), expected_node_id=self.node, expected_incarnation=self.incarnation)
        hello.lane = pb.BULK if self.bulk else pb.CONTROL
        stream.send_message(pb.Packet(hello=hello).SerializeToString())
        await asyncio.wait((stream.heard,))
        if stream.heard.cancelled():
            if stream.problem.startswith("UNAVAILABLE"):
                raise ConnectionError(stream.problem.removeprefix("UNAVAILABLE: "))
            raise PeerRefusedHello("BAD_HELLO", f"no answer to the hello: {stream.problem}")
        answer = pb.Answer.FromString(stream.heard.result())
        if answer.HasField("refusal"):
            raise PeerRefusedHello(reason_name(answer.refusal), answer.refusal.detail)
        there = answer.receiver
        if (there.cluster_id, there.node_id, there.incarnation) != (ours.cluster_id, self.node, self.incarnation):
            raise PeerRefusedHello("WRONG_NODE", f"the answer came from node {there.node_id}, incarnation {there.incarnation}")
