"""docs/reference/http-api.md and the pages of parts have every route, with its statuses and the keys of its answers."""

import json
import re
from typing import Any

import pytest

from extender.api.app import create_app
from extender.demo.cluster import sample_cluster
from extender.demo.metrics import SampleFeed
from extender.kube.memory import MemoryCluster
from extender.settings.tree import Settings
from tests.api.bodies import pod
from tests.api.services import running
from tests.docs.pages import DOCS

PAGE = "\n".join(path.read_text() for path in (DOCS / "reference" / "http-api.md", *sorted(DOCS.glob("parts/*.md"))))
EXPLAIN = (DOCS / "reference" / "explain.md").read_text()
HEADINGS = re.findall(r"^### ((?:GET|POST) \S+)$", PAGE, re.MULTILINE)
ROUTES: dict[str, Any] = {
    f"{method.upper()} {path}": operation
    for path, operations in create_app(Settings(), MemoryCluster([])).openapi()["paths"].items()
    for method, operation in operations.items()
}


def section(route: str) -> str:
    """What the page says of a route."""
    _, found, rest = PAGE.partition(f"\n### {route}\n")
    assert found, f"docs/reference/http-api.md has no section of {route}"
    return re.split(r"^###? ", rest, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_is_on_the_page_with_its_statuses(route: str) -> None:
    text = section(route)
    of_many = PAGE.partition("\n## Each call\n")[2].partition("\n### ")[0]
    missing = [status for status in ROUTES[route]["responses"] if status != "200" and status not in text + of_many]
    assert not missing
    assert f"`{route}`" in PAGE.partition("\n## ")[0], "it is missing in the table at the top"


def test_the_page_has_no_route_that_is_not_served() -> None:
    assert sorted(HEADINGS) == sorted(ROUTES)


def keys_of(answer: Any) -> set[str]:
    """Keys of an object, and of the objects in the lists and objects right below it."""
    below = [value for value in answer.values() if isinstance(value, dict | list)]
    inner = [item for value in below for item in (value if isinstance(value, list) else [value])]
    return set(answer).union(*(item for item in inner if isinstance(item, dict)))


def test_keys_of_answers_are_told() -> None:
    asked = pod("train-1", 8)
    with running(sample_cluster(), feed=SampleFeed(MemoryCluster(sample_cluster()))) as kerf:
        kerf.filter(asked, ["h100-0", "a100-0"])
        answers = {path: json.loads(kerf.get(path).content) for path in ("/nodes", "/telemetry", "/version")}
        explanation = json.loads(kerf.get("/explain/pod/default/train-1").content)
        works, owners = (json.loads(kerf.get(f"/workloads{query}").content) for query in ("?q=a", "?by=owner"))
        trial = json.loads(kerf.post("/what-if", json.dumps({"pods": [asked]}).encode()).content)
    untold = {
        "/nodes": {key for key in keys_of(answers["/nodes"]) if f"`{key}`" not in section("GET /nodes")},
        "/telemetry": {key for key in answers["/telemetry"] if f"`{key}`" not in section("GET /telemetry")},
        "/version": {key for key in answers["/version"] if f'"{key}"' not in section("GET /version")},
        "/explain": {key for key in explanation if f"`{key}" not in EXPLAIN},
        "nodes of /explain": {key for key in keys_of(explanation["nodes"][0]) if f"`{key}" not in EXPLAIN},
        "/workloads": {key for key in keys_of(works) | keys_of(owners) if f"`{key}`" not in section("GET /workloads")},
        "/what-if": {key for key in trial if f"`{key}`" not in section("POST /what-if")},
    }
    assert not {where: keys for where, keys in untold.items() if keys}
