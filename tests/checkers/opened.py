"""For tests of everything but buckets: groups that knew from the start that the buckets of these tests are open, as a snapshot at index 0 would say.

Tests of buckets begin with a plain StreamMachine and its BucketOpen (tests/unit/test_fences.py, test_service_buckets.py, the simulator)."""

from anabranch_node.core.cross.fences import Fences, FencesState
from anabranch_node.core.stream.machine import StreamMachine

OPENED = ("a", "b", "c", "_default")


class OpenedMachine(StreamMachine):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self._table.fences = Fences(FencesState(0, [(bucket, 0) for bucket in OPENED]))
