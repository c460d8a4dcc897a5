"""`init`, `status`, `wait-ready`: the cluster as its admin plane shows it.

After us: admin_http.py on any node. Not here: how tables look (tables.py)."""

import secrets
import time

import click
import msgspec

from anabranch_node.cli.failure import Failed, Unavailable
from anabranch_node.cli.http import ADMIN_URL, Nodes, urls_of
from anabranch_node.cli.options import admin_option, json_option
from anabranch_proto.admin import GROUP_COUNT_MAX, INIT_PATH, REPLICATION_FACTOR_MAX, STATUS_PATH, InitAnswer, InitRequest, NodeStatus, Probe

PROBE_TIMEOUT_S = 2.0
WATCH_INTERVAL_S = 1.0


def fresh_cluster_id() -> str:
    return secrets.token_hex(8)


def ask_init(url: str, request: InitRequest, timeout_s: float) -> InitAnswer:
    """Asks one node, again until it answers: the same id again changes nothing. Raises Failed on a definite no, Unavailable when time is up."""
    nodes = Nodes([url], timeout_s=min(max(timeout_s, 5.0), 35.0))
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            answer = nodes.request("POST", INIT_PATH, msgspec.json.encode(request), {"Content-Type": "application/json"}, retry_for_s=0)
            if answer.status in (200, 201):
                return msgspec.json.decode(answer.body, type=InitAnswer)
            if answer.status < 500:
                raise Failed(f"{url}: {answer.text()}")
            last = answer.text()
        except Unavailable as nobody:
            last = nobody.message
        except Failed as unknown:
            if "may or may not" not in unknown.message:
                raise
            last = unknown.message
        if time.monotonic() >= deadline:
            raise Unavailable(f"{url}: {last}")
        time.sleep(0.2)


@click.command()
@admin_option
@click.option("--cluster-id", help="the cluster's name for ever; repeat it to retry safely  [default: a fresh random one, printed first]")
@click.option("--replication-factor", type=click.IntRange(1, REPLICATION_FACTOR_MAX), default=3, show_default=True, help="replicas of each group")
@click.option(
    "--group-count", type=click.IntRange(1, GROUP_COUNT_MAX), default=64, show_default=True, help="groups that streams are spread over; fixed"
)
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="seconds to wait for the node")
@json_option
def init(admin: str, cluster_id: str | None, replication_factor: int, group_count: int, timeout_s: float, as_json: bool) -> None:
    """Make a new cluster out of waiting nodes, once: ask ONE node; the others join it through --peers.

    Keep the printed cluster id. If this command is interrupted, run it again with that --cluster-id: it then succeeds
    without doing anything twice. Another id on an initialized node is refused.

    \b
    Examples:
      anabranch init --admin http://127.0.0.1:4438
      anabranch init --cluster-id 7f3a... --replication-factor 1 --group-count 16
    """
    urls = urls_of(admin, ADMIN_URL)
    if len(urls) > 1:
        raise click.UsageError("init goes to exactly one node; give one --admin URL")
    if cluster_id is None:
        cluster_id = fresh_cluster_id()
        click.echo(f"cluster id: {cluster_id}", err=as_json)
    try:
        request = msgspec.convert({"cluster_id": cluster_id, "group_count": group_count, "replication_factor": replication_factor}, type=InitRequest)
    except msgspec.ValidationError as wrong:
        raise click.UsageError(str(wrong)) from None
    answer = ask_init(urls[0], request, timeout_s)
    if as_json:
        click.echo(msgspec.json.encode(answer))
        return
    click.echo(
        f"cluster {answer.cluster_id} {'is made' if answer.created else 'exists already'}:"
        f" {answer.group_count} groups, replication factor {answer.replication_factor}"
    )


def probe_ready(url: str) -> tuple[bool, str]:
    """What /readyz says; nobody there is a reason too."""
    try:
        answer = Nodes([url], PROBE_TIMEOUT_S).request("GET", "/readyz", retry_for_s=0, pass_on_busy=False)
        probe = msgspec.json.decode(answer.body, type=Probe)
    except Unavailable as nobody:
        return False, nobody.message.partition(": ")[2] or nobody.message
    except msgspec.MsgspecError:
        return False, f"{answer.status} without a reason"
    return probe.ok, probe.reason


@click.command("wait-ready")
@admin_option
@click.option("--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="seconds; then exit code 3")
@json_option
def wait_ready(admin: str, timeout_s: float, as_json: bool) -> None:
    """Wait until every given node is ready: joined, replayed and caught up.

    \b
    Examples:
      anabranch wait-ready --timeout 30
      anabranch wait-ready --admin http://127.0.0.1:4438,http://127.0.0.1:4448
    """
    urls = urls_of(admin, ADMIN_URL)
    begin = time.monotonic()
    waiting = dict.fromkeys(urls, "")
    while True:
        for url in list(waiting):
            ok, reason = probe_ready(url)
            if ok:
                del waiting[url]
            else:
                waiting[url] = reason
        seconds = time.monotonic() - begin
        if not waiting or seconds >= timeout_s:
            break
        time.sleep(0.1)
    if as_json:
        click.echo(msgspec.json.encode({"ready": not waiting, "waiting": waiting, "seconds": round(seconds, 3)}))
    if waiting:
        raise Unavailable("not ready: " + "; ".join(f"{url}: {reason}" for url, reason in waiting.items()))
    if not as_json:
        click.echo(f"ready after {seconds:.1f} s")


def ask_status(nodes: Nodes, retry_for_s: float = 0.0) -> NodeStatus:
    answer = nodes.request("GET", STATUS_PATH, retry_for_s=retry_for_s)
    if answer.status != 200:
        raise Failed(f"{answer.url}: {answer.text()}")
    try:
        return msgspec.json.decode(answer.body, type=NodeStatus)
    except msgspec.MsgspecError as wrong:
        raise Failed(f"{answer.url}: not the status of a node: {wrong}") from None


def ask_all(nodes: Nodes) -> list[NodeStatus]:
    """The first node that answers, then every other one that it knows and that answers too."""
    first = ask_status(nodes)
    found = [first]
    for other in first.nodes:
        if other.node_id != first.node.node_id and other.admin_address and other.state != "removed":
            try:
                found.append(ask_status(Nodes([f"http://{other.admin_address}"], PROBE_TIMEOUT_S)))
            except (Unavailable, Failed):
                continue  # it shows as not answering
    return found


@click.command()
@admin_option
@click.option("--watch", is_flag=True, help="show it again every second, until Ctrl-C")
@click.option("--all", "all_nodes", is_flag=True, help="with --json: a list with the answer of every node")
@json_option
def status(admin: str, watch: bool, all_nodes: bool, as_json: bool) -> None:
    """Show the cluster: nodes, groups, leaders, lag, disk.

    \b
    Examples:
      anabranch status --watch
      anabranch status --admin http://127.0.0.1:4438,http://127.0.0.1:4448
      anabranch status --json | jq '.groups[] | select(.role == "leader") | .group'
    """
    nodes = Nodes(urls_of(admin, ADMIN_URL), PROBE_TIMEOUT_S)
    if as_json:
        while True:
            click.echo(msgspec.json.encode(ask_all(nodes) if all_nodes else ask_status(nodes)))
            if not watch:
                return
            time.sleep(WATCH_INTERVAL_S)
    from rich.console import Console

    from anabranch_node.cli.tables import cluster_view

    console = Console()
    if not watch:
        console.print(cluster_view(ask_all(nodes)))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            try:
                live.update(cluster_view(ask_all(nodes)), refresh=True)
            except (Unavailable, Failed) as nobody:
                live.update(Text(f"{nobody.message}; asking again"), refresh=True)
            time.sleep(WATCH_INTERVAL_S)
