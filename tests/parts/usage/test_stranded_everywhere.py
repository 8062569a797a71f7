"""The same moment gives the same number for what is stranded, wherever it is told."""

import json
from typing import Any

import pytest

from extender.cli.top import _stranded
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running
from tests.parts.usage.rigs import meter_of

pytestmark = pytest.mark.usefixtures("answered_here")

SHARE = {"kerf.dev/gpu-share": "900", "kerf.dev/gpu-memory-each": "1Gi"}


def asked(kerf: Kerf, **question: Any) -> Any:
    answer = kerf.post("/what-if", json.dumps(question).encode())
    assert answer.status == 200, answer.content
    return answer.json()


def answers_what_if(kerf: Kerf) -> bool:
    """Whether that part is there."""
    return "what_if" in kerf.service.contributions


def told(kerf: Kerf) -> dict[str, float]:
    """Stranded GPUs by surface."""
    page = kerf.get("/nodes").json()
    nodes = [item["node"] for item in page["items"]]
    found = {
        "top": page["totals"]["gpusStranded"],
        "nodes": sum(item["gpusStranded"] for item in page["items"]),
        "metric": kerf.metric("kerf_gpus_stranded"),
        "metric by node": sum(kerf.metric("kerf_node_gpus", node=node, state="stranded") for node in nodes),
        "page": kerf.service.overviews.totals(kerf.service.placer.snapshot())["gpusStranded"],
    }
    if answers_what_if(kerf):
        found["what-if"] = asked(kerf, pods=[pod("asks", 1)])["strandedBefore"] * page["totals"]["gpus"]
    return found


@pytest.fixture(name="kerf", scope="module")
def kerf_fixture() -> Any:
    with running([node("a", 4), node("b", 4), node("slices", shared=4)]) as kerf:
        for name, on in (("one", "a"), ("two", "b")):
            manifest = pod(name, None, annotations=SHARE)
            kerf.create(manifest)
            kerf.filter(manifest, [on])
            assert kerf.bind(manifest, on) == ""
        kerf.run(meter_of(kerf).tick())
        yield kerf


def test_everywhere(kerf: Kerf) -> None:
    found = told(kerf)
    assert found["top"] > 0
    assert found == pytest.approx(dict.fromkeys(found, found["top"]), abs=1e-3)
    totals = kerf.get("/nodes").json()["totals"]
    assert totals["strandedPart"] == round(totals["gpusStranded"] / totals["gpus"], 4)
    assert _stranded(totals).startswith(f", {totals['gpusStranded']:.1f} stranded (")


def test_where_gpu_hours_are_not_counted_nobody_tells_a_number() -> None:
    with running([node("a", 4)], usage__enabled=False) as kerf:
        totals = kerf.get("/nodes").json()["totals"]
        answer = asked(kerf, pods=[pod("asks", 1)]) if answers_what_if(kerf) else dict[str, Any]()
        text = kerf.get("/metrics").content.decode()
    assert (totals["gpusStranded"], totals["strandedPart"], _stranded(totals)) == (None, None, "")
    assert (answer.get("stranded"), answer.get("strandedBefore")) == (None, None)
    assert "\nkerf_gpus_stranded " not in text
