"""A cluster whose nodes reach each other only through TCP proxies of ours, so that the way between two of them can be cut.

Each node advertises a proxy's address as its own peer address. The proxy learns who calls from the kernel (which of our processes owns the other
end), so one proxy per node is enough to cut one pair, one direction of connecting, or one node from all. Not here: lost or reordered packets
(tests/sim does those); a cut closes what is open and refuses what comes."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.process.cluster import PORTS_PER_NODE, READY_TIMEOUT_S, ROOT, Cluster, ClusterFailed, Node
from tests.process.spreader import join

Change = Callable[[set[frozenset[str]]], None]
PROXY_PLANE = 3
"""Port + 3 of each node is its proxy: the planes use + 0, + 1 and + 2."""


class PartitionedCluster(Cluster):
    """`serve` processes of our own instead of `anabranch dev`, since each needs its own --peer-advertise."""

    def start(self) -> None:
        self.proxies = Proxies(self)
        advertised = [f"127.0.0.1:{self.port + PORTS_PER_NODE * i + PROXY_PLANE}" for i in range(self.size)]
        path = os.pathsep.join(str(ROOT / part) for part in ("proto", "node", "."))
        env = {"PYTHONPATH": path, **self.env}
        for i in range(self.size):
            name = f"node{i}"
            client, admin, peer = (f"127.0.0.1:{self.port + PORTS_PER_NODE * i + plane}" for plane in range(3))
            (self.data / name / "data").mkdir(parents=True, exist_ok=True)
            argv = [sys.executable, "-m", "anabranch_node.main", "serve", "--name", name, "--data-dir", str(self.data / name / "data")]
            argv += ["--client-listen", client, "--admin-listen", admin, "--peer-listen", peer, "--peer-advertise", advertised[i]]
            argv += ["--peers", ",".join(advertised), "--drain-ms", "500", *self.extra]
            self.nodes.append(Node(name, 0, client, admin, peer, argv, env))
        self.proxies.start()
        for node in self.nodes:
            self._launch(node)
        self._init()
        for node in self.nodes:
            self.wait_ready(node)

    def _launch(self, node: Node) -> None:
        with (self.data / f"{node.name}.log").open("ab") as log:
            node.started_by_us = subprocess.Popen(
                node.argv, env={**os.environ, **node.env}, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT
            )
        node.pid = node.started_by_us.pid

    def _init(self) -> None:
        body = json.dumps({"cluster_id": f"chaos-{os.getpid()}"}).encode()
        request = urllib.request.Request(f"http://{self.nodes[0].admin}/admin/v1/init", body, {"Content-Type": "application/json"}, method="POST")
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=10):
                    return
            except OSError as failed:
                if time.monotonic() > deadline or any(not node.is_alive() for node in self.nodes):
                    raise ClusterFailed(f"init: {failed}\n{self.log_tail()}") from None
                time.sleep(0.1)

    def stop(self) -> None:
        super().stop()
        self.proxies.stop()

    def cut(self, one: Node, other: Node) -> None:
        self.proxies.change(lambda cuts: cuts.add(frozenset((one.name, other.name))))

    def isolate(self, node: Node) -> None:
        for other in self.nodes:
            if other is not node:
                self.cut(node, other)

    def heal(self) -> None:
        self.proxies.change(lambda cuts: cuts.clear())


class Proxies:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cuts: set[frozenset[str]] = set()
        self._open: dict[asyncio.Task[None], frozenset[str]] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peer-proxies", daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10), "the peer proxies did not start"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(10)

    def change(self, how: Change) -> None:
        done = threading.Event()

        def apply() -> None:
            how(self.cuts)
            for task, pair in list(self._open.items()):
                if pair in self.cuts:
                    task.cancel()
            done.set()

        self._loop.call_soon_threadsafe(apply)
        assert done.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        servers = []
        for i, node in enumerate(self.cluster.nodes):

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: Node = node) -> None:
                await self._accept(node, reader, writer)

            servers.append(await asyncio.start_server(accept, "127.0.0.1", self.cluster.port + PORTS_PER_NODE * i + PROXY_PLANE))
        self._ready.set()
        await self._end.wait()
        for server in servers:
            server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        caller = owner_of(writer.get_extra_info("peername")[1], self.cluster.nodes)
        self._open[task] = pair = frozenset((node.name, caller))
        try:
            if pair not in self.cuts:
                host, _, port = node.peer.rpartition(":")
                await join((reader, writer), await asyncio.open_connection(host, int(port)))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            del self._open[task]
            with contextlib.suppress(OSError, RuntimeError):
                writer.transport.abort()


def owner_of(port: int, nodes: list[Node]) -> str:
    """The node whose socket has this local port; "" if none has."""
    wanted = f":{port:04X}"
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(wanted):
                    inodes.add(f"socket:[{fields[9]}]")
    for node in nodes:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{node.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link) in inodes:
                        return node.name
    return ""
