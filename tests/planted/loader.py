"""Plants a bug: modules named in its edits are loaded from changed source, in this process only. Production never imports this.

Before us: run.py starts a fresh interpreter for each bug, so that no module was loaded whole before."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from tests.planted.bugs import Bug, Edit


def changed_source(source: str, edits: Sequence[Edit], name: str) -> str:
    for _, old, new in edits:
        count = source.count(old)
        if count != 1:
            raise LookupError(f"{name} has {count} places that read {old!r}; the planted bug needs exactly one")
        source = source.replace(old, new)
    return source


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._edits: dict[str, list[Edit]] = {}
        for edit in bug.edits:
            self._edits.setdefault(edit[0], []).append(edit)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        edits = self._edits.get(name)
        if edits is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None, name
        return importlib.util.spec_from_loader(name, _Loader(name, spec.origin, edits), origin=spec.origin)


class _Loader(importlib.abc.SourceLoader):
    def __init__(self, name: str, path: str, edits: list[Edit]) -> None:
        self._name = name
        self._path = path
        self._edits = edits

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        with open(self._path, encoding="utf-8") as file:
            return changed_source(file.read(), self._edits, self._name).encode()


def plant(bug: Bug) -> None:
    loaded = [module for module, _, _ in bug.edits if module in sys.modules]
    assert not loaded, f"{loaded} were loaded before the bug could be planted"
    sys.meta_path.insert(0, _Finder(bug))
