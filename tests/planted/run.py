"""`make sim-bugs`: plants each bug in a process of its own and runs seeds until the simulator notices. Prints the table; fails if a bug survives.

python -m tests.planted.run [--short] [--bug NAME] [--seeds-max 2000] [--jobs 2]"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.planted.bugs import BUGS, Bug
from tests.planted.loader import plant


def hunt(bug: Bug, seeds_max: int) -> int:
    """In the child: 0 if killed, and the line the parent shows."""
    plant(bug)
    from tests.sim.run import play
    from tests.sim.swarm import draw

    started = time.process_time()
    for seed in range(seeds_max):
        if bug.http and not draw(seed).http:
            continue
        outcome = play(seed)
        if outcome.problem:
            last = outcome.problem.strip().splitlines()[-1]
            print(f"{seed}\t{time.process_time() - started:.1f}\t{last}")
            return 0
    print(f"-\t{time.process_time() - started:.1f}\tSURVIVED {seeds_max} seeds")
    return 1


def _child(bug: Bug, seeds_max: int) -> tuple[Bug, int, str]:
    command = [sys.executable, "-m", "tests.planted.run", "--child", bug.name, "--seeds-max", str(seeds_max)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"-\t0\tdid not run: {done.stderr.strip()[-300:]}"
    return bug, done.returncode, line


def run(bugs: Sequence[Bug], seeds_max: int, jobs: int) -> int:
    survivors = 0
    print(f"{'planted bug':58} {'seed':>5} {'CPU s':>6}  how it was noticed")
    with ThreadPoolExecutor(jobs) as pool:
        for bug, code, line in pool.map(lambda bug: _child(bug, seeds_max), bugs):
            seed, cpu_s, how = line.split("\t", 2)
            survivors += code != 0
            print(f"{bug.name:58} {seed:>5} {cpu_s:>6}  {how[:150]}", flush=True)
    print(f"{len(bugs) - survivors} of {len(bugs)} planted bugs killed")
    return 1 if survivors else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim-bugs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="only the bugs that a few seeds kill")
    parser.add_argument("--bug", help="only this one, by its name or a part of it")
    parser.add_argument("--seeds-max", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return hunt(next(bug for bug in BUGS if bug.name == options.child), options.seeds_max)
    bugs = [bug for bug in BUGS if (not options.short or bug.short) and (not options.bug or options.bug in bug.name)]
    if not bugs:
        print(f"no planted bug is named like {options.bug!r}; there are:\n  " + "\n  ".join(bug.name for bug in BUGS))
        return 2
    return run(bugs, options.seeds_max, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
