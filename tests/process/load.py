"""The clients of chaos.py: they write, read and tail over HTTP, on any node, and record every try into one history.

Before us: a cluster that is being hurt. After us: the checker. A recorder must not guess: an answer that says "it did not happen" is `refused`,
a read that got no answer is simply unknown, and an append without an answer may have happened. Payloads begin with a fixed-width number
(history.py's duty). Not here: faults, and any opinion on what was seen."""

import asyncio
import base64
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp

from tests.checkers import history as h
from tests.checkers.history import History, Op

REQUEST_TIMEOUT_S = 6.0
BACK_OFF_S = 0.05
PAYLOAD_EXTRA_BYTES_MAX = 200
CONTENT_TYPE = "application/octet-stream"
DEFINITE = {400, 404, 409, 410, 411, 413, 415, 429}
"""Refusals that say: it did not happen. A 503 says so unless its code is `outcome_unknown`; any other 5xx says nothing."""


@dataclass
class Load:
    urls: list[str]
    rng: random.Random
    history: History = field(default_factory=History)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: int = 0
    appends_ok: int = 0
    reads_ok: int = 0
    events_ok: int = 0
    tails_broken: int = 0
    wrong: list[str] = field(default_factory=list)
    """What a live tail saw that a tail must never see. The checker knows reads; tails are judged here and as reads."""

    def now(self) -> int:
        return time.monotonic_ns()

    def url(self, stream: str, home: int = -1) -> str:
        base = self.urls[home] if home >= 0 else self.rng.choice(self.urls)
        return f"{base}/v1/stream/{stream}"

    def payload(self) -> bytes:
        self.numbers += 1
        return b"%012d|" % self.numbers + b"x" * self.rng.randrange(PAYLOAD_EXTRA_BYTES_MAX) + b"\n"


async def create(load: Load, session: aiohttp.ClientSession, stream: str) -> None:
    while not load.stopping.is_set():
        op = load.history.invoke_create("setup", stream, load.now(), CONTENT_TYPE)
        try:
            async with session.put(load.url(stream), headers={"Content-Type": CONTENT_TYPE}) as answer:
                await answer.read()
                if answer.status in (200, 201):
                    h.created(op, load.now(), int(answer.headers["Stream-Next-Offset"]), answer.status == 200)
                    return
        except (TimeoutError, aiohttp.ClientError, OSError):
            h.unknown(op, load.now())
        await asyncio.sleep(BACK_OFF_S)


async def _append(load: Load, session: aiohttp.ClientSession, op: Op) -> bool:
    """One try; True if it is settled (acknowledged)."""
    headers = {"Content-Type": CONTENT_TYPE}
    if op.producer is not None:
        headers |= {"Producer-Id": op.producer[0], "Producer-Epoch": str(op.producer[1]), "Producer-Seq": str(op.producer[2])}
    try:
        async with session.post(load.url(op.stream), data=op.payload, headers=headers) as answer:
            body = await answer.read()
            if answer.status in (200, 204):
                end = answer.headers.get("Stream-Next-Offset")
                duplicate = op.producer is not None and answer.status == 204
                if end is None or duplicate:
                    # A duplicate's offset may be that of the tail: it acknowledges, and the final content shows the place.
                    h.unknown(op, load.now())
                else:
                    h.appended(op, load.now(), int(end) - len(op.payload), int(end), False)
                load.appends_ok += 1
                return True
            if answer.status in DEFINITE or (answer.status == 503 and b"outcome_unknown" not in body):
                h.refused(op, load.now(), f"HTTP{answer.status}")
                if answer.status in (400, 404, 409, 410):
                    load.wrong.append(f"append to {op.stream} as {op.producer}: {answer.status} {body[:200]!r}")
            else:
                h.unknown(op, load.now())
    except (TimeoutError, aiohttp.ClientError, OSError):
        h.unknown(op, load.now())
    return False


async def producer(load: Load, session: aiohttp.ClientSession, name: str, stream: str, acknowledged: dict[str, set[bytes]]) -> None:
    """Exactly once: the same tuple again, on any node, until somebody acknowledges it."""
    seq = 0
    while not load.stopping.is_set():
        payload = load.payload()
        while not load.stopping.is_set():
            if await _append(load, session, load.history.invoke_append(name, stream, load.now(), payload, (name, 0, seq))):
                acknowledged[stream].add(payload)
                break
            await asyncio.sleep(BACK_OFF_S)
        seq += 1
        await asyncio.sleep(load.rng.random() * 0.02)


async def writer(load: Load, session: aiohttp.ClientSession, name: str, stream: str, acknowledged: dict[str, set[bytes]]) -> None:
    """Without a producer a try is never repeated: it could be there twice, rightly."""
    while not load.stopping.is_set():
        payload = load.payload()
        if await _append(load, session, load.history.invoke_append(name, stream, load.now(), payload)):
            acknowledged[stream].add(payload)
        else:
            await asyncio.sleep(BACK_OFF_S)
        await asyncio.sleep(load.rng.random() * 0.03)


async def reader(load: Load, session: aiohttp.ClientSession, name: str, stream: str) -> None:
    offset = 0
    while not load.stopping.is_set():
        offset = await read_once(load, session, name, stream, offset)
        if load.rng.random() < 0.02:
            offset = 0
        await asyncio.sleep(load.rng.random() * 0.05)


async def read_once(load: Load, session: aiohttp.ClientSession, name: str, stream: str, offset: int) -> int:
    op = load.history.invoke_read(name, stream, load.now(), offset)
    try:
        async with session.get(load.url(stream), params={"offset": f"{offset:020d}"}) as answer:
            data = await answer.read()
            if answer.status == 200:
                end = int(answer.headers["Stream-Next-Offset"])
                h.read(op, load.now(), data, end, answer.headers.get("Stream-Up-To-Date") == "true")
                load.reads_ok += 1
                return end
            if answer.status in DEFINITE - {429}:
                load.wrong.append(f"read of {stream} at {offset}: {answer.status} {data[:200]!r}")
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
    h.unknown(op, load.now())
    await asyncio.sleep(BACK_OFF_S)
    return offset


async def tail(load: Load, session: aiohttp.ClientSession, stream: str, seen: bytearray) -> None:
    """A live reader that goes on where it was, on another node, whenever its connection ends. `seen` becomes all it was given."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=20)
    while not load.stopping.is_set():
        try:
            async with session.get(load.url(stream), params={"offset": f"{len(seen):020d}", "live": "sse"}, timeout=timeout) as answer:
                if answer.status != 200:
                    if answer.status in DEFINITE - {429}:
                        load.wrong.append(f"tail of {stream} at {len(seen)}: {answer.status}")
                    await answer.read()
                else:
                    async for kind, data in events(answer):
                        if kind == "data":
                            pending = base64.b64decode(data)
                        elif kind == "control":
                            end = int(json.loads(data)["streamNextOffset"])
                            if end != len(seen) + len(pending):
                                load.wrong.append(f"tail of {stream}: at {len(seen)}, given {len(pending)} bytes, told that it stands at {end}")
                                return
                            seen += pending
                            load.events_ok += 1
                        if kind != "data":
                            pending = b""
        except (TimeoutError, aiohttp.ClientError, OSError):
            load.tails_broken += 1
        await asyncio.sleep(BACK_OFF_S)


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str]]:
    """Server-sent events of a response: (type, data). Bounded by the server's own event size."""
    kind, rest = "message", b""
    lines: list[str] = []
    yield "start", ""
    async for chunk in answer.content.iter_any():
        rest += chunk
        *whole, rest = rest.split(b"\n")
        for raw in whole:
            line = raw.rstrip(b"\r").decode()
            if not line:
                if lines:
                    yield kind, "".join(lines)
                kind, lines = "message", []
            elif line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                lines.append(line[5:].removeprefix(" "))
