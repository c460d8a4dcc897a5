"""The judge of tests/clients, and how its curl client reads what curl prints. A judge that accepts everything would make that run worthless."""

import pytest

from tests.clients.curl_client import last_answer
from tests.clients.verdict import of_appends, of_producer, of_reader

ACKNOWLEDGED, REFUSED, UNKNOWN = "acknowledged", "refused", "unknown"


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        ([], []),
        ([0, 1, 2], [(0, ACKNOWLEDGED), (1, ACKNOWLEDGED), (2, ACKNOWLEDGED)]),
        ([0, 2], [(0, ACKNOWLEDGED), (1, UNKNOWN), (2, ACKNOWLEDGED)]),
        ([0, 1, 2], [(0, ACKNOWLEDGED), (1, UNKNOWN), (2, ACKNOWLEDGED)]),
        ([0, 2, 1], [(0, ACKNOWLEDGED), (1, UNKNOWN), (2, ACKNOWLEDGED)]),
        ([0, 1], [(0, ACKNOWLEDGED), (1, REFUSED), (1, REFUSED), (1, ACKNOWLEDGED)]),
        ([0], [(0, ACKNOWLEDGED), (1, REFUSED)]),
    ],
)
def test_what_a_stream_may_hold(stream: list[int], told: list[tuple[int, str]]) -> None:
    assert of_appends(stream, told) == []


@pytest.mark.parametrize(
    ("stream", "told", "wrong"),
    [
        ([0], [(0, ACKNOWLEDGED), (1, ACKNOWLEDGED)], "acknowledged and lost: 1"),
        ([0, 0], [(0, ACKNOWLEDGED)], "there 2 times: 0"),
        ([0, 1, 1], [(0, ACKNOWLEDGED), (1, UNKNOWN)], "there 2 times: 1"),
        ([0, 1], [(0, ACKNOWLEDGED), (1, REFUSED)], "refused and there: 1"),
        ([0, 7], [(0, ACKNOWLEDGED)], "never written: 7"),
        ([1, 0], [(0, ACKNOWLEDGED), (1, ACKNOWLEDGED)], "0 was acknowledged before 1 was written, and stands after it"),
        ([1, 0], [(0, ACKNOWLEDGED), (1, UNKNOWN)], "0 was acknowledged before 1 was written, and stands after it"),
    ],
)
def test_what_it_may_not(stream: list[int], told: list[tuple[int, str]], wrong: str) -> None:
    assert of_appends(stream, told) == [wrong]


def test_a_producer_is_exactly_once_and_in_order() -> None:
    assert of_producer([0, 1, 2], 3) == []
    assert of_producer([0, 2], 3) == ["lost: 1"]
    assert of_producer([0, 1, 1, 2], 3) == ["there 2 times: 1"]
    assert of_producer([0, 1, 2, 3], 3) == ["never written: 3"]
    assert of_producer([0, 2, 1], 3) == ["out of order"]


def test_a_reader_is_given_exactly_the_stream() -> None:
    assert of_reader("the tail", [0, 1, 2], [0, 1, 2]) == []
    assert of_reader("the tail", [0, 1, 1, 2], [0, 1, 2]) == ["the tail was given 4 messages and the stream has 3; at 2: [1, 2] against [2]"]
    assert of_reader("the tail", [0, 1], [0, 1, 2]) == ["the tail was given 2 messages and the stream has 3; at 2: [] against [2]"]


def test_the_last_answer_of_a_repeated_request_counts() -> None:
    refused = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy"
    done = b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 00000000000000000007\r\nContent-Length: 0\r\n\r\n"
    answer = last_answer(0, refused + refused + done)
    assert (answer.status, answer.headers["stream-next-offset"], answer.body) == (200, "00000000000000000007", b"")
    assert last_answer(0, refused).body == b"busy"
    assert last_answer(0, b"HTTP/1.1 204 No Content\r\n\r\n").status == 204
    assert last_answer(7, b"") == (7, 0, {}, b"")
