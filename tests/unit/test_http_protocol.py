"""The client plane over real loopback sockets: framing, limits, deadlines, order, live responses, slow readers, drain.

The application is a fake that answers by the request's path, so that only the plane is under test. Nothing sleeps: a test waits for bytes, for the
end of a connection or for an event of the fake, under one overall limit."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import pytest
import uvloop

from anabranch_node.drivers.http_protocol import ClientOptions, ClientPlane
from anabranch_node.web.reply import error
from anabranch_node.web.request import BadRequest, Head, Kind, Request

LIMIT_S = 20.0
SHORT_S = 0.05
"""A deadline that a test wants to see pass."""
SWEEP_S = 0.01
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"


class Asked(NamedTuple):
    """What the fake parser makes of a head: as much of a web Request as the plane looks at."""

    method: bytes
    path: bytes
    headers: list[tuple[bytes, bytes]]
    takes_body: bool
    live: str
    kind: Kind


def parse(head: Head) -> Request:
    if head.target.startswith(b"/bad"):
        raise BadRequest(error(400, "bad_offset", "bad offset"))
    live = "sse" if head.target.startswith(b"/live") else "long-poll" if head.target.startswith(b"/poll") else ""
    kinds = {b"GET": Kind.READ, b"POST": Kind.APPEND, b"PUT": Kind.CREATE, b"DELETE": Kind.DELETE, b"HEAD": Kind.HEAD}
    kind = kinds.get(head.method, Kind.PREFLIGHT)
    return cast(Request, Asked(head.method, head.target, head.headers, kind in (Kind.APPEND, Kind.CREATE), live, kind))


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Rig:
    """A plane on a free port and its fake application: /hold... and live paths wait for the test, everything else is answered at once."""

    def __init__(self, options: ClientOptions) -> None:
        self.loop = asyncio.get_running_loop()
        self.plane = ClientPlane(options, self._submit, self._cancel, self.loop, parse=parse)
        self.asked: list[Asked] = []
        self.bodies: list[bytes] = []
        self.held: asyncio.Queue[int] = asyncio.Queue()
        self.cancelled: asyncio.Queue[int] = asyncio.Queue()
        self.port = 0

    def _submit(self, token: int, request: Request, body: bytes) -> None:
        asked = cast(Asked, request)
        self.asked.append(asked)
        self.bodies.append(body)
        if asked.path.startswith((b"/hold", b"/live", b"/poll")):
            self.held.put_nowait(token)
        elif asked.path.startswith(b"/big"):
            size = int(asked.path[5:])
            self.plane.respond(token, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        elif asked.path.startswith(b"/echo"):
            self.plane.respond(token, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        else:
            self.plane.respond(token, OK)

    def _cancel(self, token: int) -> None:
        self.cancelled.put_nowait(token)

    async def connect(self, receive_buffer_bytes: int = 0) -> "Client":
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        await self.loop.sock_connect(sock, ("127.0.0.1", self.port))
        return Client(self.loop, sock)


class Client:
    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.loop = loop
        self.sock = sock
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def _more(self) -> bool:
        data = await self.loop.sock_recv(self.sock, 1 << 16)
        self.buffer += data
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            assert await self._more(), self.buffer
        end = self.buffer.index(mark) + len(mark)
        data, self.buffer = self.buffer[:end], self.buffer[end:]
        return data

    async def answer(self, head_only: bool = False) -> Answer:
        head = (await self.until(b"\r\n\r\n"))[:-4].split(b"\r\n")
        headers = {name.lower(): value for name, value in (line.split(b": ", 1) for line in head[1:])}
        size = 0 if head_only else int(headers.get(b"content-length", b"0"))
        while len(self.buffer) < size:
            assert await self._more(), self.buffer
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return Answer(int(head[0].split(b" ")[1]), headers, body)

    async def ended(self) -> bytes:
        """What still came before the end of the connection; a reset is an end as well."""
        try:
            while await self._more():
                pass
        except ConnectionResetError:
            pass
        return self.buffer

    def close(self) -> None:
        self.sock.close()


@asynccontextmanager
async def rig(**options: Any) -> AsyncIterator[Rig]:
    made = Rig(ClientOptions(**{"sweep_interval_s": SWEEP_S, "linger_s": SHORT_S, **options}))
    server = await made.loop.create_server(made.plane, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.plane.drain(0.0)
        assert made.plane.inflight_bytes == 0
        assert made.plane.unsent_bytes == 0
        assert not made.plane.by_token
        assert not made.plane.paused
        assert made.plane.counters.connections_open == 0


async def turns_until(reached: Callable[[], bool]) -> None:
    """Lets the loop turn until the plane has seen something that it tells nobody."""
    while not reached():  # noqa: ASYNC110 - a turn of the loop, not a time
        await asyncio.sleep(0)


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        uvloop.run(asyncio.wait_for(test(), LIMIT_S))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def _post(framing: bytes, rest: bytes) -> bytes:
    return b"POST /echo HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n" + rest


CHUNKED = b"Transfer-Encoding: chunked"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
REFUSED: dict[str, tuple[int, bytes]] = {
    "content length and transfer encoding": (400, _post(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n" + SMUGGLED)),
    "transfer encoding and content length": (400, _post(CHUNKED + b"\r\nContent-Length: 5", b"0\r\n\r\n" + SMUGGLED)),
    "content length twice": (400, _post(b"Content-Length: 2\r\nContent-Length: 2", b"hi")),
    "two content lengths": (400, _post(b"Content-Length: 2\r\nContent-Length: 0", b"hi" + SMUGGLED)),
    "list of content lengths": (400, _post(b"Content-Length: 2, 2", b"hi")),
    "signed content length": (400, _post(b"Content-Length: +2", b"hi")),
    "negative content length": (400, _post(b"Content-Length: -2", b"hi")),
    "hexadecimal content length": (400, _post(b"Content-Length: 0x2", b"hi")),
    "content length with an underscore": (400, _post(b"Content-Length: 1_0", b"hi")),
    "empty content length": (400, _post(b"Content-Length:", b"")),
    "content length beyond 64 bits": (400, _post(b"Content-Length: 99999999999999999999999", b"")),
    "chunked twice": (400, _post(CHUNKED + b"\r\n" + CHUNKED, b"0\r\n\r\n")),
    "chunked with a trailing name": (400, _post(CHUNKED + b", identity", b"0\r\n\r\n")),
    "unknown coding": (501, _post(b"Transfer-Encoding: xchunked", b"0\r\n\r\n")),
    "coding before chunked": (501, _post(b"Transfer-Encoding: gzip, chunked", b"0\r\n\r\n")),
    "chunked in HTTP/1.0": (400, b"POST /echo HTTP/1.0\r\nHost: h\r\n" + CHUNKED + b"\r\n\r\n0\r\n\r\n"),
    "bare LF after the request line": (400, b"GET /a HTTP/1.1\nHost: h\r\n\r\n"),
    "bare LF after a header": (400, b"GET /a HTTP/1.1\r\nHost: h\nA: b\r\n\r\n"),
    "bare LF everywhere": (400, b"GET /a HTTP/1.1\nHost: h\n\n"),
    "bare CR in a value": (400, b"GET /a HTTP/1.1\r\nHost: h\rA: b\r\n\r\n"),
    "folded header": (400, b"GET /a HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n"),
    "NUL in a value": (400, b"GET /a HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n"),
    "NUL in the URL": (400, b"GET /a\0b HTTP/1.1\r\nHost: h\r\n\r\n"),
    "raw byte in the URL": (400, b"GET /a\xff HTTP/1.1\r\nHost: h\r\n\r\n"),
    "control character in a value": (400, b"GET /a HTTP/1.1\r\nHost: h\r\nA: \x01\r\n\r\n"),
    "space before the colon": (400, b"GET /a HTTP/1.1\r\nHost : h\r\n\r\n"),
    "header without a name": (400, b"GET /a HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n"),
    "no Host": (400, b"GET /a HTTP/1.1\r\nA: b\r\n\r\n"),
    "two Hosts": (400, b"GET /a HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n"),
    "two Hosts in HTTP/1.0": (400, b"GET /a HTTP/1.0\r\nHost: h\r\nHost: i\r\n\r\n"),
    "chunk size that is none": (400, _post(CHUNKED, b"zz\r\na\r\n0\r\n\r\n")),
    "chunk longer than it says": (400, _post(CHUNKED, b"1\r\nab\r\n0\r\n\r\n")),
    "chunk ended by LF": (400, _post(CHUNKED, b"1\r\na\n0\r\n\r\n")),
    "chunk size ended by LF": (400, _post(CHUNKED, b"1\na\r\n0\r\n\r\n")),
    "chunk size beyond 64 bits": (400, _post(CHUNKED, b"ffffffffffffffffff\r\na\r\n0\r\n\r\n")),
    "bad chunk in a last request": (400, _post(CHUNKED + b"\r\nConnection: close", b"zz\r\n")),
    "TLS hello": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)),
    "garbage": (400, b"\xde\xad\xbe\xef" * 16),
    "unknown method": (400, b"FOO /a HTTP/1.1\r\nHost: h\r\n\r\n"),
    "lower-case method": (400, b"get /a HTTP/1.1\r\nHost: h\r\n\r\n"),
    "HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2.0": (505, b"GET /a HTTP/2.0\r\nHost: h\r\n\r\n"),
    "HTTP/2.0 kept alive": (505, b"GET /a HTTP/2.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /a\r\n\r\n"),
    "HTTP/1.2": (400, b"GET /a HTTP/1.2\r\nHost: h\r\n\r\n"),
    "CONNECT": (400, b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n"),
    "unknown expectation": (417, _post(b"Content-Length: 2\r\nExpect: 200-ok", b"")),
    "long URL": (414, b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\nHost: h\r\n\r\n"),
    "large header": (431, b"GET /a HTTP/1.1\r\nHost: h\r\nA: " + b"a" * (64 << 10) + b"\r\n\r\n"),
    "header without an end": (431, b"GET /a HTTP/1.1\r\nHost: h\r\nA: " + b"a" * (64 << 10)),
    "header name without an end": (431, b"GET /a HTTP/1.1\r\nHost: h\r\n" + b"a" * (64 << 10)),
    "many headers": (431, b"GET /a HTTP/1.1\r\nHost: h\r\n" + b"A: b\r\n" * 100 + b"\r\n"),
    "5,000 headers": (431, b"GET /a HTTP/1.1\r\nHost: h\r\n" + b"A: b\r\n" * 5000 + b"\r\n"),
    "trailer without an end": (431, _post(CHUNKED, b"1\r\na\r\n0\r\nA: " + b"a" * (64 << 10))),
    "chunk extension without an end": (431, _post(CHUNKED, b"1;" + b"a" * (64 << 10))),
    "declared body over the limit": (413, _post(b"Content-Length: 100001", b"")),
    "declared body over the limit, expecting": (413, _post(b"Content-Length: 100001\r\nExpect: 100-continue", b"")),
    "declared body over the limit, being sent": (413, _post(b"Content-Length: 100001", bytes(100_001))),
    "chunked body over the limit": (413, _post(CHUNKED, b"8000\r\n" + bytes(0x8000) + b"\r\n" + b"186a0\r\n" + bytes(100_000) + b"\r\n0\r\n\r\n")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_clean_answer_and_never_submitted(case: str) -> None:
    status, data = REFUSED[case]

    async def scenario() -> None:
        async with rig(body_bytes_max=100_000) as made:
            client = await made.connect()
            await client.send(data)
            answer = await client.answer()
            assert answer.status == status
            assert answer.headers[b"connection"] == b"close"
            assert answer.body.startswith(b'{"error":')
            await client.send(SMUGGLED)  # the connection is no longer read as HTTP
            assert await client.ended() == b""
            client.close()
            assert made.asked == []
            assert sum(made.plane.counters.rejected.values()) == 1

    on_loop(scenario)()


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_the_same_way_when_it_comes_byte_by_byte(case: str) -> None:
    """Feeds the protocol itself: sockets would join the bytes again."""
    status, data = REFUSED[case]

    async def scenario() -> None:
        async with rig(body_bytes_max=100_000) as made:
            client = await made.connect()
            await client.send(GET)
            await client.answer()
            (connection,) = made.plane.connections
            made.asked.clear()
            for start in range(min(len(data), 3000)):
                connection.data_received(data[start : start + 1])
            connection.data_received(data[3000:])
            assert (await client.answer()).status == status
            await client.ended()
            client.close()
            assert made.asked == []

    on_loop(scenario)()


def test_keep_alive_and_bodies_of_both_framings() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            for data, body in (
                (_post(b"Content-Length: 2", b"hi"), b"hi"),
                (_post(CHUNKED, b"1\r\na\r\n3;x=y\r\nbcd\r\n0\r\nTrailer: t\r\n\r\n"), b"abcd"),
                (_post(b"Content-Length: 0", b""), b""),
                (_post(b"Content-Length: 300000", b"x" * 300_000), b"x" * 300_000),
                (_post(CHUNKED, b"493e0\r\n" + b"y" * 300_000 + b"\r\n0\r\n\r\n"), b"y" * 300_000),
                (b"\r\n" + _post(b"Content-Length: 2", b"hi"), b"hi"),
            ):
                await client.send(data)
                answer = await client.answer()
                assert (answer.status, answer.body) == (200, body)
                assert b"connection" not in answer.headers
                assert made.plane.inflight_bytes == 0
            client.close()
            counters = made.plane.counters
            assert (counters.requests, counters.connections_total, counters.rejected) == (6, 1, {})
            assert all(type(body) is bytes for body in made.bodies)
            assert made.asked[0].headers == [(b"host", b"h"), (b"content-length", b"2")]

    on_loop(scenario)()


def test_no_delay_is_set() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(GET)
            await client.answer()
            (connection,) = made.plane.connections
            assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            client.close()

    on_loop(scenario)()


@pytest.mark.parametrize("piece", [1, 7])
def test_requests_in_small_pieces(piece: int) -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(GET)
            await client.answer()
            (connection,) = made.plane.connections
            data = _post(b"Content-Length: 2", b"hi") + _post(CHUNKED, b"1\r\na\r\n3\r\nbcd\r\n0\r\n\r\n") + GET
            for start in range(0, len(data), piece):
                connection.data_received(data[start : start + piece])
            assert [(await client.answer()).body for _ in range(3)] == [b"hi", b"abcd", b"ok"]
            client.close()

    on_loop(scenario)()


def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(
                b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n" + _post(b"Content-Length: 1", b"1") + b"GET /bad HTTP/1.1\r\nHost: h\r\n\r\n" + GET + b"?"
            )
            token = await made.held.get()
            assert len(made.asked) == 1
            made.plane.respond(token, OK)
            assert [(await client.answer()).body for _ in range(2)] == [b"ok", b"1"]
            assert (await client.answer()).status == 400
            assert (await client.answer()).body == b"ok"
            assert (await client.answer()).status == 400  # what followed the last request was no HTTP
            assert await client.ended() == b""
            client.close()

    on_loop(scenario)()


def test_a_long_pipeline_pauses_reading_and_loses_nothing() -> None:
    count = 20_000

    async def scenario() -> None:
        async with rig(pipeline_requests_max=4) as made:
            client = await made.connect()
            first = b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
            sending = asyncio.ensure_future(client.send(first + b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in range(count))))
            token = await made.held.get()
            (connection,) = made.plane.connections
            await turns_until(lambda: bool(connection.reading_paused))
            assert connection.queue is not None
            assert len(connection.queue) < 1000
            made.plane.respond(token, OK)
            for _ in range(count + 1):
                assert (await client.answer()).body == b"ok"
            await sending
            assert [asked.path for asked in made.asked[1:]] == [b"/%d" % n for n in range(count)]
            client.close()

    on_loop(scenario)()


def test_a_refusal_behind_a_pending_request_waits_for_its_turn() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\nGET /a HTTP/1.1\r\n\r\n" + SMUGGLED)
            made.plane.respond(await made.held.get(), OK)
            first, second = await client.answer(), await client.answer()
            assert (first.status, first.headers.get(b"connection")) == (200, None)
            assert (second.status, second.headers.get(b"connection")) == (400, b"close")
            assert await client.ended() == b""
            assert len(made.asked) == 1
            client.close()

    on_loop(scenario)()


@pytest.mark.parametrize(
    "data",
    [
        b"GET /a HTTP/1.0\r\n\r\n",
        b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + SMUGGLED,
        b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, close\r\n\r\n",
    ],
)
def test_last_requests_are_answered_and_closed(data: bytes) -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(data)
            answer = await client.answer()
            assert (answer.status, answer.headers[b"connection"], answer.body) == (200, b"close", b"ok")
            assert await client.ended() == b""
            assert len(made.asked) == 1
            client.close()

    on_loop(scenario)()


def test_a_last_request_may_have_a_body_in_pieces() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(_post(b"Content-Length: 4\r\nConnection: close\r\nExpect: 100-continue", b""))
            await client.until(b"100 Continue\r\n\r\n")
            await client.send(b"ab")
            await client.send(b"cd")
            assert (await client.answer()).body == b"abcd"
            assert await client.ended() == b""
            client.close()

    on_loop(scenario)()


@pytest.mark.parametrize("framing", [b"Content-Length: 5", CHUNKED])
def test_an_upgrade_is_ignored_and_its_body_is_a_body(framing: bytes) -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            upgrade = framing + b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x"
            one = _post(upgrade, b"5\r\nhello\r\n0\r\n\r\n" if framing is CHUNKED else b"hello")
            get = b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            await client.send((one + get) * 100 + GET)
            for _ in range(100):
                assert (await client.answer()).body == b"hello"
                assert (await client.answer()).body == b"ok"
            assert (await client.answer()).body == b"ok"
            await client.send(one[:-3])
            await client.send(one[-3:])
            assert (await client.answer()).body == b"hello"
            client.close()

    on_loop(scenario)()


def test_continue_is_sent_after_the_head_was_accepted_and_in_turn() -> None:
    async def scenario() -> None:
        async with rig(inflight_bytes_max=10) as made:
            client = await made.connect()
            expecting = b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            await client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n" + expecting)
            token = await made.held.get()
            await turns_until(lambda: made.plane.inflight_bytes == 2)
            made.plane.respond(token, OK)
            assert await client.until(b"ok") == OK
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"hi")
            assert (await client.answer()).body == b"hi"
            await client.send(expecting.replace(b"/echo", b"/bad"))
            assert (await client.answer()).status == 400
            assert await client.ended() == b""
            client.close()
            client = await made.connect()
            await client.send(expecting.replace(b": 2", b": 11"))
            answer = await client.answer()
            assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
            client.close()

    on_loop(scenario)()


def test_a_bad_request_is_answered_after_its_body_and_the_connection_goes_on() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(b"POST /bad HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine-1\r\nContent-Length: 3\r\n\r\nabc" + GET)
            answer = await client.answer()
            assert (answer.status, answer.headers[b"x-request-id"]) == (400, b"mine-1")
            assert (await client.answer()).body == b"ok"
            await client.send(b"HEAD /bad HTTP/1.1\r\nHost: h\r\nX-Request-Id: <script>\r\n\r\n" + GET)
            answer = await client.answer(head_only=True)
            assert answer.status == 400
            assert answer.headers[b"x-request-id"].startswith(made.plane.request_id_prefix.encode() + b"-")
            assert (await client.answer()).body == b"ok"
            client.close()

    on_loop(scenario)()


def test_body_bytes_are_reserved_before_they_are_read() -> None:
    async def scenario() -> None:
        async with rig(inflight_bytes_max=200_000) as made:
            first, second, third = [await made.connect() for _ in range(3)]
            await first.send(b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 150000\r\n\r\n" + bytes(150_000))
            token = await made.held.get()
            await second.send(_post(b"Content-Length: 60000", b""))
            answer = await second.answer()
            assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
            assert b"overloaded" in answer.body
            await third.send(_post(CHUNKED, b"ea60\r\n" + bytes(60_000) + b"\r\n0\r\n\r\n"))
            assert (await third.answer()).status == 503
            assert made.plane.inflight_bytes == 150_000
            made.plane.respond(token, OK)
            await first.answer()
            assert made.plane.inflight_bytes == 0
            assert made.plane.counters.rejected == {"inflight_bytes": 2}
            for client in (first, second, third):
                client.close()

    on_loop(scenario)()


def test_connections_over_the_limit_are_told_so() -> None:
    async def scenario() -> None:
        async with rig(connections_max=1, connections_refused_max=1, linger_s=LIMIT_S) as made:
            first = await made.connect()
            await first.send(GET)
            await first.answer()
            second = await made.connect()
            answer = await second.answer()
            assert (answer.status, answer.headers[b"retry-after"], answer.headers[b"connection"]) == (503, b"1", b"close")
            third = await made.connect()  # over the number of polite refusals
            assert await third.ended() == b""
            second.close()
            first.close()
            await turns_until(lambda: made.plane.counters.connections_open == 0)
            fourth = await made.connect()
            await fourth.send(GET)
            assert (await fourth.answer()).status == 200
            for client in (third, fourth):
                client.close()

    on_loop(scenario)()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GE", "head_timeout"),
        (b"GET /a HT", "head_timeout"),
        (b"GET /a HTTP/1.1\r\nHost: h\r\nA", "head_timeout"),
        (_post(b"Content-Length: 10", b""), "body_timeout"),
        (_post(b"Content-Length: 10", b"abc"), "body_timeout"),
        (_post(CHUNKED, b"3\r\nabc\r\n"), "body_timeout"),
        (GET + b"GET /b HTTP/1.1\r\n", "head_timeout"),
    ],
)
def test_slow_messages_end(data: bytes, reason: str) -> None:
    async def scenario() -> None:
        async with rig(head_timeout_s=SHORT_S, body_grace_s=SHORT_S) as made:
            client = await made.connect()
            await client.send(data)
            if data.startswith(GET):
                assert (await client.answer()).status == 200
            answer = await client.answer()
            assert (answer.status, answer.headers[b"connection"]) == (408, b"close")
            assert await client.ended() == b""
            assert made.plane.counters.rejected == {reason: 1}
            client.close()

    on_loop(scenario)()


def test_a_head_that_comes_again_means_the_same_and_keeps_every_bound() -> None:
    """The second time it is compared, not parsed: nothing else may differ."""

    async def scenario() -> None:
        async with rig(inflight_bytes_max=10) as made:
            client = await made.connect()
            for body in (b"one", b"two", b"six"):
                await client.send(_post(b"Content-Length: 3", body))
                assert (await client.answer()).body == body
            assert made.asked[0] == made.asked[1] == made.asked[2]
            assert made.bodies == [b"one", b"two", b"six"]
            assert made.plane.counters.requests == 3
            # Another length, another target, a pipelined pair: parsed anew.
            await client.send(_post(b"Content-Length: 4", b"four") + _post(b"Content-Length: 3", b"ten"))
            assert [(await client.answer()).body, (await client.answer()).body] == [b"four", b"ten"]
            # Bytes in flight are still bounded: somebody else has reserved them.
            other = await made.connect()
            await client.send(_post(b"Content-Length: 3", b"one"))
            assert (await client.answer()).status == 200
            await other.send(b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\n87654321")
            token = await made.held.get()
            await client.send(_post(b"Content-Length: 3", b"two"))
            assert (await client.answer()).status == 503
            made.plane.respond(token, OK)
            assert (await other.answer()).status == 200
            client.close()
            other.close()

    on_loop(scenario)()


@pytest.mark.parametrize("start", [b"P", b"GET", b"POST /echo HTTP/1.1\r\nHost: x\r\n"])
def test_a_known_head_inside_another_message_is_not_taken_for_a_new_one(start: bytes) -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(GET)
            assert (await client.answer()).status == 200
            await client.send(start)
            await turns_until(lambda: made.plane.counters.bytes_in == len(GET) + len(start))
            await client.send(GET)
            assert (await client.answer()).status == 400
            assert await client.ended() == b""
            client.close()

    on_loop(scenario)()


def test_a_body_at_the_minimum_rate_is_bounded_by_the_absolute_deadline() -> None:
    async def scenario() -> None:
        async with rig(body_grace_s=0.02, body_rate_bytes_s_min=1, body_timeout_s=0.3) as made:
            client = await made.connect()
            started_s = made.loop.time()
            await client.send(_post(b"Content-Length: 100000", bytes(50_000)))
            assert (await client.answer()).status == 408
            assert made.loop.time() - started_s > 0.25
            client.close()

    on_loop(scenario)()


@pytest.mark.parametrize("data", [b"", b"\r\n", GET])
def test_idle_connections_are_closed_without_a_word(data: bytes) -> None:
    async def scenario() -> None:
        async with rig(idle_timeout_s=SHORT_S) as made:
            client = await made.connect()
            await client.send(data)
            if data == GET:
                await client.answer()
            assert await client.ended() == b""
            assert made.plane.counters.timeouts == 1
            client.close()

    on_loop(scenario)()


def test_a_pending_request_is_not_idle_even_if_its_head_was_slow() -> None:
    async def scenario() -> None:
        async with rig(idle_timeout_s=SHORT_S, head_timeout_s=2 * SHORT_S) as made:
            client, other = await made.connect(), await made.connect()
            await client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHo")
            token = await made.held.get()
            await client.send(b"st: h\r\n\r\n")
            for _ in range(4):  # the ends of idle connections measure the time
                assert await other.ended() == b""
                other.close()
                other = await made.connect()
            other.close()
            made.plane.respond(token, OK)
            assert [(await client.answer()).body for _ in range(2)] == [b"ok", b"ok"]
            client.close()

    on_loop(scenario)()


def test_a_client_that_is_gone_cancels_its_request_once() -> None:
    async def scenario() -> None:
        async with rig() as made:
            for path in (b"/poll", b"/live"):
                client = await made.connect()
                await client.send(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % path)
                token = await made.held.get()
                client.close()
                assert await made.cancelled.get() == token
                made.plane.respond(token, OK)  # nobody is there: ignored
                made.plane.begin(token, OK)
                made.plane.write(token, OK)
                made.plane.broadcast([token], OK)
                made.plane.end(token, OK)
            assert made.cancelled.empty()

    on_loop(scenario)()


def test_a_client_that_closed_its_half_still_gets_its_answers() -> None:
    async def scenario() -> None:
        async with rig(linger_s=LIMIT_S) as made:
            client = await made.connect()
            await client.send(b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx" + GET)
            client.sock.shutdown(socket.SHUT_WR)
            (connection,) = made.plane.connections
            await turns_until(lambda: bool(connection.eof))
            made.plane.respond(await made.held.get(), OK)
            first, second = await client.answer(), await client.answer()
            assert (first.headers.get(b"connection"), second.headers.get(b"connection")) == (None, b"close")
            assert await client.ended() == b""
            assert made.cancelled.empty()
            client.close()

    on_loop(scenario)()


HEAD_LIVE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_live_response_is_begun_written_broadcast_and_ended() -> None:
    async def scenario() -> None:
        async with rig() as made:
            clients = [await made.connect() for _ in range(3)]
            tokens = []
            for client in clients:
                await client.send(b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n")
                tokens.append(await made.held.get())
            for token in tokens:
                made.plane.begin(token, HEAD_LIVE)
            made.plane.write(tokens[0], b"1\r\na\r\n")
            made.plane.broadcast([*tokens, 999], b"1\r\nb\r\n")
            assert made.plane.buffered_bytes(tokens[0]) >= 0
            for token in tokens:
                made.plane.end(token, b"0\r\n\r\n")
            for number, client in enumerate(clients):
                assert await client.until(b"0\r\n\r\n") == HEAD_LIVE + (b"" if number else b"1\r\na\r\n") + b"1\r\nb\r\n0\r\n\r\n"
                await client.send(GET)
                assert (await client.answer()).body == b"ok"
                client.close()
            assert made.cancelled.empty()

    on_loop(scenario)()


def test_each_response_counts_once_by_its_status_and_is_timed_as_what_it_answers() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            post = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
            bad = b"GET /bad HTTP/1.1\r\nHost: h\r\n\r\n"
            await client.send(GET + bad + post + post + post.replace(b"POST", b"PUT"))
            assert [(await client.answer()).status for _ in range(5)] == [200, 400, 200, 200, 200]
            await client.send(b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n")
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE)
            made.plane.end(token, b"0\r\n\r\n")
            await client.until(b"0\r\n\r\n")
            await client.send(b"nonsense\r\n\r\n")
            assert (await client.answer()).status == 400
            assert made.plane.counters.responses == {b"200": 5, b"400": 2}
            assert (made.plane.append_us.count, made.plane.read_us.count) == (2, 1), "a create is no append, a live read waits by its own wish"
            client.close()

    on_loop(scenario)()


def test_a_live_response_needs_http_1_1() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(b"GET /live HTTP/1.0\r\n\r\n")
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE)
            assert (await client.answer()).status == 505
            assert await made.cancelled.get() == token
            assert await client.ended() == b""
            client.close()

    on_loop(scenario)()


def test_a_live_reader_over_its_bound_is_dropped_and_others_are_not() -> None:
    async def scenario() -> None:
        async with rig(write_buffer_bytes_max=1 << 20) as made:
            slow, fast = await made.connect(receive_buffer_bytes=4096), await made.connect()
            tokens = []
            for client in (slow, fast):
                await client.send(b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n")
                tokens.append(await made.held.get())
                made.plane.begin(tokens[-1], HEAD_LIVE)
            await fast.until(HEAD_LIVE)
            data = b"10000\r\n" + bytes(0x10000) + b"\r\n"
            buffered_max = 0
            while made.cancelled.empty():
                made.plane.broadcast(tokens, data)
                await fast.until(data)
                buffered_max = max(buffered_max, made.plane.buffered_bytes(tokens[0]))
            assert await made.cancelled.get() == tokens[0]
            assert (1 << 20) - 2 * len(data) < buffered_max <= (1 << 20) + len(HEAD_LIVE)
            assert made.plane.counters.slow_readers_dropped == 1
            made.plane.end(tokens[1], b"0\r\n\r\n")
            assert await fast.until(b"0\r\n\r\n")
            for client in (slow, fast):
                client.close()

    on_loop(scenario)()


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_a_reader_without_progress_is_dropped_and_a_slow_one_is_not(close: bytes) -> None:
    async def scenario() -> None:
        async with rig(write_stall_timeout_s=20 * SHORT_S, idle_timeout_s=LIMIT_S) as made:
            # With 4 KiB the kernel itself may pause for longer than the deadline: its timer for a full window is 200 ms and more.
            stuck, slow = await made.connect(receive_buffer_bytes=4096), await made.connect(receive_buffer_bytes=64 << 10)
            size = 8 << 20
            for client in (stuck, slow):
                await client.send(b"GET /big/%d HTTP/1.1\r\nHost: h\r\n%s\r\n" % (size, close))
            assert len((await slow.answer()).body) == size
            await turns_until(lambda: bool(made.plane.counters.slow_readers_dropped))
            assert len(await stuck.ended()) < size
            for client in (stuck, slow):
                client.close()

    on_loop(scenario)()


def test_responses_that_nobody_takes_are_bounded_for_the_whole_plane() -> None:
    """One client leaves a large response in our memory: another large one is refused until there is room, a small one never."""

    async def scenario() -> None:
        async with rig(unsent_bytes_max=16 << 20) as made:
            stuck, other = await made.connect(receive_buffer_bytes=4096), await made.connect()
            large = b"GET /big/%d HTTP/1.1\r\nHost: h\r\n\r\n" % (14 << 20)
            await stuck.send(large)
            await turns_until(lambda: made.plane.unsent_bytes > 8 << 20)  # the kernel takes some of it
            await other.send(large)
            answer = await other.answer()
            assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
            assert b'"code":"overloaded"' in answer.body
            assert made.plane.unsent_bytes <= 16 << 20
            await other.send(GET)
            assert (await other.answer()).status == 200
            await other.send(b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n")
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE + bytes(14 << 20))
            assert (await other.answer()).status == 503
            assert await made.cancelled.get() == token
            assert made.plane.counters.rejected["unsent_bytes"] == 2
            stuck.close()
            await turns_until(lambda: made.plane.unsent_bytes == 0)
            await other.send(large)
            assert len((await other.answer()).body) == 14 << 20
            other.close()

    on_loop(scenario)()


def test_live_readers_that_lag_are_dropped_when_all_of_them_hold_too_much() -> None:
    async def scenario() -> None:
        async with rig(unsent_bytes_max=1 << 20, write_buffer_bytes_max=64 << 20) as made:
            slow = await made.connect(receive_buffer_bytes=4096)
            await slow.send(b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n")
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE)
            data = b"10000\r\n" + bytes(0x10000) + b"\r\n"
            while made.cancelled.empty():
                made.plane.write(token, data)
                assert made.plane.unsent_bytes <= 1 << 20
                await asyncio.sleep(0)
            assert await made.cancelled.get() == token
            assert made.plane.counters.slow_readers_dropped == 1
            slow.close()

    on_loop(scenario)()


def test_pipelined_answers_wait_for_a_full_socket() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect(receive_buffer_bytes=4096)
            size = 4 << 20
            await client.send(b"GET /big/%d HTTP/1.1\r\nHost: h\r\n\r\n" % size * 8)
            (connection,) = made.plane.connections
            await turns_until(lambda: bool(connection.write_paused))
            assert len(made.asked) == 1
            for _ in range(8):
                assert len((await client.answer()).body) == size
                assert connection.transport.get_write_buffer_size() <= 2 * size
            client.close()

    on_loop(scenario)()


def test_drain_closes_idle_connections_at_once_and_busy_ones_after_their_answer() -> None:
    async def scenario() -> None:
        async with rig() as made:
            idle, busy, live, stuck = [await made.connect() for _ in range(4)]
            await idle.send(GET)
            await idle.answer()
            tokens = []
            for client, path in ((busy, b"/hold"), (live, b"/live"), (stuck, b"/hold")):
                await client.send(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % path)
                tokens.append(await made.held.get())
            made.plane.begin(tokens[1], HEAD_LIVE)
            draining = asyncio.ensure_future(made.plane.drain(10 * SHORT_S))
            assert await idle.ended() == b""
            made.plane.respond(tokens[0], OK)
            answer = await busy.answer()
            assert (answer.headers[b"connection"], answer.body) == (b"close", b"ok")
            assert await busy.ended() == b""
            made.plane.end(tokens[1], b"0\r\n\r\n")
            assert await live.ended() == HEAD_LIVE + b"0\r\n\r\n"
            assert not draining.done()
            await draining
            assert await made.cancelled.get() == tokens[2]
            for client in (idle, busy, live, stuck):
                client.close()

    on_loop(scenario)()


def test_an_error_in_the_node_is_an_answer_and_is_reported() -> None:
    async def scenario() -> None:
        async with rig() as made:
            reported: list[dict[str, Any]] = []
            made.loop.set_exception_handler(lambda _, context: reported.append(context))

            def broken(head: Head) -> Request:
                raise LookupError("a bug")

            made.plane.parse = broken
            client = await made.connect()
            await client.send(GET)
            assert (await client.answer()).status == 500
            assert [type(context["exception"]) for context in reported] == [LookupError]
            client.close()

    on_loop(scenario)()
