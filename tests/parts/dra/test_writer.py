"""Writes to claims: on the version that was decided on, and those that make older writes fail."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from extender.dra.objects import ResourceClaim
from extender.kube.client import ApiError, Transport
from extender.parts.dra.writer import _FINALIZER, ClaimWriter
from tests.dra.claim_api import ClaimApi

OTHERS = "example.com/keep"


class Api(ClaimApi):
    """One claim, of which something else may happen each time that it was read."""

    def __init__(self, *finalizers: str) -> None:
        super().__init__()
        self.add("a")["metadata"]["finalizers"] = list(finalizers)
        self.meanwhile: list[Callable[[], object]] = []

    @property
    def claim(self) -> ResourceClaim:
        return msgspec.convert(self.claims["a"], ResourceClaim)

    @property
    def writer(self) -> ClaimWriter:
        return ClaimWriter(cast(Transport, self))

    async def get(self, path: str, query: object = None) -> bytes:
        answer = await super().get(path, query)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return answer


def version(claim: ResourceClaim | None) -> int:
    assert claim is not None
    return int(claim.metadata.resource_version)


def test_another_claim_of_its_name_is_not_read() -> None:
    api = Api()
    claim = api.claim
    assert version(asyncio.run(api.writer.read(claim))) == version(claim)
    api.claims["a"]["metadata"]["uid"] = "another"
    assert asyncio.run(api.writer.read(claim)) is None


def test_a_claim_is_sealed_by_a_change_of_it_however_often_it_changes_meanwhile() -> None:
    api = Api(_FINALIZER)
    api.meanwhile = [lambda: api.take_away("a"), lambda: api.take_away("a")]
    known = api.claim
    sealed = asyncio.run(api.writer.seal(known))
    assert version(sealed) == version(api.claim) == version(known) + 3
    assert api.claim.metadata.finalizers == [_FINALIZER]


def test_a_claim_that_has_its_devices_or_is_gone_needs_no_seal() -> None:
    api = Api(_FINALIZER)
    known = api.claim
    api.claims["a"]["status"] = {"allocation": {"devices": {"results": []}}}
    assert version(asyncio.run(api.writer.seal(known))) == version(known)
    api.claims.clear()
    assert asyncio.run(api.writer.seal(known)) is None
    assert api.writes == []
    api = Api(_FINALIZER)
    known, api.meanwhile = api.claim, [api.claims.clear]
    assert asyncio.run(api.writer.seal(known)) is None


@pytest.mark.parametrize(
    ("before", "after"), [([OTHERS], [OTHERS, _FINALIZER]), ([_FINALIZER, OTHERS], [OTHERS]), ([], [_FINALIZER])]
)
def test_where_annotations_are_full_the_finalizer_comes_or_goes(before: list[str], after: list[str]) -> None:
    api = Api(*before)
    api.refuse = "annotations"
    known = api.claim
    assert version(asyncio.run(api.writer.seal(known))) == version(known) + 1
    assert api.claim.metadata.finalizers == after


def test_a_claim_that_nobody_can_write_needs_no_seal_but_a_failing_server_is_an_error() -> None:
    api = Api(_FINALIZER)
    api.fail = lambda name, part: ApiError(500, "", "etcdserver: request is too large")
    assert version(asyncio.run(api.writer.seal(api.claim))) == version(api.claim)
    api.fail = lambda name, part: ApiError(503, "ServiceUnavailable", "starting")
    with pytest.raises(ApiError, match="starting"):
        asyncio.run(api.writer.seal(api.claim))


def test_a_claim_is_protected_once_and_keeps_the_finalizers_of_others() -> None:
    api = Api(OTHERS)
    protected = asyncio.run(api.writer.protect(api.claim))
    assert protected is not None
    assert protected.metadata.finalizers == [OTHERS, _FINALIZER]
    assert asyncio.run(api.writer.protect(protected)) is protected
    assert len(api.writes) == 1
