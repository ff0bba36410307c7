from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DelayedMessage(_message.Message):
    __slots__ = ("topic", "message", "contentType", "metadata", "bulkPublish")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CONTENTTYPE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    BULKPUBLISH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message: bytes
    contentType: str
    metadata: _containers.ScalarMap[str, str]
    bulkPublish: bool
    def __init__(self, topic: _Optional[str] = ..., message: _Optional[bytes] = ..., contentType: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., bulkPublish: _Optional[bool] = ...) -> None: ...
