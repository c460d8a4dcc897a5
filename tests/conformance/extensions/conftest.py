"""Fixtures of the extensions' suite. Where the nodes are is in STREAMS_URLS (run.py sets it); without it there is nothing to test here, so that a
plain `pytest` over tests/ passes us by."""

import os
import uuid
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.conformance.extensions.client import Streams

collect_ignore_glob = [] if os.environ.get("STREAMS_URLS") else ["test_*.py"]


@pytest.fixture(scope="session")
def http() -> Iterator[Streams]:
    streams = Streams(os.environ["STREAMS_URLS"].split(","))
    yield streams
    streams.hang_up()


@pytest.fixture
def fresh() -> Callable[[], str]:
    """Names that nobody else uses: valid as a bucket and as a stream."""
    prefix, numbers = f"t-{uuid.uuid4().hex[:12]}", count()
    return lambda: f"{prefix}-{next(numbers)}"


@pytest.fixture
def bucket(http: Streams, fresh: Callable[[], str]) -> str:
    name = fresh()
    http.put(f"/ds/{name}").expect(201)
    return name


@pytest.fixture
def stream(fresh: Callable[[], str]) -> str:
    """The path of a stream that does not exist yet, on the surface that needs no bucket to be made first."""
    return f"/v1/stream/{fresh()}"
