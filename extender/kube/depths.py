"""JSON texts without what lies too deep in them, by arrays."""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

_MAX_DEPTH: Final = 100
"""Levels that are kept of an object that is too deep. Nothing that Kerf reads lies deeper than 20."""
_CHUNK_BYTES: Final = 2**16

_SPACE, _QUOTE, _BACKSLASH = b' "\\'


def shallow(
    content: bytes | bytearray | msgspec.Raw, depth: int = _MAX_DEPTH, chunk_bytes: int = _CHUNK_BYTES
) -> bytearray:
    """A JSON text in which everything that lies deeper than so many levels is left out: `{}` or `[]` stands there.

    One pass by arrays, a chunk at a time: whoever writes an object settles its size.
    """
    result = bytearray(content)
    text = np.frombuffer(result, np.uint8)
    level, in_string, escaped = 0, False, False
    for start in range(0, len(text), chunk_bytes):
        chunk = text[start : start + chunk_bytes]
        is_escaped, escaped = _escaped(chunk, escaped)
        quotes = (chunk == _QUOTE) & ~is_escaped
        # Counts wrap around, their last bit does not; what a string's last quote belongs to matters to nobody.
        inside = (np.cumsum(quotes, dtype=np.uint8) + np.uint8(in_string)) & 1
        in_string = bool(inside[-1])
        lower = chunk | 0x20  # "[" and "{" are one bit apart, and so are "]" and "}"
        steps = ((lower == ord("{")).view(np.int8) - (lower == ord("}")).view(np.int8)) * (1 - inside.view(np.int8))
        after = np.cumsum(steps, dtype=np.int32)
        after += level
        level = int(after[-1])
        after -= np.maximum(steps, 0)  # of an opening bracket the level before it
        chunk[after > depth] = _SPACE
    return result


def _escaped(chunk: npt.NDArray[np.uint8], escaped: bool) -> tuple[npt.NDArray[np.bool_], bool]:
    """Which bytes follow an odd number of backslashes, and whether the byte after the chunk does.

    `escaped` says so of its first byte.
    """
    result = np.zeros(len(chunk) + 1, np.bool_)
    backslashes = chunk == _BACKSLASH
    if escaped:
        result[0] = True
        backslashes[0] = False  # it is what is escaped, and escapes nothing
    if backslashes.any():
        index = np.arange(len(chunk))
        last_other = np.maximum.accumulate(np.where(backslashes, -1, index))
        result[1:] = backslashes & ((index - last_other) % 2 == 1)
    return result[:-1], bool(result[-1])
