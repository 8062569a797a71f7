"""A node that is set aside: all that decides, plans or explains leaves it out, and says why."""

from typing import Any

import pytest

from extender.plugins.set_aside import SET_ASIDE, Note, text_of
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running

NOTE = text_of(Note(7, 3, 1_700_000_000, 2_000_000_000))
WHY = "quarantined: 7 pods failed here soon after starting"
ACT: dict[str, Any] = {"set_aside__mode": "act", "set_aside__for_s": 1e9, "decisions__mode": "scores"}


def aside(name: str, gpus: int, text: str = NOTE) -> dict[str, Any]:
    manifest = node(name, gpus)
    manifest["metadata"]["annotations"] = {SET_ASIDE: text}
    return manifest


def ask(kerf: Kerf, path: str) -> Any:
    answer = kerf.get(path)
    assert answer.status == 200, answer.content
    return answer.json()


def test_filter_says_that_no_eviction_helps() -> None:
    with running([aside("n-0", 4), node("n-1", 4)], **ACT) as kerf:
        answer = kerf.filter(pod("train", 2), ["n-0", "n-1"])
    assert answer["NodeNames"] == ["n-1"]
    assert (answer["FailedNodes"] or {}, answer["FailedAndUnresolvableNodes"]) == ({}, {"n-0": WHY})


def test_pods_without_gpus_are_let_through() -> None:
    with running([aside("n-0", 4)], **ACT) as kerf:
        assert kerf.filter(pod("web"), ["n-0"])["NodeNames"] == ["n-0"]


def test_prioritize_puts_it_last() -> None:
    with running([aside("n-0", 4), node("n-1", 8)], **ACT) as kerf:
        scores = kerf.prioritize(pod("train", 4), ["n-0", "n-1"])
    assert scores["n-0"] == 0 < scores["n-1"]


def test_nobody_is_evicted_there() -> None:
    held = pod("held", 4, node_name="n-0")
    with running([aside("n-0", 4), node("n-1", 4), held, pod("other", 4, node_name="n-1")], **ACT) as kerf:
        uid, other = held["metadata"]["uid"], pod("other", 4)["metadata"]["uid"]
        told = kerf.preempt(pod("train", 4, priority=9), {"n-0": [uid], "n-1": [other]})
    assert told == {"n-1": [other]}


def test_what_was_reserved_there_before_is_not_bound() -> None:
    with running([node("n-0", 4), node("n-1", 2)], **ACT) as kerf:
        train = kerf.create(pod("train", 4))
        assert kerf.filter(train, ["n-0"])["NodeNames"] == ["n-0"]
        kerf.cluster.apply(aside("n-0", 4))
        kerf.settle()
        assert kerf.num_reservations == 0
        assert WHY in kerf.bind(train, "n-0")


def test_who_runs_there_goes_on_and_nothing_is_overbooked() -> None:
    with running([aside("n-0", 4), pod("held", 4, node_name="n-0")], **ACT) as kerf:
        (item,) = ask(kerf, "/nodes")["items"]
        assert (item["gpusBooked"], item["unhealthy"], item["pods"]) == (4, 0, 1)
        assert kerf.metric("kerf_nodes_overbooked") == 0


def test_explain_and_the_overview_say_so() -> None:
    with running([aside("n-0", 4), node("n-1", 1)], **ACT) as kerf:
        kerf.filter(pod("train", 2), ["n-0", "n-1"])
        told = ask(kerf, "/explain/pod/default/train")
        assert {line["node"]: line["text"] for line in told["nodes"]}["n-0"] == WHY
        totals, items = (ask(kerf, "/nodes")[name] for name in ("totals", "items"))
        assert (totals["nodesSetAside"], totals["nodesFailing"]) == (1, 0)
        said = "set aside: 7 pods of 3 namespaces failed within 60 s; until 2033-05-18T03:33:20Z"
        assert [item["setAside"] for item in items] == [said, None]
        assert ask(kerf, "/nodes/n-0")["setAside"] == said
        assert (kerf.metric("kerf_nodes_set_aside"), kerf.metric("kerf_rejections_total", reason="set_aside")) == (1, 0)


def test_of_nodes_alike_but_for_that_the_other_is_remembered_by_itself() -> None:
    """What fits is remembered by the state of a row."""
    with running([node("n-0", 4), node("n-1", 4)], **ACT) as kerf:
        for name in ("n-0", "n-1", "n-0"):
            kerf.cluster.apply(aside(name, 4))
            kerf.settle()
            other = {"n-0": "n-1", "n-1": "n-0"}[name]
            assert kerf.filter(pod("train", 2), ["n-0", "n-1"])["NodeNames"] == [other]
            kerf.cluster.apply(node(name, 4))
            kerf.settle()


@pytest.mark.parametrize(
    "settings", [{}, {"set_aside__mode": "off"}, {"set_aside__mode": "act", "webhook__alone": False}]
)
def test_only_where_it_is_wanted(settings: dict[str, Any]) -> None:
    with running([aside("n-0", 4)], **settings) as kerf:
        taken = kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]
    assert taken is (settings.get("set_aside__mode") != "act")


def test_never_keeps_it_open() -> None:
    with running([aside("n-0", 4, "never")], **ACT) as kerf:
        assert kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]
        assert ask(kerf, "/nodes")["items"][0]["setAside"] is None
