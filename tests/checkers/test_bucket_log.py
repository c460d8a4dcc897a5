"""The judge of buckets, judged: each rule lets the truth pass and notices the lie. The logs of a meta group and one other are written by hand."""

import json
from typing import Any

import pytest

from anabranch_node.core.cluster.commands import BucketCreate, BucketDelete, BucketDeleted, BucketRestored, InitCluster, RegisterNode
from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.stream.commands import BucketFence, BucketOpen, Create, Delete, commands_payload, encode_commands
from tests.checkers.answers import Exchange, Judge
from tests.checkers.bucket_log import Bucket, BucketLog
from tests.checkers.timeline import Timeline
from tests.sim.http_wire import Response

S = "some/s"
MADE = 2 << 16
"""The place of the create of bucket some in meta(), which is the second entry."""


class Logs:
    def __init__(self) -> None:
        self.timeline = Timeline()
        self.buckets = BucketLog({1: self.timeline})
        self.judge = Judge({1: self.timeline}, self.buckets)
        self._meta = self._index = 0
        assert self.meta(InitCluster("c", 1, 1, RegisterNode("n1", 1, 1, "", "", "", "", 0), 0)) == ""

    def meta(self, command: Any) -> str:
        self._meta += 1
        return self.buckets.committed(self._meta, entries_of.encode(1, entries_of.COMMANDS_V1, encode_commands([command])))

    def group(self, command: Any) -> str:
        self._index += 1
        entry = entries_of.encode(1, entries_of.COMMANDS_V1, commands_payload([encode_commands([command])[1:]]))
        wrong = self.judge.committed(self.timeline.add(self._index, entry), self.timeline)
        return wrong or self.buckets.group_changed(1, self.timeline.model)

    def ask(self, method: str, **fields: Any) -> Exchange:
        fields = {"bucket": "some", **fields}
        stream = S if not fields["bucket"] else ""
        exchange = Exchange(1, method, stream, self.timeline.count, moment=self.buckets.now, lows={1: self.timeline.count}, **fields)
        self.judge.sent(exchange)
        return exchange

    def says(self, exchange: Exchange, status: int, code: str = "", **body: Any) -> str:
        told = {"error": {"code": code}} if code else body
        return self.judge.judge(exchange, Response(status, {}, json.dumps(told).encode() if told else b""), self.timeline)

    def with_a_stream(self) -> "Logs":
        self.ask("PUT", bucket="", mark="c1")
        assert self.group(BucketOpen("some", MADE, 0)) == ""
        assert self.group(Create(S, "text/plain; try=c1", 1)) == ""
        return self


@pytest.fixture
def logs() -> Logs:
    """The bucket is there."""
    logs = Logs()
    assert logs.meta(BucketCreate("some", 5)) == ""
    assert logs.buckets.buckets() == {"_default": Bucket(False, 1 << 16, 1 << 16, 0), "some": Bucket(False, MADE, MADE, 5)}
    return logs


def test_a_bucket_is_made_once(logs: Logs) -> None:
    assert "no create" in logs.says(logs.ask("PUT"), 201)
    assert logs.says(logs.ask("PUT"), 409, "bucket_exists") == ""
    logs = Logs()
    first, second = logs.ask("PUT"), logs.ask("PUT")
    logs.meta(BucketCreate("some", 0))
    assert logs.says(first, 201) == ""
    assert "no create" in logs.says(second, 201)
    assert "never open" in logs.says(logs.ask("PUT", bucket="none"), 409, "bucket_exists")


def test_a_delete_is_decided_while_its_client_waits(logs: Logs) -> None:
    asked = logs.ask("DELETE")
    logs.meta(BucketDelete("some", 0))
    assert "not deleted since" in logs.says(asked, 204)
    assert "given up" in logs.says(asked, 409, "bucket_not_empty")
    assert logs.meta(BucketDeleted("some", 3 << 16, 0)) == ""
    assert logs.says(asked, 204) == ""
    assert "not deleted since" in logs.says(logs.ask("DELETE"), 204)
    assert logs.says(logs.ask("DELETE"), 404, "bucket_not_found") == ""


def test_a_bucket_that_is_there_is_not_missing(logs: Logs) -> None:
    for method in ("DELETE", "GET", "LIST"):
        assert "all the time" in logs.says(logs.ask(method), 404, "bucket_not_found")
    assert "may be deleted" in logs.says(logs.ask("DELETE"), 409, "bucket_reserved")
    assert logs.says(logs.ask("DELETE", bucket="_default"), 409, "bucket_reserved") == ""


def test_a_delete_of_a_bucket_with_streams_is_noticed(logs: Logs) -> None:
    logs.with_a_stream().meta(BucketDelete("some", 0))
    assert "hold streams of it: {1: 1}" in logs.meta(BucketDeleted("some", 3 << 16, 0))


def test_a_delete_that_is_given_up_without_a_stream_is_noticed(logs: Logs) -> None:
    logs.with_a_stream().group(Delete(S, 2))
    logs.meta(BucketDelete("some", 0))
    assert "no group held a stream" in logs.meta(BucketRestored("some", 3 << 16, 0))


def test_one_that_was_counted_and_went_is_enough(logs: Logs) -> None:
    asked = logs.with_a_stream().ask("DELETE")
    logs.meta(BucketDelete("some", 0))
    logs.group(BucketFence("some", 3 << 16, 0))
    logs.group(Delete(S, 2))
    assert logs.meta(BucketRestored("some", 3 << 16, 0)) == ""
    assert logs.says(asked, 409, "bucket_not_empty") == ""
    assert "given up" in logs.says(logs.ask("DELETE"), 409, "bucket_not_empty")


def test_a_decision_of_another_round_is_none(logs: Logs) -> None:
    logs.meta(BucketDelete("some", 0))
    logs.meta(BucketDeleted("some", 2 << 16, 0))
    state = logs.buckets.state("some")
    assert state is not None and state.deleting


def test_a_stream_in_a_bucket_that_is_gone_is_noticed(logs: Logs) -> None:
    logs.group(BucketOpen("some", MADE, 0))
    logs.meta(BucketDelete("some", 0))
    logs.meta(BucketDeleted("some", 3 << 16, 0))
    logs.ask("PUT", bucket="", mark="c1")
    assert "does not exist" in logs.group(Create(S, "text/plain; try=c1", 1))


def test_a_create_is_refused_for_its_bucket_only_if_that_is_missing(logs: Logs) -> None:
    def create(**fields: Any) -> Exchange:
        return logs.ask("PUT", bucket="", mark=f"c{logs.buckets.now}", **fields)

    assert "its bucket was there" in logs.says(create(makes_bucket=False), 404, "bucket_not_found")
    assert "no bucket was being deleted" in logs.says(create(), 503, "bucket_deleting")
    logs.meta(BucketDelete("some", 0))
    assert logs.says(create(), 503, "bucket_deleting") == ""
    logs.meta(BucketDeleted("some", 3 << 16, 0))
    assert logs.says(create(makes_bucket=False), 404, "bucket_not_found") == ""
    assert "is made with it" in logs.says(create(), 404, "bucket_not_found")


def test_what_is_said_of_a_bucket(logs: Logs) -> None:
    early = logs.ask("GET")
    logs.with_a_stream()
    assert logs.says(early, 200, bucket_id="some", streams=0, created_at_ms=5) == ""
    assert "1 to 1" in logs.says(logs.ask("GET"), 200, bucket_id="some", streams=0, created_at_ms=5)
    assert logs.says(logs.ask("GET"), 200, bucket_id="some", streams=1, created_at_ms=5) == ""
    assert "not made then" in logs.says(logs.ask("GET"), 200, bucket_id="some", streams=1, created_at_ms=6)


def test_a_listing_of_a_bucket(logs: Logs) -> None:
    logs.with_a_stream()
    row = {"stream_id": "s", "status": "Open", "content_type": "text/plain; try=c1", "tail_offset": 0}

    def listed(*rows: dict[str, Any], **fields: Any) -> str:
        return logs.says(logs.ask("LIST", **fields), 200, bucket_id="some", streams=list(rows), has_more=False, next_cursor=None)

    assert listed(row) == ""
    assert listed(prefix="t") == "" == listed(after="s")
    assert "not listed" in listed()
    assert "never was that" in listed({**row, "tail_offset": 1})
    assert "never were" in listed(row, {**row, "stream_id": "t"})
    assert "not in order" in listed(row, row)
