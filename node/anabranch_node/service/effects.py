"""The vocabulary between the service and the client plane, beside core/effects.py: requests in, bytes out.

A token names one request of one client; bytes are whole HTTP responses, or pieces of one that goes on. The driver performs them in order."""

from typing import Any

from msgspec import Struct

from anabranch_node.web.request import Request

# --- events ----------------------------------------------------------------------------------------------------------------------


class RequestArrived(Struct, frozen=True):
    """Head and body are complete and within their limits."""

    token: int
    request: Request
    body: bytes


class RequestGone(Struct, frozen=True):
    """The client left before its answer was complete."""

    token: int


class Taken(Struct, frozen=True):
    """The client has taken what was sent of a paced response: nothing of it waits in our memory any more."""

    token: int


class Ask(Struct, frozen=True):
    """The node itself asks a group (joining, listing); answered by Told."""

    token: int
    group: int
    write: bool
    payload: Any


class FramesDropped(Struct, frozen=True):
    """A frame to that node could not leave, and with it these requests: they did not happen, and may be sent again."""

    node: int
    requests: list[int] = []


class EndLive(Struct, frozen=True):
    """The node stops: live reads end at a message boundary, so that their clients go on elsewhere."""


# --- effects ---------------------------------------------------------------------------------------------------------------------


class Respond(Struct, frozen=True):
    token: int
    data: bytes


class Begin(Struct, frozen=True):
    """The head of a live response, and what is there to send already."""

    token: int
    data: bytes
    paced: bool = False
    """Say Taken when its client has taken this, and again after each Piece."""


class Piece(Struct, frozen=True):
    """More of a paced response."""

    token: int
    data: bytes


class Abort(Struct, frozen=True):
    """A response that has begun cannot be finished: its connection breaks off, so that nobody takes it for whole."""

    token: int


class Broadcast(Struct, frozen=True):
    """The same bytes to many live responses."""

    tokens: list[int]
    data: bytes


class End(Struct, frozen=True):
    """The last bytes of live responses."""

    tokens: list[int]
    data: bytes


class Told(Struct, frozen=True):
    token: int
    result: Any
