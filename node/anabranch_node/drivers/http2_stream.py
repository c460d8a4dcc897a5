"""One HTTP/2 stream that carries gRPC messages: messages out of DATA frames, messages into DATA frames as far as the windows allow.

Before us: http2_connection.py reads frames and knows all streams of its socket. After us: grpc_streams.py and grpc_peer.py, whose streams are
subclasses. Not here: a queue of messages. One is under way at a time, and the next is asked for when there is room: a queue is the sender's."""

from typing import TYPE_CHECKING

from anabranch_node.drivers import http2_frames as h2

if TYPE_CHECKING:
    from anabranch_node.drivers.http2_connection import Http2Connection

Headers = dict[bytes, bytes]


class Stream:
    """What both directions of one stream need. A subclass says what its events mean. on_closed is the last and comes once, whoever ended it."""

    __slots__ = ("connection", "id", "length_max", "send_window", "credit_due", "partial", "_need", "_out", "_out_end", "_trailers", "_ended", "done")

    def __init__(self, message_bytes_max: int) -> None:
        self.connection: Http2Connection
        self.id = 0
        self.length_max = message_bytes_max + h2.PREFIX_BYTES
        self.send_window = 0
        self.credit_due = 0
        self.partial: bytearray | None = None
        self._need = 0
        self._out: memoryview | None = None
        self._out_end = False
        self._trailers: list[tuple[bytes, bytes]] | None = None
        self._ended = False  # the other side sends nothing more
        self.done = False

    # --- events ------------------------------------------------------------------------------------------------------------------

    def on_headers(self, headers: Headers) -> None:
        """The first headers of the other side."""

    def on_message(self, data: bytes, start: int, end: int) -> None:
        """A whole message. The buffer holds other things, too, and is not ours to keep."""

    def on_broken(self, code: int, text: str) -> None:
        """A message that is too large or compressed, seen at its prefix. It ends the stream."""

    def on_end(self, trailers: Headers) -> None:
        """The other side has said everything."""

    def on_lost(self, reason: str) -> None:
        """Reset by the other side, or the connection is gone."""

    def on_closed(self) -> None:
        """Nothing of it is left here."""

    def allows(self, size: int) -> bool:
        """Whether there is memory for a message of this size, which is within its bound. Asked only if it comes in pieces."""
        return True

    def next_message(self) -> bytes | None:
        """With its prefix. Asked when the last one has left and there is room."""
        return None

    # --- actions -----------------------------------------------------------------------------------------------------------------

    def send_message(self, payload: bytes, end: bool = False) -> None:
        assert self._out is None, "one message at a time"
        self._out = memoryview(h2.PREFIX.pack(0, len(payload)) + payload)
        self._out_end = end
        self.pump()

    def finish(self, trailers: list[tuple[bytes, bytes]]) -> None:
        """The server's last word, after what it has sent."""
        if not self.done and self._trailers is None:
            self._trailers = trailers
            self.pump()

    def reset(self, code: int = h2.CANCEL) -> None:
        if not self.done:
            self.connection.forget(self)
            self.connection.control(h2.rst_stream(self.id, code))

    def pump(self) -> None:
        """Write what the windows allow."""
        connection = self.connection
        while not self.done:
            if self._out is None:
                following = None if self._trailers is not None else self.next_message()
                if following is None:
                    break
                self._out = memoryview(following)
            room = min(self.send_window, connection.send_window, connection.send_frame_bytes_max)
            if room <= 0 or connection.paused:
                return
            part, rest = self._out[:room], self._out[room:]
            self._out = rest or None
            self.send_window -= len(part)
            connection.send_window -= len(part)
            flags = h2.END_STREAM if self._out_end and not rest else 0
            connection.write(h2.HEAD.pack(len(part) >> 16, len(part) & 0xFFFF, h2.DATA, flags, self.id), part)
        if self._trailers is not None and not self.done:
            connection.send_headers(self.id, self._trailers, h2.END_STREAM)
            connection.forget(self)
            if not self._ended:
                connection.control(h2.rst_stream(self.id, h2.NO_ERROR))  # RFC 9113 8.1: what still comes is not needed

    # --- from the connection -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, start: int, end: int) -> None:
        """Messages in whatever pieces they come. A whole message in one frame does not pass here."""
        while start < end and not self.done:
            partial = self.partial
            if partial is None:
                partial = self.partial = bytearray()
                self._need = h2.PREFIX_BYTES
            take = min(self._need - len(partial), end - start)
            partial += data[start : start + take]
            start += take
            if len(partial) == h2.PREFIX_BYTES:
                if not self._read_prefix(partial):
                    return
            if len(partial) == self._need:
                self.partial = None
                self.on_message(bytes(partial), h2.PREFIX_BYTES, self._need)

    def _read_prefix(self, partial: bytearray) -> bool:
        compressed, size = h2.PREFIX.unpack(partial)
        self._need = h2.PREFIX_BYTES + size
        if compressed:
            self.on_broken(h2.UNIMPLEMENTED, "a compressed message")
        elif self._need > self.length_max:
            self.on_broken(h2.RESOURCE_EXHAUSTED, f"a message of {size} bytes, allowed are {self.length_max - h2.PREFIX_BYTES}")
        elif not self.allows(size):
            self.on_broken(h2.RESOURCE_EXHAUSTED, f"no room for a message of {size} bytes")
        else:
            return True
        self.partial = None
        self.reset()  # if the handler did not end it already
        return False

    def ended(self, trailers: Headers) -> None:
        self._ended = True
        self.on_end(trailers)
