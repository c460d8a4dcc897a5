"""gRPC on top of HTTP/2 streams: request headers, response headers, statuses in trailers, and how a client gets a connection.

Before us: http2_connection.py cuts messages out of frames. After us: grpc_peer.py, whose streams are subclasses of these two.
Not here: deadlines (the caller's), compression, metadata, load balancing, and connections shared by several callers."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from anabranch_node.drivers import http2_frames as h2
from anabranch_node.drivers.http2_connection import Http2Connection, Http2Limits
from anabranch_node.drivers.http2_stream import Headers, Stream

_RESPONSE = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class ServerStream(Stream):
    """One call of ours by somebody. This class as it is refuses everything; a subclass overrides the events."""

    __slots__ = ("_answered",)

    def __init__(self, message_bytes_max: int) -> None:
        super().__init__(message_bytes_max)
        self._answered = False

    def answer(self, payload: bytes) -> None:
        if self.done:
            return
        if not self._answered:
            self._answered = True
            self.connection.send_headers(self.id, _RESPONSE)
        self.send_message(payload)

    def end(self, code: int, text: str = "") -> None:
        trailers = [(b"grpc-status", b"%d" % code)]
        if text:
            trailers.append((b"grpc-message", h2.encode_status_text(text)))
        self.finish(trailers if self._answered else _RESPONSE + trailers)

    def on_broken(self, code: int, text: str) -> None:
        self.end(code, text)


class RefusedStream(ServerStream):
    """The answer to a request that is not for us."""

    __slots__ = ("_code", "_text", "_http_status")

    def __init__(self, code: int, text: str, http_status: bytes = b"200") -> None:
        super().__init__(0)
        self._code, self._text, self._http_status = code, text, http_status

    def on_headers(self, headers: Headers) -> None:
        if self._http_status == b"200":
            self.end(self._code, self._text)
        else:
            self.finish([(b":status", self._http_status)])


def refuse_request(headers: Headers) -> RefusedStream | None:
    """None: it is a gRPC request, of whatever method."""
    if headers.get(b":method") != b"POST":
        return RefusedStream(h2.UNIMPLEMENTED, "", b"405")
    if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
        return RefusedStream(h2.UNIMPLEMENTED, "", b"415")
    return None


class ClientStream(Stream):
    """One call by us. on_status comes once, unless on_lost did."""

    __slots__ = ("_refused",)

    def __init__(self, message_bytes_max: int) -> None:
        super().__init__(message_bytes_max)
        self._refused = ""

    def on_status(self, code: int, text: str) -> None:
        """The call is over."""

    def on_headers(self, headers: Headers) -> None:
        if headers.get(b":status") != b"200":
            self._refused = f"HTTP status {headers.get(b':status', b'')!r}"

    def on_end(self, trailers: Headers) -> None:
        self.reset()  # as far as there is something left to say, it is not wanted
        if trailers.get(b":status", b"200") != b"200" or self._refused:
            self.on_status(h2.UNAVAILABLE, self._refused or f"HTTP status {trailers[b':status']!r}")
        else:
            self.on_status(*h2.decode_status(trailers))

    def on_broken(self, code: int, text: str) -> None:
        self.reset()
        self.on_status(code, text)


def request_headers(path: str, authority: str, tls: bool, timeout_s: float | None = None) -> list[tuple[bytes, bytes]]:
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"https" if tls else b"http"),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"anabranch"),
    ]
    if timeout_s is not None:
        headers.append((b"grpc-timeout", b"%dm" % min(max(int(timeout_s * 1000), 1), 99_999_999)))
    return headers


async def connect(
    address: str, limits: Http2Limits, tls: ssl.SSLContext | None, on_gone: Callable[[Http2Connection], None] | None = None
) -> Http2Connection:
    """A new connection, its name resolved afresh; OSError when no address answers. Each address gets its share of the greeting's time,
    or a silent one in front of a good one would take it all."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    problem: OSError = OSError(f"{host!r} has no address")
    for family, _, protocol, _, where in found:
        connection = Http2Connection(limits, on_gone=on_gone)
        try:
            async with asyncio.timeout(limits.greeting_timeout_s / len(found)):
                ip, port_there = str(where[0]), int(where[1])
                await loop.create_connection(
                    lambda c=connection: c,
                    ip,
                    port_there,
                    family=family,
                    proto=protocol,
                    ssl=tls,
                    server_hostname=None if tls is None else host,
                )
            return connection
        except TimeoutError:
            problem = OSError(f"{where[0]} does not answer")
        except OSError as error:
            problem = error
        except BaseException:
            with contextlib.suppress(AttributeError):
                connection.abort()
            raise
    raise problem
