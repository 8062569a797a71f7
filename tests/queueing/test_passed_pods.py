"""Pods that opt in and came without the gate: reported once, on the pod, and counted."""

from typing import Any

from extender.kube.cache import Cache
from extender.kube.objects import Pod
from extender.queueing.passed_pods import PassedPods
from extender.queueing.pods.objects import Namespaces
from tests.queueing.watches import node, pod


class Passed:
    """The pods outside the queue; namespace `ns` may opt in."""

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
        """Report pods; return how many have passed so far."""
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


def test_which_pods_count_as_passed() -> None:
    rows: list[tuple[bool, int, dict[str, Any]]] = [
        (False, 1, {"labels": {"kerf.dev/queue": "enabled"}}),
        (True, 0, {"labels": {"kerf.dev/queue": "disabled"}}),
        (False, 0, {}),
        (True, 0, {"annotations": {"kerf.dev/planned-by": "greedy"}}),  # released
        (True, 0, {"annotations": {"kerf.dev/queued-by": "namespace"}}),  # opened by hand
        (True, 0, {"spec": {"nodeName": "n"}}),
    ]
    for enabled, num, metadata in rows:
        assert Passed(enabled=enabled).tell(pod(gated=False, **metadata)) == num
    assert Passed().tell(pod("p"), pod("p", gated=False)) == 0, "its gate was opened later"


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
    passed.seen.retain_only({"uid-b"}, 0.0)
    assert set(passed.pods.passed) == {"uid-b"}
    assert passed.tell(pod("b", gated=False)) == 2
