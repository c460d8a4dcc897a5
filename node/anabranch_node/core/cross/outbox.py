"""What a group owes others: replicated entries, sent again by its leader until the receiver has acknowledged them (service/cross.py).

Before us: lifecycle.py frees a fork, and its source must hear that. After us: the leader sends Unpin, and AckOutbox takes the entry out. Receivers
take every entry as often as it comes. Not here: when and where it is sent."""

from msgspec import Struct


class Owed(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """That incarnation of `stream` no longer needs to keep anything for the fork `uuid`."""

    stream: str
    incarnation: int
    uuid: str


class Outbox:
    __slots__ = ("entries", "last")

    def __init__(self, entries: dict[int, Owed] | None = None, last: int = 0) -> None:
        self.entries = entries or {}
        self.last = last
        """Number of the newest entry that ever was: numbers are not used again."""

    def add(self, owed: Owed) -> None:
        self.last += 1
        self.entries[self.last] = owed

    def acknowledge(self, numbers: list[int]) -> None:
        for number in numbers:
            self.entries.pop(number, None)

    def copy(self) -> "Outbox":
        return Outbox(self.entries.copy(), self.last)
