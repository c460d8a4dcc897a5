"""What a pure layer may use of the standard library, as tables and one walk over a syntax tree. test_purity.py applies it to our layers.

pyproject.toml's import contracts say which of OUR packages a layer may import. They cannot say "nothing else of the standard library", and
they do not see names that need no import: open(), print(), hash(). An allow-list, because a list of what is forbidden is never complete."""

import ast
from collections.abc import Iterator

RAFT_STDLIB = frozenset({"__future__", "bisect", "collections", "dataclasses", "enum", "heapq", "itertools", "math", "struct", "typing"})
PURE_STDLIB = RAFT_STDLIB | {
    *("abc", "array", "base64", "binascii", "contextlib", "copy", "datetime", "functools", "hashlib", "hmac", "json", "operator", "re"),
    *("string", "sys", "textwrap", "types", "urllib", "weakref"),
}

IMPURE_BUILTINS = {
    "open": "touches files",
    "print": "writes to the terminal; pure layers return facts",
    "input": "reads the terminal",
    "breakpoint": "stops the process",
    "exec": "runs code that no reader sees",
    "eval": "runs code that no reader sees",
    "__import__": "imports past this check",
    "hash": "differs between processes for str and bytes",
    "id": "is an address, and differs between runs",
}
IMPURE_ATTRIBUTES = {
    "datetime.datetime.now": "reads the clock; time comes in as now_ms",
    "datetime.datetime.utcnow": "reads the clock; time comes in as now_ms",
    "datetime.datetime.today": "reads the clock; time comes in as now_ms",
    "datetime.date.today": "reads the clock; time comes in as now_ms",
    "urllib.request": "opens sockets",
}
SYS_ATTRIBUTES = {"sys.byteorder", "sys.intern", "sys.maxsize"}
"""All that a pure layer may use of sys, which otherwise is the process and its surroundings. byteorder: to write the same bytes everywhere."""


def findings(tree: ast.Module, packages: frozenset[str]) -> Iterator[str]:
    """What breaks purity in this module, as `line N: why`. `packages` are the top-level names that it may import."""
    origins: dict[str, str] = {}
    shadowed = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | _assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    origins[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    origins[top] = top
                yield from _import_findings(node, alias.name, packages)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield f"line {node.lineno}: a relative import; spell the whole name, so that a reader can search for it"
                continue
            module = node.module or ""
            yield from _import_findings(node, module, packages)
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{module}.{alias.name}"
                yield from _attribute_findings(node, f"{module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in IMPURE_BUILTINS and node.id not in shadowed:
            yield f"line {node.lineno}: {node.id}() {IMPURE_BUILTINS[node.id]}"
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node, origins)
            if dotted is not None:
                yield from _attribute_findings(node, dotted)


def _import_findings(node: ast.stmt, module: str, packages: frozenset[str]) -> Iterator[str]:
    top = module.partition(".")[0]
    if top not in packages:
        yield f"line {node.lineno}: imports {module}, which this layer may not"
    yield from _attribute_findings(node, module)


def _attribute_findings(node: ast.stmt | ast.expr, dotted: str) -> Iterator[str]:
    if dotted in IMPURE_ATTRIBUTES:
        yield f"line {node.lineno}: {dotted} {IMPURE_ATTRIBUTES[dotted]}"
    if dotted.startswith("sys.") and dotted not in SYS_ATTRIBUTES:
        yield f"line {node.lineno}: {dotted} belongs to the process, not to a decision"


def _dotted(node: ast.Attribute, origins: dict[str, str]) -> str | None:
    """`dt.now` as `datetime.datetime.now` when dt was imported so; None when the expression does not start at an import."""
    names = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name) or value.id not in origins:
        return None
    return ".".join([origins[value.id], *reversed(names)])


def _assigned(tree: ast.Module) -> set[str]:
    """Names the module defines itself: its own hash or id is not the builtin."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
