"""Bootstraps through the whole service: by a leader, a follower and a node without a replica; slow clients, and streams that change midway."""

from struct import pack

import pytest

from anabranch_node.service.bootstrap import PIECE_BYTES
from anabranch_node.service.effects import Taken
from anabranch_node.service.service import ServiceOptions
from tests.unit.multipart import Bootstrapped, Torn, bootstrapped
from tests.unit.service_world import World, status

JSON = "application/json"


def at(offset: int) -> str:
    return f"s/snapshot/{offset:020d}"


def started(world: World, number: int, target: str = "s/bootstrap") -> int:
    token = world.ask(number, "GET", target)
    world.settle()
    for _ in range(20):
        if token in world.nodes[number].streams or token in world.nodes[number].answers:
            break
        world.ticks(1)
    return token


def whole(world: World, number: int) -> Bootstrapped:
    token = started(world, number)
    for _ in range(200):
        if token in world.nodes[number].ended:
            break
        world.ticks(1)
    assert token in world.nodes[number].ended
    assert world.nodes[number].service.pending == 0
    return bootstrapped(world.nodes[number].streams[token])


@pytest.mark.parametrize("where", ["leader", "follower", "stranger"])
def test_one_part_per_message_on_every_node(where: str) -> None:
    world = World(3, extra=1)
    world.create("s")
    number = {"leader": world.leader, "follower": world.follower(), "stranger": 4}[where]
    empty = whole(world, number)
    assert [part.body for part in empty.parts] == [b""] and empty.headers["stream-snapshot-offset"] == "-1"
    for body in (b"a", b"bc", b"\r\n--", b"d"):
        world.append(world.leader, body)
    found = whole(world, number)
    assert [part.body for part in found.parts] == [b"", b"a", b"bc", b"\r\n--", b"d"]
    assert found.headers["stream-next-offset"] == f"{8:020d}"
    assert status(world.do(number, "PUT", at(3), b"fold", content_type="x/fold")) == 204
    found = whole(world, number)
    assert [(part.content_type, part.body) for part in found.parts] == [("x/fold", b"fold"), ("text/plain", b"\r\n--"), ("text/plain", b"d")]
    assert found.headers["stream-snapshot-offset"] == f"{3:020d}" and found.headers["stream-next-offset"] == f"{8:020d}"
    # 3.4: what a read says is gone, a bootstrap gives.
    gone = world.do(number, "GET", "s?offset=-1")
    assert status(gone) == 410 and b"Stream-Earliest-Offset: 00000000000000000003\r\n" in gone


@pytest.mark.parametrize("surface", ["/ds/bucket/s", "/bucket/s", "bucket/s"])
def test_on_every_surface(surface: str) -> None:
    world = World(1)
    world.create("bucket/s")
    world.append(1, b"x", "bucket/s")
    token = started(world, 1, surface + "/bootstrap")
    assert [part.body for part in bootstrapped(world.nodes[1].streams[token]).parts] == [b"", b"x"]


def filled(world: World, pieces: int) -> list[bytes]:
    """So many pieces, of messages that are a little different."""
    world.create("s")
    size = PIECE_BYTES // 4
    made = [bytes([65 + number]) * size for number in range(4 * pieces)]
    for message in made:
        assert status(world.append(world.leader, message)) == 204
    return made


def test_a_piece_is_no_larger_than_a_response_may_be() -> None:
    world = World(1, options=ServiceOptions(response_bytes_max=100))
    world.create("s")
    made = [bytes([65 + number]) * 60 for number in range(3)]
    for message in made:
        assert status(world.append(1, message)) == 204
    node = world.nodes[1]
    node.clients_take = False
    token = started(world, 1)
    for sent in range(1, 4):
        assert [message in node.streams[token] for message in made] == [number < sent for number in range(3)]
        node.inbox.append(Taken(token))
        world.settle()
    assert [part.body for part in bootstrapped(node.streams[token]).parts] == [b"", *made]


def test_the_next_piece_is_made_when_the_client_has_taken_the_last() -> None:
    world = World(1)
    made = filled(world, 3)
    node = world.nodes[1]
    node.clients_take = False
    token = started(world, 1)
    first = len(node.streams[token])
    assert first < PIECE_BYTES + 2_000
    world.ticks(400)  # 20 s, which is longer than any request may take
    assert len(node.streams[token]) == first and token not in node.ended and node.service.pending == 1
    world.append(1, b"later")
    for piece in (2, 3):
        node.inbox.append(Taken(token))
        world.settle()
        assert len(node.streams[token]) < piece * (PIECE_BYTES + 2_000)
    node.inbox.append(Taken(token))  # one too many, and of nobody
    node.inbox.append(Taken(12345))
    world.settle()
    assert token in node.ended and node.service.pending == 0
    found = bootstrapped(node.streams[token])
    assert [part.body for part in found.parts] == [b"", *made]  # what came later is not in it
    assert found.headers["stream-next-offset"] == f"{3 * PIECE_BYTES:020d}"


@pytest.mark.parametrize("change", ["trimmed", "deleted", "replaced", "unreadable"])
def test_what_cannot_be_finished_is_cut_off_and_never_ended(change: str) -> None:
    world = World(3)
    filled(world, 3)
    number = world.follower()
    node = world.nodes[number]
    node.clients_take = False
    token = started(world, number)
    if change == "trimmed":
        assert status(world.do(world.leader, "PUT", at(2 * PIECE_BYTES), b"fold")) == 204
    elif change == "unreadable":
        world.cut = {(number, other) for other in world.nodes if other != number} | {(other, number) for other in world.nodes if other != number}
    else:
        assert status(world.do(world.leader, "DELETE", "s")) == 204
        if change == "replaced":
            world.create("s")
            for _ in range(12):
                world.append(world.leader, b"z" * (PIECE_BYTES // 4))
    world.ticks(5)
    node.inbox.append(Taken(token))
    world.ticks(250)
    assert token in node.aborted and token not in node.ended and node.service.pending == 0
    with pytest.raises(Torn):
        bootstrapped(node.streams[token])


def test_a_client_that_leaves_is_forgotten() -> None:
    world = World(1)
    filled(world, 2)
    node = world.nodes[1]
    node.clients_take = False
    token = started(world, 1)
    world.leave(1, token)
    node.inbox.append(Taken(token))
    world.settle()
    assert node.service.pending == 0 and token not in node.ended


def test_refusals() -> None:
    world = World(1)
    assert status(world.do(1, "GET", "s/bootstrap")) == 404
    world.create("s")
    node = world.nodes[1]
    assert node.service.pending == 0


def test_without_a_quorum_it_is_a_503() -> None:
    world = World(3)
    world.create("s")
    number = world.follower()
    world.cut = {(number, other) for other in world.nodes if other != number} | {(other, number) for other in world.nodes if other != number}
    token = world.ask(number, "GET", "s/bootstrap")
    world.ticks(250)
    assert status(world.nodes[number].answers[token]) == 503


def test_a_bootstrap_resets_the_sliding_window() -> None:
    world = World(1)
    assert status(world.do(1, "PUT", "s", b"x", content_type="text/plain", stream_ttl="2")) == 201
    for _ in range(4):
        world.ticks(30)  # 1.5 s
        assert [part.body for part in whole(world, 1).parts] == [b"", b"x"]
    world.ticks(60)
    assert status(world.do(1, "GET", "s/bootstrap")) == 404


def test_json() -> None:
    world = World(1)
    assert status(world.do(1, "PUT", "s", b'[{"a" : 1}, [2], "x,"]', content_type=JSON)) == 201
    found = whole(world, 1)
    assert [(part.content_type, part.body) for part in found.parts[1:]] == [(JSON, b'{"a" : 1}'), (JSON, b"[2]"), (JSON, b'"x,"')]


def test_a_batch_is_as_many_parts() -> None:
    world = World(1)
    world.create("s")
    frames = b"".join(pack(">I", len(frame)) + frame for frame in (b"a", b"bc", b"def"))
    assert status(world.do(1, "POST", "s/append-batch", frames, content_type="text/plain")) == 200
    assert [part.body for part in whole(world, 1).parts[1:]] == [b"a", b"bc", b"def"]
