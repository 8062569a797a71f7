"""S1, S9: a pod waits a little rather than take the last place of a larger one, never for long, and is woken."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extender.scheduling.skips import _QUEUED_REASON, _REASON
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Kerf, running


def prioritised(priority: int) -> dict[str, Any]:
    return {"labels": {"genius/priority": str(priority)}}


def ends(kerf: Kerf, held: Manifest) -> None:
    kerf.cluster.delete(held)
    kerf.settle()


def wake(kerf: Kerf, after_s: float = 1.0) -> None:
    kerf.clock.now += after_s
    kerf.run(kerf.parts.waker.wake_round())
    kerf.settle()


class Scene:
    """A larger pod was rejected; now node a has room for it, and it has not been retried."""

    def __init__(self, kerf: Kerf, larger: Manifest, *others: Manifest) -> None:
        self.kerf = kerf
        self.names = ["a", *(other["metadata"]["name"] for other in others)]
        kerf.cluster.apply(node("a", 2))
        for other in others:
            kerf.cluster.apply(other)
        held = pod("held", 1, node_name="a")
        kerf.create(held)
        self.larger = kerf.create(larger)
        assert not self.ask(self.larger)["NodeNames"]
        ends(kerf, held)
        wake(kerf, 0.0)  # it is not due yet, but known to wait

    def ask(self, asking: Manifest) -> Any:
        return self.kerf.filter(asking, self.names)


def skipping(**flags: Any) -> Any:
    return running([], decisions__skip_s=60, **flags)


def test_s1_a_pod_is_skipped_rather_than_take_the_last_place_of_a_larger_one_then_woken() -> None:
    with skipping() as kerf:
        scene = Scene(kerf, pod("large", 2))
        small = kerf.create(pod("small", 1))
        for _ in range(2):
            answer = scene.ask(small)
            assert answer["NodeNames"] == []
            assert answer["FailedAndUnresolvableNodes"] == {"a": _REASON}  # no preemption, and the same text each time
            assert not answer["FailedNodes"]
        assert kerf.num_reservations == 0
        assert kerf.metric("kerf_decisions_total", verdict="skipped") == kerf.metric("kerf_skips_total") == 2
        wake(kerf)
        notes = kerf.cluster.pod("default", "small")["metadata"]["annotations"]
        assert "kerf.dev/woken" not in notes  # as long as the reason stands
        assert kerf.cluster.pod("default", "large")["metadata"]["annotations"]["kerf.dev/woken"] == "1"
        assert scene.ask(scene.larger)["NodeNames"] == ["a"]
        assert kerf.bind(scene.larger, "a") == ""
        ends(kerf, scene.larger)
        wake(kerf)
        notes = kerf.cluster.pod("default", "small")["metadata"]["annotations"]
        assert (notes["kerf.dev/woken"], notes["kerf.dev/skipped"]) == ("1", _REASON)
        assert notes["kerf.dev/skipped-count"] == "2"
        assert scene.ask(small)["NodeNames"] == ["a"]
        assert kerf.bind(small, "a") == ""
        assert kerf.cluster.pod("default", "small")["metadata"]["annotations"]["kerf.dev/skipped-count"] == "2"
        assert scene.ask(pod("small", 1))["NodeNames"] == ["a"]  # of a bound pod nothing is remembered


def test_a_pod_that_was_rejected_a_moment_ago_counts_before_the_next_round_of_waking() -> None:
    with skipping() as kerf:
        kerf.cluster.apply(node("a", 2))
        held = pod("held", 1, node_name="a")
        kerf.create(held)
        large, small = kerf.create(pod("large", 2)), kerf.create(pod("small", 1))
        assert not kerf.filter(large, ["a"])["NodeNames"]
        ends(kerf, held)
        assert kerf.filter(small, ["a"])["FailedAndUnresolvableNodes"] == {"a": _REASON}
        assert kerf.filter(large, ["a"])["NodeNames"] == ["a"]
        assert kerf.bind(large, "a") == ""
        kerf.cluster.apply(node("b", 2))
        kerf.settle()
        assert kerf.filter(small, ["b"])["NodeNames"] == ["b"]  # and no longer once it is bound


def test_the_pod_goes_where_it_harms_no_larger_one() -> None:
    with skipping() as kerf:
        scene = Scene(kerf, pod("large", 2), node("b", 8), pod("held-b", 7, node_name="b"))
        del scene.names[2:]
        assert scene.ask(pod("small", 1))["NodeNames"] == ["b"]


@pytest.mark.parametrize(
    ("larger", "small", "others"),
    [
        pytest.param(pod("large", 2), pod("small", 1), [node("b", 2)], id="the larger one has another place"),
        pytest.param(
            pod("large", 2), pod("small", 1, **prioritised(5)), [], id="the smaller one is of higher priority"
        ),
        pytest.param(pod("large", 2), pod("same", 2), [], id="it is not larger"),
        pytest.param(pod("large", 3), pod("small", 1), [], id="there is no place for the larger one anyway"),
    ],
)
def test_no_pod_is_skipped_needlessly(larger: Manifest, small: Manifest, others: list[Manifest]) -> None:
    with skipping() as kerf:
        scene = Scene(kerf, larger)
        for other in others:
            kerf.cluster.apply(other)
            scene.names.append(other["metadata"]["name"])
        kerf.settle()
        assert scene.ask(small)["NodeNames"]


@pytest.mark.parametrize("mode", ["decisive", "scores"])
@pytest.mark.parametrize("names", [["a", "b", "c"], ["c", "b", "a"]])
def test_every_mode_keeps_the_node(mode: str, names: list[str]) -> None:
    with skipping(decisions__mode=mode) as kerf:
        scene = Scene(kerf, pod("large", 2), node("b", 1), node("c", 1))
        scene.names = names
        assert set(scene.ask(pod("small", 1))["NodeNames"]) <= {"b", "c"}


@pytest.mark.parametrize("mode", ["decisive", "scores"])
def test_what_the_queue_keeps_for_its_head_is_kept_from_its_own_pods_alone(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running([node("a", 2), node("b", 1)], decisions__mode=mode) as kerf:
        lost = kerf.create(pod("lost", 1))
        kept = {lost["metadata"]["uid"]: frozenset({"a", "gone"})}
        monkeypatch.setattr(kerf.parts.rules, "kept_from", lambda uid: kept.get(uid, frozenset()))
        assert kerf.filter(lost, ["a", "b"])["NodeNames"] == ["b"]
        assert kerf.filter(lost, ["a"])["FailedAndUnresolvableNodes"] == {"a": _QUEUED_REASON}
        kerf.create(pod("runs", 1, node_name="b"))
        kerf.settle()
        wake(kerf)
        assert "kerf.dev/woken" not in kerf.cluster.pod("default", "lost")["metadata"]["annotations"]
        assert kerf.filter(pod("other", 1), ["a"])["NodeNames"] == ["a"]
        kept.clear()
        wake(kerf)
        notes = kerf.cluster.pod("default", "lost")["metadata"]["annotations"]
        assert (notes["kerf.dev/woken"], notes["kerf.dev/skipped"]) == ("1", _QUEUED_REASON)


def test_pods_that_the_queue_will_nominate_are_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    with running([node("a", 1)]) as kerf:
        held, lost = kerf.create(pod("held", 1, node_name="a")), kerf.create(pod("lost", 1))
        kerf.settle()
        waker = kerf.parts.waker
        monkeypatch.setattr(kerf.parts.rules, "will_nominate", lambda uid: uid == lost["metadata"]["uid"])
        assert not kerf.filter(lost, ["a"])["NodeNames"]
        ends(kerf, held)
        wake(kerf)
        assert waker.num_woken == 0
        monkeypatch.undo()
        wake(kerf)
        assert waker.num_woken == 1


def test_off_as_shipped() -> None:
    with running([]) as kerf:
        assert Scene(kerf, pod("large", 2)).ask(pod("small", 1))["NodeNames"] == ["a"]


@settings(max_examples=settings().max_examples * 3 // 10)
@given(
    steps=st.lists(st.floats(0.0, 25.0), min_size=1, max_size=30),
    max_skips=st.integers(1, 8),
    sizes=st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3),
)
@example(steps=[1.0] * 3, max_skips=2, sizes=[2])
@example(steps=[25.0] * 4, max_skips=8, sizes=[2])
def test_s9_nobody_is_skipped_more_often_or_longer_than_allowed(
    steps: list[float], max_skips: int, sizes: list[int]
) -> None:
    """Whenever it asks: the larger pods never go away here, which is the worst for the smaller one."""
    with skipping() as kerf:
        kerf.parts.waker.skips.max_count = max_skips
        scene = Scene(kerf, pod("large", 2))
        for number, size in enumerate(sizes):
            kerf.cluster.apply(node(f"n{number}", size))
            kerf.create(pod(f"busy{number}", size, node_name=f"n{number}"))
            scene.names.append(f"n{number}")
            assert not kerf.filter(kerf.create(pod(f"large{number}", size)), [f"n{number}"])["NodeNames"]
        wake(kerf, 0.0)
        small, first = kerf.create(pod("small", 1)), kerf.clock.now
        for count, step in enumerate(steps):
            placed = scene.ask(small)["NodeNames"]
            assert placed == ([] if count < max_skips and kerf.clock.now - first < 60 else ["a"])
            if placed:
                return
            kerf.clock.now += step
