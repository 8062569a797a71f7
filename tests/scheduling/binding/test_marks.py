"""Changing pods: what is no answer, what is a refusal, and who is gone."""

import asyncio

import msgspec
import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import refused
from extender.kube.memory import MemoryCluster
from extender.scheduling.binding import change, read
from extender.scheduling.placer import PodIdentity
from tests.ledger.builders import Fault, FaultyTransport, pod_manifest

POD = PodIdentity("default", "p", "u")
KEY = "kerf.dev/sealed"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ApiError(422, "Invalid", 'Pod "p" is invalid: metadata.annotations: Too long: may not be more than ...'),
            True,
        ),
        (ApiError(422, "", "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"), True),
        (ApiError(403, "Forbidden", 'admission webhook "x" denied the request: no'), True),
        (ApiError(413, "RequestEntityTooLarge", ""), True),
        (ApiError(400, "BadRequest", ""), True),
        (ApiError(500, "", "etcdserver: request is too large"), True),
        (
            ApiError(403, "Forbidden", 'pods "p" is forbidden: User "kerf" cannot patch resource "pods/status" ...'),
            False,
        ),
        (ApiError(401, "Unauthorized", ""), False),
        (ApiError(404, "NotFound", ""), False),
        (ApiError(408, "Timeout", ""), False),
        (ApiError(409, "Conflict", ""), False),
        (ApiError(429, "TooManyRequests", ""), False),
        (ApiError(500, "InternalError", "etcdserver: request timed out"), False),
        (ApiError(503, "ServiceUnavailable", ""), False),
        (UnreachableError("reset"), False),
    ],
    ids=str,
)
def test_what_a_pod_refuses_and_what_is_to_be_tried_again(error: Exception, expected: bool) -> None:
    assert refused(error) is expected


def transport(*manifests: str, refusals: int = 0) -> FaultyTransport:
    """A cluster with pods "p" of these UIDs, the last of which is there; so many patches are refused."""
    cluster = MemoryCluster([pod_manifest("p", 1, uid=uid) for uid in manifests])
    faulty = FaultyTransport(cluster)
    faulty.patches.extend([Fault(ApiError(422, "Invalid", "no"))] * refusals)
    return faulty


def test_a_pod_is_changed_in_one_call_where_it_takes_it() -> None:
    line = transport("u")
    answer = asyncio.run(change(line, POD, KEY, "1"))
    assert answer is not None
    assert msgspec.json.decode(answer)["metadata"]["annotations"] == {KEY: "1"}
    assert [verb for verb, _, _ in line.calls] == ["PATCH"]


@pytest.mark.parametrize("uids", [(), ("another",)])
def test_a_pod_that_is_gone_is_not_changed(uids: tuple[str, ...]) -> None:
    line = transport(*uids)
    assert asyncio.run(change(line, POD, KEY, "1")) is None
    assert asyncio.run(read(line, POD)) is None


def test_two_changes_in_the_smaller_way_are_never_the_same() -> None:
    messages = set()
    for _ in range(2):
        line = transport("u", refusals=1)
        asyncio.run(change(line, POD, KEY, "1"))
        messages.add(line.inner.pod("default", "p")["status"]["message"])
    assert len(messages) == 2, "a patch that changes nothing would not change the resourceVersion"


def test_a_pod_that_refuses_both_says_so() -> None:
    with pytest.raises(ApiError) as raised:
        asyncio.run(change(transport("u", refusals=2), POD, KEY, "1"))
    assert refused(raised.value)
