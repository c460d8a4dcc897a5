"""Live readers: long-polls at the tail and SSE responses that go on. service.py brings them here; each applied append wakes those of its stream.

One append is encoded once for all readers at the same offset, and leaves as one Broadcast; a large crowd is served in slices over several turns, so
that appends never stall behind it. Bounded: `waiters_max` readers; while some wait for their slice no other event is made, so that what is appended
meanwhile becomes one event, not a queue of them; a reader that does not take its bytes is the client plane's to drop.
Not here: the first read and its ReadIndex (service.py). What is served here was applied, hence committed, and continues such a read."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from anabranch_node.core.stream.queries import ReadAt
from anabranch_node.core.stream.results import ReadSlice
from anabranch_node.engine.host import Host
from anabranch_node.service.effects import Begin, Broadcast, End
from anabranch_node.service.life import Life, Stage
from anabranch_node.web import sse

FinishPoll = Callable[[Life, Any], None]
"""A long-poll's result; None: it timed out."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    long_poll_timeout_ms: int = 30_000
    sse_keep_alive_ms: int = 15_000
    sse_rotate_ms: int = 60_000
    waiters_max: int = 20_000
    # A socket write costs about 10 us, so 256 readers a turn delay appends by 2.6 ms at most.
    fanout_readers_per_turn_max: int = 256


class _Piece(NamedTuple):
    """Bytes on their way to a crowd, first come first served: so each reader gets its events in order."""

    last: bool
    tokens: list[int]
    data: bytes
    stream_bytes: int = -1
    """Of the stream's data in it; -1: it is no event."""


class _Spot(NamedTuple):
    offset: int
    key: str | None


class _Watch:
    """The readers of one stream, by the offset they wait at, usually all at the tail, and the routing key they want."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at: dict[_Spot, dict[int, Life]] = {}

    def add(self, spot: "_Spot", life: Life) -> None:
        self.at.setdefault(spot, {})[life.token] = life


class LiveReaders:
    def __init__(self, host: Host, options: LiveOptions, response_bytes_max: int, forget: Callable[[Life], None]) -> None:
        self._host = host
        self._forget = forget  # the response of this life has its end on the way
        self._options = options
        self._bytes_max = response_bytes_max
        self._watched: dict[int, dict[str, _Watch]] = {}  # group -> stream -> readers; the machine marks what changed among them
        self._place: dict[int, tuple[int, str, _Spot]] = {}  # token -> (group, stream, where it waits)
        self._polls: list[tuple[int, int]] = []  # heap of (deadline, token): clients say how long they wait
        self._rotations: deque[tuple[int, int]] = deque()
        self._keep_alives: deque[tuple[int, int]] = deque()
        self._pieces: deque[_Piece] = deque()
        self._again: dict[int, set[str]] = {}  # woken, and more to read than one response holds
        self.streaming: dict[int, Life] = {}
        # For metrics: events handed over to readers, one for each reader, and the streams' data in them.
        self.events = self.event_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Events that are made and wait for their turn."""
        return sum(len(piece.data) for piece in self._pieces)

    # --- readers come and go -----------------------------------------------------------------------------------------------------

    def wait(self, life: Life, at: ReadSlice, uptime_ms: int) -> None:
        life.slice = at
        # From here on it asks from where it waits: the tail that "now" means at the last look may be a later one.
        life.payload = msgspec.structs.replace(life.payload, offset=at.next_offset, since_ms=None)
        self._register(life, at.next_offset)
        heappush(self._polls, (uptime_ms + (life.wait_ms or self.patience_ms(life)), life.token))

    def patience_ms(self, life: Life) -> int:
        """Of a long-poll."""
        asked_ms = None if life.request is None else life.request.timeout_ms
        return self._options.long_poll_timeout_ms if asked_ms is None else asked_ms

    def begin(self, life: Life, first: ReadSlice, now_ms: int, uptime_ms: int, out: list[Any]) -> None:
        assert life.request is not None
        life.slice = first
        self.streaming[life.token] = life
        cursor = sse.cursor_for(life.request.cursor, now_ms)
        out.append(Begin(life.token, sse.head(life.request, first, now_ms) + sse.event(first, cursor)))
        self.events += 1
        self.event_bytes += len(first.data)
        if first.closed:
            self._end(life, out)
            return
        self._rotations.append((uptime_ms + self._options.sse_rotate_ms, life.token))
        self._keep_alives.append((uptime_ms + self._options.sse_keep_alive_ms, life.token))
        self._follow(life, first)

    def go_on(self, life: Life, slice: ReadSlice, now_ms: int, out: list[Any]) -> None:
        """The next piece of a stream that another node holds."""
        assert life.slice is not None
        if slice.incarnation != life.slice.incarnation:
            self._end(life, out)
            return
        life.slice = slice
        if slice.data or slice.closed:
            self._pieces.append(_Piece(False, [life.token], sse.event(slice, sse.cursor_for("", now_ms)), len(slice.data)))
        if slice.closed:
            self._end(life, out)
        else:
            self._follow(life, slice)

    def _follow(self, life: Life, slice: ReadSlice) -> None:
        life.payload = ReadAt(life.payload.stream, slice.next_offset, self._bytes_max, life.payload.key)
        if life.remote or slice.behind:  # service.py asks for more of what is not ours: another node's, or what a fork inherits
            life.wait_ms = self._options.sse_keep_alive_ms if life.remote else 0
            return
        self._register(life, slice.next_offset)

    def _register(self, life: Life, offset: int) -> None:
        stream = life.payload.stream
        watched = self._watched.setdefault(life.group, {})
        watch = watched.get(stream)
        if watch is None:
            watch = watched[stream] = _Watch()
        spot = _Spot(offset, life.payload.key)
        watch.add(spot, life)
        self._place[life.token] = (life.group, stream, spot)
        # Its slice may be a step old by now, or not the whole: look once more before waiting for the next append.
        self._again.setdefault(life.group, set()).add(stream)
        group = self._host.groups.get(life.group)
        if group is not None and group.machine.watched is not watched:
            # New to this machine, which may be a snapshot that was installed in this very step: others wait behind what it brought.
            group.machine.watched = watched
            self._again[life.group].update(watched)

    def remove(self, life: Life) -> None:
        self.streaming.pop(life.token, None)
        place = self._place.pop(life.token, None)
        if place is None:
            return
        group, stream, spot = place
        watch = self._watched[group][stream]
        readers = watch.at[spot]
        del readers[life.token]
        if not readers:
            del watch.at[spot]
            if not watch.at:
                del self._watched[group][stream]

    def _end(self, life: Life, out: list[Any]) -> None:
        self.remove(life)
        self._forget(life)
        self._pieces.append(_Piece(True, [life.token], sse.END))

    def end_one(self, life: Life, out: list[Any]) -> None:
        self._end(life, out)

    def end_all(self, out: list[Any], finish_poll: FinishPoll) -> None:
        for watched in list(self._watched.values()):
            for watch in list(watched.values()):
                for life in [life for readers in watch.at.values() for life in readers.values()]:
                    self._dismiss(life, out, finish_poll)
        for life in list(self.streaming.values()):
            self._end(life, out)

    def _dismiss(self, life: Life, out: list[Any], finish_poll: FinishPoll) -> None:
        if life.stage is Stage.STREAMING:
            self._end(life, out)
        else:
            self.remove(life)
            finish_poll(life, None)

    # --- something happened ------------------------------------------------------------------------------------------------------

    def wake(self, now_ms: int, out: list[Any], finish_poll: FinishPoll) -> None:
        """After every step of the host: serve the readers of streams that changed."""
        if self._pieces:
            self._wake_later()
            return
        for group_id, watched in self._watched.items():
            again = self._again.pop(group_id, None)  # also if nobody is left: what stays in there asks for another turn
            group = self._host.groups.get(group_id)
            if group is None or not watched:
                continue
            machine = group.machine
            if machine.watched is not watched:  # another machine: a snapshot was installed
                machine.watched = watched
                streams = list(watched)
            elif machine.woken or again:
                streams = list(dict.fromkeys([*machine.woken, *(sorted(again) if again else [])]))
            else:
                continue
            machine.woken.clear()
            for stream in streams:
                if stream in watched:
                    self._wake_stream(group_id, stream, watched[stream], now_ms, out, finish_poll)

    def _wake_later(self) -> None:
        """A crowd is still being served. fan_out() asks for more turns until nobody waits."""
        for group_id, watched in self._watched.items():
            group = self._host.groups.get(group_id)
            if group is not None and watched and group.machine.woken:
                self._again.setdefault(group_id, set()).update(group.machine.woken)
                group.machine.woken.clear()

    def _wake_stream(self, group_id: int, stream: str, watch: _Watch, now_ms: int, out: list[Any], finish_poll: FinishPoll) -> None:
        machine = self._host.groups[group_id].machine
        for (offset, key), readers in list(watch.at.items()):
            result = machine.query(ReadAt(stream, offset, self._bytes_max, key), now_ms)
            if not isinstance(result, ReadSlice):
                for life in list(readers.values()):
                    self._gone(life, result, out, finish_poll)
                continue
            result = msgspec.structs.replace(result, touch_due=False)  # a live read resets the window when it starts, not later
            if not result.data and not result.closed and all(_same(life, result) for life in readers.values()):
                if result.next_offset > offset:  # none of what came has the key that they want
                    for life in list(readers.values()):
                        self._move(life, result)
                continue
            tokens: list[int] = []
            moved: list[Life] = []
            for life in list(readers.values()):
                if life.stage is not Stage.STREAMING:
                    self.remove(life)
                    finish_poll(life, result if len(result.data) <= life.payload.max_bytes else self._less(life, offset, machine, now_ms))
                elif not _same(life, result):
                    self._end(life, out)
                else:
                    tokens.append(life.token)
                    moved.append(life)
            if tokens:
                self._pieces.append(_Piece(False, tokens, sse.event(result, sse.cursor_for("", now_ms)), len(result.data)))
                if result.closed:
                    self._pieces.append(_Piece(True, tokens, sse.END))
                for life in moved:
                    self.remove(life)
                    if result.closed:
                        self._forget(life)
                    else:
                        life.slice = result
                        self.streaming[life.token] = life
                        self._follow(life, result)

    def _move(self, life: Life, result: ReadSlice) -> None:
        """It waits on, further behind."""
        place = self._place[life.token]
        streaming = self.streaming.get(life.token)
        self.remove(life)
        if streaming is not None:
            self.streaming[life.token] = streaming
        life.slice = result
        life.payload = msgspec.structs.replace(life.payload, offset=result.next_offset)
        assert place[1] == life.payload.stream
        self._register(life, result.next_offset)

    @staticmethod
    def _less(life: Life, offset: int, machine: Any, now_ms: int) -> Any:
        """What this reader asked for: it may want smaller responses than the others."""
        query = ReadAt(life.payload.stream, offset, life.payload.max_bytes, life.payload.key)
        return msgspec.structs.replace(machine.query(query, now_ms), touch_due=False)

    def _gone(self, life: Life, result: Any, out: list[Any], finish_poll: FinishPoll) -> None:
        if life.stage is Stage.STREAMING:
            self._end(life, out)
        else:
            self.remove(life)
            finish_poll(life, result)

    def fan_out(self, out: list[Any]) -> bool:
        """Hand over what fits this turn. True: there is more, so turn again soon."""
        room = self._options.fanout_readers_per_turn_max
        while self._pieces and room > 0:
            piece = self._pieces.popleft()
            tokens = piece.tokens
            if len(tokens) > room:
                self._pieces.appendleft(piece._replace(tokens=tokens[room:]))
                tokens = tokens[:room]
            room -= len(tokens)
            if piece.stream_bytes >= 0:
                self.events += len(tokens)
                self.event_bytes += piece.stream_bytes * len(tokens)
            out.append(End(tokens, piece.data) if piece.last else Broadcast(tokens, piece.data))
        return bool(self._pieces) or bool(self._again)

    # --- time --------------------------------------------------------------------------------------------------------------------

    def tick(self, uptime_ms: int, out: list[Any], finish_poll: FinishPoll) -> None:
        while self._polls and self._polls[0][0] <= uptime_ms:
            token = heappop(self._polls)[1]
            place = self._place.get(token)
            if place is not None:
                life = self._watched[place[0]][place[1]].at[place[2]][token]
                self.remove(life)
                finish_poll(life, None)
        while self._rotations and self._rotations[0][0] <= uptime_ms:
            rotated = self.streaming.get(self._rotations.popleft()[1])
            if rotated is not None:
                self._end(rotated, out)
        quiet: list[int] = []
        while self._keep_alives and self._keep_alives[0][0] <= uptime_ms:
            token = self._keep_alives.popleft()[1]
            if token in self.streaming:
                quiet.append(token)
                self._keep_alives.append((uptime_ms + self._options.sse_keep_alive_ms, token))
        if quiet:
            self._pieces.append(_Piece(False, quiet, sse.KEEP_ALIVE))
        for group_id, watched in self._watched.items():
            if not watched:
                continue
            group = self._host.groups.get(group_id)
            if group is None or group.fenced or not group.raft.hears_leader():
                # What others commit does not reach us: whoever waits here would wait for nothing.
                for watch in list(watched.values()):
                    for life in [life for readers in watch.at.values() for life in readers.values()]:
                        self._dismiss(life, out, finish_poll)


def _same(life: Life, slice: ReadSlice) -> bool:
    return life.slice is None or life.slice.incarnation == slice.incarnation
