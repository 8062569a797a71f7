"""Requests that name most of a large cluster take a fast path, which has to choose the same node."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api import bodies
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running

NUM_NODES = 300
NODES = [f"n-{number}" for number in range(NUM_NODES)]


@pytest.fixture(scope="module")
def service() -> Iterator[Kerf]:
    """Kerf on 300 nodes of 2 to 8 GPUs, some of them in use; some of the names begin like others."""
    rng = random.Random(1)
    sizes = {name: rng.choice((2, 4, 8)) for name in NODES}
    held = [
        pod(f"held-{name}", rng.randint(1, size), node_name=name) for name, size in sizes.items() if rng.random() < 0.6
    ]
    with running([*(node(name, size) for name, size in sizes.items()), *held]) as kerf:
        yield kerf


@pytest.fixture
def kerf(service: Kerf) -> Kerf:
    """The service without reservations."""
    service.clock.now += 1000
    return service


def chosen_by_nodes(kerf: Kerf, asking: bodies.Manifest, names: list[str]) -> list[str]:
    """The answer to the same request with whole nodes, which are looked at one by one."""
    kerf.clock.now += 1000
    answer = kerf.post("/filter", bodies.args(asking, None, [{"metadata": {"name": name}} for name in names])).json()
    return [item["metadata"]["name"] for item in answer["Nodes"]["items"]]


@pytest.mark.parametrize("policy", ["bestfit", "binpack", "spread"])
@pytest.mark.parametrize("seed", range(10))
def test_many_names_lead_to_the_same_node_as_one_by_one(kerf: Kerf, policy: str, seed: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(NODES, rng.randint(256, NUM_NODES)) + rng.sample(NODES, 5) + ["unknown", "n-", "n-3000"]
    rng.shuffle(names)
    asking = pod(f"asking-{policy}-{seed}", rng.choice((1, 2, 4)), annotations={"kerf.dev/policy": policy})
    answer = kerf.filter(asking, names)
    assert answer["NodeNames"] == chosen_by_nodes(kerf, asking, names)
    assert kerf.num_reservations == len(answer["NodeNames"]) == 1


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n\t", " : ")], ids=["compact", "Python", "odd"])
def test_the_best_nodes_are_not_chosen_unless_they_are_named(kerf: Kerf, separators: tuple[str, str]) -> None:
    left_out: list[str] = []
    for number in range(20):  # more than the shorter way tries
        asking = pod(f"asking-{separators}-{number}".encode().hex(), 1)
        names = [name for name in NODES if name not in left_out]
        body = json.dumps({"Pod": bodies.sent(asking), "Nodes": None, "NodeNames": names}, separators=separators)
        (best,) = kerf.post("/filter", body.encode()).json()["NodeNames"]
        assert best in names
        assert [best] == chosen_by_nodes(kerf, asking, names)
        left_out.append(best)


def test_a_rejection_names_every_candidate(kerf: Kerf) -> None:
    answer = kerf.filter(pod("asking", 9), [*NODES, "unknown"])
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"].keys() == {*NODES, "unknown"}


def test_an_explanation_names_the_candidates_and_no_other(kerf: Kerf) -> None:
    names = NODES[:280]
    kerf.filter(pod("asking", 1), names)
    why = kerf.get("/explain/pod/default/asking").json()
    assert {line["node"] for line in why["nodes"]} == set(names)


@pytest.mark.parametrize(
    "names",
    ["n-0,".join(["n-0"] * 300), dict.fromkeys(NODES, 1), {"items": NODES}, 7, True],
    ids=["string", "object", "list in an object", "number", "boolean"],
)
def test_many_names_of_a_wrong_type_are_refused(kerf: Kerf, names: Any) -> None:
    body = json.dumps({"Pod": bodies.sent(pod("asking", 1)), "NodeNames": names}).encode()
    answer = kerf.post("/filter", body).json()
    assert answer["NodeNames"] is None
    assert answer["Error"].startswith("the request can't be read: Expected `array`, got ")
    assert answer["Error"].endswith(" - at `$.NodeNames`")


def test_a_request_refused_late_reserves_nothing() -> None:
    # 300 names on a cluster so small that every candidate's reason is given: the wrong entry is met at the very end.
    with running([node("n-0", 2)]) as kerf:
        body = json.dumps({"Pod": bodies.sent(pod("asking", 1)), "NodeNames": [*NODES, 7]}).encode()
        assert "Expected `str`, got `int`" in kerf.post("/filter", body).json()["Error"]
        assert kerf.num_reservations == 0


def test_an_entry_of_a_wrong_type_is_found_when_no_node_is(kerf: Kerf) -> None:
    body = json.dumps({"Pod": bodies.sent(pod("asking", 9)), "NodeNames": [*NODES, 7]}).encode()
    error = kerf.post("/filter", body).json()["Error"]
    assert error == "the request can't be read: Expected `str`, got `int` - at `$.NodeNames[300]`"
