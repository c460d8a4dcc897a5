"""Each script in tests/scripts/raft is a case: what its commands do must be what it says. After a wanted change: `make scripts REWRITE=1`."""

import difflib
from pathlib import Path

import pytest

from tests.scripts.interpreter import run_script

SCRIPTS = Path(__file__).parent.parent / "scripts" / "raft"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    expected = path.read_text()
    actual = run_script(expected)
    if actual != expected:
        diff = difflib.unified_diff(expected.splitlines(), actual.splitlines(), "the script says", "this happens", n=8, lineterm="")
        pytest.fail(f"{path.name}\n" + "\n".join(diff), pytrace=False)


def test_each_script_says_what_it_guards_and_compares_something() -> None:
    paths = sorted(SCRIPTS.glob("*.txt"))
    assert len(paths) >= 35
    for path in paths:
        text = path.read_text()
        assert text.startswith("# "), f"{path.name} must begin with a comment that says what is guarded and why"
        assert "\n----\n" in text, f"{path.name} expects nothing"
