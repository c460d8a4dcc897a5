"""The simulator itself: seeds pass, a seed is one history, and each oracle notices what it is there for when it is fed something wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from anabranch_node.core import effects as fx
from anabranch_node.core.errors import NotLeading
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.stream.commands import Append, Create
from anabranch_node.core.stream.queries import ReadAt
from anabranch_node.core.stream.results import Appended
from tests.checkers import history
from tests.sim import invariants, resources
from tests.sim.run import play
from tests.sim.sim_disk import Rot
from tests.sim.swarm import SECOND, draw
from tests.sim.world import Violation, World

SEED = 2


def a_quiet_world() -> World:
    """Groups exist and have leaders; no client, no fault."""
    world = World(draw(SEED))
    for node in world.nodes.values():
        node.start()
    world.operator.create_groups()
    assert world._run_until(20 * SECOND, world._converged), world._why_not()
    return world


def leader_of(world: World, group: int) -> Any:
    leader = world.leader(group)
    assert leader is not None
    return world.nodes[world.node_of[leader.id]]


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_passes(seed: int) -> None:
    outcome = play(seed)
    assert outcome.problem == ""
    assert outcome.events > 0 and outcome.ops > 0


def test_the_same_seed_gives_the_same_events() -> None:
    first, again, other = play(3), play(3), play(4)
    assert (first.digest, first.events, first.ops) == (again.digest, again.events, again.ops)
    assert first.digest != other.digest


def test_half_of_the_runs_end_with_a_power_loss() -> None:
    assert 30 < sum(draw(seed).final_power_loss for seed in range(100)) < 70


def test_a_quiet_world_holds_nothing() -> None:
    world = a_quiet_world()
    world._judge()
    assert [resources.why_busy(node) for node in world.nodes.values()] == [""] * len(world.nodes)


# --- answers ---------------------------------------------------------------------------------------------------------------------


def test_a_second_answer_is_noticed() -> None:
    world = a_quiet_world()
    node = leader_of(world, 1)
    request = fx.Propose(world.token(), 1, Create("b/1-0", "text/plain", 0))
    world.ask(node, request, None)
    world._run_until(world.now_us + 5 * SECOND)
    assert request.token not in world._asked
    with pytest.raises(Violation, match="was not asked or has answered before"):
        node.perform([fx.Answer(request.token, NotLeading(0))])


def test_an_answer_from_another_node_is_noticed() -> None:
    world = a_quiet_world()
    first, second = list(world.nodes.values())[:2]
    request = fx.Propose(world.token(), 1, Create("b/1-0", "text/plain", 0))
    world.ask(first, request, None)
    with pytest.raises(Violation, match="was not asked"):
        world.answer(second, request.token, NotLeading(0))


def test_a_missing_answer_is_noticed() -> None:
    world = a_quiet_world()
    node = leader_of(world, 1)
    world.ask(node, fx.Propose(world.token(), 1, Create("b/1-0", "text/plain", 0)), None)
    node.inbox.pop()  # the node swallows it
    world._run_until(world.now_us + 5 * SECOND)
    assert f"node {node.number} never answered" in world._why_not()


def test_a_request_that_died_with_its_node_needs_no_answer() -> None:
    world = a_quiet_world()
    node = leader_of(world, 1)
    world.ask(node, fx.Propose(world.token(), 1, Create("b/1-0", "text/plain", 0)), None)
    world.faults.crash(node, power=True)
    assert world._run_until(world.now_us + 20 * SECOND, world._converged), world._why_not()


# --- fences and stops ------------------------------------------------------------------------------------------------------------


def damage(world: World) -> None:
    for path in ("data/wal/0000000000000003.seg", "data/snapshots/1/3-32-3.snap"):
        world.faults._damage_file(world.nodes[1], Rot(path, 9, 1, "1 bit flipped"))


def fence(world: World, reason: str) -> None:
    node = world.nodes[1]
    node.perform([fx.GroupFenced(1, 1, reason)])


def test_a_fence_on_an_undamaged_disk_is_noticed() -> None:
    with pytest.raises(Violation, match="undamaged disk"):
        fence(a_quiet_world(), "wal/0000000000000003.seg: offset 9: record checksum is wrong")


@pytest.mark.parametrize(
    "reason",
    ["InvariantBroken: wal/0000000000000003.seg", "AssertionError: ", "KeyError: 3.snap", "(3, 4)", "", "wal/0000000000000004.seg: offset 9"],
)
def test_a_fence_for_a_bug_is_noticed_on_a_damaged_disk_too(reason: str) -> None:
    world = a_quiet_world()
    damage(world)
    with pytest.raises(Violation, match="something else than its disk"):
        fence(world, reason)


@pytest.mark.parametrize(
    "reason",
    [
        "wal/0000000000000003.seg: offset 9: record checksum is wrong",
        "Damaged: data/snapshots/1/3-32-3.snap: chunk 1: checksum is wrong",
        "snapshot at 32: SnapshotLoad: data/snapshots/1/3-32-3.snap: EIO: Input/output error",
    ],
)
def test_a_fence_for_damage_is_accepted_on_a_damaged_disk(reason: str) -> None:
    world = a_quiet_world()
    damage(world)
    fence(world, reason)
    assert world.fences == 1


def test_a_stop_without_a_reason_is_noticed() -> None:
    world = a_quiet_world()
    with pytest.raises(Violation, match="stopped without a reason"):
        world.nodes[1].perform([fx.StopNode("fdatasync: data/wal/0000000000000003.seg: EIO: Input/output error")])


def test_an_injected_error_excuses_one_stop_that_names_its_file() -> None:
    world = a_quiet_world()
    node = world.nodes[1]
    node.fs.fsync_errors = 1
    with pytest.raises(OSError):
        node.fs.fsync_dir("data/wal")
    with pytest.raises(Violation, match="stopped without a reason"):
        node.perform([fx.StopNode("fdatasync: data/wal/0000000000000003.seg: EIO: Input/output error")])
    node.perform([fx.StopNode("SegmentCreate: data/wal: EIO: Input/output error")])
    assert not node.up
    node.start()
    with pytest.raises(Violation, match="stopped without a reason"):
        node.perform([fx.StopNode("SegmentCreate: data/wal: EIO: Input/output error")])


# --- state, resources, history ---------------------------------------------------------------------------------------------------


def test_replicas_that_differ_are_noticed() -> None:
    world = World(draw(next(seed for seed in range(100) if draw(seed).replication == 3)))
    for node in world.nodes.values():
        node.start()
    world.operator.create_groups()
    assert world._run_until(20 * SECOND, world._converged), world._why_not()
    machine = leader_of(world, 1).host.groups[1].machine
    machine.apply_commands(machine.applied_index + 1, [Create("b/1-0", "text/plain", 1)])
    with pytest.raises(Violation, match="different states"):
        world._judge()


def test_an_acknowledged_append_that_is_not_there_is_noticed() -> None:
    world = a_quiet_world()
    op = world.history.invoke_append("forger", "b/1-0", world.tick(), b"00000001")
    history.appended(op, world.tick(), 0, 8, False)
    with pytest.raises(Violation, match="lost"):
        world._judge()


def take_a_slot(node: Any) -> None:
    node.host._slots.free -= 1


def leave_a_read(node: Any) -> None:
    group = next(iter(node.host.groups.values()))
    group._reads[1] = fx.Read(1, group.id, ReadAt("b/1-0", 0, 10))


def leave_a_transfer(node: Any) -> None:
    next(iter(node.host.groups.values())).snapshots.sending[7] = object()


def leave_a_waiter(node: Any) -> None:
    next(iter(node.host.groups.values())).waiters.add(9, 1, 0, [1], [Append("b/1-0", b"x", 0, None)])


def leave_an_orphan(node: Any) -> None:
    node.fs.makedirs("data/snapshots/9")
    node.fs.create("data/snapshots/9/99-1-1.snap")


def pile_up_segments(node: Any) -> None:
    node.host._wal.segments.extend(range(100, 130))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (take_a_slot, "snapshot slots"),
        (leave_a_read, "reads"),
        (leave_a_transfer, "on their way"),
        (leave_a_waiter, "waiters"),
        (leave_an_orphan, "belongs to no replica"),
        (pile_up_segments, "segments, more than"),
    ],
)
def test_what_is_left_behind_is_noticed(spoil: Callable[[Any], None], said: str) -> None:
    world = a_quiet_world()
    spoil(leader_of(world, 1))
    assert said in world._why_not()


def test_majorities_are_counted_by_hand() -> None:
    assert not invariants._majority(Configuration((1, 2, 3)), [1])
    assert invariants._majority(Configuration((1, 2, 3)), [1, 3])
    assert not invariants._majority(Configuration((1, 2, 3, 4)), [1, 2])
    assert not invariants._majority(Configuration((1, 2, 3), (4, 5, 6)), [1, 2, 4])
    assert invariants._majority(Configuration((1, 2, 3), (3, 4, 5)), [2, 3, 4])
    assert not invariants._majority(Configuration(), [])


def test_a_commit_that_is_on_too_few_disks_is_noticed() -> None:
    world = a_quiet_world()
    node = leader_of(world, 1)
    for other in world.nodes.values():
        other.durable = {}
    world.ask(node, fx.Propose(world.token(), 1, Create("b/1-0", "text/plain", 0)), None)
    held = node.host.groups[1]
    with pytest.raises(Violation, match="on the disks of"):
        world.invariants._check_durable(node, held, held.raft.log.committed)


def test_an_ok_that_no_producer_state_gives_is_noticed() -> None:
    world = a_quiet_world()
    op = world.history.invoke_append("forger", "b/1-0", world.tick(), b"00000001", ("p", 0, 0))
    result = Appended(0, 8, True)
    history.appended(op, world.tick(), result.start_offset, result.next_offset, result.duplicate)
    with pytest.raises(Violation):
        world._judge()
