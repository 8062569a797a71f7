"""The routes are as OpenAPI and the part's page describe them, and the metrics are on the page."""

import json

import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.api.services import running
from tests.api.test_openapi import VALID, answers_as_described, description_of_kerf
from tests.docs.test_http_api import keys_of, section
from tests.parts.pages import assert_its_metrics_are_on_its_page
from tests.parts.usage.rigs import meter_of


@pytest.fixture(name="description", scope="module")
def description_fixture() -> schemathesis.BaseSchema:
    return description_of_kerf()


@pytest.mark.slow
def test_answers_are_as_described(description: schemathesis.BaseSchema) -> None:
    # 503 without the Prometheus that is asked for is an answer.
    answers_as_described(description, "GET /usage", VALID, (positive_data_acceptance, not_a_server_error))


@pytest.mark.parametrize("path", ["/usage", "/usage/over-time"])
def test_each_status_is_described(description: schemathesis.BaseSchema, path: str) -> None:
    known = description.raw_schema["paths"][path]["get"]["responses"]
    assert known.keys() - {"401", "403", "429"} == {"200", "400", "422", "503"}


def test_the_keys_of_answers_are_on_the_page_and_in_the_description(description: schemathesis.BaseSchema) -> None:
    with running() as kerf:
        kerf.run(meter_of(kerf).tick())
        kerf.clock.now += 60.0
        kerf.run(meter_of(kerf).tick())
        for path, kind in (("/usage", "UsageReport"), ("/usage/over-time", "UsageOverTime")):
            answer = json.loads(kerf.get(path).content)
            assert answer.keys() <= description.raw_schema["components"]["schemas"][kind]["properties"].keys()
            assert not {key for key in keys_of(answer) if f"`{key}`" not in section(f"GET {path}")}


def test_metrics_are_on_the_page() -> None:
    with running(usage__enabled=False) as without, running(usage__budgets={"a": 1.0}) as kerf:
        assert_its_metrics_are_on_its_page("usage", without, kerf)
