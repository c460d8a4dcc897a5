"""The tables of docs/protocol.md, made from the tables that the code itself works by. `python -m tests.tidy.protocol_page` writes them into the page.

The page's own text stands around them; between `<!-- name -->` and `<!-- end -->` nobody edits by hand, and test_generated.py compares. Codes that no
table holds are read from the source: each is a literal in a call of refuse(), error(), _stop() or BadPath()."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from anabranch_node.core.errors import Failure
from anabranch_node.core.stream.results import Refusal
from anabranch_node.web import reply, request, routes
from anabranch_node.web.errors import ANSWERS, Answer
from anabranch_node.web.request import METHODS, Kind
from tests.tidy.source_tree import ROOT, modules, parsed

PAGE: Final = ROOT / "docs" / "protocol.md"
SOURCES: Final = ("node/anabranch_node/web", "node/anabranch_node/service", "node/anabranch_node/drivers")
_REFUSING: Final = {"refuse": 0, "error": 0, "_stop": 0}
"""(status, code, text) from this argument on. BadPath names (code, text[, status])."""

DOES: Final[dict[Kind, str]] = {
    Kind.CREATE: "201 with `Location`, or 200 if it exists with the same settings; 409 otherwise. A body is the first append",
    Kind.APPEND: "204; with a producer 200 (new) or 204 (repeated)",
    Kind.DELETE: "204. While forks stand on it it is kept for them: 410 from then on, 409 for a new create",
    Kind.HEAD: "200 with settings, tail and earliest offset",
    Kind.READ: "200 with messages; 304 by `If-None-Match`; a long-poll without news 204",
    Kind.LIST: "200, names of all buckets in order",
    Kind.BATCH: "200 with one acknowledgement per frame, in order",
    Kind.SNAPSHOT_PUBLISH: "204; what lies before is no longer shown",
    Kind.SNAPSHOT_READ: "200 with its bytes and its own `Content-Type`",
    Kind.SNAPSHOT_LATEST: "307 to the latest one; 404 without one",
    Kind.SNAPSHOT_DELETE: "409 for the latest one, 404 for any other",
    Kind.BOOTSTRAP: "200, `multipart/mixed`: the snapshot, then one part per message",
    Kind.BUCKET_CREATE: "201; 409 if it exists",
    Kind.BUCKET_INFO: "200 with `bucket_id` and `streams`",
    Kind.BUCKET_LIST: "200 with the streams of the bucket in order, and their state",
    Kind.BUCKET_DELETE: "204; 409 unless it is empty",
}

_STREAM: Final = ["/v1/stream/{path}", "/ds/{bucket}/{stream}", "/{bucket}/{stream}"]
_BUCKET: Final = ["/ds/{bucket}", "/{bucket}"]
PATHS: Final[dict[str, list[str]]] = {
    routes.STREAM: _STREAM,
    **{place: [f"{path}/{place}" for path in _STREAM] for place in (routes.BATCH, routes.SNAPSHOT, routes.SNAPSHOT_AT, routes.BOOTSTRAP, routes.KEY)},
    routes.BUCKET: _BUCKET,
    routes.BUCKET_STREAMS: [f"{path}/streams" for path in _BUCKET],
    routes.STREAMS: ["/v1/streams"],
}


def tables() -> dict[str, str]:
    return {
        "routes": _table(("path", "method", "answer"), _routes()),
        "parameters of reads": _table(("parameter", "meaning"), [(f"`{name}`", text) for name, text in request.READ_PARAMETERS.items()]),
        "parameters of listings": _table(("parameter", "meaning"), [(f"`{name}`", text) for name, text in request.LIST_PARAMETERS.items()]),
        "request headers": _table(("header", "meaning"), [(f"`{name}`", text) for name, text in request.HEADERS.items()]),
        "response headers": _table(("header", "meaning"), [(f"`{name}`", text) for name, text in reply.HEADERS.items()]),
        "errors": _table(("status", "code", "when"), _errors()),
    }


def page(text: str) -> str:
    """The page with its tables as they must be."""
    for name, table in tables().items():
        text, found = re.subn(
            rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", lambda match, table=table: match[1] + table + match[2], text, flags=re.DOTALL
        )
        assert found == 1, f"docs/protocol.md has {found} places for the table of {name}"
    return text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _routes() -> list[tuple[str, ...]]:
    """Each path of a resource once; its methods are the same on every surface."""
    rows: list[tuple[str, ...]] = []
    for place, paths in PATHS.items():
        shown = ", ".join(f"`{path}`" for path in paths)
        for method, kind in METHODS[place].items():
            text = "a read with `key`" if place is routes.KEY else DOES[kind]
            rows.append((shown, f"`{method.decode()}`", text))
            shown = ""
    rows.append(("anything", "`OPTIONS`", "204, the same preflight for every path"))
    return rows


def _errors() -> list[tuple[str, ...]]:
    said: dict[tuple[int, str], list[str]] = {}
    for kind, row in ANSWERS.items():
        said.setdefault((row.status, row.code), []).append(_of_table(kind, row))
    for status, code, text in sorted(_literals()):
        texts = said.setdefault((status, code), [])
        if not text:  # it says what another status of the same code says
            text = next(texts[0] for (_, other), texts in said.items() if other == code and texts)
        if text not in texts:
            texts.append(text)
    return [(str(status), f"`{code}`", "; ".join(texts)) for (status, code), texts in sorted(said.items())]


def _of_table(kind: type[Failure] | type[Refusal], row: Answer) -> str:
    """What it tells a client, with dots for what it names."""
    text = str(kind(*["..."] * len(kind.__struct_fields__)))
    if text == kind.__name__:
        text = re.split(r"(?<=\.)\s", (kind.__doc__ or "").strip() + " ")[0].rstrip(". ")
    return f"{text} (`Retry-After: {row.retry_after_s}`)" if row.retry_after_s is not None else text


def _literals() -> Iterator[tuple[int, str, str]]:
    for path in modules(*SOURCES):
        if path.parent.name == "drivers" and not path.name.startswith("http_"):
            continue  # the admin plane has a page of its own
        for call in ast.walk(parsed(path)):
            if isinstance(call, ast.Call):
                yield from _of_call(call)


def _of_call(call: ast.Call) -> Iterator[tuple[int, str, str]]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    given = [arg.value if isinstance(arg, ast.Constant) else None for arg in call.args]
    if name == "BadPath" and isinstance(given[0], str):
        status = given[2] if len(given) > 2 else 400
        assert isinstance(status, int), ast.dump(call)
        yield status, given[0], _text(call.args[1])
    elif name in _REFUSING and len(given) > 2 and isinstance(given[0], int) and isinstance(given[1], str):
        yield given[0], given[1], _text(call.args[2])


def _text(message: ast.expr) -> str:
    """What it says; where it names a number or a header, only that it does."""
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in message.values)
    return ""


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
