"""The verbs about buckets: what they ask of a node, what they print, how they end."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.unit.test_cli_streams import run


class Desk(ThreadingHTTPServer):
    """Answers what it was told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[tuple[int, object]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Desk

    def answer(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        status, document = self.server.answers.pop(0)
        body = b"" if status == 204 else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def error(code: str) -> dict[str, object]:
    return {"error": {"code": code, "message": "because"}}


def test_create_and_delete(desk: Desk) -> None:
    desk.answers = [(201, {}), (409, error("bucket_exists")), (409, error("bucket_exists")), (204, None), (409, error("bucket_not_empty"))]
    assert run("bucket", "create", "agents", "--url", desk.url).stdout == "made agents\n"
    assert run("bucket", "create", "agents", "--url", desk.url, "--exist-ok").exit_code == 0
    again = run("bucket", "create", "agents", "--url", desk.url)
    assert again.exit_code == 1 and "409 bucket_exists: because" in again.stderr
    assert run("bucket", "delete", "agents", "--url", desk.url).exit_code == 0
    assert run("bucket", "delete", "agents", "--url", desk.url).exit_code == 1
    assert desk.asked == ["PUT /ds/agents"] * 3 + ["DELETE /ds/agents"] * 2


def test_show(desk: Desk) -> None:
    found = {"bucket_id": "agents", "streams": 3, "created_at_ms": 1_700_000_000_000}
    desk.answers = [(200, found), (200, found), (404, error("bucket_not_found"))]
    assert "3 streams" in run("bucket", "show", "agents", "--url", desk.url).stdout
    assert json.loads(run("bucket", "show", "agents", "--url", desk.url, "--json").stdout) == found
    assert run("bucket", "show", "none", "--url", desk.url).exit_code == 1


def test_list_follows_the_pages(desk: Desk) -> None:
    def page(names: list[str], more: bool) -> dict[str, object]:
        rows = [{"stream_id": n, "status": "Open", "content_type": "a/b", "tail_offset": 7, "created_at_ms": 1, "last_write_at_ms": 2} for n in names]
        return {"bucket_id": "agents", "streams": rows, "has_more": more, "next_cursor": names[-1] if more else None}

    desk.answers = [(200, page(["a", "b&c"], True)), (200, page(["d"], False))]
    listed = run("bucket", "list", "agents", "--url", desk.url, "--json", "--prefix", "x y")
    assert [json.loads(line)["stream_id"] for line in listed.stdout.splitlines()] == ["a", "b&c", "d"]
    assert desk.asked == [
        "GET /ds/agents/streams?limit=1000&prefix=x%20y&after=",
        "GET /ds/agents/streams?limit=1000&prefix=x%20y&after=b%26c",
    ]
