"""The clients of overload.py: an open loop of appends, producers, live readers, and connections that are slow on purpose.

Before us: overload.py, which says how many and for how long. After us: a real cluster over loopback. All of them write down what they were told and
hold it against the promise: a refusal is 429 or 503 with Retry-After and a code, and an acknowledgement is kept for the judge. Every number of
clients is fixed; a connection that ends is opened again only while the load runs. Not here: whether what was acknowledged is there (overload.py)."""

import asyncio
import json
import socket
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, cast

SIZES: Final = (4 << 10, 8 << 10, 16 << 10, 64 << 10)
MARK_BYTES: Final = 24
PIPELINED_MAX: Final = 32
BACK_OFF_S: Final = 0.1
SLOW_STEP_S: Final = 0.5
UNREAD_LIFE_S: Final = 5.0
TIMEOUT_S: Final = 20.0
VIOLATIONS_MAX: Final = 40
_PAD: Final = bytes(range(256)) * 256
OK: Final = (200, 201, 204)


def size_of(number: int) -> int:
    return SIZES[number * 7919 % 64 % len(SIZES)] if number % 8 else SIZES[0]


def message(number: int) -> bytes:
    """Its number, its size, and bytes that follow from both: a reader can tell a whole message from anything else."""
    size = size_of(number)
    return b"%015d:%07d:" % (number, size) + _PAD[: size - MARK_BYTES]


def numbers_in(stream: str, content: bytes) -> list[int]:
    """The messages of a stream, each compared byte by byte."""
    found, at = [], 0
    while at < len(content):
        number = int(content[at : at + 15])
        expected = message(number)
        assert content[at : at + len(expected)] == expected, f"{stream}: what is at {at} is no message"
        found.append(number)
        at += len(expected)
    return found


def address_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def render(method: str, path: str, headers: Iterable[str] = (), body: bytes | None = None) -> bytes:
    lines = [f"{method} /v1/stream/{path} HTTP/1.1", "Host: overload", *headers]
    if body is not None:
        kind = "text/plain" if path.startswith("watched") else "application/octet-stream"  # text is not encoded in live events
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


@dataclass
class Told:
    """What all clients were told."""

    numbers: int = 0
    sent: int = 0
    held_back: int = 0
    """Of the open loop: the connection had all that it may have under way, so the request stayed with its client."""
    unknown: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[str, list[int]] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    """stream -> appends acknowledged by its one producer, which sends the numbers 0, 1, 2 ..."""
    closed_by_node: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str, status: int, head: bytes, body: bytes) -> None:
        """Counts the answer, and holds a refusal against the promise."""
        if status in OK:
            self.answers[f"{what} {status}"] += 1
            return
        code = ""
        try:
            code = json.loads(body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            self.violation(f"{what}: {status} without an error code: {body[:100]!r}")
        self.answers[f"{what} {status} {code}"] += 1
        if status in (429, 503):
            if b"\r\nretry-after: " not in head.lower():
                self.violation(f"{what}: {status} {code} without Retry-After")
        elif status != 408:
            self.violation(f"{what}: {status} {body[:200]!r}")

    def violation(self, text: str) -> None:
        if len(self.wrong) < VIOLATIONS_MAX:
            self.wrong.append(text)


class Sender(asyncio.Protocol):
    """One connection of the open loop: requests leave when they are due, whatever became of those before them."""

    def __init__(self, told: Told, address: str) -> None:
        self.told = told
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.connecting = False
        self.under_way: deque[tuple[str, int]] = deque()
        self.pending = b""

    async def connect(self) -> None:
        self.connecting = True
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, *address_of(self.address))
        except OSError:
            self.told.closed_by_node["connect"] += 1
        finally:
            self.connecting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.pending = b""

    def send(self, stream: str, number: int) -> None:
        assert self.transport is not None
        self.under_way.append((stream, number))
        self.transport.write(render("POST", stream, (), message(number)))

    def data_received(self, data: bytes) -> None:
        data = self.pending + data
        while True:
            head_end = data.find(b"\r\n\r\n") + 4
            if head_end < 4:
                break
            head = data[:head_end]
            status = int(head[9:12])
            at = head.lower().find(b"\r\ncontent-length: ")
            size = int(head[at + 18 : head.find(b"\r\n", at + 2)]) if at >= 0 else 0
            if len(data) < head_end + size:
                break
            self._answered(status, head, data[head_end : head_end + size])
            data = data[head_end + size :]
        self.pending = data

    def _answered(self, status: int, head: bytes, body: bytes) -> None:
        told = self.told
        told.note("append", status, head, body)
        if not self.under_way:
            told.closed_by_node["at connect"] += 1  # too many connections: told so before it asked
            return
        stream, number = self.under_way.popleft()
        if status in OK:
            told.acknowledged[stream].append(number)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.told.unknown += len(self.under_way)
        self.told.closed_by_node["append"] += 1
        self.under_way.clear()


async def open_loop(told: Told, senders: list[Sender], streams: list[str], rate: float, until_s: float) -> None:
    """`rate` requests per second are due, evenly; what no connection may take is counted and not sent later."""
    tasks: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    due_before = 0
    turn = 0
    while (now := time.monotonic()) < until_s:
        due = int((now - began) * rate)
        for _ in range(due - due_before):
            turn += 1
            sender = senders[turn % len(senders)]
            told.numbers += 1
            if sender.transport is None or sender.transport.is_closing():
                told.held_back += 1
                if not sender.connecting:
                    sender.connecting = True
                    task = asyncio.ensure_future(sender.connect())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            elif len(sender.under_way) >= PIPELINED_MAX:
                told.held_back += 1
            else:
                told.sent += 1
                sender.send(streams[told.numbers % len(streams)], told.numbers)
        due_before = due
        await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)


class Plain:
    """A well-behaved client: one request at a time, a new connection when the old one ended."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, headers: Iterable[str] = (), body: bytes | None = None) -> tuple[int, bytes, bytes]:
        """(status, head, body). OSError, EOFError or TimeoutError: no answer, so nothing is known."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(*address_of(self.address), limit=4 << 20)
                reader, writer = self._streams
                writer.write(render(method, path, headers, body))
                head = await reader.readuntil(b"\r\n\r\n")
                lower = head.lower()
                at = lower.find(b"\r\ncontent-length: ")
                content = await reader.readexactly(int(lower[at + 18 : lower.find(b"\r\n", at + 2)])) if at >= 0 else b""
                if b"\r\nconnection: close" in lower:
                    self.close()
                return int(head[9:12]), head, content
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


NO_ANSWER: Final = (OSError, EOFError, TimeoutError)


async def producer(told: Told, addresses: list[str], stream: str, until_s: float) -> None:
    """Sends 0, 1, 2 ... under its name and repeats each until it is acknowledged, on another node each time it was not answered."""
    seq = tries = 0
    told.producers[stream] = 0
    plain = Plain(addresses[0])
    while time.monotonic() < until_s:
        headers = (f"Producer-Id: {stream}", "Producer-Epoch: 0", f"Producer-Seq: {seq}")
        try:
            status, head, body = await plain.ask("POST", stream, headers, message(seq))
        except NO_ANSWER:
            told.unknown += 1
            tries += 1
            plain = Plain(addresses[tries % len(addresses)])
            continue
        told.note("producer", status, head, body)
        if status in OK:
            seq += 1
            tries = 0
            told.producers[stream] = seq
        else:
            tries += 1
            await asyncio.sleep(BACK_OFF_S)
    plain.close()


class Watcher(asyncio.Protocol):
    """A live reader that reads: it keeps the end of what it was given."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.transport: asyncio.Transport | None = None
        self.request = render("GET", f"{stream}?offset=now&live=sse")
        self.bytes = 0
        self.resumed = 0
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        if self.transport is not None:
            self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        self.tail = data[-2000:] if len(data) >= 2000 else (self.tail + data)[-2000:]
        if self.tail.endswith(b"\r\n0\r\n\r\n") or data.startswith(b"HTTP/1.1 503 "):
            # Its node lost the leader for a moment, and says so by an end or a refusal: as every client must, it asks again. From the start, since
            # there is little to read and "now" may be after what it waits for.
            self.resumed += 1
            self.request = render("GET", f"{self.stream}?offset=-1&live=sse")
            asyncio.get_running_loop().call_later(BACK_OFF_S, self._ask)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None


async def watch(addresses: list[str], streams: list[str], count: int) -> list[Watcher]:
    loop = asyncio.get_running_loop()
    watchers = [Watcher(streams[i % len(streams)]) for i in range(count)]
    for first in range(0, count, 250):
        batch = watchers[first : first + 250]
        await asyncio.gather(
            *(loop.create_connection(lambda made=made: made, *address_of(addresses[i % len(addresses)])) for i, made in enumerate(batch))  # type: ignore[misc]
        )
    return watchers


KINDS: Final = (*("head", "body") * 9, "get", "live")
"""Of twenty: those that read nothing cost a node and the kernel megabytes each, so there are fewer of them."""
BIG_MESSAGES: Final = 12
"""Of the stream that nobody reads to its end, 1 MiB each: the kernel alone takes 4 MiB off a node's hands."""
_SLOW: Final = {
    "head": b"POST /v1/stream/slow HTTP/1.1\r\nHost: overload\r\nX-Slow: ",
    "body": render("POST", "slow", (), b"")[:-2].replace(b"Content-Length: 0", b"Content-Length: 4096") + b"\r\n",
}


class Slow(asyncio.Protocol):
    """A connection that gives a byte now and then, or takes none at all."""

    def __init__(self, told: Told, kind: str, address: str, unread: dict[str, bytes]) -> None:
        self.told = told
        self.kind = kind
        self.address = address
        self.first = _SLOW.get(kind) or unread[kind]
        self.transport: asyncio.Transport | None = None
        self.since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.since_s = time.monotonic()
        self.transport.write(self.first)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 "):
            self.told.answers[f"slow {self.kind} {data[9:12].decode('ascii', 'replace')}"] += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.told.closed_by_node[f"slow {self.kind}"] += 1

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(sock, address_of(self.address))
            await loop.create_connection(lambda: self, sock=sock)
            if self.kind not in _SLOW and self.transport is not None:
                self.transport.pause_reading()
        except OSError:
            sock.close()
            self.told.closed_by_node[f"slow {self.kind} connect"] += 1

    def step(self, now_s: float) -> bool:
        """True: it is to be connected again."""
        if self.transport is None:
            return True
        if self.kind in _SLOW:
            self.transport.write(b"x")
        elif now_s - self.since_s > UNREAD_LIFE_S:
            # Nobody reads here, so we would not even see that the node hung up.
            self.transport.abort()
        return False


async def be_slow(slow: list[Slow], until_s: float) -> None:
    while (now_s := time.monotonic()) < until_s:
        again = [each for each in slow if each.step(now_s)]
        for first in range(0, len(again), 100):
            await asyncio.gather(*(each.connect() for each in again[first : first + 100]))
        await asyncio.sleep(SLOW_STEP_S)
