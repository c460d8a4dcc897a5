"""A strict reader of the one multipart shape that bootstrap may answer (RFC 2046 5.1.1, extensions.txt 3.2): no preamble, no epilogue, CRLF only.

Stricter than a mail reader on purpose: a client that splits at the delimiter must find exactly the parts that the server meant, whatever bytes
the messages hold. Before us: the body of GET /bootstrap. After us: test_bootstrap.py compares the parts with what was appended."""

import re
from typing import NamedTuple

# "Boundary delimiters must not appear within the encapsulated material"; 1 to 70 of these characters, the last one no space.
_boundary = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]").fullmatch
_content_type = re.compile(r'multipart/mixed;\s*boundary=(?:"([^"\\]+)"|([^\s;"]+))').fullmatch
_header = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n]*?)[ \t]*").fullmatch


class Part(NamedTuple):
    content_type: str
    body: bytes


def parts(content_type: str, body: bytes) -> list[Part]:
    """Raises AssertionError for anything that is not exactly such a body."""
    found = _content_type(content_type)
    assert found, f"Content-Type {content_type!r}"
    boundary = found[1] or found[2]
    assert _boundary(boundary), f"boundary {boundary!r}"
    delimiter = b"--" + boundary.encode()
    assert body.startswith(delimiter + b"\r\n"), f"begins with {body[:80]!r}"
    pieces = (b"\r\n" + body).split(b"\r\n" + delimiter)
    assert pieces[0] == b"", pieces[0][:80]
    assert pieces[-1] in (b"--", b"--\r\n"), f"ends with {body[-80:]!r}"
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    assert piece.startswith(b"\r\n"), f"something follows the boundary on its line: {piece[:80]!r}"
    head, empty_line, body = piece[2:].partition(b"\r\n\r\n")
    assert empty_line, f"a part without the empty line behind its headers: {piece[:80]!r}"
    headers: dict[str, str] = {}
    for line in head.split(b"\r\n"):
        matched = _header(line)
        assert matched, f"header line {line!r}"
        name = matched[1].decode().lower()
        assert name not in headers, f"{name} twice"
        headers[name] = matched[2].decode()
    assert "content-transfer-encoding" not in headers, "the bytes are not reframed"
    assert headers.get("content-length", str(len(body))) == str(len(body)), f"Content-Length {headers['content-length']}, {len(body)} bytes"
    return Part(headers["content-type"], body)
