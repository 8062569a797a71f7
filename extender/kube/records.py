"""Optimistic writes of ConfigMaps and Secrets: of two concurrent writers, one gets a conflict."""

from collections.abc import Mapping
from typing import Any, Final

from extender.kube import objects, patches
from extender.kube.commit import Outcome, commit
from extender.kube.decoding import Decoder
from extender.kube.patches import Annotations, Patch
from extender.kube.transport import ClusterError, Transport


class Record(objects.Named, rename="camel"):
    """A ConfigMap, or a Secret with its base64-encoded data."""

    data: dict[str, str] | None = None
    binary_data: dict[str, Any] | None = None
    """Base64-encoded strings, but not validated."""


_decoder: Final = Decoder(Record, whole=True)


async def read(transport: Transport, path: str) -> Record | None:
    """Return a record, or None if it does not exist. Raises ClusterError, DecodeError."""
    return await patches.read(transport, path, _decoder)


async def write(
    transport: Transport,
    path: str,
    version: str,
    *,
    data: Annotations | None = None,
    binary_data: Annotations | None = None,
    annotations: Annotations | None = None,
) -> str:
    """Patch a version of a record, and return its new version.

    If the response is lost, the write counts as done once the record has the new values. Raises ClusterError, also if
    another process has written meanwhile; DecodeError.
    """
    result = await commit(
        _Write(transport, path, data or {}, binary_data or {}, annotations or {}), None, version=version
    )
    if result.outcome is Outcome.DONE and result.found is not None:
        return result.found.metadata.resource_version
    raise result.error or ClusterError(f"{path} is gone")


class _Write(Patch[Record]):
    """A patch that is done once the record has its values."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        data: Annotations,
        binary_data: Annotations,
        annotations: Annotations,
    ) -> None:
        fields: dict[str, Any] = {name: value for name, value in (("data", data), ("binaryData", binary_data)) if value}
        metadata = {"annotations": annotations} if annotations else {}
        super().__init__(transport, path, _decoder, metadata=metadata, **fields)
        self._data, self._binary_data, self._annotations = data, binary_data, annotations

    def judge(self, found: Record | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        written = (
            _has(found.data, self._data),
            _has(found.binary_data, self._binary_data),
            _has(found.metadata.annotations, self._annotations),
        )
        return Outcome.DONE if all(written) else None


def _has(current: Mapping[str, Any] | None, changes: Annotations) -> bool:
    return all((current or {}).get(name) == value for name, value in changes.items())
