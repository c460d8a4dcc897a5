"""CPU microseconds per request of the client plane alone: a fake application answers every POST with 204, in the same turn.

`python tests/bench/http_plane.py` starts the server as a process of its own and loads it with `wrk` if that is installed, otherwise with a small
client in this process. The figure is the server's user + system time, which other users of the machine disturb less than its throughput. It also
prints the Python share (the same bytes fed to a connection without a socket) and what an idle live connection costs in memory."""

import asyncio
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, cast

import uvloop

from anabranch_node.drivers.http_protocol import ClientOptions, ClientPlane
from anabranch_node.web.request import Head, Kind, Request

CONNECTIONS = 64
SECONDS = 4
FED_REQUESTS = 100_000
LIVE_CONNECTIONS = 1_000
BODY = bytes(100)
NO_CONTENT = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 0000000000000000_0000000000000100\r\nX-Content-Type-Options: nosniff\r\n\r\n"
POST = (
    b"POST /v1/stream/bucket/orders HTTP/1.1\r\nHost: 127.0.0.1:4437\r\nUser-Agent: bench\r\nAccept: */*\r\n"
    b"Content-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\n" + BODY
)
LIVE = b"GET /v1/stream/bucket/orders?offset=-1&live=sse HTTP/1.1\r\nHost: 127.0.0.1:4437\r\nAccept: text/event-stream\r\n\r\n"
LIVE_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"


class Asked(NamedTuple):
    takes_body: bool
    live: str
    kind: Kind


_POST, _GET = cast(Request, Asked(True, "", Kind.APPEND)), cast(Request, Asked(False, "sse", Kind.READ))


def parse(head: Head) -> Request:
    return _POST if head.method == b"POST" else _GET


def make_plane(loop: asyncio.AbstractEventLoop) -> ClientPlane:
    def submit(token: int, request: Request, body: bytes) -> None:
        if request is _POST:
            plane.respond(token, NO_CONTENT)
        else:
            plane.begin(token, LIVE_HEAD)

    plane = ClientPlane(ClientOptions(), submit, lambda token: None, loop, parse=parse)
    return plane


def serve(control: Connection) -> None:
    """Answers each message on `control` with (CPU seconds, requests, RSS bytes) so far; None ends."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        plane = make_plane(loop)
        server = await loop.create_server(plane, "127.0.0.1", 0, backlog=2048)
        ended = loop.create_future()

        def asked() -> None:
            if control.recv() is None:
                ended.set_result(None)
                return
            usage = resource.getrusage(resource.RUSAGE_SELF)
            with open("/proc/self/statm", encoding="ascii") as statm:
                rss_bytes = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            control.send((usage.ru_utime + usage.ru_stime, plane.counters.requests, rss_bytes))

        loop.add_reader(control.fileno(), asked)
        control.send(server.sockets[0].getsockname()[1])
        await ended
        server.close()
        await plane.drain(1.0)

    uvloop.run(run())


class Loader(asyncio.Protocol):
    """Sends the next request when the answer to the last one is complete."""

    def __init__(self) -> None:
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(POST)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received >= len(NO_CONTENT):
            self.received -= len(NO_CONTENT)
            self.transport.write(POST)


async def load(port: int) -> None:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Loader, "127.0.0.1", port) for _ in range(CONNECTIONS)]
    await asyncio.sleep(SECONDS)
    for transport, _ in made:
        transport.abort()


def load_with_wrk(port: int) -> None:
    script = 'wrk.method = "POST"; wrk.body = string.rep("x", 100)'
    read_end, write_end = os.pipe()
    os.write(write_end, script.encode())
    os.close(write_end)
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", f"/dev/fd/{read_end}", f"http://127.0.0.1:{port}/v1/stream/bucket/orders"]
    subprocess.run(command, pass_fds=(read_end,), stdout=subprocess.DEVNULL, check=True)
    os.close(read_end)


class NoSocket:
    """As much of a transport as an answered request needs."""

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass


async def fed_us() -> float:
    """Python around and including httptools, without system calls: the best of five rounds."""
    plane = make_plane(asyncio.get_running_loop())
    connection = cast(Any, plane())
    connection.connection_made(NoSocket())
    best_s = float("inf")
    for _ in range(5):
        started_s = time.process_time()
        receive: Callable[[bytes], None] = connection.data_received
        for _ in range(FED_REQUESTS // 5):
            receive(POST)
        best_s = min(best_s, time.process_time() - started_s)
    connection.connection_lost(None)
    await plane.drain(0.0)
    return best_s / (FED_REQUESTS // 5) * 1e6


def main() -> None:
    print(f"fed without a socket   {uvloop.run(fed_us()):6.2f} us/request of Python and httptools")
    context = get_context("spawn")
    control, child = context.Pipe()
    process = context.Process(target=serve, args=(child,))
    process.start()
    port = control.recv()

    def state() -> tuple[float, int, int]:
        control.send("state")
        answer: tuple[float, int, int] = control.recv()
        return answer

    try:
        rss_bytes = state()[2]  # before the load: afterwards the allocator has free memory to hand out, and the figure is too small
        live = []
        for _ in range(LIVE_CONNECTIONS):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(LIVE)
            sock.recv(4096)
            live.append(sock)
        print(f"{LIVE_CONNECTIONS} live connections  {(state()[2] - rss_bytes) / LIVE_CONNECTIONS:6.0f} bytes of RSS each")
        for sock in live:
            sock.close()
        cpu_s, requests, _ = state()
        started_s = time.monotonic()
        if shutil.which("wrk"):
            load_with_wrk(port)
        else:
            uvloop.run(load(port))
        elapsed_s = time.monotonic() - started_s
        cpu_after_s, requests_after, _ = state()
        count = requests_after - requests
        print(f"over {CONNECTIONS} connections    {(cpu_after_s - cpu_s) / count * 1e6:6.2f} us CPU/request, {count / elapsed_s:,.0f} requests/s")
    finally:
        control.send(None)
        process.join(5)
        if process.is_alive():
            process.kill()


if __name__ == "__main__":
    main()
