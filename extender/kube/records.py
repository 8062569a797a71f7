"""What several processes write down in one ConfigMap or Secret: each write carries the version that it goes by.

Of two that write at once one hears that it was late.
"""

from collections.abc import Mapping
from typing import Any, Final

from extender.kube import objects, patches
from extender.kube.commit import Outcome, commit
from extender.kube.decoding import Decoder
from extender.kube.patches import Annotations, Patch
from extender.kube.transport import ClusterError, Transport


class Record(objects.Named, rename="camel"):
    """A ConfigMap, or a Secret, whose data are in base64."""

    data: dict[str, str] | None = None
    binary_data: dict[str, Any] | None = None
    """In base64, unless somebody has had other ideas."""


_decoder: Final = Decoder(Record, whole=True)


async def read(transport: Transport, path: str) -> Record | None:
    """A record as it is, None where it is not there. Raises ClusterError, DecodeError."""
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
    """Write on a version of a record; the version that it has then. Where an answer was lost and the record says
    already what is to be written, it is written.

    Raises ClusterError, also where somebody else has written meanwhile; DecodeError.
    """
    result = await commit(
        _Write(transport, path, data or {}, binary_data or {}, annotations or {}), None, version=version
    )
    if result.outcome is Outcome.DONE and result.found is not None:
        return result.found.metadata.resource_version
    raise result.error or ClusterError(f"{path} is gone")


class _Write(Patch[Record]):
    """What is to be written."""

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
        same = (
            _says(found.data, self._data),
            _says(found.binary_data, self._binary_data),
            _says(found.metadata.annotations, self._annotations),
        )
        return Outcome.DONE if all(same) else None


def _says(held: Mapping[str, Any] | None, changes: Annotations) -> bool:
    """Whether something is as it is to be."""
    return all((held or {}).get(name) == value for name, value in changes.items())
