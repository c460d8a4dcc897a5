"""`python -m tests.process.limits`, a part of `make overload`: each limit of a real node, set small by its option, reached, and left again.

Before us: cluster.py starts one node, with its data in memory (/dev/shm), so that a ballast file makes its disk nearly full and harms nobody.
Every refusal must carry the status and code of the table and, where a retry can help, Retry-After; afterwards the same node serves as before.
Not here: what the client plane does byte by byte, and the limits of the engine (tests/unit/test_http_protocol.py, test_service_bounds.py)."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from tests.process.cluster import Cluster
from tests.process.overload_clients import OK, Plain, address_of, render

MIB: Final = 1 << 20
BALLAST_MIB: Final = 320
SHARED_MEMORY: Final = Path("/dev/shm")
CHANGED_WITHIN_S: Final = 15.0
SETTINGS: Final = {
    "segment_bytes": "4MiB",
    "body_bytes_max": "256KiB",
    "inflight_bytes_max": "1MiB",
    "header_bytes_max": "4KiB",
    "header_count_max": "20",
    "header_timeout_ms": "700",
    "body_timeout_ms": "700",
    "idle_timeout_ms": "60000",
    "url_bytes_max": "512",
    "connections_max": "24",
    "waiters_max": "5",
    "hot_bytes_max": "2MiB",
}
_GET: Final = b"GET /v1/stream/s HTTP/1.1\r\nHost: h\r\n"
REFUSED: Final[dict[str, tuple[bytes, int, str]]] = {
    "URL": (b"GET /v1/stream/%b HTTP/1.1\r\nHost: h\r\n\r\n" % (b"a" * 600), 414, "url_too_long"),
    "header bytes": (_GET + b"A: " + b"a" * 5000 + b"\r\n\r\n", 431, "headers_too_large"),
    "header count": (_GET + b"A: b\r\n" * 30 + b"\r\n", 431, "headers_too_large"),
    "body": (render("POST", "s", (), b"")[:-2].replace(b"Length: 0", b"Length: 262145") + b"\r\n", 413, "body_too_large"),
    "time of the headers": (_GET + b"A: ", 408, "request_timeout"),
    "time of the body": (render("POST", "s", (), b"")[:-2].replace(b"Length: 0", b"Length: 9") + b"\r\nx", 408, "request_timeout"),
}


class Unexpected(RuntimeError):
    """The node did something else than the table says."""


async def answer_to(address: str, data: bytes) -> tuple[int, bytes, bytes]:
    reader, writer = await asyncio.open_connection(*address_of(address))
    try:
        writer.write(data)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        at = head.find(b"Content-Length: ")
        body = await reader.readexactly(int(head[at + 16 : head.find(b"\r\n", at)])) if at >= 0 else b""
        return int(head[9:12]), head, body
    finally:
        writer.transport.abort()


def expect(what: str, answer: tuple[int, bytes, bytes], status: int, code: str) -> None:
    found = json.loads(answer[2])["error"]["code"] if answer[2].startswith(b'{"error"') else ""
    if (answer[0], found) != (status, code):
        raise Unexpected(f"{what}: {answer[0]} {found}, not {status} {code}")
    if status == 503 and b"\r\nRetry-After: " not in answer[1]:
        raise Unexpected(f"{what}: no Retry-After")
    print(f"{what}: {status} {code}", flush=True)


async def until(plain: Plain, what: str, request: tuple[str, str, bytes | None], status: int) -> tuple[int, bytes, bytes]:
    """Asks again until the answer has that status: free bytes are looked at once a second, hot bytes at each tick."""
    deadline = time.monotonic() + CHANGED_WITHIN_S
    while True:
        method, path, body = request
        answer = await plain.ask(method, path, (), body)
        if answer[0] == status:
            return answer
        if time.monotonic() > deadline:
            raise Unexpected(f"{what}: {answer}")
        await asyncio.sleep(0.05)


async def messages(address: str) -> None:
    for what, (data, status, code) in REFUSED.items():
        expect(what, await answer_to(address, data), status, code)


async def live_readers(address: str) -> None:
    held = [await asyncio.open_connection(*address_of(address)) for _ in range(5)]
    request = render("GET", "s?offset=now&live=sse")
    for reader, writer in held:
        writer.write(request)
        await reader.readuntil(b"event: control")
    expect("live readers", await answer_to(address, request), 503, "overloaded")
    for _, writer in held:
        writer.transport.abort()
    deadline = time.monotonic() + CHANGED_WITHIN_S
    while (await answer_to(address, request))[0] != 200:
        if time.monotonic() > deadline:
            raise Unexpected("live readers: none is admitted after the others have left")
        await asyncio.sleep(0.05)


async def bodies_in_flight(address: str) -> None:
    """Bodies are reserved before they are read: five of 200 KiB fit 1 MiB, a sixth does not."""
    head = render("POST", "s", (), b"").replace(b"Length: 0", b"Length: 204800")
    held = [await asyncio.open_connection(*address_of(address)) for _ in range(5)]
    for _, writer in held:
        writer.write(head)
    plain = Plain(address)
    answer = await until(plain, "bodies in flight", ("POST", "s", bytes(204_800)), 503)
    expect("bodies in flight", answer, 503, "overloaded")
    for _, writer in held:
        writer.transport.abort()
    await until(plain, "bodies in flight", ("POST", "s", b"x"), 204)
    plain.close()


async def connections(address: str) -> None:
    plain = Plain(address)
    await plain.ask("GET", "s")
    held = [await asyncio.open_connection(*address_of(address)) for _ in range(24)]
    for reader, _ in held[-1:]:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        body = await reader.readexactly(int(head[head.find(b"Content-Length: ") + 16 :].split(b"\r\n")[0]))
        expect("connections", (int(head[9:12]), head, body), 503, "overloaded")
    if (await plain.ask("GET", "s"))[0] != 200:
        raise Unexpected("connections: one that was there before is not served")
    for _, writer in held:
        writer.transport.abort()
    plain.close()


async def hot_bytes(address: str) -> None:
    plain = Plain(address)
    await until(plain, "hot bytes", ("PUT", "hot", b""), 201)
    answer = await until(plain, "hot bytes", ("POST", "hot", bytes(200_000)), 503)
    expect("hot bytes", answer, 503, "hot_full")
    if (await plain.ask("GET", "hot?offset=-1"))[0] != 200:
        raise Unexpected("hot bytes: a read is refused")
    await until(plain, "hot bytes", ("DELETE", "hot", None), 204)
    await until(plain, "hot bytes, after the delete", ("POST", "s", bytes(1000)), 204)
    plain.close()


def fill(path: Path) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, BALLAST_MIB * MIB)


async def disk(address: str, ballast: Path) -> None:
    plain = Plain(address)
    await until(plain, "disk", ("PUT", "doomed", b"x"), 201)
    fill(ballast)
    expect("disk", await until(plain, "disk", ("POST", "s", b"x"), 503), 503, "disk_full")
    if (await plain.ask("GET", "s?offset=-1"))[0] != 200 or (await plain.ask("DELETE", "doomed"))[0] != 204:
        raise Unexpected("disk: a read or a delete is refused")
    os.unlink(ballast)
    await until(plain, "disk, with room again", ("POST", "s", b"x"), 204)
    plain.close()


async def run() -> int:
    data = Path(tempfile.mkdtemp(prefix="anabranch-limits-", dir=SHARED_MEMORY))
    try:
        space = os.statvfs(data)
        settings = SETTINGS | {"disk_free_min_bytes": str(space.f_bavail * space.f_frsize - BALLAST_MIB // 2 * MIB)}
        extra = ["--group-count", "2"]
        for key, value in settings.items():
            extra += ["--set", f"{key}={value}"]
        with Cluster(1, data=data / "cluster", extra=tuple(extra)) as cluster:
            address = cluster.nodes[0].client
            plain = Plain(address)
            await until(plain, "create", ("PUT", "s", b""), 201)
            await messages(address)
            await live_readers(address)
            await bodies_in_flight(address)
            await connections(address)
            await hot_bytes(address)
            await disk(address, data / "ballast")
            status, _, _ = await plain.ask("POST", "s", (), b"the end")
            assert status in OK, status
            plain.close()
    finally:
        shutil.rmtree(data, ignore_errors=True)
    print("limits: passed")
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(run()))
