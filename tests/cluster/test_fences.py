"""The fence: shut unless a term is certain, and it forgets what another leader has touched."""

import pytest

from extender.cluster.fences import Fence, FencedError
from extender.cluster.objects import Metadata
from tests.cluster.builders import Clock

KEY = "kerf.dev/epoch-kerf"


def leading(clock: Clock, until: float = 1010.0) -> Fence:
    fence = Fence(clock, KEY)
    fence.take_over("taking over", lambda: until, lambda: "not renewed")
    fence.open("2-aa")
    return fence


def pod(version: str = "7", epoch: str | None = None) -> Metadata:
    return Metadata(uid="u", resource_version=version, annotations={KEY: epoch} if epoch else None)


def test_a_new_fence_is_shut() -> None:
    fence = Fence(Clock(), KEY)
    assert fence.standby() == fence.fault() == "standby: not started"


def test_a_take_over_is_no_standby_and_gives_nothing_away() -> None:
    fence = Fence(Clock(), KEY)
    fence.take_over("taking over", lambda: 1010.0, lambda: "not renewed")
    assert (fence.standby(), fence.fault()) == ("", "taking over")
    with pytest.raises(FencedError, match="taking over"):
        fence.enter()


def test_the_deadline_shuts_it_without_anybody_noticing() -> None:
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
    with pytest.raises(FencedError, match="another process has led meanwhile"):
        fence.check(epoch)


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        pytest.param(pod(), "7", id="never marked: newer than the term, or it will be marked by a successor"),
        pytest.param(pod(epoch="2-aa"), "7", id="marked by this process"),
        pytest.param(pod(epoch="3-bb"), "", id="marked by a successor"),
        pytest.param(pod(version=""), "", id="no version"),
    ],
)
def test_the_versions_that_a_binding_may_carry(metadata: Metadata, version: str) -> None:
    fence = leading(Clock())
    fence.note(pod("6"))
    fence.note(metadata)
    assert fence.version_of("u") == version


def test_without_election_marks_of_others_mean_nothing() -> None:
    assert Fence(Clock()).admits(pod(epoch="3-bb"))


def test_what_is_kept_is_bounded() -> None:
    fence = leading(Clock())
    for number in range(20_001):
        fence.note(Metadata(uid=str(number), resource_version="1"))
    assert (fence.version_of("0"), fence.version_of("1"), fence.version_of("20000")) == ("", "1", "1")
