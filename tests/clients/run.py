"""`make clients`: clients that nobody here wrote, against three real nodes, while the leader of their streams is killed with -9.

Before us: tests/process (the nodes, and a connection spreader before them), the client programs beside us. After us: a line per client and scenario
for whoever reads it, and the exit code. In each scenario all clients run at once, each with a stream of its own, and one node leads all the streams:
one kill serves them all. Not here: what counts as wrong (verdict.py), many faults over a long time (tests/process/chaos.py)."""

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch_proto.ids import group_of
from tests.clients import client_venv, verdict
from tests.clients.program import Program
from tests.conformance import node_cache
from tests.process.cluster import Cluster, ClusterFailed, Node
from tests.process.spreader import Spreader

HERE = Path(__file__).resolve().parent
POLL_S = 0.05
STEP_TIMEOUT_S = 20.0
"""For each step. A failover takes about 2 s; two busy cores may take several times that, and a lost wake-up takes forever."""
LIVE_MODES = ("sse", "long-poll")
MESSAGES_PER_PHASE = 20
"""What each tail must see before the kill, again while the leader is dead, and again after it is back."""
WRONG_SHOWN_MAX = 5


@dataclass(frozen=True)
class Client:
    name: str
    version: str
    command: list[str]

    def program(self, role: str, *arguments: str) -> Program:
        return Program([*self.command, role, *arguments])


@dataclass(frozen=True)
class Scenario:
    name: str
    writes: str
    """write: appends without a producer; produce: exactly once."""
    kill: bool = True
    """Two tails follow each stream, by SSE and by long-poll, while its leader is killed. Else there is neither tail nor kill."""
    through_killed: bool = False
    """Writer and tails stand behind a spreader, with their connections on the node that dies. Else they are on two other nodes."""


SCENARIOS = [
    Scenario("create, append, catch up", "write", kill=False),
    Scenario("tails on another node", "write"),
    Scenario("through the killed node", "write", through_killed=True),
    Scenario("through the killed node, exactly once", "produce", through_killed=True),
]


@dataclass(eq=False)
class Leg:
    """One client in one scenario."""

    client: Client
    stream: str
    group: int
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    content: list[int] = field(default_factory=list)
    goal: int = 0
    """How many messages each tail must have seen before the next step."""
    writer: Program = field(init=False)
    tails: dict[str, Program] = field(default_factory=dict)
    """By mode."""
    programs: list[Program] = field(default_factory=list)
    """Those of them that were started."""
    tail_spreader: Spreader | None = None

    def url(self, base_url: str) -> str:
        return f"{base_url}/v1/stream/{self.stream}"

    def problems(self) -> list[str]:
        return [problem for program in self.programs for problem in program.problems()]

    def reasons(self) -> Counter[str]:
        return Counter(f"{said['told']}: {said['why']}" for program in self.programs for said in program.all("refused", "unknown", "again"))

    def settled(self) -> int:
        return len(self.writer.all("acknowledged", "handed"))

    def seen(self) -> int:
        """By the slowest tail; without one, by the writer."""
        return min((len(tail.messages()) for tail in self.tails.values()), default=self.settled())


# --- the cluster as seen by a test --------------------------------------------------------------------------------------------------------


def until(what: str, condition: Callable[[], bool], timeout_s: float = STEP_TIMEOUT_S) -> float:
    """Seconds until it was so."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise ClusterFailed(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - started


def leaders(cluster: Cluster) -> dict[int, Node]:
    """group -> the living node that says it leads; with two claims, that of the higher term."""
    found: dict[int, tuple[int, Node]] = {}
    for node in cluster.living():
        for each in node.status(1.0).get("groups", []):
            group, term = int(each["group"]), int(each["term"])
            if each["role"] == "leader" and (group not in found or term > found[group][0]):
                found[group] = (term, node)
    return {group: node for group, (_, node) in found.items()}


def ask_to_lead(cluster: Cluster, victim: Node, groups: list[int]) -> None:
    """All streams of a scenario are to lose their leader with one node: the leaders of their groups hand over to it. Returns when it leads."""
    victim_id = int(victim.status()["node"]["node_id"])

    def leads() -> bool:
        now = leaders(cluster)
        for group in groups:
            if group in now and now[group] is not victim:
                transfer(now[group], group, victim_id)
        return all(now.get(group) is victim for group in groups)

    until(f"{victim.name} leads groups {groups}", leads)


def transfer(leader: Node, group: int, to_node: int) -> None:
    body = json.dumps({"to_node": to_node}).encode()
    url = f"http://{leader.admin}/admin/v1/groups/{group}/transfer"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    with contextlib.suppress(OSError):  # it may lead no longer; whoever asked looks again
        urllib.request.urlopen(request, timeout=2).close()


# --- one scenario -------------------------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, cluster: Cluster, scenario: Scenario, clients: list[Client], serial: int) -> None:
        self.cluster = cluster
        self.scenario = scenario
        group_count = int(cluster.nodes[0].status()["group_count"])
        names = {client.name: f"clients-{serial}-{client.name.rpartition('/')[2]}" for client in clients}
        self.legs = [Leg(client, names[client.name], group_of("_default", names[client.name], group_count)) for client in clients]
        self.stack = ExitStack()
        self.steps: list[tuple[str, float]] = [("", time.monotonic())]

    def run(self) -> None:
        """Fills each leg's `wrong`."""
        with self.stack:
            try:
                self.create()
                self.step("create")
                victim = leaders(self.cluster).get(self.legs[0].group, self.cluster.nodes[0])
                writer_node, tail_node = (node for node in self.cluster.nodes if node is not victim)
                for leg in self.legs:
                    self.start_tails(leg, victim, tail_node)
                    self.start_writer(leg, victim, writer_node)
                if self.scenario.kill:
                    ask_to_lead(self.cluster, victim, [leg.group for leg in self.legs])
                self.each("live tails", lambda leg: all(tail.all("live") for tail in leg.tails.values()))
                self.step("start")
                self.reach("before the kill", MESSAGES_PER_PHASE)
                self.step("write")
                if self.scenario.kill:
                    self.kill_and_restart(victim)
                self.finish()
                self.step("finish")
            except ClusterFailed as failure:
                for leg in self.legs:
                    leg.wrong.append(str(failure))

    def step(self, name: str) -> None:
        self.steps.append((name, time.monotonic()))

    def shown_steps(self) -> str:
        return ", ".join(f"{name} {after - before:.1f} s" for (_, before), (name, after) in itertools.pairwise(self.steps))

    def create(self) -> None:
        """Twice, by way of two nodes: the second time it is there already, and that is no error."""
        nodes = self.cluster.nodes[:2]
        for leg, program in self.short("create", nodes):
            if len(program.all("created")) != len(nodes) and not leg.wrong:
                leg.wrong.append("the stream was not created")

    def short(self, role: str, nodes: list[Node]) -> list[tuple[Leg, Program]]:
        """A program of every client at once, which does its work on one node after the other and ends."""
        with ExitStack() as programs:
            started = []
            for leg in self.legs:
                if not leg.wrong:
                    started.append((leg, programs.enter_context(leg.client.program(role, *(leg.url(node.base_url) for node in nodes)))))
            for leg, program in started:
                until(f"the end of {role} by {leg.client.name}", program.is_over)
                leg.wrong += [f"{role}: {problem}" for problem in program.problems()]
        return started

    def start_tails(self, leg: Leg, victim: Node, tail_node: Node) -> None:
        if not self.scenario.kill:
            return
        url = tail_node.base_url
        if self.scenario.through_killed:
            # Only the victim until it is dead: whatever the client's pool of connections does, its live reads are there when it dies.
            leg.tail_spreader = self.stack.enter_context(Spreader([victim.client]))
            url = leg.tail_spreader.base_url
        for mode in LIVE_MODES:
            leg.tails[mode] = self.stack.enter_context(leg.client.program("tail", leg.url(url), mode))
            leg.programs.append(leg.tails[mode])

    def start_writer(self, leg: Leg, victim: Node, writer_node: Node) -> None:
        url = writer_node.base_url
        if self.scenario.through_killed:
            others = [node.client for node in self.cluster.nodes if node is not victim]
            url = self.stack.enter_context(Spreader([victim.client, *others])).base_url
        leg.writer = self.stack.enter_context(leg.client.program(self.scenario.writes, leg.url(url)))
        leg.programs.append(leg.writer)

    def each(self, what: str, condition: Callable[[Leg], bool]) -> None:
        """Wait for every leg that is still well; one that is late or says `failed` is out, the others go on."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        waiting = [leg for leg in self.legs if not leg.wrong]
        while waiting:
            for leg in list(waiting):
                if problems := leg.problems():
                    leg.wrong += problems
                elif time.monotonic() > deadline:
                    leg.wrong.append(f"{what}: not within {STEP_TIMEOUT_S:.0f} s")
                if leg.wrong or condition(leg):
                    waiting.remove(leg)
            time.sleep(POLL_S)

    def reach(self, what: str, more: int) -> None:
        """Every tail is given `more` messages that it has not seen yet."""
        for leg in self.legs:
            leg.goal = leg.seen() + more
        self.each(f"{more} messages {what}", lambda leg: leg.seen() >= leg.goal)

    def kill_and_restart(self, victim: Node) -> None:
        survivors = [node for node in self.cluster.nodes if node is not victim]
        connections = {leg.stream: leg.tail_spreader.connections for leg in self.legs if leg.tail_spreader is not None}
        groups = [leg.group for leg in self.legs]
        ask_to_lead(self.cluster, victim, groups)  # on busy cores leadership may have moved since, and then the kill would show nothing
        self.cluster.kill(victim)
        struck = time.monotonic()
        for leg in self.legs:
            if leg.tail_spreader is not None:
                leg.tail_spreader.addresses = [victim.client, *(node.client for node in survivors)]
        until("new leaders", lambda: set(groups) <= leaders(self.cluster).keys())
        note = f"new leader {time.monotonic() - struck:.1f} s after the kill"
        self.step("kill")
        self.cluster.restart(victim)  # it takes a second or more to come back: what is written first, is written without it
        self.reach("without the killed node", MESSAGES_PER_PHASE)
        self.step("write")
        self.cluster.wait_ready(victim)
        self.step("restart")
        self.reach("after the restart", MESSAGES_PER_PHASE)
        self.step("write")
        for leg in self.legs:
            leg.notes.append(note)
            if leg.tail_spreader is not None and leg.tail_spreader.connections < connections[leg.stream] + len(leg.tails):
                leg.wrong.append("a tail never connected again, so it was not on the killed node: the test shows nothing")

    def finish(self) -> None:
        for leg in self.legs:
            leg.writer.ask_to_end()
        self.each("the writer's end", lambda leg: leg.writer.is_over() and bool(leg.writer.all("done")))
        self.catch_up(self.cluster.nodes)
        self.each("the last message", lambda leg: leg.seen() >= len(leg.content))
        for leg in self.legs:
            if not leg.wrong:
                judge(leg, self.scenario)

    def catch_up(self, nodes: list[Node]) -> None:
        """The whole stream from each node, the restarted one too: they must agree."""
        for leg, program in self.short("read", nodes):
            contents = [[int(n) for n in said["ns"]] for said in program.all("content")]
            if len(contents) != len(nodes):
                leg.wrong.append(f"{len(contents)} of {len(nodes)} reads were answered")
                continue
            leg.content = contents[0]
            for node, content in zip(nodes, contents, strict=True):
                leg.wrong += verdict.of_reader(f"a read from {node.name}", content, leg.content)


def judge(leg: Leg, scenario: Scenario) -> None:
    done: dict[str, Any] = leg.writer.all("done")[-1]
    if scenario.writes == "produce":
        leg.wrong += verdict.of_producer(leg.content, int(done["count"]))
    else:
        told = [(int(said["n"]), str(said["told"])) for said in leg.writer.all("acknowledged", "refused", "unknown")]
        leg.wrong += verdict.of_appends(leg.content, told)
        unknown = {n for n, outcome in told if outcome == "unknown"}
        tries = Counter(outcome for _, outcome in told)
        leg.notes.append(f"{tries['refused']} refused, {len(unknown)} unknown ({len(unknown & set(leg.content))} there)")
    for mode, tail in leg.tails.items():
        leg.wrong += verdict.of_reader(f"the {mode} tail", tail.messages(), leg.content)
        leg.notes.append(f"{mode} tail silent for {tail.longest_silence_s():.1f} s at most, resumed {len(tail.all('again'))} times")


# --- the whole ----------------------------------------------------------------------------------------------------------------------------


def find_clients(wanted: list[str]) -> Iterator[Client]:
    """With what they need installed."""
    if "npm" in wanted:
        modules = node_cache.ensure() / "node_modules"
        version = json.loads((modules / "@durable-streams/client/package.json").read_text())["version"]
        yield Client("npm", f"@durable-streams/client {version}", ["node", str(node_cache.stage(HERE / "npm_client.mjs"))])
    if "pypi" in wanted:
        python = str(client_venv.python())
        version = subprocess.check_output([python, "-I", "-c", "import durable_streams as it; print(it.__version__)"], text=True).strip()
        yield Client("pypi", f"durable-streams {version}", [python, "-I", str(HERE / "pypi_client.py")])
    if "curl" in wanted:
        version = subprocess.check_output(["curl", "--version"], text=True).split()[1]
        yield Client("curl", f"curl {version}", [sys.executable, str(HERE / "curl_client.py")])


@contextmanager
def cluster_of_three() -> Iterator[Cluster]:
    started = time.monotonic()
    with Cluster(3) as cluster:
        print(f"three nodes ready in {time.monotonic() - started:.1f} s", flush=True)
        yield cluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.run", description="Real clients against a real cluster whose leader is killed.")
    parser.add_argument("--client", action="append", choices=("npm", "pypi", "curl"), help="default: all")
    parser.add_argument("--scenario", default="", help="only those whose name has this in it")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("-v", "--verbose", action="store_true", help="why appends were refused or unknown, and why tails resumed")
    options = parser.parse_args()
    started = time.monotonic()
    clients = list(find_clients(options.client or ["npm", "pypi", "curl"]))
    print("clients: " + ", ".join(f"{client.name} ({client.version})" for client in clients), flush=True)
    passed = failed = 0
    with cluster_of_three() as cluster:
        for serial, scenario in enumerate([each for each in SCENARIOS if options.scenario in each.name] * options.repeat):
            run = Run(cluster, scenario, clients, serial)
            run.run()
            elapsed_s = time.monotonic() - run.steps[0][1]
            if options.verbose:
                print(f"{scenario.name}: {run.shown_steps()}")
            for leg in run.legs:
                result = "FAILED" if leg.wrong else f"ok, {len(leg.content)} messages"
                print(f"{leg.client.name}: {scenario.name}: {'; '.join([result, *leg.notes])}; {elapsed_s:.1f} s", flush=True)
                for each in leg.wrong[:WRONG_SHOWN_MAX]:
                    print(f"    {each}", flush=True)
                for each, count in leg.reasons().items() if options.verbose else ():
                    print(f"    {count} {each}", flush=True)
                failed += bool(leg.wrong)
                passed += not leg.wrong
            if any(leg.wrong for leg in run.legs):
                print(cluster.log_tail(8))
                for node in cluster.nodes:  # the next scenario starts from three nodes, whatever became of this one
                    if not node.is_alive():
                        cluster.restart(node)
                    cluster.wait_ready(node)
    print(f"all scenarios: {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
