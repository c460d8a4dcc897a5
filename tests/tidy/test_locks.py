"""The lock files: every package with one version and its hashes, no address, and an answer to everything that pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.source_tree import ROOT

LOCKS = {"dev": ("node", "dev"), "node": ("node",), "operator": ("operator",), "spark": ("spark",), "lock": ("lock",)}
"""requirements/<name>.txt and the extras it is made of, as in the Makefile's `lock`."""


def requirement_lines(path: Path) -> list[str]:
    """A lock file's logical lines without comments; a backslash joins a requirement with its hashes."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def unlocked(line: str) -> str | None:
    """Why a line does not pin one exact file set, or None."""
    requirement, *hashes = re.split(r"\s+--hash=", line)
    if not re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;]+(\s*;.*)?", requirement.strip()):
        return f"not a pinned requirement: {requirement!r}"
    if not hashes or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", value.strip()) for value in hashes):
        return f"without a sha256 hash: {requirement!r}"
    return None


def test_every_lock_file_is_known() -> None:
    assert {path.stem for path in (ROOT / "requirements").glob("*")} == set(LOCKS)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_with_hashes(lock: str) -> None:
    path = ROOT / "requirements" / f"{lock}.txt"
    lines = requirement_lines(path)
    assert lines, f"{path.name} is empty"
    found = [problem for line in lines if (problem := unlocked(line))]
    assert not found, f"{path.name}: {found}"
    assert "://" not in path.read_text(encoding="utf-8"), f"{path.name} names an address"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_answers_pyproject(lock: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = {}
    for line in requirement_lines(ROOT / "requirements" / f"{lock}.txt"):
        name, _, rest = line.partition("==")
        pinned[canonicalize_name(name)] = re.split(r"[\s;]", rest)[0]
    for wanted in (Requirement(text) for extra in LOCKS[lock] for text in extras[extra]):
        version = pinned.get(canonicalize_name(wanted.name))
        assert version is not None, f"{wanted.name} is missing from {lock}.txt; run `make lock`"
        assert wanted.specifier.contains(version, prereleases=True), f"{lock}.txt has {wanted.name} {version}, pyproject.toml wants {wanted}"


@pytest.mark.parametrize(
    "line",
    [
        "msgspec",
        "msgspec>=0.20 --hash=sha256:" + "0" * 64,
        "msgspec==0.22.0",
        "msgspec==0.22.0 --hash=md5:" + "0" * 32,
        "--index-url somewhere",
        "-e .",
        "msgspec @ somewhere --hash=sha256:" + "0" * 64,
    ],
)
def test_the_check_sees(line: str) -> None:
    assert unlocked(line) is not None


def test_the_check_lets_pass() -> None:
    assert unlocked("uvloop==0.23.0 ; sys_platform != 'win32'  --hash=sha256:" + "0" * 64 + "  --hash=sha256:" + "1" * 64) is None
