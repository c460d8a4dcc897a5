"""`python -m tests.conformance.extensions.run`, a part of `make conformance`: our own suite of the extensions, against one node and against three.

Before us: tests/process/cluster.py. After us: pytest, which is told by STREAMS_URLS where the nodes are; with three of them each request goes to
the next one. The exact counts are compared with expected.json, so that a test that silently disappears is seen, too. Not here: the base protocol
(tests/conformance/run.py)."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.process.cluster import ROOT, Cluster

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected.json"
LONG_POLL_TIMEOUT_MS = 4000
"""Longer than what test_keys_times.py lets a long-poll with its own timeout take, so that the two can be told apart."""
SUITE_TIMEOUT_S = 300
WORKERS = 3


class Counts(NamedTuple):
    passed: int
    failed: int


class SuiteBroken(RuntimeError):
    """pytest did not give a report: nothing can be said about the server."""


def run_suite(base_urls: list[str], only: str = "", workers: int = WORKERS) -> tuple[Counts, list[str]]:
    """Counts, and the failures with their first line each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", str(HERE), f"--junitxml={report}", *(["-n", str(workers)] if workers else [])]
        command += ["-k", only] if only else []
        path = os.pathsep.join(str(ROOT / part) for part in ("proto", "node", "."))
        env = {**os.environ, "STREAMS_URLS": ",".join(base_urls), "PYTHONPATH": path}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SUITE_TIMEOUT_S, check=False)
        if not report.exists():
            raise SuiteBroken(f"pytest ended with {done.returncode} and no report\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return read_report(ElementTree.parse(report).getroot())


def read_report(root: ElementTree.Element) -> tuple[Counts, list[str]]:
    passed, failures = 0, []
    for case in root.iter("testcase"):
        wrong = [each for each in case if each.tag in ("failure", "error", "skipped")]  # nothing here may be skipped
        if wrong:
            said = wrong[0].get("message") or "no message"
            failures.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}\n    {said.splitlines()[0][:300]}")
        else:
            passed += 1
    if passed + len(failures) == 0:
        raise SuiteBroken("no test ran")
    return Counts(passed, len(failures)), failures


@contextmanager
def servers_under_test(target: str) -> Iterator[list[str]]:
    with Cluster(3 if target == "three-nodes" else 1, env={"ANABRANCH_LONG_POLL_TIMEOUT_MS": str(LONG_POLL_TIMEOUT_MS)}) as cluster:
        yield [node.base_url for node in cluster.nodes]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.extensions.run", description="Run our suite of the extensions.")
    parser.add_argument("--target", action="append", choices=("one-node", "three-nodes"), help="default: both")
    parser.add_argument("--url", action="append", help="a node that runs already, instead of starting one; may be repeated")
    parser.add_argument("-k", "--tests", default="", help="only these tests, as pytest's -k; counts are not compared")
    parser.add_argument("--workers", type=int, default=WORKERS, help="test processes; 0: one, without pytest-xdist")
    parser.add_argument("--pin", action="store_true", help="write the counts that were seen into expected.json")
    options = parser.parse_args()
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    wrong = False
    for target in ["url"] if options.url else options.target or ["one-node", "three-nodes"]:
        started = time.monotonic()
        if options.url:
            counts, failures = run_suite(options.url, options.tests, options.workers)
        else:
            with servers_under_test(target) as base_urls:
                counts, failures = run_suite(base_urls, options.tests, options.workers)
        for failure in failures:
            print(f"  FAILED {failure}")
        print(f"extensions {target}: {counts.passed} passed, {counts.failed} failed, {time.monotonic() - started:.0f} s", flush=True)
        if options.pin:
            expected[target] = counts._asdict()
            EXPECTED.write_text(json.dumps(expected, indent=2) + "\n")
        elif options.tests or options.url:
            wrong |= counts.failed > 0
        elif expected.get(target) != counts._asdict():
            wrong = True
            print(f"extensions {target}: expected {expected.get(target)}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
