"""A client that uses a stream with a sliding window, then leaves it alone. Only in runs whose clocks are sane, once the chaos is over.

While it is read within its window, by any node and by any kind of read, it must be there; HEAD does not count as use. When it is left alone, it must
still be there for the whole window, and gone soon after its end: Stream-TTL, and the grace that batches the touches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.checkers.answers import NOW, START, Exchange
from tests.sim.http_clients import BINARY, BUCKET, HttpClient, spelt
from tests.sim.http_wire import Event, Response
from tests.sim.swarm import SECOND

if TYPE_CHECKING:
    from tests.sim.front_door import Call
    from tests.sim.world import World

USES = 8
LATE_US = 3 * SECOND
"""From the end of the window and its grace until nobody sees the stream any more: one tick, one entry, and a repetition if that got lost."""


class TtlProbe(HttpClient):
    def __init__(self, world: World, number: int, name: str) -> None:
        super().__init__(world, number)
        self.stream = f"{BUCKET}{name}"
        self.ttl_s = self.rng.choice((1, 2))
        self.exists = False
        self.uses = 0
        self.asked_us = 0
        self.used_us = 0  # when the last read that succeeded was sent
        self.last_us = 0  # when anything that may count as use was last under way
        self.promised = True
        self.done = False

    @property
    def idle(self) -> bool:
        return self.waiting is None

    def act(self) -> None:
        world, rng = self.world, self.rng
        if self.done:
            return
        quiet = self.uses >= USES
        world.after(int(self.ttl_s * SECOND * (0.1 if quiet else rng.uniform(0.2, 0.45))), self.act)
        if self.waiting is not None:
            return
        self.asked_us = world.now_us
        token = world.token()
        if not self.exists:
            headers = (("content-type", f"{BINARY}; try=c{token}"), ("stream-ttl", str(self.ttl_s)))
            body = world.payload(20)
            self.wait_for(self.ask(Exchange(token, "PUT", self.stream, mark=f"c{token}", data=body), "PUT", "", headers, body))
        elif quiet:
            self.wait_for(self.ask(Exchange(token, "HEAD", self.stream), "HEAD"))
        else:
            offset, live = rng.choice(((START, ""), (0, ""), (NOW, ""), (START, "long-poll"), (START, "sse"), (NOW, "sse")))
            exchange = Exchange(token, "GET", self.stream, offset=offset, live=live)
            self.wait_for(self.ask(exchange, "GET", f"offset={spelt(offset)}{f'&live={live}' if live else ''}"))

    def heard(self, exchange: Exchange, response: Response) -> None:
        if exchange.method != "HEAD":
            self.last_us = self.world.now_us
        if response.status == 404:
            self._missing(exchange)
        elif response.status < 300:
            self.exists = True
            self._used(exchange)
            self._overdue(exchange)

    def event(self, call: Call, event: Event) -> None:
        """An event stream counts when it starts, so one event is enough."""
        if self.waiting is call:
            self.waiting = None
            self.last_us = self.world.now_us
            self._used(call.exchange)
            self.world.front_door.leave(call)

    def unknown(self, call: Call) -> None:
        if call.exchange.method != "HEAD":
            self.last_us = self.world.now_us + self.world.swarm.service.request_timeout_ms * 1_000

    def _used(self, exchange: Exchange) -> None:
        if exchange.method != "HEAD":
            self.acked += 1
            self.uses += 1
            # Answered at the very end of the window: the touch of such a read may come too late (HTTP seed 167), so nothing is promised any more.
            self.promised = self.promised and (not self.used_us or self.world.now_us < self.used_us + self.ttl_s * SECOND)
            self.used_us = self.asked_us

    def _missing(self, exchange: Exchange) -> None:
        world = self.world
        if self.exists and self.promised and world.now_us < self.used_us + self.ttl_s * SECOND:
            age = (world.now_us - self.used_us) / SECOND
            raise world.violation(f"{exchange}: 404, though it was used {age:.2f} s ago and has a window of {self.ttl_s} s")
        self.done = self.done or self.exists

    def _overdue(self, exchange: Exchange) -> None:
        over_us = self.world.now_us - self.last_us - self.ttl_s * SECOND * 9 // 8
        if exchange.method == "HEAD" and over_us > LATE_US:
            raise self.world.violation(f"{exchange}: still there {over_us / SECOND:.1f} s after its window of {self.ttl_s} s ended")
