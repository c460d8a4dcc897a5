"""What a group's committed log makes of its streams: every version of each stream with the position at which it began. The simulator's
invariants hand us each entry when it is first committed anywhere; answers.py asks what was true when.

A position counts the commands of a group. All that a client may be told while `count` stands at n is a version that began at or before n; and,
since every request passes the log or a ReadIndex, one that was still valid at or after the count when it arrived. The order of the log is thus the
order of everything, and each answer can be judged by itself, at once. The states are those of stream_model.py, not of the code under test."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.stream.commands import Append, Command, Create, CreateFork, Delete, PublishSnapshot, decode_commands
from anabranch_node.core.stream.results import BucketUnknown, PointElsewhere, Result, StreamGone, StreamNotFound
from tests.checkers.stream_model import Model, ModelSnapshot, ModelStream, split


@dataclass(slots=True, eq=False)
class Life:
    """One incarnation of a stream: its content only grows."""

    incarnation: int
    content_type: str
    ttl_s: int | None
    expires_at: str
    content: bytearray = field(default_factory=bytearray)
    """From offset 0 on, in a fork with what it inherits; zeros for what lies before the earliest offset that it ever showed."""
    ends: set[int] = field(default_factory=lambda: {0})
    """Message boundaries."""
    noted: int = 0
    """Messages of its own so far."""
    keys: list[tuple[int, int, str]] = field(default_factory=list)
    """(start, end, key) of messages that have one."""

    def keyed(self, key: str, start: int, end: int) -> list[bytes]:
        """The messages of [start, end) with that key."""
        return [bytes(self.content[first:last]) for first, last, given in self.keys if given == key and start <= first and last <= end]


class Version(NamedTuple):
    life: Life | None
    """None: there is no such stream."""
    tail: int
    closed: bool
    earliest: int = 0
    gone: bool = False
    """Deleted or expired, and kept for its forks."""
    snapshot: ModelSnapshot | None = None


class Done(NamedTuple):
    """A command that was committed, and what the model says of it."""

    position: int
    command: Command
    result: Result


NOTHING = Version(None, 0, False)


class Timeline:
    """Of one group. `life_of` finds lives in all groups: what a fork inherits may be another group's."""

    def __init__(self, life_of: Callable[[str, int], Life | None] | None = None) -> None:
        self._life_of = life_of or (lambda name, incarnation: self.every_life.get((name, incarnation)))
        self.every_life: dict[tuple[str, int], Life] = {}
        self.count = 0
        self.model = Model(buckets_checked=True)
        self.tagged: dict[str, list[Done]] = {}
        """Appends and creates, by the mark that their sender gave them: one try, one mark."""
        self.deletes: dict[str, list[Done]] = {}
        self._index = 0
        self._positions: dict[str, list[int]] = {}
        self._versions: dict[str, list[Version]] = {}
        self._lives: dict[str, Life] = {}

    def add(self, index: int, entry: bytes) -> list[str]:
        """One committed entry, each once and in order. Answers the marks of the commands in it."""
        assert index == self._index + 1, (index, self._index)
        self._index = index
        if entries_of.version_of(entry) != entries_of.COMMANDS_V1:
            return []
        marks = []
        for place, command in enumerate(decode_commands(entries_of.payload_of(entry))):
            mark = self._apply(index, place, command)
            if mark:
                marks.append(mark)
        return marks

    def _apply(self, index: int, place: int, command: Command) -> str:
        self.count += 1
        result = self.model.apply(index, place, command)
        if stream := getattr(command, "stream", None):
            self._note(stream)
        for name, life in list(self._lives.items()):  # the group's clock moved: whose time has come?
            if (life.ttl_s is not None or life.expires_at) and self.model.visible(name) is None:
                self._note(name)
        if isinstance(result, BucketUnknown):
            return ""  # definitely refused, so the node that was asked may send it again: the log then has it twice
        if isinstance(result, PointElsewhere):  # nothing happened: its asker looks elsewhere and comes again
            return ""
        done = Done(self.count, command, result)
        if isinstance(command, Delete):
            self.deletes.setdefault(command.stream, []).append(done)
            return ""
        mark = mark_of(command)
        if mark:
            self.tagged.setdefault(mark, []).append(done)
        return mark

    def _note(self, name: str) -> None:
        found = self.model.look(name)
        life = self._lives.get(name)
        if isinstance(found, StreamNotFound):
            if life is not None:
                del self._lives[name]
                self._add_version(name, NOTHING)
            return
        if isinstance(found, StreamGone):
            version = self.latest(name)._replace(gone=True)
        else:
            if life is None or life.incarnation != found.incarnation:
                life = self._begin(name, found)
            for message in found.messages[life.noted :]:
                life.noted += 1
                if message.key:
                    life.keys.append((len(life.content), len(life.content) + len(message.body), message.key))
                life.content += message.body
                life.ends.add(len(life.content))
            version = Version(life, len(life.content), found.closed, found.earliest, False, found.snapshot)
        if self.latest(name) != version:
            self._add_version(name, version)

    def _begin(self, name: str, found: ModelStream) -> Life:
        life = self._lives[name] = Life(found.incarnation, found.content_type, found.ttl_s, found.expires_at)
        self.every_life[name, found.incarnation] = life
        for part in found.ranges:
            source = self._life_of(part.stream, part.incarnation)
            assert source is not None, (name, part)
            assert len(source.content) >= part.end, (name, part, len(source.content))
            life.content += bytes(part.start - len(life.content)) + source.content[part.start : part.end]
            life.ends |= {end for end in source.ends if part.start <= end < part.end} | {part.end}
            life.keys += [(start, min(end, part.end), key) for start, end, key in source.keys if part.start <= start < part.end]
        life.content += bytes(found.start - len(life.content))
        life.ends.add(found.start)
        return life

    def _add_version(self, name: str, version: Version) -> None:
        self._positions.setdefault(name, []).append(self.count)
        self._versions.setdefault(name, []).append(version)

    # --- looking in --------------------------------------------------------------------------------------------------------------

    def latest(self, name: str) -> Version:
        versions = self._versions.get(name)
        return versions[-1] if versions else NOTHING

    def between(self, name: str, low: int, high: int) -> list[tuple[int, Version]]:
        """The versions valid at any position of [low, high], each with the first such position."""
        positions = self._positions.get(name, [])
        versions = self._versions.get(name, [])
        first = bisect_right(positions, low) - 1
        found = [(low, versions[first] if first >= 0 else NOTHING)]
        for at in range(first + 1, len(positions)):
            if positions[at] > high:
                break
            found.append((positions[at], versions[at]))
        return found

    def names(self) -> list[str]:
        """All streams that ever were."""
        return list(self._versions)


def mark_of(command: Command) -> str:
    """Senders mark each try by a parameter of its content type; where keys are not read, an append by its routing key; without data by Stream-Seq."""
    if isinstance(command, Append | Create | CreateFork | PublishSnapshot):
        mark = command.content_type.partition("; try=")[2]
        return mark or command.key or command.seq or "" if isinstance(command, Append) else mark
    return ""


def messages_of(command: Append | Create | CreateFork) -> list[bytes]:
    return split(command.body, command.lengths)
