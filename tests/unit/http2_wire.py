"""The other end of a peer connection, spoken frame by frame: what a test needs to be rude, slow or exact. Not a test."""

import asyncio
from collections.abc import Callable

from hpack import Decoder, Encoder

from anabranch_node.drivers import http2_frames as h2
from anabranch_proto import peer_pb2 as pb

Frame = tuple[int, int, int, bytes]
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/anabranch.Peer/Frames"), (":authority", "x"), ("content-type", "application/grpc")]


def message(payload: bytes) -> bytes:
    return h2.PREFIX.pack(0, len(payload)) + payload


def hello(lane: int = pb.BULK, node: int = 1, to: int = 2) -> bytes:
    sender = pb.Identity(version=1, cluster_id="c", node_id=node, incarnation=node * 10)
    packet = pb.Packet(hello=pb.Hello(sender=sender, expected_node_id=to, expected_incarnation=to * 10, lane=lane))
    return bytes(packet.SerializeToString())


def accepted(node: int = 3) -> bytes:
    answer = pb.Answer(receiver=pb.Identity(version=1, cluster_id="c", node_id=node, incarnation=node * 10))
    return bytes(answer.SerializeToString())


def frames(*data: bytes) -> bytes:
    return bytes(pb.Packet(frames=data).SerializeToString())


class Wire:
    """One connection as frames. `heard` are the frames that were read and asked for by nobody yet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = Encoder(), Decoder()
        self.heard: list[Frame] = []

    @classmethod
    async def dial(cls, port: int, greet: bool = True) -> "Wire":
        wire = cls(*await asyncio.open_connection("127.0.0.1", port))
        if greet:
            wire.write(h2.PREFACE + h2.settings({}))
        return wire

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def headers(self, stream: int, headers: list[tuple[str, str]] | None = None, flags: int = 0) -> bytes:
        return h2.frame(h2.HEADERS, h2.END_HEADERS | flags, stream, self.encoder.encode(REQUEST if headers is None else headers))

    def open(self, stream: int = 1, first: bytes | None = None) -> None:
        self.write(self.headers(stream) + h2.frame(h2.DATA, 0, stream, message(hello() if first is None else first)))

    def data(self, stream: int, payload: bytes, flags: int = 0) -> None:
        self.write(h2.frame(h2.DATA, flags, stream, payload))

    async def frame(self) -> Frame:
        high, low, kind, flags, stream = h2.HEAD.unpack(await self.reader.readexactly(9))
        return kind, flags, stream, await self.reader.readexactly(high << 16 | low)

    async def until(self, *kinds: int, where: Callable[[Frame], bool] = lambda frame: True) -> Frame:
        """The next frame of one of these kinds; others are kept in `heard`. EOFError (of asyncio) when the connection ends first."""
        while True:
            frame = await self.frame()
            if frame[0] in kinds and where(frame):
                return frame
            self.heard.append(frame)

    async def trailers(self) -> dict[str, str]:
        """Of the stream that ends next; every header block on the way is decoded."""
        while True:
            _, flags, _, block = await self.until(h2.HEADERS)
            headers = {str(key): str(value) for key, value in self.decoder.decode(block)}
            if flags & h2.END_STREAM:
                return headers

    async def goaway(self) -> tuple[int, str]:
        _, _, _, payload = await self.until(h2.GOAWAY)
        _, code, text = h2.read_goaway(payload, 0, len(payload))
        return code, text

    async def closed(self) -> None:
        """Until the other side is gone, however."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        self.writer.close()

    def close(self) -> None:
        self.writer.close()


class WireServer:
    """Accepts what a PeerNet dials. `script` is called for each connection, once its preface is read."""

    def __init__(self, script: "Callable[[Wire], asyncio.Future[None] | object]") -> None:
        self.script = script
        self.wires: list[Wire] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> "WireServer":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self.server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        self.wires.append(wire)
        try:
            assert await reader.readexactly(len(h2.PREFACE)) == h2.PREFACE
            await self.script(wire)  # type: ignore[misc]
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        self.server.close()
        for wire in self.wires:
            wire.close()


async def accept_hello(wire: Wire, settings: dict[int, int]) -> None:
    """The server's greeting, and yes to the hello of stream 1."""
    wire.write(h2.settings(settings))
    await wire.until(h2.HEADERS)
    await wire.until(h2.DATA)
    wire.write(wire.headers(1, [(":status", "200"), ("content-type", "application/grpc")]) + h2.frame(h2.DATA, 0, 1, message(accepted())))
