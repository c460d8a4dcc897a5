"""append-batch and published snapshots through the whole service."""

import json
from struct import pack
from typing import Any

import pytest

from tests.unit.service_world import GROUP, World, status

TEXT = "text/plain"


def framed(*payloads: bytes) -> bytes:
    return b"".join(pack(">I", len(payload)) + payload for payload in payloads)


def body(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def producer(seq: int) -> dict[str, str]:
    return {"content_type": TEXT, "producer_id": "p", "producer_epoch": "0", "producer_seq": str(seq)}


@pytest.mark.parametrize("where", ["leader", "follower", "stranger"])
def test_a_batch_is_one_entry_wherever_it_is_sent(where: str) -> None:
    world = World(3, extra=1)
    world.create("s")
    number = {"leader": world.leader, "follower": world.follower(), "stranger": 4}[where]
    log = world.nodes[world.leader].host.groups[GROUP].raft.log
    before = log.last_index
    done = world.do(number, "POST", "s/append-batch", framed(b"ab", b"", b"c"), content_type=TEXT)
    assert status(done) == 200
    assert body(done) == [
        {"status": 204, "stream_next_offset": 2},
        {"status": 400, "error_code": "empty_body", "error": "a frame needs at least one byte"},
        {"status": 204, "stream_next_offset": 3},
    ]
    assert log.last_index == before + 1
    assert world.do(number, "GET", "s").endswith(b"\r\n\r\nabc")
    assert status(world.do(number, "GET", "s?offset=00000000000000000001")) == 400  # inside the first frame: it is a message
    assert world.do(number, "GET", "s?offset=00000000000000000002").endswith(b"\r\n\r\nc")


def test_a_repeated_batch_is_appended_once() -> None:
    world = World(1)
    world.create("s")
    first = world.do(1, "POST", "s/append-batch", framed(b"ab", b"c"), **producer(0))
    again = world.do(1, "POST", "s/append-batch", framed(b"ab", b"c"), **producer(0))
    assert status(first) == status(again) == 200 and body(first) == body(again) == [{"status": 204, "stream_next_offset": n} for n in (2, 3)]
    assert b"Producer-Epoch: 0\r\nProducer-Seq: 0\r\n" in first
    later = world.do(1, "POST", "s/append-batch", framed(b"d"), **producer(1))
    assert body(later) == [{"status": 204, "stream_next_offset": 4}]
    older = world.do(1, "POST", "s/append-batch", framed(b"ab", b"c"), **producer(0))
    assert body(older) == [{"status": 204, "stream_next_offset": 4}] * 2
    gap = world.do(1, "POST", "s/append-batch", framed(b"x"), **producer(5))
    assert status(gap) == 409 and b"Producer-Expected-Seq: 2\r\n" in gap
    refused = world.do(1, "POST", "s/append-batch", framed(b"x", b""), **producer(2))
    assert status(refused) == 400
    assert world.do(1, "GET", "s").endswith(b"\r\n\r\nabcd")


def test_refusals_of_the_stream() -> None:
    world = World(1)
    assert status(world.do(1, "POST", "s/append-batch", framed(b"x"), content_type=TEXT)) == 404
    assert body(world.do(1, "POST", "s/append-batch", framed(b""), content_type=TEXT))[0]["status"] == 400  # nothing is asked of any stream
    world.create("s")
    assert status(world.do(1, "POST", "s/append-batch", framed(b"1"), content_type="application/json")) == 409
    assert body(world.do(1, "POST", "s/append-batch", framed(b""), content_type=TEXT))[0]["status"] == 400
    world.do(1, "POST", "s", b"x", content_type=TEXT, stream_closed="true")
    closed = world.do(1, "POST", "s/append-batch", framed(b"y"), content_type=TEXT)
    assert status(closed) == 200 and body(closed)[0]["status"] == 409 and body(closed)[0]["stream_closed"] is True
    assert world.nodes[1].service.pending == 0


def test_the_keys_of_a_batch() -> None:
    world = World(1)
    world.create("s")
    world.do(1, "POST", "s/append-batch", framed(b"ab", b"c"), content_type=TEXT, stream_key="k/1")
    world.append(1, b"other")
    assert world.do(1, "GET", "s?key=k%2F1").endswith(b"\r\n\r\nabc")
    assert world.do(1, "GET", "s/pk/k%2F1").endswith(b"\r\n\r\nabc")
    nothing = world.do(1, "GET", "s/pk/none")
    assert status(nothing) == 200 and b"Stream-Next-Offset: 00000000000000000008\r\n" in nothing


def test_published_snapshots() -> None:
    world = World(3, extra=1)
    world.create("s")
    for message in (b"ab", b"c", b"def"):
        world.append(world.leader, message)
    number = 4
    zero, inside, third, beyond = (f"s/snapshot/{offset:020d}" for offset in (0, 1, 3, 7))
    assert status(world.do(number, "GET", "s/snapshot")) == 404
    assert status(world.do(number, "PUT", inside, b"f")) == 400
    assert status(world.do(number, "PUT", beyond, b"f")) == 409
    assert status(world.do(number, "PUT", "t/snapshot/00000000000000000000", b"f")) == 404
    assert status(world.do(number, "PUT", third, b"fold", content_type="x/y")) == 204
    latest = world.do(number, "GET", "/ds/_default/s/snapshot")
    assert status(latest) == 307 and b"Location: /ds/_default/s/snapshot/00000000000000000003\r\n" in latest
    told = world.do(number, "GET", third)
    assert status(told) == 200 and told.endswith(b"\r\n\r\nfold") and b"Content-Type: x/y\r\n" in told and b"Stream-Up-To-Date: false\r\n" in told
    assert b"Stream-Snapshot-Offset: 00000000000000000003\r\n" in world.do(number, "HEAD", "s")
    older = world.do(number, "PUT", zero, b"f")
    assert status(older) == 410 and b"Stream-Earliest-Offset: 00000000000000000003\r\n" in older
    assert status(world.do(number, "GET", zero)) == 404
    assert status(world.do(number, "DELETE", third)) == 409 and status(world.do(number, "DELETE", zero)) == 404
    assert status(world.do(number, "GET", "s?offset=00000000000000000002")) == 410
    assert world.do(number, "GET", "s?offset=00000000000000000003").endswith(b"\r\n\r\ndef")


def test_raw_reads() -> None:
    world = World(1)
    assert status(world.do(1, "PUT", "s", b'[{"a" : 1}, [2]]', content_type="application/json")) == 201
    raw = world.do(1, "GET", "s?format=raw")
    assert raw.endswith(b'\r\n\r\n{"a" : 1}[2]') and b"Content-Type: application/octet-stream\r\n" in raw
    world.create("t")
    assert status(world.do(1, "GET", "t?format=json")) == 400


def test_listings_by_row() -> None:
    world = World(3)
    names = [f"n{number:02d}" for number in range(7)]
    for name in reversed(names):
        world.create(name)
    world.append(world.leader, b"abc", "n03")
    number = world.follower()
    found = []
    for row in range(0, 9, 2):
        page = body(world.do(number, "GET", f"/v1/streams?offset={row}&limit=2"))
        assert len(page) == min(2, max(0, 7 - row))
        found += page
    assert [row["name"] for row in found] == names and found[3]["next_offset"] == "3"
    assert [row["name"] for row in body(world.do(number, "GET", "/v1/streams?offset=1&limit=2&prefix=_default/n0&after=_default/n01"))] == [
        "n03",
        "n04",
    ]
    assert set(body(world.do(number, "GET", "/v1/streams"))) == {"streams", "more", "after"}
