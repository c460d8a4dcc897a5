"""Majorities, compared with counting by hand; and the property joint consensus stands on: two quorums always share a replica."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft import membership, quorum
from anabranch_node.core.raft.errors import ChangeRefused
from anabranch_node.core.raft.membership import Configuration

IDS = st.integers(1, 6)
VOTERS = st.sets(IDS, min_size=1, max_size=5).map(lambda ids: tuple(sorted(ids)))
OLD_VOTERS = st.one_of(st.just(()), VOTERS)


def subsets(replicas: tuple[int, ...]) -> list[frozenset[int]]:
    return [frozenset(some) for count in range(len(replicas) + 1) for some in combinations(replicas, count)]


def is_quorum(voters: tuple[int, ...], old_voters: tuple[int, ...], some: frozenset[int]) -> bool:
    return all(2 * len(some & set(one)) > len(one) for one in (voters, old_voters) if one)


@given(VOTERS, OLD_VOTERS, st.dictionaries(IDS, st.integers(0, 9)))
def test_a_value_is_reached_when_a_quorum_has_it(voters: tuple[int, ...], old_voters: tuple[int, ...], values: dict[int, int]) -> None:
    found = quorum.reached([values.get(voter, 0) for voter in voters], [values.get(voter, 0) for voter in old_voters])
    best = max(v for v in range(10) if is_quorum(voters, old_voters, frozenset(r for r in range(1, 7) if values.get(r, 0) >= v)))
    assert found == best


@given(VOTERS, OLD_VOTERS, st.sets(IDS), st.sets(IDS))
def test_won_and_lost(voters: tuple[int, ...], old_voters: tuple[int, ...], agreed: set[int], refused: set[int]) -> None:
    refused -= agreed
    assert quorum.won(voters, old_voters, agreed) == is_quorum(voters, old_voters, frozenset(agreed))
    still_possible = frozenset(range(1, 7)) - frozenset(refused)
    assert quorum.lost(voters, old_voters, refused) == (not is_quorum(voters, old_voters, still_possible))
    assert not (quorum.won(voters, old_voters, agreed) and quorum.lost(voters, old_voters, refused))


def test_nobody_wins_without_voters() -> None:
    assert not quorum.won((), (), {1, 2, 3})


@given(VOTERS, VOTERS, st.sets(IDS, max_size=2))
def test_quorums_of_neighbouring_configurations_share_a_replica(old: tuple[int, ...], new: tuple[int, ...], learners: set[int]) -> None:
    """Each step that enter() and leave() allow: no decision of the one configuration can be taken behind the back of the other."""
    before = Configuration(old)
    try:
        joint = membership.enter(before, new, tuple(sorted(learners - set(new))))
    except ChangeRefused:
        return
    steps = [before, joint, membership.leave(joint)] if joint.joint else [before, joint]
    everyone = tuple(range(1, 7))
    for one, other in pairwise(steps):
        ours = [some for some in subsets(everyone) if quorum.won(one.voters, one.old_voters, some)]
        theirs = [some for some in subsets(everyone) if quorum.won(other.voters, other.old_voters, some)]
        smallest = [[some for some in all_of if not any(less < some for less in all_of)] for all_of in (ours, theirs)]
        assert all(some & others for some in smallest[0] for others in smallest[1]), (one, other)
