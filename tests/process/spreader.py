"""A connection spreader: one address in front of many nodes. Each new connection goes to the next node that accepts it.

It stands where a load balancer without any knowledge of streams would: a test that passes behind it does not care which node answers. Bytes are
passed on as they come. Not here: health checks (a refused connection is enough), retries of a request, HTTP."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from types import TracebackType

CHUNK_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 2.0


class Spreader:
    """Runs on its own thread and loop, so that the tests in front of it may block: `with Spreader(addresses) as spreader: spreader.base_url`."""

    def __init__(self, addresses: Sequence[str], port: int = 0) -> None:
        self.addresses = list(addresses)
        self.port = port
        self.connections = 0
        self._next = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="spreader", daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Spreader":
        self._thread.start()
        assert self._ready.wait(10), "the spreader did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            for _ in self.addresses:
                host, _, port = self.addresses[self._next % len(self.addresses)].rpartition(":")
                self._next += 1
                try:
                    there = await asyncio.wait_for(asyncio.open_connection(host, int(port)), CONNECT_TIMEOUT_S)
                except (TimeoutError, OSError):
                    continue
                self.connections += 1
                await join((reader, writer), there)
                return
        except asyncio.CancelledError:
            pass  # the end of the test
        finally:
            self._tasks.discard(task)
            writer.close()


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join(here: Ends, there: Ends) -> None:
    """Pass bytes on both ways until one end is gone, then close both: a reset must not look like a connection that is merely quiet."""
    pumps = [asyncio.ensure_future(_pump(here[0], there[1])), asyncio.ensure_future(_pump(there[0], here[1]))]
    try:
        await asyncio.gather(*pumps)
    finally:
        for pump in pumps:
            pump.cancel()
        for writer in (here[1], there[1]):
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()
