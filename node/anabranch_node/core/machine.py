"""What a group needs of its state machine: apply in order, be frozen and written out in slices, come back from them. engine/group.py drives it.

stream/machine.py is the machine of the data groups; the meta group will have its own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol


class View(Protocol):
    """The state at one moment, unchanged by what is applied later (copy before change; immutable pieces are shared)."""

    def slices(self, bytes_max: int) -> Iterator[bytes]:
        """The whole state as self-describing chunks of about bytes_max, encoded one at a time, so that a loop turn pays for one only."""


class Machine(Protocol):
    applied_index: int
    watched: dict[str, Any]
    """Names that somebody waits on: the engine's, only looked at by the machine."""
    woken: list[str]
    """Watched names that changed visibly since the engine last took them out."""

    @property
    def hot_bytes(self) -> int:
        """Payload in memory."""

    def apply(self, index: int, version: int, payload: bytes) -> Sequence[Any]:
        """Apply one committed entry; one result per command. Raises for a version it does not know: the entry is never skipped."""

    def apply_commands(self, index: int, commands: Sequence[Any]) -> Sequence[Any]:
        """The same on the leader, which still has the objects."""

    def query(self, query: Any, now_ms: int) -> Any:
        """An answer from applied state. `now_ms`, the serving node's own clock, is a hint and never decides what is visible."""

    def due(self, now_ms: int) -> Sequence[Any]:
        """Commands that the machine itself asks for by the leader's clock, still to be stamped. Bounded, and cheap when there are none."""

    def freeze(self) -> View: ...

    def digest(self) -> bytes:
        """Equal on all replicas that applied the same entries."""


class MachineKind(Protocol):
    """How to make one: empty, or from the chunks of a snapshot."""

    def __call__(self) -> Machine: ...

    def restore(self, chunks: Iterable[bytes]) -> Machine: ...
