"""One turn of the loop: gather events, call service.turn() once, perform its effects. Everything that happens on this node passes here.

Before us: client plane, peer plane and disk threads push events. After us: they perform. Within one turn of the event loop requests are only
gathered; the turn itself runs once at its end (call_soon), so that all of them share one write, one sync and one frame per peer.
An exception in a turn stops the node: what it would write next cannot be trusted."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from anabranch_node.core import effects as fx
from anabranch_node.drivers.disk_threads import DiskThread, SnapshotPool
from anabranch_node.drivers.grpc_peer import PeerNet
from anabranch_node.drivers.http_protocol import ClientPlane
from anabranch_node.drivers.telemetry import Histogram
from anabranch_node.engine import envelope
from anabranch_node.service.effects import Abort, Begin, Broadcast, End, FramesDropped, Piece, RequestArrived, RequestGone, Respond, Taken, Told
from anabranch_node.service.service import Service
from anabranch_node.web.request import Request

log = logging.getLogger("anabranch.loop")

_WAL = (fx.SegmentCreate, fx.SegmentDelete, fx.WalWrite, fx.SyncMark, fx.WalRead)
STALL_S = 0.1
INLINE_BYTES_MAX = 4096
INLINE_SYNC_MAX_S = 0.002
INLINE_PAUSE_RATIO = 10.0


class NodeLoop:
    def __init__(self, service: Service, peers: PeerNet, tick_ms: int, stop: Callable[[str], None]) -> None:
        self.service = service
        self.plane: ClientPlane | None = None
        self.disk: DiskThread | None = None
        self.snapshots: SnapshotPool | None = None
        self.on_told: Callable[[int, Any], None] = lambda token, result: None
        self.on_tick: Callable[[], None] = lambda: None
        self.on_space: Callable[[fx.DiskSpace], None] = lambda space: None
        self.stalls = 0
        self.turns = 0
        self.turn_us = Histogram()
        self.late_us = Histogram()
        self.frames_received = 0
        self._peers = peers
        self._tick_s = tick_ms / 1000
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._events: list[Any] = []
        self._scheduled = False
        self._synced_inline = False  # in this turn, by the loop itself
        self._held: list[Any] = []  # effects that a disk queue had no room for: no turn before they are taken
        self._stopped = False
        self._inline_after = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._handed_over: deque[int] = deque()  # tickets of writes that the disk thread has not reported yet
        self._tick_due_s = 0.0
        self._perform_one: dict[type[Any], Callable[[Any], None]] = {
            fx.SendFrame: self._send_frame,
            fx.PeerRefused: lambda effect: log.debug("peer %s: %s", effect.node, effect.reason),
            fx.GroupFenced: lambda effect: log.error("group %s, replica %s is fenced: %s", effect.group, effect.replica, effect.reason),
            fx.StopNode: lambda effect: self.stop(effect.reason),
            fx.TurnAgain: lambda _: self._schedule(),
            Told: lambda effect: self.on_told(effect.token, effect.result),
            Piece: self._write_piece,
            Abort: self._abort,
        }

    # --- events come in ----------------------------------------------------------------------------------------------------------

    def push(self, event: Any) -> None:
        self._events.append(event)
        if not self._scheduled:
            self._schedule()

    def submit(self, token: int, request: Request, body: bytes) -> None:
        self.push(RequestArrived(token, request, body))

    def cancel(self, token: int) -> None:
        self.push(RequestGone(token))

    def taken(self, token: int) -> None:
        self.push(Taken(token))

    def on_frame(self, node: int, data: bytes) -> None:
        self.frames_received += 1
        self.push(fx.FrameReceived(node, data))

    def on_lost(self, node: int) -> None:
        self.push(fx.PeerLost(node))

    def report(self, events: list[Any]) -> None:
        """From the disk threads."""
        self._loop.call_soon_threadsafe(self._reported, events)

    def _reported(self, events: list[Any]) -> None:
        self._take_report(events)
        self._schedule()

    def _take_report(self, events: list[Any]) -> None:
        for event in events:
            if type(event) is fx.Synced:
                while self._handed_over and self._handed_over[0] <= event.ticket:
                    self._handed_over.popleft()
            elif type(event) is fx.DiskSpace:
                self.on_space(event)
            elif isinstance(event, fx.SnapshotFailed):
                log.warning("snapshot of group %s: %s", event.key.group, event.reason)
        self._events.extend(events)
        if self._held:
            held, self._held = self._held, []
            self._submit_disk(held)

    def start(self) -> None:
        self._tick_due_s = time.perf_counter()
        self._tick()

    def _tick(self) -> None:
        if self._stopped:
            return
        now_s = time.perf_counter()
        # Not by the loop's own clock: uvloop's stands still while a callback runs. Its timers are kept in whole milliseconds, so one may come early.
        self.late_us.observe(max(0, int((now_s - self._tick_due_s) * 1e6)))
        self._tick_due_s = now_s + self._tick_s
        due = self._loop.time()
        self.push(fx.Tick())
        self.on_tick()
        self._timer = self._loop.call_at(due + self._tick_s, self._tick)

    def _schedule(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    # --- the turn ----------------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        while not self._stopped and not self._held:  # held: the next report of the disk brings us back
            self._one_turn()
            if not self._synced_inline:
                return
            # Who waits for that sync is the only one who waits: a way through the event loop would cost a twentieth of its latency.
            self._synced_inline = False

    def _one_turn(self) -> None:
        events, self._events = self._events, []
        started = time.perf_counter()
        if self.plane is not None:
            self.service.unsent_bytes = self.plane.unsent_bytes
        try:
            self.perform(self.service.turn(time.time_ns() // 1_000_000, events))
        except Exception as error:
            log.exception("a turn failed; this node stops")
            self.stop(f"{type(error).__name__}: {error}")
            return
        elapsed = time.perf_counter() - started
        self.turns += 1
        self.turn_us.observe(int(elapsed * 1e6))
        if elapsed > STALL_S:
            self.stalls += 1

    def perform(self, effects: list[Any]) -> None:
        plane = self.plane
        disk: list[Any] = []
        for effect in effects:
            kind = type(effect)
            if kind is Respond:
                if plane is not None:
                    plane.respond(effect.token, effect.data)
            elif kind is Broadcast:
                if plane is not None:
                    plane.broadcast(effect.tokens, effect.data)
            elif kind is Begin:
                if plane is not None:
                    plane.begin(effect.token, effect.data, effect.paced)
            elif kind is End:
                if plane is not None:
                    for token in effect.tokens:
                        plane.end(token, effect.data)
            else:
                perform = self._perform_one.get(kind)
                if perform is None:
                    disk.append(effect)
                else:
                    perform(effect)
        if disk:
            self._submit_disk(disk)

    def _write_piece(self, effect: Piece) -> None:
        if self.plane is not None:
            self.plane.write_piece(effect.token, effect.data)

    def _abort(self, effect: Abort) -> None:
        if self.plane is not None:
            self.plane.abort(effect.token)

    def _submit_disk(self, effects: list[Any]) -> None:
        """The log's effects as one batch, in order; a snapshot's one by one. What finds no room is held, with everything behind it."""
        assert self.disk is not None
        assert self.snapshots is not None
        wal = [effect for effect in effects if isinstance(effect, _WAL)]
        rest = [effect for effect in effects if not isinstance(effect, _WAL)]
        if wal:
            now = time.perf_counter()
            if not rest and self._is_alone(wal, now):
                events = self.disk.perform_now(wal)
                took_s = time.perf_counter() - now
                if took_s > INLINE_SYNC_MAX_S:
                    self._inline_after = now + took_s * INLINE_PAUSE_RATIO
                self._take_report(events)
                self._synced_inline = True
                return
            if not self.disk.submit(wal):
                self._held = wal + rest
                return
            self._handed_over.extend(effect.ticket for effect in wal if type(effect) is fx.WalWrite)
        for position, effect in enumerate(rest):
            if not self.snapshots.submit(effect):
                self._held = rest[position:]
                return

    def _is_alone(self, wal: list[Any], now: float) -> bool:
        """One small write, nobody else to serve and an idle disk thread: then the loop writes and syncs by itself. Handing over to the thread and
        back costs 150 to 200 us of a lone writer's latency, and gains nothing where there is nothing to overlap with. A sync that was slow sends
        those of ten times as long to the thread: a slow disk holds the loop for a tenth of its time at most, and a single hiccup costs little."""
        assert self.disk is not None
        return (
            len(wal) == 1
            and type(wal[0]) is fx.WalWrite
            and len(wal[0].data) <= INLINE_BYTES_MAX
            and not self._events
            and now > self._inline_after
            and self.service.pending <= 1
            and not self._handed_over  # the thread may be done, but its report still on the way: ours must not overtake it
            and self.disk.queued_bytes == 0
        )

    def _send_frame(self, effect: fx.SendFrame) -> None:
        if not self._peers.send(effect.node, effect.bulk, effect.data):
            requests = envelope.requests_in(effect.data)
            if requests:
                self._events.append(FramesDropped(effect.node, requests))  # seen at the next turn, which the tick brings at the latest

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def stop(self, reason: str = "") -> None:
        """No turn after this one. With a reason: the node cannot go on."""
        if self._stopped:
            return
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if reason:
            self._stop(reason)
