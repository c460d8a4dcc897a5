"""`make conformance`: the public protocol suite against (a) one node, (b) three nodes through a connection spreader.

Every test must pass; the exact counts are printed and compared with expected.json, so that a test that silently disappears is seen too.
`--reference` runs the suite against its authors' own server, which proves the runner and not us. `--target three-nodes-kill` kills the node that
leads most groups every 10 s meanwhile and counts what fails, with the suite's own retries only; no count is expected there. Not here: what the
suite checks (that is the npm package's), our extensions (extensions/run.py)."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.conformance import node_cache
from tests.conformance.leader_killer import LeaderKiller
from tests.process.cluster import Cluster, free_port
from tests.process.spreader import Spreader

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected.json"
LONG_POLL_TIMEOUT_MS = 1000
"""The suite wants less than about 4.5 s; a second keeps the run short and is longer than any hiccup of two busy cores."""
SUITE_TIMEOUT_S = 420
TARGETS = ("one-node", "three-nodes", "three-nodes-kill", "reference")


class Counts(NamedTuple):
    passed: int
    failed: int
    skipped: int
    """Left out by the suite itself: subscriptions are off."""


class SuiteBroken(RuntimeError):
    """vitest did not give a report: nothing can be said about the server."""


def run_suite(base_url: str, pattern: str = "") -> tuple[Counts, list[str]]:
    """Counts, and the failures with their first line each."""
    cache = node_cache.ensure()
    test_file = node_cache.stage(HERE / "suite.test.mjs")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["node", str(cache / "node_modules/vitest/vitest.mjs"), "run", "--root", str(cache), test_file.name, "--reporter=json"]
        command += [f"--outputFile={report}", "--testTimeout=30000", *(["-t", pattern] if pattern else [])]
        env = {**os.environ, "STREAMS_URL": base_url, "LONG_POLL_TIMEOUT_MS": str(LONG_POLL_TIMEOUT_MS), "NO_COLOR": "1"}
        done = subprocess.run(command, cwd=cache, env=env, capture_output=True, text=True, timeout=SUITE_TIMEOUT_S, check=False)
        if not report.exists():
            raise SuiteBroken(f"vitest ended with {done.returncode} and no report\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return read_report(json.loads(report.read_text()))


def read_report(report: dict[str, object]) -> tuple[Counts, list[str]]:
    files = report["testResults"]
    assert isinstance(files, list)
    passed = failed = skipped = 0
    failures: list[str] = []
    for test in (test for file in files for test in file["assertionResults"]):
        if test["status"] == "passed":
            passed += 1
        elif test["status"] == "failed":
            failed += 1
            lines = "".join(test["failureMessages"]).strip().splitlines() or ["no message"]
            # A property-based test says why in its counterexample's error, further down.
            causes = [line.strip() for line in lines[1:] if "Error" in line and "node_modules" not in line]
            failures.append("\n    ".join([test["fullName"].strip(), *[line[:300] for line in (lines[0], *causes[:2])]]))
        else:
            skipped += 1
    if passed + failed == 0:
        raise SuiteBroken(f"no test ran: {[file.get('message') for file in files]}")
    return Counts(passed, failed, skipped), failures


@contextmanager
def server_under_test(target: str) -> Iterator[str]:
    """Its base URL."""
    with ExitStack() as stack:
        if target == "reference":
            yield stack.enter_context(reference_server())
            return
        nodes = 1 if target == "one-node" else 3
        cluster = stack.enter_context(Cluster(nodes, env={"ANABRANCH_LONG_POLL_TIMEOUT_MS": str(LONG_POLL_TIMEOUT_MS)}))
        if nodes == 1:
            yield cluster.nodes[0].base_url
            return
        spreader = stack.enter_context(Spreader([node.client for node in cluster.nodes]))
        killer = stack.enter_context(LeaderKiller(cluster)) if target == "three-nodes-kill" else None
        yield spreader.base_url
        if killer is not None:
            print(f"conformance {target}: killed {len(killer.killed)} times: {', '.join(killer.killed)}")


@contextmanager
def reference_server(data: Path | None = None) -> Iterator[str]:
    script = node_cache.stage(HERE.parent / "bench/reference/server.mjs")
    port = free_port()
    command = ["node", str(script), str(port), str(data or ""), str(LONG_POLL_TIMEOUT_MS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready"):
            raise SuiteBroken(f"the reference server said {line!r}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description="Run the public protocol suite against us.")
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: one-node and three-nodes")
    parser.add_argument("--reference", action="store_true", help="the same as --target reference")
    parser.add_argument("--url", help="a server that runs already, instead of starting one")
    parser.add_argument("-t", "--tests", default="", help="only the tests whose names match this regular expression; counts are not compared")
    parser.add_argument("--pin", action="store_true", help="write the counts that were seen into expected.json")
    options = parser.parse_args()
    targets = ["reference"] if options.reference else options.target or ["one-node", "three-nodes"]
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    wrong = False
    for target in ["url"] if options.url else targets:
        started = time.monotonic()
        if options.url:
            counts, failures = run_suite(options.url, options.tests)
        else:
            with server_under_test(target) as base_url:
                counts, failures = run_suite(base_url, options.tests)
        for failure in failures:
            print(f"  FAILED {failure}")
        shown = f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped (subscriptions)"
        print(f"conformance {target}: {shown}, {time.monotonic() - started:.0f} s", flush=True)
        if options.pin and not (options.tests or options.url or target == "three-nodes-kill"):
            expected[target] = counts._asdict()
            EXPECTED.write_text(json.dumps(expected, indent=2) + "\n")
        elif options.tests or options.url or target == "three-nodes-kill":
            wrong |= counts.failed > 0
        elif expected.get(target) != counts._asdict():
            wrong = True
            print(f"conformance {target}: expected {expected.get(target)}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
