"""The fence: shut unless a term is certain, and what it lets through is confirmed."""

import asyncio

import pytest

from extender.kube.commit import FencedError
from extender.kube.leadership import Election, Unelected
from extender.kube.objects import Metadata
from extender.scheduling.fence import Fence
from tests.ledger.builders import Clock


def leading(clock: Clock, election: Election | None = None) -> Fence:
    fence = Fence(clock, election)
    assert fence.standby() == fence.fault() == "standby: not started"
    fence.take_over("taking over", lambda: 1010.0, lambda: "not renewed")
    assert (fence.standby(), fence.fault()) == ("", "taking over")
    with pytest.raises(FencedError, match="taking over"):
        fence.enter()
    fence.open("2-aa")
    return fence


def pod(version: str = "7", epoch: str = "") -> Metadata:
    return Metadata(uid="u", resource_version=version, annotations={"kerf.dev/epoch-kerf": epoch} if epoch else None)


def test_the_deadline_shuts_it_by_itself() -> None:
    clock = Clock()
    fence = leading(clock)
    epoch = fence.enter()
    fence.check(epoch)
    clock.now = 1010.0
    with pytest.raises(FencedError, match="standby: not renewed"):
        fence.check(epoch)


def test_what_began_in_one_epoch_does_not_end_in_another() -> None:
    fence = leading(Clock())
    epoch = fence.enter()
    fence.shut(lambda: "b leads")
    fence.take_over("", lambda: 1010.0, str)
    fence.open("4-bb")
    with pytest.raises(FencedError, match="has ended"):
        fence.check(epoch)


class Requests(Unelected):
    """An election whose lease requests the test counts."""

    def __init__(self) -> None:
        self.num_asked = 7
        self.num_hurries = 0
        self.since: list[int] = []

    def request_confirmation(self) -> None:
        self.num_hurries += 1

    async def confirm(self, since: int) -> bool:
        self.since.append(since)
        return since < 9


def test_a_version_is_confirmed_by_a_request_sent_after_it_was_known() -> None:
    requests = Requests()
    fence = leading(Clock(), requests)
    fence.note(pod("6"))
    requests.num_asked = 8
    fence.note(pod("6"))  # it was known before
    asyncio.run(fence.confirm("u", "6"))
    fence.note(pod("7"))
    asyncio.run(fence.confirm("u", "7"))
    requests.num_asked = 9
    with pytest.raises(FencedError, match="can't be sure"):
        asyncio.run(fence.confirm("u", "another that was read just now"))
    with pytest.raises(FencedError):
        asyncio.run(fence.confirm_now())
    assert requests.since == [7, 8, 9, 9]
    assert requests.num_hurries == 2, "what may be bound soon is confirmed beforehand"


def test_a_binding_carries_the_version_that_was_noted_last() -> None:
    fence = leading(Clock())
    for metadata, version in ((pod("6"), "6"), (pod(epoch="3-bb"), "7"), (pod(version=""), "")):
        fence.note(metadata)
        assert fence.version_of("u") == version


def test_the_noted_versions_are_bounded() -> None:
    fence = leading(Clock())
    for number in range(20_001):
        fence.note(Metadata(uid=str(number), resource_version="1"))
    assert (fence.version_of("0"), fence.version_of("1"), fence.version_of("20000")) == ("", "1", "1")
