"""`read` and `tail`: a stream from an offset to its end, or for as long as it lives. After us: any node's client plane.

A tail keeps the offset of the last complete event. Whatever happens to a node, it goes on from there on the next one: nothing is lost or repeated."""

import base64
import binascii
import http.client
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlencode

import click
import msgspec

from anabranch_node.cli.failure import Failed, Unavailable
from anabranch_node.cli.http import CLIENT_URL, Answer, Nodes, stream_path, urls_of
from anabranch_node.cli.options import json_option, url_option

BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _messages(body: bytes) -> list[msgspec.Raw]:
    """The messages of a JSON array, each with its own bytes."""
    try:
        return msgspec.json.decode(body or b"[]", type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        raise Failed("the answer is not the JSON array that its content type promises") from None


def _as_value(data: bytes, content_type: str) -> dict[str, object]:
    """Data inside a JSON line: messages, text, or base64 where it is neither."""
    if _is_json(content_type):
        return {"messages": _messages(data)}
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _show(data: bytes, content_type: str) -> None:
    if _is_json(content_type):
        _write(b"".join(bytes(message) + b"\n" for message in _messages(data)))
    else:
        _write(data)


@click.command()
@click.argument("stream")
@url_option
@click.option("--offset", default="-1", show_default=True, help="where to begin: -1 (the start), now, or an offset")
@click.option("--once", is_flag=True, help="one answer of the server, even if there is more")
@json_option
def read(stream: str, url: str, offset: str, once: bool, as_json: bool) -> None:
    """Print what STREAM holds, up to its current end. JSON messages come one per line; other streams as their bytes.

    \b
    Examples:
      anabranch read demo
      anabranch read demo --offset 00000000000000000042
      anabranch read demo --json       one line per answer: next_offset, up_to_date, closed, and the data
    """
    nodes = Nodes(urls_of(url, CLIENT_URL))
    path = stream_path(stream)
    while True:
        answer = nodes.request("GET", f"{path}?{urlencode({'offset': offset})}")
        if answer.status != 200:
            raise Failed(f"{stream}: {answer.text()}")
        content_type = answer.headers.get("content-type", "")
        following = answer.headers.get("stream-next-offset", "")
        up_to_date = "stream-up-to-date" in answer.headers
        if as_json:
            line: dict[str, object] = {"stream": stream, "offset": offset, "next_offset": following, "content_type": content_type}
            line |= {"up_to_date": up_to_date, "closed": "stream-closed" in answer.headers, **_as_value(answer.body, content_type)}
            click.echo(msgspec.json.encode(line))
        else:
            _show(answer.body, content_type)
        if once or up_to_date or not following or following == offset:
            return
        offset = following


class Event(NamedTuple):
    """One data event with the offset that follows it, which its control event names. Data may be empty: news about the offset only."""

    data: bytes
    next_offset: str
    up_to_date: bool
    closed: bool


class _Control(msgspec.Struct, rename="camel"):
    stream_next_offset: str
    up_to_date: bool = False
    stream_closed: bool = False


def events(lines: Iterator[Answer | bytes], is_base64: bool) -> Iterator[Event]:
    """SSE lines as events. A data event counts only with its control event: without it we would not know where to go on."""
    kind = ""
    data: list[bytes] = []
    pending: list[bytes] = []
    for line in lines:
        assert isinstance(line, bytes)
        if not line:
            if kind == "data":
                joined = b"".join(data) if is_base64 else b"\n".join(data)
                pending.append(base64.b64decode(joined, validate=True) if is_base64 else joined)
            elif kind == "control":
                control = msgspec.json.decode(b"\n".join(data), type=_Control)
                yield Event(b"".join(pending), control.stream_next_offset, control.up_to_date or control.stream_closed, control.stream_closed)
                pending = []
            kind, data = "", []
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            kind = value.decode("ascii", "replace")
        elif name == b"data":
            data.append(value)


@click.command()
@click.argument("stream")
@url_option
@click.option("--offset", default="now", show_default=True, help="where to begin: now, -1 (the start), or an offset")
@click.option("--count", type=click.IntRange(1), help="end after so many events with data")
@click.option(
    "--idle-timeout", "idle_timeout_s", type=float, default=40.0, show_default=True, help="seconds of silence, keep-alives too: try the next node"
)
@click.option("--retry-for", "retry_for_s", type=float, default=60.0, show_default=True, help="seconds without any node; then exit code 3")
@json_option
def tail(stream: str, url: str, offset: str, count: int | None, idle_timeout_s: float, retry_for_s: float, as_json: bool) -> None:
    """Follow STREAM live until it is closed, or Ctrl-C. With several --url it goes on through another node when one dies.

    \b
    Examples:
      anabranch tail demo --offset -1
      anabranch tail demo --url http://127.0.0.1:4437,http://127.0.0.1:4447,http://127.0.0.1:4457
      anabranch tail orders --json | jq .messages
    """
    nodes = Nodes(urls_of(url, CLIENT_URL), timeout_s=10.0)
    path = stream_path(stream)
    found = nodes.request("HEAD", path, retry_for_s=retry_for_s)
    if found.status != 200:
        raise Failed(f"{stream}: {'there is no such stream' if found.status == 404 else f'answered {found.status}'}")
    content_type = found.headers.get("content-type", "")
    seen = failures = 0
    good_at = time.monotonic()
    while True:
        why = "the answer ended"
        try:
            lines = nodes.lines(f"{path}?{urlencode({'offset': offset, 'live': 'sse'})}", {"Accept": "text/event-stream"}, idle_timeout_s)
            head = next(lines)
            assert isinstance(head, Answer)
            if head.status == 200:
                is_base64 = head.headers.get("stream-sse-data-encoding", "") == "base64"
                got_events = False
                for event in events(lines, is_base64):
                    got_events = True
                    offset, good_at, failures = event.next_offset, time.monotonic(), 0
                    seen += bool(event.data)
                    if event.data or event.closed:
                        _show_event(event, content_type, as_json)
                    if event.closed or (count is not None and seen >= count):
                        return
                if got_events:
                    time.sleep(BACK_OFF_S[0])
                    continue  # a server ends a long answer from time to time; that is no failure, and the same node will do
            elif head.status not in (429, 502, 503, 504):
                raise Failed(f"{stream}: {head.text()}")
            else:
                why = head.text()
        except (OSError, http.client.HTTPException, msgspec.MsgspecError, binascii.Error, StopIteration) as lost:
            why = str(lost) or type(lost).__name__
        if time.monotonic() - good_at > retry_for_s:
            raise Unavailable(f"{nodes.url}: {why}; the next offset is {offset}")
        click.echo(f"{nodes.url}: {why}; going on from {offset}", err=True)
        nodes.next()
        time.sleep(BACK_OFF_S[min(failures // len(nodes.urls), len(BACK_OFF_S) - 1)])
        failures += 1


def _show_event(event: Event, content_type: str, as_json: bool) -> None:
    if as_json:
        about = {"next_offset": event.next_offset, "up_to_date": event.up_to_date, "closed": event.closed}
        click.echo(msgspec.json.encode({**about, **_as_value(event.data, content_type)}))
    else:
        _show(event.data, content_type)
