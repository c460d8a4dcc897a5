"""What the log of a node is spared."""

import io
import logging
from collections.abc import Iterator

import pytest
from aiohttp.http_exceptions import BadStatusLine

from anabranch_node.drivers import telemetry


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root, server = logging.getLogger(), logging.getLogger("aiohttp.server")
    handlers, level, filters = root.handlers[:], root.level, server.filters[:]
    stream = io.StringIO()
    telemetry.configure_logging("info", "text", stream)
    yield stream
    root.handlers[:], server.filters[:] = handlers, filters
    root.setLevel(level)


def test_garbage_on_the_admin_port_does_not_fill_it(log: io.StringIO) -> None:
    for problem in (BadStatusLine("garbage"), ValueError("a bug of ours")):
        try:
            raise problem
        except (BadStatusLine, ValueError):
            logging.getLogger("aiohttp.server").exception("Error handling request")
    assert "a bug of ours" in log.getvalue()
    assert "BadStatusLine" not in log.getvalue()
