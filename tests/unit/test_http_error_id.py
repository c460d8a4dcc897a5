"""Every error names its request, also where the client did not."""

import asyncio
from typing import Any, cast

from anabranch_node.drivers.http_protocol import ClientOptions, ClientPlane
from anabranch_node.web.reply import Reply, error, render


class _Connection:
    def __init__(self) -> None:
        self.data = b""

    def answer(self, data: bytes, close: bool) -> None:
        self.data = data


def _answered(plane: ClientPlane, reply: Reply, request_id: str) -> bytes:
    connection = _Connection()
    plane.by_token[7] = cast(Any, connection)
    plane.respond(7, render(reply, keep_alive=True, request_id=request_id))
    return connection.data


def test_an_error_names_its_request_once() -> None:
    async def scenario() -> None:
        plane = ClientPlane(ClientOptions(), lambda *_: None, lambda _: None, asyncio.get_running_loop())
        missing = error(404, "stream_not_found", "X-Request-Id: is not here")
        named = _answered(plane, missing, "")
        assert named.startswith(b"HTTP/1.1 404 Not Found\r\n")
        assert b"\r\nX-Request-Id: " + plane.request_id(7).encode() + b"\r\n" in named.partition(b"\r\n\r\n")[0] + b"\r\n"
        assert named.partition(b"\r\n\r\n")[2] == missing.body
        given = _answered(plane, missing, "mine")
        assert given.count(b"\r\nX-Request-Id: ") == 1 and b"\r\nX-Request-Id: mine\r\n" in given
        assert b"\r\nX-Request-Id: " not in _answered(plane, Reply(200, b"", b"ok"), ""), "a success pays nothing for it"
        await plane.drain(0.1)

    asyncio.run(scenario())
