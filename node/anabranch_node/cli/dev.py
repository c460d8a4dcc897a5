"""`dev`: a whole cluster on this machine with one command, for trying out and for tests.

Before us: a person. After us: dev_cluster.py and its children.

Start, init once, wait until ready, say what to try, then watch: a node that dies is reported and left dead. Ctrl-C or SIGTERM stops all."""

import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import click

from anabranch_node.cli.cluster import PROBE_TIMEOUT_S, ask_init, ask_status, fresh_cluster_id, probe_ready
from anabranch_node.cli.dev_cluster import FORMAT, DevCluster, DevFile
from anabranch_node.cli.failure import Failed, Unavailable
from anabranch_node.cli.http import Nodes
from anabranch_proto.admin import GROUP_COUNT_MAX, InitRequest
from anabranch_proto.ids import group_of

DEMO = "demo"
PORT = 4437
STOP_TIMEOUT_S = 60.0


class _StopRequested(Exception):
    pass


@click.command()
@click.option("--nodes", "count", type=click.IntRange(1, 9), help="how many  [default: 3, or what the data directory has]")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), default=Path("anabranch-dev"), show_default=True, help="kept over restarts")
@click.option("--port", type=click.IntRange(1, 65000), help=f"node i serves clients here + 10 i, admin + 1, peers + 2  [default: {PORT}]")
@click.option("--group-count", type=click.IntRange(1, GROUP_COUNT_MAX), help="of a new cluster  [default: two for each node]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="a setting for every node, as in docs/config.md")
@click.option("--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="seconds until all nodes must be ready")
def dev(count: int | None, data: Path, port: int | None, group_count: int | None, settings: tuple[str, ...], timeout_s: float) -> None:
    """Run a local cluster: one process per node, all state below --data, until Ctrl-C.

    DATA/cluster.json names each node's pid, addresses, argv and env; DATA/nodeN/log is its log. A node that dies is
    reported and not restarted. The same --data again continues the same cluster.

    \b
    Examples:
      anabranch dev
      anabranch dev --nodes 1 --data /tmp/one --port 5437
      anabranch dev --set log_level=debug --set long_poll_timeout_ms=2000
    """
    cluster = _prepare(count, data.absolute(), port, group_count, settings)
    stops: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stops.append(number)
        if len(stops) == 1:
            raise _StopRequested
        cluster.kill()  # asked twice: no more patience

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            cluster.start()
            _make_ready(cluster, timeout_s)
            _banner(cluster)
            _watch(cluster)
        except _StopRequested:
            pass
        finally:
            stops.append(0)  # a signal from here on does not interrupt the stopping
            forced = _stop(cluster)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if forced:
        raise Failed("some nodes had to be killed: " + ", ".join(forced))


def _prepare(count: int | None, data: Path, port: int | None, group_count: int | None, settings: tuple[str, ...]) -> DevCluster:
    """Everything that can be refused is refused here, before a process starts."""
    from anabranch_node import config

    flags = ["--drain-ms", "500"]
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in config.FIELDS:
            raise click.UsageError(f"--set {setting}: expected KEY=VALUE with a key of docs/config.md")
        try:
            config.parse(key, value)
        except ValueError as wrong:
            raise click.UsageError(f"--set {key}: {wrong}") from None
        if config.TYPES[key] is not bool:
            flags += [config.flag_of(key), value]
        elif config.parse(key, value):
            flags.append(config.flag_of(key))
    stored = DevCluster.stored(data)
    if stored is None:
        count = count or 3
        file = DevFile(FORMAT, fresh_cluster_id(), min(3, count), group_count or 2 * count, port or PORT, initialized=False, nodes=[])
    else:
        file = stored
        count = count or len(file.nodes)
        if count < len(file.nodes):
            raise Failed(
                f"{data}: this cluster has {len(file.nodes)} nodes; it cannot be continued with {count}. Choose another --data for a new one"
            )
        if port is not None and port != file.port:
            raise Failed(f"{data}: this cluster lives at port {file.port}, and its nodes know each other by it. Choose another --data for a new one")
        if group_count is not None and group_count != file.group_count:
            raise Failed(f"{data}: this cluster has {file.group_count} groups for ever. Choose another --data for a new one")
    if file.port + 10 * (count - 1) + 2 > 65535:
        raise Failed(f"--port {file.port} leaves no room for {count} nodes")
    cluster = DevCluster(data, file)
    cluster.lock()
    cluster.plan(count, flags)
    cluster.check_ports()
    cluster.save()
    return cluster


def _make_ready(cluster: DevCluster, timeout_s: float) -> None:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    deadline = time.monotonic() + timeout_s
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(finished_text="*"), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bars = {node.admin: progress.add_task(f"{node.name}: starting", total=1) for node in cluster.file.nodes}
        waiting = {node.admin: node for node in cluster.file.nodes}
        said: dict[str, str] = {}
        while waiting:
            _refuse_dead(cluster)
            if not cluster.file.initialized:
                _try_init(cluster)
            for admin, node in list(waiting.items()):
                ok, reason = probe_ready(f"http://{admin}")
                news = f"{node.name}: {'ready' if ok else reason or 'not ready'}"
                progress.update(bars[admin], description=news, completed=int(ok))
                if not console.is_terminal and said.get(admin) != news:
                    said[admin] = news  # in a pipe nothing moves, so each change is a line
                    click.echo(news, err=True)
                if ok:
                    del waiting[admin]
            if waiting and time.monotonic() >= deadline:
                from anabranch_node.cli.dev_cluster import log_tail

                logs = "\n".join(f"--- {node.name}, {node.log}\n{log_tail(node.log, 5)}" for node in waiting.values())
                raise Unavailable(f"not ready after {timeout_s:.0f} s: {', '.join(node.name for node in waiting.values())}\n{logs}")
            if waiting:
                time.sleep(0.1)


def _refuse_dead(cluster: DevCluster) -> None:
    dead = cluster.newly_dead()
    if dead:
        raise Failed("\n".join(f"{node.name} {how} while the cluster was starting; its log ends:\n{tail}" for node, how, tail in dead))


def _try_init(cluster: DevCluster) -> None:
    file = cluster.file
    request = InitRequest(file.cluster_id, file.group_count, file.replication_factor)
    try:
        ask_init(f"http://{file.nodes[0].admin}", request, timeout_s=0)
    except Unavailable:
        return  # not up yet; the caller comes back
    file.initialized = True
    cluster.save()


def _leader_of_demo(cluster: DevCluster) -> int:
    """Index of the node that leads the demo stream's group; 0 if nobody says so."""
    group = group_of("_default", DEMO, cluster.file.group_count)
    for index, node in enumerate(cluster.file.nodes):
        try:
            status = ask_status(Nodes([f"http://{node.admin}"], PROBE_TIMEOUT_S))
        except (Unavailable, Failed):
            continue
        if any(replica.group == group and replica.role == "leader" for replica in status.groups):
            return index
    return 0


def _program() -> str:
    if shutil.which("anabranch"):
        return "anabranch"
    path = os.environ.get("PYTHONPATH")
    absolute = os.pathsep.join(os.path.abspath(part) for part in path.split(os.pathsep) if part) if path else ""
    return (f"PYTHONPATH={shlex.quote(absolute)} " if absolute else "") + f"{shlex.quote(sys.executable)} -m anabranch_node.main"


def _banner(cluster: DevCluster) -> None:
    nodes = cluster.file.nodes
    leader = nodes[_leader_of_demo(cluster)]
    first = nodes[0]
    other = next((node for node in reversed(nodes) if node is not leader), first)
    url = f"http://{first.client}/v1/stream/{DEMO}"
    admins = ",".join(f"http://{node.admin}" for node in nodes)
    lines = [
        ("create a stream", f"curl -i -X PUT -H 'Content-Type: text/plain' {url}"),
        ("append to it", f"curl -i -X POST -H 'Content-Type: text/plain' --data 'hello' {url}"),
        (f"follow it live through {other.name}", f"curl -N 'http://{other.client}/v1/stream/{DEMO}?offset=-1&live=sse'"),
        (f"kill {leader.name}, which leads its group", f"kill -9 {leader.pid}"),
        ("watch the cluster", f"{_program()} status --watch --admin {admins}"),
    ]
    click.echo()
    click.secho(f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} ready, data in {cluster.data}", bold=True)
    for node in nodes:
        click.echo(f"  {node.name}  pid {node.pid:<7}  clients http://{node.client}  admin http://{node.admin}  log {node.log}")
    for what, line in lines:
        click.secho(f"\n# {what}", dim=True)
        click.echo(line)
    click.echo()
    click.secho("Ctrl-C stops all nodes; the same command continues with the same data.", dim=True)
    sys.stdout.flush()


def _watch(cluster: DevCluster) -> None:
    """Until a signal comes or no node is left."""
    while True:
        for node, how, tail in cluster.newly_dead():
            click.secho(f"\n{node.name} (pid {node.pid}) {how}. The last lines of {node.log}:", fg="red", err=True)
            click.echo(tail, err=True)
            again = f"argv, env and cwd of {node.name} in {cluster.data / 'cluster.json'} start it again"
            click.secho(f"{cluster.alive()} of {len(cluster.children)} nodes are left; it is not restarted ({again})", fg="yellow", err=True)
        if not cluster.alive():
            raise Failed("no node is left")
        time.sleep(0.1)


def _stop(cluster: DevCluster) -> list[str]:
    """SIGTERM to all, wait, report. Returns the names of those that had to be killed."""
    running = [index for index, child in cluster.children.items() if child.poll() is None]
    if not running:
        return []
    click.echo(f"\nstopping {len(running)} node{'s' if len(running) > 1 else ''} (once more to kill them)", err=True)
    cluster.terminate()
    if not cluster.wait(STOP_TIMEOUT_S):
        cluster.kill()
        cluster.wait(10.0)
    forced = []
    for index in running:
        node, code = cluster.file.nodes[index], cluster.children[index].returncode
        if code == 0:
            click.echo(f"{node.name} stopped", err=True)
            continue
        from anabranch_node.cli.dev_cluster import ended, log_tail

        forced.append(node.name)
        click.secho(f"{node.name} {ended(code if code is not None else -9)}; its log ends:\n{log_tail(node.log)}", fg="red", err=True)
    return forced
