"""`append`: bytes from the command line, a file or a pipe into a stream. Before us: a shell. After us: any node's client plane.

With --producer-id each append carries a sequence number, so a lost answer is repeated on another node and lands exactly once."""

import sys
import time
from collections.abc import Iterator

import click
import msgspec

from anabranch_node.cli.failure import Failed
from anabranch_node.cli.http import CLIENT_URL, Answer, Nodes, stream_path, urls_of
from anabranch_node.cli.options import json_option, url_option

DEFAULT_CONTENT_TYPE = "text/plain"


@click.command()
@click.argument("stream")
@click.argument("source", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@url_option
@click.option("--data", help="append this text, instead of a file or stdin")
@click.option("--lines", is_flag=True, help="one append per line of the input, as it arrives; blank lines are skipped")
@click.option("--content-type", help="of the stream  [default: what the stream has; text/plain for a new one]")
@click.option("--create", is_flag=True, help="make the stream first if it does not exist")
@click.option("--close", is_flag=True, help="close the stream with the (last) append")
@click.option("--producer-id", help="exactly once, also if an answer is lost and the append is repeated on another node")
@click.option(
    "--producer-epoch", type=click.IntRange(0), help="of the producer  [default: the time in ms, so that a later run supersedes an earlier one]"
)
@click.option("--producer-seq", type=click.IntRange(0), default=0, show_default=True, help="of the first append")
@json_option
def append(
    stream: str,
    source: str | None,
    url: str,
    data: str | None,
    lines: bool,
    content_type: str | None,
    create: bool,
    close: bool,
    producer_id: str | None,
    producer_epoch: int | None,
    producer_seq: int,
    as_json: bool,
) -> None:
    """Append to STREAM, from --data, a file, or stdin ("-", or nothing given).

    \b
    Examples:
      anabranch append demo --create --data 'hello'
      tail -f app.log | anabranch append logs/app --lines --create --producer-id app-1
      anabranch append orders order.json --content-type application/json
    """
    if data is not None and source is not None:
        raise click.UsageError("give --data or a file, not both")
    nodes = Nodes(urls_of(url, CLIENT_URL))
    path = stream_path(stream)
    content_type = _content_type(nodes, stream, content_type, create)
    headers = {"Content-Type": content_type}
    if producer_id is not None:
        headers |= {"Producer-Id": producer_id, "Producer-Epoch": str(int(time.time() * 1000) if producer_epoch is None else producer_epoch)}
    last: Answer | None = None
    count = 0
    for body, is_last in _marked(_bodies(data, source, lines), look_ahead=close):
        if producer_id is not None:
            headers["Producer-Seq"] = str(producer_seq + count)
        if close and is_last:
            headers["Stream-Closed"] = "true"
        last = nodes.request("POST", path, body, headers)
        if last.status not in (200, 204):
            raise Failed(f"{stream}: {last.text()}" + (f" (after {count} appends)" if count else ""))
        count += 1
    if last is None:
        raise Failed("nothing to append: the input is empty")
    offset = last.headers.get("stream-next-offset", "")
    if as_json:
        result = {"stream": stream, "appends": count, "next_offset": offset, "duplicate": producer_id is not None and last.status == 204}
        click.echo(msgspec.json.encode(result))
    else:
        click.echo(f"{stream}: {count} append{'s' if count > 1 else ''}, next offset {offset}")


def _content_type(nodes: Nodes, stream: str, wanted: str | None, create: bool) -> str:
    """The stream's own, unless one was given; makes the stream where asked to."""
    path = stream_path(stream)
    if wanted is None:
        head = nodes.request("HEAD", path)
        if head.status == 200:
            return head.headers.get("content-type", DEFAULT_CONTENT_TYPE)
        if head.status != 404 or not create:
            hint = "; --create makes it" if head.status == 404 else ""
            raise Failed(f"{stream}: {'there is no such stream' if head.status == 404 else f'answered {head.status}'}{hint}")
    if create:
        made = nodes.request("PUT", path, b"", {"Content-Type": wanted or DEFAULT_CONTENT_TYPE})
        if made.status not in (200, 201):
            raise Failed(f"{stream}: {made.text()}")
    return wanted or DEFAULT_CONTENT_TYPE


def _bodies(data: str | None, source: str | None, lines: bool) -> Iterator[bytes]:
    if data is not None:
        yield from ([line for line in data.encode().splitlines() if line.strip()] if lines else [data.encode()])
        return
    file = sys.stdin.buffer if source in (None, "-") else open(str(source), "rb")  # noqa: SIM115  # stdin is not ours to close
    if lines:
        for line in file:
            if line.strip():
                yield line.rstrip(b"\r\n") + b"\n"
    else:
        body = file.read()
        if body:
            yield body


def _marked(bodies: Iterator[bytes], look_ahead: bool) -> Iterator[tuple[bytes, bool]]:
    """Each body and whether it is the last. Only whoever needs to know that holds a line back until the next one comes."""
    if not look_ahead:
        yield from ((body, False) for body in bodies)
        return
    held: bytes | None = None
    for body in bodies:
        if held is not None:
            yield held, False
        held = body
    if held is not None:
        yield held, True
