"""Removal of deeply nested parts of JSON texts, vectorised."""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

_MAX_DEPTH: Final = 100
"""Levels kept. Nothing that Kerf reads lies deeper than 20."""
_CHUNK_BYTES: Final = 2**16

_SPACE, _QUOTE, _BACKSLASH = b' "\\'


def shallow(
    content: bytes | bytearray | msgspec.Raw, depth: int = _MAX_DEPTH, chunk_bytes: int = _CHUNK_BYTES
) -> bytearray:
    """Return a JSON text of the same length in which containers at `depth` levels are emptied to `{}` or `[]`.

    Works in chunks, since an object's author chooses its size.
    """
    result = bytearray(content)
    text = np.frombuffer(result, np.uint8)
    level, in_string, escaped = 0, False, False
    for start in range(0, len(text), chunk_bytes):
        chunk = text[start : start + chunk_bytes]
        is_escaped, escaped = _escaped(chunk, escaped)
        quotes = (chunk == _QUOTE) & ~is_escaped
        # Counts wrap around but keep their last bit; closing quotes count as outside, which does not matter.
        inside = (np.cumsum(quotes, dtype=np.uint8) + np.uint8(in_string)) & 1
        in_string = bool(inside[-1])
        lower = chunk | 0x20  # "[" and "{" are one bit apart, and so are "]" and "}"
        steps = ((lower == ord("{")).view(np.int8) - (lower == ord("}")).view(np.int8)) * (1 - inside.view(np.int8))
        after = np.cumsum(steps, dtype=np.int32)
        after += level
        level = int(after[-1])
        after -= np.maximum(steps, 0)  # an opening bracket has the level before it
        chunk[after > depth] = _SPACE
    return result


def _escaped(chunk: npt.NDArray[np.uint8], escaped: bool) -> tuple[npt.NDArray[np.bool_], bool]:
    """Return which bytes of a chunk are escaped, and whether the byte after it is.

    `escaped` tells whether the first byte is.
    """
    result = np.zeros(len(chunk) + 1, np.bool_)
    backslashes = chunk == _BACKSLASH
    if escaped:
        result[0] = True
        backslashes[0] = False  # escaped itself, it escapes nothing
    if backslashes.any():
        index = np.arange(len(chunk))
        last_other = np.maximum.accumulate(np.where(backslashes, -1, index))
        result[1:] = backslashes & ((index - last_other) % 2 == 1)
    return result[:-1], bool(result[-1])
