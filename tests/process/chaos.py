"""`make chaos MINUTES=n`: three real nodes under load while they are killed, paused, restarted and cut off; then the whole history is judged.

Before us: partition.py (the nodes and the ways between them), load.py (the clients). After us: tests/checkers/stream_checker.py, which reads
everything that any client was told. Never more than one node is hurt at a time: the cluster promises to survive one of three. Not here: full
disks and power loss (a killed process keeps what the kernel has); tests/sim does those."""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter, defaultdict

import aiohttp

from tests.checkers import stream_checker
from tests.process import load as clients
from tests.process.cluster import Node, led_groups
from tests.process.load import Load
from tests.process.partition import PartitionedCluster

STREAMS = 6
PRODUCERS_PER_STREAM, WRITERS_PER_STREAM, READERS_PER_STREAM, TAILS_PER_STREAM = 1, 1, 1, 1
PAUSE_S = (0.1, 30.0)
PARTITION_S = (0.5, 8.0)
DOWN_S = (0.2, 3.0)
CALM_S = (0.5, 2.0)
HEAL_TIMEOUT_S = 60.0
FAILOVER_WATCH_S = 12.0
FAILOVER_AIMS_S = ((50, 2.0), (99, 5.0), (100, 8.0))
"""Percent of the groups whose leader was killed, and how long they may be without a new one."""


class Chaos:
    def __init__(self, cluster: PartitionedCluster, load: Load, rng: random.Random, end: float) -> None:
        self.cluster = cluster
        self.load = load
        self.rng = rng
        self.end = end
        self.faults: Counter[str] = Counter()
        self.failovers_s: list[float] = []
        self.unseen = 0

    async def run(self) -> None:
        kinds = [self.kill_leader, self.kill_follower, self.pause, self.partition]
        first = list(kinds)  # each kind at least once, however short the run
        while time.monotonic() < self.end:
            fault = first.pop(0) if first else self.rng.choice(kinds)
            self.faults[fault.__name__] += 1
            await fault()
            await asyncio.sleep(self.rng.uniform(*CALM_S))

    async def kill_leader(self) -> None:
        await self._kill(busiest=True)

    async def kill_follower(self) -> None:
        await self._kill(busiest=False)

    async def _kill(self, busiest: bool) -> None:
        led = {node.name: await self._led_by(node) for node in self.cluster.nodes}
        ordered = sorted(self.cluster.nodes, key=lambda node: len(led[node.name]))
        victim = ordered[-1] if busiest else ordered[0]
        struck = time.monotonic()
        await asyncio.to_thread(self.cluster.kill, victim)
        watch = asyncio.create_task(self._watch_failover(victim, led[victim.name], struck))
        await asyncio.sleep(self.rng.uniform(*DOWN_S))
        if self.rng.random() < 0.5:
            await watch  # it stays down until the others have taken over
        self.cluster.restart(victim)
        await watch
        await asyncio.to_thread(self.cluster.wait_ready, victim, HEAL_TIMEOUT_S)

    async def _led_by(self, node: Node) -> set[int]:
        return led_groups(await asyncio.to_thread(node.status, 1.0))

    async def _watch_failover(self, victim: Node, groups: set[int], struck: float) -> None:
        """When does somebody else (or the victim's next life) lead each group again? Asked of the survivors every 50 ms."""
        waiting = set(groups)
        while waiting and time.monotonic() - struck < FAILOVER_WATCH_S:
            for node in self.cluster.nodes:
                if node is not victim or node.is_alive():
                    for group in waiting & await self._led_by(node):
                        waiting.discard(group)
                        self.failovers_s.append(time.monotonic() - struck)
            await asyncio.sleep(0.05)
        self.unseen += len(waiting)
        self.failovers_s += [FAILOVER_WATCH_S] * len(waiting)

    async def pause(self) -> None:
        """Mostly short: a long pause is a kill that comes back with old beliefs, a short one a hiccup that must not matter."""
        victim = self.rng.choice(self.cluster.nodes)
        low, high = PAUSE_S
        length_s = min(low * (high / low) ** self.rng.random(), max(low, self.end - time.monotonic()))
        self.cluster.pause(victim)
        try:
            await asyncio.sleep(length_s)
        finally:
            self.cluster.resume(victim)

    async def partition(self) -> None:
        one, other = self.rng.sample(self.cluster.nodes, 2)
        if self.rng.random() < 0.5:
            self.cluster.isolate(one)
        else:
            self.cluster.cut(one, other)
        try:
            await asyncio.sleep(self.rng.uniform(*PARTITION_S))
        finally:
            self.cluster.heal()


async def run(seconds: float, seed: int) -> int:
    rng = random.Random(seed)
    cluster = PartitionedCluster(3)
    with cluster:
        load = Load([node.base_url for node in cluster.nodes], rng)
        chaos = Chaos(cluster, load, rng, time.monotonic() + seconds)
        streams = [f"chaos-{seed}-{i}" for i in range(STREAMS)]
        acknowledged: dict[str, set[bytes]] = defaultdict(set)
        tails = {(stream, i): bytearray() for stream in streams for i in range(TAILS_PER_STREAM)}
        timeout = aiohttp.ClientTimeout(total=clients.REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            for stream in streams:
                await clients.create(load, session, stream)
            tasks = [asyncio.create_task(clients.tail(load, session, stream, seen)) for (stream, _), seen in tails.items()]
            writing = []
            for stream in streams:
                for i in range(PRODUCERS_PER_STREAM):
                    writing.append(clients.producer(load, session, f"producer-{stream}-{i}", stream, acknowledged))
                for i in range(WRITERS_PER_STREAM):
                    writing.append(clients.writer(load, session, f"writer-{stream}-{i}", stream, acknowledged))
                for i in range(READERS_PER_STREAM):
                    writing.append(clients.reader(load, session, f"reader-{stream}-{i}", stream))
            workers = [asyncio.create_task(each) for each in writing]
            try:
                await chaos.run()
                for node in cluster.nodes:
                    await asyncio.to_thread(cluster.wait_ready, node, HEAL_TIMEOUT_S)
            finally:
                load.stopping.set()
            await asyncio.gather(*workers)
            finals = {stream: await read_all(load, session, stream) for stream in streams}
            wrong = await judge_tails(tails, finals)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        log_tail = cluster.log_tail()
    wrong += load.wrong
    for stream, payloads in acknowledged.items():
        found = Counter(finals[stream].split(b"\n"))
        wrong += [f"{stream}: acknowledged and lost: {each!r}" for each in payloads if not found[each[:-1]]]
        wrong += [f"{stream}: there {count} times: {each!r}" for each, count in found.items() if each and count > 1]
    wrong += [str(violation) for violation in stream_checker.check(load.history.ops, dict(finals))]
    report(load, chaos)
    wrong += failover_misses(chaos)
    for each in wrong[:40]:
        print(f"VIOLATION {each}")
    if wrong:
        print(f"seed {seed}: {len(wrong)} violations\n{log_tail}")
    else:
        print(f"chaos: passed, seed {seed}: nothing acknowledged was lost, nothing is there twice")
    return int(bool(wrong))


async def read_all(load: Load, session: aiohttp.ClientSession, stream: str) -> bytes:
    """The final content, from the start, until up to date; after the heal, so every node must answer within the deadline."""
    deadline = time.monotonic() + HEAL_TIMEOUT_S
    content, up_to_date = b"", False
    while not up_to_date:
        assert time.monotonic() < deadline, f"{stream} cannot be read after the heal"
        try:
            async with session.get(load.url(stream), params={"offset": f"{len(content):020d}"}) as answer:
                data = await answer.read()
                if answer.status == 200:
                    content += data
                    up_to_date = answer.headers.get("Stream-Up-To-Date") == "true"
                    continue
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass
        await asyncio.sleep(0.1)
    return content


async def judge_tails(tails: dict[tuple[str, int], bytearray], finals: dict[str, bytes]) -> list[str]:
    """Each tail was given exactly the stream, once and in order; the last of it within the deadline. Only a prefix is asked for."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(len(seen) < len(finals[stream]) for (stream, _), seen in tails.items()):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return [
        f"tail {i} of {stream}: {len(seen)} bytes seen are not a beginning of the {len(finals[stream])} there"
        for (stream, i), seen in tails.items()
        if not finals[stream].startswith(bytes(seen))
    ]


def report(load: Load, chaos: Chaos) -> None:
    outcomes = Counter(f"{op.kind} {op.outcome}" for op in load.history.ops)
    print("operations: " + ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())) + f", {load.events_ok} live events")
    print("faults: " + ", ".join(f"{count} {name}" for name, count in sorted(chaos.faults.items())))
    if chaos.failovers_s:
        ordered = sorted(chaos.failovers_s)
        shown = f"median {statistics.median(ordered):.2f} s, max {ordered[-1]:.2f} s, never seen {chaos.unseen}"
        print(f"failover of {len(ordered)} groups after kill -9: {shown}", flush=True)


def failover_misses(chaos: Chaos) -> list[str]:
    ordered = sorted(chaos.failovers_s)
    if not ordered:
        return ["no kill -9 hit a leader: nothing is known about failover"]
    found = []
    for percent, aim_s in FAILOVER_AIMS_S:
        value_s = ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
        if value_s > aim_s:
            found.append(f"failover: {percent} % took up to {value_s:.2f} s, aim {aim_s} s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.process.chaos", description="Hurt a real cluster under load and judge what its clients saw."
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="chooses faults and load; real time still differs from run to run")
    options = parser.parse_args()
    return asyncio.run(run(options.minutes * 60 or options.seconds, options.seed))


if __name__ == "__main__":
    sys.exit(main())
