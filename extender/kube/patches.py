"""Patches of one known version of an object.

A patch whose response was lost is not sealed, since it reserves nothing. The caller reads the object again, or writes
on its new version, so that the API server refuses the late patch.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from extender.kube import objects
from extender.kube.commit import Outcome, Result, Target, Term, commit
from extender.kube.decoding import Decoder
from extender.kube.transport import ApiError, Transport

T = TypeVar("T", bound=objects.Named)

Annotations = Mapping[str, str | None]
"""By key; None removes the key."""


async def read(transport: Transport, path: str, decoder: Decoder[T], uid: str = "") -> T | None:
    """Return an object, None if it is gone or its name has another UID. Raises ClusterError, DecodeError."""
    try:
        found = decoder.decode(await transport.get(path))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found if found.metadata.uid == uid or not uid else None


class Patch(Target[T]):
    """A merge patch of an object at a path; `part` is "" or a subresource such as "/status"."""

    seals = False

    def __init__(
        self,
        transport: Transport,
        path: str,
        decoder: Decoder[T],
        *,
        uid: str = "",
        part: str = "",
        metadata: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__("", uid or path, f"writing {path}{part}")
        self._transport, self._path, self._decoder, self._uid, self._part = transport, path, decoder, uid, part
        self.metadata: Mapping[str, Any] = metadata or {}
        self.fields = fields

    async def send(self, version: str) -> T | None:
        own = {"uid": self._uid} if self._uid else {}
        body = {"metadata": {**own, **self.metadata, "resourceVersion": version}, **self.fields}
        answer = await self._transport.patch(self._path + self._part, msgspec.json.encode(body))
        return self._decoder.decode(answer)

    async def read(self) -> T | None:
        return await read(self._transport, self._path, self._decoder, self._uid)

    seal = read

    def judge(self, found: T | None, *, sealed: bool) -> Outcome | None:
        return Outcome.GONE if found is None else None

    def settle(self, result: Result[T]) -> None:
        """Nothing is reserved."""


async def write(patch: Patch[T], term: Term | None, version: str) -> T | None:
    """Patch a version of an object, within `term` if given, and return the object afterwards.

    Returns None if the object had changed before, is gone, or a precondition failed. Raises FencedError, also if the
    patch took effect but another process may lead by now; ClusterError if the API server refuses or the outcome is
    unknown; DecodeError.
    """
    result = await commit(patch, term, version=version)
    error = result.error
    if result.outcome is Outcome.DONE:
        if term is not None and error is not None:
            await term.confirm_now()  # the version was read, not returned by the write
        return result.found
    if result.outcome in (Outcome.CONFLICT, Outcome.GONE) or error is None:
        return None
    if isinstance(error, ApiError) and error.status in (404, 422) and await patch.read() is None:
        return None  # the name now has another UID
    raise error
