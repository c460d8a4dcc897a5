from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_UNSPECIFIED: _ClassVar[Lane]
    CONTROL: _ClassVar[Lane]
    BULK: _ClassVar[Lane]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    BAD_HELLO: _ClassVar[Reason]
    NEWER_VERSION: _ClassVar[Reason]
    WRONG_CLUSTER: _ClassVar[Reason]
    WRONG_NODE: _ClassVar[Reason]
    WRONG_INCARNATION: _ClassVar[Reason]
    UNKNOWN_NODE: _ClassVar[Reason]
LANE_UNSPECIFIED: Lane
CONTROL: Lane
BULK: Lane
REASON_UNSPECIFIED: Reason
BAD_HELLO: Reason
NEWER_VERSION: Reason
WRONG_CLUSTER: Reason
WRONG_NODE: Reason
WRONG_INCARNATION: Reason
UNKNOWN_NODE: Reason

class Identity(_message.Message):
    __slots__ = ("version", "cluster_id", "node_id", "incarnation")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    node_id: int
    incarnation: int
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("sender", "expected_node_id", "expected_incarnation", "lane")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    sender: Identity
    expected_node_id: int
    expected_incarnation: int
    lane: Lane
    def __init__(self, sender: _Optional[_Union[Identity, _Mapping]] = ..., expected_node_id: _Optional[int] = ..., expected_incarnation: _Optional[int] = ..., lane: _Optional[_Union[Lane, str]] = ...) -> None: ...

class Packet(_message.Message):
    __slots__ = ("hello", "frames", "part")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    part: Part
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., frames: _Optional[_Iterable[bytes]] = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("frame_bytes", "offset", "data")
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    frame_bytes: int
    offset: int
    data: bytes
    def __init__(self, frame_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    detail: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("receiver", "refusal")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    receiver: Identity
    refusal: Refusal
    def __init__(self, receiver: _Optional[_Union[Identity, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("sender", "method", "payload")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    sender: Identity
    method: str
    payload: bytes
    def __init__(self, sender: _Optional[_Union[Identity, _Mapping]] = ..., method: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class CallAnswer(_message.Message):
    __slots__ = ("payload", "refusal")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    refusal: Refusal
    def __init__(self, payload: _Optional[bytes] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...
