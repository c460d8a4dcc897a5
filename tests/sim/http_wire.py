"""HTTP as the simulator's clients speak it: an exchange's request on its way out, and the bytes of a response read back, strictly.

Written against the protocol and not with the code under test: a response is parsed here by hand, an event stream is decoded as a browser would.
Before us: http_clients.py decides what to ask. After us: front_door.py carries it, tests/checkers/answers.py judges what came back."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

PREFIX = "/v1/stream/"


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Of an error."""
        return str(json.loads(self.body)["error"]["code"]) if self.status >= 400 and self.body else ""


class Event(NamedTuple):
    """A data event (None: there was none) and the control event that follows it."""

    data: bytes | None
    control: dict[str, Any]


class Malformed(Exception):
    """These bytes are no response that the protocol knows."""


def parse_response(raw: bytes, head_only: bool = False) -> Response:
    head, separator, body = raw.partition(b"\r\n\r\n")
    if not separator:
        raise Malformed(f"the head does not end: {raw[:80]!r}")
    lines = head.decode("ascii").split("\r\n")
    version, status, _ = lines[0].split(" ", 2)
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(": ")
        if not colon or name.lower() in headers:
            raise Malformed(f"header line {line!r}")
        headers[name.lower()] = value
    if version != "HTTP/1.1":
        raise Malformed(lines[0])
    if status in ("204", "304"):
        if body or "content-length" in headers:
            raise Malformed(f"a {status} with a body")
    elif "transfer-encoding" not in headers and not head_only and len(body) != int(headers["content-length"]):
        raise Malformed(f"{len(body)} bytes of body, {headers['content-length']} announced")
    return Response(int(status), headers, body)


def dechunked(raw: bytes) -> tuple[bytes, bool]:
    """What is in whole chunks, and whether the last one is among them."""
    data, at, ended = bytearray(), 0, False
    while at < len(raw):
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end], 16)
        chunk = raw[end + 2 : end + 2 + size]
        if ended or len(chunk) != size or raw[end + 2 + size : end + 4 + size] != b"\r\n":
            raise Malformed(f"chunk at {at} of {raw[:60]!r}, ended: {ended}")
        at = end + 4 + size
        ended = not size
        data += chunk
    return bytes(data), ended


class EventStream:
    """Chunks in, events out. Every piece that a node sends ends at a chunk, and every chunk at an event."""

    def __init__(self) -> None:
        self.ended = False
        self.keep_alives = 0

    def feed(self, raw: bytes, is_text: bool) -> list[Event]:
        events: list[Event] = []
        at = 0
        while at < len(raw):
            end = raw.index(b"\r\n", at)
            size = int(raw[at:end], 16)
            chunk = raw[end + 2 : end + 2 + size]
            if self.ended or len(chunk) != size or raw[end + 2 + size : end + 4 + size] != b"\r\n":
                raise Malformed(f"chunk at {at} of {raw[:60]!r}, ended: {self.ended}")
            at = end + 4 + size
            if not size:
                self.ended = True
            else:
                events += self._events(chunk.decode("utf-8"), is_text)
        return events

    def _events(self, text: str, is_text: bool) -> list[Event]:
        events: list[Event] = []
        data: bytes | None = None
        if not text.endswith("\n\n"):
            raise Malformed(f"a chunk that does not end with an event: {text[-40:]!r}")
        for block in text[:-2].split("\n\n"):
            if block == ":":
                self.keep_alives += 1
                continue
            lines = block.split("\n")
            values = [line[5:].removeprefix(" ") for line in lines[1:] if line.startswith("data:")]
            if len(values) != len(lines) - 1:
                raise Malformed(block)
            if lines[0] == "event: data" and data is None:
                joined = "\n".join(values)
                data = joined.encode() if is_text else base64.b64decode(joined, validate=True)
            elif lines[0] == "event: control":
                events.append(Event(data, json.loads("\n".join(values))))
                data = None
            else:
                raise Malformed(block)
        if data is not None:
            raise Malformed("a data event without its control event")
        return events
