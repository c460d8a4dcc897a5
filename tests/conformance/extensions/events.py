"""Server-sent events, one by one, for as long as a test wants them. Before us: client.py's hosts. After us: tests of live reads."""

import json
import time
from http.client import HTTPConnection
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from tests.conformance.extensions.client import REQUEST_TIMEOUT_S, Answer, Streams


class Event(NamedTuple):
    kind: str
    data: str

    def json(self) -> Any:
        return json.loads(self.data)


class Events:
    """`with Events(http, path, offset=...) as events: events.next()`. An event that does not come in time is an error."""

    def __init__(self, http: Streams, path: str, **query: object) -> None:
        self._connection = HTTPConnection(http.next_host(), timeout=REQUEST_TIMEOUT_S)
        self._connection.request("GET", f"{path}?{urlencode({**query, 'live': 'sse'}, quote_via=quote)}")
        self._response = self._connection.getresponse()
        self._deadline = time.monotonic() + REQUEST_TIMEOUT_S
        body = b"" if self._response.status == 200 else self._response.read()
        self.answer = Answer(self._response.status, {name.lower(): value for name, value in self._response.getheaders()}, body, f"SSE {path}")

    def __enter__(self) -> "Events":
        self.answer.expect(200)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._response.close()
        self._connection.close()

    def next(self) -> Event | None:
        """None: the response has ended."""
        kind, data = "", []
        while line := self._response.readline():
            assert time.monotonic() < self._deadline, "keep-alives only"
            text = line.decode().rstrip("\n").rstrip("\r")
            if not text and (kind or data):
                return Event(kind, "\n".join(data))
            if text.startswith("event:"):
                kind = text[6:].strip()
            elif text.startswith("data:"):
                data.append(text[5:].removeprefix(" "))
        return None

    def until_offset(self, offset: str) -> list[str]:
        """The data of all events until a control event says that we are at `offset` or beyond."""
        found = []
        while True:
            event = self.next()
            assert event is not None, f"the response ended before {offset}"
            if event.kind == "data":
                found.append(event.data)
            elif event.kind == "control" and event.json()["streamNextOffset"] >= offset:
                return found
