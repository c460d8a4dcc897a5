"""The load of http_bench.py, one job per process: a JSON job on standard input, a JSON result on standard output.

Before us: http_bench.py, which starts a server of any make and names its addresses and processes. After us: that server, over loopback.
Requests are rendered once, each connection has one in flight, and an operation counts only if its answer was right: the status of every answer is
checked, bodies are compared, and after appends a sample of the streams is read back whole. CPU time of the server is taken by us, at the very edges
of the measured window. Not here: a general HTTP client (no redirects, no retries), and knowledge of one server: all speak the same protocol."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import statistics
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import uvloop

APPEND_BYTES: Final = 256
GET_BYTES: Final = 1024
UPLOAD_BYTES: Final = 1 << 20
RECEIVE_BYTES: Final = 1 << 20
ANSWER_TIMEOUT_S: Final = 30.0
"""A request without an answer for so long ends the job: the server hangs."""
VERIFIED_STREAMS_MAX: Final = 8
EVENT_BYTES: Final = 100
EVENT_GAP_S: Final = 0.05
EVENT_ROUNDS_MAX: Final = 40
READER_HEADS_AT_ONCE: Final = 100
MISMATCHES_SHOWN_MAX: Final = 3
_CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_NO_BODY: Final = (b"204", b"304")

Result = dict[str, Any]


class LoadFailed(RuntimeError):
    """The server did something that makes the figure meaningless."""


@dataclass
class Job:
    kind: str
    targets: list[str]
    """host:port of every node; connection i goes to the i-th modulo their number, whoever leads its stream."""
    pids: list[int]
    tag: str
    """Part of the streams' names, so that jobs on one server do not meet."""
    connections: int = 1
    seconds: float = 5.0
    warm_up_s: float = 1.0
    total_bytes: int = 100 << 20


# --- what the server's processes used ----------------------------------------------------------------------------------------------------


def cpu_s(pids: list[int]) -> float:
    """User and system time of all threads of these processes, in ticks of 10 ms."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _CLOCK_TICKS_PER_S


def rss_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            total += int(file.read().split()[1]) * _PAGE_BYTES
    return total


@dataclass
class Window:
    """The measured part of a job: what passed on the clock and on the CPUs between its two ends."""

    pids: list[int]
    began_s: float = 0.0
    ended_s: float = 0.0
    server_cpu_s: float = 0.0
    loader_cpu_s: float = 0.0

    def begin(self) -> None:
        self.server_cpu_s, self.loader_cpu_s, self.began_s = cpu_s(self.pids), time.process_time(), time.perf_counter()

    def end(self) -> None:
        self.ended_s = time.perf_counter()
        self.server_cpu_s, self.loader_cpu_s = cpu_s(self.pids) - self.server_cpu_s, time.process_time() - self.loader_cpu_s

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


# --- requests and answers ----------------------------------------------------------------------------------------------------------------


def render(method: str, path: str, host: str, headers: tuple[str, ...] = (), body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if method in ("PUT", "POST"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


BINARY: Final = ("Content-Type: application/octet-stream",)
TEXT: Final = ("Content-Type: text/plain",)


def stream_path(tag: str, number: int) -> str:
    return f"/v1/stream/bench/{tag}-{number}"


def header(head: bytes, name: bytes) -> bytes | None:
    """`name` in lower case. For the few heads that are read as such; the hot path does not come here."""
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def complete(data: bytes) -> tuple[bytes, bytes] | None:
    """(status, body) if `data` is one whole answer; None while some of it is missing. More than one is an error: one is in flight."""
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    status = data[9:12]
    start = head_end + 4
    if status in _NO_BODY:
        end = start
        body = b""
    else:
        head = data[:head_end].lower()
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            stop = head.find(b"\r\n", at + 2)
            end = start + int(head[at + 17 : stop if stop >= 0 else None])
            if len(data) < end:
                return None
            body = data[start:end]
        elif b"\r\ntransfer-encoding: chunked" in head:
            found = _chunked(data, start)
            if found is None:
                return None
            body, end = found
        else:
            body, end = b"", start  # HTTP/1.1 without either: this server sends no body here
    if len(data) != end:
        raise LoadFailed(f"bytes after an answer: {data[end : end + 80]!r}")
    return status, body


def _chunked(data: bytes, at: int) -> tuple[bytes, int] | None:
    parts: list[bytes] = []
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(data[at:line_end].split(b";")[0], 16)
        at = line_end + 2 + size + 2
        if len(data) < at:
            return None
        if not size:
            return b"".join(parts), at
        parts.append(data[line_end + 2 : line_end + 2 + size])


# --- many connections, one request in flight on each -------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What all connections of a job share. Latencies grow for as long as the window is open."""

    request_of: Callable[[int, str], bytes]
    statuses: tuple[bytes, ...]
    body: bytes | None
    """What every answer must hold; None: whatever."""
    sending: bool = True
    measuring: bool = False
    took_s: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Connection(asyncio.Protocol):
    def __init__(self, number: int, host: str, tally: Tally, create: bytes) -> None:
        self.number = number
        self.tally = tally
        self.create = create
        self.request = tally.request_of(number, host)
        self.right = 0
        """Right answers since the start, warm-up and last one included."""
        self.failed = False
        self.pending = b""
        self.sent_s = 0.0
        self.created: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.create)

    def data_received(self, data: bytes) -> None:
        if self.pending:
            data = self.pending + data
        answer = complete(data)
        if answer is None:
            self.pending = data
            return
        self.pending = b""
        if not self.created.done():
            if answer[0] == b"201":
                self.created.set_result(None)
            else:
                self.created.set_exception(LoadFailed(f"create answered {data[:300]!r}"))
            return
        now_s = time.perf_counter()
        tally = self.tally
        if answer[0] in tally.statuses and (tally.body is None or answer[1] == tally.body):
            self.right += 1
            if tally.measuring:
                tally.took_s.append(now_s - self.sent_s)
        else:
            self.failed = True
            tally.wrong[answer[0].decode("ascii", "replace")] += 1
            if len(tally.shown) < MISMATCHES_SHOWN_MAX:
                tally.shown.append(repr(data[:300]))
        if tally.sending:
            self.sent_s = now_s
            self.transport.write(self.request)
        else:
            self._finished()

    def go(self) -> None:
        self.tally.in_flight += 1
        self.sent_s = time.perf_counter()
        self.transport.write(self.request)

    def _finished(self) -> None:
        self.tally.in_flight -= 1
        if not self.tally.in_flight:
            self.tally.idle.set()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.created.done():
            self.created.set_exception(LoadFailed(f"connection lost at create: {error}"))
        elif self.tally.in_flight:
            self.failed = True
            self.tally.wrong["connection lost"] += 1
            self._finished()


async def _closed_loop(job: Job, tally: Tally, create_of: Callable[[int, str], bytes]) -> tuple[Result, list[Connection]]:
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []
    for number in range(job.connections):
        target = job.targets[number % len(job.targets)]
        host, _, port = target.rpartition(":")
        connection = Connection(number, target, tally, create_of(number, target))
        await loop.create_connection(lambda made=connection: made, host, int(port))  # type: ignore[misc]
        connections.append(connection)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await connection.created
    for connection in connections:
        connection.go()
    await asyncio.sleep(job.warm_up_s)
    window = Window(job.pids)
    tally.measuring = True
    window.begin()
    await asyncio.sleep(job.seconds)
    window.end()
    tally.measuring = False
    tally.sending = False
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        await tally.idle.wait()
    operations = len(tally.took_s)
    if not operations:
        raise LoadFailed(f"no right answer: {dict(tally.wrong)} {tally.shown}")
    result: Result = {
        "ops": operations,
        "ops_per_s": operations / window.seconds,
        **percentiles_ms(tally.took_s),
        "cpu_us_per_op": window.server_cpu_s / operations * 1e6,
        "loader_cpu_us_per_op": window.loader_cpu_s / operations * 1e6,
        "server_cpus": window.server_cpu_s / window.seconds,
        "wrong": dict(tally.wrong),
        "wrong_shown": tally.shown,
    }
    return result, connections


def percentiles_ms(took_s: list[float]) -> dict[str, float]:
    if len(took_s) < 2:
        return {"p50_ms": took_s[0] * 1e3, "p99_ms": took_s[0] * 1e3}
    ordered = sorted(took_s)
    return {"p50_ms": ordered[len(ordered) // 2] * 1e3, "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3}


async def append(job: Job) -> Result:
    """One stream per connection, 256 B per append; afterwards some of the streams must hold exactly what was acknowledged."""
    body = os.urandom(APPEND_BYTES)
    tally = Tally(lambda number, host: render("POST", stream_path(job.tag, number), host, BINARY, body), (b"204", b"200"), None)
    result, connections = await _closed_loop(job, tally, lambda number, host: render("PUT", stream_path(job.tag, number), host, BINARY))
    step = max(1, len(connections) // VERIFIED_STREAMS_MAX)
    for connection in connections[::step]:
        other = job.targets[(connection.number + 1) % len(job.targets)]  # another node than the one that was written through, where there is one
        with Reader(other) as reader:
            data = reader.whole(stream_path(job.tag, connection.number))
        found, rest = divmod(len(data), APPEND_BYTES)
        # An append that failed may or may not be there; without one the count is exact.
        if rest or found < connection.right or (found != connection.right and not connection.failed) or data != body * found:
            raise LoadFailed(f"stream {connection.number} holds {len(data)} bytes after {connection.right} acknowledged appends")
    for connection in connections:
        connection.transport.abort()
    return result


def append_alone(job: Job) -> Result:
    """One writer that waits for each answer, over a blocking socket: an event loop of its own would add a quarter to what is measured."""
    body = os.urandom(APPEND_BYTES)
    path = stream_path(job.tag, 0)
    took_s: list[float] = []
    wrong: Counter[str] = Counter()
    with Reader(job.targets[0]) as writer:
        if (answer := writer.ask(render("PUT", path, writer.host, BINARY)))[0] != b"201":
            raise LoadFailed(f"create answered {answer[1][:300]!r}")
        request = render("POST", path, writer.host, BINARY, body)
        right = 0
        warm_s = time.perf_counter() + job.warm_up_s
        while time.perf_counter() < warm_s:
            right += writer.ask(request)[0] in (b"204", b"200")
        window = Window(job.pids)
        window.begin()
        end_s = window.began_s + job.seconds
        now_s = window.began_s
        while now_s < end_s:
            status = writer.ask(request)[0]
            before_s, now_s = now_s, time.perf_counter()
            if status in (b"204", b"200"):
                right += 1
                took_s.append(now_s - before_s)
            else:
                wrong[status.decode("ascii", "replace")] += 1
        window.end()
    with Reader(job.targets[-1]) as reader:
        if reader.whole(path) != body * right:
            raise LoadFailed(f"the stream does not hold the {right} appends that were acknowledged")
    operations = len(took_s)
    return {
        "ops": operations,
        "ops_per_s": operations / window.seconds,
        **percentiles_ms(took_s),
        "cpu_us_per_op": window.server_cpu_s / operations * 1e6,
        "loader_cpu_us_per_op": window.loader_cpu_s / operations * 1e6,
        "server_cpus": window.server_cpu_s / window.seconds,
        "wrong": dict(wrong),
        "wrong_shown": [],
    }


async def get(job: Job) -> Result:
    body = os.urandom(GET_BYTES)
    tally = Tally(lambda number, host: render("GET", stream_path(job.tag, number) + "?offset=-1", host), (b"200",), body)
    result, connections = await _closed_loop(job, tally, lambda number, host: render("PUT", stream_path(job.tag, number), host, BINARY, body))
    for connection in connections:
        connection.transport.abort()
    return result


# --- one blocking reader -----------------------------------------------------------------------------------------------------------------


class Reader:
    """A plain socket: the least that a client can spend on 100 MiB."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.host = target
        self.socket = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: bytes) -> tuple[bytes, bytes, list[bytes]]:
        """(status, head, body in pieces)"""
        self.socket.sendall(request)
        while (head_end := self.buffer.find(b"\r\n\r\n")) < 0:
            self._more()
        head = bytes(self.buffer[:head_end])
        del self.buffer[: head_end + 4]
        status = head[9:12]
        if status in _NO_BODY:
            return status, head, []
        if (length := header(head, b"content-length")) is not None:
            return status, head, self._take(int(length))
        if (header(head, b"transfer-encoding") or b"").lower() != b"chunked":
            return status, head, []
        pieces: list[bytes] = []
        while True:
            while (line_end := self.buffer.find(b"\r\n")) < 0:
                self._more()
            size = int(self.buffer[:line_end].split(b";")[0], 16)
            del self.buffer[: line_end + 2]
            pieces += self._take(size)
            self._take(2)
            if not size:
                return status, head, pieces

    def _more(self) -> None:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise LoadFailed("the server closed the connection within an answer")
        self.buffer += data

    def _take(self, size: int) -> list[bytes]:
        pieces = []
        if self.buffer:
            pieces.append(bytes(self.buffer[:size]))
            del self.buffer[:size]
            size -= len(pieces[0])
        while size:
            data = self.socket.recv(min(size, RECEIVE_BYTES))
            if not data:
                raise LoadFailed("the server closed the connection within an answer")
            pieces.append(data)
            size -= len(data)
        return pieces

    def pieces(self, path: str) -> list[bytes]:
        """A stream from its start to its end, as the protocol has it: from Stream-Next-Offset on until Stream-Up-To-Date."""
        parts: list[bytes] = []
        offset = "-1"
        while True:
            status, head, body = self.ask(render("GET", f"{path}?offset={offset}", self.host))
            following = header(head, b"stream-next-offset")
            if status != b"200" or following is None:
                raise LoadFailed(f"catch-up answered {head[:300]!r}")
            parts += body
            if header(head, b"stream-up-to-date") is not None:
                return parts
            if following.decode() == offset:
                raise LoadFailed(f"catch-up stands still at {offset}")
            offset = following.decode()

    def whole(self, path: str) -> bytes:
        return b"".join(self.pieces(path))


def catch_up(job: Job) -> Result:
    """Reads of the same large stream again and again, each on a new connection to the next node. Checked after the clock has stopped."""
    path = stream_path(job.tag, 0)
    body = os.urandom(UPLOAD_BYTES)
    count = job.total_bytes // UPLOAD_BYTES
    expected = 0
    with Reader(job.targets[0]) as writer:
        if (answer := writer.ask(render("PUT", path, writer.host, BINARY)))[0] != b"201":
            raise LoadFailed(f"create answered {answer[1][:300]!r}")
        for number in range(count):
            piece = number.to_bytes(8, "big") + body[8:]
            expected = zlib.crc32(piece, expected)
            while (answer := writer.ask(render("POST", path, writer.host, BINARY, piece)))[0] in (b"429", b"503"):
                # Not what is measured here; but a retry could append twice, which the checksum would show.
                time.sleep(0.2)
            if answer[0] not in (b"204", b"200"):
                raise LoadFailed(f"append of 1 MiB answered {answer[1][:300]!r}")
    took_s: list[float] = []
    server_cpu_s = loader_cpu_s = 0.0
    deadline_s = time.perf_counter() + job.seconds
    while len(took_s) < 3 or time.perf_counter() < deadline_s:
        with Reader(job.targets[len(took_s) % len(job.targets)]) as reader:
            window = Window(job.pids)
            window.begin()
            pieces = reader.pieces(path)
            window.end()
        server_cpu_s += window.server_cpu_s
        loader_cpu_s += window.loader_cpu_s
        crc = size = 0
        for piece in pieces:
            crc, size = zlib.crc32(piece, crc), size + len(piece)
        if (crc, size) != (expected, count * UPLOAD_BYTES):
            raise LoadFailed(f"catch-up gave {size} bytes, and not the ones that were written")
        took_s.append(window.seconds)
    mib = count * UPLOAD_BYTES / (1 << 20)
    return {
        "ops": len(took_s),
        "ops_per_s": mib / statistics.median(took_s),
        **percentiles_ms(took_s),
        "cpu_us_per_op": server_cpu_s / len(took_s) / mib * 1e6,
        "loader_cpu_us_per_op": loader_cpu_s / len(took_s) / mib * 1e6,
        "server_cpus": server_cpu_s / sum(took_s),
        "wrong": {},
        "wrong_shown": [],
    }


# --- many live readers -------------------------------------------------------------------------------------------------------------------


@dataclass
class Round:
    """One event on its way to all readers."""

    marker: bytes = b"\0"
    number: int = -1
    missing: int = 0
    last_s: float = 0.0
    all_have_it: asyncio.Event = field(default_factory=asyncio.Event)


class LiveReader(asyncio.Protocol):
    def __init__(self, request: bytes, current: Round) -> None:
        self.request = request
        self.current = current
        self.seen = -1
        self.tail = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        current = self.current
        text = self.tail + data if self.tail else data
        if current.marker in text and self.seen != current.number:
            self.seen = current.number
            current.missing -= 1
            if not current.missing:
                current.last_s = time.perf_counter()
                current.all_have_it.set()
        self.tail = text[-len(current.marker) + 1 :]
        if not self.opened.done():
            if data[9:12] == b"200":
                self.opened.set_result(None)
            else:
                self.opened.set_exception(LoadFailed(f"live read answered {data[:300]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if not self.opened.done():
            self.opened.set_exception(LoadFailed(f"live connection lost: {error}"))


async def fan_out(job: Job) -> Result:
    """Time from the writer's request until the last reader has the event: `p50_ms` is the median of the rounds."""
    loop = asyncio.get_running_loop()
    path = stream_path(job.tag, 0)
    writer = Reader(job.targets[0])
    if (answer := writer.ask(render("PUT", path, writer.host, TEXT)))[0] != b"201":
        raise LoadFailed(f"create answered {answer[1][:300]!r}")
    current = Round()
    rss_before = rss_bytes(job.pids)
    readers: list[LiveReader] = []
    for number in range(job.connections):
        target = job.targets[number % len(job.targets)]
        host, _, port = target.rpartition(":")
        reader = LiveReader(render("GET", f"{path}?offset=now&live=sse", target, ("Accept: text/event-stream",)), current)
        await loop.create_connection(lambda made=reader: made, host, int(port))  # type: ignore[misc]
        readers.append(reader)
        if len(readers) % READER_HEADS_AT_ONCE == 0 or len(readers) == job.connections:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await asyncio.gather(*[each.opened for each in readers[-READER_HEADS_AT_ONCE:]])
    await asyncio.sleep(0.5)  # a reader that has its head may not wait at the stream's end yet
    rss_after = rss_bytes(job.pids)
    took_s: list[float] = []
    server_cpu_s = loader_cpu_s = 0.0
    deadline_s = time.perf_counter() + job.seconds
    while len(took_s) < 6 or (len(took_s) < EVENT_ROUNDS_MAX and time.perf_counter() < deadline_s):
        current.number += 1
        current.marker = b"event-%08d-" % current.number
        current.missing = len(readers)
        current.all_have_it.clear()
        request = render("POST", path, writer.host, TEXT, current.marker.ljust(EVENT_BYTES, b"x"))
        window = Window(job.pids)
        window.begin()
        writer.socket.sendall(request)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await current.all_have_it.wait()
        except TimeoutError:
            lost = sum(each.lost for each in readers)
            raise LoadFailed(f"{current.missing} of {len(readers)} readers did not get event {current.number}; {lost} were cut off") from None
        window.end()
        if (answer := writer.ask(b""))[0] not in (b"204", b"200"):
            raise LoadFailed(f"append answered {answer[1][:300]!r}")
        if current.number:  # the first one is for warmth
            took_s.append(current.last_s - window.began_s)
            server_cpu_s += window.server_cpu_s
            loader_cpu_s += window.loader_cpu_s
        await asyncio.sleep(EVENT_GAP_S)
    for reader in readers:
        reader.transport.abort()
    writer.socket.close()
    deliveries = len(took_s) * len(readers)
    return {
        "ops": deliveries,
        "ops_per_s": len(readers) / statistics.median(took_s),
        **percentiles_ms(took_s),
        "cpu_us_per_op": server_cpu_s / deliveries * 1e6,
        "loader_cpu_us_per_op": loader_cpu_s / deliveries * 1e6,
        "server_cpus": server_cpu_s / sum(took_s),
        "rss_growth_mb": (rss_after - rss_before) / 1e6,
        "wrong": {},
        "wrong_shown": [],
    }


# --- the process -------------------------------------------------------------------------------------------------------------------------


def run(job: Job) -> Result:
    if job.kind == "append" and job.connections == 1:
        return append_alone(job)
    if job.kind == "append":
        return uvloop.run(append(job))
    if job.kind == "get":
        return uvloop.run(get(job))
    if job.kind == "fan_out":
        return uvloop.run(fan_out(job))
    assert job.kind == "catch_up", job.kind
    return catch_up(job)


def main() -> None:
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    job = Job(**json.loads(sys.stdin.read()))
    try:
        result = run(job)
    except (LoadFailed, OSError, TimeoutError) as failed:
        result = {"failed": f"{type(failed).__name__}: {failed}"}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
