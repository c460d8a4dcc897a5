"""Why the engine could not answer a request, each definite ("it did not happen", so a retry cannot duplicate) or not.

What a stream itself refuses is in stream/results.py; one table will give all of them their HTTP answers."""

from typing import ClassVar

from msgspec import Struct


class Failure(Struct, frozen=True, array_like=True, gc=False):
    definite: ClassVar[bool] = True

    def __str__(self) -> str:
        return type(self).__name__


class OutcomeUnknown(Failure, frozen=True, tag=50):
    """The command is in a log, and whether it will be committed is not known here. Never retried by us; a producer tuple makes a retry safe."""

    definite: ClassVar[bool] = False
    reason: str

    def __str__(self) -> str:
        return f"outcome unknown: {self.reason}"


class NotLeading(Failure, frozen=True, tag=51):
    """`leader` is the replica to ask, 0 if none is known."""

    leader: int

    def __str__(self) -> str:
        return f"replica {self.leader} leads this group" if self.leader else "the group has no leader now"


class Overloaded(Failure, frozen=True, tag=52):
    what: str

    def __str__(self) -> str:
        return f"overloaded: {self.what}"


class DiskFull(Failure, frozen=True, tag=53):
    def __str__(self) -> str:
        return "the disk is nearly full: reads, votes and deletes go on, appends are refused"


class Fenced(Failure, frozen=True, tag=54):
    """This replica is out of service; another one can answer."""

    reason: str

    def __str__(self) -> str:
        return f"this replica is fenced: {self.reason}"


class ReadUnavailable(Failure, frozen=True, tag=55):
    """No leader confirmed the read. Reads change nothing, so this is definite."""

    def __str__(self) -> str:
        return "no leader confirmed this read"


class NotHosted(Failure, frozen=True, tag=56):
    group: int

    def __str__(self) -> str:
        return f"this node has no replica of group {self.group}"


class Refused(Failure, frozen=True, tag=57):
    """A membership change or a transfer that is not possible now, or never."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class TooLarge(Failure, frozen=True, tag=58):
    bytes_max: int

    def __str__(self) -> str:
        return f"one command may have at most {self.bytes_max} bytes"


class HotFull(Failure, frozen=True, tag=59):
    """The memory for recent data is used up; reads, closes and deletes go on."""

    def __str__(self) -> str:
        return "the memory for recent data is full: appends are refused until some is freed"


class Initializing(Failure, frozen=True, tag=61):
    """The cluster has no streams' groups yet: it is being initialised, or this node has not joined it."""

    def __str__(self) -> str:
        return "this node does not serve streams yet: the cluster is being initialised, or the node is joining it"


class Accepted(Struct, frozen=True, array_like=True, tag=60):
    """A membership change or a transfer has begun."""

    index: int
