"""Configurations as bytes, and which changes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft import membership
from anabranch_node.core.raft.errors import ChangeRefused
from anabranch_node.core.raft.membership import Configuration

SOME = st.lists(st.integers(0, 2**64 - 1), max_size=6).map(tuple)


@given(SOME, SOME, SOME)
def test_bytes_and_back(voters: tuple[int, ...], old_voters: tuple[int, ...], learners: tuple[int, ...]) -> None:
    config = Configuration(voters, old_voters, learners)
    assert membership.decode(membership.encode(config)) == config


@given(SOME, st.integers(1, 8))
def test_cut_or_padded_bytes_are_refused(voters: tuple[int, ...], count: int) -> None:
    data = membership.encode(Configuration(voters))
    with pytest.raises(ValueError):
        membership.decode(data + bytes(count))
    if voters:
        with pytest.raises(ValueError):
            membership.decode(data[:-count])


@given(st.sets(st.integers(1, 5), min_size=1), st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5), min_size=1), st.sets(st.integers(1, 5)))
def test_a_change_arrives_where_it_was_meant_to(voters: set[int], learners: set[int], to_voters: set[int], to_learners: set[int]) -> None:
    current = Configuration(tuple(sorted(voters)), (), tuple(sorted(learners - voters)))
    target = Configuration(tuple(sorted(to_voters)), (), tuple(sorted(to_learners - to_voters)))
    if target == current:
        with pytest.raises(ChangeRefused, match="already"):
            membership.enter(current, target.voters, target.learners)
        return
    next_one = membership.enter(current, target.voters, target.learners)
    assert next_one.joint == (target.voters != current.voters)
    assert membership.leave(next_one) == target
    assert set(next_one.members()) >= set(current.voters) | set(target.members())
    if next_one.joint:
        with pytest.raises(ChangeRefused, match="under way"):
            membership.enter(next_one, target.voters, target.learners)
