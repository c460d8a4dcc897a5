"""A live response that ended is over: nothing of it stays in memory."""

from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import ServiceOptions
from tests.unit.service_world import World


def test_nothing_is_left_of_a_live_response_that_ended() -> None:
    options = ServiceOptions(live=LiveOptions(sse_keep_alive_ms=500, sse_rotate_ms=1_000))
    world = World(holders=1, options=options)
    world.create()
    node = world.nodes[1]
    rotated = world.ask(1, "GET", "s?offset=-1&live=sse")
    world.ticks(25)
    assert rotated in node.ended
    deleted = world.ask(1, "GET", "s?offset=-1&live=sse")
    world.settle()
    world.do(1, "DELETE", "s")
    assert deleted in node.ended
    world.create()
    closed = world.ask(1, "GET", "s?offset=-1&live=sse")
    world.settle()
    world.do(1, "POST", "s", b"", stream_closed="true")
    assert closed in node.ended
    assert node.service.pending == 0
