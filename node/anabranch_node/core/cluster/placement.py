"""Where the replicas of a new cluster go: `initial(nodes, group_count, rf)`, pure and deterministic. cluster_flow.py proposes what we plan.

Nodes get about the same number of replicas and of preferred leaders, as far as zones allow it; replicas of a group avoid sharing a zone while
there are enough zones. Not here: moving what is placed already."""

from typing import NamedTuple


class Candidate(NamedTuple):
    node_id: int
    zone: str


def initial(nodes: list[Candidate], group_count: int, replication_factor: int) -> list[list[int]]:
    """For each group the node ids of its replicas, the preferred leader's first."""
    if len(nodes) < replication_factor:
        raise ValueError(f"{replication_factor} replicas need as many nodes, there are {len(nodes)}")
    zone_of = {node.node_id: node.zone or f"node {node.node_id}" for node in nodes}
    held = dict.fromkeys(sorted(zone_of), 0)
    led = dict.fromkeys(sorted(zone_of), 0)
    placement = []
    for _ in range(group_count):
        chosen: list[int] = []
        while len(chosen) < replication_factor:
            zones = [zone_of[node] for node in chosen]
            free = [node for node in held if node not in chosen]
            chosen.append(min(free, key=lambda node: (zones.count(zone_of[node]), held[node], node)))
        for node in chosen:
            held[node] += 1
        leader = min(chosen, key=lambda node: (led[node], node))
        led[leader] += 1
        placement.append([leader, *[node for node in chosen if node != leader]])
    return placement
