"""Paced responses over real sockets: the next piece is asked for when the client has taken the last one, whatever its pace."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from anabranch_node.drivers.http_protocol import ClientOptions, ClientPlane
from tests.unit.test_http_protocol import GET, HEAD_LIVE, SHORT_S, Rig, on_loop, parse, turns_until

ASK = b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
END = b"0\r\n\r\n"
PIECE = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"


class Paced(Rig):
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.taken: asyncio.Queue[int] = asyncio.Queue()
        self.plane = ClientPlane(options, self._submit, self._cancel, self.loop, parse=parse, taken=self.taken.put_nowait)


@asynccontextmanager
async def rig(**options: float) -> AsyncIterator[Paced]:
    made = Paced(ClientOptions(**{"sweep_interval_s": 0.01, "linger_s": SHORT_S, **options}))  # type: ignore[arg-type]
    server = await made.loop.create_server(made.plane, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.plane.drain(0.0)
        assert (made.plane.unsent_bytes, made.plane.inflight_bytes, len(made.plane.by_token)) == (0, 0, 0)


def test_a_client_that_takes_all_is_asked_on_at_once() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(ASK)
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE, True)
            assert made.taken.get_nowait() == token
            made.plane.write_piece(token, b"1\r\na\r\n")
            assert made.taken.get_nowait() == token
            made.plane.end(token, END)
            assert await client.until(END) == HEAD_LIVE + b"1\r\na\r\n" + END
            assert made.taken.empty() and made.cancelled.empty()
            await client.send(GET)
            assert (await client.answer()).body == b"ok"
            # What is not paced is not asked on.
            await client.send(ASK)
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE)
            made.plane.write(token, b"1\r\na\r\n")
            made.plane.end(token, END)
            await client.until(END)
            assert made.taken.empty()
            client.close()

    on_loop(scenario)()


def test_a_slow_client_holds_one_piece() -> None:
    async def scenario() -> None:
        async with rig(write_buffer_bytes_max=1 << 10) as made:
            client = await made.connect(receive_buffer_bytes=64 << 10)
            await client.send(ASK)
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE, True)
            while not made.taken.empty():  # the kernel takes some
                assert made.taken.get_nowait() == token
                made.plane.write_piece(token, PIECE)
            assert 0 < made.plane.buffered_bytes(token) == made.plane.unsent_bytes <= len(PIECE)
            reading = asyncio.ensure_future(client.until(END))
            for _ in range(20):
                assert await made.taken.get() == token
                assert made.plane.buffered_bytes(token) <= 16 << 10 and made.plane.unsent_bytes == 0
                made.plane.write_piece(token, PIECE)
                assert made.plane.buffered_bytes(token) <= len(PIECE) + (16 << 10)
            assert await made.taken.get() == token
            made.plane.end(token, END)
            assert len(await reading) > 21 * len(PIECE)
            assert made.plane.counters.slow_readers_dropped == 0
            client.close()

    on_loop(scenario)()


def test_a_client_that_takes_nothing_is_dropped() -> None:
    async def scenario() -> None:
        async with rig(write_stall_timeout_s=2 * SHORT_S) as made:
            client = await made.connect(receive_buffer_bytes=4096)
            await client.send(ASK)
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE + bytes(8 << 20), True)
            assert made.taken.empty()
            assert await made.cancelled.get() == token
            assert made.plane.counters.slow_readers_dropped == 1
            client.close()

    on_loop(scenario)()


def test_an_aborted_response_has_no_end() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(ASK)
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE, True)
            await client.until(HEAD_LIVE)
            made.plane.abort(token)
            made.plane.abort(token)  # nobody is there any more
            made.plane.write_piece(token, PIECE)
            assert await client.ended() == b""
            assert await made.cancelled.get() == token
            client.close()

    on_loop(scenario)()


def test_pieces_are_bounded_for_the_whole_plane() -> None:
    async def scenario() -> None:
        async with rig(unsent_bytes_max=16 << 20) as made:
            stuck, other = await made.connect(receive_buffer_bytes=4096), await made.connect()
            await stuck.send(b"GET /big/%d HTTP/1.1\r\nHost: h\r\n\r\n" % (15 << 20))
            await turns_until(lambda: made.plane.unsent_bytes > 8 << 20)
            await other.send(ASK)
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE, True)
            made.plane.write_piece(token, bytes(14 << 20))
            assert await made.cancelled.get() == token
            assert made.plane.unsent_bytes <= 16 << 20
            stuck.close()
            other.close()

    on_loop(scenario)()


@pytest.mark.parametrize("paced", [True, False])
def test_a_client_may_close_its_half_after_asking(paced: bool) -> None:
    """A live reader that does so has left; who asked for something that ends may still be listening."""

    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(ASK)
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE, paced)
            client.sock.shutdown(1)
            if paced:
                (connection,) = made.plane.connections
                await turns_until(lambda: connection.eof)
                made.plane.end(token, END)
                assert await client.ended() == HEAD_LIVE + END
            else:
                assert await made.cancelled.get() == token
            client.close()

    on_loop(scenario)()


def test_a_paced_response_needs_http_1_1() -> None:
    async def scenario() -> None:
        async with rig() as made:
            client = await made.connect()
            await client.send(b"GET /hold HTTP/1.0\r\n\r\n")
            token = await made.held.get()
            made.plane.begin(token, HEAD_LIVE, True)
            assert (await client.answer()).status == 505
            assert made.taken.empty() and await made.cancelled.get() == token
            client.close()

    on_loop(scenario)()
