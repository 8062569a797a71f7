"""Requests generated from the OpenAPI description; the answers are validated by it."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis

# Otherwise loaded lazily during a test.
import schemathesis.specs.openapi.schemas
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from extender.api.app import create_app
from extender.kube.memory import MemoryCluster
from extender.server.access import PROBES
from extender.settings.access import AccessSettings, OpenTo
from extender.settings.tree import Settings
from tests.api import bodies
from tests.parts.pages import paths_of_parts

pytestmark = pytest.mark.slow

VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
VERBS = ("/filter", "/prioritize", "/others/filter", "/others/prioritize", "/preempt", "/bind")
Check = Callable[..., Any]
_ANSWERED_WITHIN_S = 60.0
"""An answer from a child process takes seconds on a busy machine."""
KEYS = ("Pod", "Nodes", "NodeNames", "NodeNameToVictims", "NodeNameToMetaVictims", "Pods", "NumPDBViolations", "UID")


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """CPython before 3.11.9 may fail to parse what Hypothesis shows when a collection runs meanwhile (issue 106905)."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def description() -> schemathesis.BaseSchema:
    return description_of_kerf()


def description_of_kerf() -> schemathesis.BaseSchema:
    """The description of a service on the small cluster."""
    # Its client has a name for an address, and is faster than a reader may be.
    access = AccessSettings(open_to=OpenTo.ALL, calls_per_s=0)
    app = create_app(Settings(access=access), MemoryCluster(bodies.CLUSTER))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize(
    ("label", "mode", "excluded"),
    [
        pytest.param("POST /filter", VALID, (), id="filter, valid"),
        pytest.param("POST /filter", INVALID, (negative_data_rejection,), id="filter, invalid: a sentence in Error"),
        # Of a form that is right: a pod that asks for "two" GPUs is rejected nevertheless.
        pytest.param("POST /prioritize", VALID, (positive_data_acceptance,), id="prioritize, valid"),
        pytest.param("POST /prioritize", INVALID, (), id="prioritize, invalid"),
        # As valid a form has a victim that is a pod without a UID.
        pytest.param("POST /others/filter", VALID, (), id="others/filter, valid"),
        pytest.param("POST /others/filter", INVALID, (negative_data_rejection,), id="others/filter, invalid"),
        pytest.param("POST /others/prioritize", VALID, (positive_data_acceptance,), id="others/prioritize, valid"),
        pytest.param("POST /others/prioritize", INVALID, (), id="others/prioritize, invalid"),
        pytest.param("POST /preempt", VALID, (positive_data_acceptance,), id="preempt, valid"),
        pytest.param("POST /preempt", INVALID, (), id="preempt, invalid"),
        pytest.param("POST /bind", VALID, (), id="bind, valid"),
        pytest.param("POST /bind", INVALID, (negative_data_rejection,), id="bind, invalid: a sentence in Error"),
        pytest.param("GET /healthz", VALID, (), id="healthz"),
        pytest.param("GET /readyz", VALID, (), id="readyz"),
        pytest.param("GET /syncz", VALID, (), id="syncz"),
        pytest.param("GET /version", VALID, (), id="version"),
        pytest.param("GET /metrics", VALID, (), id="metrics"),
        pytest.param("GET /pending", VALID, (), id="pending, valid"),
        pytest.param("GET /pending", INVALID, (), id="pending, invalid"),
        pytest.param("GET /workloads", VALID, (), id="workloads, valid"),
        pytest.param("GET /workloads", INVALID, (), id="workloads, invalid"),
        pytest.param("GET /nodes", VALID, (), id="nodes, valid"),
        pytest.param("GET /nodes", INVALID, (), id="nodes, invalid"),
        pytest.param("GET /nodes/{node}", VALID, (), id="one node"),
        # A policy of as valid a name does not exist.
        pytest.param("GET /explain/pod/{namespace}/{name}", VALID, (positive_data_acceptance,), id="explain"),
    ],
)
def test_every_answer_is_as_described(
    description: schemathesis.BaseSchema, label: str, mode: schemathesis.GenerationMode, excluded: tuple[Check, ...]
) -> None:
    answers_as_described(description, label, mode, excluded)


def answers_as_described(
    description: schemathesis.BaseSchema, label: str, mode: schemathesis.GenerationMode, excluded: tuple[Check, ...]
) -> None:
    """Send valid or invalid requests, and validate the answers."""
    operation = description.find_operation_by_label(label)
    assert operation

    few = ("POST /what-if", "POST /defrag", "POST /others/")  # questions are large; the others are as the first entry
    num_examples = 20 if label.startswith(few) else 60

    @settings(max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case[Any]) -> None:
        assume(mode is VALID or not (differs_in_case(case.body) or has_null(case.body)))
        case.call_and_validate(excluded_checks=list(excluded), timeout=_ANSWERED_WITHIN_S)

    check()


def has_null(value: object) -> bool:
    """Whether there is a null anywhere: Go writes one for what is absent, so it is taken, and no schema says so."""
    if isinstance(value, dict):
        value = list(value.values())
    return value is None or (isinstance(value, list) and any(map(has_null, value)))


def differs_in_case(value: object) -> bool:
    """Whether a key is one of kube-scheduler's but for its case: that is taken, as by Go, and no schema can say so."""
    if isinstance(value, list):
        return any(map(differs_in_case, value))
    if not isinstance(value, dict):
        return False
    lower = {key.lower() for key in KEYS}
    return any(str(key).lower() in lower and key not in KEYS for key in value) or any(
        map(differs_in_case, value.values())
    )


def test_every_route_is_described_with_every_status(description: schemathesis.BaseSchema) -> None:
    statuses = {
        path: set().union(*(o["responses"] for o in operations.values()))
        for path, operations in description.raw_schema["paths"].items()
    }
    refusals = {"401", "403", "429"}
    own = statuses.keys() - paths_of_parts()
    for path in own:
        guarded = path not in (*VERBS, *PROBES)
        assert (statuses[path] & refusals) == (refusals if guarded else set()), path
    assert {path: statuses[path] - refusals for path in own} == {
        "/filter": {"200"},
        "/prioritize": {"200", "400", "413", "503"},
        "/others/filter": {"200"},
        "/others/prioritize": {"200", "400", "413", "503"},
        "/preempt": {"200", "400", "413"},
        "/bind": {"200"},
        "/healthz": {"200", "503"},
        "/readyz": {"200", "503"},
        "/syncz": {"200", "503"},
        "/version": {"200"},
        "/metrics": {"200"},
        "/telemetry": {"200"},
        "/model": {"200"},
        "/pending": {"200", "422", "503"},
        "/workloads": {"200", "422", "503"},
        "/nodes": {"200", "422", "503"},
        "/nodes/{node}": {"200", "404", "422", "503"},
        "/live": {"200", "503"},
        # 422 is FastAPI's own, for path parameters; every text is one.
        "/explain/pod/{namespace}/{name}": {"200", "400", "404", "422", "503"},
    }


def test_answers_are_described_with_all_their_keys(description: schemathesis.BaseSchema) -> None:
    schemas = description.raw_schema["components"]["schemas"]
    keys = ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]
    assert schemas["FilterResult"]["required"] == keys
    assert schemas["BindResult"]["required"] == ["Error"]
    assert schemas["HostPriority"]["required"] == ["Host", "Score"]
    assert schemas["ExtenderArgs"]["required"] == ["Pod"]
    assert schemas["ExtenderPreemptionArgs"]["required"] == ["Pod"]
    assert schemas["PreemptionResult"]["required"] == ["NodeNameToMetaVictims"]
    assert schemas["ExtenderBindingArgs"]["required"] == ["PodName", "PodNamespace", "PodUID", "Node"]
