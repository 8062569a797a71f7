"""Pods that opt in and came without the gate: told once, on the pod, and counted."""

import pytest

from extender.kube.cache import Cache
from extender.kube.objects import Pod
from extender.queueing.passed_pods import PassedPods
from extender.queueing.pods.objects import Namespaces
from tests.queueing.watches import node, pod


class Passed:
    """Of a cluster whose namespace `ns` may opt in."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.known, self.standby = True, ""
        self.events: list[tuple[str, ...]] = []
        self.namespaces = Namespaces(lambda: None)
        self.namespaces.changed(None, node("ns", labels={"kerf.dev/queue": "enabled"} if enabled else {}))
        self.pods = PassedPods(self.namespaces, lambda: self.known, lambda: self.standby, self)  # type: ignore[arg-type]
        self.seen = Cache[Pod, Pod](lambda item: item)
        self.seen.subscribe(self.pods.changed)

    def emit(self, namespace: str, name: str, uid: str, *, reason: str, message: str) -> None:
        self.events.append((namespace, name, uid, reason, message))

    def tell(self, *pods: Pod) -> int:
        """How many have passed by now."""
        for item in pods:
            self.seen.upsert(item)
        return self.pods.num_passed


BY_NAMESPACE = (
    "opted in to the queue by its namespace's label kerf.dev/queue: enabled, and came without its gate: the webhook "
    "was not asked in time"
)


def test_a_pod_without_the_gate_in_a_namespace_that_opts_in_is_told_once() -> None:
    passed = Passed()
    late = pod("late", gated=False)
    assert passed.tell(late, late, pod("gated")) == 1
    assert passed.events == [("ns", "late", "uid-late", "PassedQueue", BY_NAMESPACE)]
    assert passed.pods.why("uid-late") == BY_NAMESPACE
    assert passed.pods.why("uid-gated") == ""
    passed.namespaces.changed(node("ns", labels={"kerf.dev/queue": "enabled"}), node("ns"))
    assert passed.pods.why("uid-late") == "", "it has nothing to wait for any more"
    passed.namespaces.changed(None, node("ns", labels={"kerf.dev/queue": "enabled"}))
    assert passed.pods.why("uid-late") == BY_NAMESPACE
    passed.seen.remove(late)
    assert passed.pods.why("uid-late") == ""


@pytest.mark.parametrize(
    ("item", "enabled", "num"),
    [
        pytest.param(pod(gated=False, labels={"kerf.dev/queue": "enabled"}), False, 1, id="by its own label"),
        pytest.param(pod(gated=False, labels={"kerf.dev/queue": "disabled"}), True, 0, id="opted out"),
        pytest.param(pod(gated=False), False, 0, id="not asked for"),
        pytest.param(pod(gated=False, annotations={"kerf.dev/planned-by": "greedy"}), True, 0, id="let go"),
        pytest.param(pod(gated=False, annotations={"kerf.dev/queued-by": "namespace"}), True, 0, id="opened by hand"),
        pytest.param(pod(gated=False, spec={"nodeName": "n"}), True, 0, id="has its node"),
    ],
)
def test_who_has_passed_by(item: Pod, enabled: bool, num: int) -> None:
    assert Passed(enabled=enabled).tell(item) == num


def test_a_gate_that_is_opened_later_is_no_matter() -> None:
    passed = Passed()
    assert passed.tell(pod("p"), pod("p", gated=False)) == 0


def test_nobody_is_judged_before_it_is_known_which_namespaces_opt_in() -> None:
    passed = Passed(enabled=False)
    passed.known = False
    assert passed.tell(pod("p", gated=False)) == 0
    passed.namespaces.changed(None, node("ns", labels={"kerf.dev/queue": "enabled"}))
    passed.known = True
    assert passed.tell(pod("p", gated=False)) == 1


def test_a_pod_that_was_there_before_its_namespace_opted_in_has_not_passed_by() -> None:
    passed = Passed(enabled=False)
    assert passed.tell(pod("p", gated=False)) == 0
    passed.namespaces.changed(None, node("ns", labels={"kerf.dev/queue": "enabled"}))
    assert passed.tell(pod("p", gated=False)) == 0
    passed.seen.remove(pod("p", gated=False))
    assert passed.tell(pod("p", gated=False)) == 1, "it is one that came since"


def test_a_standby_counts_and_says_nothing() -> None:
    passed = Passed()
    passed.standby = "another one leads"
    assert passed.tell(pod("p", gated=False)) == 1
    assert passed.events == []


def test_what_is_gone_at_a_new_list_is_forgotten() -> None:
    passed = Passed()
    passed.tell(pod("a", gated=False), pod("b", gated=False))
    passed.seen.keep({"uid-b"}, 0.0)
    assert set(passed.pods.passed) == {"uid-b"}
    assert passed.tell(pod("b", gated=False)) == 2
