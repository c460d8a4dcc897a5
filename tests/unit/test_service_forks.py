"""Forks over groups and nodes: made, read, let go. Every stream here has a group of its own, and each group another leader."""

from typing import Any

import pytest

from anabranch_node.core.stream.commands import CreateFork, Pin
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.queries import NOW
from anabranch_node.core.stream.results import ForkTooLate, Pinned
from anabranch_node.service.service import ServiceOptions
from anabranch_proto.ids import group_of
from tests.unit.service_world import World, status

GROUPS = 8


def name_in(group: int, taken: tuple[str, ...] = ()) -> str:
    return next(name for number in range(1_000) if (name := f"n{number}") not in taken and group_of("_default", name, GROUPS) == group)


SOURCE, FORK, THIRD, FOURTH = (name_in(group) for group in (1, 2, 3, 5))


@pytest.fixture
def world() -> World:
    return World(holders=3, extra=1, groups=GROUPS, spread=True)


def put(world: World, name: str, body: bytes = b"", node: int = 1, content_type: str = "text/plain", **headers: str) -> bytes:
    if content_type:
        headers["content_type"] = content_type
    return world.do(node, "PUT", name, body, **headers)


def fork(world: World, name: str = FORK, source: str = SOURCE, node: int = 1, body: bytes = b"", **headers: str) -> bytes:
    return put(world, name, body, node, "", stream_forked_from=f"/v1/stream/{source}", **headers)


def append(world: World, name: str, body: bytes, node: int = 1, content_type: str = "text/plain") -> None:
    assert status(world.do(node, "POST", name, body, content_type=content_type)) in (200, 204)


def read(world: World, name: str, node: int = 1, query: str = "offset=-1") -> bytes:
    answer = world.do(node, "GET", f"{name}?{query}")
    assert status(answer) == 200, answer
    return answer.partition(b"\r\n\r\n")[2]


def header(answer: bytes, name: str) -> str | None:
    for line in answer.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        key, _, value = line.partition(b": ")
        if key.lower() == name.encode():
            return value.decode()
    return None


def machines(world: World) -> list[StreamMachine]:
    found = []
    for node in world.nodes.values():
        for group in node.host.groups.values():
            if isinstance(group.machine, StreamMachine):
                found.append(group.machine)
    return found


def nothing_is_owed(world: World) -> bool:
    return not any(machine.outbox or machine.pending_pins() for machine in machines(world))


@pytest.mark.parametrize("node", [1, 2, 3, 4])
def test_a_fork_reads_what_it_inherits_and_its_own_at_any_node(world: World, node: int) -> None:
    put(world, SOURCE, b"hello ")
    made = fork(world, node=node)
    assert status(made) == 201
    assert header(made, "content-type") == "text/plain"
    append(world, FORK, b"fork", node)
    append(world, SOURCE, b"source", node)
    assert read(world, FORK, node) == b"hello fork"
    assert read(world, SOURCE, node) == b"hello source"
    assert read(world, FORK, node, f"offset={6:020d}") == b"fork"
    assert status(fork(world, node=node)) == 200
    assert status(fork(world, node=node, stream_fork_offset=f"{0:020d}")) == 409


def test_one_json_array_across_the_boundary_whatever_the_size_of_a_response(world: World) -> None:
    put(world, SOURCE, b"[1,22,333]", content_type="application/json")
    fork(world, body=b"[4444]")
    append(world, FORK, b"5", content_type="application/json")
    assert read(world, FORK) == b"[1,22,333,4444,5]"
    for max_bytes in range(1, 20):
        found: list[bytes] = []
        offset = "-1"
        while True:
            answer = world.do(4, "GET", f"{FORK}?offset={offset}&max_bytes={max_bytes}")
            body = answer.partition(b"\r\n\r\n")[2]
            assert body.startswith(b"[")
            assert body.endswith(b"]")
            found += body[1:-1].split(b",") if len(body) > 2 else []
            offset = header(answer, "stream-next-offset") or ""
            if header(answer, "stream-up-to-date"):
                break
        assert found == [b"1", b"22", b"333", b"4444", b"5"], max_bytes


def test_a_chain_of_forks_and_a_point_inside_what_is_inherited(world: World) -> None:
    put(world, SOURCE, b"aaa")
    append(world, SOURCE, b"bbb")
    fork(world, FORK, SOURCE)
    append(world, FORK, b"ccc")
    fork(world, THIRD, FORK)
    append(world, THIRD, b"ddd")
    assert read(world, THIRD, 2) == b"aaabbbcccddd"
    # Two bytes into the second message, which the third stream inherits from the first.
    made = fork(world, FOURTH, THIRD, stream_fork_offset=f"{3:020d}", stream_fork_sub_offset="2")
    assert status(made) == 201, made
    append(world, FOURTH, b"!", 3)
    assert read(world, FOURTH, 4) == b"aaabb!"
    assert read(world, FOURTH, 4, f"offset={3:020d}") == b"bb!"
    for node, name in ((1, FORK), (2, THIRD), (3, FOURTH)):
        assert status(world.do(node, "GET", f"{name}?offset={1:020d}")) == 400
    elsewhere = name_in(7)
    assert status(fork(world, elsewhere, THIRD, stream_fork_offset=f"{1:020d}")) == 400
    assert status(fork(world, elsewhere, THIRD, stream_fork_offset=f"{3:020d}", stream_fork_sub_offset="4")) == 400
    assert status(fork(world, elsewhere, THIRD, stream_fork_offset=f"{13:020d}")) == 400
    world.ticks(100)
    assert nothing_is_owed(world)


def test_json_messages_are_counted_across_inherited_parts(world: World) -> None:
    put(world, SOURCE, b"[1,2]", content_type="application/json")
    fork(world, FORK, SOURCE)
    append(world, FORK, b"[3,4]", content_type="application/json")
    made = fork(world, THIRD, FORK, stream_fork_offset=f"{2:020d}", stream_fork_sub_offset="2")
    assert status(made) == 201, made
    assert read(world, THIRD) == b"[1,2,3]"
    assert status(fork(world, FOURTH, FORK, stream_fork_offset=f"{2:020d}", stream_fork_sub_offset="4")) == 400


def test_a_deleted_source_is_kept_for_its_forks_and_freed_with_the_last(world: World) -> None:
    put(world, SOURCE, b"kept")
    fork(world, FORK, SOURCE)
    fork(world, THIRD, FORK)
    for name in (SOURCE, FORK):
        assert status(world.do(2, "DELETE", name)) == 204
        assert status(world.do(3, "GET", f"{name}?offset=-1")) == 410
        assert status(world.do(3, "HEAD", name)) == 410
        assert status(world.do(3, "DELETE", name)) == 410
        assert status(world.do(3, "POST", name, b"x", content_type="text/plain")) == 410
        assert status(put(world, name)) == 409
        assert status(fork(world, FOURTH, name)) == 409
    assert read(world, THIRD) == b"kept"
    assert status(world.do(1, "DELETE", THIRD)) == 204
    assert status(world.do(1, "GET", f"{THIRD}?offset=-1")) == 404
    world.ticks(10)
    for name in (SOURCE, FORK):
        assert status(world.do(1, "HEAD", name)) == 404
    assert nothing_is_owed(world)
    assert sum(machine.stream_count + machine.hot_bytes for machine in machines(world)) == 0


def test_a_pin_whose_fork_was_never_made_is_dropped_and_its_uuid_refused(world: World) -> None:
    put(world, SOURCE, b"data")
    told: list[Any] = []
    asking = world.nodes[4].service
    asking.ask(1, True, Pin(f"_default/{SOURCE}", "u1", f"_default/{FORK}", NOW, 0, "", 0), told.append)
    world.ticks(4)
    (pinned,) = told
    assert isinstance(pinned, Pinned)
    # Whoever asked has died before CreateFork. The source's leader finds out.
    world.ticks(60)
    assert nothing_is_owed(world)
    late = CreateFork(f"_default/{FORK}", "u1", f"_default/{SOURCE}", pinned.incarnation, None, 0, 4, 0, pinned.ranges, "text/plain", 0)
    asking.ask(2, True, late, told.append)
    world.ticks(4)
    assert told[1] == ForkTooLate()
    assert status(world.do(1, "DELETE", SOURCE)) == 204
    assert status(world.do(1, "HEAD", SOURCE)) == 404, "a leaked pin would keep it"


def test_live_reads_of_a_fork_get_what_is_inherited_at_once_and_then_its_own_appends_only(world: World) -> None:
    put(world, SOURCE, b"inherited")
    fork(world)
    tokens = {node: world.ask(node, "GET", f"{FORK}?offset=-1&live=sse") for node in world.nodes}
    world.ticks(4)
    for node, token in tokens.items():
        assert b"data:inherited\n" in world.nodes[node].streams[token]
    append(world, SOURCE, b"not here")
    poll = world.ask(2, "GET", f"{FORK}?offset={9:020d}&live=long-poll")
    world.ticks(4)
    assert poll not in world.nodes[2].answers
    append(world, FORK, b"own")
    world.ticks(4)
    for node, token in tokens.items():
        text = world.nodes[node].streams[token]
        assert text.count(b"event: data") == 2, text
        assert b"data:own\n" in text
        assert b"not here" not in text
    assert world.nodes[2].answers[poll].endswith(b"own")


def test_an_event_stream_reads_an_inherited_part_larger_than_a_response() -> None:
    world = World(holders=3, extra=1, groups=GROUPS, spread=True, options=ServiceOptions(response_bytes_max=10))
    put(world, SOURCE)
    for number in range(6):
        append(world, SOURCE, b"message%d" % number)
    fork(world)
    append(world, FORK, b"the end")
    tokens = {node: world.ask(node, "GET", f"{FORK}?offset=-1&live=sse") for node in world.nodes}
    world.ticks(20)
    for node, token in tokens.items():
        data = [line for line in world.nodes[node].streams[token].split(b"\n") if line.startswith(b"data:") and b"{" not in line]
        assert data == [*[b"data:message%d" % number for number in range(6)], b"data:the end"]


def test_a_snapshot_of_a_fork_within_what_it_inherits(world: World) -> None:
    put(world, SOURCE, b"aaa")
    append(world, SOURCE, b"bbb")
    fork(world)
    append(world, FORK, b"ccc")
    assert status(world.do(2, "PUT", f"{FORK}/snapshot/{4:020d}", b"fold")) == 400
    assert status(world.do(2, "PUT", f"{FORK}/snapshot/{3:020d}", b"fold")) == 204
    assert status(world.do(3, "GET", f"{FORK}?offset=-1")) == 410
    assert read(world, FORK, 1, f"offset={3:020d}") == b"bbbccc"
    assert read(world, SOURCE) == b"aaabbb"


def test_a_trimmed_source_keeps_its_bytes_for_its_forks(world: World) -> None:
    put(world, SOURCE, b"aaa")
    append(world, SOURCE, b"bbb")
    fork(world)
    assert status(world.do(2, "PUT", f"{SOURCE}/snapshot/{6:020d}", b"fold")) == 204
    assert status(world.do(3, "GET", f"{SOURCE}?offset=-1")) == 410
    assert read(world, FORK) == b"aaabbb"
    assert status(fork(world, THIRD, SOURCE)) == 201
    assert status(world.do(1, "GET", f"{THIRD}?offset=-1")) == 410
    assert read(world, THIRD, 2, f"offset={6:020d}") == b""
    assert status(world.do(1, "DELETE", FORK)) == 204
    world.ticks(10)
    held = world.nodes[1].host.groups[1].machine
    assert held.hot_bytes == len(b"fold")
