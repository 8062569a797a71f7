"""Decoding what the API server sends, as deep as it may be: objects go to 10,000 levels there, msgspec to about 1,000.

Whoever writes an object can nest what Kerf never reads: the parameters of a ResourceClaim's driver, a pod's own
`managedFields`. So what can't be decoded for its depth is decoded once more without what lies deeper than anything
that Kerf reads. Ordinary objects are decoded as by msgspec alone, in one pass.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from extender.core.resources.nodes import GPU_RESOURCE
from extender.kube import objects

T = TypeVar("T")

MAX_DEPTH: Final = 100
"""Levels that are kept of an object that is too deep. Nothing that Kerf reads lies deeper than 20."""
_MORE_THAN_ANY: Final = 2**30
_CHUNK_BYTES: Final = 2**16

_SPACE, _QUOTE, _BACKSLASH = b' "\\'
_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text_decoder: Final = msgspec.json.Decoder(str)


class Decoder(Generic[T]):
    """A decoder of one type for texts of any depth. What it can't decode is always a DecodeError."""

    def __init__(self, kind: type[T], *, whole: bool = False) -> None:
        """With `whole` what is too deep is an error: of what goes back to the API server nothing may be left out."""
        self._decode = msgspec.json.Decoder(kind).decode
        self._whole = whole

    def decode(self, content: bytes | msgspec.Raw) -> T:
        """Raises DecodeError."""
        try:
            return self._decode(content)
        except RecursionError as error:
            if self._whole:
                raise msgspec.DecodeError(f"it is nested too deep: {error}") from None
        except UnicodeDecodeError as error:  # the one error of text that msgspec lets through
            raise msgspec.DecodeError(f"it is not UTF-8: {error}") from None
        try:
            return self._decode(shallow(content))
        except (RecursionError, UnicodeDecodeError) as error:
            raise msgspec.DecodeError(str(error)) from None


class Outline(msgspec.Struct, gc=False):
    """Which object it is, of one that can't be decoded: what can't be told is ""."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    node: str
    """Of a pod."""
    phase: str

    @property
    def key(self) -> str:
        """`namespace/name`, or the name."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def finished(self) -> bool:
        """Of a pod: whether it has ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def metadata(self) -> objects.Metadata:
        """As far as it is known."""
        return objects.Metadata(self.name, self.namespace, self.uid, self.resource_version)


def stand_in(pod: Outline, kind: type[T]) -> T:
    """What is counted with in place of a pod that can't be read: it asks for more GPUs than any node has.

    So no GPU of its node is given away, or, where it has no node, it is taken for one that asks for GPUs.
    """
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "resourceVersion": pod.resource_version}
    container = {"resources": {"requests": {GPU_RESOURCE: str(_MORE_THAN_ANY)}}}
    spec = {"nodeName": pod.node or None, "containers": [container]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": pod.phase}}, kind)


def outline(content: bytes | msgspec.Raw) -> Outline:
    """What can be told of an object whose fields are not as they should be. Never fails."""
    item = _fields(shallow(content))
    metadata, spec, status = (_fields(item.get(part, b"null")) for part in ("metadata", "spec", "status"))
    return Outline(
        name=_text(metadata, "name"),
        namespace=_text(metadata, "namespace"),
        uid=_text(metadata, "uid"),
        resource_version=_text(metadata, "resourceVersion"),
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase"),
    )


def shallow(content: bytes | msgspec.Raw, depth: int = MAX_DEPTH, chunk_bytes: int = _CHUNK_BYTES) -> bytearray:
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


def _fields(content: Any) -> Mapping[str, msgspec.Raw]:
    try:
        return _fields_decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _text(fields: Mapping[str, msgspec.Raw], name: str) -> str:
    try:
        return _text_decoder.decode(fields.get(name, b'""'))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
