"""Applications that speak HTTP to any node: writers that create, append, close, delete and look, and tailers that follow a stream to its end.

A producer repeats its append, tuple and payload unchanged, at any node, until it is acknowledged or definitely refused by the stream's state; a plain
writer never repeats. Some leave before the answer. Each try has its own mark (tests/checkers/timeline.py). What is heard is judged elsewhere:
here it only decides what comes next. Before us: world.py starts us. After us: front_door.py."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from anabranch_node.web.request import Head
from tests.checkers.answers import NOW, START, Exchange
from tests.sim.front_door import Call
from tests.sim.http_wire import PREFIX, Event, Response
from tests.sim.swarm import SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

JSON, BINARY, TEXT = "application/json", "application/octet-stream", "text/plain"
BUCKET = "_default/"
Frames = list[tuple[bytes, list[bytes], str]]
_NUMBER = re.compile(rb'\{"n": (\d+)\}')
LAG_US = 3 * SECOND
"""How long a live reader may stay behind once all is well, beyond the deadlines of two requests."""


class HttpClient:
    """What writers and tailers share: one call at a time, to any node, with the patience of a client."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.rng = Random(f"http client {world.swarm.seed} {number}")
        self.waiting: Call | None = None
        self.pending: Any = None
        self.node = self.rng.choice(list(world.nodes))
        self.acked = 0
        self.timeouts = 0  # in a row

    def act(self) -> None:
        raise NotImplementedError

    def later(self, think_us: int = 0) -> None:
        patience = 1 << min(self.timeouts, 6) if self.world.chaos_over else 1
        self.world.after(patience * self.rng.randint(1, 2 * (think_us or self.world.swarm.think_us)), self.act)

    def ask(
        self, exchange: Exchange, method: str, query: str = "", headers: tuple[tuple[str, str], ...] = (), body: bytes = b"", end: str = ""
    ) -> Call:
        world, rng = self.world, self.rng
        if rng.random() < 0.5:
            self.node = rng.choice(list(world.nodes))
        path = self._path_of(exchange) + end
        target = f"{path}?{query}" if query else path
        raw = [(name.encode(), value.encode()) for name, value in (("host", "sim:4437"), *headers)]
        call = Call(exchange, self, self.node, Head(method.encode(), target.encode(), raw), body)
        world.note(self.node, f"client {self.number} asks {exchange}") if world.tracing else None
        world.front_door.send(call)
        return call

    def _path_of(self, exchange: Exchange) -> str:
        """Two surfaces, the same streams: on /ds a create does not make the bucket."""
        stream, bucket = exchange.stream, exchange.bucket
        if bucket:
            return f"/ds/{bucket}"
        if not stream:
            return "/v1/streams"
        if self.world.has_meta and self.rng.random() < 0.3:
            exchange.makes_bucket = False
            return f"/ds/{stream}"
        return PREFIX + stream.removeprefix(BUCKET)

    def wait_for(self, call: Call, extra_us: int = 0) -> None:
        self.waiting = call
        self.world.after(self.world.swarm.timeout_us + extra_us, self._time_out, call)

    def _time_out(self, call: Call) -> None:
        if self.waiting is call and call.events is None:
            self.timeouts += 1
            self.waiting = None
            if self.rng.random() < 0.7:  # the others only stop listening
                self.world.front_door.leave(call)
            self.unknown(call)

    # --- what comes back -----------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, response: Response) -> None:
        if self.waiting is call:
            self.waiting = None
            self.timeouts = 0
            self.heard(call.exchange, response)

    def refused(self, call: Call) -> None:
        """Nobody listens there."""
        self.broken(call)

    def broken(self, call: Call) -> None:
        if self.waiting is call:
            self.waiting = None
            self.unknown(call)

    def ended(self, call: Call) -> None:
        self.broken(call)

    def event(self, call: Call, event: Event) -> None:
        pass

    def heard(self, exchange: Exchange, response: Response) -> None:
        raise NotImplementedError

    def unknown(self, call: Call) -> None:
        """No answer, or only a part of one."""


class Writer(HttpClient):
    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.is_producer = self.rng.random() < world.swarm.producer_share
        self.snapshots: dict[str, int] = {}  # the latest that we heard of
        self.places: dict[str, tuple[int, int]] = {}  # stream -> (epoch, next sequence)
        self.known: set[str] = set()
        self.offsets: dict[str, list[int]] = {}
        self.etags: dict[str, tuple[int, str]] = {}

    @property
    def idle(self) -> bool:
        return self.pending is None and self.waiting is None

    def act(self) -> None:
        world, rng = self.world, self.rng
        if world.draining and self.pending is None:
            return
        self.later()
        if self.waiting is not None:
            return
        if self.pending is not None:
            self._append(*self.pending)
            return
        stream = rng.choice(world.streams)
        if world.swarm.fork_share and rng.random() < world.swarm.fork_share:
            self._fork(rng.choice(list(world.forks)))
            return
        if world.swarm.publish_share and stream in world.mortal and rng.random() < world.swarm.publish_share:
            self._publish(stream)
            return
        if world.has_meta and rng.random() < world.swarm.bucket_share:
            self._bucket()
            return
        what = rng.random()
        if stream in world.forks and stream not in self.known:
            self._look(stream)
            return
        if stream not in self.known and what < 0.8:
            self._create(stream)
        elif what < world.swarm.read_share:
            self._look(stream)
        elif stream in world.mortal and what > 0.96:
            self.wait_for(self.ask(Exchange(world.token(), "DELETE", stream), "DELETE"))
        elif stream in world.mortal and what > 0.94:
            self._close(stream)
        elif what > 0.92:
            self._create(stream)
        else:
            self._new_append(stream)

    # --- buckets ---------------------------------------------------------------------------------------------------------------------

    def _bucket(self) -> None:
        """Streams in them are deleted more often than elsewhere, so that some deletes find a bucket empty, and some only nearly so."""
        world, rng = self.world, self.rng
        token, what = world.token(), rng.random()
        stream = rng.choice(world.bucketed)
        bucket = rng.choice((*world.buckets, stream.partition("/")[0]))
        if what < 0.3:
            self.wait_for(self.ask(Exchange(token, "DELETE", stream), "DELETE"))
        elif what < 0.6:
            self.wait_for(self.ask(Exchange(token, "DELETE", "", bucket=bucket), "DELETE"))
        elif what < 0.7:
            self.wait_for(self.ask(Exchange(token, "PUT", "", bucket=bucket), "PUT"))
        elif what < 0.75:
            self.wait_for(self.ask(Exchange(token, "GET", "", bucket=bucket), "GET"))
        elif what < 0.8:
            prefix, after, limit = rng.choice(("", "o", "s")), rng.choice(("", "one", "s2")), rng.choice((1, 2, 100))
            exchange = Exchange(token, "LIST", "", bucket=bucket, prefix=prefix, after=after, limit=limit)
            self.wait_for(self.ask(exchange, "GET", f"prefix={prefix}&after={after}&limit={limit}", end="/streams"))
        else:
            self._create(stream)

    # --- writes ----------------------------------------------------------------------------------------------------------------------

    def _create(self, stream: str) -> None:
        world, rng = self.world, self.rng
        token = world.token()
        headers: list[tuple[str, str]] = [("content-type", f"{world.media[stream]}; try=c{token}")]
        body = b""
        if stream in world.mortal:
            kind = rng.random()
            if kind < 0.3:
                headers.append(("stream-ttl", str(rng.choice((1, 1, 2, 4)))))
            elif kind < 0.4:
                at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=world.now_us // 1_000 + 10_000_000 + rng.randint(0, 8_000))
                headers.append(("stream-expires-at", at.isoformat(timespec="milliseconds")))
            if rng.random() < 0.1:
                headers.append(("stream-closed", "true"))
            if world.swarm.retention_share and rng.random() < world.swarm.retention_share:
                headers.append(rng.choice((("stream-retention-bytes", "200"), ("stream-retention-bytes", "20"), ("stream-retention-age", "1"))))
        if rng.random() < 0.3:
            body = self._body(stream)
        if rng.random() < world.swarm.mischief:
            headers[0] = ("content-type", f"application/xml; try=c{token}")
        exchange = Exchange(token, "PUT", stream, mark=f"c{token}", close=("stream-closed", "true") in headers)
        exchange.data = stored(body) if world.media[stream] == JSON and "json" in headers[0][1] else body
        self.wait_for(self.ask(exchange, "PUT", "", tuple(headers), body))

    def _fork(self, stream: str) -> None:
        """Of a stream with the same media type, or of another fork; the source may be missing, closed, trimmed, deleted, or another group's."""
        world, rng = self.world, self.rng
        token = world.token()
        alike = [name for name in world.streams if world.media[name] == world.media[stream] and name != stream]
        source = rng.choice(alike or world.streams)
        headers = [("content-type", f"{world.media[stream]}; try=c{token}"), ("stream-forked-from", PREFIX + source.removeprefix(BUCKET))]
        anchor, sub_offset = None, 0
        if self.offsets.get(source) and rng.random() < 0.6:
            anchor = rng.choice(self.offsets[source][-20:])
            headers.append(("stream-fork-offset", spelt(anchor)))
            if rng.random() < 0.4:
                sub_offset = rng.choice((1, 1, 2, 9))
                headers.append(("stream-fork-sub-offset", str(sub_offset)))
        if rng.random() < 0.2:
            headers.append(("stream-ttl", str(rng.choice((1, 2, 4)))))
        body = self._body(stream) if rng.random() < 0.2 else b""
        exchange = Exchange(token, "PUT", stream, mark=f"c{token}", fork=(source, anchor, sub_offset))
        exchange.data = stored(body) if world.media[stream] == JSON else body
        self.wait_for(self.ask(exchange, "PUT", "", tuple(headers), body))

    def _publish(self, stream: str) -> None:
        world, rng = self.world, self.rng
        if not self.offsets.get(stream):
            return
        token = world.token()
        offset = rng.choice(self.offsets[stream][-20:]) + (rng.random() < world.swarm.mischief)
        exchange = Exchange(token, "PUBLISH", stream, mark=f"p{token}", offset=offset, data=b"all before %d" % offset)
        headers = (("content-type", f"text/plain; try=p{token}"),)
        self.wait_for(self.ask(exchange, "PUT", "", headers, exchange.data, f"/snapshot/{spelt(offset)}"))

    def _body(self, stream: str) -> bytes:
        world, rng = self.world, self.rng
        size = rng.randint(10, world.swarm.body_bytes)
        if world.media[stream] == JSON:
            messages = [b'{"n": %b}' % world.payload(8).lstrip(b"0") for _ in range(rng.choice((1, 1, 2, 3)))]
            return messages[0] if len(messages) == 1 and rng.random() < 0.7 else b"[" + b" , ".join(messages) + b"]"
        payload = world.payload(size)
        return payload.replace(b"\0", b" ").replace(b"   ", b"\n x") if world.media[stream] == TEXT else payload

    def _frames(self, stream: str, faulty: bool) -> Frames:
        """Of an append-batch: (payload, messages as they are stored, or why it is refused)."""
        frames: Frames = []
        is_json = self.world.media[stream] == JSON
        for _ in range(self.rng.randint(1, 4)):
            if faulty and self.rng.random() < 0.4:
                payload, why = self.rng.choice(
                    ((b"", "empty_body"), (b'{"n": ', "bad_json"), (b"[ ]", "empty_array")) if is_json else ((b"", "empty_body"),)
                )
                frames.append((payload, [], why))
            else:
                payload = self._body(stream)
                frames.append((payload, [b'{"n": %b},' % one for one in _NUMBER.findall(payload)] if is_json else [payload], ""))
        return frames

    def _new_append(self, stream: str) -> None:
        world = self.world
        if world.swarm.batch_share and self.rng.random() < world.swarm.batch_share:
            frames = self._frames(stream, self.rng.random() < 0.3)
            if self.is_producer:
                epoch, seq = self.places.setdefault(stream, (0, 0))
                self.pending = (stream, frames, (epoch, seq), False)
                self._append(*self.pending)
            else:
                self._append(stream, frames, None, False)
            return
        body = self._body(stream)
        close = stream in self.world.mortal and self.rng.random() < 0.02
        if not self.is_producer:
            self._append(stream, body, None, close)
            return
        epoch, seq = self.places.get(stream, (0, 0))
        if self.rng.random() < 0.03:
            epoch, seq = epoch + 1, 0
        self.places[stream] = (epoch, seq)
        self.pending = (stream, body, (epoch, seq), close)
        self._append(*self.pending)

    def _append(self, stream: str, body: bytes | Frames, claim: tuple[int, int] | None, close: bool) -> None:
        self.wait_for(self._post(stream, body, claim, close))
        if claim is not None and self.rng.random() < 0.1:  # twice at once, perhaps at two nodes
            self._post(stream, body, claim, close)

    def _marked(self, media: str, mark: str) -> list[tuple[str, str]]:
        """Where keys are read, several appends have the same one."""
        if not self.world.swarm.key_share:
            return [("content-type", media), ("stream-key", mark)]
        key = self.rng.choice(("", "a", "a", "b"))
        return [("content-type", f"{media}; try={mark}"), *([("stream-key", key)] if key else [])]

    def _post_batch(self, stream: str, frames: Frames, claim: tuple[int, int] | None) -> Call:
        token = self.world.token()
        mark = f"k{token}"
        exchange = Exchange(token, "BATCH", stream, mark=mark, frames=[(messages, why) for _, messages, why in frames])
        exchange.data = b"".join(message for _, messages, _ in frames for message in messages)
        headers = self._marked(self.world.media[stream], mark)
        if claim is not None:
            headers += [("producer-id", f"p{self.number}"), ("producer-epoch", str(claim[0])), ("producer-seq", str(claim[1]))]
            exchange.producer = (f"p{self.number}", *claim)
        body = b"".join(len(payload).to_bytes(4, "big") + payload for payload, _, _ in frames)
        return self.ask(exchange, "POST", "", tuple(headers), body, "/append-batch")

    def _post(self, stream: str, body: bytes | Frames, claim: tuple[int, int] | None, close: bool) -> Call:
        if isinstance(body, list):
            return self._post_batch(stream, body, claim)
        world, rng = self.world, self.rng
        token = world.token()
        mark = f"k{token}" if body else f"q{token:09d}"
        headers = self._marked(world.media[stream], mark) if body else [("stream-seq", mark)]
        if body and rng.random() < 0.05:
            headers.append(("stream-seq", f"q{token:09d}"))
        if claim is not None:
            headers += [("producer-id", f"p{self.number}"), ("producer-epoch", str(claim[0])), ("producer-seq", str(claim[1]))]
        if close:
            headers.append(("stream-closed", "true"))
        if claim is None and rng.random() < world.swarm.mischief / 2:
            headers = [("content-type", headers[0][1].replace(world.media[stream], "image/png")), *headers[1:]] if body else headers
        exchange = Exchange(token, "POST", stream, mark=mark, close=close)
        exchange.data = stored(body) if body and "json" in headers[0][1] else body
        exchange.producer = None if claim is None else (f"p{self.number}", *claim)
        return self.ask(exchange, "POST", "", tuple(headers), body)

    def _close(self, stream: str) -> None:
        claim = None
        if self.is_producer and self.rng.random() < 0.5:
            claim = self.places.get(stream, (0, 0))
            self.pending = (stream, b"", claim, True)
        self._append(stream, b"", claim, True)

    # --- reads -----------------------------------------------------------------------------------------------------------------------

    def _look(self, stream: str) -> None:
        world, rng = self.world, self.rng
        token = world.token()
        what = rng.random()
        if what < 0.1:
            self.wait_for(self.ask(Exchange(token, "HEAD", stream), "HEAD"))
            return
        if what < 0.15:
            limit = rng.choice((1, 2, 100))
            after = rng.choice(["", *world.streams])
            exchange = Exchange(token, "LIST", "", prefix=BUCKET, after=after, limit=limit)
            self.wait_for(self.ask(exchange, "GET", f"prefix={BUCKET}&limit={limit}&after={after}"))
            return
        if world.swarm.bootstrap_share and rng.random() < world.swarm.bootstrap_share:
            if world.swarm.publish_share and rng.random() < 0.4:
                offset = self.snapshots.get(stream, START) if rng.random() < 0.7 else START
                end = "/snapshot" if offset == START else f"/snapshot/{spelt(offset)}"
                self.wait_for(self.ask(Exchange(token, "SNAPSHOT", stream, offset=offset), "GET", end=end))
                return
            self.wait_for(self.ask(Exchange(token, "BOOTSTRAP", stream), "GET", end="/bootstrap"))
            return
        offset = rng.choice([START, NOW, 0, *self.offsets.get(stream, [])[-20:]])
        if rng.random() < world.swarm.mischief:
            offset = max(0, offset) + rng.choice((3, 5, 100_000))
        exchange = Exchange(token, "GET", stream, offset=offset)
        query = f"offset={spelt(offset)}"
        headers: tuple[tuple[str, str], ...] = ()
        if rng.random() < 0.4:
            exchange.max_bytes = rng.choice((1, 40, 200))
            query += f"&max_bytes={exchange.max_bytes}"
        if world.swarm.key_share and rng.random() < world.swarm.key_share:
            exchange.key = rng.choice(("a", "a", "b", "nobody"))
            query += f"&key={exchange.key}"
            if offset != NOW and rng.random() < 0.3:
                exchange.live = "long-poll"
                query += "&live=long-poll"
        elif what > 0.85:
            exchange.live = "long-poll"
            query += "&live=long-poll"
        elif self.etags.get(stream, (None, ""))[0] == offset and exchange.max_bytes > 1_000:
            exchange.etag = self.etags[stream][1]
            headers = (("if-none-match", exchange.etag),)
        self.wait_for(self.ask(exchange, "GET", query, headers), world.long_poll_us if exchange.live else 0)

    # --- what comes back -------------------------------------------------------------------------------------------------------------

    def heard(self, exchange: Exchange, response: Response) -> None:
        stream, status, code = exchange.stream, response.status, response.code
        if status < 400:
            self.acked += 1
        if "stream-next-offset" in response.headers:
            self.offsets.setdefault(stream, []).append(int(response.headers["stream-next-offset"]))
        if "stream-snapshot-offset" in response.headers:
            self.snapshots[stream] = int(response.headers["stream-snapshot-offset"])
        if exchange.key is not None:
            return
        if "etag" in response.headers:
            self.etags[stream] = (exchange.offset, response.headers["etag"])
        if exchange.method == "PUT" and stream and (status < 300 or code == "stream_exists"):
            self.known.add(stream)
        if status == 404:
            self.known.discard(stream)
        if exchange.method in ("POST", "BATCH") and self.pending is not None and status != 503:
            self._settle(stream, response, code)

    def _settle(self, stream: str, response: Response, code: str) -> None:
        """The pending append was acknowledged, or its stream does not want it."""
        _, _, (epoch, seq), _ = self.pending
        self.pending = None
        if code == "sequence_gap":
            self.places[stream] = (epoch, int(response.headers["producer-expected-seq"]))
        elif code == "stale_epoch":
            self.places[stream] = (int(response.headers["producer-epoch"]) + 1, 0)
        elif code == "bad_epoch_start":
            self.places[stream] = (epoch, 0)
        elif response.status < 300:
            self.places[stream] = (epoch, seq + 1)

    def unknown(self, call: Call) -> None:
        self.known.discard(call.exchange.stream) if call.exchange.method == "PUT" else None


class Tailer(HttpClient):
    """Follows one stream from its start, by catch-up reads, long-polls and event streams in turn, and resumes where it was."""

    def __init__(self, world: World, number: int, stream: str) -> None:
        super().__init__(world, number)
        self.stream = stream
        self.offset = START
        self.key = "a" if world.swarm.key_share and number % 2 else None
        self.behind_since_us = 0

    @property
    def idle(self) -> bool:
        return self.waiting is None and self._at_the_end()

    def _at_the_end(self) -> bool:
        return self._has_all_behind(self.offset)

    def _has_all_behind(self, offset: int) -> bool:
        latest = self.world.front_door.timeline_of(self.stream).latest(self.stream)
        if latest.life is None or latest.gone or max(offset, 0) >= latest.tail:
            return True
        return self.key is not None and not latest.life.keyed(self.key, max(offset, 0), latest.tail)

    def act(self) -> None:
        world, rng = self.world, self.rng
        call = self.waiting
        if world.draining and self._at_the_end():
            if call is not None and call.events is not None:
                self.waiting = None
                world.front_door.leave(call)
            if self.waiting is None:
                self.later()  # a producer may still have something to repeat
                return
        self.later()
        if call is not None:
            self._watch_lag(call)
            if call.events is not None and rng.random() < 0.02:
                self.waiting = None
                world.front_door.leave(call)
            return
        mode = rng.choice(("", "long-poll", "sse", "sse"))
        offset = NOW if self.offset == START and rng.random() < 0.1 and not world.draining else self.offset
        if self.key is not None and offset == NOW:
            offset = START  # how far "now" was is not told where messages are left out
        exchange = Exchange(world.token(), "GET", self.stream, offset=offset, live=mode, key=self.key)
        query = f"offset={spelt(offset)}" + (f"&live={mode}" if mode else "") + (f"&key={self.key}" if self.key else "")
        if rng.random() < 0.2:
            exchange.max_bytes = rng.choice((1, 100))
            query += f"&max_bytes={exchange.max_bytes}"
        self.wait_for(self.ask(exchange, "GET", query), world.long_poll_us if mode == "long-poll" else 0)

    def _watch_lag(self, call: Call) -> None:
        """All is well again, the response is open, and the stream goes on: then so must we."""
        world = self.world
        if not world.calm or call.events is None or self._has_all_behind(call.exchange.at):
            self.behind_since_us = 0
        elif self.behind_since_us == 0:
            self.behind_since_us = world.now_us
        elif world.now_us - self.behind_since_us > LAG_US + 2_000 * world.swarm.service.request_timeout_ms:
            raise world.violation(
                f"{call} stands at {call.exchange.at} since {(world.now_us - self.behind_since_us) / SECOND:.1f} s, and gets nothing"
            )

    def event(self, call: Call, event: Event) -> None:
        if self.waiting is call:
            self.timeouts = 0
            self.acked += 1
            self.offset = int(event.control["streamNextOffset"])
            if event.control.get("streamClosed") and not self.world.draining:
                self.offset = self.rng.choice((self.offset, START))

    def heard(self, exchange: Exchange, response: Response) -> None:
        if response.status in (200, 204):
            self.acked += 1
            self.offset = int(response.headers["stream-next-offset"])
        elif response.status in (400, 404):
            self.offset = START
        elif response.code == "trimmed":
            self.offset = int(response.headers["stream-earliest-offset"])


def stored(body: bytes) -> bytes:
    """In JSON mode: each of our messages with a comma."""
    return b"".join(b'{"n": %b},' % piece.partition(b"}")[0] for piece in body.split(b'{"n": ')[1:])


def spelt(offset: int) -> str:
    return {NOW: "now", START: "-1"}.get(offset, f"{offset:020d}")
