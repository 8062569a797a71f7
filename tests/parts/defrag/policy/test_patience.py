"""Who is left alone, for how long, and that few are remembered."""

from extender.parts.defrag.policy import _Patience


def test_each_failure_in_a_row_is_twice_as_long_up_to_a_limit() -> None:
    patience, now, rests = _Patience(10.0, 60.0), 0.0, []
    for _ in range(5):
        patience.fail("ns", "a", now)
        until = now
        while patience.rests("a", until):
            until += 1
        rests.append(until - now)
        now = until
    assert rests == [10, 20, 40, 60, 60]
    patience.forgive("a")
    assert not patience.rests("a", now)
    patience.fail("ns", "a", now)
    assert not patience.rests("a", now + 10)


def test_failing_while_it_rests_adds_nothing() -> None:
    patience = _Patience(10.0, 60.0)
    for now in (0.0, 1.0, 2.0):
        patience.fail("ns", "a", now)
    assert not patience.rests("a", 10.0)


def test_whoever_brings_many_names_has_their_own_forgotten() -> None:
    patience = _Patience(10.0, 60.0, most_kept=20)
    patience.fail("quiet", "quiet/a", 0.0)
    for number in range(1_000):
        patience.fail("crowd", f"crowd/{number}", 0.0)
    assert len(patience) == 20
    assert patience.rests("quiet/a", 5.0)


def test_what_was_long_ago_is_forgotten() -> None:
    patience = _Patience(10.0, 60.0)
    patience.fail("ns", "a", 0.0)
    patience.forget_old(121.0)
    assert len(patience) == 0


def test_a_thousand_failures_are_no_overflow() -> None:
    patience = _Patience(10.0, 60.0)
    for number in range(1_000):
        patience.fail("ns", "a", 100.0 * number)
    assert patience.rests("a", 99_900.0 + 59)
