"""Failed writes back off: one object's own failure holds up no other."""

import pytest

from extender.kube.background import Backoff
from extender.kube.transport import ApiError, UnreachableError
from extender.kube.turns import Backoffs, in_turn
from tests.kube.test_rights import forbidden

OWN = ApiError(422, "Invalid", "spec is immutable")
NO_RIGHT = forbidden("patch", "pods")
AWAY = UnreachableError("PATCH /api/v1/namespaces/a/pods/p: refused")


@pytest.mark.parametrize(
    ("error", "most", "least", "general"), [(OWN, 17, 11, False), (NO_RIGHT, 17, 11, True), (AWAY, 124, 44, True)]
)
def test_a_failing_write_backs_off_alone_or_with_its_namespace(
    error: Exception, most: int, least: int, general: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for jitter, expected in ((min, most), (max, least)):
        monkeypatch.setattr("random.uniform", jitter)
        pauses, num_tries = Backoffs(), 0
        for step in range(3000):  # ten times a second
            if pauses.why("a", "p", step / 10) is None:
                num_tries += 1
                pauses.failed("a", "p", error, step / 10)
            assert pauses.why("b", "p", step / 10) is None
            assert pauses.why("a", "q", step / 10) is (pauses.why("a", "p", step / 10) if general else None)
        assert num_tries == expected


def test_the_first_retry_is_immediate_and_of_concurrent_failures_the_first_counts() -> None:
    pauses = Backoffs()
    assert pauses.failed("a", "p", OWN, 0.0) == 0.0
    assert pauses.why("a", "p", 0.0) is None
    assert 0.25 <= pauses.failed("a", "p", OWN, 0.0) <= 0.75
    assert pauses.why("a", "p", 0.1) is OWN
    assert max(pauses.failed("a", f"p{number}", AWAY, 0.0) for number in range(50)) <= 0.75


def test_failures_are_forgotten_after_a_success_a_long_time_or_many_others() -> None:
    pauses = Backoffs()
    for _ in range(2):
        pauses.failed("a", "p", OWN, 0.0)
    pauses.succeeded("a", "p")
    assert pauses.why("a", "p", 0.0) is None
    for _ in range(2):
        pauses.failed("a", "p", OWN, 0.0)
    assert pauses.failed("a", "p", OWN, 400.0) == 0.0
    for number in range(10_000):
        pauses.failed("a", str(number), OWN, 400.0)
    assert pauses.failed("a", "p", OWN, 400.0) == 0.0


def test_pauses_grow_up_to_the_longest_and_differ() -> None:
    backoff = Backoff(0.2, 3.0)
    pauses = [backoff.failed() for _ in range(50)]
    for number, pause_s in enumerate(pauses):
        assert 0.5 <= pause_s / min(0.2 * 2.0**number, 3.0) <= 1.5
    assert len(set(pauses)) > 40


def test_a_failure_is_news_if_its_reason_is_another() -> None:
    backoff, news = Backoff(0.2, 3.0), list[bool]()
    for why in ("a", "a", "b", "b"):
        backoff.failed(why)
        news.append(backoff.is_news)
    backoff.succeeded()
    backoff.failed("b")
    assert [*news, backoff.is_news] == [True, False, True, False, True]


def test_items_are_interleaved_by_namespace() -> None:
    items = ["a1", "a2", "a3", "b1", "c1", "c2"]
    assert in_turn(items, lambda item: item[0]) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert in_turn(items[:3], lambda item: item[0]) == items[:3]
    assert in_turn([], str) == []
