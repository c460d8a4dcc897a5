"""One HTTP/2 connection as an asyncio.Protocol, for either side, with what gRPC needs and no more. Streams are objects that it calls.

Before us: the socket. After us: grpc_peer.py, whose streams get each whole message as (buffer, start, end), without a task, future or queue for it:
grpc.aio costs 200 us of CPU per message and side where this costs 2 to 5. Spelling of frames: http2_frames.py.

Everything that the other side can make grow has a bound: a frame, a header block, a message, streams, unread answers, and frames that carry nothing.
What arrives is consumed at once, so the windows that we announce bound nothing and are wide; what we send stays within the windows of the other side.
Not here: priorities, push, compression, retries, and more than one message under way in one direction of one stream."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hpack import Decoder, Encoder

from anabranch_node.drivers import http2_frames as h2
from anabranch_node.drivers.http2_frames import Http2Error
from anabranch_node.drivers.http2_stream import Headers, Stream

_log = logging.getLogger("anabranch.peer")

_JOINED_BYTES_MAX = 16 << 10
"""Up to here one copy of head and data is cheaper than a second buffer for the kernel."""
_CONTINUATIONS_MAX = 32
_CLOSE_TIMEOUT_S = 1.0
_LAST_CHANCE_S = 0.1


@dataclass(frozen=True)
class Http2Limits:
    frame_bytes_max: int = h2.FRAME_BYTES_DEFAULT  # until grow_frames(), which a stranger does not get
    window_bytes: int = 16 << 20
    header_bytes_max: int = 16 << 10
    streams_max: int = 128
    nuisances_per_s_max: int = 1000  # frames that carry nothing: pings, settings, resets, empty data; one costs ~10 us
    write_buffer_bytes_high: int = 512 << 10
    write_buffer_bytes_low: int = 128 << 10
    write_buffer_bytes_max: int = 8 << 20  # of someone who makes us answer and does not read
    greeting_timeout_s: float = 5.0
    keepalive_interval_s: float = 10.0
    keepalive_timeout_s: float = 5.0


class Http2Connection(asyncio.Protocol):
    """`accept` makes the stream of a request, and makes this the server's side. `on_gone` comes once, with the end of the socket; `on_read`
    before (True) and after (False) what one read of the socket brings."""

    def __init__(
        self,
        limits: Http2Limits,
        accept: "Callable[[Headers], Stream] | None" = None,
        on_open: "Callable[[Http2Connection], bool] | None" = None,
        on_gone: "Callable[[Http2Connection], None] | None" = None,
        on_read: "Callable[[bool], None] | None" = None,
    ) -> None:
        self.limits = limits
        self.transport: asyncio.Transport
        self.paused = False
        self.closed = False
        self.going_away = False
        self.send_window = h2.WINDOW_BYTES_DEFAULT
        self.send_frame_bytes_max = h2.FRAME_BYTES_DEFAULT
        self.streams: dict[int, Stream] = {}
        self._accept = accept
        self._on_open = on_open
        self._on_gone = on_gone
        self._on_read = on_read
        self._loop = asyncio.get_running_loop()
        self._encoder = Encoder()
        self._decoder = Decoder(max_header_list_size=limits.header_bytes_max)
        self._decoder.max_allowed_table_size = 4096
        self._rest = bytearray()  # a frame that is not complete yet
        self._rest_need = 0
        self._frame_bytes_max = limits.frame_bytes_max
        self._preface_need = len(h2.PREFACE) if accept is not None else 0
        self._greeted = False
        self._initial_send_window = h2.WINDOW_BYTES_DEFAULT
        self._credit_due = 0
        self._credit_step = limits.window_bytes // 2
        self._last_id = 0 if accept is not None else -1
        self._block: bytearray | None = None
        self._block_id = self._block_flags = self._continuations = 0
        self._nuisances = 0
        self._nuisances_since_s = 0.0
        self._heard = self._acknowledged = self._idle = False
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._on_kind = (
            *(self._on_data, self._on_headers, self._on_priority, self._on_rst_stream, self._on_settings),
            *(self._on_push_promise, self._on_ping, self._on_goaway, self._on_window_update, self._on_continuation),
        )

    # --- the socket --------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limits = self.limits
        self.transport = cast(asyncio.Transport, transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.abort()
            return
        if self._on_open is not None and not self._on_open(self):
            self.abort()
            return
        self.transport.set_write_buffer_limits(high=limits.write_buffer_bytes_high, low=limits.write_buffer_bytes_low)
        ours = {
            h2.MAX_CONCURRENT_STREAMS: limits.streams_max,
            h2.INITIAL_WINDOW_SIZE: limits.window_bytes,
            h2.MAX_FRAME_SIZE: limits.frame_bytes_max,
            h2.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
        }
        greeting = h2.settings(ours | ({} if self._accept is not None else {h2.ENABLE_PUSH: 0}))
        greeting += h2.window_update(0, limits.window_bytes - h2.WINDOW_BYTES_DEFAULT)
        self.transport.write(greeting if self._accept is not None else h2.PREFACE + greeting)
        self._timer = self._loop.call_later(limits.greeting_timeout_s, self._greeting_late)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_streams("the connection ended" if error is None else f"the connection broke: {error}")
        if self._ending is not None:
            self._ending.cancel()
        if self._on_gone is not None:
            self._on_gone(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._pump_all()

    def close(self, code: int = h2.NO_ERROR, text: str = "") -> None:
        """Say why, end all streams, and close when that is written, or soon after."""
        if self.closed:
            return
        self.transport.write(h2.goaway(max(self._last_id, 0) if self._accept is not None else 0, code, text))
        self._end_streams(text or "closed")
        if code != h2.NO_ERROR and self.transport.can_write_eof():
            # To close with unread bytes in the socket is to reset it, and the other side might never read why. So it closes first, or time is up.
            self.transport.write_eof()
        else:
            self.transport.close()
        self._ending = self._loop.call_later(_CLOSE_TIMEOUT_S, self.transport.abort)

    def abort(self) -> None:
        self._end_streams("aborted")
        self.transport.abort()

    def _end_streams(self, reason: str) -> None:
        self.closed = True
        self._rest.clear()
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self.streams.values()):
            self._lose(stream, reason)

    def _lose(self, stream: Stream, reason: str) -> None:
        if not stream.done:
            stream.done = True
            self.streams.pop(stream.id, None)
            stream.on_lost(reason)
            stream.on_closed()

    def forget(self, stream: Stream) -> None:
        if not stream.done:
            stream.done = True
            self.streams.pop(stream.id, None)
            stream.on_closed()

    # --- keepalive ---------------------------------------------------------------------------------------------------------------

    def _greeting_late(self) -> None:
        self.close(h2.PROTOCOL_ERROR, "no greeting in time")

    def _keepalive(self) -> None:
        """A ping in each interval, whatever else was heard, so that a death is noticed within interval and timeout."""
        if self._accept is not None and not self.streams and self._idle:
            self.close(h2.NO_ERROR, "idle")
            return
        self._idle = not self.streams
        self._heard = self._acknowledged = False
        self.control(h2.frame(h2.PING, 0, 0, b"anabranc"))
        if not self.closed:
            self._timer = self._loop.call_later(self.limits.keepalive_timeout_s, self._ping_late, False)

    def _ping_late(self, last_chance: bool) -> None:
        limits = self.limits
        if self._acknowledged:
            self._timer = self._loop.call_later(max(limits.keepalive_interval_s - limits.keepalive_timeout_s, 0), self._keepalive)
        elif self._heard:
            self._heard = False  # the answer stands behind other data
            self._timer = self._loop.call_later(limits.keepalive_timeout_s, self._ping_late, False)
        elif not last_chance:
            # After a stall of our own (a stopped process) timers come first, and the answer may wait in the socket.
            self._timer = self._loop.call_later(_LAST_CHANCE_S, self._ping_late, True)
        else:
            self._end_streams(f"no answer to a ping within {limits.keepalive_timeout_s:g} s")
            self.transport.abort()

    # --- writing -----------------------------------------------------------------------------------------------------------------

    def write(self, head: bytes, data: "bytes | memoryview") -> None:
        if len(data) <= _JOINED_BYTES_MAX:
            self.transport.write(head + data)
        else:
            self.transport.writelines((head, data))

    def control(self, data: bytes) -> None:
        """Small frames outside of every window. Someone who makes us write them without reading them is cut off."""
        if self.closed:
            return
        if self.paused and self.transport.get_write_buffer_size() > self.limits.write_buffer_bytes_max:
            self.abort()
            return
        self.transport.write(data)

    def send_headers(self, stream_id: int, headers: list[tuple[bytes, bytes]], flags: int = 0) -> None:
        block = self._encoder.encode(headers)
        assert len(block) <= h2.FRAME_BYTES_DEFAULT, "our own headers are few and bounded"
        self.control(h2.frame(h2.HEADERS, flags | h2.END_HEADERS, stream_id, block))

    def open_stream(self, stream: Stream, headers: list[tuple[bytes, bytes]]) -> None:
        assert self._accept is None
        if self.closed or self.going_away:
            raise ConnectionError("the connection is closed")
        self._last_id += 2
        self._register(stream, self._last_id)
        self.send_headers(stream.id, headers)

    def grow_frames(self, frame_bytes_max: int) -> None:
        """From now on the other side may send larger frames. For those who have said who they are: a frame is held until it is complete."""
        frame_bytes_max = min(frame_bytes_max, h2.FRAME_BYTES_LIMIT)
        if frame_bytes_max > self._frame_bytes_max and not self.closed:
            self._frame_bytes_max = frame_bytes_max
            self.control(h2.settings({h2.MAX_FRAME_SIZE: frame_bytes_max}))

    def _register(self, stream: Stream, stream_id: int) -> None:
        stream.connection, stream.id, stream.send_window = self, stream_id, self._initial_send_window
        self.streams[stream_id] = stream

    def _pump_all(self) -> None:
        for stream in list(self.streams.values()):
            if self.paused or self.send_window <= 0:
                break
            stream.pump()

    # --- reading -----------------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._heard = True
        on_read = self._on_read
        if on_read is not None:
            on_read(True)
        try:
            self._read(data)
        except Http2Error as error:
            _log.debug("a peer connection broke the protocol: %s", error)  # a port scan fills no log
            self.close(error.code, str(error))
        except Exception:
            _log.exception("a peer connection failed")
            self.close(h2.INTERNAL_ERROR, "internal error")
        finally:
            if on_read is not None:
                on_read(False)

    def _read(self, data: bytes) -> None:
        position = self._complete(data) if self._rest or self._preface_need else 0
        size = len(data)
        streams, unpack = self.streams, h2.HEAD_AND_PREFIX.unpack_from
        while not self.closed:
            left = size - position
            if left >= 14:
                high, low, kind, flags, stream_id, compressed, message_bytes = unpack(data, position)
            elif left >= h2.FRAME_HEAD_BYTES:
                high, low, kind, flags, stream_id = h2.HEAD.unpack_from(data, position)
                compressed, message_bytes = 1, 0
            else:
                break
            length = high << 16 | low
            if length > self._frame_bytes_max:
                raise Http2Error(h2.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = position + 9 + length
            if end > size:
                break
            if kind == 0 and flags == 0 and compressed == 0 and message_bytes + 5 == length:
                # The common case: one message in one frame of an open stream. Everything else takes the long way.
                stream = streams.get(stream_id)
                if stream is not None and stream.partial is None and self._block is None and length <= stream.length_max and not stream._ended:
                    stream.credit_due = due = stream.credit_due + length
                    self._credit_due += length
                    if due > self._credit_step or self._credit_due > self._credit_step:
                        self._give_credit(stream)
                    stream.on_message(data, position + 14, end)
                    position = end
                    continue
            self._on_frame(kind, flags, stream_id & h2.STREAM_ID_MASK, data, position + 9, end)
            position = end
        if position < size and not self.closed:
            self._keep(data, position)

    def _keep(self, data: bytes, position: int) -> None:
        rest = self._rest
        rest += data[position:]
        self._rest_need = h2.FRAME_HEAD_BYTES
        if len(rest) >= h2.FRAME_HEAD_BYTES:
            self._rest_need += int.from_bytes(rest[:3])

    def _complete(self, data: bytes) -> int:
        """Read the preface and the frame that the last read ended in; where to go on."""
        position = 0
        if self._preface_need:
            position = min(self._preface_need, len(data))
            done = len(h2.PREFACE) - self._preface_need
            if data[:position] != h2.PREFACE[done : done + position]:
                raise Http2Error(h2.PROTOCOL_ERROR, "not HTTP/2")
            self._preface_need -= position
        rest = self._rest
        while rest and position < len(data) and not self.closed:
            take = self._rest_need - len(rest)
            rest += data[position : position + take]
            position = min(position + take, len(data))
            if len(rest) < self._rest_need:
                break
            if self._rest_need == h2.FRAME_HEAD_BYTES and (length := int.from_bytes(rest[:3])):
                if length > self._frame_bytes_max:
                    raise Http2Error(h2.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
                self._rest_need += length
                continue
            whole = bytes(rest)
            rest.clear()
            self._read(whole)
        return position

    def _on_frame(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if not self._greeted:
            if kind != h2.SETTINGS or flags & h2.ACK:
                raise Http2Error(h2.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._greeted = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(self.limits.keepalive_interval_s, self._keepalive)
        if self._block is not None and (kind != h2.CONTINUATION or stream_id != self._block_id):
            raise Http2Error(h2.PROTOCOL_ERROR, "a header block was interrupted")
        if kind < len(self._on_kind):
            self._on_kind[kind](flags, stream_id, data, start, end)
        else:
            self._nuisance()

    def _nuisance(self) -> None:
        """A frame that costs us and carries nothing. A second's worth of them is allowed each second."""
        self._nuisances += 1
        if self._nuisances > self.limits.nuisances_per_s_max:
            now_s = self._loop.time()
            if now_s - self._nuisances_since_s < 1.0:
                raise Http2Error(h2.ENHANCE_YOUR_CALM, "too many frames that carry nothing")
            self._nuisances, self._nuisances_since_s = 0, now_s

    def _give_credit(self, stream: Stream | None) -> None:
        if self._credit_due > self._credit_step:
            self.control(h2.window_update(0, self._credit_due))
            self._credit_due = 0
        if stream is not None and stream.credit_due > self._credit_step:
            self.control(h2.window_update(stream.id, stream.credit_due))
            stream.credit_due = 0

    def _on_data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        length = end - start
        self._credit_due += length
        start, end = h2.without_padding(flags, data, start, end)
        if start == end and not flags & h2.END_STREAM:
            self._nuisance()
        stream = self.streams.get(stream_id)
        if stream is None:
            self._must_be_old(stream_id)
            self._give_credit(None)
            return
        if stream._ended:
            raise Http2Error(h2.STREAM_CLOSED, "data after the end of a stream")
        stream.credit_due += length
        self._give_credit(stream)
        stream.feed(data, start, end)
        if flags & h2.END_STREAM and not stream.done:
            stream.ended({})

    def _must_be_old(self, stream_id: int) -> None:
        """A frame of a stream that is over crosses our own end of it and is ignored; one of a stream that never was is a mistake."""
        if stream_id % 2 == 0 or stream_id > self._last_id:  # all streams are the client's
            raise Http2Error(h2.PROTOCOL_ERROR, f"stream {stream_id} was never opened")

    def _on_headers(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id == 0:
            raise Http2Error(h2.PROTOCOL_ERROR, "headers of stream 0")
        start, end = h2.without_padding(flags, data, start, end)
        if flags & h2.PRIORITIZED:
            if end - start < 5:
                raise Http2Error(h2.FRAME_SIZE_ERROR, "headers without their priority")
            start += 5
        self._nuisance()  # a stream that is opened and reset at once costs more than a ping
        self._block, self._block_id, self._block_flags, self._continuations = bytearray(), stream_id, flags, 0
        self._add_to_block(flags, data, start, end)

    def _on_continuation(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if self._block is None:
            raise Http2Error(h2.PROTOCOL_ERROR, "a continuation of nothing")
        self._continuations += 1
        if self._continuations > _CONTINUATIONS_MAX:
            raise Http2Error(h2.ENHANCE_YOUR_CALM, "too many continuations")
        self._add_to_block(flags, data, start, end)

    def _add_to_block(self, flags: int, data: bytes, start: int, end: int) -> None:
        block = self._block
        assert block is not None
        if len(block) + end - start > self.limits.header_bytes_max:
            raise Http2Error(h2.ENHANCE_YOUR_CALM, f"headers of more than {self.limits.header_bytes_max} bytes")
        block += data[start:end]
        if flags & h2.END_HEADERS:
            self._block = None
            try:
                headers = dict(self._decoder.decode(bytes(block), raw=True))
            except Exception as error:  # hpack names most of what can be wrong, and not all of it
                raise Http2Error(h2.COMPRESSION_ERROR, f"{type(error).__name__}: {error}") from None
            self._take_headers(self._block_id, bool(self._block_flags & h2.END_STREAM), headers)

    def _take_headers(self, stream_id: int, last: bool, headers: Headers) -> None:
        stream = self.streams.get(stream_id)
        if stream is None and self._accept is not None and stream_id > self._last_id:
            if stream_id % 2 == 0:
                raise Http2Error(h2.PROTOCOL_ERROR, f"stream {stream_id} is not the client's to open")
            self._last_id = stream_id
            if len(self.streams) >= self.limits.streams_max:
                self.control(h2.rst_stream(stream_id, h2.REFUSED_STREAM))
                return
            stream = self._accept(headers)
            self._register(stream, stream_id)
            stream.on_headers(headers)
            if last and not stream.done:
                stream.ended({})
        elif stream is None:
            self._must_be_old(stream_id)
        elif stream._ended:
            raise Http2Error(h2.STREAM_CLOSED, "headers after the end of a stream")
        elif last:
            stream.ended(headers)
        elif self._accept is not None:
            raise Http2Error(h2.PROTOCOL_ERROR, "trailers that do not end the stream")
        elif not headers.get(b":status", b"").startswith(b"1"):
            stream.on_headers(headers)

    def _on_priority(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        self._nuisance()

    def _on_push_promise(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        raise Http2Error(h2.PROTOCOL_ERROR, "a push promise, which we never allow")

    def _on_rst_stream(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        code = h2.read_word(data, start, end, "RST_STREAM")
        self._nuisance()
        stream = self.streams.get(stream_id)
        if stream is None:
            self._must_be_old(stream_id)
            return
        self._lose(stream, f"the stream was reset with code {code}")

    def _on_settings(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id != 0:
            raise Http2Error(h2.PROTOCOL_ERROR, "settings of a stream")
        self._nuisance()
        if flags & h2.ACK:
            if start != end:
                raise Http2Error(h2.FRAME_SIZE_ERROR, "an acknowledgement of settings with settings")
            return
        for key, value in h2.read_settings(data, start, end):
            if key == h2.INITIAL_WINDOW_SIZE:
                for stream in self.streams.values():
                    stream.send_window += value - self._initial_send_window
                    if stream.send_window > h2.WINDOW_BYTES_LIMIT:
                        raise Http2Error(h2.FLOW_CONTROL_ERROR, "a window beyond its limit")
                self._initial_send_window = value
            elif key == h2.MAX_FRAME_SIZE:
                self.send_frame_bytes_max = value
            elif key == h2.HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4096)
        self.control(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._pump_all()

    def _on_ping(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if end - start != 8 or stream_id != 0:
            raise Http2Error(h2.FRAME_SIZE_ERROR, "a ping that is none")
        self._nuisance()
        if flags & h2.ACK:
            self._acknowledged = True
        else:
            self.control(h2.frame(h2.PING, h2.ACK, 0, data[start:end]))

    def _on_goaway(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Streams up to the named one go on; the others were not seen and never will be."""
        last, code, text = h2.read_goaway(data, start, end)
        self._nuisance()
        self.going_away = True
        for stream in [stream for stream in self.streams.values() if stream.id > last and self._accept is None]:
            self._lose(stream, f"the other side goes away with code {code} {text}".rstrip())

    def _on_window_update(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        increment = h2.read_word(data, start, end, "WINDOW_UPDATE") & h2.STREAM_ID_MASK
        if stream_id == 0:
            if increment == 0 or self.send_window + increment > h2.WINDOW_BYTES_LIMIT:
                raise Http2Error(h2.FLOW_CONTROL_ERROR if increment else h2.PROTOCOL_ERROR, f"a window grows by {increment}")
            self.send_window += increment
            self._pump_all()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._must_be_old(stream_id)
            return
        if increment == 0 or stream.send_window + increment > h2.WINDOW_BYTES_LIMIT:
            raise Http2Error(h2.FLOW_CONTROL_ERROR if increment else h2.PROTOCOL_ERROR, f"a stream's window grows by {increment}")
        stream.send_window += increment
        stream.pump()
