"""A client that hides nothing: plain HTTP/1.1, one answer for one request, no retries; each request goes to the next node.

Before us: the tests. After us: the nodes, over kept connections. So with several nodes whatever one request wrote is read,
by the same test, through another node: read-your-writes on any connection (specs/README.md). What the texts promise of EVERY answer is checked
here, in `_check`. Not here: what a single resource answers (the tests), multipart (multipart.py), event streams (events.py)."""

import http.client
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

REQUEST_TIMEOUT_S = 20.0
EVENTUALLY_S = 8.0
"""Deletes and trims that other groups take part in: the public suite gives a cascade 5 s, and this machine is shared."""
POLL_S = 0.02
READS_MAX = 3_000

T = TypeVar("T")
_offset = re.compile(r"[0-9]{20}").fullmatch


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    asked: str

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]

    @property
    def up_to_date(self) -> bool:
        return self.headers.get("stream-up-to-date") == "true"

    @property
    def closed(self) -> bool:
        return self.headers.get("stream-closed") == "true"

    @property
    def code(self) -> str:
        """Of an error."""
        return str(self.json()["error"]["code"])

    def json(self) -> Any:
        return json.loads(self.body)

    def expect(self, *statuses: int) -> "Answer":
        assert self.status in statuses, f"{self.asked}: {self.status}, not {' or '.join(map(str, statuses))}: {self.body[:300]!r}"
        return self


class Streams:
    """All nodes under test, as one service."""

    def __init__(self, base_urls: list[str]) -> None:
        self.hosts = [urlsplit(url).netloc for url in base_urls]
        self._turn = itertools.count()
        self._idle: dict[str, list[http.client.HTTPConnection]] = {host: [] for host in self.hosts}

    def hang_up(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def next_host(self) -> str:
        return self.hosts[next(self._turn) % len(self.hosts)]

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, host: str = "", **query: object
    ) -> Answer:
        """`path` is sent as it is; `query` is encoded."""
        target = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
        host = host or self.next_host()
        try:
            connection = self._idle[host].pop()
        except IndexError:
            connection = http.client.HTTPConnection(host, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, target, body, dict(headers or {}))
            response = connection.getresponse()
            answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read(), f"{method} {target}")
        except BaseException:
            connection.close()  # whatever is still under way on it is not the answer to the next request
            raise
        self._idle[host].append(connection)
        _check(method, answer)
        return answer

    # --- the verbs that most tests are made of ------------------------------------------------------------------------------------------

    def put(self, path: str, body: bytes = b"", content_type: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("PUT", path, body, _typed(content_type, headers))

    def create(self, path: str, content_type: str = "text/plain", body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        return self.put(path, body, content_type, headers).expect(201)

    def fork(self, path: str, source: str, offset: str | None = None, sub: int | None = None, body: bytes = b"", **headers: str) -> Answer:
        """PUT with the fork's headers; more of them by keyword, with _ for -."""
        wanted = {"Stream-Forked-From": source} | {name.replace("_", "-"): value for name, value in headers.items()}
        if offset is not None:
            wanted["Stream-Fork-Offset"] = offset
        if sub is not None:
            wanted["Stream-Fork-Sub-Offset"] = str(sub)
        return self.put(path, body, "", wanted)

    def post(self, path: str, body: bytes, content_type: str = "text/plain", headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, _typed(content_type, headers))

    def append(self, path: str, body: bytes, content_type: str = "text/plain", headers: Mapping[str, str] | None = None) -> str:
        """The next offset."""
        return self.post(path, body, content_type, headers).expect(200, 204).next_offset

    def append_json(self, path: str, *messages: object, headers: Mapping[str, str] | None = None) -> str:
        return self.append(path, json.dumps(list(messages)).encode(), "application/json", headers)

    def close(self, path: str) -> None:
        self.request("POST", path, b"", {"Stream-Closed": "true"}).expect(204)

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: object) -> Answer:
        return self.request("GET", path, None, headers, **query)

    def head(self, path: str) -> Answer:
        return self.request("HEAD", path)

    def delete(self, path: str) -> Answer:
        return self.request("DELETE", path)

    def read_all(self, path: str, offset: str = "-1", **query: object) -> list[Answer]:
        """Every answer from `offset` on, until one is up to date. Each must lead further."""
        answers = []
        while True:
            answer = self.get(path, offset=offset, **query).expect(200)
            answers.append(answer)
            if answer.up_to_date:
                return answers
            assert answer.next_offset > offset or offset == "-1", f"{answer.asked}: no progress: {answer.next_offset}"
            assert len(answers) < READS_MAX, f"{path}: never up to date"
            offset = answer.next_offset
            query.pop("since", None)  # "if both are present, offset wins", but one is clearer

    def read_bytes(self, path: str, offset: str = "-1", **query: object) -> bytes:
        return b"".join(answer.body for answer in self.read_all(path, offset, **query))

    def read_json(self, path: str, offset: str = "-1", **query: object) -> list[Any]:
        return [message for answer in self.read_all(path, offset, **query) for message in answer.json()]

    def tail(self, path: str) -> str:
        return self.head(path).expect(200).next_offset


def _typed(content_type: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    return ({"Content-Type": content_type} if content_type else {}) | dict(headers or {})


def _check(method: str, answer: Answer) -> None:
    """What holds for every answer.

    specs/README.md decisions, error body: `{"error":{"code":"...","message":"..."}}` everywhere a body is allowed; 429 and 503 carry `Retry-After`
    specs/README.md decisions, offsets: "20-digit zero-padded decimal byte positions"
    specs/README.md forks: "No fork header in any response.\""""
    told = f"{answer.asked}: {answer.status} {answer.headers} {answer.body[:300]!r}"
    assert answer.status not in (500, 501), told
    if answer.status >= 400 and method != "HEAD":
        error = answer.json()["error"]
        assert isinstance(error["code"], str) and isinstance(error["message"], str) and error["code"] and error["message"], told
        if answer.status in (429, 503):
            assert int(answer.headers["retry-after"]) > 0, told
    for name in ("stream-next-offset", "stream-end-offset", "stream-earliest-offset"):
        if name in answer.headers:
            assert _offset(answer.headers[name]), told
    assert not [name for name in answer.headers if name.startswith("stream-fork")], told


def looks(within_s: float = EVENTUALLY_S * 2) -> Iterator[int]:
    """For loops that end when another hand has done its part: 0, 1, ... until that takes too long."""
    deadline = time.monotonic() + within_s
    for number in itertools.count():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s"
        yield number


def eventually(what: str, look: Callable[[], T | None], within_s: float = EVENTUALLY_S) -> T:
    """The first look that gives something true. For what the texts promise only after a while: never for what an answer has promised."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        pause.wait(POLL_S)


def offset(value: int) -> str:
    return f"{value:020d}"
