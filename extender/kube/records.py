"""What several processes write down in one ConfigMap or Secret: each write carries the version that it goes by.

Of two that write at once one hears that it was late.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from extender.kube import objects
from extender.kube.commit import Outcome, Result, Target, commit
from extender.kube.decoding import Decoder
from extender.kube.transport import ApiError, ClusterError, Transport


class Record(objects.Named, rename="camel"):
    """A ConfigMap, or a Secret, whose data are in base64."""

    data: dict[str, str] | None = None
    binary_data: dict[str, Any] | None = None
    """In base64, unless somebody has had other ideas."""


Changes = Mapping[str, str | None]
"""By name; None takes one away."""

_decoder: Final = Decoder(Record, whole=True)


async def read(transport: Transport, path: str) -> Record | None:
    """A record as it is, None where it is not there. Raises ClusterError, DecodeError."""
    try:
        return _decoder.decode(await transport.get(path))
    except ApiError as error:
        if error.status != 404:
            raise
    return None


async def write(
    transport: Transport,
    path: str,
    version: str,
    *,
    data: Changes | None = None,
    binary_data: Changes | None = None,
    annotations: Changes | None = None,
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


class _Write(Target[Record]):
    """What is to be written. Nobody makes it fail: what is written later is refused for its version."""

    def __init__(
        self, transport: Transport, path: str, data: Changes, binary_data: Changes, annotations: Changes
    ) -> None:
        super().__init__("", path, f"writing {path}")
        self.seals = False
        self._transport, self._path = transport, path
        self._data, self._binary_data, self._annotations = data, binary_data, annotations

    async def send(self, version: str) -> Record | None:
        metadata: dict[str, Any] = {"resourceVersion": version}
        body: dict[str, Any] = {"metadata": metadata}
        if self._annotations:
            metadata["annotations"] = self._annotations
        if self._data:
            body["data"] = self._data
        if self._binary_data:
            body["binaryData"] = self._binary_data
        return _decoder.decode(await self._transport.patch(self._path, msgspec.json.encode(body)))

    async def read(self) -> Record | None:
        return await read(self._transport, self._path)

    seal = read

    def judge(self, found: Record | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        same = (
            _says(found.data, self._data),
            _says(found.binary_data, self._binary_data),
            _says(found.metadata.annotations, self._annotations),
        )
        return Outcome.DONE if all(same) else None

    def settle(self, result: Result[Record]) -> None:
        """Nothing is held by it."""


def _says(held: Mapping[str, Any] | None, changes: Changes) -> bool:
    """Whether something is as it is to be."""
    return all((held or {}).get(name) == value for name, value in changes.items())
