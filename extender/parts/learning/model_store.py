"""The ConfigMap of fitted models: the candidate, the serving one and their course.

Anyone who may write it in Kerf's namespace may submit a model; its contents are validated as any model is. Kerf's
writes carry the resourceVersion, so that concurrent writes conflict.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from extender.kube import records
from extender.kube.client import Transport
from extender.ranking.files import MANIFEST, WEIGHTS
from extender.ranking.rollout import Rollout

_COURSE: Final = "kerf.dev/learning"
"""Annotation: the course, as JSON."""
_PIN: Final = "kerf.dev/pin"
"""Annotation that pins the serving model: `released`, or the beginning of a model's SHA-256."""
CANDIDATE: Final = "candidate."
SERVING: Final = "serving."
_course_decoder: Final = msgspec.json.Decoder(Rollout)
Contents = dict[str, bytes]
"""A model's files by name; empty for no model."""


@dataclass(frozen=True, slots=True)
class StoredModels:
    """The contents of the ConfigMap."""

    version: str
    course: Rollout
    pin: str
    candidate: Contents
    serving: Contents


class LearnedModels:
    """Reads and writes the ConfigMap."""

    def __init__(self, transport: Transport, namespace: str, name: str) -> None:
        self._transport = transport
        self.namespace, self.name = namespace, name
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"

    async def read(self) -> StoredModels | None:
        """The contents, None if there is no such ConfigMap. Raises ClusterError, DecodeError."""
        found = await records.read(self._transport, self._path)
        if found is None:
            return None
        annotations = found.metadata.annotations or {}
        try:
            course = _course_decoder.decode(annotations.get(_COURSE, "{}"))
        except msgspec.DecodeError:
            course = Rollout()
        held = found.binary_data or {}
        candidate, serving = (_contents(held, slot) for slot in (CANDIDATE, SERVING))
        version = found.metadata.resource_version
        return StoredModels(version, course, annotations.get(_PIN, "").strip(), candidate, serving)

    async def write(self, shelf: StoredModels, course: Rollout, changes: dict[str, Contents]) -> None:
        """Write the course and the models of some slots; empty contents clear a slot. Raises ClusterError."""
        data: dict[str, str | None] = {}
        for slot, contents in changes.items():
            for name in (MANIFEST, WEIGHTS):
                data[slot + name] = b64encode(contents[name]).decode() if contents else None
        annotations = {_COURSE: msgspec.json.encode(course).decode()}
        await records.write(self._transport, self._path, shelf.version, binary_data=data, annotations=annotations)

    async def hand_in(self, contents: Contents, *, replace: bool) -> str:
        """Submit a model; returns "", or the SHA-256 of the model on trial if there is one and `replace` is false.

        A model that is fitted each night must not end the trial of the one before. Raises ClusterError, DecodeError.
        """
        shelf = None if replace else await self.read()
        if shelf is not None and shelf.course.candidate and shelf.candidate:
            return shelf.course.candidate
        data = {CANDIDATE + name: b64encode(contents[name]).decode() for name in (MANIFEST, WEIGHTS)}
        await self._transport.patch(self._path, msgspec.json.encode({"binaryData": data}))
        return ""


def _contents(held: dict[str, Any], slot: str) -> Contents:
    found: Contents = {}
    for name in (MANIFEST, WEIGHTS):
        try:
            found[name] = b64decode(held[slot + name], validate=True)
        except KeyError:
            continue
        except (ValueError, TypeError):
            found[name] = b""
    return found
