"""`python -m tests.scripts.rewrite [name ...]`: put what happens now into the expected parts. Read the diff as prose before you keep it."""

import sys
from pathlib import Path

from tests.scripts.interpreter import run_script

SCRIPTS = Path(__file__).parent / "raft"


def main(names: list[str]) -> int:
    paths = [path for path in sorted(SCRIPTS.glob("*.txt")) if not names or path.stem in names]
    broken = 0
    for path in paths:
        before = path.read_text()
        after = run_script(before)
        broken += "LAW BROKEN" in after
        if after != before:
            path.write_text(after)
            print(f"rewrote {path.name}" + (": A LAW OF RAFT IS BROKEN" if "LAW BROKEN" in after else ""))
    print(f"{len(paths)} scripts")
    return 1 if broken or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
