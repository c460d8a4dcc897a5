"""How many messages one request may bring: each costs every replica about a microsecond of its only loop."""

import pytest

from anabranch_node.web.request import BadRequest, Head, parse
from anabranch_node.web.write import MESSAGES_MAX, command


def _append(count: int) -> None:
    request = parse(Head(b"POST", b"/v1/stream/s", [(b"host", b"h"), (b"content-type", b"application/json")]))
    command(request, b"[" + b",".join([b"1"] * count) + b"]")


def test_a_batch_has_a_limit() -> None:
    _append(MESSAGES_MAX)
    with pytest.raises(BadRequest) as refused:
        _append(MESSAGES_MAX + 1)
    assert refused.value.reply.status == 413 and b"too_many_messages" in refused.value.reply.body
