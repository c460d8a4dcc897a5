"""Every planted bug still fits the source it changes, and still compiles: a bug that fits nowhere proves nothing."""

import importlib.util
from pathlib import Path

import pytest

from tests.planted.bugs import BUGS, Bug
from tests.planted.loader import changed_source


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_fits(bug: Bug) -> None:
    for module in {edit[0] for edit in bug.edits}:
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None
        edits = [edit for edit in bug.edits if edit[0] == module]
        source = Path(spec.origin).read_text(encoding="utf-8")
        compile(changed_source(source, edits, module), spec.origin, "exec")


def test_enough_bugs_and_a_short_list() -> None:
    assert len(BUGS) >= 20
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert sum(bug.short for bug in BUGS) >= 5
