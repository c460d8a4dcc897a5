"""Packets of the peer plane as bytes (proto/peer.proto): frames into packets, packets into frames, large ones in parts.

Before us: a lane of grpc_peer.py takes frames from its queue. After us: the other side's on_frame. A packet with one frame, which is what nearly
all are, is spelled and read by hand: 1 us instead of 4 with a protobuf object. Everything else goes through protobuf, which is also the judge
of what is malformed. Not here: hello and its answer, which come once per connection."""

import struct
from collections import deque
from collections.abc import Callable

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from anabranch_node.drivers import http2_frames as h2
from anabranch_proto import peer_pb2 as pb

FRAME_OVERHEAD_BYTES = 64
"""What a queued frame weighs besides its data: a queue of empty frames is bounded, too."""
PACKET_OVERHEAD_BYTES = 64

_FRAMES_TAG = 0x12  # Packet.frames = 2, length-delimited
# HTTP/2 head, gRPC prefix, tag, and the frame's length as a varint of one, two or three bytes.
_HEAD_1 = struct.Struct(">BHBBLBLBB")
_HEAD_2 = struct.Struct(">BHBBLBLBBB")
_HEAD_3 = struct.Struct(">BHBBLBLBBBB")
_WHOLE_BYTES_LIMIT = 1 << 21
_TOGETHER_BYTES_MAX = 32 << 10
"""Small frames that wait share a packet. Joining large ones would cost two copies more and save a system call of ~7 us."""


class Garbage(Exception):
    """The other side does not keep to the protocol. The stream ends; nothing else does."""


def head_of_frame(stream_id: int, size: int) -> bytes:
    """Everything that stands before a frame of `size` bytes which travels alone: one DATA frame, one message, one packet."""
    if size < 1 << 7:
        return _HEAD_1.pack(0, size + 7, 0, 0, stream_id, 0, size + 2, _FRAMES_TAG, size)
    if size < 1 << 14:
        return _HEAD_2.pack(0, size + 8, 0, 0, stream_id, 0, size + 3, _FRAMES_TAG, size & 0x7F | 0x80, size >> 7)
    assert size < _WHOLE_BYTES_LIMIT, size
    length = size + 9
    varint = size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14
    return _HEAD_3.pack(length >> 16, length & 0xFFFF, 0, 0, stream_id, 0, size + 4, _FRAMES_TAG, *varint)


HEAD_BYTES_MAX = 9  # of head_of_frame, as flow control counts: without the HTTP/2 head


def read_one_frame(data: bytes, start: int, end: int) -> bytes | None:
    """The frame of a packet that is nothing but one frame; None: it is something else, or malformed."""
    if end - start < 2 or data[start] != _FRAMES_TAG:
        return None
    size = data[start + 1]
    position = start + 2
    if size >= 0x80:
        if end - start < 130:
            return None
        more = data[position]
        position += 1
        size = size & 0x7F | (more & 0x7F) << 7
        if more >= 0x80:
            more = data[position]
            position += 1
            if more >= 0x80:
                return None
            size |= more << 14
    return data[position:end] if position + size == end else None


class FrameQueue:
    """The frames of one lane that have not left yet."""

    __slots__ = ("frames", "queued_bytes", "_offset", "_under_way", "whole_max", "_together_max")

    def __init__(self, packet_bytes_max: int) -> None:
        self.frames: deque[bytes] = deque()
        self.queued_bytes = 0
        self._offset = 0  # into the first frame, while it leaves in parts
        self._under_way = 0  # bytes of what was taken last, which count until the next is taken
        self.whole_max = min(packet_bytes_max - PACKET_OVERHEAD_BYTES, _WHOLE_BYTES_LIMIT - 1)
        self._together_max = min(self.whole_max, _TOGETHER_BYTES_MAX)

    def add(self, data: bytes) -> None:
        self.queued_bytes += len(data) + FRAME_OVERHEAD_BYTES
        self.frames.append(data)

    def clear(self) -> None:
        self.frames.clear()
        self.queued_bytes = self._offset = self._under_way = 0

    def take(self) -> bytes | None:
        """The next message with its prefix: a part of a large frame, or as many whole frames as fit. The one before it has left."""
        queue, size_max = self.frames, self.whole_max
        self.queued_bytes -= self._under_way
        self._under_way = 0
        if not queue:
            return None
        head = queue[0]
        if len(head) > size_max:
            return self._take_part(head, size_max)
        frames: list[bytes] = []
        size = 0
        while queue and (not frames or size + len(queue[0]) <= self._together_max):
            frame = queue.popleft()
            frames.append(frame)
            size += len(frame) + 5  # tag and length
            self._under_way += len(frame) + FRAME_OVERHEAD_BYTES
        if len(frames) == 1:
            frame = frames[0]
            return head_of_frame(0, len(frame))[h2.FRAME_HEAD_BYTES :] + frame
        return _message(bytes(pb.Packet(frames=frames).SerializeToString()))

    def _take_part(self, frame: bytes, size_max: int) -> bytes:
        offset = self._offset
        data = frame[offset : offset + size_max]
        self._offset = offset + len(data)
        if self._offset == len(frame):
            self._offset = 0
            self.frames.popleft()
            self._under_way += len(frame) + FRAME_OVERHEAD_BYTES
        return _message(bytes(pb.Packet(part=pb.Part(frame_bytes=len(frame), offset=offset, data=data)).SerializeToString()))


def _message(packet: bytes) -> bytes:
    return h2.PREFIX.pack(0, len(packet)) + packet


class FrameReader:
    """Packets into frames. Memory grows with what has arrived of a large frame, not with what was announced."""

    __slots__ = ("_size", "_data", "_size_max", "_node", "_on_frame")

    def __init__(self, frame_bytes_max: int, node: int, on_frame: Callable[[int, bytes], None]) -> None:
        self._size = 0
        self._data = bytearray()
        self._size_max = frame_bytes_max
        self._node = node
        self._on_frame = on_frame

    def read(self, data: bytes, start: int, end: int) -> None:
        if not self._size:
            frame = read_one_frame(data, start, end)
            if frame is not None:
                self._on_frame(self._node, frame)
                return
        try:
            packet = pb.Packet.FromString(data[start:end])
        except DecodeError:
            raise Garbage("a packet that cannot be decoded") from None
        if packet.frames:
            if self._size:
                raise Garbage("a frame between the parts of another")
            for frame in packet.frames:
                self._on_frame(self._node, frame)
        elif packet.HasField("part"):
            whole = self._add(packet.part)
            if whole is not None:
                self._on_frame(self._node, whole)
        else:
            raise Garbage("a packet without frames")

    def _add(self, part: pb.Part) -> bytes | None:
        if part.offset == 0 and not self._size:
            self._size = part.frame_bytes
        arrived = len(self._data)
        if not 0 < part.frame_bytes <= self._size_max or part.frame_bytes != self._size or part.offset != arrived:
            raise Garbage(f"a part at {part.offset} of {part.frame_bytes} after {arrived} of {self._size}")
        if not part.data or arrived + len(part.data) > self._size:
            raise Garbage(f"a part of {len(part.data)} bytes at {arrived} of {self._size}")
        self._data += part.data
        if len(self._data) < self._size:
            return None
        whole = bytes(self._data)
        self._data = bytearray()
        self._size = 0
        return whole
