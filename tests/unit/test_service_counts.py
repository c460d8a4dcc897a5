"""What the service counts for the metrics is what its clients got: no refusal, no create and no other node's request among it."""

from tests.unit.service_world import World, status


def counted(world: World, number: int) -> tuple[int, int, int, int]:
    service = world.nodes[number].service
    return service.appends, service.append_bytes, service.reads, service.read_bytes


def test_appends_and_reads_count_where_the_client_is() -> None:
    world = World(holders=1, extra=1)
    world.create()
    assert counted(world, 1) == (0, 0, 0, 0), "a create is no append"
    world.append(1, b"abc")
    assert counted(world, 1) == (1, 3, 0, 0)
    assert status(world.append(1, b"abc", "other")) == 404
    assert status(world.do(1, "GET", "other?offset=-1")) == 404
    assert counted(world, 1) == (1, 3, 0, 0), "what is refused is counted by its status alone"
    world.append(2, b"defgh")
    assert status(world.do(2, "GET", "s?offset=-1")) == 200
    assert counted(world, 2) == (1, 5, 1, 8) and world.nodes[2].service.forwarded >= 2
    assert counted(world, 1) == (1, 3, 0, 0), "served for another node"
    answer = world.do(1, "GET", "s?offset=-1")
    etag = answer.split(b"ETag: ")[1].split(b"\r\n")[0].decode()
    assert status(world.do(1, "GET", "s?offset=-1", if_none_match=etag)) == 304
    assert status(world.do(1, "HEAD", "s")) == 200
    assert counted(world, 1) == (1, 3, 2, 8), "a read that sent nothing sent no bytes, and a HEAD is no read"


def test_an_event_counts_for_each_reader_and_a_keep_alive_for_none() -> None:
    world = World(holders=1)
    world.create()
    world.append(1, b"abc")
    live = world.nodes[1].service.live
    for _ in range(2):
        world.ask(1, "GET", "s?offset=-1&live=sse")
    world.settle()
    assert (live.events, live.event_bytes, world.nodes[1].service.reads) == (2, 6, 2)
    world.append(1, b"defg")
    assert (live.events, live.event_bytes) == (4, 14)
    world.ticks(20)
    assert all(b"\r\n:\n\n\r\n" in text for text in world.nodes[1].streams.values())
    assert (live.events, live.event_bytes) == (4, 14)
    poll = world.ask(1, "GET", "s?offset=now&live=long-poll")
    world.settle()
    world.append(1, b"h")
    assert status(world.nodes[1].answers[poll]) == 200
    assert (live.events, live.event_bytes, world.nodes[1].service.reads) == (6, 16, 3)
    assert world.nodes[1].service.read_bytes == 1
