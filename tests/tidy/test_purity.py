"""Decisions are pure: what the simulator runs must be a function of its events. Layers are read as source, so unreached code counts too."""

import ast
import textwrap

import pytest

from tests.tidy.purity import PURE_STDLIB, RAFT_STDLIB, findings
from tests.tidy.source_tree import ROOT, modules, name_of, parsed

NODE = "node/anabranch_node"
OURS = frozenset({"anabranch_node", "anabranch_proto", "msgspec"})
PURE_LAYERS = {f"{NODE}/{layer}": PURE_STDLIB | OURS for layer in ("core", "wal", "engine", "web", "service")}
RAFT = f"{NODE}/core/raft"


@pytest.mark.parametrize("layer", PURE_LAYERS)
def test_a_pure_layer_knows_no_clock_chance_or_world(layer: str) -> None:
    found = [f"{name_of(path)} {finding}" for path in modules(layer) for finding in findings(parsed(path), PURE_LAYERS[layer])]
    assert not found, "\n".join(found)


def test_raft_stands_on_a_few_modules_of_the_standard_library() -> None:
    assert modules(RAFT), "the Raft core has moved; this test must follow it"
    allowed = RAFT_STDLIB | {"anabranch_node"}
    found = [f"{name_of(path)} {finding}" for path in modules(RAFT) for finding in findings(parsed(path), allowed)]
    for path in modules(RAFT):
        for node in ast.walk(parsed(path)):
            imported = (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
            found += [
                f"{name_of(path)} line {node.lineno}: imports {name}; raft/ imports nothing of ours but itself"
                for name in imported
                if name.startswith("anabranch_") and not (name + ".").startswith("anabranch_node.core.raft.")
            ]
    assert not found, "\n".join(found)


def test_the_layers_under_watch_exist() -> None:
    for layer in ("core", "wal", "engine"):
        assert (ROOT / NODE / layer).is_dir(), f"{layer} has moved; PURE_LAYERS must follow it"


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from random import Random",
        "from uuid import uuid4",
        "import socket as s",
        "def f():\n    import asyncio",
        "import crc32c",
        "from . import entry",
        "from urllib import request",
        "import urllib.request",
        "import sys\nsys.stderr.write('x')",
        "from sys import argv",
        "x = open('f')",
        "print('x')",
        "f = print",
        "key = hash('stream')",
        "order = sorted(things, key=id)",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import datetime as dt\nx = dt.utcnow()",
        "import datetime as d\nx = d.date.today",
    ],
)
def test_the_check_sees(source: str) -> None:
    assert list(findings(ast.parse(source), PURE_STDLIB | OURS)), source


@pytest.mark.parametrize(
    "source",
    [
        "from msgspec import Struct",
        "from datetime import datetime\nx = datetime.fromisoformat('2026-01-01')",
        "from urllib.parse import unquote",
        "from hashlib import blake2b\nx = blake2b(b'').digest()",
        "def lookup(id: int) -> int:\n    return id",
        "x = record.hash",
        "import sys\nx = sys.intern('text/plain')",
        "clock.now()",
    ],
)
def test_the_check_lets_pass(source: str) -> None:
    assert not list(findings(ast.parse(textwrap.dedent(source)), PURE_STDLIB | OURS)), source
