"""Somebody who kills the node that leads most groups, again and again, while a suite runs against the others and it.

Before us: run.py, for its target three-nodes-kill. After us: tests/process/cluster.py. A node is killed only when all are ready, so that two of
three always live: what fails then is what a client sees of one lost node. Not here: what that is; the suite's own answers say so."""

import threading
import time
from types import TracebackType

from tests.process.cluster import Cluster, led_groups

KILL_EVERY_S = 10.0
DOWN_S = 1.0
READY_TIMEOUT_S = 60.0


class LeaderKiller:
    """`with LeaderKiller(cluster) as killer:` kills until the block ends; then all nodes are ready again. An error of ours is raised there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.killed: list[str] = []
        self._last = ""
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="leader-killer", daemon=True)

    def __enter__(self) -> "LeaderKiller":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            due = time.monotonic() + KILL_EVERY_S
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = time.monotonic() + KILL_EVERY_S
                self._kill_one()
        except BaseException as error:
            self._error = error

    def _kill_one(self) -> None:
        led = {node.name: len(led_groups(node.status())) for node in self.cluster.nodes}
        victim = max(self.cluster.nodes, key=lambda node: (led[node.name], node.name != self._last))
        self._last = victim.name
        self.killed.append(f"{victim.name} (led {led[victim.name]} groups)")
        self.cluster.kill(victim)
        self._stop.wait(DOWN_S)  # long enough for the others to elect, also when the test ends now
        self.cluster.restart(victim)
        self.cluster.wait_ready(victim, READY_TIMEOUT_S)
