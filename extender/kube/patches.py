"""Changing an object as it is known: on that version of it, or not at all.

Nobody makes a patch fail whose answer was lost: it holds nothing by itself. Who writes reads the object again, or
writes on the version that it has then, which the late one is refused for.
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
"""By key; None takes one away."""


async def read(transport: Transport, path: str, decoder: Decoder[T], uid: str = "") -> T | None:
    """An object as it is now, None once it is gone, whoever has its name by now. Raises ClusterError, DecodeError."""
    try:
        found = decoder.decode(await transport.get(path))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found if found.metadata.uid == uid or not uid else None


class Patch(Target[T]):
    """What is to be changed of an object, by its path: `part` is "" or a subresource, `fields` are of the patch's top
    level."""

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
        """Nothing is held by it."""


async def write(patch: Patch[T], term: Term | None, version: str) -> T | None:
    """Change the object as it is in a version, in a term if it takes one; the object as it is then, None where it has
    changed before, is gone, or what the patch rests on does not stand.

    Raises FencedError, also where it is found to be done and another process may lead by now; ClusterError where the
    API server refuses, or where nobody knows what it did; DecodeError.
    """
    result = await commit(patch, term, version=version)
    error = result.error
    if result.outcome is Outcome.DONE:
        if term is not None and error is not None:
            await term.confirm_now()  # not by the answer: what is written next goes by a version that was read
        return result.found
    if result.outcome in (Outcome.CONFLICT, Outcome.GONE) or error is None:
        return None
    if isinstance(error, ApiError) and error.status in (404, 422) and await patch.read() is None:
        return None  # the UID of another object of its name is not valid
    raise error
