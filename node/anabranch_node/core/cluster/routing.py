"""From a stream to its group, and from a group to the nodes that hold it, by one view of the cluster. service.py asks for every request."""

from anabranch_node.core.cluster.view import ClusterView
from anabranch_proto.ids import META_GROUP, group_of

CACHE_MAX = 100_000


class Routing:
    def __init__(self, view: ClusterView) -> None:
        self.groups = [placement.group for placement in view.groups if placement.group != META_GROUP]
        self.ready = bool(self.groups)
        self._group_count = view.group_count
        incarnations = {node.node_id: node.incarnation for node in view.nodes}
        self._places = {
            placement.group: [(place.node_id, incarnations[place.node_id]) for place in placement.replicas if place.node_id in incarnations]
            for placement in view.groups
        }
        self._cache: dict[str, int] = {}  # the hash costs about 1 us, a look 50 ns

    def group_of(self, stream: str) -> int:
        group = self._cache.get(stream)
        if group is None:
            bucket, _, name = stream.partition("/")
            group = group_of(bucket, name, self._group_count)
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[stream] = group
        return group

    def place(self, group: int, tries: int) -> tuple[int, int] | None:
        """(node, incarnation) of one of its replicas, another one at each try."""
        places = self._places.get(group)
        return places[tries % len(places)] if places else None
