"""The peer plane stays real gRPC: grpcio as the client of our server and as the server of our client, and both of ours over TLS.

What our own two sides agree on is test_grpc_peer.py, frame by frame test_http2.py."""

import asyncio
import datetime
import ipaddress
import ssl
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from anabranch_node.drivers.grpc_peer import CallRefused, Hello, PeerCallFailed, PeerNet, PeerOptions, PeerTimeout, PeerUnavailable
from anabranch_proto import peer_pb2 as pb
from tests.unit.http2_wire import accepted, frames, hello

DEADLINE_S = 20
FAST = PeerOptions(backoff_min_s=0.01, backoff_max_s=0.05)
LARGE = [("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20)]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


class Node:
    def __init__(self, node_id: int = 2, options: PeerOptions = FAST) -> None:
        self.frames: list[bytes] = []
        self.lost: list[int] = []
        self.changed = asyncio.Event()
        self.net = PeerNet(options, Hello(1, "c", node_id, node_id * 10), self.on_frame, self.on_lost, self.on_call, self.on_up)

    def on_frame(self, node: int, data: bytes) -> None:
        self.frames.append(data)
        self.changed.set()

    def on_lost(self, node: int) -> None:
        self.lost.append(node)
        self.changed.set()

    def on_up(self, node: int, bulk: bool) -> None:
        self.changed.set()

    async def on_call(self, method: str, payload: bytes) -> bytes:
        if method == "refuse":
            raise CallRefused("nein, 100 % nicht: ä")
        if method == "fail":
            raise LookupError("what?")
        return payload

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


def test_a_grpcio_client_streams_frames_to_our_server() -> None:
    async def test() -> None:
        node = Node()
        await node.net.start("127.0.0.1", 0)
        node.net.set_peers({1: (10, "127.0.0.1:1")})
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.net.port}", options=LARGE) as channel:
            call = channel.stream_stream("/anabranch.Peer/Frames")()
            await call.write(hello())
            answer = pb.Answer.FromString(await call.read())
            assert (answer.receiver.node_id, answer.HasField("refusal")) == (2, False)
            sent = [bytes([number % 251]) * (number * 4099) for number in range(200)]
            for data in sent:
                await call.write(frames(data))
            await node.until(lambda: len(node.frames) == len(sent))
            assert node.frames == sent
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() == grpc.StatusCode.OK
            await node.until(lambda: node.lost == [1])
            # The same connection serves more: another stream, and calls beside it.
            call = channel.stream_stream("/anabranch.Peer/Frames")()
            await call.write(hello())
            await call.read()
            await call.write(frames(b"again"))
            await node.until(lambda: node.frames[-1] == b"again")
            call.cancel()
            await node.until(lambda: node.lost == [1, 1])
        await node.net.stop()

    run(test())


def test_a_grpcio_client_calls_our_server() -> None:
    async def test() -> None:
        node = Node()
        await node.net.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.net.port}", options=LARGE) as channel:
            invoke = channel.unary_unary("/anabranch.Peer/Call")

            def request(method: str, payload: bytes = b"") -> bytes:
                sender = pb.Identity(version=1, cluster_id="c", node_id=1, incarnation=10)
                return bytes(pb.CallRequest(sender=sender, method=method, payload=payload).SerializeToString())

            payloads = [bytes([number]) * (number * 300_000) for number in range(11)]
            answers = await asyncio.gather(*(invoke(request("echo", payload)) for payload in payloads))
            assert [pb.CallAnswer.FromString(answer).payload for answer in answers] == payloads
            for method, code, details in (
                ("refuse", grpc.StatusCode.FAILED_PRECONDITION, "nein, 100 % nicht: ä"),
                ("fail", grpc.StatusCode.INTERNAL, "LookupError: what?"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await invoke(request(method))
                assert (caught.value.code(), caught.value.details()) == (code, details)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/anabranch.Peer/Nothing")(b"")
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await invoke(request("echo", bytes(5 << 20)))
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await invoke(request("echo", bytes(10_000)), compression=grpc.Compression.Gzip)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        await node.net.stop()
        assert node.net._rpcs == node.net._calls_bytes == 0

    run(test())


class GrpcServer:
    """Node 3 on grpcio, in both roles."""

    async def start(self) -> "GrpcServer":
        self.packets: list[pb.Packet] = []
        self.more = asyncio.Event()
        self.server = grpc.aio.server(options=LARGE)
        handlers = {"Frames": grpc.stream_stream_rpc_method_handler(self.frames), "Call": grpc.unary_unary_rpc_method_handler(self.call)}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("anabranch.Peer", handlers),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        return self

    async def frames(self, _: Any, context: Any) -> None:
        assert pb.Packet.FromString(await context.read()).HasField("hello")
        await context.write(accepted(3))
        while (data := await context.read()) is not grpc.aio.EOF:
            self.packets.append(pb.Packet.FromString(data))
            self.more.set()

    async def call(self, data: bytes, context: Any) -> bytes:
        request = pb.CallRequest.FromString(data)
        if request.method == "fail":
            raise LookupError("what?")
        if request.method == "abort":
            await context.abort(grpc.StatusCode.INTERNAL, "100 % kaputt: ä")
        if request.method == "late":
            await asyncio.sleep(DEADLINE_S)
        if request.method == "foreign":
            return b"\xff\xff"
        return bytes(pb.CallAnswer(payload=request.payload).SerializeToString())


def test_our_client_streams_frames_to_a_grpcio_server() -> None:
    async def test() -> None:
        server, node = await GrpcServer().start(), Node()
        await node.net.start("127.0.0.1", 0)
        node.net.set_peers({3: (30, server.address)})
        await node.until(lambda: node.net.is_connected(3, True))
        small = [b"%d" % number * 50 for number in range(1000)]
        for data in small:
            assert node.net.send(3, True, data)
        large = bytes(range(256)) * (20 << 10)
        assert node.net.send(3, True, large)

        def parts() -> bytes:
            return b"".join(packet.part.data for packet in server.packets if packet.HasField("part"))

        while len(parts()) < len(large):
            server.more.clear()
            await server.more.wait()
        assert parts() == large
        assert [frame for packet in server.packets for frame in packet.frames] == small
        await server.server.stop(None)
        await node.until(lambda: node.lost == [3])
        await node.net.stop()

    run(test())


def test_our_client_calls_a_grpcio_server() -> None:
    async def test() -> None:
        server, node = await GrpcServer().start(), Node()
        payloads = [bytes([number]) * (number * 300_000) for number in range(11)]
        assert await asyncio.gather(*(node.net.call(server.address, "echo", payload, 10) for payload in payloads)) == payloads
        with pytest.raises(PeerUnavailable, match=r"LookupError.*UNKNOWN"):
            await node.net.call(server.address, "fail", b"", 10)
        with pytest.raises(PeerCallFailed, match="100 % kaputt: ä"):
            await node.net.call(server.address, "abort", b"", 10)
        with pytest.raises(PeerTimeout):
            await node.net.call(server.address, "late", b"", 0.1)
        with pytest.raises(PeerUnavailable, match="not of this protocol"):
            await node.net.call(server.address, "foreign", b"", 10)
        await server.server.stop(None)
        with pytest.raises(PeerUnavailable):
            await node.net.call(server.address, "echo", b"", 10)
        await node.net.stop()

    run(test())


def self_signed(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts for a server at 127.0.0.1 and for its clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anabranch test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - datetime.timedelta(1), now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return server, ssl.create_default_context(cafile=str(folder / "cert.pem"))


def test_the_plane_over_tls(tmp_path: Path) -> None:
    async def test() -> None:
        server, client = self_signed(tmp_path)
        options = PeerOptions(backoff_min_s=0.01, backoff_max_s=0.05, server_credentials=server, channel_credentials=client)
        a, b = Node(1, options), Node(2, options)
        await asyncio.gather(a.net.start("127.0.0.1", 0), b.net.start("127.0.0.1", 0))
        a.net.set_peers({2: (20, f"127.0.0.1:{b.net.port}")})
        b.net.set_peers({1: (10, f"127.0.0.1:{a.net.port}")})
        await a.until(lambda: a.net.is_connected(2, True) and a.net.is_connected(2))
        large = bytes(range(256)) * (12 << 10)
        for data in (b"small", large, b"after"):
            assert a.net.send(2, True, data)
        await b.until(lambda: len(b.frames) == 3)
        assert b.frames == [b"small", large, b"after"]
        assert await a.net.call(f"127.0.0.1:{b.net.port}", "echo", b"safe", 5) == b"safe"
        plain = Node(4)
        with pytest.raises(PeerUnavailable):
            await plain.net.call(f"127.0.0.1:{b.net.port}", "echo", b"", 5)
        # And with grpcio's own TLS as the client.
        credentials = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{b.net.port}", credentials) as channel:
            request = pb.CallRequest(sender=pb.Identity(version=1), method="echo", payload=b"x")
            answer = await channel.unary_unary("/anabranch.Peer/Call")(request.SerializeToString())
            assert pb.CallAnswer.FromString(answer).payload == b"x"
        await asyncio.gather(a.net.stop(), b.net.stop())

    run(test())


def test_a_node_runs_without_grpcio() -> None:
    """Its import costs 100 ms and starts threads; a node's environment has no such package."""
    program = "import sys, anabranch_node.main, anabranch_node.drivers.node; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
