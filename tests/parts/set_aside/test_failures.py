"""When failures speak against a node: those of several namespaces, that come to nothing elsewhere."""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from extender.parts.set_aside.quarantine import Failure, Failures, FailureThresholds

RULES = FailureThresholds(failures=5, namespaces=3, window_s=600.0)


@dataclass
class Rig:
    failures: Failures = field(default_factory=lambda: Failures(RULES))
    now: float = 1000.0
    num: int = 0

    def fail(self, node: str, *namespaces: str, workload: str = "", counts: bool = True) -> None:
        """A pod of each fails, a second later each; each of a workload of its own unless one is named."""
        for namespace in namespaces:
            self.num += 1
            self.now += 1
            of = f"{namespace}/Job/{workload or self.num}"
            self.failures.failed(node, Failure(f"uid-{self.num}", namespace, of, self.now), counts=counts)

    def live(self, node: str, namespace: str, workload: str = "well", started: float | None = None) -> None:
        """A pod is found to live well that has started now, unless it is said when."""
        self.now += 1
        self.failures.lived(
            node, namespace, f"{namespace}/Job/{workload}", self.now if started is None else started, self.now
        )

    def against(self, node: str = "n") -> str:
        return str(self.failures.against(node, self.now) or "")


def test_five_pods_of_three_namespaces_speak_against_a_node() -> None:
    rig = Rig()
    rig.fail("n", "a", "b", "c", "a")
    assert rig.against() == ""
    rig.fail("n", "b")
    assert rig.against() == "5 pods of 3 namespaces"
    assert rig.against("m") == ""


def test_of_one_namespace_two_count() -> None:
    rig = Rig()
    rig.fail("n", *("a",) * 20, "b", "c")  # 2 + 1 + 1
    assert rig.against() == ""
    rig.fail("n", "c")  # 2 + 1 + 2
    assert rig.against() == "19 pods of 3 namespaces"  # 16 of the first are kept


def test_failures_are_forgotten_after_the_window() -> None:
    rig = Rig()
    rig.fail("n", "a", "b", "c", "a", "b")
    rig.now = 1001 + 600.0
    assert rig.against() == "5 pods of 3 namespaces"
    rig.now += 0.5
    assert rig.against() == ""


def test_pods_that_started_before_all_that_and_live_on_say_nothing() -> None:
    rig = Rig()
    rig.live("n", "d", started=500.0)
    rig.fail("n", "a", "b", "c", "a", "b")
    rig.live("n", "d", started=900.0)
    assert rig.against() == "5 pods of 3 namespaces"


def test_a_namespace_that_fails_on_three_nodes_blames_none_also_where_its_pods_chose_one() -> None:
    rig = Rig()
    rig.fail("n", "a", "b", "b", "c", "c")
    rig.fail("m", "a")
    assert rig.against() != ""
    rig.fail("k", "a", counts=False)
    assert rig.against() == ""


def test_a_case_falls_when_those_who_failed_go_on_to_fail_elsewhere() -> None:
    rig = Rig()
    for namespace in ("a", "b", "c", "a", "b"):
        rig.fail("n", namespace, workload="job")
    case = rig.failures.against("n", rig.now)
    assert case is not None
    rig.now += 550
    rig.fail("m", "a", workload="job")
    assert not rig.failures.stands("n", case, rig.now)
    rig.live("k", "a", "job")
    assert rig.failures.stands("n", case, rig.now)
    rig.live("n", "d", started=1003.5)  # after the third failure: two are left
    assert not rig.failures.stands("n", case, rig.now)


def test_a_case_does_not_fall_by_time() -> None:
    rig = Rig()
    rig.fail("n", "a", "b", "c", "a", "b")
    case = rig.failures.against("n", rig.now)
    assert case is not None
    rig.failures.forget_old(rig.now + 7200, ["n"])
    assert rig.failures.stands("n", case, rig.now + 7200)


def test_memory_is_bounded() -> None:
    rig = Rig()
    for number in range(200):
        rig.fail("n", *("a",) * 10)
        rig.fail(f"m{number}", "a", workload="job")
    assert len(rig.failures._namespace_on["a"]) == 16  # noqa: SLF001 - nothing tells of what is not there
    rig.failures.forget_old(rig.now + 601, [])
    assert rig.failures.nodes == []
    assert rig.failures._namespace_on == {}  # noqa: SLF001


def slow_against(history: list[tuple[str, str, int, int | None]], node: str, now: int) -> int:
    """Pods that count, 0 where they are too few. A history's lines are node, namespace, workload, and when a pod
    failed: None where it lived well from its start on, which is the number of the line."""
    well = [at for at, (where, _, _, failed) in enumerate(history) if failed is None and where == node]
    num_of: dict[str, int] = defaultdict(int)
    for at, (where, namespace, workload, failed) in enumerate(history):
        if where != node or failed is None or at < now - 600 or any(since >= at for since in well):
            continue
        failed_on = {where for where, other, _, failed in history if other == namespace and failed is not None}
        same = [line for line in history if line[1:3] == (namespace, workload) and line[0] != node]
        elsewhere = any(failed is not None for *_, failed in same) and all(failed is not None for *_, failed in same)
        if len(failed_on) < 3 and not elsewhere:
            num_of[namespace] += 1
    enough = sum(min(count, 2) for count in num_of.values()) >= 5 and len(num_of) >= 3
    return sum(num_of.values()) if enough else 0


LINES = st.tuples(
    st.sampled_from("nnnmk"), st.sampled_from("abcd"), st.integers(0, 3), st.sampled_from([0, 0, 0, 0, None])
)


@given(st.lists(LINES, max_size=24))
def test_the_rules_are_what_the_oracle_says(history: list[tuple[str, str, int, int | None]]) -> None:
    failures = Failures(RULES)
    for at, (node, namespace, workload, failed) in enumerate(history):
        of = f"{namespace}/Job/{workload}"
        if failed is None:
            failures.lived(node, namespace, of, float(at), float(at))
        else:
            failures.failed(node, Failure(f"uid-{at}", namespace, of, float(at)), counts=True)
    for node in "nmk":
        case = failures.against(node, float(len(history)))
        assert (len(case.failures) if case else 0) == slow_against(history, node, len(history))
