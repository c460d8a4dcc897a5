"""A request's life on this node: `turn(now_ms, events) -> effects` around Host.step. The loop (drivers/) calls this and nothing deeper.

Before us: the client plane parsed a request, a peer sent a letter. We route it (here, or to the node that can answer), wait for Raft, and render the
answer (web/). A write is sent on only after a definite refusal; a read is tried until its deadline. Live reads wait in live.py, listings gather in
listing.py. After us: the driver writes bytes. Not here: bytes of requests and answers (web/), Raft (engine/)."""

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
from anabranch_node.core.stream.commands import Touch
from anabranch_node.core.stream.results import Appended, ReadSlice
from anabranch_node.engine.forward import Codec, Forwarding
from anabranch_node.engine.host import NOBODY, Host
from anabranch_node.engine.letters import Forward
from anabranch_node.service.effects import Ask, EndLive, FramesDropped, RequestArrived, RequestGone, Respond, Told
from anabranch_node.service.life import Life, Served, Stage
from anabranch_node.service.listing import Listings
from anabranch_node.service.live import LiveOptions, LiveReaders
from anabranch_node.web import errors as web_errors
from anabranch_node.web import read as web_read
from anabranch_node.web import write as web_write
from anabranch_node.web.reply import PREFLIGHT, Reply, render
from anabranch_node.web.request import BadRequest, Kind, Request

_TRY_ELSEWHERE = (NotLeading, ReadUnavailable, NotHosted, Fenced)
"""Definite: it did not happen there, so it may be asked again."""
CLOCK_STEP_MAX_MS = 1_000
"""Between two turns; there is a tick every 50 ms. More is a clock that was set, or a process that was stopped."""

# A lookup in the class of an enumeration takes 30 ns, and every request would make ten of them.
_ASKED = Stage.ASKED
_PREFLIGHT, _LIST, _HEAD = Kind.PREFLIGHT, Kind.LIST, Kind.HEAD
_WRITES = (Kind.APPEND, Kind.CREATE, Kind.DELETE)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    request_timeout_ms: int = 10_000  # then a write is answered as unknown, a read as unavailable
    response_bytes_max: int = 1 << 20
    served_max: int = 20_000  # requests of other nodes under way here
    live: LiveOptions = LiveOptions()


class Service:
    def __init__(self, host: Host, options: ServiceOptions, meta: Codec) -> None:
        self.host = host
        self.options = options
        self.routing: Routing | None = None
        self.forwarding = Forwarding(host, meta)
        self.live = LiveReaders(host, options.live, options.response_bytes_max, self._drop)
        self._listings = Listings()
        self._lives: dict[int, Life] = {}
        self._parked: list[Life] = []
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
        while True:
            batch, self._events = self._events, []
            self._take(self.host.step(now_ms, batch))
            self.live.wake(now_ms, self._out, self._finish_poll)
            if not self._events and not self.host.has_work:
                break
        more = self.live.fan_out(self._out)
        out, self._out = self._out, []
        out.extend(self.host.frames())
        if more:
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
                elif life is not None and life.request is not None and life.stage is _ASKED:
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
        try:
            if kind is _LIST:
                self._list(token, request, routing)
                return
            write = kind in _WRITES
            payload: Any = web_write.command(request, event.body) if write else web_read.query(request, self.options.response_bytes_max)
        except BadRequest as refusal:
            self._respond(token, request, refusal.reply)
            return
        if request.live:
            if self.live_count >= self.options.live.waiters_max:
                self._respond(token, request, web_errors.answer(Overloaded("live readers of this node")))
                return
            self.live_count += 1
        self._start(Life(token, routing.group_of(request.stream), write, payload, self._deadline(), request))

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

    def _start(self, life: Life) -> None:
        self._lives[life.token] = life
        self._deadlines.append((life.deadline_ms, life.token))
        self._send(life)

    def _on_gone(self, event: RequestGone) -> None:
        life = self._lives.get(event.token)
        if life is not None:
            self._drop(life)
            self.live.remove(life)

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

    def _finish(self, life: Life, result: Any) -> None:
        if type(result) is ReadSlice and self._goes_on(life, result):
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
                reply = web_write.answer(request, result)
            elif life.stage is Stage.LAST_LOOK and type(result) is ReadSlice and not result.data:
                reply = web_read.nothing_new(request, result, self._now_ms)
            else:
                reply = web_read.answer(request, result, self._now_ms)
            if type(result) is ReadSlice:
                self.reads += 1
                if reply.body:  # not if the client has it already
                    self.read_bytes += len(result.data)
            self._respond(life.token, request, reply)
        elif life.served is not None:
            self._served_count -= 1
            self.forwarding.answer(life.served.node, life.served.incarnation, life.group, life.served.request, result)
        elif life.token < 0:
            listed = self._listings.told(life.token, result)
            if listed is not None:
                self._respond(listed.token, listed.request, web_read.answer(listed.request, listed.result, self._now_ms))
        else:
            self._out.append(Told(life.token, result))

    def _goes_on(self, life: Life, slice: ReadSlice) -> bool:
        """True: the read is not over yet, since its window must be reset, it waits at the tail, or it is a live stream."""
        request = life.request
        if (
            slice.touch_due
            and life.stage not in (Stage.TOUCHING, Stage.LAST_LOOK)
            and (request is None or request.kind is Kind.READ)
            and not life.remote
            and not life.wait_ms  # it goes on with a live read, which resets the window when it starts
        ):
            self._send_touch(life, slice)
            return True
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
            elif life.remote:
                self._send(life)
            return True
        waits = life.wait_ms > 0 if request is None else request.live == "long-poll"
        if waits and not slice.data and not slice.closed and slice.up_to_date:
            if life.remote:
                return self._poll_elsewhere(life, slice)
            life.stage = Stage.WAITING
            self.live.wait(life, slice, self._uptime_ms)
            return True
        return False

    def _poll_elsewhere(self, life: Life, slice: ReadSlice) -> bool:
        """A long-poll at the tail of a stream that another node holds: let that node wait. False: its time is over."""
        life.poll_until_ms = life.poll_until_ms or self._uptime_ms + self.options.live.long_poll_timeout_ms
        left_ms = life.poll_until_ms - self._uptime_ms
        if left_ms <= 0:
            return False
        # Not longer than half of what an answer may take: silence is still told from waiting.
        life.wait_ms = min(left_ms, self.options.request_timeout_ms // 2)
        life.payload = msgspec.structs.replace(life.payload, offset=slice.next_offset)
        life.deadline_ms = self._deadline()
        self._deadlines.append((life.deadline_ms, life.token))
        self._send(life)
        return True

    def _send_touch(self, life: Life, slice: ReadSlice) -> None:
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
            if life is not None and life.deadline_ms <= now_ms and life.stage not in (Stage.WAITING, Stage.STREAMING):
                self._time_out(life)
        if self._parked:
            parked, self._parked = self._parked, []
            for life in parked:
                if self._lives.get(life.token) is life:
                    life.stage = Stage.LAST_LOOK if life.last_look else Stage.ASKED
                    self._send(life)
        self.live.tick(now_ms, self._out, self._finish_poll)

    def _time_out(self, life: Life) -> None:
        self.forwarding.forget(life.token)
        if life.stage is Stage.TOUCHING:
            self._touched(life)
        elif life.sent:
            self._finish(life, OutcomeUnknown("no answer within the time of a request"))
        else:
            self._finish(life, NotLeading(0) if life.write else ReadUnavailable())
