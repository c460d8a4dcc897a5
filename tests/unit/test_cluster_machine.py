"""The meta group's machine: identities, ids that are never used again, snapshots that mean the same."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.cluster import buckets
from anabranch_node.core.cluster.buckets import place_behind, place_of
from anabranch_node.core.cluster.commands import (
    BucketCreate,
    BucketDelete,
    BucketDeleted,
    BucketRestored,
    Command,
    InitCluster,
    PlaceGroups,
    PlaceMeta,
    RegisterNode,
)
from anabranch_node.core.cluster.machine import FIRST_REPLICA, MetaMachine
from anabranch_node.core.cluster.queries import BucketLook
from anabranch_node.core.cluster.results import (
    BucketAbsent,
    BucketReserved,
    BucketState,
    ClusterInitialized,
    ClusterRefusal,
    NodeRefused,
    NodeRegistered,
    Placed,
    Result,
    TooManyBuckets,
)
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.cluster.view import decode_view, encode_view
from anabranch_node.core.raft import entry
from anabranch_proto.formats import Damaged, NewerFormat
from anabranch_proto.ids import group_of


def register(name: str, incarnation: int, boot: int = 1, address: str = "a:1") -> RegisterNode:
    return RegisterNode(name, incarnation, boot, address, "a:2", "a:3", "", 0)


FIRST = register("first", 999)
INIT = InitCluster("c1", 4, 3, FIRST, 0)


def applied(*commands: Command) -> tuple[MetaMachine, list[Result]]:
    machine = MetaMachine()
    return machine, [machine.apply_commands(number, [command])[0] for number, command in enumerate(commands, start=1)]


def test_init_happens_once() -> None:
    _, results = applied(INIT, INIT, InitCluster("c2", 4, 3, FIRST, 0))
    assert results[:2] == [ClusterInitialized("c1", 4, 3, True), ClusterInitialized("c1", 4, 3, False)]
    assert isinstance(results[2], ClusterRefusal) and results[2].definite and "c1" in str(results[2])


def test_a_name_that_an_active_node_holds_makes_the_new_incarnation_wait() -> None:
    _, results = applied(INIT, register("n1", 10), register("n1", 11), register("n2", 12))
    assert results[1:] == [NodeRegistered(2, "active"), NodeRegistered(3, "replacing"), NodeRegistered(4, "active")]


def test_the_node_that_initialises_is_node_1_and_keeps_its_name() -> None:
    _, results = applied(INIT, register("n1", 10), FIRST, register("renamed", 999, 2))
    assert results[1:3] == [NodeRegistered(2, "active"), NodeRegistered(1, "active")]
    assert isinstance(results[3], NodeRefused) and "keeps its name" in str(results[3])


def test_a_boot_number_is_used_once_but_the_same_registration_may_be_repeated() -> None:
    machine, results = applied(
        INIT, register("n1", 10, 5), register("n1", 10, 5), register("n1", 10, 5, "b:1"), register("n1", 10, 4), register("n1", 10, 6, "b:1")
    )
    assert results[1] == results[2] == results[5] == NodeRegistered(2, "active")
    assert isinstance(results[3], NodeRefused) and isinstance(results[4], NodeRefused)
    view = machine.view()
    assert view is not None and [(node.boot, node.client_address) for node in view.nodes] == [(1, "a:1"), (6, "b:1")]


def test_groups_are_placed_once_and_only_as_the_cluster_is_made() -> None:
    nodes = [register(f"n{number}", number) for number in (1, 2, 3)]
    place = PlaceGroups([[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]], 0)
    for wrong in ([[1, 2, 3]], [[1, 2]] * 4, [[1, 1, 2]] * 4, [[1, 2, 9]] * 4):
        assert isinstance(applied(INIT, *nodes, PlaceGroups(wrong, 0))[1][-1], ClusterRefusal)
    machine, results = applied(INIT, *nodes, place, place)
    assert results[-2:] == [Placed(True), Placed(False)]
    view = machine.view()
    assert view is not None and [[at.node_id for at in group.replicas] for group in view.groups] == [[1], *place.nodes]


BUCKETS = st.sampled_from(["_default", "agents", "users"])
COMMANDS = st.lists(
    st.one_of(
        st.just(INIT),
        st.builds(register, st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 5), st.integers(1, 4)),
        st.builds(PlaceMeta, st.integers(0, 6), st.integers(0, 99)),
        st.builds(BucketCreate, BUCKETS, st.integers(0, 99)),
        st.builds(BucketDelete, BUCKETS, st.integers(0, 99)),
        st.builds(BucketDeleted, BUCKETS, st.integers(1, 25).map(lambda index: place_of(index, 0)), st.integers(0, 99)),
        st.builds(BucketRestored, BUCKETS, st.integers(1, 25).map(lambda index: place_of(index, 0)), st.integers(0, 99)),
        st.builds(PlaceGroups, st.lists(st.permutations([1, 2, 3]), min_size=4, max_size=4), st.integers(0, 99)),
    ),
    max_size=25,
)


@given(COMMANDS, st.integers(0, 25))
def test_ids_are_never_reused_and_a_restored_machine_goes_on_as_the_old_one(commands: list[Command], cut: int) -> None:
    machine, copy = MetaMachine(), MetaMachine()
    owners: dict[int, tuple[int, int]] = {}  # replica -> (group, node)
    identities: dict[int, tuple[str, int]] = {}
    for index, command in enumerate(commands, start=1):
        if index == cut:
            copy = MetaMachine.restore(list(copy.freeze().slices(100)))
        result = machine.apply_commands(index, [command])
        assert copy.apply(index, entry.COMMANDS_V1, msgspec.msgpack.encode([command])) == result
        assert copy.digest() == machine.digest()
        view = machine.view()
        if view is not None:
            assert decode_view(encode_view(view)) == view
            for group in view.groups:
                for place in group.replicas:
                    assert owners.setdefault(place.replica, (group.group, place.node_id)) == (group.group, place.node_id)
            for node in view.nodes:
                assert identities.setdefault(node.node_id, (node.name, node.incarnation)) == (node.name, node.incarnation)
    assert owners.get(FIRST_REPLICA, (0, 1)) == (0, 1)
    assert MetaMachine.restore(list(machine.freeze().slices(100))).digest() == machine.digest()


def test_a_frozen_view_does_not_see_later_changes() -> None:
    machine, _ = applied(INIT)
    before, frozen = machine.digest(), machine.freeze()
    machine.apply_commands(2, [register("n1", 1)])
    assert MetaMachine.restore(list(frozen.slices(100))).digest() == before != machine.digest()


def test_what_is_not_known_is_never_skipped() -> None:
    machine, _ = applied(INIT)
    for version, payload in ((200, b""), (entry.COMMANDS_V1, b"\x91\x91\x63"), (entry.COMMANDS_V1, b"")):
        with pytest.raises(ValueError):
            machine.apply(2, version, payload)
    assert machine.applied_index == 1
    with pytest.raises(Damaged):
        MetaMachine.restore([b"\xc1"])


def test_routing_follows_the_view() -> None:
    nodes = [register(f"n{number}", 10 + number) for number in (2, 3)]
    machine, _ = applied(INIT, *nodes)
    view = machine.view()
    assert view is not None and not Routing(view).ready
    machine.apply_commands(4, [PlaceGroups([[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]], 0)])
    view = machine.view()
    assert view is not None
    routing = Routing(view)
    assert routing.ready and routing.groups == [1, 2, 3, 4]
    assert routing.group_of("_default/a/b") == routing.group_of("_default/a/b") == group_of("_default", "a/b", 4)
    assert [routing.place(2, tries) for tries in range(4)] == [(2, 12), (3, 13), (1, 999), (2, 12)]
    assert routing.place(9, 0) is None


# --- buckets ---------------------------------------------------------------------------------------------------------------------


def look(machine: MetaMachine, bucket: str) -> object:
    return machine.query(BucketLook(bucket), 0)


def test_init_makes_the_default_bucket_and_nobody_deletes_it() -> None:
    machine, results = applied(INIT, BucketDelete("_default", 0), BucketCreate("_default", 9))
    at = place_of(1, 0)
    assert results[1:] == [BucketReserved("_default"), BucketState("_default", "open", at, at, place_of(3, 0), 0)]
    assert look(machine, "_default") == BucketState("_default", "open", at, at, place_behind(3), 0)


def test_without_a_cluster_there_are_no_buckets() -> None:
    machine, results = applied(BucketCreate("agents", 0))
    assert isinstance(results[0], ClusterRefusal) and isinstance(look(machine, "agents"), ClusterRefusal)


def test_a_bucket_is_made_once_and_deleted_in_two_steps() -> None:
    machine, results = applied(
        INIT, BucketCreate("agents", 5), BucketCreate("agents", 6), BucketDelete("agents", 7), BucketDelete("agents", 8), BucketCreate("agents", 9)
    )
    made, gone = place_of(2, 0), place_of(4, 0)
    assert results[1:3] == [BucketState("agents", "open", made, made, place_of(index, 0), 5) for index in (2, 3)]
    assert results[3:] == [BucketState("agents", "deleting", made, gone, place_of(index, 0), 5) for index in (4, 5, 6)]
    assert [(bucket.name, bucket.since_index) for bucket in machine.deleting()] == [("agents", gone)]
    assert machine.apply_commands(7, [BucketDeleted("agents", gone, 0)]) == [BucketAbsent("agents", place_of(7, 0))]
    assert machine.deleting() == [] and look(machine, "agents") == BucketAbsent("agents", place_behind(7))
    assert machine.apply_commands(8, [BucketDelete("agents", 0), BucketCreate("agents", 11)]) == [
        BucketAbsent("agents", place_of(8, 0)),
        BucketState("agents", "open", place_of(8, 1), place_of(8, 1), place_of(8, 1), 11),
    ]


def test_a_restored_bucket_is_the_same_one_since_a_later_place() -> None:
    machine, _ = applied(INIT, BucketCreate("agents", 5), BucketDelete("agents", 7))
    made = place_of(2, 0)
    restored = BucketState("agents", "open", made, place_of(4, 0), place_of(4, 0), 5)
    assert machine.apply_commands(4, [BucketRestored("agents", place_of(3, 0), 0)]) == [restored]
    assert machine.deleting() == []


@pytest.mark.parametrize("late", [BucketDeleted, BucketRestored])
def test_the_decision_of_an_earlier_round_changes_nothing(late: type[BucketDeleted] | type[BucketRestored]) -> None:
    first, second = place_of(3, 0), place_of(5, 0)
    machine, _ = applied(
        INIT,
        BucketCreate("agents", 5),
        BucketDelete("agents", 0),
        BucketRestored("agents", first, 0),
        BucketDelete("agents", 0),
        late("agents", first, 0),
    )
    assert [(bucket.name, bucket.since_index) for bucket in machine.deleting()] == [("agents", second)]
    machine, _ = applied(INIT, BucketCreate("agents", 5), late("agents", place_of(2, 0), 0))
    assert isinstance(look(machine, "agents"), BucketState), "it is open"


def test_what_one_entry_says_before_and_after_a_delete_differs() -> None:
    """Or a group would take the open that the create led to for one that is newer than the fence (core/cross/fences.py)."""
    machine, _ = applied(INIT, BucketCreate("agents", 0))
    before, after = machine.apply_commands(3, [BucketCreate("agents", 0), BucketDelete("agents", 0)])
    assert isinstance(before, BucketState) and isinstance(after, BucketState)
    assert before.meta_index < after.since_index


def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BUCKETS_MAX", 3)
    machine, results = applied(INIT, *(BucketCreate(f"agents-{number}", 0) for number in range(3)))
    assert isinstance(results[2], BucketState) and results[3] == TooManyBuckets("agents-2", 3)
    assert isinstance(machine.apply_commands(5, [BucketCreate("agents-1", 0)])[0], BucketState), "it exists"
    machine.apply_commands(6, [BucketDelete("agents-0", 0)])
    machine.apply_commands(7, [BucketDeleted("agents-0", place_of(6, 0), 0)])
    assert isinstance(machine.apply_commands(8, [BucketCreate("agents-2", 0)])[0], BucketState)


def test_a_snapshot_without_buckets_still_reads() -> None:
    """From the time before there were any: version 1 had six fields."""
    machine, _ = applied(INIT)
    (whole,) = machine.freeze().slices(1 << 20)
    fields = msgspec.msgpack.decode(whole)
    old = MetaMachine.restore([msgspec.msgpack.encode([1, *fields[1:6]])])
    assert old.view() == machine.view() and look(old, "_default") == BucketAbsent("_default", place_behind(1))
    with pytest.raises(NewerFormat):
        MetaMachine.restore([msgspec.msgpack.encode([3, *fields[1:]])])
