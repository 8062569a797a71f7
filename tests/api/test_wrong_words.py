"""Unknown keys and values in the wrong unit: reported in the event, by explain and in `/pending`."""

import json
from collections.abc import Iterator

import pytest

from extender.plugins.pod_resources import UNMARKED
from tests.api.bodies import node, pod
from tests.api.services import Kerf, Shared, running
from tests.explain.test_waiting_pods import made, told_once

WRONG = [
    ({"kerf.dev/gpu-modle": "h100"}, {}, "kerf.dev/gpu-modle: no such key; do you mean kerf.dev/gpu-model?"),
    (
        {"kerf.dev/gpu-memmory-each": "40Gi"},
        {},
        "kerf.dev/gpu-memmory-each: no such key; do you mean kerf.dev/gpu-memory-each?",
    ),
    ({}, {"kerf.dev/gpumodel": "h100"}, "kerf.dev/gpumodel: no such key; do you mean kerf.dev/gpu-model?"),
    ({"kerf.dev/foo": "x"}, {}, "kerf.dev/foo: no such key"),
    ({}, {"kerf.dev/gpu-model": "h100"}, "kerf.dev/gpu-model: is read as an annotation, not as a label"),
    (
        {"kerf.dev/gpu-memory-each": "40"},
        {},
        'kerf.dev/gpu-memory-each: "40" is 40 MiB; do you mean 40Gi? For 40 MiB write 40Mi',
    ),
    (
        {"kerf.dev/gpu-memory-total": "255"},
        {},
        'kerf.dev/gpu-memory-total: "255" is 255 MiB; do you mean 255Gi? For 255 MiB write 255Mi',
    ),
    (
        {"kerf.dev/gpu-memory-each": "40GB"},
        {},
        'kerf.dev/gpu-memory-each: "40GB": unknown suffix GB; do you mean 40Gi?',
    ),
    ({"kerf.dev/policy": "tigtest"}, {}, 'kerf.dev/policy: "tigtest" is not a policy; use one of '),
]


@pytest.fixture(scope="module")
def kerf() -> Iterator[Kerf]:
    """A pod waits for each of the cases, under its number."""
    with running([node("n", 4, "t4")]) as kerf:
        for number, (annotations, labels, _) in enumerate(WRONG):
            kerf.create(made(f"typo-{number}", 1, 60, annotations=annotations, labels=labels))
        told_once(kerf, len(WRONG))
        yield kerf


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[case[2][:60] for case in WRONG])
def test_the_pod_gets_no_node_and_every_answer_says_why(kerf: Kerf, number: int) -> None:
    name, sentence = f"typo-{number}", WRONG[number][2]
    answer = kerf.filter(kerf.cluster.pod("default", name), ["n"])
    explained = kerf.get(f"/explain/pod/default/{name}").json()
    (row,) = (row for row in kerf.get("/pending").json()["pods"] if row["pod"] == f"default/{name}")
    reserved = kerf.num_reservations
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"]["n"].startswith(sentence)
    assert reserved == 0
    assert (explained["verdict"], explained["node"]) == ("rejected", None)
    assert explained["sentence"].startswith(sentence)
    assert [remedy["kind"] for remedy in explained["remedies"]] == ["pod"]
    if "policy" not in sentence:  # kube-scheduler's words tell that
        assert row["sentence"] == sentence
        assert (row["where"], row["remedy"], row["movesHelp"]) == ("kerf", explained["remedies"][0], False)


@pytest.mark.parametrize("size", ["40Mi", "256", "40Gi", "0"])
def test_a_plausible_size_is_accepted(size: str, shared: Shared) -> None:
    kerf = shared([node("n", 4)])
    answer = kerf.filter(pod("p", 1, annotations={"kerf.dev/gpu-memory-each": size}), ["n"])
    assert answer["NodeNames"] == ["n"]


def test_a_pod_without_gpus_is_rejected_only_for_typos_of_kerfs_keys() -> None:
    with running([node("n", 4)]) as kerf:
        assert kerf.filter(pod("web", annotations={"kerf.dev/team": "a"}), ["n"])["NodeNames"] == ["n"]
        meant = kerf.filter(pod("typo", annotations={"kerf.dev/gpu-coutn": "2"}), ["n"])
    assert "do you mean kerf.dev/gpu-count?" in str(meant["FailedAndUnresolvableNodes"])


def test_wrong_keys_do_not_change_what_a_running_pod_holds() -> None:
    said = {"kerf.dev/gpu-share": "500", "kerf.dev/gpu-memory-each": "40", "kerf.dev/gpu-modle": "h100"}
    given = {"kerf.dev/assigned-gpus": "0", "kerf.dev/assigned-share": "500", "kerf.dev/assigned-memory-mib": "40"}
    with running([node("n", 1)]) as kerf:
        kerf.create(pod("old", annotations={**said, **given}, node_name="n"))
        half = pod("half", annotations={"kerf.dev/gpu-share": "500"})
        assert kerf.filter(half, ["n"])["NodeNames"] == ["n"]


def test_a_percent_sign_is_written_twice_where_kube_scheduler_formats_it_and_nowhere_else() -> None:
    wrong = {"kerf.dev/gpu-share": "50%"}
    sentence = 'kerf.dev/gpu-share: "50%" is not a share; write thousandths of a GPU such as "500", from 1 to 1000'
    with running([node("n", 4)]) as kerf:
        waits = kerf.create(made("half", None, 60, annotations=wrong))
        told_once(kerf, 1)
        answer = kerf.filter(waits, ["n"])
        explained = kerf.get("/explain/pod/default/half").json()
        whole = json.loads(json.dumps({"Pod": waits, "Nodes": {"items": [node("n", 4)]}}))
        by_nodes = kerf.post("/filter", json.dumps(whole).encode()).json()
        error = kerf.post("/filter", json.dumps({"Pod": waits, "NodeNames": []}).encode()).json()["Error"]
        bound = kerf.post(
            "/bind", json.dumps({"PodName": "100%", "PodNamespace": "default", "PodUID": "u", "Node": "n"}).encode()
        ).json()["Error"]
    formatted = sentence.replace("%", "%%")
    assert answer["FailedAndUnresolvableNodes"] == {"n": formatted}
    assert by_nodes["FailedAndUnresolvableNodes"] == {"n": formatted}
    assert error == formatted
    assert "100%%" in bound
    assert explained["sentence"] == sentence


def test_doubled_percent_signs_in_conditions_are_read_as_one() -> None:
    message = '0/1 nodes are available: 1 kerf.dev/gpu-model: "50%% of h100" is odd.'
    with running([node("n", 4)]) as kerf:
        kerf.create(made("asks", 2, 60, message=message))
        told_once(kerf, 1)
        (row,) = kerf.get("/pending").json()["pods"]
    assert '"50% of h100"' in row["sentence"]


def test_event_and_explain_agree_on_a_pod_without_marker() -> None:
    with running([node("n", 4)]) as kerf:
        message = f"0/1 nodes are available: 1 {UNMARKED}. preemption: 0/1 nodes are available."
        kerf.create(made("bare", None, 60, annotations={"kerf.dev/gpu-count": "1"}, message=message))
        told_once(kerf, 1)
        explained = kerf.get("/explain/pod/default/bare").json()
        (row,) = kerf.get("/pending").json()["pods"]
    assert explained["sentence"] == row["sentence"] == UNMARKED
    assert explained["remedies"][0]["text"] == 'add the limit kerf.dev/gpu: "1" to one of its containers'


def test_the_list_says_what_explain_says_of_the_nodes_that_a_pod_was_offered() -> None:
    """As of a pod whose selector leaves it a full node, while others have room."""
    with running([node("full", 2), node("free", 2), node("more", 4)]) as kerf:
        kerf.create(pod("holder", 2, node_name="full", annotations={"kerf.dev/assigned-gpus": "0,1"}))
        kerf.filter(kerf.create(made("asks", 2, 60)), ["full"])
        told_once(kerf, 1)
        explained = kerf.get("/explain/pod/default/asks").json()
        (row,) = kerf.get("/pending").json()["pods"]
    assert explained["sentence"] == row["sentence"] == "needs 2 GPUs; full has 0 free, default/holder holds 2"
    assert row["remedy"] == explained["remedies"][0]
