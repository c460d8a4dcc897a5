"""One client connection: bytes -> httptools -> web/request.py -> `submit`, and answers back in the order of the requests.

Before us: uvloop's transport. After us: http_protocol.py's `submit`; answers come back through its tokens. A connection has a reading side (`phase`:
which part of a message comes next) and an answering side (`token`: the one request that is submitted; later ones wait in `queue`, which is bounded
by pausing the socket). Deadlines are plain numbers that the plane's sweep compares; time is the plane's coarse `now_s`.

A refused message is answered once, in its turn, and then nothing of the connection is read as HTTP again: where one message ends and the next begins
is no longer certain. We then shut down only our half and discard input for a moment, since closing over unread bytes would make the kernel send a
reset that can destroy the answer.

Deliberately absent: tasks, futures and timers per request (5-30 us each), HTTP semantics (web/), protocol upgrades (ignored, RFC 9110 7.8)."""

import asyncio
import contextlib
import re
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, cast

import httptools

from anabranch_node.drivers.telemetry import Histogram
from anabranch_node.web.reply import Reply, error, render
from anabranch_node.web.request import BadRequest, Head, Kind, Request

NEVER: Final = float("inf")
IDLE: Final = 0
"""Between messages."""
HEAD: Final = 1
BODY: Final = 2
DEAF: Final = 3
"""Something was refused: what still arrives is discarded, what was accepted before is answered."""
LINGER: Final = 4
"""Everything is answered and our half is shut down: waiting for the client to close its half."""
CLOSED: Final = 5

_SLICE_BYTES: Final = 16 << 10
"""The parser cannot be stopped inside a piece, so pieces are small: it bounds how many pipelined requests come at once."""
_HIGH_WATER_BYTES: Final = 16 << 10
"""A connection with more than this unsent counts as full. Below it nothing is counted in `unsent_bytes`: connections times this is its bound."""
_RESERVE_STEP_BYTES: Final = 64 << 10
"""A chunked body does not tell its length; it reserves in steps."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FRAMING: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"))
_STATUS: Final = slice(len("HTTP/1.1 "), len("HTTP/1.1 200"))
_APPEND: Final = Kind.APPEND  # a lookup in the class of an enumeration takes 30 ns
_READ: Final = Kind.READ
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class ClientOptions:
    """Bounds of the client plane. Sizes are per message unless they say otherwise."""

    connections_max: int = 10_000
    connections_refused_max: int = 64
    """Connections over the limit that are told so at once; further ones are reset."""
    head_bytes_max: int = 16 << 10
    headers_max: int = 100
    url_bytes_max: int = 8 << 10
    body_bytes_max: int = 10 << 20
    inflight_bytes_max: int = 256 << 20
    """Bodies of the whole plane that are being read or are not answered yet."""
    write_buffer_bytes_max: int = 1 << 20
    """What a slow reader may leave in our memory beyond the response it asked for."""
    unsent_bytes_max: int = 256 << 20
    """Responses of the whole plane that their clients have not taken. Beyond it a large one is refused, and a live reader that lags is dropped."""
    pipeline_requests_max: int = 16
    head_timeout_s: float = 10.0
    body_grace_s: float = 10.0
    """From then on a body must have come at `body_rate_bytes_s_min`."""
    body_rate_bytes_s_min: int = 1024
    body_timeout_s: float = 300.0
    idle_timeout_s: float = 75.0
    write_stall_timeout_s: float = 30.0
    linger_s: float = 2.0
    sweep_interval_s: float = 0.5
    """The resolution of every deadline above."""


@dataclass
class ClientCounters:
    """Plain numbers for telemetry, written by the loop's thread alone."""

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    connections_open: int = 0
    connections_total: int = 0
    slow_readers_dropped: int = 0
    timeouts: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    """By the code of the error, of which there are a fixed number."""
    responses: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    """By status, as its three digits: 0.15 us each. A live response counts when it begins."""


class Shared:
    """What all connections of a plane share."""

    def __init__(
        self,
        options: ClientOptions,
        submit: Callable[[int, Request, bytes], None],
        cancel: Callable[[int], None],
        loop: asyncio.AbstractEventLoop,
        parse: Callable[[Head], Request],
        request_id_prefix: str,
        taken: Callable[[int], None] = lambda token: None,
    ) -> None:
        self.options = options
        self.counters = ClientCounters()
        self.submit = submit
        self.cancel = cancel
        self.taken = taken
        self.loop = loop
        self.parse = parse
        self.request_id_prefix = request_id_prefix
        self.now_s = loop.time()
        self.token_last = 0
        self.inflight_bytes = 0
        self.unsent_bytes = 0
        self.draining = False
        self.drained = asyncio.Event()
        self.by_token: dict[int, ClientConnection] = {}
        self.connections: set[ClientConnection] = set()
        self.append_us = Histogram()
        self.read_us = Histogram()
        self.paused: set[ClientConnection] = set()
        """Connections whose transport holds more than its high-water mark: the sweep looks whether they make progress."""

    def request_id(self, token: int) -> str:
        """The name of a request whose client gave it none. Made only when an error is rendered, so that it costs nothing otherwise."""
        return f"{self.request_id_prefix}-{token}"


class _Stop(Exception):
    """Raised inside a parser's callback to end parsing: the refusal is already queued."""


_STOP: Final = _Stop()


def with_close(data: bytes) -> bytes:
    """The response, saying that the connection ends after it."""
    head_end = data.find(b"\r\n\r\n")
    if data.find(b"\r\nConnection: close\r\n", 0, head_end + 2) >= 0:
        return data
    line_end = data.find(b"\r\n") + 2
    return data[:line_end] + b"Connection: close\r\n" + data[line_end:]


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "plane",
        "transport",
        "parser",
        # The message that is being read.
        "phase",
        "url",
        "headers",
        "request",
        "refusal",  # a refused head whose body is still to be skipped
        "body",
        "body_bytes",
        "body_keep",
        "body_started_s",
        "reserved",
        "chunked",
        "http10",
        "owes_continue",
        "upgraded",
        "replaying",
        "head_fed",  # bytes since something of the message was completed
        "timed",  # `deadline` is that of the present phase of the present message
        "ends",  # this message is the last one
        "no_more",  # it has been read: what comes after it is not served
        "eof",
        # What has been read and waits.
        "queue",
        "unparsed",
        "reading_paused",
        # The request that is submitted.
        "token",
        "waits",  # it has asked to be kept waiting, so a client that hangs up is not interested any more
        "token_reserved",
        "asked_s",
        "live",
        "paced",  # a live response whose next piece is made when the last one is taken
        "pumping",
        # Writing.
        "write_paused",
        "bytes_out",
        "flushed",
        "unsent",  # our share of the plane's unsent bytes
        "stall_deadline",
        "buffer_bytes_max",
        "deadline",
        # The last request whose head may come again, byte for byte.
        "known_head",
        "known_body_bytes",
        "known_bytes",
        "known_request",
    )

    transport: asyncio.Transport

    def __init__(self, plane: Shared) -> None:
        self.plane = plane
        self.parser: httptools.HttpRequestParser | None = None
        self.phase = IDLE
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.request: Request | None = None
        self.refusal: Reply | None = None
        self.body: bytes | bytearray = b""
        self.body_bytes = 0
        self.body_keep = True
        self.body_started_s = 0.0
        self.reserved = 0
        self.chunked = False
        self.http10 = False
        self.owes_continue = False
        self.upgraded = False
        self.replaying = False
        self.head_fed = 0
        self.timed = False
        self.ends = False
        self.no_more = False
        self.eof = False
        # Entries: a request with its body and reservation, or a rendered refusal. Only pipelining clients need one.
        self.queue: deque[tuple[Request, bytes, int] | bytes] | None = None
        self.unparsed = b""
        self.reading_paused = False
        self.token = 0
        self.waits = False
        self.token_reserved = 0
        self.asked_s = 0.0  # 0: not to be timed, since it was asked to wait, or is neither append nor read
        self.live = False
        self.paced = False
        self.pumping = False
        self.write_paused = False
        self.bytes_out = 0
        self.flushed = 0
        self.unsent = 0
        self.stall_deadline = NEVER
        self.buffer_bytes_max = plane.options.write_buffer_bytes_max
        self.deadline = NEVER
        self.known_head = b""
        self.known_body_bytes = 0
        self.known_bytes = 0  # 0: none
        self.known_request: Request | None = None

    # The transport's side. TCP_NODELAY is what uvloop sets on every TCP transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plane = self.plane
        options = plane.options
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry
        counters = plane.counters
        counters.connections_total += 1
        open_now = len(plane.connections)
        plane.connections.add(self)
        counters.connections_open = open_now + 1
        if open_now >= options.connections_max:
            if open_now >= options.connections_max + options.connections_refused_max:
                self._count("connections")
                self.phase = CLOSED
                self.transport.abort()
                return
            self.refuse(error(503, "overloaded", "too many connections", retry_after_s=1), "connections")
            return
        self.transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        self.parser = httptools.HttpRequestParser(self)
        self.deadline = plane.now_s + options.idle_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        plane = self.plane
        self.phase = CLOSED
        self.parser = None  # it holds our bound methods: a cycle that would wait for the collector
        plane.connections.discard(self)
        plane.paused.discard(self)
        plane.counters.connections_open = len(plane.connections)
        plane.inflight_bytes -= self.reserved + self.token_reserved
        self.reserved = self.token_reserved = 0
        plane.unsent_bytes -= self.unsent
        self.unsent = 0
        self._drop_queue()
        self.unparsed = self.body = b""
        token, self.token = self.token, 0
        if plane.draining and not plane.connections:
            plane.drained.set()
        if token:
            plane.by_token.pop(token, None)
            plane.cancel(token)

    def data_received(self, data: bytes) -> None:
        self.plane.counters.bytes_in += len(data)
        if self.phase >= DEAF or self.no_more:
            return
        if self.unparsed:
            self.unparsed += data  # at most one more read after pausing
        elif len(data) > _SLICE_BYTES:
            self._feed(data)
        elif self.phase == IDLE and not (self.token or self.queue or self.write_paused):
            if len(data) != self.known_bytes or not data.startswith(self.known_head) or not self._repeat(data):
                self._feed_and_remember(data)
        else:
            self._feed_slice(data)

    def _repeat(self, data: bytes) -> bool:
        """The head of the last request came again, byte for byte, between two messages: it means what it meant then, so it is not parsed. Most
        clients send little else: 15 of 100 us of an append were spent on reading the same head."""
        plane, request = self.plane, self.known_request
        assert request is not None
        reserved = len(data) - len(self.known_head)
        if reserved:
            if plane.inflight_bytes + reserved > plane.options.inflight_bytes_max:
                return False  # the long way refuses it
            plane.inflight_bytes += reserved
        plane.counters.requests += 1
        self._dispatch(request, data[len(self.known_head) :] if reserved else b"", reserved)
        return True

    def _feed_and_remember(self, data: bytes) -> None:
        """If this piece is exactly one plain request, its head is kept for comparison."""
        plane = self.plane
        requests = plane.counters.requests
        self.known_request = None
        self._feed_slice(data)
        request = self.known_request
        if request is None or self.phase != IDLE or self.no_more or plane.counters.requests != requests + 1:
            self.known_bytes = 0
            return
        self.known_head = data[: len(data) - self.known_body_bytes]
        # Blank lines before the request line are allowed; a head that has them is not worth remembering.
        self.known_bytes = len(data) if data.find(b"\r\n\r\n") + 4 == len(self.known_head) else 0

    def eof_received(self) -> bool:
        """True keeps our half open: whoever sent whole requests may still be listening for the answers."""
        if self.phase >= LINGER or (self.live and not self.paced) or (self.token and self.waits):
            return False
        self.no_more = self.eof = True
        if self.token or self.queue:
            if self.phase != DEAF:
                self.phase = DEAF
                self.deadline = NEVER
            return True
        return False

    def pause_writing(self) -> None:
        plane = self.plane
        self.write_paused = True
        plane.paused.add(self)
        # A piece of a live response is shared by its readers: each counts for what makes it full, its own first response for all of it.
        self.unsent = _HIGH_WATER_BYTES if self.live and not self.paced else self.transport.get_write_buffer_size()
        plane.unsent_bytes += self.unsent
        self.flushed = -1
        self.stall_deadline = plane.now_s + plane.options.write_stall_timeout_s

    def resume_writing(self) -> None:
        self.write_paused = False
        self.plane.paused.discard(self)
        self.plane.unsent_bytes -= self.unsent
        self.unsent = 0
        if self.paced:
            self.plane.taken(self.token)
        elif self.queue and not self.token:
            self.pump()

    # Reading.

    def _feed(self, data: bytes) -> None:
        start = 0
        while start < len(data) and self.phase < DEAF and not self.no_more:
            if self.reading_paused:
                self.unparsed = data[start:]
                return
            self._feed_slice(data[start : start + _SLICE_BYTES])
            start += _SLICE_BYTES

    def _feed_slice(self, data: bytes) -> None:
        parser = self.parser
        assert parser is not None
        body_bytes = self.body_bytes
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrades(data[upgrade.args[0] :])
        except httptools.HttpParserError as problem:
            self._parser_stopped(problem)
            return
        phase = self.phase
        if IDLE < phase < DEAF:
            self._mid_message(phase, len(data), body_bytes)
        if self.queue is not None and len(self.queue) >= self.plane.options.pipeline_requests_max and not self.reading_paused and phase < DEAF:
            self.reading_paused = True
            self.deadline = NEVER  # what is late now is our own fault
            self.transport.pause_reading()

    def _mid_message(self, phase: int, fed: int, body_bytes_before: int) -> None:
        """A message is incomplete at the end of a piece: set its deadline, and bound what the parser collects where no callback tells us."""
        options = self.plane.options
        if not self.timed:
            self.timed = True
            self.head_fed = 0
            if phase == HEAD:
                self.deadline = self.plane.now_s + options.head_timeout_s
            else:
                self.body_started_s = self.plane.now_s
                self.deadline = self.plane.now_s + min(options.body_grace_s, options.body_timeout_s)
            return
        if phase == BODY and self.body_bytes != body_bytes_before:
            self.head_fed = 0
            return
        # A header without an end, in the head or in the trailers, or an endless chunk extension.
        self.head_fed += fed
        if self.head_fed > options.head_bytes_max:
            self.refuse(error(431, "headers_too_large", "the header section is too large"), "headers_too_large")

    def _ignore_upgrades(self, rest: bytes) -> None:
        """The parser skips the body of a request that asks for an upgrade, which would make the body the next request. A fresh parser is told
        only the framing of that request and goes on with its body. (Java's client asks for h2c on every request.)"""
        while True:
            self.upgraded = False
            self.replaying = True
            framing = b"Transfer-Encoding: chunked" if self.chunked else b"Content-Length: %d" % self._content_length()
            self.parser = parser = httptools.HttpRequestParser(self)
            try:
                parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
                if not self.no_more:
                    parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError as problem:
                self._parser_stopped(problem)
                return

    def _content_length(self) -> int:
        for name, value in self.headers:
            if name == b"content-length":
                return int(value)
        return 0

    def _parser_stopped(self, problem: httptools.HttpParserError) -> None:
        cause = problem.__context__
        if self.phase >= DEAF or (self.phase == IDLE and self.no_more and cause is None):
            return  # refused already, or bytes after a request that said `Connection: close`
        if isinstance(problem, httptools.HttpParserCallbackError) and cause is not None:
            self.plane.loop.call_exception_handler({"message": "a client request failed in the node", "exception": cause, "protocol": self})
            self.refuse(error(500, "internal", "internal error"), "internal")
        else:
            self.refuse(error(400, "bad_request", "malformed HTTP request"), "malformed")

    def on_message_begin(self) -> None:
        self.phase = HEAD  # at its first byte: between two messages means between two messages

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))  # trailers too, after the head was used: they are ignored

    def on_headers_complete(self) -> None:
        pieces, self.timed = self.timed, False
        if self.replaying:
            self.phase = BODY
            self.replaying = False
            return
        plane = self.plane
        options = plane.options
        parser = self.parser
        assert parser is not None
        headers = self.headers
        keep_alive = parser.should_keep_alive()
        ask_version = not keep_alive
        hosts = 0
        length = -1
        chunked = False
        expect = b""
        for name, value in headers:
            if name in _FRAMING:
                if name == b"host":
                    hosts += 1
                elif name == b"content-length":
                    if length >= 0 or not value.isdigit():
                        self._stop(400, "bad_request", "bad Content-Length", "malformed")
                    length = int(value)
                elif name == b"transfer-encoding":
                    if chunked:
                        self._stop(400, "bad_request", "duplicate Transfer-Encoding", "malformed")
                    if value.lower() != b"chunked":
                        self._stop(501, "unsupported_transfer_encoding", "the only transfer coding is chunked", "malformed")
                    chunked = True
                elif name == b"connection":
                    ask_version = True
                elif expect:
                    self._stop(400, "bad_request", "duplicate Expect", "malformed")
                else:
                    expect = value.lower()
        if len(self.url) > options.url_bytes_max:
            self._stop(414, "url_too_long", "the URL is too long", "headers_too_large")
        # A head that came in one piece is no longer than a piece, so most need not be measured.
        if len(headers) > options.headers_max or ((pieces or options.head_bytes_max < _SLICE_BYTES) and self._head_bytes() > options.head_bytes_max):
            self._stop(431, "headers_too_large", "the header section is too large", "headers_too_large")
        http10 = False
        if ask_version:  # without a Connection header only HTTP/1.1 is kept alive
            version = parser.get_http_version()
            http10 = version == "1.0"
            if not http10 and version != "1.1":
                self._stop(505, "http_version", "HTTP/1.1 is spoken here", "malformed")
            if http10:
                keep_alive = False
        if hosts != 1 and (hosts or not http10):
            self._stop(400, "bad_request", "exactly one Host header is needed", "malformed")
        if chunked and (http10 or length >= 0):
            self._stop(400, "bad_request", "bad message framing", "malformed")
        method = parser.get_method()
        if parser.should_upgrade():
            if method == b"CONNECT":
                self._stop(400, "bad_request", "this is not a proxy", "malformed")
            self.upgraded = True
        has_body = chunked or length > 0
        if length > options.body_bytes_max:
            self._stop(413, "body_too_large", f"a body may have {options.body_bytes_max} bytes", "body_too_large")
        if expect and expect != b"100-continue":
            self._stop(417, "expectation_failed", "the only expectation is 100-continue", "malformed")
        self.http10 = http10
        self.ends = not keep_alive
        try:
            request = plane.parse(Head(method, self.url, headers))
        except BadRequest as bad:
            if expect:  # whether the body will come is unknown, so the connection cannot go on
                self.refuse(bad.reply, "bad_request")
                raise _STOP from None
            self.refusal = bad.reply
            self.body_keep = False
        else:
            self.request = request
            if has_body:
                self.body_keep = request.takes_body
                if self.body_keep and length > 0:
                    self._reserve(length)
            if not (chunked or expect or ask_version or self.upgraded or request.live) and (self.body_keep or not has_body):
                self.known_request = request
                self.known_body_bytes = max(0, length)
        self.phase = BODY
        self.chunked = chunked
        if expect and has_body and not http10:
            self.owes_continue = True
            self._send_continue()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) + 16

    def _reserve(self, count: int) -> None:
        plane = self.plane
        if plane.inflight_bytes + count > plane.options.inflight_bytes_max:
            self.refuse(error(503, "overloaded", "too many request bytes in flight", retry_after_s=1), "inflight_bytes")
            raise _STOP
        plane.inflight_bytes += count
        self.reserved += count

    def _send_continue(self) -> None:
        """In its turn: before it go the answers to the requests before it."""
        if self.owes_continue and not self.token and not self.queue:
            self.owes_continue = False
            self._write(_CONTINUE)

    def on_body(self, chunk: bytes) -> None:
        self.body_bytes += len(chunk)
        if self.chunked:
            options = self.plane.options
            if self.body_bytes > options.body_bytes_max:
                self._stop(413, "body_too_large", f"a body may have {options.body_bytes_max} bytes", "body_too_large")
            if self.body_keep and self.body_bytes > self.reserved:
                self._reserve(max(_RESERVE_STEP_BYTES, len(chunk)))
        if not self.body_keep:
            return
        if not self.body:
            self.body = chunk
        elif type(self.body) is bytearray:
            self.body += chunk
        else:
            self.body = bytearray(self.body)  # not a list of pieces: a million chunks of one byte would cost 60 MB
            self.body += chunk

    def on_message_complete(self) -> None:
        if self.upgraded:
            return  # _ignore_upgrade() comes next and reads its body
        request, reserved, refusal = self.request, self.reserved, self.refusal
        body = self.body if isinstance(self.body, bytes) else bytes(self.body)
        self.phase = IDLE
        self.no_more = self.ends
        self.timed = False
        self.owes_continue = False
        self.request = None
        self.body = b""
        self.body_bytes = 0
        self.reserved = 0
        self.plane.counters.requests += 1
        if refusal is not None:
            self.refusal = None
            self.body_keep = True
            self._count("bad_request")
            self._enqueue(self._render(refusal, True))
        else:
            assert request is not None
            if self.token or self.queue or self.write_paused:
                self._enqueue((request, body, reserved))
            else:
                self.url = b""
                self.headers = []
                self._dispatch(request, body, reserved)
                return
        self.url = b""
        self.headers = []

    def _stop(self, status: int, code: str, message: str, reason: str) -> None:
        self.refuse(error(status, code, message), reason)
        raise _STOP

    # Answering.

    def refuse(self, reply: Reply, reason: str) -> None:
        """The last answer of this connection, in its turn. What was accepted before it is still answered."""
        self._count(reason)
        self.phase = DEAF
        self.no_more = True
        self.deadline = NEVER
        self.request = None
        self.refusal = None
        self.body = self.unparsed = b""
        self.plane.inflight_bytes -= self.reserved
        self.reserved = 0
        self._enqueue(self._render(reply, False))

    def _render(self, reply: Reply, keep_alive: bool) -> bytes:
        given = next((value for name, value in self.headers if name == b"x-request-id"), b"")
        if _REQUEST_ID.fullmatch(given):
            name = given.decode("ascii")
        else:
            self.plane.token_last += 1
            name = self.plane.request_id(self.plane.token_last)
        head_only = self.parser is not None and self.url != b"" and self.parser.get_method() == b"HEAD"
        return render(reply, keep_alive=keep_alive, head_only=head_only, request_id=name)

    def _enqueue(self, entry: tuple[Request, bytes, int] | bytes) -> None:
        if self.queue is None:
            self.queue = deque()
        self.queue.append(entry)
        if not self.token:
            self.pump()

    def _dispatch(self, request: Request, body: bytes, reserved: int) -> None:
        plane = self.plane
        plane.token_last = token = plane.token_last + 1
        self.token = token
        self.token_reserved = reserved
        self.waits = request.live != ""
        # Reads are noted as negative: the answer must know which histogram is theirs.
        kind = request.kind
        self.asked_s = perf_counter() if kind is _APPEND else -perf_counter() if kind is _READ and not self.waits else 0.0
        plane.by_token[token] = self
        if self.phase == IDLE:
            self.deadline = NEVER
        plane.submit(token, request, body)

    def pump(self) -> None:
        """Go on with what waits, until a request is submitted or the socket is full. Not recursive, however fast answers come."""
        if self.pumping:
            return
        self.pumping = True
        queue = self.queue
        try:
            while queue and not self.token and not self.write_paused and self.phase < LINGER:
                entry = queue.popleft()
                if not isinstance(entry, bytes):
                    self._dispatch(*entry)
                    continue
                last = self.plane.draining or (self.no_more and not queue)
                self.plane.counters.responses[entry[_STATUS]] += 1
                self._write(with_close(entry) if last else entry)
                if last:
                    self._close_after_answer()
        finally:
            self.pumping = False
        if not self.token:
            self._rest()
        if self.reading_paused and self.phase < DEAF and len(queue or ()) <= self.plane.options.pipeline_requests_max // 2:
            self._resume_reading()

    def _rest(self) -> None:
        """Nothing is submitted. Between messages the keep-alive clock starts; inside one, its own deadline runs already."""
        if self.phase == IDLE and not self.queue:
            self.deadline = self.plane.now_s + self.plane.options.idle_timeout_s
        elif self.owes_continue:
            self._send_continue()

    def _resume_reading(self) -> None:
        self.reading_paused = False
        self.timed = False
        data, self.unparsed = self.unparsed, b""
        if data:
            self._feed(data)
        elif IDLE < self.phase < DEAF:
            self._mid_message(self.phase, 0, self.body_bytes)
        if not self.reading_paused and self.phase < CLOSED:
            self.transport.resume_reading()

    def answer(self, data: bytes, close: bool) -> None:
        """The whole response to the submitted request, or the end of a live one."""
        plane = self.plane
        plane.inflight_bytes -= self.token_reserved
        self.token_reserved = 0
        self.token = 0
        if len(data) > _HIGH_WATER_BYTES and plane.unsent_bytes + len(data) > plane.options.unsent_bytes_max and not self.live:
            data = self._too_much_unsent()
        asked_s = self.asked_s
        if asked_s > 0:
            plane.append_us.observe(int((perf_counter() - asked_s) * 1e6))
        elif asked_s < 0:
            plane.read_us.observe(int((perf_counter() + asked_s) * 1e6))
        counters = plane.counters
        last = close or plane.draining or (self.no_more and not self.queue)
        if not self.live:
            counters.responses[data[_STATUS]] += 1
            if last:
                data = with_close(data)
        self.live = self.paced = False
        self.transport.write(data)
        size = len(data)
        self.bytes_out += size
        counters.bytes_out += size
        if last:
            self._close_after_answer()
        elif self.queue:
            self.pump()
        elif self.phase == IDLE:
            self.deadline = plane.now_s + plane.options.idle_timeout_s
        elif self.owes_continue:
            self._send_continue()

    def begin(self, data: bytes, paced: bool) -> None:
        plane = self.plane
        if self.http10 and self.no_more and not self.queue:
            # A live response is chunked, which HTTP/1.0 does not know.
            token, self.token = self.token, 0
            plane.by_token.pop(token, None)
            plane.inflight_bytes -= self.token_reserved
            self.token_reserved = 0
            self.refuse(error(505, "http_version", "live reads and bootstraps need HTTP/1.1"), "http_version")
            plane.loop.call_soon(plane.cancel, token)  # not from inside the caller's own call
            return
        if len(data) > _HIGH_WATER_BYTES and plane.unsent_bytes + len(data) > plane.options.unsent_bytes_max:
            plane.by_token.pop(self.token, None)
            plane.loop.call_soon(plane.cancel, self.token)
            self.answer(self._too_much_unsent(), False)
            return
        plane.inflight_bytes -= self.token_reserved
        self.token_reserved = 0
        self.buffer_bytes_max = plane.options.write_buffer_bytes_max + len(data)
        plane.counters.responses[data[_STATUS]] += 1
        self._write(with_close(data) if plane.draining or (self.no_more and not self.queue) else data)
        self.live = True
        self.paced = paced
        if paced and not self.write_paused:
            plane.taken(self.token)

    def write_piece(self, data: bytes) -> None:
        """The next one of a paced response. It comes when the last one is taken, so what waits here is never more than one."""
        plane = self.plane
        if plane.unsent_bytes + len(data) > plane.options.unsent_bytes_max:
            self.drop_slow()
            return
        self._write(data)
        if not self.write_paused:
            plane.taken(self.token)

    def _too_much_unsent(self) -> bytes:
        """Instead of a large response, while others have left too much of theirs in our memory."""
        self._count("unsent_bytes")
        return self._render(error(503, "overloaded", "too many response bytes wait for their clients", retry_after_s=1), True)

    def write_live(self, data: bytes, readers: int = 1) -> None:
        """More of a live response, or the end of a reader that does not keep up: it can come back with its offset. `readers` share the bytes."""
        transport = self.transport
        plane = self.plane
        if self.write_paused:
            if (
                transport.get_write_buffer_size() + len(data) > self.buffer_bytes_max
                or plane.unsent_bytes + len(data) // readers > plane.options.unsent_bytes_max
            ):
                self.drop_slow()
                return
            self.unsent += len(data) // readers
            plane.unsent_bytes += len(data) // readers
        transport.write(data)
        self.bytes_out += len(data)
        plane.counters.bytes_out += len(data)

    def drop_slow(self) -> None:
        self.plane.counters.slow_readers_dropped += 1
        self.abort()

    def abort(self) -> None:
        """At once, with whatever is unsent. connection_lost() comes in a later turn and tells `cancel`: callers may be iterating over tokens."""
        self.phase = CLOSED
        self.deadline = NEVER
        self.plane.by_token.pop(self.token, None)
        self.transport.abort()

    def _write(self, data: bytes) -> None:
        self.transport.write(data)
        self.bytes_out += len(data)
        self.plane.counters.bytes_out += len(data)

    # Closing.

    def _close_after_answer(self) -> None:
        if self.phase == IDLE and not self.queue and not self.reading_paused:
            self.close()
        else:
            self._drop_queue()
            self._shut_down()

    def close(self) -> None:
        """What is written goes out first, if the client takes it in time."""
        self.phase = CLOSED
        self.deadline = self.plane.now_s + self.plane.options.write_stall_timeout_s
        self.transport.close()

    def _shut_down(self) -> None:
        transport = self.transport
        self.no_more = True
        if self.eof or not transport.can_write_eof():  # TLS cannot close one half
            self.close()
            return
        self.phase = LINGER
        self.deadline = self.plane.now_s + self.plane.options.linger_s
        self.plane.inflight_bytes -= self.reserved
        self.reserved = 0
        self.body = self.unparsed = b""
        if self.reading_paused:
            self.reading_paused = False
            transport.resume_reading()
        with contextlib.suppress(OSError):  # the client is gone: connection_lost() follows
            transport.write_eof()

    def _drop_queue(self) -> None:
        if self.queue:
            self.plane.inflight_bytes -= sum(entry[2] for entry in self.queue if not isinstance(entry, bytes))
            self.queue.clear()

    @property
    def idle(self) -> bool:
        return self.phase == IDLE and not self.token and not self.queue

    def expire(self, now_s: float) -> None:
        """The deadline has passed."""
        options = self.plane.options
        transport = self.transport
        if self.phase == IDLE:
            if self.token or self.queue:
                self.deadline = NEVER  # it was the deadline of a message that is complete by now
                return
            self.plane.counters.timeouts += 1
            if transport.get_write_buffer_size():
                self.drop_slow()  # 75 s were enough to take a response
            else:
                self.close()
        elif self.phase == HEAD:
            self.plane.counters.timeouts += 1
            self.refuse(error(408, "request_timeout", "the header section took too long"), "head_timeout")
        elif self.phase == BODY:
            elapsed_s = now_s - self.body_started_s
            due_bytes = (elapsed_s - options.body_grace_s) * options.body_rate_bytes_s_min
            if elapsed_s < options.body_timeout_s and self.body_bytes > due_bytes and self.body_bytes > 0:
                self.deadline = now_s + options.sweep_interval_s
                return
            self.plane.counters.timeouts += 1
            self.refuse(error(408, "request_timeout", "the body took too long"), "body_timeout")
        elif transport.get_write_buffer_size() == 0:
            self.abort()
        elif self.phase == LINGER:
            self.close()
        else:
            self.deadline = NEVER
            self.drop_slow()

    def check_progress(self, now_s: float) -> None:
        """For a connection whose socket is full: has the client taken anything since the last look?"""
        buffered = self.transport.get_write_buffer_size()
        if buffered < self.unsent:
            self.plane.unsent_bytes -= self.unsent - buffered
            self.unsent = buffered
        flushed = self.bytes_out - buffered
        if flushed != self.flushed:
            self.flushed = flushed
            self.stall_deadline = now_s + self.plane.options.write_stall_timeout_s
            if self.phase == CLOSED:
                self.deadline = self.stall_deadline
        elif now_s > self.stall_deadline:
            self.stall_deadline = NEVER
            self.drop_slow()

    def _count(self, reason: str) -> None:
        rejected = self.plane.counters.rejected
        rejected[reason] = rejected.get(reason, 0) + 1
