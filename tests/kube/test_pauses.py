"""Writes that fail are tried again ever later, and what is one object's own keeps no other waiting."""

import pytest

from extender.kube.background import Backoff
from extender.kube.transport import ApiError, UnreachableError
from extender.kube.turns import Pauses
from tests.kube.test_rights import forbidden

OWN = ApiError(422, "Invalid", "spec is immutable")
AWAY = UnreachableError("PATCH /api/v1/namespaces/a/pods/p: refused")


def tries(error: Exception, until_s: float) -> int:
    """How often something is tried that always fails, looked at ten times a second."""
    pauses, number = Pauses(), 0
    for step in range(int(10 * until_s)):
        if pauses.why("a", "p", step / 10) is None:
            number += 1
            pauses.failed("a", "p", error, step / 10)
    return number


@pytest.mark.parametrize(("error", "at_most"), [(OWN, 14), (forbidden("patch", "pods"), 14), (AWAY, 130)])
def test_what_goes_on_failing_is_tried_ever_later(error: Exception, at_most: int) -> None:
    assert 5 <= tries(error, 300) <= at_most


def test_the_first_try_after_a_failure_is_at_once() -> None:
    pauses = Pauses()
    assert pauses.failed("a", "p", OWN, 0.0) == 0.0
    assert pauses.why("a", "p", 0.0) is None
    assert 0.25 <= pauses.failed("a", "p", OWN, 0.0) <= 0.75
    assert pauses.why("a", "p", 0.1) is OWN


@pytest.mark.parametrize(("error", "others_rest"), [(OWN, False), (forbidden("patch", "pods"), True), (AWAY, True)])
def test_who_else_rests(error: Exception, others_rest: bool) -> None:
    pauses = Pauses()
    for _ in range(2):
        pauses.failed("a", "p", error, 0.0)
    assert (pauses.why("a", "q", 0.1) is not None) == others_rest
    assert pauses.why("b", "p", 0.1) is None


def test_of_several_that_fail_at_once_the_first_counts() -> None:
    pauses = Pauses()
    waits = [pauses.failed("a", f"p{number}", AWAY, 0.0) for number in range(50)]
    assert max(waits) <= 0.75


def test_a_success_and_a_long_time_begin_anew() -> None:
    pauses = Pauses()
    for _ in range(2):
        pauses.failed("a", "p", OWN, 0.0)
    pauses.succeeded("a", "p")
    assert pauses.why("a", "p", 0.0) is None
    for _ in range(2):
        pauses.failed("a", "p", OWN, 0.0)
    assert pauses.failed("a", "p", OWN, 400.0) == 0.0


def test_no_more_are_kept_than_a_bound() -> None:
    pauses = Pauses()
    for number in range(10_001):
        pauses.failed("a", str(number), OWN, 0.0)
    assert pauses.failed("a", "0", OWN, 0.0) == 0.0, "forgotten"


def test_a_failure_is_news_where_it_is_another_one() -> None:
    backoff = Backoff(0.2, 3.0)
    news = []
    for why in ("a", "a", "b", "b"):
        backoff.failed(why)
        news.append(backoff.is_news)
    backoff.succeeded()
    backoff.failed("b")
    assert [*news, backoff.is_news] == [True, False, True, False, True]


def test_pauses_grow_up_to_the_longest_and_differ() -> None:
    backoff = Backoff(0.2, 3.0)
    pauses = [backoff.failed() for _ in range(50)]
    for number, pause_s in enumerate(pauses):
        assert 0.5 <= pause_s / min(0.2 * 2.0**number, 3.0) <= 1.5
    assert len(set(pauses)) > 40
