"""GPUs that kubelets gave to pods: an entry by name alone is never of a pod that came later."""

from extender.ledger.ledger import AllocationState
from extender.ledger.rows import _GivenGpus
from extender.plugins.holdings import whole_gpus
from extender.plugins.kerf import Given
from tests.ledger.builders import described_node, ledger_of, pod_object, taken

ONE, TWO = ("GPU-1",), ("GPU-2",)
NAME = "default/p"


def running() -> _GivenGpus:
    """After the first complete list of pods."""
    given = _GivenGpus()
    given.starting = False
    return given


def test_an_entry_by_name_is_of_the_pod_that_had_the_name() -> None:
    given = running()
    assert given.set("n", {NAME: ONE}, {NAME: "u"})
    pods = (("n", NAME, "u"), ("n", NAME, "another"), ("n", "", "u"), ("m", NAME, "u"))
    assert [given.of(*pod) for pod in pods] == [ONE, None, None, None]
    given.set("n", {NAME: TWO}, {})
    assert given.of("n", NAME, "u") is None
    given.note_pod("n", NAME, "new")  # after all were listed, so it is not the one that was given them
    assert given.of("n", NAME, "new") is None


def test_an_entry_by_uid_is_of_that_pod_whatever_its_name() -> None:
    given = running()
    given.set("n", {"u": ONE, NAME: TWO}, {NAME: "u"})
    assert given.of("n", NAME, "u") == given.of("n", "default/other", "u") == ONE


def test_a_new_pod_inherits_nothing_before_the_entry_of_its_name_changes() -> None:
    given = running()
    given.set("n", {NAME: ONE}, {NAME: "old"})
    assert given.set("n", {NAME: ONE, "default/q": TWO}, {NAME: "new", "default/q": "q"})
    assert (given.of("n", NAME, "old"), given.of("n", NAME, "new")) == (ONE, None)
    given.set("n", {NAME: TWO}, {NAME: "new"})
    assert (given.of("n", NAME, "old"), given.of("n", NAME, "new")) == (None, TWO)


def test_a_name_without_a_pod_waits_for_one_only_until_all_were_listed() -> None:
    starting, later = _GivenGpus(), running()
    for given in (starting, later):
        given.set("n", {NAME: ONE}, {})
        given.note_pod("n", NAME, "u")
        given.note_pod("m", NAME, "u")
    assert (starting.of("n", NAME, "u"), later.of("n", NAME, "u")) == (ONE, None)
    starting.note_pod("n", NAME, "another")
    assert (starting.of("n", NAME, "u"), starting.of("n", NAME, "another")) == (ONE, None)
    starting.set("n", {NAME: ONE, "default/q": TWO}, {})
    starting.note_pod("n", "default/q", "q")
    assert [starting.of("n", name, uid) for name, uid in ((NAME, "u"), ("default/q", "q"))] == [ONE, TWO]


def test_what_has_changed_is_said_and_of_a_node_that_is_gone_nothing_is_kept() -> None:
    given = running()
    assert not given.set("n", {}, {})
    nothing, entries, faults = Given(), Given({NAME: ONE}), ("can't be read",)
    for what in (nothing, entries):
        assert [given.set("n", what, {NAME: "v"}, faults) for _ in range(2)] == [True, False]
    given.forget("n")
    assert given.of("n", NAME, "v") is None
    assert given.set("n", {}, {}, faults)
    assert given.set("n", entries, {NAME: "w"}, faults)
    assert (given.of("n", NAME, "v"), given.of("n", NAME, "w")) == (None, ONE)
    given.forget("unknown")


# In the ledger.


def test_a_recreated_pod_inherits_nothing() -> None:
    for key in ("old", NAME):
        ledger = ledger_of(described_node())
        ledger.keep_pods(set(), 0.0)  # all that was there at the start is known
        ledger.upsert_pod(pod_object("p", 1, uid="old", node="n", assigned="0"), 1.0)
        ledger.upsert_node(described_node(given={key: ["GPU-3"]}))
        assert taken(ledger) == {3}
        ledger.remove_pod("old")
        ledger.upsert_pod(pod_object("p", 1, uid="new", node="n", assigned="1"), 2.0)
        assert taken(ledger) == {1}
        ledger.upsert_node(described_node(given={key: ["GPU-3"], "other": ["GPU-0"]}))
        assert taken(ledger) == {1}, "the entry is still that of the pod before"
        ledger.upsert_node(described_node(given={"new": ["GPU-2"]}))
        assert taken(ledger) == {2}


def test_what_was_given_before_the_start_is_known_in_whichever_order_it_is_reported() -> None:
    for key in ("u", NAME):
        node, pod = described_node(given={key: ["GPU-3"]}), pod_object("p", 1, uid="u", node="n", assigned="0")
        for nodes in ((node,), ()):
            ledger = ledger_of(*nodes)
            ledger.upsert_pod(pod, 0.0)
            ledger.upsert_node(node)
            ledger.keep_pods({"u"}, 0.0)
            assert taken(ledger) == {3}


def test_an_entry_by_name_is_not_of_a_pod_that_is_bound_or_found_later() -> None:
    for bound_here in (True, False):
        ledger = ledger_of(described_node(given={NAME: ["GPU-3"]}))
        ledger.keep_pods(set(), 0.0)
        if bound_here:
            claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 1.0)
            ledger.end_binding(claim, AllocationState.BOUND, 1.0)
        ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 2.0)
        assert taken(ledger) == {0}
        ledger.upsert_node(described_node(given={"u": ["GPU-3"]}))
        assert taken(ledger) == {3}


def test_what_was_given_to_a_pod_bound_here_counts_once_the_watch_reports_it() -> None:
    ledger = ledger_of(described_node(given={"u": ["GPU-3"]}))
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.end_binding(claim, AllocationState.BOUND, 1.0)
    assert taken(ledger) == {0}
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 2.0)
    assert taken(ledger) == {3}


def test_of_a_node_that_is_gone_no_pod_is_mistaken() -> None:
    ledger = ledger_of(described_node(given={"u": ["GPU-3"]}))
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 0.0)
    assert [claim.uid for claim in ledger.mistaken()] == ["u"]
    ledger.remove_node("n")
    assert ledger.mistaken() == []
    assert ledger.rows.given.of("n", NAME, "u") is None
