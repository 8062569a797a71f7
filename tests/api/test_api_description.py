"""The OpenAPI description is complete: each call has a name, a schema, a valid example, and its permitted callers."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from fastapi import Response

from extender.api.app import create_app
from extender.api.openapi import _ASKED, _components
from extender.demo.cluster import sample_cluster
from extender.demo.metrics import SampleFeed
from extender.kube.memory import MemoryCluster
from extender.server.access import PROBES
from extender.settings.tree import Settings
from tests.api.bodies import pod
from tests.api.services import Kerf, running

APP = create_app(Settings(), MemoryCluster([]))
DESCRIPTION: dict[str, Any] = APP.openapi()
KINDS = {path: kind for path, kind in APP.state.reads.items() if kind is not Response}
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DESCRIPTION["paths"].items()
    for method, operation in operations.items()
}


def valid(schema: dict[str, Any], value: Any) -> None:
    """Validate a value by a schema of the description."""
    jsonschema_rs.validate({**schema, "components": DESCRIPTION["components"]}, value)


def contents(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The contents of the request and of the 200 answer."""
    if body := operation.get("requestBody"):
        yield from body["content"].values()
    yield from operation["responses"]["200"]["content"].values()


def test_schemas_are_made_at_the_first_request_for_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def components(*given: Any) -> dict[str, Any]:
        made.append(_components(*given))
        return made[-1]

    monkeypatch.setattr("extender.api.openapi._components", components)
    app = create_app(Settings(), MemoryCluster([]))
    assert not made
    assert app.openapi() == app.openapi() == DESCRIPTION
    assert len(made) == 1


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_a_call_has_a_schema_and_an_example_that_keeps_it(label: str) -> None:
    found = list(contents(OPERATIONS[label]))
    assert len(found) == (2 if label.startswith("POST") else 1)
    for content in found:
        assert content["schema"], "a client can be generated from no empty schema"
        valid(content["schema"], content["example"])


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_the_faults_of_a_call_have_schemas(label: str) -> None:
    refusals = {"401", "403", "429"}
    for status, response in OPERATIONS[label]["responses"].items():
        if status != "200":
            assert response["description"]
            kinds = list(response.get("content", {}).values())
            assert status in refusals or (kinds and kinds[0]["schema"]), status


def test_operation_ids_are_names_that_programs_can_have_and_no_two_are_alike() -> None:
    names = [operation.get("operationId", "") for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not name.isidentifier() or "_" in name] == []
    assert {"explainPod", "pendingPods", "othersFilter"} <= set(names)


def test_permitted_callers_are_described() -> None:
    schemes = DESCRIPTION["components"]["securitySchemes"]
    named = {label: [set(one) for one in operation["security"]] for label, operation in OPERATIONS.items()}
    assert set().union(*(one for ways in named.values() for one in ways)) | {"operatorToken"} == set(schemes)
    assert named["POST /bind"] == [{"clientCertificate"}, set()]
    assert named["GET /metrics"] == []
    assert all(named[f"GET {path}"] == [] for path in PROBES)
    assert {"readerToken"} in named["GET /pending"]


def test_no_schema_has_the_name_of_another() -> None:
    for kind in KINDS.values():
        assert DESCRIPTION["components"]["schemas"][kind.__name__]["title"] == kind.__name__
    references = set(json.dumps(DESCRIPTION).split('"$ref": "#/components/schemas/')[1:])
    names = {reference.partition('"')[0] for reference in references}
    assert names <= DESCRIPTION["components"]["schemas"].keys()


@pytest.fixture(scope="module")
def kerf() -> Iterator[Kerf]:
    """The sample cluster, with a decision."""
    with running(sample_cluster(), feed=SampleFeed(MemoryCluster(sample_cluster()))) as kerf:
        kerf.filter(pod("train-1", 8), ["h100-0", "a100-0"])
        yield kerf


@pytest.mark.parametrize("path", sorted(KINDS))
def test_answers_match_their_description(kerf: Kerf, path: str) -> None:
    asked = path.format(namespace="default", name="train-1", node="a100-0")
    answer = kerf.get(asked)
    assert answer.status == 200, answer.content
    kind = KINDS[path]
    msgspec.convert(answer.json(), kind)
    valid({"$ref": f"#/components/schemas/{kind.__name__}"}, answer.json())


TOLD_IN_FULL = ("/pending", "/workloads", "/nodes", "/version", "/model")


@pytest.mark.parametrize("path", TOLD_IN_FULL)
def test_no_key_is_missing_in_the_description(kerf: Kerf, path: str) -> None:
    known = DESCRIPTION["components"]["schemas"][KINDS[path].__name__]["properties"]
    assert kerf.get(path).json().keys() <= known.keys()


@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/others/filter", "/preempt"])
def test_an_example_is_a_request_that_is_answered(kerf: Kerf, path: str) -> None:
    answer = kerf.post(path, json.dumps(_ASKED[path]).encode())
    assert answer.status == 200, answer.content
    if path == "/filter":
        assert (answer.json()["Error"], answer.json()["NodeNames"]) == ("", ["a100-0"])
