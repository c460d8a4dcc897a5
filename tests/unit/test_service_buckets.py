"""Buckets through the whole service: who makes them, what a create in one costs, and creates that meet a delete, in every order.

Group 0 is real. A test holds the frames of one node to stop the world between two steps."""

import json
from itertools import pairwise
from typing import Any

import pytest

from anabranch_node.core.cluster import buckets as cluster_buckets
from anabranch_node.core.cluster.commands import BucketDelete
from anabranch_node.core.cluster.queries import BucketLook
from anabranch_node.core.cluster.results import BucketState
from anabranch_node.core.effects import TransferLeadership
from anabranch_node.core.stream.commands import BucketFence, BucketOpen
from anabranch_node.core.stream.queries import BucketCount
from anabranch_node.core.stream.results import BucketFenced, BucketOpened, StaleOpen
from anabranch_node.service.buckets import OPENS_MAX
from anabranch_node.service.cross import REPEAT_MS
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import ServiceOptions
from anabranch_node.web.request import Kind, Request
from anabranch_proto.ids import META_GROUP, group_of
from tests.unit.service_world import TICK_MS, World, status

B = "agents"
GROUPS = 4


@pytest.fixture
def world() -> World:
    return World(groups=GROUPS)


def put(stream: str, makes_bucket: bool = False, bucket: str = B) -> Request:
    return Request(Kind.CREATE, f"{bucket}/{stream}", f"/ds/{bucket}/{stream}", "text/plain", http_host="h", makes_bucket=makes_bucket)


def create(world: World, stream: str, number: int = 1, makes_bucket: bool = False) -> bytes:
    return world.answer(number, world.send(number, put(stream, makes_bucket)))


def delete_stream(world: World, stream: str) -> int:
    return status(world.answer(1, world.send(1, Request(Kind.DELETE, f"{B}/{stream}"))))


def make(world: World) -> None:
    assert status(world.bucket(2, Kind.BUCKET_CREATE, B)) == 201


def code(answer: bytes) -> str:
    found: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
    return found


def body(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def name_in(group: int, start: str = "s") -> str:
    """A stream of the bucket that lives in that group."""
    return next(f"{start}{number}" for number in range(1_000) if group_of(B, f"{start}{number}", GROUPS) == group)


def opens(world: World, group: int) -> set[str]:
    machine: Any = world.nodes[world.leader_of(group)].host.groups[group].machine
    return set(machine._table.fences.opened)


def streams_of(world: World, bucket: str = B) -> int:
    return sum(world.told(1, group, False, BucketCount(bucket)).streams for group in range(1, GROUPS + 1))


def state(world: World) -> str:
    found = world.told(1, META_GROUP, False, BucketLook(B))
    return found.state if isinstance(found, BucketState) else "absent"


def at_rest(world: World) -> bool:
    return all(not node.service.pending and not node.service.buckets.pending and not len(node.service.cross.errands) for node in world.nodes.values())


# --- one request after the other -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_bucket_from_its_create_to_its_end(number: int) -> None:
    world = World(holders=3, groups=GROUPS)
    assert code(create(world, "a", number)) == "bucket_not_found"
    made = world.bucket(number, Kind.BUCKET_CREATE, B, path=f"/ds/{B}", http_host="h")
    assert status(made) == 201 and b"Location: http://h/ds/agents\r\n" in made
    again = world.bucket(number, Kind.BUCKET_CREATE, B)
    assert (status(again), code(again)) == (409, "bucket_exists")
    assert [status(create(world, stream, number)) for stream in ("a", "b", "c", "d")] == [201] * 4
    info = world.bucket(number, Kind.BUCKET_INFO, B)
    assert status(info) == 200 and body(info)["bucket_id"] == B and body(info)["streams"] == 4
    assert abs(body(info)["created_at_ms"] - world.now_ms) < 60_000
    full = world.bucket(number, Kind.BUCKET_DELETE, B)
    assert (status(full), code(full)) == (409, "bucket_not_empty")
    assert status(create(world, "e", number)) == 201, "it is open again"
    assert [delete_stream(world, stream) for stream in ("a", "b", "c", "d", "e")] == [204] * 5
    assert status(world.bucket(number, Kind.BUCKET_DELETE, B)) == 204
    for kind in (Kind.BUCKET_INFO, Kind.BUCKET_LIST, Kind.BUCKET_DELETE):
        assert code(world.bucket(number, kind, B)) == "bucket_not_found"
    assert code(create(world, "a", number)) == "bucket_not_found"
    assert status(world.bucket(number, Kind.BUCKET_CREATE, B)) == 201
    assert status(create(world, "a", number)) == 201
    world.ticks(2)
    assert at_rest(world)


def test_a_node_without_replicas_serves_buckets_as_well() -> None:
    world = World(holders=3, extra=1, groups=2)
    assert status(world.bucket(4, Kind.BUCKET_CREATE, B)) == 201
    assert status(create(world, "a", 4)) == 201
    assert body(world.bucket(4, Kind.BUCKET_INFO, B))["streams"] == 1
    assert code(world.bucket(4, Kind.BUCKET_DELETE, B)) == "bucket_not_empty"


def test_only_v1_makes_the_bucket_of_a_stream(world: World) -> None:
    assert code(create(world, "a")) == "bucket_not_found"
    assert state(world) == "absent"
    assert status(create(world, "a", makes_bucket=True)) == 201
    assert state(world) == "open"
    assert status(create(world, "b", 3)) == 201


def test_the_default_bucket_is_there_and_stays(world: World) -> None:
    assert code(world.bucket(1, Kind.BUCKET_DELETE, "_default")) == "bucket_reserved"
    world.create("s")
    assert body(world.bucket(1, Kind.BUCKET_INFO, "_default"))["streams"] == 1


def test_nothing_but_a_create_asks_for_the_bucket(world: World) -> None:
    for kind in (Kind.HEAD, Kind.READ, Kind.DELETE):
        assert status(world.answer(1, world.send(1, Request(kind, f"{B}/s")))) == 404
    assert status(world.answer(1, world.send(1, Request(Kind.APPEND, f"{B}/s", content_type="text/plain"), b"x"))) == 404


def test_a_bucket_is_opened_once_in_each_group(world: World) -> None:
    make(world)
    create(world, name_in(1))
    leader = world.leader_of(1)
    before = world.nodes[leader].host.groups[1].machine.applied_index
    assert status(create(world, name_in(1, "t"))) == 201
    assert world.nodes[leader].host.groups[1].machine.applied_index == before + 1, "the create alone"
    assert B in opens(world, 1) and B not in opens(world, 2)


def test_too_many_buckets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_buckets, "BUCKETS_MAX", 1)
    for answer in (world.bucket(1, Kind.BUCKET_CREATE, B), create(world, "a", makes_bucket=True)):
        assert (status(answer), code(answer)) == (429, "too_many_buckets")
        assert b"Retry-After: " in answer


# --- a create meets a delete ----------------------------------------------------------------------------------------------------------


def halt_deletes(world: World) -> None:
    """Nobody carries out deletes until resume()."""
    for node in world.nodes.values():
        node.service.cross.tick = lambda *_: None  # type: ignore[method-assign]


def resume_deletes(world: World) -> None:
    for node in world.nodes.values():
        del node.service.cross.tick  # type: ignore[method-assign]


def test_creates_under_a_delete_are_definitely_refused_until_it_is_decided(world: World) -> None:
    make(world)
    create(world, name_in(1))
    halt_deletes(world)
    token = world.send(3, Request(Kind.BUCKET_DELETE, bucket=B))
    world.settle()
    for answer in (create(world, name_in(2)), world.bucket(1, Kind.BUCKET_CREATE, B), create(world, name_in(2), makes_bucket=True)):
        assert (status(answer), code(answer)) == (503, "bucket_deleting") and b"Retry-After: 1\r\n" in answer
    assert status(create(world, name_in(1, "t"))) == 201, "its group is not fenced yet, and counts it later"
    assert status(world.bucket(1, Kind.BUCKET_INFO, B)) == 200, "it is there until it is decided"
    resume_deletes(world)
    assert code(world.answer(3, token)) == "bucket_not_empty"
    assert status(create(world, name_in(2))) == 201


def test_a_create_whose_group_was_not_fenced_yet_saves_its_bucket(world: World) -> None:
    make(world)
    stream = name_in(1)
    create(world, stream)
    assert delete_stream(world, stream) == 204
    halt_deletes(world)
    token = world.send(3, Request(Kind.BUCKET_DELETE, bucket=B))
    world.settle()
    assert status(create(world, stream)) == 201
    resume_deletes(world)
    assert code(world.answer(3, token)) == "bucket_not_empty"
    assert streams_of(world) == 1 and state(world) == "open"


def test_an_open_that_a_fence_overtook_is_stale_and_the_create_looks_again(world: World) -> None:
    """The look is answered and the open is on its way; then the bucket is deleted and made again, or only deleted."""
    make(world)
    group, stream = 2, name_in(2)
    world.nodes[world.leader_of(META_GROUP)].inbox.append(TransferLeadership(0, META_GROUP, 2))
    world.ticks(20)
    leader, asker = world.leader_of(group), 3
    assert asker not in (leader, world.leader_of(META_GROUP))
    token = world.send(asker, put(stream))
    world.nodes[asker].turn()  # refused there ...
    hold_opens(world, asker, leader, group)
    assert world.held, "the open waits"
    assert token not in world.nodes[asker].answers
    assert status(world.bucket(leader, Kind.BUCKET_DELETE, B)) == 204
    world.release()
    assert code(world.answer(asker, token)) == "bucket_not_found"
    assert streams_of(world) == 0


def hold_opens(world: World, source: int, to: int, group: int) -> None:
    """Carry frames until `source` has seen the bucket open in the meta group; from then on keep what it sends to `to`."""
    service = world.nodes[source].service
    ask = service.ask

    def watching(asked: int, write: bool, payload: Any, then: Any) -> None:
        if asked == group and isinstance(payload, BucketOpen):
            world.hold.add((source, to))
        ask(asked, write, payload, then)

    service.ask = watching  # type: ignore[method-assign]
    world.settle()
    for _ in range(10):
        if not world.hold:
            world.ticks(1)
    service.ask = ask  # type: ignore[method-assign]


def test_delete_and_make_again_between_a_look_and_its_open(world: World) -> None:
    make(world)
    group, stream = 2, name_in(2)
    leader = world.leader_of(group)
    asker = next(number for number in (1, 2, 3) if number != leader)
    token = world.send(asker, put(stream))
    hold_opens(world, asker, leader, group)
    assert world.held
    assert status(world.bucket(leader, Kind.BUCKET_DELETE, B)) == 204
    assert status(world.bucket(leader, Kind.BUCKET_CREATE, B)) == 201
    world.release()
    assert status(world.answer(asker, token)) == 201, "stale, seen again, opened, made"
    assert streams_of(world) == 1 and state(world) == "open"


def test_a_late_open_never_opens_a_deleted_bucket(world: World) -> None:
    make(world)
    look = world.told(1, META_GROUP, False, BucketLook(B))
    assert world.told(1, 2, True, BucketOpen(B, look.meta_index, 0)) == BucketOpened()
    assert status(world.bucket(1, Kind.BUCKET_DELETE, B)) == 204
    assert all(world.told(1, group, True, BucketOpen(B, look.meta_index, 0)) == StaleOpen() for group in range(1, GROUPS + 1))
    assert code(create(world, name_in(2))) == "bucket_not_found"


def test_a_late_fence_only_costs_another_open(world: World) -> None:
    make(world)
    since = world.told(1, META_GROUP, True, BucketDelete(B, 0)).since_index
    world.ticks(5)
    make(world)
    assert status(create(world, name_in(2))) == 201
    assert world.told(1, 2, True, BucketFence(B, since, 0)) == BucketFenced(1)
    assert B not in opens(world, 2)
    assert status(create(world, name_in(2, "t"))) == 201
    assert streams_of(world) == 2 and state(world) == "open"


def test_an_open_that_is_always_overtaken_ends_with_a_definite_refusal(world: World) -> None:
    make(world)
    assert world.told(1, 2, True, BucketFence("others", 1 << 60, 0)) == BucketFenced(0)
    answer = create(world, name_in(2))
    assert (status(answer), code(answer)) == (503, "bucket_deleting")
    assert streams_of(world) == 0 and OPENS_MAX < 20
    assert status(create(world, name_in(1))) == 201


def test_two_deletes_at_once_are_one(world: World) -> None:
    make(world)
    tokens = {number: world.send(number, Request(Kind.BUCKET_DELETE, bucket=B)) for number in (1, 2, 3)}
    assert [status(world.answer(number, token)) for number, token in tokens.items()] == [204] * 3
    assert at_rest(world)


# --- what breaks -----------------------------------------------------------------------------------------------------------------------


def test_the_next_leader_of_the_meta_group_carries_a_delete_on() -> None:
    """The first one dies when some groups are fenced: at its tick the fences leave, and those to other nodes get lost."""
    world = World(groups=GROUPS, options=ServiceOptions(request_timeout_ms=3_000, live=LiveOptions(long_poll_timeout_ms=1_000)))
    make(world)
    streams = [name_in(group) for group in range(1, GROUPS + 1)]
    assert [status(create(world, stream)) for stream in streams] == [201] * GROUPS
    assert [delete_stream(world, stream) for stream in streams] == [204] * GROUPS
    first = world.leader_of(META_GROUP)
    for group in range(1, GROUPS + 1):  # half of the groups are led elsewhere
        if group % 2:
            held = world.nodes[world.leader_of(group)].host.groups[group]
            world.nodes[world.leader_of(group)].inbox.append(TransferLeadership(0, group, 10 * group + (first % 3) + 1))
            assert held is not None
    world.ticks(40)
    asker = next(number for number in (1, 2, 3) if number != first)
    halt_deletes(world)
    token = world.send(asker, Request(Kind.BUCKET_DELETE, bucket=B))
    world.settle()
    assert state(world) == "deleting"
    resume_deletes(world)
    meta = world.nodes[first]
    meta.service.cross.tick(meta.service._uptime_ms, meta.service.routing)  # type: ignore[arg-type]
    world.cut = {(first, other) for other in (1, 2, 3) if other != first} | {(other, first) for other in (1, 2, 3) if other != first}
    meta.turn()
    meta.up = False
    world.cut.clear()
    fenced = [group for group in range(1, GROUPS + 1) if any(B not in opened for opened in [_opened(world, group)])]
    assert len(fenced) < GROUPS, "not all were fenced when it died"
    world.ticks(100)
    assert world.leader_of(META_GROUP) != first
    # How the client fares depends on whether its look went to the dead leader; the bucket must be gone either way.
    assert state_at(world, asker) == "absent"
    assert status(world.answer(asker, token)) in (204, 503)
    for group in range(1, GROUPS + 1):
        assert B not in opens(world, group)


def _opened(world: World, group: int) -> set[str]:
    machines: list[Any] = [node.host.groups[group].machine for node in world.nodes.values() if node.up]
    return {bucket for machine in machines for bucket in machine._table.fences.opened}


def state_at(world: World, number: int) -> str:
    found = world.told(number, META_GROUP, False, BucketLook(B))
    return found.state if isinstance(found, BucketState) else "absent"


def test_a_delete_whose_groups_do_not_answer_is_unknown_and_goes_on() -> None:
    world = World(groups=2, options=ServiceOptions(request_timeout_ms=1_000, live=LiveOptions(long_poll_timeout_ms=500)))
    make(world)
    halt_deletes(world)
    token = world.send(2, Request(Kind.BUCKET_DELETE, bucket=B))
    answer = world.answer(2, token, ticks_max=40)
    assert (status(answer), code(answer)) == (503, "outcome_unknown")
    resume_deletes(world)
    world.ticks(5)
    assert state(world) == "absent"
    assert at_rest(world)


def test_a_client_that_leaves_does_not_stop_a_delete(world: World) -> None:
    make(world)
    token = world.send(2, Request(Kind.BUCKET_DELETE, bucket=B))
    world.nodes[2].turn()
    world.leave(2, token)
    world.ticks(10)
    assert state(world) == "absent" and token not in world.nodes[2].answers
    assert at_rest(world)


def test_a_client_that_leaves_while_its_bucket_is_opened(world: World) -> None:
    make(world)
    token = world.send(2, put("a"))
    hold_opens(world, 2, world.leader_of(1), 1)
    world.leave(2, token)
    world.release()
    world.ticks(5)
    assert token not in world.nodes[2].answers or status(world.nodes[2].answers[token]) == 201
    assert at_rest(world)


def test_a_fence_is_not_sent_twice_within_a_second() -> None:
    world = World(holders=3, groups=1)
    make(world)
    meta, leader = world.leader_of(META_GROUP), world.leader_of(1)
    if meta == leader:
        target = next(number for number in (1, 2, 3) if number != leader)
        world.nodes[leader].inbox.append(TransferLeadership(0, 1, 10 + target))
        world.ticks(20)
        leader = world.leader_of(1)
    assert meta != leader
    sent: list[int] = []
    ask = world.nodes[meta].service.cross.errands._ask

    def counting(group: int, write: bool, payload: Any, then: Any) -> None:
        if isinstance(payload, BucketFence):
            sent.append(world.now_ms)
            then(StaleOpen())  # as good as lost
        else:
            ask(group, write, payload, then)

    world.nodes[meta].service.cross.errands._ask = counting
    world.send(meta, Request(Kind.BUCKET_DELETE, bucket=B))
    world.ticks(3 * REPEAT_MS // TICK_MS)
    assert len(sent) == 3 and all(later - earlier >= REPEAT_MS for earlier, later in pairwise(sent))


def test_the_default_bucket_costs_one_open_for_each_group(world: World) -> None:
    for number in range(20):
        world.create(f"s{number}")
    assert [opens(world, group) for group in range(1, GROUPS + 1)] == [{"_default"}] * GROUPS


def test_a_fork_opens_its_bucket_and_makes_it_on_v1_only(world: World) -> None:
    world.create("source")
    for surface, wanted in (("/ds", 404), ("/v1/stream", 201), ("/ds", 200)):
        answer = world.do(1, "PUT", f"{surface}/{B}/fork", stream_forked_from="/v1/stream/source")
        assert status(answer) == wanted, (surface, answer)
    assert streams_of(world) == 1


def test_a_listing_has_the_streams_of_its_bucket_alone_in_order_and_in_pages(world: World) -> None:
    make(world)
    names = [f"user-{number}" for number in range(6)] + ["other"]
    assert [status(create(world, name)) for name in names] == [201] * 7
    assert status(world.do(1, "PUT", "/v1/stream/agents-2/user-9", content_type="text/plain")) == 201
    assert status(world.do(2, "POST", f"/ds/{B}/user-1", b"hello", content_type="text/plain", stream_closed="true")) == 204
    after, seen = "", []
    for left in (4, 2, 0):
        answer = world.do(3, "GET", f"/ds/{B}/streams?prefix=user-&limit=2{after}")
        page = body(answer)
        assert status(answer) == 200 and (page["bucket_id"], page["prefix"], page["stream_count"]) == (B, "user-", 6)
        assert page["has_more"] == (left > 0) and page["next_cursor"] == (page["streams"][-1]["stream_id"] if left else None)
        seen += page["streams"]
        after = f"&after={page['next_cursor']}"
    assert [row["stream_id"] for row in seen] == names[:6]
    row = seen[1]
    assert {key: row[key] for key in ("status", "content_type", "tail_offset")} == {
        "status": "Closed",
        "content_type": "text/plain",
        "tail_offset": 5,
    }
    assert 0 < row["created_at_ms"] <= row["last_write_at_ms"] and seen[0]["status"] == "Open"
    assert body(world.do(3, "GET", f"/{B}/streams"))["stream_count"] == 7
