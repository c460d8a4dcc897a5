"""The command's HTTP: few requests, one at a time, over several nodes. Before us: a verb. After us: any node, which may be dead.

A request is sent to the next node only if that cannot do it twice: it never reached anybody (no connection), or it may be repeated (GET, HEAD, PUT,
or a POST with producer headers). Anything else that fails in between is reported as unknown. Not here: keep-alive, TLS, bench's load."""

import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from anabranch_node.cli.failure import Failed, Unavailable

CLIENT_URL: Final = "http://127.0.0.1:4437"
ADMIN_URL: Final = "http://127.0.0.1:4438"
BODY_BYTES_MAX: Final = 512 << 20
LINE_BYTES_MAX: Final = 64 << 20
PAUSE_S: Final = 0.2
_PASSING: Final = frozenset({429, 502, 503, 504})


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes
    url: str

    def text(self) -> str:
        """The message of an error body, or what there is."""
        import msgspec

        from anabranch_proto.admin import Problem

        try:
            problem = msgspec.json.decode(self.body, type=Problem)
            return f"{self.status} {problem.error.code}: {problem.error.message}"
        except msgspec.MsgspecError:
            return f"{self.status} {self.body[:200].decode('utf-8', 'replace').strip()}".strip()


def urls_of(given: str | None, default: str) -> list[str]:
    """Comma-separated base URLs, checked; `host:port` alone is accepted."""
    found = []
    for part in (given or default).split(","):
        part = part.strip()
        if not part:
            continue
        url = part if "://" in part else f"http://{part}"
        split = urlsplit(url)
        try:
            port_is_fine = split.port is None or split.port > 0
        except ValueError:
            port_is_fine = False
        if split.scheme != "http" or not split.hostname or not port_is_fine or split.query:
            raise Failed(f"{part!r} is no URL such as {default}")
        found.append(url.rstrip("/"))
    if not found:
        raise Failed(f"no URL given; expected something like {default}")
    return found


def stream_path(stream: str) -> str:
    return "/v1/stream/" + quote(stream.lstrip("/"), safe="/-._~")


class Nodes:
    """Some nodes of one cluster. Remembers which one answered, and begins there the next time."""

    def __init__(self, urls: list[str], timeout_s: float = 30.0) -> None:
        assert urls
        self.urls = urls
        self.timeout_s = timeout_s
        self._at = 0

    @property
    def url(self) -> str:
        return self.urls[self._at]

    def next(self) -> None:
        self._at = (self._at + 1) % len(self.urls)

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        retry_for_s: float = 10.0,
        pass_on_busy: bool = True,
    ) -> Answer:
        """The first answer that is not a passing 429 or 5xx. Raises Unavailable when retry_for_s is over, or Failed when the outcome is unknown."""
        headers = dict(headers or {})
        repeatable = method in ("GET", "HEAD", "PUT", "DELETE") or "Producer-Id" in headers
        deadline = time.monotonic() + retry_for_s
        failures = 0
        while True:
            try:
                with closing(_connect(self.url, self.timeout_s)) as connection:
                    try:
                        answer = _exchange(connection, self.url, method, path, body, headers)
                    except (OSError, http.client.HTTPException) as lost:
                        if not repeatable:
                            raise Failed(
                                f"{self.url}: {_why(lost)} after the request was sent: it may or may not have happened."
                                " With --producer-id it could be repeated safely"
                            ) from None
                        raise
                if answer.status not in _PASSING or not repeatable or not pass_on_busy:
                    return answer
                last = answer.text()
            except (OSError, http.client.HTTPException) as lost:
                last = _why(lost)
            failures += 1
            url = self.url
            self.next()
            if time.monotonic() >= deadline and failures >= len(self.urls):
                raise Unavailable(f"{url}: {last}")
            if failures % len(self.urls) == 0:
                time.sleep(PAUSE_S)

    def lines(self, path: str, headers: Mapping[str, str], idle_timeout_s: float) -> Iterator[Answer | bytes]:
        """One streamed GET on the current node: first an Answer (with a body unless it is 200), then lines without their ends."""
        with closing(_connect(self.url, min(self.timeout_s, 5.0))) as connection:
            assert connection.sock is not None
            connection.sock.settimeout(idle_timeout_s)
            connection.request("GET", _target(self.url, path), headers=dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            if response.status != 200:
                yield Answer(response.status, found, response.read(1 << 20), self.url)
                return
            yield Answer(200, found, b"", self.url)
            while True:
                line = response.readline(LINE_BYTES_MAX)
                if not line.endswith(b"\n"):
                    return  # the end, or a line cut off by it: what is not complete has not been said
                yield line.rstrip(b"\r\n")


def _why(lost: Exception) -> str:
    if isinstance(lost, TimeoutError):
        return "no answer in time"
    if isinstance(lost, OSError):
        return (lost.strerror or str(lost) or type(lost).__name__).lower()
    return str(lost) or type(lost).__name__


def _connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    split = urlsplit(url)
    assert split.hostname
    connection = http.client.HTTPConnection(split.hostname, split.port or 80, timeout=timeout_s)
    connection.connect()
    return connection


def _target(url: str, path: str) -> str:
    return urlsplit(url).path.rstrip("/") + path


def _exchange(connection: http.client.HTTPConnection, url: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    connection.request(method, _target(url, path), body=body if body or method in ("POST", "PUT") else None, headers=dict(headers))
    response = connection.getresponse()
    got = response.read(BODY_BYTES_MAX + 1)
    if len(got) > BODY_BYTES_MAX:
        raise Failed(f"{url}: the answer is larger than {BODY_BYTES_MAX} bytes")
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, got, url)
