"""The checkout as the tidy tests see it: which files there are, parsed once. Not here: any rule; each rule is a test beside this file."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_FOLDERS = ("proto", "node", "operator", "spark", "tests")
"""They hold packages and are not packages."""

# .ci is the one hidden folder that is ours.
SKIPPED = {"__pycache__", "build", "dist", "node_modules", "venv"}


def files() -> Iterator[Path]:
    """Every file of the checkout except caches, build output and hidden folders, in a stable order."""
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_file():
                yield path
            elif path.is_dir() and not path.is_symlink() and path.name not in SKIPPED and (path.name == ".ci" or not path.name.startswith(".")):
                if not path.name.endswith(".egg-info"):
                    folders.append(path)


def modules(*folders: str) -> list[Path]:
    """The Python files below these folders, without generated ones."""
    return [
        path
        for folder in folders
        if (ROOT / folder).is_dir()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    ]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    """How a finding names a file: relative to the checkout."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
