"""The only door to zstd. Snapshot chunks pass here; cold blocks will too.

Level 1: snapshots are written while appends are served, and the higher levels cost more CPU than the disk they save."""

import zstandard

_compressor = zstandard.ZstdCompressor(level=1, write_content_size=True, write_checksum=False)


def compress(data: bytes) -> bytes:
    return _compressor.compress(data)


def decompress(data: bytes, size_max: int) -> bytes:
    """Raises ValueError for damaged input and for anything that would expand past `size_max`."""
    try:
        size = zstandard.frame_content_size(data)
        if size < 0 or size > size_max:
            raise ValueError(f"compressed block claims {size} bytes, at most {size_max} are allowed")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_max)
    except zstandard.ZstdError as error:
        raise ValueError(f"compressed block does not decode: {error}") from error
