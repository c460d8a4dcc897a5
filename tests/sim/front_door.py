"""The client plane of the simulated nodes: connections instead of sockets. A request is parsed with web/ when it arrives and becomes an event of its
node; the bytes that the service renders are parsed back by hand, judged on the spot (tests/checkers/answers.py) and carried to the client.

What a node owes: to each request exactly one answer, or a live response with one beginning and one end, within its deadline, unless it dies or the
client leaves. Before us: http_clients.py. After us: sim_node.py and its Service."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from anabranch_node.service import effects as sx
from anabranch_node.web.reply import render
from anabranch_node.web.request import BadRequest, Head, parse
from anabranch_proto.ids import group_of
from tests.checkers.answers import Exchange, Judge
from tests.checkers.bucket_log import BucketLog
from tests.checkers.timeline import Life, Timeline
from tests.sim.chance import between
from tests.sim.http_wire import Event, EventStream, Malformed, Response, dechunked, parse_response
from tests.sim.swarm import SECOND

if TYPE_CHECKING:
    from tests.sim.sim_node import SimNode
    from tests.sim.world import World

SLACK_US = 2 * SECOND
"""Beyond its deadline, for turns and ticks."""


@dataclass(slots=True, eq=False)
class Call:
    """A request under way. `client` hears answered(), event(), ended() or broken(), each after the network's delay and in order."""

    exchange: Exchange
    client: Any
    node: int
    head: Head
    body: bytes
    life: int = 0
    arrived_us: int = 0
    heard_us: int = 0
    waits: int = 0
    pauses: int = 0
    gone: bool = False
    events: EventStream | None = None
    is_text: bool = False
    calm: bool = False
    response: Response | None = None
    """Of a bootstrap: its head, and in `got` what has come of its body."""
    got: bytearray = field(default_factory=bytearray)
    high: int = 0
    """Commands that were committed when it began."""
    taken_us: int = 0
    """When its client took the last piece; 0: it has not yet."""

    def __str__(self) -> str:
        return f"{self.exchange} at node {self.node}"


class FrontDoor:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"front door {world.swarm.seed}")
        self.timelines = {group: Timeline(self._life_of) for group in range(1, world.swarm.group_count + 1)}
        self.buckets = BucketLog(self.timelines)
        self.judge = Judge(self.timelines, self.buckets)
        self.open: dict[int, Call] = {}  # at a node, and not answered yet
        self._left_tokens: set[int] = set()
        self.counts: dict[str, int] = {}

    def _life_of(self, name: str, incarnation: int) -> Life | None:
        return self.timeline_of(name).every_life.get((name, incarnation))

    def timeline_of(self, stream: str) -> Timeline:
        return self.timelines[self.group_of(stream)]

    def group_of(self, stream: str) -> int:
        bucket, _, name = stream.partition("/")
        return group_of(bucket, name, self._world.swarm.group_count)

    def committed(self, group: int, index: int, entry: bytes) -> None:
        timeline = self.timelines[group]
        wrong = self.judge.committed(timeline.add(index, entry), timeline)
        if self._world.has_meta:
            wrong = wrong or self.buckets.group_changed(group, timeline.model)
        if wrong:
            raise self._world.violation(wrong)

    def meta_committed(self, index: int, entry: bytes) -> None:
        wrong = self.buckets.committed(index, entry)
        if wrong:
            raise self._world.violation(wrong)

    # --- in ----------------------------------------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        self.judge.sent(call.exchange)
        self._world.after(self._delay(), self._arrive, call)

    def _delay(self) -> int:
        swarm = self._world.swarm
        delay = between(self._rng, swarm.net_delay_us)
        return delay * 50 if swarm.slow_packet and self._rng.random() < swarm.slow_packet else delay

    def _arrive(self, call: Call) -> None:
        node = self._world.nodes[call.node]
        exchange = call.exchange
        if call.gone or not node.up:
            self.judge.never_arrived(exchange)
            if not call.gone:
                self._world.after(self._delay(), call.client.refused, call)
            return
        call.life, call.arrived_us, call.pauses = node.boots, self._world.now_us, -1 if node.paused else node.pauses
        if exchange.stream:
            exchange.low = self.timeline_of(exchange.stream).count
        else:
            exchange.lows = {group: timeline.count for group, timeline in self.timelines.items()}
        exchange.moment = self.buckets.now
        call.calm = self._world.calm
        self.open[exchange.token] = call
        try:
            request = parse(call.head)
        except BadRequest as bad:
            self._respond(call, render(bad.reply, keep_alive=True))
            return
        node.push(sx.RequestArrived(exchange.token, request, call.body))
        options = self._world.swarm.service
        call.waits = 2 * options.request_timeout_ms * 1_000 + SLACK_US + (options.live.long_poll_timeout_ms * 1_000 if exchange.live else 0)
        self._world.after(call.waits, self._still_there, call)
        if exchange.live == "long-poll" and self._world.clocks_are_sane:
            self._world.after(options.live.long_poll_timeout_ms * 1_000, self._poll_is_over, call)

    def leave(self, call: Call) -> None:
        """The client goes away: at once for itself, a little later for the node."""
        if call.gone:
            return
        call.gone = True
        self._world.after(self._delay(), self._left, call)

    def _left(self, call: Call) -> None:
        node = self._world.nodes[call.node]
        self._left_tokens.add(call.exchange.token)
        was_open = self.open.pop(call.exchange.token, None) is not None
        if was_open and call.response is not None:
            self._judge_bootstrap(call, complete=False)
        if was_open and node.up and node.boots == call.life:
            node.push(sx.RequestGone(call.exchange.token))

    def _poll_is_over(self, call: Call) -> None:
        """A long-poll that is still unanswered looks once more before it says "nothing new": that look starts now or later. What it has to say
        otherwise it may have seen before: its first look may take longer than its patience (seed 246)."""
        if call.exchange.token in self.open:
            call.exchange.waited_low = self.timeline_of(call.exchange.stream).count

    def _still_there(self, call: Call) -> None:
        node = self._world.nodes[call.node]
        if self.open.get(call.exchange.token) is not call or call.events is not None or node.boots != call.life or not node.up:
            return
        if call.response is not None and (not call.taken_us or self._world.now_us < call.taken_us + call.waits):
            return  # it is the client's turn, or a count of its own has begun
        if node.paused or node.pauses != call.pauses:  # its clock went on, but it did not: a new count
            call.pauses = node.pauses
            self._world.after(call.waits, self._still_there, call)
            return
        life = node.service._lives.get(call.exchange.token)
        raise self._world.violation(f"{call} has no answer after {(self._world.now_us - call.arrived_us) / SECOND:.1f} s: {life}")

    def died(self, node: SimNode) -> None:
        """All its connections break; a client that has a deadline of its own may never notice."""
        for token, call in list(self.open.items()):
            if call.node == node.number:
                del self.open[token]
                if not call.gone and (call.events is not None or self._rng.random() < 0.8):
                    self._world.at(max(call.heard_us, self._world.now_us + self._delay()), call.client.broken, call)

    # --- out ---------------------------------------------------------------------------------------------------------------------

    def perform(self, node: SimNode, effect: Any) -> None:
        if isinstance(effect, sx.Respond):
            call = self._call(node, effect.token, live=False)
            if call is not None:
                self._respond(call, effect.data)
        elif isinstance(effect, sx.Begin):
            call = self._call(node, effect.token, live=False)
            if call is not None and call.exchange.method == "BOOTSTRAP":
                self._begin_bootstrap(call, effect.data, effect.paced)
            elif call is not None:
                self._begin(call, effect.data)
        elif isinstance(effect, sx.Piece):
            call = self._call(node, effect.token, live=True)
            if call is not None:
                self._part(call, effect.data, last=False)
        elif isinstance(effect, sx.Abort):
            call = self._call(node, effect.token, live=True)
            if call is not None:
                self._cut_off(call)
        elif isinstance(effect, sx.Broadcast | sx.End):
            for token in effect.tokens:
                call = self._call(node, token, live=True)
                if call is not None and call.response is not None and isinstance(effect, sx.End):
                    self._part(call, effect.data, last=True)
                elif call is not None:
                    self._piece(call, effect.data, isinstance(effect, sx.End))
        else:
            raise self._world.violation(f"node {node.number}: nobody asked for {effect}")

    def _call(self, node: SimNode, token: int, live: bool) -> Call | None:
        call = self.open.get(token)
        if call is None:
            if token in self._left_tokens:
                return None  # it does not know yet, or a piece was on its way
            raise self._world.violation(f"node {node.number} answers token {token}, which it was not asked or has answered before")
        if call.node != node.number or call.life != node.boots:
            raise self._world.violation(f"node {node.number} answers {call}")
        if live != (call.events is not None or call.response is not None):
            raise self._world.violation(f"node {node.number}: {call} {'has no beginning' if live else 'has begun already'}")
        return call

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _respond(self, call: Call, raw: bytes) -> None:
        exchange = call.exchange
        del self.open[exchange.token]
        response = self._parsed(call, raw)
        timeline = self.timeline_of(exchange.stream) if exchange.stream else next(iter(self.timelines.values()))
        wrong = self.judge.judge(exchange, response, timeline)
        if wrong:
            raise self._world.violation(f"{call}: {response.status} {response.code} {response.headers.get('stream-next-offset', '')}: {wrong}")
        if response.status == 204 and exchange.live and "stream-closed" not in response.headers and self._world.calm:
            self._check_patience(call)
        about = " bucket" if exchange.bucket else f" {exchange.live}" if exchange.live else ""
        self._count(f"{exchange.method}{about} {response.status} {response.code}".strip())
        self._tell(call, call.client.answered, response)

    def _check_patience(self, call: Call) -> None:
        waited_us = self._world.now_us - call.arrived_us
        wanted_us = min(self._world.long_poll_us, self._world.swarm.service.request_timeout_ms * 500)
        if call.calm and waited_us < wanted_us - self._world.swarm.tick_us:
            raise self._world.violation(f"{call}: nothing new, said after {waited_us / SECOND:.3f} s instead of {wanted_us / SECOND:.3f} s")

    def _parsed(self, call: Call, raw: bytes) -> Response:
        try:
            return parse_response(raw, call.exchange.method == "HEAD")
        except (Malformed, ValueError, KeyError) as error:
            raise self._world.violation(f"{call}: malformed response: {error}: {raw[:200]!r}") from error

    def _begin(self, call: Call, raw: bytes) -> None:
        if call.exchange.live != "sse":
            raise self._world.violation(f"{call}: an event stream that nobody asked for")
        response = self._parsed(call, raw)
        if response.status != 200 or response.headers.get("content-type") != "text/event-stream":
            raise self._world.violation(f"{call}: {response}")
        call.events = EventStream()
        call.is_text = response.headers.get("stream-sse-data-encoding") != "base64"
        self._count("GET sse 200")
        self._piece(call, response.body, last=False)

    def _piece(self, call: Call, raw: bytes, last: bool) -> None:
        assert call.events is not None
        try:
            events = call.events.feed(raw, call.is_text)
        except (Malformed, ValueError, KeyError) as error:
            raise self._world.violation(f"{call}: malformed events: {error}: {raw[:200]!r}") from error
        if last != call.events.ended:
            raise self._world.violation(f"{call}: {'the last piece does not end' if last else 'the response ends within a piece'}")
        for event in events:
            self._event(call, event)
        if last:
            del self.open[call.exchange.token]
            self._tell(call, call.client.ended)

    # --- bootstraps ----------------------------------------------------------------------------------------------------------------

    def _begin_bootstrap(self, call: Call, raw: bytes, paced: bool) -> None:
        head, separator, body = raw.partition(b"\r\n\r\n")
        call.response = self._parsed(call, head + separator)
        call.high = self.timeline_of(call.exchange.stream).count
        if call.response.status != 200 or call.response.headers.get("transfer-encoding") != "chunked":
            raise self._world.violation(f"{call}: {call.response}")
        self._count("BOOTSTRAP 200")
        if self._is_last(call, body):
            raise self._world.violation(f"{call}: the response ends where it begins")
        if paced:
            self._let_take(call)

    def _part(self, call: Call, raw: bytes, last: bool) -> None:
        if not last and not call.taken_us:
            raise self._world.violation(f"{call}: a piece that its client is not ready for")
        if self._is_last(call, raw) != last:
            raise self._world.violation(f"{call}: {'the last piece does not end' if last else 'the response ends within a piece'}")
        if not last:
            self._count("BOOTSTRAP piece")
            self._let_take(call)
            return
        del self.open[call.exchange.token]
        self._judge_bootstrap(call, complete=True)
        assert call.response is not None
        self._tell(call, call.client.answered, call.response)

    def _cut_off(self, call: Call) -> None:
        del self.open[call.exchange.token]
        self._count("BOOTSTRAP cut off")
        self._judge_bootstrap(call, complete=False)
        self._tell(call, call.client.broken)

    def _is_last(self, call: Call, raw: bytes) -> bool:
        try:
            data, ended = dechunked(raw)
        except (Malformed, ValueError) as error:
            raise self._world.violation(f"{call}: malformed chunks: {error}: {raw[:200]!r}") from error
        call.got += data
        return ended

    def _judge_bootstrap(self, call: Call, complete: bool) -> None:
        assert call.response is not None
        wrong = self.judge.bootstrap(call.exchange, bytes(call.got), call.response, complete, self.timeline_of(call.exchange.stream), call.high)
        if wrong:
            raise self._world.violation(f"{call}: {wrong}: {bytes(call.got[:300])!r}")

    def _let_take(self, call: Call) -> None:
        """Its client takes what has come, soon or late; or leaves without."""
        call.taken_us = 0
        world, what = self._world, self._rng.random()
        if what < 0.05:
            world.after(self._rng.randint(1, 3 * SECOND), self.leave, call)
        else:
            world.after(self._rng.randint(1, 3 * SECOND) if what < 0.35 else self._delay(), self._take, call)

    def _take(self, call: Call) -> None:
        node = self._world.nodes[call.node]
        if self.open.get(call.exchange.token) is call and node.up and node.boots == call.life:
            call.taken_us = self._world.now_us
            call.pauses = -1 if node.paused else node.pauses
            node.push(sx.Taken(call.exchange.token))
            self._world.after(call.waits, self._still_there, call)

    def _event(self, call: Call, event: Event) -> None:
        wrong = self.judge.event(call.exchange, event, self.timeline_of(call.exchange.stream))
        if wrong:
            raise self._world.violation(f"{call}: {wrong}")
        self._count("SSE event")
        self._tell(call, call.client.event, event)

    def _tell(self, call: Call, what: Any, *args: Any) -> None:
        call.heard_us = max(call.heard_us, self._world.now_us + self._delay())
        self._world.at(call.heard_us, what, call, *args)
