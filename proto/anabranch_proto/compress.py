"""The only door to zstd. Snapshot chunks pass here; cold blocks will too.

Level 1: snapshots are written while appends are served, and the higher levels cost more CPU than the disk they save.
One compressor per thread: sharing one between two threads crashes the process."""

import threading

import zstandard


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1, write_content_size=True, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_mine = _PerThread()


def compress(data: bytes) -> bytes:
    return _mine.compressor.compress(data)


def decompress(data: bytes, size_max: int) -> bytes:
    """Raises ValueError for damaged input and for anything that would expand past `size_max`."""
    try:
        size = zstandard.frame_content_size(data)
        if size < 0 or size > size_max:
            raise ValueError(f"compressed block claims {size} bytes, at most {size_max} are allowed")
        return _mine.decompressor.decompress(data, max_output_size=size_max)
    except zstandard.ZstdError as error:
        raise ValueError(f"compressed block does not decode: {error}") from error
