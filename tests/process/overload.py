"""`make overload`: a real cluster of three is asked for ten times what it can serve, watched by thousands and held by slow clients; then let go.

Before us: cluster.py starts the nodes, with small limits so that all of them are reached within seconds. overload_clients.py is the load. After us:
the judge at the end of each of two rounds. Shown and asserted: memory stays under a bound that follows from the limits; a refusal is 429 or 503 with
Retry-After and a code, and there is no other 5xx; what was acknowledged is there, once; slow readers are dropped and counted; within RECOVERY_S
after the load plain requests succeed as fast as before, without a restart, and nothing is left behind.
Not here: crashes under load (chaos.py), what each limit does by itself (tests/unit)."""

import argparse
import asyncio
import re
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import uvloop

from tests.bench.http_load import rss_bytes
from tests.process.cluster import Cluster, Node
from tests.process.overload_clients import (
    BIG_MESSAGES,
    KINDS,
    NO_ANSWER,
    OK,
    Plain,
    Sender,
    Slow,
    Told,
    Watcher,
    be_slow,
    message,
    numbers_in,
    open_loop,
    producer,
    render,
    watch,
)

NODES: Final = 3
GROUPS: Final = 8
TIMES: Final = 10
READERS: Final = 5_000
SLOW: Final = 2_000
SENDERS: Final = 192
PRODUCERS: Final = 6
STREAMS: Final = 24
WATCHED: Final = 5
CAPACITY_S: Final = 2.0
CAPACITY_CLIENTS: Final = 48
WATCHED_GAP_S: Final = 1.0
RECOVERY_S: Final = 15.0
"""From the end of the load: by then everything is as before, on a machine that has two cores for three nodes and all clients."""
PROBES: Final = 60
NOFILE_WANTED: Final = 16_384

MIB: Final = 1 << 20
INFLIGHT_MIB, HOT_MIB, UNSENT_MIB = 8, 48, 32
SETTINGS: Final = {
    "inflight_bytes_max": f"{INFLIGHT_MIB}MiB",
    "hot_bytes_max": f"{HOT_MIB}MiB",
    "unsent_bytes_max": f"{UNSENT_MIB}MiB",
    "body_bytes_max": "1MiB",
    "segment_bytes": "16MiB",
    "live_buffer_bytes_max": "256KiB",
    "header_timeout_ms": "2000",
    "body_timeout_ms": "2000",
    "write_timeout_ms": "1500",
    "sse_rotate_ms": "600000",
}
LOG_MIB_PER_GROUP: Final = 4
PEER_QUEUES_MIB: Final = (NODES - 1) * (32 + 4)
WAL_QUEUE_MIB: Final = 64
KIB_PER_CONNECTION: Final = 16
ALLOCATOR_SHARE: Final = 1.25


def rss_bound_bytes(empty_bytes: int, connections: int) -> int:
    """What the limits add up to: hot data; bodies in flight, our own and those that each other node may send on to us, once as received and once as
    encoded; log entries in RAM; frames for peers; batches for the disk; unsent responses; connections. A quarter more for what the allocator keeps
    between them."""
    parts_mib = HOT_MIB + 2 * NODES * INFLIGHT_MIB + (GROUPS + 1) * LOG_MIB_PER_GROUP + PEER_QUEUES_MIB + WAL_QUEUE_MIB + UNSENT_MIB
    return empty_bytes + int(ALLOCATOR_SHARE * (parts_mib * MIB + connections * KIB_PER_CONNECTION * 1024))


@dataclass
class Peaks:
    """The most that each node held at any time, seen four times a second."""

    pids: list[int]
    rss: list[int] = field(default_factory=list)

    async def watch(self) -> None:
        self.rss = [0] * len(self.pids)
        while True:
            self.rss = [max(peak, rss_bytes([pid])) for peak, pid in zip(self.rss, self.pids, strict=True)]
            await asyncio.sleep(0.25)


def metrics(node: Node) -> dict[str, float]:
    """The admin plane's numbers without `anabranch_` and without those of single groups."""
    status, body = node.get("/metrics", 10.0)
    assert status == 200, (node.name, status)
    found = re.findall(rb'^anabranch_([a-z_]+(?:\{code="[^"]*"\})?) ([0-9.e+]+)$', body, re.MULTILINE)
    return {name.decode(): float(value) for name, value in found}


async def all_metrics(cluster: Cluster) -> list[dict[str, float]]:
    return await asyncio.gather(*(asyncio.to_thread(metrics, node) for node in cluster.nodes))


async def terms(cluster: Cluster) -> int:
    """The sum over all groups: it rises by one with each election."""
    statuses = await asyncio.gather(*(asyncio.to_thread(node.status, 10.0) for node in cluster.nodes))
    highest: dict[int, int] = {}
    for status in statuses:
        for group in status["groups"]:
            highest[group["group"]] = max(highest.get(group["group"], 0), group["term"])
    return sum(highest.values())


async def insist(plain: Plain, method: str, path: str, body: bytes | None = None, *, deadline_s: float = 30.0) -> tuple[int, bytes, bytes]:
    """Until it succeeds, or finds a stream gone that is to be deleted; refusals and broken connections are tried again."""
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            answer = await plain.ask(method, path, (), body)
            if answer[0] in OK or (method == "DELETE" and answer[0] == 404):
                return answer
            problem = repr(answer)
        except NO_ANSWER as error:
            problem = repr(error)
        assert time.monotonic() < end_s, f"{method} {path}: {problem[:300]}"
        await asyncio.sleep(0.05)


async def read_whole(plain: Plain, stream: str) -> bytes:
    content = bytearray()
    while True:
        _, head, data = await insist(plain, "GET", f"{stream}?offset={len(content):020d}")
        content += data
        if b"\r\nstream-up-to-date: true" in head.lower():
            return bytes(content)


async def latencies_ms(addresses: list[str], stream: str) -> list[float]:
    """Appends and reads in turn, one at a time, on all nodes: each must succeed."""
    took = []
    plains = [Plain(address) for address in addresses]
    for i in range(PROBES):
        plain = plains[i % len(plains)]
        began = time.perf_counter()
        status, _, body = await (plain.ask("POST", stream, (), b"probe") if i % 2 else plain.ask("GET", f"{stream}?offset=now"))
        took.append((time.perf_counter() - began) * 1e3)
        assert status in OK, (status, body)
    for plain in plains:
        plain.close()
    return sorted(took)


async def capacity(addresses: list[str], streams: list[str]) -> float:
    """Appends per second of clients that wait for each answer, with the bodies of the load."""
    end_s = time.monotonic() + CAPACITY_S
    done = 0

    async def one(number: int) -> None:
        nonlocal done
        plain = Plain(addresses[number % len(addresses)])
        count = number * 1_000_003
        while time.monotonic() < end_s:
            count += 1
            status, _, _ = await plain.ask("POST", streams[number % len(streams)], (), message(count))
            done += status in OK
        plain.close()

    await asyncio.gather(*(one(number) for number in range(CAPACITY_CLIENTS)))
    return done / CAPACITY_S


async def feed(address: str, streams: list[str], size: int, gap_s: float, until_s: float) -> int:
    """Small appends for live readers; a refusal is not repeated, the next one is soon enough."""
    plain = Plain(address)
    fed = 0
    while time.monotonic() < until_s:
        for stream in streams:
            try:
                status, _, _ = await plain.ask("POST", stream, (), b"." * size)
                fed += status in OK
            except NO_ANSWER:
                pass
        await asyncio.sleep(gap_s)
    plain.close()
    return fed


class Round:
    def __init__(self, cluster: Cluster, number: int, rate: float, seconds: float, told: Told) -> None:
        self.cluster = cluster
        self.addresses = [node.client for node in cluster.nodes]
        self.number = number
        self.rate = rate
        self.seconds = seconds
        self.told = told
        self.streams = [f"load-{number}-{i}" for i in range(STREAMS)]
        self.watched = [f"watched-{number}-{i}" for i in range(WATCHED)]
        self.producing = [f"producer-{number}-{i}" for i in range(PRODUCERS)]
        self.watchers: list[Watcher] = []

    async def load(self) -> None:
        told, addresses = self.told, self.addresses
        plain = Plain(addresses[0])
        for stream in [*self.streams, *self.producing, *self.watched]:
            await insist(plain, "PUT", stream, b"")
        plain.close()
        told.acknowledged |= {stream: [] for stream in self.streams}
        began = time.monotonic()
        self.watchers = await watch(addresses, self.watched, READERS)
        unread = {"get": render("GET", "big?offset=-1") * BIG_MESSAGES, "live": render("GET", "big?offset=-1&live=sse")}
        slow = [Slow(told, KINDS[i % len(KINDS)], addresses[i // len(KINDS) % NODES], unread) for i in range(SLOW)]
        print(f"round {self.number}: {READERS} readers connected in {time.monotonic() - began:.1f} s", flush=True)
        until_s = time.monotonic() + self.seconds
        senders = [Sender(told, addresses[i % NODES]) for i in range(SENDERS)]
        work = [
            open_loop(told, senders, self.streams, self.rate, until_s),
            be_slow(slow, until_s),
            feed(addresses[1], self.watched, 200, WATCHED_GAP_S, until_s),
            *(producer(told, addresses[i % NODES :] + addresses[: i % NODES], stream, until_s) for i, stream in enumerate(self.producing)),
        ]
        await asyncio.gather(*work)
        for each in [*senders, *slow]:
            if each.transport is not None:
                each.transport.abort()

    async def recover(self, before_ms: list[float]) -> None:
        """As before within RECOVERY_S: live readers at the tail, requests served at once, nothing of the load left on any node."""
        began = time.monotonic()
        plain = Plain(self.addresses[0])
        await insist(plain, "GET", "probe?offset=now", deadline_s=RECOVERY_S)
        first_s = time.monotonic() - began
        # What the load left behind fills the memory for recent data: it is checked, then deleted, as an operator would.
        await self.judge()
        judged_s = time.monotonic() - began
        mark = b"the-end-of-round-%d" % self.number
        for stream in self.watched:
            await insist(plain, "POST", stream, mark)
        living = [each for each in self.watchers if each.transport is not None]
        deadline_s = began + judged_s + RECOVERY_S
        while missing := [each for each in living if each.transport is not None and mark not in each.tail]:
            if time.monotonic() > deadline_s:
                self.told.violation(f"{len(missing)} of {len(living)} live readers were not given the last message")
                break
            await asyncio.sleep(0.1)
        served, resumed = sum(each.bytes for each in self.watchers), sum(each.resumed for each in self.watchers)
        print(f"    live readers: {len(living)} of {READERS} to the end, {served / 1e6:.1f} MB delivered, {resumed} times asked to resume")
        if len(living) < READERS * 0.9:
            self.told.violation(f"only {len(living)} of {READERS} live readers that do read were kept")
        for each in self.watchers:
            if each.transport is not None:
                each.transport.abort()
        plain.close()
        while left := await self.left_behind():
            if time.monotonic() > deadline_s:
                self.told.wrong += left
                break
            await asyncio.sleep(0.1)
        rested_s = time.monotonic() - began
        after_ms = await latencies_ms(self.addresses, "probe")
        median, most = after_ms[PROBES // 2], after_ms[-1]
        aim = 4 * before_ms[PROBES // 2] + 25
        print(
            f"    first read {first_s:.1f} s after the load; everything read back and deleted after {judged_s:.1f} s, at rest after {rested_s:.1f} s;"
            f" requests take {median:.1f} ms (before: {before_ms[PROBES // 2]:.1f} ms), at most {most:.0f} ms"
        )
        if median > aim:
            self.told.violation(f"after the load a request takes {median:.1f} ms; it took {before_ms[PROBES // 2]:.1f} ms before, aim {aim:.1f} ms")

    async def left_behind(self) -> list[str]:
        left = []
        for node, found in zip(self.cluster.nodes, await all_metrics(self.cluster), strict=True):
            left += [
                f"{node.name}: {key} is {found[key]:.0f} after the load"
                for key, most in (("connections", 0), ("inflight_bytes", 0), ("unsent_bytes", 0), ("live_readers", 0))
                if found[key] > most
            ]
            if found["hot_bytes"] > (BIG_MESSAGES + 1) * MIB:
                left.append(f"{node.name}: {found['hot_bytes'] / 1e6:.1f} MB of recent data after the deletes")
        return left

    async def judge(self) -> None:
        """Everything acknowledged is there, once, in any order for the open loop and in exactly one order for a producer."""
        told = self.told

        async def judge_load(stream: str, plain: Plain) -> None:
            found = Counter(numbers_in(stream, await read_whole(plain, stream)))
            lost = [number for number in told.acknowledged[stream] if not found[number]]
            twice = [number for number, count in found.items() if count > 1]
            if lost or twice:
                told.violation(f"{stream}: {len(lost)} acknowledged appends are lost ({lost[:5]}), {len(twice)} are there twice ({twice[:5]})")
            await insist(plain, "DELETE", stream)

        async def judge_producer(stream: str, plain: Plain) -> None:
            numbers = numbers_in(stream, await read_whole(plain, stream))
            # One more than acknowledged may be there: its answer was lost, and the load ended before it could be repeated.
            if numbers != list(range(len(numbers))) or not 0 <= len(numbers) - told.producers[stream] <= 1:
                told.violation(f"{stream}: {told.producers[stream]} acknowledged in order, there are {len(numbers)}: {numbers[:10]} ...")
            await insist(plain, "DELETE", stream)

        async def share(address: str, number: int) -> None:
            plain = Plain(address)
            for stream in self.streams[number::NODES]:
                await judge_load(stream, plain)
            for stream in self.producing[number::NODES]:
                await judge_producer(stream, plain)
            plain.close()

        await asyncio.gather(*(share(address, number) for number, address in enumerate(self.addresses)))


async def run(seconds: float, rounds: int) -> int:
    extra = ["--group-count", str(GROUPS)]
    for key, value in SETTINGS.items():
        extra += ["--set", f"{key}={value}"]
    cluster = Cluster(NODES, extra=tuple(extra))
    with cluster:
        addresses = [node.client for node in cluster.nodes]
        pids = [node.pid for node in cluster.nodes]
        plain = Plain(addresses[0])
        calm = [f"calm-{i}" for i in range(STREAMS)]
        for stream in ["probe", "big", "slow", *calm]:
            await insist(plain, "PUT", stream, b"")
        for _ in range(BIG_MESSAGES):
            await insist(plain, "POST", "big", bytes(MIB - 1024))
        before_ms = await latencies_ms(addresses, "probe")
        empty = [rss_bytes([pid]) for pid in pids]
        served = await capacity(addresses, calm)
        for stream in calm:
            await insist(plain, "DELETE", stream)
        plain.close()
        bound = rss_bound_bytes(max(empty), (READERS + SLOW + SENDERS) // NODES)
        print(
            f"{NODES} nodes serve {served:.0f} appends/s of 4 to 64 KiB; offered now: {served * TIMES:.0f}/s, {READERS} readers, {SLOW} slow clients"
        )
        peaks = Peaks(pids)
        watching = asyncio.create_task(peaks.watch())
        told = Told()
        rests: list[list[int]] = []
        for number in range(1, rounds + 1):
            one = Round(cluster, number, served * TIMES, seconds / rounds, told)
            terms_before = await terms(cluster)
            await one.load()
            loaded = await all_metrics(cluster)
            print(f"    {await terms(cluster) - terms_before} elections under load", flush=True)
            await one.recover(before_ms)
            rests.append([rss_bytes([pid]) for pid in pids])
            shown = ", ".join(f"{rss / 1e6:.0f}" for rss in rests[-1])
            print(f"    RSS at rest {shown} MB; most so far {max(peaks.rss) / 1e6:.0f} MB, bound {bound / 1e6:.0f} MB", flush=True)
        watching.cancel()
        wrong = [*told.wrong, *judge_memory(cluster, peaks, rests, bound), *judge_counters(loaded)]
        wrong += [f"{node.name} did not survive" for node in cluster.nodes if not node.is_alive()]
        report(told, loaded)
        for each in wrong:
            print(f"VIOLATION {each}")
        if wrong:
            print(cluster.log_tail())
    print("overload: passed" if not wrong else f"overload: {len(wrong)} violations")
    return int(bool(wrong))


def judge_memory(cluster: Cluster, peaks: Peaks, rests: list[list[int]], bound: int) -> list[str]:
    wrong = [
        f"{node.name}: {rss / 1e6:.0f} MB resident, bound {bound / 1e6:.0f} MB"
        for node, rss in zip(cluster.nodes, peaks.rss, strict=True)
        if rss > bound
    ]
    # The fullest node of each round: which one that is depends on where the leaders are. Too loose to tell a slow leak: five rounds of 6 s were
    # seen to end at 225, 239, 256, 275 and 295 MB, and why is not known yet.
    first, second = (max(rest) for rest in rests[-2:])
    if second > first * 1.2 + 20 * MIB:
        wrong.append(f"{first / 1e6:.0f} MB at rest after the last round but one, {second / 1e6:.0f} MB after the last")
    return wrong


def judge_counters(loaded: list[dict[str, float]]) -> list[str]:
    """The overload was one, and the nodes say so."""
    wrong = []
    total: Counter[str] = Counter()
    for each in loaded:
        total.update({key: int(value) for key, value in each.items()})
    for key in ("slow_readers_dropped_total", 'rejected_total{code="head_timeout"}', 'rejected_total{code="body_timeout"}'):
        if not total[key]:
            wrong.append(f"no node counted {key}")
    return wrong


def report(told: Told, loaded: list[dict[str, float]]) -> None:
    print(f"open loop: {told.sent} sent, {told.held_back} held back by full connections, {told.unknown} without an answer")
    print("answers: " + ", ".join(f"{count} x {name}" for name, count in sorted(told.answers.items())))
    print("connections ended by a node: " + ", ".join(f"{count} x {name}" for name, count in sorted(told.closed_by_node.items())))
    for number, each in enumerate(loaded):
        refused = {key[21:-2]: int(value) for key, value in each.items() if key.startswith("rejected_total{")}
        print(f"node {number}: {int(each['slow_readers_dropped_total'])} slow readers dropped, refused {refused}")
    refusals = sum(count for name, count in told.answers.items() if " 503 " in name or " 429 " in name)
    if not refusals:
        told.violation("nothing was refused: this was no overload")


def allow_files() -> None:
    """The children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < NOFILE_WANTED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(NOFILE_WANTED, hard), hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft < READERS + SLOW + SENDERS + 500:
        sys.exit(f"{soft} open files are too few for {READERS + SLOW} connections: raise `ulimit -n`")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.overload", description="Ask a real cluster for ten times what it can serve.")
    parser.add_argument("--seconds", type=float, default=60, help="of load, over all rounds (%(default)s); 20 is the short form")
    parser.add_argument("--rounds", type=int, default=2, help="at least two; more of them tell a plateau from a leak (%(default)s)")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: memory at rest is compared between two")
    allow_files()
    return uvloop.run(run(options.seconds, options.rounds))


if __name__ == "__main__":
    sys.exit(main())
