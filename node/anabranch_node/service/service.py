"""A request's life on this node: `turn(now_ms, events) -> effects` around Host.step. The loop (drivers/) calls this and nothing deeper.

Before us: the client plane parsed a request, a peer sent a letter. We route it (here, or to the node that can answer), wait for Raft, and render the
answer (web/). A write is sent on only after a definite refusal; a read is tried until its deadline. Live reads wait in live.py, listings gather in
listing.py, what concerns buckets in buckets.py; forks.py makes and reads what spans groups, cross.py sends what groups owe each other. After us: the
driver writes bytes. Not here: bytes of requests and answers (web/), Raft (engine/)."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.effects import Answer, Effect, LetterReceived
from anabranch_node.core.errors import Fenced, Initializing, NotHosted, NotLeading, OutcomeUnknown, Overloaded, ReadUnavailable, Refused
from anabranch_node.core.raft.raft import Role
from anabranch_node.core.stream.commands import PublishSnapshot, Touch
from anabranch_node.core.stream.queries import NOW, ReadAt, ReadMessages, ReadSnapshot
from anabranch_node.core.stream.results import (
    Appended,
    BucketUnknown,
    Inherited,
    MessageSlice,
    OffsetBeyondTail,
    OffsetInsideMessage,
    PointElsewhere,
    ReadSlice,
    SnapshotBlob,
)
from anabranch_node.engine.forward import Codec, Forwarding
from anabranch_node.engine.host import NOBODY, Host
from anabranch_node.engine.letters import Forward
from anabranch_node.service.bootstrap import PIECE_BYTES, Bootstrap, CutOff, Refuse, Send
from anabranch_node.service.buckets import BucketRequests
from anabranch_node.service.cross import Cross
from anabranch_node.service.effects import Abort, Ask, Begin, End, EndLive, FramesDropped, Piece, RequestArrived, RequestGone, Respond, Taken, Told
from anabranch_node.service.forks import Forks
from anabranch_node.service.life import Life, Served, Stage
from anabranch_node.service.listing import Listings
from anabranch_node.service.live import LiveOptions, LiveReaders
from anabranch_node.web import batch as web_batch
from anabranch_node.web import errors as web_errors
from anabranch_node.web import read as web_read
from anabranch_node.web import snapshot as web_snapshot
from anabranch_node.web import write as web_write
from anabranch_node.web.bootstrap import boundary_of
from anabranch_node.web.reply import PREFLIGHT, Reply, render
from anabranch_node.web.request import BadRequest, Kind, Request

_TRY_ELSEWHERE = (NotLeading, ReadUnavailable, NotHosted, Fenced)
"""Definite: it did not happen there, so it may be asked again."""
_OF_BUCKETS = frozenset({Kind.BUCKET_CREATE, Kind.BUCKET_INFO, Kind.BUCKET_LIST, Kind.BUCKET_DELETE})
_SNAPSHOT_KINDS = (Kind.SNAPSHOT_PUBLISH, Kind.SNAPSHOT_READ, Kind.SNAPSHOT_LATEST, Kind.SNAPSHOT_DELETE)
_READING = (Kind.READ, Kind.BOOTSTRAP, Kind.SNAPSHOT_READ, Kind.SNAPSHOT_LATEST)
CLOCK_STEP_MAX_MS = 1_000
"""Between two turns; there is a tick every 50 ms. More is a clock that was set, or a process that was stopped."""

# A lookup in the class of an enumeration takes 30 ns, and every request would make ten of them.
_ASKED = Stage.ASKED
_PREFLIGHT, _LIST, _HEAD, _READ = Kind.PREFLIGHT, Kind.LIST, Kind.HEAD, Kind.READ
_WRITES = (Kind.APPEND, Kind.CREATE, Kind.DELETE)


LARGE_BYTES = 256 << 10
LARGE_BYTES_PER_TURN = 8 << 20
"""Making a response of 10 MiB takes 20 to 50 ms. A crowd that asks for such at once is served over many turns, or appends and votes would wait."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    request_timeout_ms: int = 10_000  # then a write is answered as unknown, a read as unavailable
    response_bytes_max: int = 1 << 20
    unsent_bytes_max: int = 256 << 20  # of responses that clients have not taken: a large one more is refused before it is made
    served_max: int = 20_000  # requests of other nodes under way here
    live: LiveOptions = LiveOptions()


class Service:
    def __init__(self, host: Host, options: ServiceOptions, meta: Codec) -> None:
        self.host = host
        self.options = options
        self.routing: Routing | None = None
        self.forwarding = Forwarding(host, meta)
        self.live = LiveReaders(host, options.live, options.response_bytes_max, self._drop)
        self.forks = Forks(self)
        self._listings = Listings()
        self.buckets = BucketRequests(self)
        self.cross = Cross(host, self.ask)
        self._lives: dict[int, Life] = {}
        self._parked: list[Life] = []
        self._large: deque[tuple[Life, Any]] = deque()  # read, and larger than a turn makes many of
        self._making: Life | None = None  # the one of them whose turn it is
        self.unsent_bytes = 0  # as the client plane says before each turn, and what we added since
        self._deadlines: deque[tuple[int, int]] = deque()  # (deadline, token), in order: all requests are given the same time
        self._own_counter = 1 << 61  # tokens of what no client of ours asked: requests of other nodes, touches
        self._touching: dict[int, Life] = {}  # token of a Touch -> the read that waits for it
        self._served_count = 0
        self.live_count = 0  # live reads of clients, from their arrival to the end of their response
        # For metrics. Of our own clients only: what other nodes ask counts there.
        self.appends = self.append_bytes = 0  # acknowledged, repeated ones again
        self.reads = self.read_bytes = 0  # answered, not refused; without the events of live reads (live.py)
        self.forwarded = 0  # each try
        self._events: list[fx.Event] = []
        self._out: list[Any] = []
        self._now_ms = 0
        self._uptime_ms = 0  # for deadlines: the clock of the stamps may be set, and must not end or keep a request
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            RequestArrived: self._on_request,
            RequestGone: self._on_gone,
            Taken: self._on_taken,
            Ask: self._on_ask,
            EndLive: lambda _: self.live.end_all(self._out, self._finish_poll),
            fx.Tick: self._on_tick,
            fx.PeerLost: self._on_peer_lost,
            FramesDropped: self._on_dropped,
        }

    @property
    def pending(self) -> int:
        return len(self._lives)

    # --- a turn ------------------------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int, events: Iterable[Any]) -> list[Any]:
        if now_ms > self._now_ms:
            self._uptime_ms += min(now_ms - self._now_ms, CLOCK_STEP_MAX_MS)
        self._now_ms = now_ms
        for event in events:
            handler = self._handlers.get(type(event))
            if handler is None:
                self._events.append(event)
            else:
                handler(event)
        if self._large:
            self._make_large()
        while True:
            batch, self._events = self._events, []
            self._take(self.host.step(now_ms, batch))
            self.live.wake(now_ms, self._out, self._finish_poll)
            if not self._events and not self.host.has_work:
                break
        more = self.live.fan_out(self._out)
        out, self._out = self._out, []
        out.extend(self.host.frames())
        if more or self._large:
            out.append(fx.TurnAgain())
        return out

    def _take(self, effects: list[Effect]) -> None:
        lives = self._lives
        appends = append_bytes = 0
        for effect in effects:
            if type(effect) is Answer:
                token, result = effect.token, effect.result
                # The common cases, on one page: an append of a client of ours was committed, or something was read.
                kind = type(result)
                life = lives.get(token) if kind is Appended or kind is ReadSlice else None
                if life is not None and kind is ReadSlice:
                    self._finish(life, result)
                elif life is not None and life.request is not None and life.stage is _ASKED and life.frames is None:
                    del lives[token]
                    appends += 1
                    append_bytes += result.next_offset - result.start_offset
                    self._out.append(Respond(token, web_write.appended(life.request, result)))
                else:
                    self._answered(token, result)
            elif isinstance(effect, LetterReceived):
                self._on_letter(effect)
            else:
                self._out.append(effect)
        self.appends += appends
        self.append_bytes += append_bytes

    # --- requests come in --------------------------------------------------------------------------------------------------------

    def _on_request(self, event: RequestArrived) -> None:
        request, token = event.request, event.token
        routing = self.routing
        kind = request.kind
        if kind is _PREFLIGHT:
            self._respond(token, request, PREFLIGHT)
            return
        if routing is None or not routing.ready:
            self._respond(token, request, web_errors.answer(Initializing()))
            return
        frames: list[web_batch.Frame] | None = None
        bootstrap: Bootstrap | None = None
        payload: Any
        try:
            write = kind in _WRITES
            if write:
                payload = None if request.fork_source else web_write.command(request, event.body)  # of a fork it depends on its source
            elif kind is _READ or kind is _HEAD:
                payload = web_read.query(request, self.options.response_bytes_max)
            elif kind is _LIST:
                self._list(token, request, routing)
                return
            elif kind is Kind.BATCH:
                payload, frames = web_batch.batch(request, event.body)
                if payload is None:
                    self._respond(token, request, web_batch.answer(frames, None))
                    return
                write = True
            elif kind is Kind.BOOTSTRAP:
                piece_bytes = min(PIECE_BYTES, self.options.response_bytes_max)
                bootstrap = Bootstrap(request, boundary_of(self.host.me.incarnation, self.host.boot, token), piece_bytes)
                payload = bootstrap.query()
            elif kind in _SNAPSHOT_KINDS:
                write = kind is Kind.SNAPSHOT_PUBLISH
                payload = web_snapshot.command(request, event.body) if write else web_snapshot.query(request)
            else:
                assert kind in _OF_BUCKETS, kind
                self.buckets.asked(token, request, routing.groups)
                return
        except BadRequest as refusal:
            self._respond(token, request, refusal.reply)
            return
        if request.live:
            if self.live_count >= self.options.live.waiters_max:
                self._respond(token, request, web_errors.answer(Overloaded("live readers of this node")))
                return
            self.live_count += 1
        life = Life(token, routing.group_of(request.stream), write, payload, self._deadline(), request, makes_bucket=request.makes_bucket)
        life.frames, life.bootstrap = frames, bootstrap
        if request.fork_source:
            self._enter(life)
            self.forks.make(life, event.body)
        else:
            self._start(life)

    def _on_ask(self, event: Ask) -> None:
        self._start(Life(event.token, event.group, event.write, event.payload, self._deadline()))

    def _list(self, token: int, request: Request, routing: Routing) -> None:
        for part in self._listings.start(token, request, routing.groups):
            self._start(Life(part.token, part.group, False, part.query, self._deadline()))

    def _deadline(self) -> int:
        return self._uptime_ms + self.options.request_timeout_ms

    def _own_token(self) -> int:
        self._own_counter += 1
        return self._own_counter

    def _enter(self, life: Life) -> None:
        self._lives[life.token] = life
        self._deadlines.append((life.deadline_ms, life.token))

    def _start(self, life: Life) -> None:
        self._enter(life)
        self._send(life)

    # --- for forks.py: requests that go through several groups ---------------------------------------------------------------------

    def group_of(self, stream: str) -> int:
        assert self.routing is not None
        return self.routing.group_of(stream)

    def is_open(self, life: Life) -> bool:
        """Its client is there and has no answer yet."""
        return self._lives.get(life.token) is life

    def send_again(self, life: Life) -> None:
        """Nothing has happened so far."""
        if self.is_open(life):
            self._send(life)

    def finish(self, life: Life, result: Any) -> None:
        if self.is_open(life):
            self._finish(life, result)

    def refuse(self, life: Life, refusal: BadRequest) -> None:
        assert life.request is not None
        self._drop(life)
        self._respond(life.token, life.request, refusal.reply)

    def _on_gone(self, event: RequestGone) -> None:
        life = self._lives.get(event.token)
        if life is not None:
            self._drop(life)
            self.live.remove(life)
        else:
            self.buckets.gone(event.token)

    # --- where a request goes ----------------------------------------------------------------------------------------------------

    def _send(self, life: Life) -> None:
        """To the group here, to the node of its leader, or to the parking place until one is known."""
        group = self.host.groups.get(life.group)
        place = life.hint
        life.hint = None
        if group is not None and not group.fenced:
            if not life.write:
                life.remote = False
                self.host.read(life.token, life.group, life.payload)
                return
            raft = group.raft
            if raft.role is Role.LEADER:
                if not raft.transfer_to:
                    life.sent = True
                    self.host.propose(self._now_ms, life.token, life.group, life.payload)
                    return
            elif place is None and raft.leader and not raft.leader_lost:  # sent into a broken connection, it would be unknown for nothing
                place = self.host.place_of(raft.leader)
        elif place is None and self.routing is not None:
            place = self.routing.place(life.group, life.tries)
            if place is not None and place[0] == self.host.me.node_id:
                life.tries += 1  # ours is out of service
                place = self.routing.place(life.group, life.tries)
        if place is None or place[0] == self.host.me.node_id:
            life.stage = Stage.PARKED
            self._parked.append(life)
            return
        self.forwarded += 1
        life.sent = life.write
        life.remote = not life.write
        self.forwarding.ask(life.token, place, life.group, life.write, life.payload, life.wait_ms)

    def _answered(self, token: int, result: Any) -> None:
        if token == NOBODY:
            return
        life = self._lives.get(token)
        if life is None:
            life = self._touching.get(token)
            if life is not None:
                self._touched(life)
            return  # otherwise its client left, or its deadline passed
        if isinstance(result, _TRY_ELSEWHERE) and life.served is None:
            self._again(life, result)
        else:
            self._finish(life, result)

    def _again(self, life: Life, refusal: Any) -> None:
        """A definite refusal: nothing happened there."""
        life.sent = False
        life.tries += 1
        if life.stage is Stage.STREAMING:
            self._drop(life)
            self.live.end_one(life, self._out)
            return
        if isinstance(refusal, NotLeading) and refusal.leader and life.tries % 3:
            life.hint = self.host.place_of(refusal.leader)
            self._send(life)
            return
        life.stage = Stage.PARKED
        self._parked.append(life)

    # --- answers -----------------------------------------------------------------------------------------------------------------

    def _make_large(self) -> None:
        room = LARGE_BYTES_PER_TURN
        while self._large and room > 0:
            life, result = self._large.popleft()
            if not self.is_open(life):
                continue
            size = len(result.data)
            if self.unsent_bytes + size > self.options.unsent_bytes_max and life.stage is not Stage.STREAMING:
                result = Overloaded("responses that their clients have not taken")
            else:
                room -= size
                self.unsent_bytes += size
            self._making = life
            self._finish(life, result)
            self._making = None

    def _finish(self, life: Life, result: Any) -> None:
        kind = type(result)
        if (kind is ReadSlice or kind is MessageSlice or kind is SnapshotBlob) and len(result.data) > LARGE_BYTES:
            if life.request is not None and life is not self._making:
                self._large.append((life, result))
                return
        if kind is ReadSlice:
            if self._goes_on(life, result):
                return
        elif kind is Inherited or kind is MessageSlice or kind is SnapshotBlob:
            if self._resets_window(life, result):
                return
            if kind is Inherited and life.served is None:  # another node that asks puts it together itself
                self.forks.gather(life, result)
                return
        elif kind is PointElsewhere and life.served is None and isinstance(life.payload, PublishSnapshot):
            self.forks.publish_elsewhere(life, life.payload, result)
            return
        if life.bootstrap is not None:
            self._go_on_bootstrap(life, life.bootstrap, result)
            return
        if type(result) is BucketUnknown and life.request is not None:  # of a client of ours; a fork comes here with its CreateFork
            self.buckets.unknown(life, result.bucket)
            return
        elif (kind is OffsetBeyondTail or kind is OffsetInsideMessage) and life.request is not None and life.request.offset == NOW:
            if life.stage is not Stage.STREAMING:
                # It waited at what "now" meant in a stream that was made anew since: what does it mean now?
                life.payload = msgspec.structs.replace(life.payload, offset=NOW)
                life.stage, life.last_look, life.wait_ms = Stage.LAST_LOOK, True, 0
                self._send(life)
                return
        self._drop(life)
        if life.stage is Stage.STREAMING:
            self.live.end_one(life, self._out)  # its head is sent: there is no other way to say that it cannot go on
            return
        request = life.request
        if request is not None:
            if life.write:
                if type(result) is Appended:
                    self.appends += 1
                    self.append_bytes += result.next_offset - result.start_offset
                if life.frames is not None:
                    reply = web_batch.answer(life.frames, result)
                elif request.kind is Kind.SNAPSHOT_PUBLISH:
                    reply = web_snapshot.answer(request, result)
                else:
                    reply = web_write.answer(request, result)
            elif request.kind in _SNAPSHOT_KINDS:
                reply = web_snapshot.answer(request, result)
            elif life.stage is Stage.LAST_LOOK and type(result) is ReadSlice and not result.data:
                reply = web_read.nothing_new(request, result, self._now_ms)
            else:
                reply = web_read.answer(request, result, self._now_ms)
            if type(result) is ReadSlice or type(result) is MessageSlice:
                self.reads += 1
                if reply.body:  # not if the client has it already
                    self.read_bytes += len(result.data)
            self._respond(life.token, request, reply)
        elif life.served is not None:
            self._served_count -= 1
            self.forwarding.answer(life.served.node, life.served.incarnation, life.group, life.served.request, result)
        elif life.then is not None:
            life.then(result)
        elif life.token < 0:
            listed = self._listings.told(life.token, result)
            if listed is not None:
                self._respond(listed.token, listed.request, web_read.answer(listed.request, listed.result, self._now_ms))
        else:
            self._out.append(Told(life.token, result))

    def _goes_on(self, life: Life, slice: ReadSlice) -> bool:
        """True: the read is not over yet, since its window must be reset, it waits at the tail, or it is a live stream."""
        if self._resets_window(life, slice):
            return True
        request = life.request
        if life.stage is Stage.LAST_LOOK:
            return False
        if request is not None and request.live == "sse":
            if life.stage is not Stage.STREAMING:
                life.stage = Stage.STREAMING
                self.reads += 1
                self.live.begin(life, slice, self._now_ms, self._uptime_ms, self._out)
            else:
                self.live.go_on(life, slice, self._now_ms, self._out)
            if life.token not in self.live.streaming:
                self._drop(life)  # the stream is closed: its response has ended
            elif life.remote or slice.behind:
                self._ask_for_more(life)
            return True
        waits = life.wait_ms > 0 if request is None else request.live == "long-poll"
        if waits and not slice.data and not slice.closed and slice.up_to_date:
            if life.remote:
                return self._poll_elsewhere(life, slice)
            life.stage = Stage.WAITING
            self.live.wait(life, slice, self._uptime_ms)
            return True
        return False

    def _ask_for_more(self, life: Life) -> None:
        """Of an event stream that another node holds, or of what a fork inherits. A question that is lost ends the response."""
        life.wait_ms = min(life.wait_ms, self.options.request_timeout_ms // 2)  # silence is still told from waiting
        life.deadline_ms = self._deadline()
        self._deadlines.append((life.deadline_ms, life.token))
        self._send(life)

    def _resets_window(self, life: Life, slice: ReadSlice | MessageSlice | Inherited | SnapshotBlob) -> bool:
        """True: the read is served, but waits for the Touch of its stream."""
        request = life.request
        if (
            slice.touch_due
            and life.stage not in (Stage.TOUCHING, Stage.LAST_LOOK)
            and (request is None or request.kind in _READING)
            and not life.remote
            and not life.wait_ms  # it goes on with a live read, which resets the window when it starts
            and isinstance(life.payload, ReadAt | ReadMessages | ReadSnapshot)
        ):
            self._send_touch(life, slice)
            return True
        return False

    def _go_on_bootstrap(self, life: Life, bootstrap: Bootstrap, result: Any) -> None:
        token, step = life.token, bootstrap.step(result)
        if type(step) is Send:
            self.reads += step.first
            self.read_bytes += step.stream_bytes
            if step.first:
                self._out.append(Begin(token, step.data, not step.last))
            elif not step.last:
                self._out.append(Piece(token, step.data))
            if step.last:
                self._drop(life)
                self._out.append(End([token], bootstrap.closing() if step.first else step.data + bootstrap.closing()))
            else:
                life.stage = Stage.PACED
        elif type(step) is Refuse:
            self._drop(life)
            assert life.request is not None
            self._respond(token, life.request, web_errors.answer(step.result))
        elif type(step) is CutOff:
            self._drop(life)
            self._out.append(Abort(token))
        else:
            self._ask_on(life, bootstrap)

    def _on_taken(self, event: Taken) -> None:
        life = self._lives.get(event.token)
        if life is not None and life.bootstrap is not None and life.stage is Stage.PACED:
            life.deadline_ms = self._deadline()
            self._deadlines.append((life.deadline_ms, life.token))
            self._ask_on(life, life.bootstrap)

    def _ask_on(self, life: Life, bootstrap: Bootstrap) -> None:
        life.stage = Stage.ASKED
        life.payload = bootstrap.query()
        self._send(life)

    def _poll_elsewhere(self, life: Life, slice: ReadSlice) -> bool:
        """A long-poll at the tail of a stream that another node holds: let that node wait. False: its time is over."""
        life.poll_until_ms = life.poll_until_ms or self._uptime_ms + self.live.patience_ms(life)
        left_ms = life.poll_until_ms - self._uptime_ms
        if left_ms <= 0:
            return False
        # Not longer than half of what an answer may take: silence is still told from waiting.
        life.wait_ms = min(left_ms, self.options.request_timeout_ms // 2)
        life.payload = msgspec.structs.replace(life.payload, offset=slice.next_offset, since_ms=None)
        life.deadline_ms = self._deadline()
        self._deadlines.append((life.deadline_ms, life.token))
        self._send(life)
        return True

    def _send_touch(self, life: Life, slice: ReadSlice | MessageSlice | Inherited | SnapshotBlob) -> None:
        """The read now waits for the Touch of its stream. No leader: it is answered all the same; it is only not counted as activity."""
        life.stage, life.slice = Stage.TOUCHING, slice
        life.touch = self._own_token()
        self._touching[life.touch] = life
        touch = Touch(life.payload.stream, slice.incarnation, 0)
        group = self.host.groups.get(life.group)
        raft = None if group is None or group.fenced else group.raft
        place = self.host.place_of(raft.leader) if raft is not None and raft.leader else None
        if raft is not None and raft.role is Role.LEADER:
            self.host.propose(self._now_ms, life.touch, life.group, touch)
        elif place is not None:
            self.forwarded += 1
            self.forwarding.ask(life.touch, place, life.group, True, touch, 0)
        else:
            self._touched(life)

    def _touched(self, life: Life) -> None:
        """Its window is reset, or that is not waited for any longer: the read goes on with what it has seen."""
        self._end_touch(life)
        assert life.slice is not None
        self._finish(life, life.slice)

    def _end_touch(self, life: Life) -> None:
        if life.touch:
            del self._touching[life.touch]
            self.forwarding.forget(life.touch)
            life.touch = 0

    def _finish_poll(self, life: Life, result: Any) -> None:
        """live.py: a long-poll has something to say, or its stream is gone. None: it timed out."""
        if result is None:
            life.stage = Stage.LAST_LOOK
            life.last_look = True
            life.deadline_ms = self._deadline()
            self._deadlines.append((life.deadline_ms, life.token))
            self._send(life)
            return
        self._finish(life, result)

    def _drop(self, life: Life) -> None:
        if self._lives.pop(life.token, None) is not None and life.request is not None and life.request.live:
            self.live_count -= 1
        self.forwarding.forget(life.token)
        self._end_touch(life)

    def _respond(self, token: int, request: Request, reply: Reply) -> None:
        self._out.append(Respond(token, render(reply, keep_alive=True, head_only=request.kind is _HEAD, request_id=request.request_id)))

    # --- asked by ourselves (buckets.py, cross.py) -------------------------------------------------------------------------------

    def ask(self, group: int, write: bool, payload: Any, then: Callable[[Any], None]) -> None:
        self._start(Life(self._own_token(), group, write, payload, self._deadline(), then=then))

    def reply(self, token: int, request: Request, reply: Reply) -> None:
        self._respond(token, request, reply)

    def is_opening(self, life: Life) -> bool:
        return self.is_open(life) and life.stage is Stage.OPENING

    def go_on(self, life: Life) -> None:
        life.stage = Stage.ASKED
        self._send(life)

    def deadline_ms(self) -> int:
        return self._deadline()

    # --- other nodes -------------------------------------------------------------------------------------------------------------

    def _on_letter(self, event: LetterReceived) -> None:
        letter = event.letter
        if not isinstance(letter, Forward):
            answered = self.forwarding.answered(event.group, letter)
            if answered is not None:
                self._answered(*answered)
            return
        try:
            payload = self.forwarding.decode(event.group, letter)
        except msgspec.MsgspecError as error:
            refusal = Refused(f"this version does not know what was asked: {error}")
            self.forwarding.answer(event.node, event.incarnation, event.group, letter.request, refusal)
            return
        if self._served_count >= self.options.served_max:
            self.forwarding.answer(event.node, event.incarnation, event.group, letter.request, Overloaded("requests of other nodes"))
            return
        self._served_count += 1
        served = Served(event.node, event.incarnation, letter.request)
        life = Life(self._own_token(), event.group, letter.write, payload, self._deadline(), served=served, wait_ms=letter.wait_ms, sent=letter.write)
        self._lives[life.token] = life
        self._deadlines.append((life.deadline_ms, life.token))
        if letter.write:
            self.host.propose(self._now_ms, life.token, life.group, payload)
        else:
            self.host.read(life.token, life.group, payload)

    def _on_peer_lost(self, event: fx.PeerLost) -> None:
        self._events.append(event)
        for token, result in self.forwarding.lost(event.node):
            self._answered(token, result)

    def _on_dropped(self, event: FramesDropped) -> None:
        for token, result in self.forwarding.unsent(event.requests):
            self._answered(token, result)

    # --- time --------------------------------------------------------------------------------------------------------------------

    def _on_tick(self, event: fx.Tick) -> None:
        self._events.append(event)
        now_ms = self._uptime_ms
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            life = self._lives.get(self._deadlines.popleft()[1])
            if life is not None and life.deadline_ms <= now_ms and life.stage not in (Stage.WAITING, Stage.PACED):
                if life.stage is not Stage.STREAMING or life.remote:  # one that is served here waits in live.py
                    self._time_out(life)
        if self._parked:
            parked, self._parked = self._parked, []
            for life in parked:
                if self._lives.get(life.token) is life:
                    life.stage = Stage.LAST_LOOK if life.last_look else Stage.ASKED
                    self._send(life)
        self.live.tick(now_ms, self._out, self._finish_poll)
        self.buckets.tick(now_ms)
        if self.routing is not None:
            self.cross.tick(now_ms, self.routing)

    def _time_out(self, life: Life) -> None:
        self.forwarding.forget(life.token)
        if life.stage is Stage.TOUCHING:
            self._touched(life)
        elif life.sent:
            self._finish(life, OutcomeUnknown("no answer within the time of a request"))
        else:
            self._finish(life, NotLeading(0) if life.write else ReadUnavailable())
