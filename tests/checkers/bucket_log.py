"""What the meta group's committed log makes of the buckets, and whether that fits what the other groups hold: the judge of everything about buckets.

Logs of different groups have no common order, so time is counted here in entries that were first committed anywhere: a moment. What one group learns
from another was committed there before, so cause precedes effect. While a bucket is absent no group may hold a stream of it; what decides a delete
must be true when it is decided; and an answer must be true at a moment between the arrival of its request and itself.

Before us: tests/sim/front_door.py. Beside us: answers.py, for streams. The states are written down again here, not taken from the code under test."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from anabranch_node.core.cluster.commands import BucketCreate, BucketDelete, BucketDeleted, BucketRestored, InitCluster, decode_commands
from anabranch_node.core.raft import entry as entries_of
from tests.checkers.stream_model import Model
from tests.checkers.timeline import Timeline
from tests.sim.http_wire import Response

if TYPE_CHECKING:
    from tests.checkers.answers import Exchange

DEFAULT = "_default"
State = TypeVar("State")
_NOT_NOW = {"no_leader", "overloaded", "disk_full", "hot_full", "fenced", "read_unavailable", "not_hosted", "initializing"}


class Bucket(NamedTuple):
    deleting: bool
    made: int
    """Which bucket of that name it is: the place of its create in the log."""
    since: int
    """The place of what brought it into this state."""
    created_ms: int


@dataclass(slots=True)
class _Happened:
    """Moments of what changed a bucket."""

    made: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)


class History(Generic[State]):
    """A value over moments."""

    def __init__(self, first: State) -> None:
        self._moments = [0]
        self._values = [first]

    @property
    def latest(self) -> State:
        return self._values[-1]

    def note(self, moment: int, value: State) -> None:
        if value != self._values[-1]:
            self._moments.append(moment)
            self._values.append(value)

    def between(self, low: int, high: int) -> list[State]:
        """All that it was at any moment of [low, high]."""
        found = []
        for at in range(len(self._moments) - 1, -1, -1):
            if self._moments[at] <= high:
                found.append(self._values[at])
            if self._moments[at] <= low:
                break
        return found


class BucketLog:
    def __init__(self, timelines: dict[int, Timeline]) -> None:
        self._timelines = timelines
        self.now = 0
        """Moments so far."""
        self.initialised = False
        self._clock_ms = 0
        self._index = 0
        self._states: dict[str, History[Bucket | None]] = {}
        self._held: dict[tuple[int, str], History[int]] = {}
        """(group, bucket) -> streams of it there, also those that are kept for their forks or past their due."""
        self._happened: dict[str, _Happened] = {}
        self._rounds: dict[str, int] = {}
        """Bucket that is being deleted -> since which moment."""
        self._claimed: set[tuple[str, int]] = set()
        """Creates that an answer has spoken for."""

    # --- what happens ------------------------------------------------------------------------------------------------------------

    def state(self, bucket: str) -> Bucket | None:
        history = self._states.get(bucket)
        return None if history is None else history.latest

    def buckets(self) -> dict[str, Bucket]:
        return {name: history.latest for name, history in self._states.items() if history.latest is not None}

    def committed(self, index: int, entry: bytes) -> str:
        """An entry of the meta group, each once and in order."""
        assert index == self._index + 1, (index, self._index)
        self._index = index
        self.now += 1
        if entries_of.version_of(entry) != entries_of.COMMANDS_V1:
            return ""
        for number, command in enumerate(decode_commands(entries_of.payload_of(entry))):
            wrong = self._apply(index << 16 | number, command)
            if wrong:
                return wrong
        return ""

    def _apply(self, place: int, command: Any) -> str:
        self._clock_ms = max(self._clock_ms, command.now_ms)
        if isinstance(command, InitCluster):
            if not self.initialised:
                self.initialised = True
                self._set(DEFAULT, Bucket(False, place, place, self._clock_ms))
            return ""
        name = command.bucket
        had = self.state(name)
        if isinstance(command, BucketCreate):
            if had is None:
                self._set(name, Bucket(False, place, place, self._clock_ms))
                self._happened_to(name).made.append(self.now)
        elif isinstance(command, BucketDelete):
            if had is not None and not had.deleting and name != DEFAULT:
                self._set(name, had._replace(deleting=True, since=place))
                self._rounds[name] = self.now
        elif had is not None and had.deleting and had.since == command.index:
            if isinstance(command, BucketDeleted):
                return self._deleted(name)
            assert isinstance(command, BucketRestored), command
            return self._restored(name, had._replace(deleting=False, since=place))
        return ""

    def _set(self, name: str, state: Bucket | None) -> None:
        self._states.setdefault(name, History(None)).note(self.now, state)

    def _happened_to(self, name: str) -> _Happened:
        return self._happened.setdefault(name, _Happened())

    def _deleted(self, name: str) -> str:
        self._set(name, None)
        self._happened_to(name).deleted.append(self.now)
        del self._rounds[name]
        held = {group: history.latest for (group, bucket), history in self._held.items() if bucket == name and history.latest}
        return f"bucket {name} is deleted, and groups hold streams of it: {held}" if held else ""

    def _restored(self, name: str, state: Bucket) -> str:
        self._set(name, state)
        self._happened_to(name).restored.append(self.now)
        since = self._rounds.pop(name)
        held = any(any(history.between(since, self.now)) for (_, bucket), history in self._held.items() if bucket == name)
        return "" if held else f"the delete of bucket {name} is given up, and no group held a stream of it since it began"

    def group_changed(self, group: int, model: Model) -> str:
        """An entry of another group was committed: what does it hold now?"""
        self.now += 1
        counts = Counter(name.partition("/")[0] for name in model.streams)
        for bucket in [bucket for at, bucket in self._held if at == group and bucket not in counts]:
            counts[bucket] = 0
        for bucket, count in counts.items():
            self._held.setdefault((group, bucket), History(0)).note(self.now, count)
            if count and self.state(bucket) is None:
                return f"group {group} holds {count} streams of bucket {bucket}, which does not exist"
        return ""

    # --- answers -----------------------------------------------------------------------------------------------------------------

    def was_absent(self, bucket: str, low: int) -> bool:
        return bucket not in self._states or None in self._states[bucket].between(low, self.now)

    def was_deleting(self, low: int) -> bool:
        """Any bucket: an open that was looked up before the delete of another one is refused, too."""
        return any(state is not None and state.deleting for history in self._states.values() for state in history.between(low, self.now))

    def judge(self, exchange: Exchange, response: Response) -> str:
        """Of a request about a bucket. "": true at some moment since it arrived."""
        method, bucket, low = exchange.method, exchange.bucket, exchange.moment
        status, code = response.status, response.code
        if status == 500:
            return f"internal error: {response.body!r}"
        if status == 503:
            if code == "outcome_unknown":
                return "" if method in ("PUT", "DELETE") else "a read has no unknown outcome"
            if code == "bucket_deleting":
                return "" if method == "PUT" and self.was_deleting(low) else "it was never being deleted"
            return "" if code in _NOT_NOW else f"a 503 without a known code: {code!r}"
        states = self._states[bucket].between(low, self.now) if bucket in self._states else [None]
        if status == 404:
            absent = code == "bucket_not_found" and None in states and method != "PUT"
            return "" if absent else f"it was there all the time: {states}"
        happened = self._happened_to(bucket)
        if method == "PUT":
            if status == 409:
                there = code == "bucket_exists" and any(state is not None and not state.deleting for state in states)
                return "" if there else f"it was never open: {states}"
            return self._claim(bucket, low) if status == 201 else f"no answer to the create of a bucket: {status} {code}"
        if method == "DELETE":
            if status == 409 and code == "bucket_reserved":
                return "" if bucket == DEFAULT else "it may be deleted"
            if status == 409:
                given_up = code == "bucket_not_empty" and any(moment > low for moment in happened.restored)
                return "" if given_up else "no delete of it was given up since"
            decided = status == 204 and any(moment > low for moment in happened.deleted)
            return "" if decided else "it was not deleted since"
        if status != 200:
            return f"no answer to a question about a bucket: {status} {code}"
        body = json.loads(response.body)
        if body["bucket_id"] != bucket or all(state is None for state in states):
            return f"it was never there: {states}"
        return self._info(bucket, low, body, states) if method == "GET" else self._listing(exchange, body)

    def _claim(self, bucket: str, low: int) -> str:
        """The first one that is free: what is left serves any later answer at least as well."""
        for moment in self._happened_to(bucket).made:
            if moment > low and (bucket, moment) not in self._claimed:
                self._claimed.add((bucket, moment))
                return ""
        return "no create in the log since made it"

    def _info(self, bucket: str, low: int, body: dict[str, Any], states: list[Bucket | None]) -> str:
        if body["created_at_ms"] not in [state.created_ms for state in states if state is not None]:
            return f"it was not made then: {states}"
        held = [history.between(low, self.now) for (_, of), history in self._held.items() if of == bucket]
        least, most = sum(map(min, held)), sum(map(max, held))
        return "" if least <= body["streams"] <= most else f"it had {least} to {most} streams"

    def _listing(self, exchange: Exchange, body: dict[str, Any]) -> str:
        bucket, prefix, after, limit = exchange.bucket, exchange.prefix, exchange.after, exchange.limit
        rows = {f"{bucket}/{row['stream_id']}": row for row in body["streams"]}
        names = list(rows)
        if names != sorted(names) or len(names) != len(body["streams"]) or len(names) > limit or any(name <= f"{bucket}/{after}" for name in names):
            return f"names are not in order, or too many: {names}"
        if body["has_more"] != (body["next_cursor"] is not None):
            return "a page with more behind it has a cursor, and no other"
        known: set[str] = set()
        for group, timeline in self._timelines.items():
            for name in timeline.names():
                if not name.startswith(f"{bucket}/{prefix}"):
                    continue
                known.add(name)
                versions = [version for _, version in timeline.between(name, exchange.lows[group], timeline.count)]
                there = [version for version in versions if version.life is not None and not version.gone]
                if name not in rows:
                    in_page = name > f"{bucket}/{after}" and not (body["has_more"] and (not names or name > names[-1]))
                    if in_page and len(there) == len(versions):
                        return f"{name} is not listed, and was there all the time"
                    continue
                row = rows[name]
                shown = (row["content_type"], row["tail_offset"], row["status"])
                if shown not in [(v.life.content_type, v.tail, "Closed" if v.closed else "Open") for v in there if v.life is not None]:
                    return f"{name} is listed as {shown}, and never was that"
        return f"streams that never were: {set(names) - known}" if set(names) - known else ""
