"""`bucket`: make, show, list and delete buckets. Before us: a shell. After us: any node's client plane, on its `/ds` surface."""

import time
from typing import Any
from urllib.parse import quote

import click
import msgspec

from anabranch_node.cli.failure import Failed
from anabranch_node.cli.http import CLIENT_URL, Answer, Nodes, urls_of
from anabranch_node.cli.options import json_option, url_option

PAGE = 1000


@click.group()
def bucket() -> None:
    """Make, show, list and delete buckets.

    \b
    Examples:
      anabranch bucket create agents
      anabranch bucket list agents --prefix run-
      anabranch bucket delete agents
    """


@bucket.command()
@click.argument("name")
@click.option("--exist-ok", is_flag=True, help="succeed if it is there already")
@url_option
def create(name: str, exist_ok: bool, url: str) -> None:
    """Make bucket NAME: 4 to 64 of a-z, 0-9, _ and -."""
    answer = _ask(url, "PUT", name)
    if answer.status == 409 and exist_ok:
        click.echo(f"{name} exists")
        return
    _expect(answer, 201)
    click.echo(f"made {name}")


@bucket.command()
@click.argument("name")
@url_option
@json_option
def show(name: str, url: str, as_json: bool) -> None:
    """How many streams are in bucket NAME, and since when it exists."""
    answer = _expect(_ask(url, "GET", name), 200)
    if as_json:
        click.echo(answer.body)
        return
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    click.echo(f"{name}   {found['streams']} streams   made {_moment(found['created_at_ms'])}")


@bucket.command("list")
@click.argument("name")
@click.option("--prefix", default="", help="only streams whose names begin so")
@url_option
@json_option
def list_streams(name: str, prefix: str, url: str, as_json: bool) -> None:
    """The streams of bucket NAME, in order; with --json one object per line."""
    after = ""
    while True:
        page = _expect(_ask(url, "GET", name, f"/streams?limit={PAGE}&prefix={quote(prefix, safe='')}&after={quote(after, safe='')}"), 200)
        found: dict[str, Any] = msgspec.json.decode(page.body)
        for stream in found["streams"]:
            if as_json:
                click.echo(msgspec.json.encode(stream))
            else:
                written = _moment(stream["last_write_at_ms"])
                click.echo(f"{stream['tail_offset']:>14}  {stream['status']:<6}  {written}  {stream['content_type']:<24}  {stream['stream_id']}")
        if not found["has_more"]:
            return
        after = found["next_cursor"]


@bucket.command()
@click.argument("name")
@url_option
def delete(name: str, url: str) -> None:
    """Delete bucket NAME, which must be empty."""
    _expect(_ask(url, "DELETE", name), 204)
    click.echo(f"deleted {name}")


def _ask(url: str, method: str, name: str, rest: str = "") -> Answer:
    return Nodes(urls_of(url, CLIENT_URL)).request(method, f"/ds/{quote(name, safe='')}{rest}")


def _expect(answer: Answer, status: int) -> Answer:
    if answer.status != status:
        raise Failed(answer.text())
    return answer


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
