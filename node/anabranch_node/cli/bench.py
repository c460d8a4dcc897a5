"""`bench`: how fast this cluster is from here, with a simple closed loop: each connection sends its next request when the last one was answered.

After us: the client planes of all given nodes, connections spread over them. Only correct answers count. The load shares the machine with whatever
else runs on it, so figures compare runs, not machines. Not here: comparisons with other servers (tests/bench)."""

import asyncio
import secrets
import time
from typing import NamedTuple
from urllib.parse import urlsplit

import click
import msgspec

from anabranch_node.cli.failure import Failed, Unavailable
from anabranch_node.cli.http import CLIENT_URL, Nodes, stream_path, urls_of
from anabranch_node.cli.options import json_option, url_option


class Tally:
    __slots__ = ("latencies_us", "errors", "bytes")

    def __init__(self) -> None:
        self.latencies_us: list[int] = []
        self.errors: dict[str, int] = {}
        self.bytes = 0

    def error(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1


class Result(NamedTuple):
    workload: str
    connections: int
    seconds: float
    operations: int
    operations_per_s: float
    bytes_per_s: float
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int
    errors: dict[str, int]


@click.command()
@click.argument("workload", type=click.Choice(["append", "read"]), default="append")
@url_option
@click.option("--connections", type=click.IntRange(1, 5000), default=64, show_default=True)
@click.option("--streams", type=click.IntRange(1, 5000), help="streams to spread over  [default: one per connection]")
@click.option("--size", "size_bytes", type=click.IntRange(1, 8 << 20), default=256, show_default=True, help="bytes per append, or per stream to read")
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True)
@click.option("--keep", is_flag=True, help="do not delete the streams afterwards")
@json_option
def bench(workload: str, url: str, connections: int, streams: int | None, size_bytes: int, seconds: float, keep: bool, as_json: bool) -> None:
    """Load the cluster and print operations per second and latencies. It makes its own streams and deletes them.

    \b
    Examples:
      anabranch bench
      anabranch bench append --connections 256 --seconds 10 --url http://127.0.0.1:4437,http://127.0.0.1:4447
      anabranch bench read --size 1024 --json
    """
    urls = urls_of(url, CLIENT_URL)
    nodes = Nodes(urls)
    run = secrets.token_hex(4)
    paths = [stream_path(f"bench-{run}-{index}") for index in range(min(streams or connections, connections))]
    body = b"x" * size_bytes
    headers = {"Content-Type": "application/octet-stream"}
    try:
        for path in paths:
            made = nodes.request("PUT", path, body if workload == "read" else b"", headers)
            if made.status != 201:
                raise Failed(f"{path}: {made.text()}")
            nodes.next()
        tally, took_s = asyncio.run(_load(urls, workload, paths, body, connections, seconds))
    finally:
        if not keep:
            _delete(nodes, paths)
    result = summarize(workload, connections, took_s, tally)
    if as_json:
        click.echo(msgspec.json.encode(result._asdict()))
    else:
        _show(result, size_bytes)
    if not result.operations:
        raise Failed("no operation succeeded")


def summarize(workload: str, connections: int, took_s: float, tally: Tally) -> Result:
    sorted_us = sorted(tally.latencies_us)
    count = len(sorted_us)

    def at(q: float) -> int:
        return sorted_us[min(count - 1, int(q * count))] if count else 0

    rate = count / took_s
    return Result(
        *(workload, connections, round(took_s, 3), count, round(rate, 1), round(tally.bytes / took_s, 1)),
        *(at(0.5), at(0.9), at(0.99), at(1.0), tally.errors),
    )


def _delete(nodes: Nodes, paths: list[str]) -> None:
    for path in paths:
        try:
            nodes.request("DELETE", path, retry_for_s=1.0)
        except (Failed, Unavailable):
            click.echo(f"{path} and later ones are left behind", err=True)
            return


def _show(result: Result, size_bytes: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("workload", "connections", "ops/s", "MiB/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "errors"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    latencies = (f"{us / 1000:.2f}" for us in (result.p50_us, result.p90_us, result.p99_us, result.max_us))
    table.add_row(
        f"{result.workload} {size_bytes} B",
        str(result.connections),
        f"{result.operations_per_s:,.0f}",
        f"{result.bytes_per_s / (1 << 20):.2f}",
        *latencies,
        ", ".join(f"{what}: {count}" for what, count in result.errors.items()) or "none",
    )
    Console().print(table)


async def _load(urls: list[str], workload: str, paths: list[str], body: bytes, connections: int, seconds: float) -> tuple[Tally, float]:
    tally = Tally()
    begin = time.perf_counter()
    deadline = begin + seconds
    await asyncio.gather(
        *(_connection(urls[index % len(urls)], workload, paths[index % len(paths)], body, deadline, tally) for index in range(connections))
    )
    return tally, time.perf_counter() - begin


async def _connection(url: str, workload: str, path: str, body: bytes, deadline: float, tally: Tally) -> None:
    split = urlsplit(url)
    host, port = split.hostname or "", split.port or 80
    if workload == "append":
        head = f"POST {split.path}{path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/octet-stream\r\n"
        request, good = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, {200, 204}
    else:
        request, good = f"GET {split.path}{path}?offset=-1 HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode(), {200}
    while time.perf_counter() < deadline:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=16 << 20)
        except OSError:
            tally.error("no connection")
            await asyncio.sleep(0.1)
            continue
        try:
            while (begin := time.perf_counter()) < deadline:
                writer.write(request)
                async with asyncio.timeout(30):
                    status, got = await _response(reader)
                if status in good:
                    tally.latencies_us.append(int((time.perf_counter() - begin) * 1_000_000))
                    tally.bytes += got if workload == "read" else len(body)
                else:
                    tally.error(str(status))
                    await asyncio.sleep(0.05)
        except (OSError, EOFError, ValueError, TimeoutError) as lost:
            tally.error("no answer in time" if isinstance(lost, TimeoutError) else "connection lost")
        finally:
            writer.close()


async def _response(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Status and body length of one answer, its body read. Our answers to these two requests always have a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    length = 0
    for line in head.split(b"\r\n")[1:]:
        if line[:15].lower() == b"content-length:":
            length = int(line[15:])
    if length:
        await reader.readexactly(length)
    return status, length
