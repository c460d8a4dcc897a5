"""A cluster's status as rich tables. Before us: cluster.py asked the nodes.

Not here: asking, colours that carry meaning alone (each has a word too)."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anabranch_proto.admin import GroupStatus, NodeStatus


def bytes_shown(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration_shown(ms: int) -> str:
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} d"


def cluster_view(answers: list[NodeStatus]) -> RenderableType:
    first = answers[0]
    title = (
        f"cluster {first.cluster_id}   {first.group_count} groups x {first.replication_factor} replicas   as seen by {first.node.name}"
        if first.cluster_id
        else f"{first.node.name}: {first.node.state}; no cluster yet (anabranch init)"
    )
    return Group(Text(title, style="bold"), nodes_table(answers), groups_table(answers))


def nodes_table(answers: list[NodeStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("node", "id", "state", "answers", "ready", "clients at", "admin at"):
        table.add_column(name)
    for name in ("leads", "replicas", "hot", "disk free", "spare", "up"):
        table.add_column(name, justify="right")
    by_name = {(answer.node.node_id, answer.node.name): answer for answer in answers}
    known = [(node.node_id, node.name, node.state, node.reachable, node.client_address, node.admin_address) for node in answers[0].nodes]
    for answer in answers:
        if (answer.node.node_id, answer.node.name) not in {row[:2] for row in known}:
            me = answer.node
            known.append((me.node_id, me.name, me.state, True, me.client_address, me.admin_address))
    for node_id, name, state, reachable, client, admin in sorted(known):
        seen = by_name.get((node_id, name))
        answering = Text("yes" if seen else "no" if not reachable else "not admin", style="green" if seen else "red")
        if seen is None:
            table.add_row(name, str(node_id), state, answering, "", client, admin, "", "", "", "", "", "")
            continue
        ready = Text("yes", style="green") if seen.node.ready else Text(seen.node.ready_reason or "no", style="yellow")
        table.add_row(
            *(name, str(node_id), seen.node.state, answering, ready, client, admin),
            str(sum(group.role == "leader" for group in seen.groups)),
            str(len(seen.groups)),
            bytes_shown(sum(group.hot_bytes for group in seen.groups)),
            bytes_shown(seen.disk.free_bytes),
            str(seen.disk.spare_segments),
            duration_shown(seen.node.uptime_ms),
        )
    return table


def groups_table(answers: list[NodeStatus], rows_max: int = 64) -> RenderableType:
    """One row per group: who leads it, how far each replica is behind. Fenced and leaderless groups come first, since a screen has an end."""
    names = {node.node_id: node.name for node in answers[0].nodes}
    groups: dict[int, list[tuple[str, GroupStatus]]] = {}
    for answer in answers:
        for group in answer.groups:
            groups.setdefault(group.group, []).append((answer.node.name, group))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("group", "leader"):
        table.add_column(name)
    for name in ("term", "commit", "streams", "hot"):
        table.add_column(name, justify="right")
    for name in ("replicas behind", "trouble"):
        table.add_column(name)
    order = sorted(groups.items(), key=lambda item: (not _trouble(item[1]), item[0]))
    for number, replicas in order[:rows_max]:
        leader = next((name for name, group in replicas if group.role == "leader"), None)
        if leader is None:
            believed = max((group.term, group.leader_node) for _, group in replicas)[1]
            leader = names.get(believed, "") or "none"
        commit = max(group.commit for _, group in replicas)
        behind = ", ".join(f"{name} {commit - group.applied}" for name, group in replicas if group.applied < commit)
        table.add_row(
            "meta" if number == 0 else str(number),
            Text(leader, style="red" if leader == "none" else ""),
            *(str(max(group.term for _, group in replicas)), str(commit)),
            *(str(max(group.streams for _, group in replicas)), bytes_shown(max(group.hot_bytes for _, group in replicas))),
            *(behind or "-", Text(_trouble(replicas), style="red")),
        )
    if len(order) > rows_max:
        return Group(table, Text(f"and {len(order) - rows_max} more groups (--json shows all)", style="dim"))
    return table


def _trouble(replicas: list[tuple[str, GroupStatus]]) -> str:
    found = [f"{name} fenced: {group.fenced}" for name, group in replicas if group.fenced]
    if not any(group.role == "leader" or group.leader_node for _, group in replicas):
        found.append("no leader")
    return "; ".join(found)
