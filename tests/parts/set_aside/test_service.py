"""Decisions, plans and explanations leave out a quarantined node, and say why."""

from typing import Any

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


def test_no_pods_with_gpus_go_there_and_no_eviction_helps() -> None:
    held, other = pod("held", 4, node_name="n-0"), pod("other", 4, node_name="n-1")
    with running([aside("n-0", 4), node("n-1", 4)], **ACT) as kerf:
        answer = kerf.filter(pod("train", 2), ["n-0", "n-1"])
        assert answer["NodeNames"] == ["n-1"]
        assert (answer["FailedNodes"] or {}, answer["FailedAndUnresolvableNodes"]) == ({}, {"n-0": WHY})
        scores = kerf.prioritize(pod("train", 4), ["n-0", "n-1"])
        assert scores["n-0"] == 0 < scores["n-1"]
        assert kerf.filter(pod("web"), ["n-0"])["NodeNames"] == ["n-0"]
        for one in (held, other):
            kerf.create(one)
        uids = {one["spec"]["nodeName"]: [one["metadata"]["uid"]] for one in (held, other)}
        assert kerf.preempt(pod("train", 4, priority=9), uids) == {"n-1": uids["n-1"]}
        item, _ = ask(kerf, "/nodes")["items"]
        assert (item["gpusBooked"], item["unhealthy"], item["pods"]) == (4, 0, 1), "what runs there goes on"
        assert kerf.metric("kerf_nodes_overbooked") == 0


def test_what_was_reserved_there_before_is_not_bound() -> None:
    with running([node("n-0", 4), node("n-1", 2)], **ACT) as kerf:
        train = kerf.create(pod("train", 4))
        assert kerf.filter(train, ["n-0"])["NodeNames"] == ["n-0"]
        kerf.cluster.apply(aside("n-0", 4))
        kerf.settle()
        assert kerf.num_reservations == 0
        assert WHY in kerf.bind(train, "n-0")


def test_explain_and_the_overview_say_so() -> None:
    with running([aside("n-0", 4), node("n-1", 1)], **ACT) as kerf:
        kerf.filter(pod("train", 2), ["n-0", "n-1"])
        told = ask(kerf, "/explain/pod/default/train")
        assert {line["node"]: line["text"] for line in told["nodes"]}["n-0"] == WHY
        totals, items = (ask(kerf, "/nodes")[name] for name in ("totals", "items"))
        assert (totals["nodesSetAside"], totals["nodesFailing"]) == (1, 0)
        said = ask(kerf, "/nodes/n-0")["setAside"]
        assert said.startswith("quarantined: 7 pods of 3 namespaces")
        assert [item["setAside"] for item in items] == [said, None]
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


def test_only_where_it_is_wanted() -> None:
    for mode, taken in (("advise", True), ("off", True), ("act", False)):
        with running([aside("n-0", 4)], set_aside__mode=mode) as kerf:
            assert (kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]) is taken
    with running([aside("n-0", 4, "never")], **ACT) as kerf:
        assert kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]
        assert ask(kerf, "/nodes")["items"][0]["setAside"] is None
