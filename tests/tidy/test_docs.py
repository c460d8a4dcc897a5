"""The documents name files, folders and make targets; all of them exist. Prose beyond that is the reviewer's to judge."""

import re
from pathlib import Path

import pytest

from tests.tidy.source_tree import ROOT, files, name_of

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CODE = re.compile(r"`([^`\n]+)`")
NAMED_FILE = re.compile(r"[\w./-]+\.(?:py|md|txt|toml|proto|yaml)")
NAMED_FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)*/")


def missing_paths(text: str, existing: list[str]) -> list[str]:
    """Files and folders in backticks that no path of the checkout ends with. `wal.py` may stand for `node/.../wal.py`."""
    folders = sorted({folder.as_posix() + "/" for path in existing for folder in Path(path).parents})
    missing = []
    for code in CODE.findall(text):
        if code.startswith(("../", "/")):
            continue  # outside the checkout
        candidates = existing if NAMED_FILE.fullmatch(code) else folders if NAMED_FOLDER.fullmatch(code) else None
        if candidates is not None and not any(("/" + path).endswith("/" + code) for path in candidates):
            missing.append(code)
    return missing


def missing_targets(text: str, makefile: str) -> list[str]:
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    return [target for target in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", text, re.MULTILINE) if target not in targets]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_what_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    existing = [name_of(path) for path in files()]
    assert not missing_paths(text, existing)
    assert not missing_targets(text, (ROOT / "Makefile").read_text(encoding="utf-8"))


def test_links_between_documents_lead_somewhere() -> None:
    found = [
        f"{name_of(document)} -> {target}"
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
    assert not found


def test_the_check_sees() -> None:
    existing = ["node/anabranch_node/wal/wal.py", "Makefile"]
    assert missing_paths("see `wal.py`, `wal/wal.py`, `node/anabranch_node/` and `wal/`", existing) == []
    assert missing_paths("see `gone.py`, `al.py` and `node/gone/`", existing) == ["gone.py", "al.py", "node/gone/"]
    assert missing_targets("`make test`\nmake fly  # now", "test: x\n\techo") == ["fly"]
