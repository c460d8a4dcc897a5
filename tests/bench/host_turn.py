"""Microseconds per stage of `host.turn()`: three hosts in one thread, real frames between them, a mock disk that answers each sync in the next turn.

Open load: host 1 leads every group and is given the same number of appends in each of its turns, so encoding, syncs, acknowledgements and applies of
different turns overlap as in production. Only turn() is timed, so requests are made for free. The totals come from rounds without any instrument;
the shares from one round in which the functions of each stage are wrapped, with the cost of the wrappers taken off again."""

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from anabranch_node.core import effects as fx
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import Raft, Role
from anabranch_node.core.stream.commands import Append, Create
from anabranch_node.core.stream.results import Appended, Created
from anabranch_node.engine import envelope
from anabranch_node.engine.group import Group, GroupOptions
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.engine.outbox import Outbox
from anabranch_node.engine.snapshots import SnapshotOptions
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.wal import Wal
from anabranch_proto.ids import NodeIdentity
from tests.checkers.opened import OpenedMachine

HOSTS = 3
GROUPS = 64
BODY = bytes(range(256))
LOADS = (("64 appends on 64 groups", 64, 64), ("64 appends on 1 group", 64, 1), ("1 append on 1 group", 1, 1))
TURNS = {64: 150, 1: 1_500}
"""Of host 1, by appends per turn: about half a second of CPU each."""
STEPS_MAX = 2_000
# No snapshots: they are work of another kind, and the mock disk has no files.
_OPTIONS = HostOptions(group=GroupOptions(snapshots=SnapshotOptions(entries_max=1 << 40, bytes_max=1 << 40)))
_SILENT = (fx.SegmentCreate, fx.SyncMark)
_CALIBRATION_CALLS = 100_000


class Cluster:
    """Hosts 1 to 3, each with a replica of every group. Replica ids are group * HOSTS + host."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.now_ms = 1_000_000
        self.frames = 0
        self.answers: list[fx.Answer] = []
        self.cpu_s = [0.0] * HOSTS
        identities = [NodeIdentity("bench", number, number) for number in range(1, HOSTS + 1)]
        self.hosts = [Host(me, _OPTIONS, OpenedMachine, Random(me.node_id), 1, Wal(me, WalOptions())) for me in identities]
        self.inboxes: list[list[fx.Event]] = [[] for _ in identities]
        for number, host in enumerate(self.hosts):
            self._perform(number, host.start([], {}, {}))
            for group in range(groups):
                replicas = tuple(group * HOSTS + me.node_id for me in identities)
                self.inboxes[number].append(fx.ReplicaCreate(group, replicas[number], Configuration(voters=replicas)))
                self.inboxes[number] += [fx.Route(replica, me.node_id, me.incarnation) for replica, me in zip(replicas, identities, strict=True)]

    def elect(self, leader_of: Callable[[int], int]) -> None:
        """Group g is led by host leader_of(g), 0 being the first: that replica's patience ends at the next tick. Then everything settles."""
        self.settle()
        for group in range(self.groups):
            self.hosts[leader_of(group)].groups[group].raft.timeout_ticks = 1
        self.tick()
        self.settle()
        for group in range(self.groups):
            roles = [host.groups[group].raft.role for host in self.hosts]
            assert roles.count(Role.LEADER) == 1 and roles[leader_of(group)] is Role.LEADER, (group, roles)

    def tick(self) -> None:
        for inbox in self.inboxes:
            inbox.append(fx.Tick())

    def settle(self) -> None:
        for _ in range(STEPS_MAX):
            if not any(self.inboxes):
                return
            self.step()
        raise AssertionError(f"still busy after {STEPS_MAX} steps")

    def step(self) -> None:
        """One turn of each host that has something to do, on what came before this step: frames and syncs arrive in the next one."""
        inboxes, self.inboxes = self.inboxes, [[] for _ in self.inboxes]
        self.now_ms += 1
        for number, host in enumerate(self.hosts):
            if inboxes[number]:
                started = time.process_time()
                effects = host.turn(self.now_ms, inboxes[number])
                self.cpu_s[number] += time.process_time() - started
                self._perform(number, effects)

    def _perform(self, number: int, effects: list[fx.Effect]) -> None:
        ticket = 0
        for effect in effects:
            if isinstance(effect, fx.SendFrame):
                self.frames += 1
                self.inboxes[effect.node - 1].append(fx.FrameReceived(number + 1, effect.data))
            elif isinstance(effect, fx.WalWrite):
                ticket = effect.ticket
            elif isinstance(effect, fx.Answer):
                self.answers.append(effect)
            else:
                assert isinstance(effect, _SILENT), effect
        if ticket:
            self.inboxes[number].append(fx.Synced(ticket))


def run(scale: float) -> list[dict[str, float | str]]:
    """One round: a row per load."""
    return [_measure(name, appends, groups, scale) for name, appends, groups in LOADS]


def shares(scale: float) -> list[dict[str, Any]]:
    """One instrumented round: a row per load, with each stage's share of turn() on all hosts together."""
    rows = []
    for name, appends, groups in LOADS:
        stages = Stages()
        with stages.installed():
            _measure(name, appends, groups, scale, stages)
        rows.append({"load": name, "shares": stages.shares()})
    return rows


def _measure(name: str, appends: int, groups: int, scale: float, stages: "Stages | None" = None) -> dict[str, float | str]:
    cluster = Cluster(GROUPS)
    cluster.elect(lambda group: 0)
    cluster.inboxes[0] += [fx.Propose(group, group, Create(f"b/{group}", "text/plain", 0)) for group in range(GROUPS)]
    cluster.settle()
    assert [type(answer.result) for answer in cluster.answers] == [Created] * GROUPS, cluster.answers
    load = _Load(cluster, appends, groups)
    load.turns(20)
    cluster.cpu_s, cluster.frames = [0.0] * HOSTS, 0
    if stages is not None:
        stages.clear()
    gc.collect()
    gc.freeze()
    turns = max(10, int(TURNS[appends] * scale))
    load.turns(turns)
    frames = cluster.frames
    load.finish()
    gc.unfreeze()
    total = turns * appends
    return {
        "load": name,
        "appends": total,
        "cpu_us_per_append": sum(cluster.cpu_s) / total * 1e6,
        "cpu_us_per_append_leader": cluster.cpu_s[0] / total * 1e6,
        "cpu_us_per_append_follower": sum(cluster.cpu_s[1:]) / (HOSTS - 1) / total * 1e6,
        "frames_per_turn": frames / turns,
    }


class _Load:
    """`appends` per turn, in turn to the first `groups` groups; token n goes to group n % groups."""

    def __init__(self, cluster: Cluster, appends: int, groups: int) -> None:
        self.cluster = cluster
        self.appends = appends
        self.groups = groups
        self.token = 0
        cluster.answers.clear()

    def turns(self, count: int) -> None:
        for _ in range(count):
            inbox = self.cluster.inboxes[0]
            for token in range(self.token, self.token + self.appends):
                group = token % self.groups
                inbox.append(fx.Propose(token, group, Append(f"b/{group}", BODY, 0)))
            self.token += self.appends
            self.cluster.step()

    def finish(self) -> None:
        """Each append is acknowledged once, at the offset that its order gives it, and all replicas hold the same."""
        cluster = self.cluster
        cluster.settle()
        assert sorted(answer.token for answer in cluster.answers) == list(range(self.token)), (len(cluster.answers), self.token)
        for answer in cluster.answers:
            start = answer.token // self.groups * len(BODY)
            assert answer.result == Appended(start, start + len(BODY)), answer
        for group in range(GROUPS):
            digests = {host.groups[group].machine.digest() for host in cluster.hosts}
            assert len(digests) == 1, f"the replicas of group {group} differ"


class Stages:
    """Where turn() spends its time: functions are wrapped, and each is charged for its own time without that of wrapped functions below it."""

    def __init__(self) -> None:
        self._own_s: dict[str, float] = defaultdict(float)
        self._calls: dict[str, int] = defaultdict(int)
        self._calls_below: dict[str, int] = defaultdict(int)
        self._current = ""
        self._below_s = 0.0
        self._inside_s, self._outside_s = self._calibrate()

    def clear(self) -> None:
        self._own_s.clear()
        self._calls.clear()
        self._calls_below.clear()

    @contextmanager
    def installed(self) -> Iterator[None]:
        points: list[tuple[Any, str, str]] = [
            (Host, "turn", "host itself"),
            (envelope, "decode", "decode frames"),
            (Raft, "step", "step"),
            (Raft, "synced", "step"),
            (Group, "propose", "propose, encode"),
            (Group, "_propose_queued", "propose, encode"),
            (Raft, "flush", "replicate"),
            (Group, "_apply", "apply, answer"),
            (Wal, "stage", "wal stage, seal"),
            (Wal, "seal", "wal stage, seal"),
            (Wal, "on_synced", "wal stage, seal"),
            (Outbox, "add", "encode frames"),
            (Outbox, "frames", "encode frames"),
        ]
        plain = [(owner, name, getattr(owner, name)) for owner, name, _ in points]
        try:
            for (owner, name, function), (_, _, stage) in zip(plain, points, strict=True):
                setattr(owner, name, self._wrap(stage, function))
            yield
        finally:
            for owner, name, function in plain:
                setattr(owner, name, function)

    def shares(self) -> dict[str, float]:
        """Stage -> its share of the whole, the largest first."""
        own_s = {
            stage: max(0.0, own_s - self._calls[stage] * self._inside_s - self._calls_below[stage] * self._outside_s)
            for stage, own_s in self._own_s.items()
        }
        whole_s = sum(own_s.values())
        return {stage: own_s[stage] / whole_s for stage in sorted(own_s, key=lambda stage: -own_s[stage])}

    def _wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            above, above_s = self._current, self._below_s
            self._current, self._below_s = stage, 0.0
            started = time.perf_counter()
            try:
                return function(*args)
            finally:
                took_s = time.perf_counter() - started
                self._own_s[stage] += took_s - self._below_s
                self._calls[stage] += 1
                self._calls_below[above] += 1
                self._current, self._below_s = above, above_s + took_s

        return timed

    def _calibrate(self) -> tuple[float, float]:
        """Seconds that one wrapped call adds to its own stage, and to the stage that calls it. Best of three."""

        def nothing(_: int) -> None:
            pass

        wrapped = self._wrap("nothing", nothing)
        costs = []
        for _ in range(3):
            self.clear()
            started = time.process_time()
            for number in range(_CALIBRATION_CALLS):
                nothing(number)
            middle = time.process_time()
            for number in range(_CALIBRATION_CALLS):
                wrapped(number)
            plain_s, wrapped_s = middle - started, time.process_time() - middle
            costs.append((wrapped_s - plain_s, self._own_s["nothing"]))
        added_s, own_s = min(costs)
        inside_s = min(own_s, added_s) / _CALIBRATION_CALLS
        return inside_s, added_s / _CALIBRATION_CALLS - inside_s
