"""Published snapshots on the wire: the sentences of the extensions' section 2."""

import json

import pytest

from anabranch_node.core.stream.commands import PublishSnapshot
from anabranch_node.core.stream.queries import ReadSnapshot
from anabranch_node.core.stream.results import (
    NoSnapshot,
    OffsetBeyondTail,
    OffsetInsideMessage,
    SnapshotBlob,
    SnapshotPublished,
    StreamGone,
    StreamNotFound,
    Trimmed,
)
from anabranch_node.web import snapshot
from anabranch_node.web.reply import Reply, render
from anabranch_node.web.request import BadRequest, Head, Request, parse

AT = "/snapshot/00000000000000000007"


def ask(method: str, behind: str, surface: str = "/ds/bucket/s", **headers: str) -> Request:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return parse(Head(method.encode(), (surface + behind).encode(), given))


def code(reply: Reply) -> str:
    found: str = json.loads(reply.body)["error"]["code"]
    return found


def test_publishing() -> None:
    request = ask("PUT", AT)
    assert snapshot.command(request, b"fold") == PublishSnapshot("bucket/s", 7, "application/octet-stream", b"fold", 0)
    assert snapshot.command(ask("PUT", AT, content_type="application/json"), b"").content_type == "application/json"
    done = snapshot.answer(request, SnapshotPublished(7))
    assert done == Reply(204, b"Stream-Snapshot-Offset: 00000000000000000007\r\n")


@pytest.mark.parametrize(
    ("result", "status", "name"),
    [
        (OffsetBeyondTail(7, 3), 409, "offset_beyond_tail"),  # 2.2: snapshot_offset exceeds the current tail
        (OffsetInsideMessage(7, 3, 9), 400, "offset_inside_message"),
        (Trimmed(9), 410, "trimmed"),
        (StreamNotFound("bucket/s"), 404, "stream_not_found"),
        (StreamGone("bucket/s"), 410, "stream_gone"),
    ],
)
def test_publishing_refused(result: object, status: int, name: str) -> None:
    reply = snapshot.answer(ask("PUT", AT), result)
    assert (reply.status, code(reply)) == (status, name)
    assert (b"Stream-Earliest-Offset: 00000000000000000009\r\n" in reply.headers) == (status == 410 and name == "trimmed")


def test_too_large() -> None:
    snapshot.command(ask("PUT", AT), bytes(snapshot.SNAPSHOT_BYTES_MAX))
    with pytest.raises(BadRequest) as caught:
        snapshot.command(ask("PUT", AT), bytes(snapshot.SNAPSHOT_BYTES_MAX + 1))
    assert caught.value.reply.status == 413


@pytest.mark.parametrize("surface", ["/ds/bucket/s", "/bucket/s", "/v1/stream/bucket/s", "/v1/stream/a%20b"])
def test_the_latest_is_a_redirect_on_the_same_surface(surface: str) -> None:
    request = ask("GET", "/snapshot", surface)
    assert snapshot.query(request) == ReadSnapshot(request.stream, -1, False)
    reply = snapshot.answer(request, SnapshotBlob(7, "a/b", b"", 9, False, 1))
    assert reply.status == 307 and f"Location: {surface}{AT}\r\n".encode() in reply.headers
    assert render(reply, keep_alive=True).startswith(b"HTTP/1.1 307 Temporary Redirect\r\n")
    assert snapshot.answer(request, NoSnapshot()).status == 404


def test_reading() -> None:
    request = ask("GET", AT)
    assert snapshot.query(request) == ReadSnapshot("bucket/s", 7, True)
    behind = snapshot.answer(request, SnapshotBlob(7, "text/x", b"fold", 9, True, 1))
    assert behind.status == 200 and behind.body == b"fold"
    for line in (b"Content-Type: text/x", b"Stream-Snapshot-Offset: %020d" % 7, b"Stream-Next-Offset: %020d" % 7, b"Stream-Up-To-Date: false"):
        assert line + b"\r\n" in behind.headers
    assert b"Stream-Closed" not in behind.headers
    up_to_date = snapshot.answer(request, SnapshotBlob(7, "text/html", b"fold", 7, True, 1))
    assert b"Stream-Up-To-Date: true\r\n" in up_to_date.headers and b"Stream-Closed: true\r\n" in up_to_date.headers
    assert b"sandbox" in up_to_date.headers  # a browser must not run what somebody published
    assert code(snapshot.answer(request, NoSnapshot())) == "snapshot_not_found"


def test_deleting_never_succeeds() -> None:
    request = ask("DELETE", AT)
    assert snapshot.query(request) == ReadSnapshot("bucket/s", 7, False)
    latest = snapshot.answer(request, SnapshotBlob(7, "a/b", b"", 9, False, 1))
    assert (latest.status, code(latest)) == (409, "latest_snapshot")
    assert snapshot.answer(request, NoSnapshot()).status == 404
