"""Decoding what the API server sends, as deep as it may be: objects go to 10,000 levels there, msgspec to about 1,000.

Whoever writes an object can nest what Kerf never reads: the parameters of a ResourceClaim's driver, a pod's own
`managedFields`. So what can't be decoded for its depth is decoded once more without what lies deeper than anything
that Kerf reads. And null is read as Go reads it, `nulls.py`. Ordinary objects are decoded as by msgspec alone, in one
pass.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from extender.kube import objects
from extender.kube.nulls import without_nulls

T = TypeVar("T")

_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text_decoder: Final = msgspec.json.Decoder(str)


class Decoder(Generic[T]):
    """A decoder of one type for what Go writes, of any depth. What it can't decode is always a DecodeError."""

    def __init__(self, kind: type[T], *, whole: bool = False) -> None:
        """With `whole` what is too deep is an error: of what goes back to the API server nothing may be left out."""
        self._kind = kind
        self._decode: Callable[[bytes | bytearray | msgspec.Raw], T] = msgspec.json.Decoder(kind).decode
        self._whole = whole

    def decode(self, content: bytes | bytearray | msgspec.Raw) -> T:
        """Raises DecodeError."""
        try:
            return self._decode_shallow(content)
        except RecursionError as error:
            if self._whole:
                raise msgspec.DecodeError(f"it is nested too deep: {error}") from None
        except UnicodeDecodeError as error:  # the one error of text that msgspec lets through
            raise msgspec.DecodeError(f"it is not UTF-8: {error}") from None
        try:
            return self._decode_shallow(shallow(content))
        except (RecursionError, UnicodeDecodeError) as error:
            raise msgspec.DecodeError(str(error)) from None

    def _decode_shallow(self, content: bytes | bytearray | msgspec.Raw) -> T:
        try:
            return self._decode(content)
        except msgspec.ValidationError:
            if b"null" not in bytes(content):
                raise
        return self._decode(without_nulls(content, self._kind))


def convert(manifest: Any, kind: type[T]) -> T:
    """Data as a type, null as `Decoder` reads it. Raises msgspec.ValidationError, which names the place."""
    try:
        return msgspec.convert(manifest, kind)
    except msgspec.ValidationError as error:
        try:
            content = without_nulls(msgspec.json.encode(manifest), kind)
        except (TypeError, ValueError, OverflowError, RecursionError):  # it is no JSON
            raise error from None
        return msgspec.json.decode(content, type=kind)


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


def shallow(content: bytes | bytearray | msgspec.Raw, *limits: int) -> bytearray:
    """As `depths.shallow`, which loads NumPy: no sooner than a text is too deep, since the node agent needs it for
    nothing else."""
    from extender.kube import depths  # noqa: PLC0415

    return depths.shallow(content, *limits)


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
