"""A multipart/mixed body behind HTTP chunks, read the way RFC 2046 and RFC 9112 say, by code that shares nothing with what writes it."""

from typing import NamedTuple


class Part(NamedTuple):
    content_type: str
    body: bytes


class Bootstrapped(NamedTuple):
    status: int
    headers: dict[str, str]
    parts: list[Part]
    chunks: list[bytes]


class Torn(Exception):
    """The response stops before its end."""


def unchunked(data: bytes) -> list[bytes]:
    chunks = []
    while True:
        line, found, data = data.partition(b"\r\n")
        if not found:
            raise Torn
        size = int(line, 16)
        if len(data) < size + 2:
            raise Torn
        chunk, end, data = data[:size], data[size : size + 2], data[size + 2 :]
        assert end == b"\r\n"
        if not size:
            assert not data
            return chunks
        chunks.append(chunk)


def bootstrapped(answer: bytes) -> Bootstrapped:
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert headers["transfer-encoding"] == "chunked"
    kind, _, boundary = headers["content-type"].partition("; boundary=")
    assert kind == "multipart/mixed"
    chunks = unchunked(rest)
    delimiter = f"\r\n--{boundary}".encode()
    preamble, *pieces, last = (b"\r\n" + b"".join(chunks)).split(delimiter)
    assert preamble == b"" and last == b"--\r\n", (preamble, last)
    parts = []
    for piece in pieces:
        lines_of_part, found, body = piece.partition(b"\r\n\r\n")
        assert found and lines_of_part.startswith(b"\r\nContent-Type: "), piece
        parts.append(Part(lines_of_part.removeprefix(b"\r\nContent-Type: ").decode(), body))
    return Bootstrapped(int(first.split(" ")[1]), headers, parts, chunks)
