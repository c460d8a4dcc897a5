"""The attacks that Python's HTTP servers were measured with, against the whole client side: sockets, the plane, the parser, the service, a group.

One table, one row per probe. test_http_protocol.py has the plane's framing in more detail, test_web_request.py the parser's grammar; here it is shown
that nothing gets lost between them: the answer has the right status and a JSON code, repeats nothing of what was sent, and changes no stream."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from anabranch_node.core import effects as fx
from anabranch_node.drivers.http_protocol import ClientOptions, ClientPlane
from anabranch_node.service.effects import Begin, Broadcast, End, RequestArrived, RequestGone, Respond
from anabranch_node.web.request import Request
from tests.unit.test_http_protocol import Answer, Client, Rig, on_loop
from tests.unit.test_service_bounds import Rig as ServiceRig


class Whole(Rig):
    """The plane of test_http_protocol.py with the service of test_service_bounds.py behind it. There is one stream, `s`."""

    def __init__(self) -> None:
        super().__init__(ClientOptions(sweep_interval_s=0.01, linger_s=0.05, body_bytes_max=100_000))
        self.plane = ClientPlane(self.plane.options, self._arrived, self._gone, self.loop)
        self.service = ServiceRig()

    def _arrived(self, token: int, request: Request, body: bytes) -> None:
        self.loop.call_soon(self._turn, RequestArrived(token, request, body))

    def _gone(self, token: int) -> None:
        self.loop.call_soon(self._turn, RequestGone(token))

    def _turn(self, *events: Any) -> None:
        rig, plane = self.service, self.plane
        for effect in rig.service.turn(rig.now_ms, events):
            if isinstance(effect, Respond):
                plane.respond(effect.token, effect.data)
            elif isinstance(effect, Begin):
                plane.begin(effect.token, effect.data)
            elif isinstance(effect, Broadcast):
                plane.broadcast(effect.tokens, effect.data)
            elif isinstance(effect, End):
                for token in effect.tokens:
                    plane.end(token, effect.data)
            elif isinstance(effect, fx.TurnAgain):
                self.loop.call_soon(self._turn)
        if rig.wal.ticket > rig.wal.synced_ticket:
            self._turn(fx.Synced(rig.wal.ticket))


@asynccontextmanager
async def whole() -> AsyncIterator[tuple[Whole, Client]]:
    made = Whole()
    server = await made.loop.create_server(made.plane, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    client = await made.connect()
    try:
        yield made, client
    finally:
        client.close()
        server.close()
        await made.plane.drain(0.0)


def request(method: str, target: str, *headers: str, body: str | bytes = b"") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [f"{method} {target} HTTP/1.1", "Host: h", *headers]
    if method in ("POST", "PUT") and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


S = "/v1/stream/s"
TEXT = "Content-Type: text/plain"
BIG_OFFSET = 1 << 53
ATTACKS: dict[str, tuple[int, bytes]] = {
    # What the servers were probed with.
    "CL and TE": (
        400,
        request("POST", S, TEXT, "Content-Length: 4", "Transfer-Encoding: chunked", body="0\r\n\r\nGET /evil HTTP/1.1\r\nHost: h\r\n\r\n"),
    ),
    "bare LF": (400, b"GET /v1/stream/s HTTP/1.1\nHost: h\n\n"),
    "folded header": (400, request("GET", S, "A: b\r\n c")),
    "no Host": (400, b"GET /v1/stream/s HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, request("GET", S, "Host: i")),
    "bad chunk": (400, request("POST", S, TEXT, "Transfer-Encoding: chunked", body="zz\r\n")),
    "CRLF for a response header": (400, request("PUT", "/v1/stream/new", "Content-Type: text/plain\r\n Evil: 1")),
    "64 KB header": (431, request("GET", S, "A: " + "a" * (64 << 10))),
    "1 MB header": (431, request("GET", S, "A: " + "a" * (1 << 20))),
    "5,000 headers": (431, request("GET", S, *["A: b"] * 5000)),
    "decoded slash and dots": (400, request("GET", "/v1/stream/a%2Fb/%2e%2e/c")),
    "NUL in a path": (400, request("GET", S + "%00")),
    "CRLF in a path": (400, request("GET", S + "%0d%0aEvil:%201")),
    "overlong dot": (400, request("GET", "/v1/stream/%c0%ae%c0%ae/s")),
    # The checklist: paths.
    "backslash in a path": (400, request("GET", "/v1/stream/a%5Cb")),
    "empty segment": (400, request("GET", "/v1/stream/a//b")),
    "dot segment": (400, request("GET", "/v1/stream/./s")),
    "not UTF-8": (400, request("GET", "/v1/stream/%ff")),
    "long name": (400, request("PUT", "/v1/stream/" + "a" * 2000, TEXT)),
    "reserved name": (400, request("PUT", "/v1/stream/_default/x", TEXT)),
    # Headers in.
    "signed integer": (400, request("POST", S, TEXT, "Producer-Id: p", "Producer-Epoch: +5", "Producer-Seq: 0", body="x")),
    "integer with an underscore": (400, request("POST", S, TEXT, "Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: 1_0", body="x")),
    "integer with a leading zero": (400, request("POST", S, TEXT, "Producer-Id: p", "Producer-Epoch: 00", "Producer-Seq: 0", body="x")),
    "integer beyond 2^53": (400, request("POST", S, TEXT, "Producer-Id: p", "Producer-Epoch: 0", f"Producer-Seq: {BIG_OFFSET}", body="x")),
    "integer of other digits": (400, request("POST", S, TEXT, "Producer-Id: p", "Producer-Epoch: \u0665", "Producer-Seq: 0", body="x")),
    "signed offset": (400, request("GET", S + "?offset=+5")),
    "negative offset": (400, request("GET", S + "?offset=-5")),
    "offset twice": (400, request("GET", S + "?offset=-1&offset=0")),
    "two Producer-Ids": (400, request("POST", S, TEXT, "Producer-Id: p", "Producer-Id: q", "Producer-Epoch: 0", "Producer-Seq: 0", body="x")),
    "two Content-Lengths": (400, request("POST", S, TEXT, "Content-Length: 1", "Content-Length: 1", body="x")),
    "media type that is none": (400, request("PUT", "/v1/stream/new", 'Content-Type: text/plain; a="\x7f"')),
    "media type with a space": (400, request("PUT", "/v1/stream/new", "Content-Type: text /plain")),
    # Compression, sizes.
    "compressed body": (415, request("POST", S, TEXT, "Content-Encoding: gzip", body="x")),
    "large body": (413, request("POST", S, TEXT, "Content-Length: 100001")),
    "long URL": (414, request("GET", S + "?x=" + "a" * 9000)),
    # JSON that is none.
    "NaN": (400, request("POST", "/v1/stream/json", "Content-Type: application/json", body="[NaN]")),
    "byte order mark": (400, request("POST", "/v1/stream/json", "Content-Type: application/json", body=b"\xef\xbb\xbf[1]")),
    "UTF-16": (400, request("POST", "/v1/stream/json", "Content-Type: application/json", body="[1]".encode("utf-16"))),
    "leading zero": (400, request("POST", "/v1/stream/json", "Content-Type: application/json", body="[01]")),
    "deep nesting": (400, request("POST", "/v1/stream/json", "Content-Type: application/json", body="[" * 40_000)),
    "method": (405, request("PATCH", S)),
}


async def tail_of(client: Client) -> bytes:
    await client.send(request("HEAD", S))
    return (await client.answer(head_only=True)).headers[b"stream-next-offset"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_by_code_and_changes_nothing(attack: str) -> None:
    status, data = ATTACKS[attack]

    async def scenario() -> None:
        async with whole() as (made, client):
            await client.send(request("PUT", "/v1/stream/json", "Content-Type: application/json"))
            assert (await client.answer()).status == 201
            victim = await made.connect()
            await client.send(data)
            answer = await client.answer()
            assert answer.status == status
            problem = json.loads(answer.body)["error"]
            assert problem["code"] and problem["message"]
            assert answer.headers[b"x-content-type-options"] == b"nosniff"
            for echoed in (b"evil", b"Evil", b"UPPER", b"aaaa"):
                assert echoed not in answer.body
            assert int(await tail_of(victim)) == 0  # another connection is served, and nothing was appended
            await victim.send(request("GET", "/v1/stream/new"))
            assert (await victim.answer()).status == 404
            victim.close()

    on_loop(scenario)()


async def _ask(client: Client, data: bytes) -> Answer:
    await client.send(data)
    return await client.answer()


def test_names_that_look_alike_are_two_streams() -> None:
    """routes.py normalises nothing: a name is its code points, whether composed or not, so that no two paths can be taken for each other."""

    async def scenario() -> None:
        async with whole() as (_, client):
            for name, body in (("%C3%A9", "composed"), ("e%CC%81", "not composed")):
                assert (await _ask(client, request("PUT", f"/v1/stream/{name}", TEXT, body=body))).status == 201
                assert (await _ask(client, request("GET", f"/v1/stream/{name}?offset=-1"))).body == body.encode()

    on_loop(scenario)()


def test_a_stored_page_does_not_run_in_a_browser() -> None:
    async def scenario() -> None:
        async with whole() as (_, client):
            for kind in ("text/html", "image/svg+xml", "application/xhtml+xml", "text/xml"):
                name = "/v1/stream/" + kind.replace("/", "-").replace("+", "-")
                assert (await _ask(client, request("PUT", name, f"Content-Type: {kind}", body="<script>"))).status == 201
                headers = (await _ask(client, request("GET", name + "?offset=-1"))).headers
                assert headers[b"x-content-type-options"] == b"nosniff"
                assert headers[b"content-disposition"] == b"attachment"
                assert b"sandbox" in headers[b"content-security-policy"]

    on_loop(scenario)()


def test_a_preflight_tells_nobody_what_exists() -> None:
    async def scenario() -> None:
        async with whole() as (_, client):
            ask = ("Origin: http://evil", "Access-Control-Request-Method: GET")
            known, unknown = await _ask(client, request("OPTIONS", S, *ask)), await _ask(client, request("OPTIONS", "/v1/stream/none", *ask))
            drop = b"x-request-id"
            assert known.status == unknown.status == 204
            assert {k: v for k, v in known.headers.items() if k != drop} == {k: v for k, v in unknown.headers.items() if k != drop}
            assert b"access-control-allow-credentials" not in known.headers

    on_loop(scenario)()


def test_a_stream_that_was_made_again_has_another_tag() -> None:
    async def scenario() -> None:
        async with whole() as (_, client):
            tags = []
            for _ in range(2):
                await _ask(client, request("PUT", "/v1/stream/again", TEXT, body="same"))
                tags.append((await _ask(client, request("GET", "/v1/stream/again?offset=-1"))).headers[b"etag"])
                await _ask(client, request("DELETE", "/v1/stream/again"))
            assert tags[0] != tags[1]

    on_loop(scenario)()


@pytest.mark.parametrize("line_end", ["\r\n", "\r", "\n"])
def test_no_payload_becomes_a_line_of_its_own_in_an_event(line_end: str) -> None:
    async def scenario() -> None:
        async with whole() as (_, client):
            await _ask(client, request("POST", S, TEXT, body=f"a{line_end}event: control{line_end}data: evil{line_end}{line_end}id: 7"))
            await client.send(request("GET", S + "?offset=-1&live=sse"))
            event = (await client.until(b"event: control\ndata:{")).split(b"event: data\n")[1]
            assert b"\r" not in event.split(b"\n\nevent: control\n")[0]
            lines = event.split(b"\n\nevent: control\n")[0].split(b"\n")
            assert all(line.startswith(b"data:") for line in lines), lines

    on_loop(scenario)()
