"""Where a new cluster's replicas go: even, apart, and the same every time."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.cluster.placement import Candidate, initial


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


@given(st.integers(1, 12), st.sampled_from([1, 3, 5]), st.integers(1, 128))
def test_without_zones_every_node_has_as_many_replicas_as_the_others(node_count: int, factor: int, groups: int) -> None:
    nodes = [Candidate(number, "") for number in range(1, node_count + 1)]
    if node_count < factor:
        with pytest.raises(ValueError):
            initial(nodes, groups, factor)
        return
    placed = initial(nodes, groups, factor)
    assert placed == initial(nodes[::-1], groups, factor), "the order in which nodes are named is not a reason"
    assert all(len(set(chosen)) == factor for chosen in placed) and len(placed) == groups
    held = Counter(node for chosen in placed for node in chosen)
    assert spread([held[node.node_id] for node in nodes]) <= 1


@given(st.lists(st.sampled_from("abcde"), min_size=3, max_size=12), st.integers(1, 64))
def test_replicas_of_a_group_share_a_zone_only_when_there_are_too_few(zones: list[str], groups: int) -> None:
    nodes = [Candidate(number, zone) for number, zone in enumerate(zones, start=1)]
    for chosen in initial(nodes, groups, 3):
        used = {zones[node - 1] for node in chosen}
        assert len(used) == min(3, len(set(zones)))
