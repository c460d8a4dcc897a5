"""When two content types are the same: media types are compared without case, and parameters such as charset do not count.

A stream keeps the spelling of its create, and answers with it."""

from functools import lru_cache


def same_media_type(left: str, right: str) -> bool:
    return left == right or media_type(left) == media_type(right)


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


@lru_cache(256)
def is_json(content_type: str) -> bool:
    return content_type == "application/json" or media_type(content_type) == "application/json"
