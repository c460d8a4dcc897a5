"""The client plane: every connection of the client port, and the tokens by which the rest of the node answers them.

Before us: main.py listens (`loop.create_server(plane, ...)`) and http_connection.py turns bytes into requests. After us: `submit(token, request,
body)`, once per request when its body is complete; `cancel(token)` when the client is gone before its answer was; `taken(token)` when it has taken
what was sent of a paced response. Whoever answers renders whole responses as if the connection went on; if it ends, `Connection: close` is put in
here. All calls belong to the loop's thread.

One sweep serves all deadlines: with 10,000 connections it compares 10,000 numbers, about 0.5 ms. Deliberately absent: a timer, task or future per
request or connection, and slicing of a fan-out over turns, which is the caller's (one call of broadcast() queues; the kernel's 10 us per connection
come at the end of the turn)."""

import asyncio
import secrets
from collections.abc import Callable, Collection
from typing import Final

from anabranch_node.drivers.http_connection import ClientConnection, ClientCounters, ClientOptions, Shared
from anabranch_node.web import request as web_request
from anabranch_node.web.request import Head, Request

_STATUS_AT: Final = len("HTTP/1.1 ")
_ERRORS_FROM: Final = ord("4")

__all__ = ["ClientCounters", "ClientOptions", "ClientPlane"]


class ClientPlane(Shared):
    def __init__(
        self,
        options: ClientOptions,
        submit: Callable[[int, Request, bytes], None],
        cancel: Callable[[int], None],
        loop: asyncio.AbstractEventLoop,
        *,
        parse: Callable[[Head], Request] = web_request.parse,
        taken: Callable[[int], None] = lambda token: None,
    ) -> None:
        super().__init__(options, submit, cancel, loop, parse, secrets.token_hex(6), taken)
        self._sweep_handle = loop.call_later(options.sweep_interval_s, self._sweep)

    def __call__(self) -> asyncio.Protocol:
        return ClientConnection(self)

    def respond(self, token: int, data: bytes, close: bool = False) -> None:
        """The whole response. An unknown token is that of a client which is gone."""
        connection = self.by_token.pop(token, None)
        if connection is not None:
            if data[_STATUS_AT] >= _ERRORS_FROM:
                data = self._named(token, data)
            connection.answer(data, close)

    def _named(self, token: int, data: bytes) -> bytes:
        """An error says which request it is about, so that a person and the log can speak of the same one."""
        if data.find(b"\r\nX-Request-Id: ", 0, data.find(b"\r\n\r\n")) >= 0:
            return data
        line_end = data.find(b"\r\n") + 2
        return b"%bX-Request-Id: %b\r\n%b" % (data[:line_end], self.request_id(token).encode(), data[line_end:])

    def begin(self, token: int, data: bytes, paced: bool = False) -> None:
        """The head of a live response, and what there is already. `paced`: its pieces come one by one, each after `taken` for the last."""
        connection = self.by_token.get(token)
        if connection is not None:
            connection.begin(data, paced)

    def write_piece(self, token: int, data: bytes) -> None:
        connection = self.by_token.get(token)
        if connection is not None:
            connection.write_piece(data)

    def abort(self, token: int) -> None:
        """A response that has begun and cannot be finished. The client sees the connection break, never an end."""
        connection = self.by_token.get(token)
        if connection is not None:
            connection.abort()

    def write(self, token: int, data: bytes) -> None:
        connection = self.by_token.get(token)
        if connection is not None:
            connection.write_live(data)

    def broadcast(self, tokens: Collection[int], data: bytes) -> None:
        """The same bytes object to each. Readers over their bound are aborted; their `cancel` comes in a later turn, never from in here."""
        by_token = self.by_token
        size = len(data)
        count = 0
        for token in tokens:
            connection = by_token.get(token)
            if connection is None:
                continue
            if connection.write_paused:
                connection.write_live(data, len(tokens))
                continue
            connection.transport.write(data)
            connection.bytes_out += size
            count += 1
        self.counters.bytes_out += size * count

    def end(self, token: int, data: bytes) -> None:
        """The last bytes of a live response. The connection goes on, unless the plane is draining."""
        connection = self.by_token.pop(token, None)
        if connection is not None:
            connection.answer(data, False)

    def buffered_bytes(self, token: int) -> int:
        """What the client has not taken yet, so that a long catch-up can wait for it instead of running into the bound. Unknown token: 0."""
        connection = self.by_token.get(token)
        return 0 if connection is None else connection.transport.get_write_buffer_size()

    async def drain(self, grace_s: float) -> None:
        """After the caller has stopped listening: idle connections end now, busy ones after their answer, the rest when the grace is over."""
        self.draining = True
        for connection in list(self.connections):
            if connection.idle:
                connection.close()
        if self.connections:
            try:
                await asyncio.wait_for(self.drained.wait(), grace_s)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
                await self.drained.wait()
        self._sweep_handle.cancel()

    def _sweep(self) -> None:
        now_s = self.now_s = self.loop.time()
        late = [connection for connection in self.connections if connection.deadline < now_s]
        for connection in late:
            connection.expire(now_s)
        for connection in list(self.paused):
            connection.check_progress(now_s)
        self._sweep_handle = self.loop.call_later(self.options.sweep_interval_s, self._sweep)
