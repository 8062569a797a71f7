"""The webhooks in a service: their calls, what each Kubernetes sends them, and that they can be turned off."""

import json

import msgspec
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import negative_data_rejection

from extender.api.reviews import AdmissionAnswer
from extender.parts.webhook.assigned_gpus import Injection, mutate
from extender.parts.webhook.gate import gate
from extender.parts.webhook.settings import Devices
from tests.api.bodies import node, pod, review
from tests.api.services import running
from tests.api.test_api_description import DESCRIPTION, valid
from tests.api.test_openapi import INVALID, VALID, answers_as_described, description_of_kerf
from tests.kube import bodies

PATHS = ("/mutate", "/gate")


@pytest.fixture(name="description", scope="module")
def description_fixture() -> schemathesis.BaseSchema:
    return description_of_kerf()


@pytest.mark.slow
def test_answers_are_as_described(description: schemathesis.BaseSchema) -> None:
    for path in PATHS:
        answers_as_described(description, f"POST {path}", VALID, ())
        answers_as_described(description, f"POST {path}", INVALID, (negative_data_rejection,))  # allowed with a warning


def test_the_calls_are_the_api_servers_and_described_with_an_example_that_is_answered() -> None:
    with running([node("n-0", 1)]) as kerf:
        for path in PATHS:
            call = DESCRIPTION["paths"][path]["post"]
            assert call["responses"].keys() == {"200"}
            assert call["security"] == []
            example = call["requestBody"]["content"]["application/json"]["example"]
            told = kerf.post(path, json.dumps(example).encode()).json()
            assert told["response"]["allowed"] is True
            msgspec.convert(told, AdmissionAnswer)
            valid({"$ref": "#/components/schemas/AdmissionAnswer"}, told)


def test_turned_off_they_are_gone_and_that_is_said() -> None:
    with running([node("n-0", 1)], webhook__enabled=False) as kerf:
        for path in PATHS:
            answer = kerf.post(path, json.dumps(review(pod("p"))).encode())
            assert (answer.status, "webhook.enabled" in answer.json()["detail"]) == (404, True)
        assert kerf.filter(pod("a", 1), ["n-0"])["NodeNames"] == ["n-0"]


def test_both_webhooks_act_on_what_each_kubernetes_sends() -> None:
    for minor in bodies.MINORS:
        review = bodies.bodies(minor)["review"]
        answers = [gate(json.dumps(review).encode())]
        pod = review["request"]["object"]
        pod["metadata"]["annotations"] = {"kerf.dev/gpu-count": "1"}
        for container in pod["spec"]["containers"]:
            container["resources"] = {}
        answers += [mutate(json.dumps(review).encode(), lambda: Injection(Devices.INDICES))]
        for response in (json.loads(answer)["response"] for answer in answers):
            assert response["allowed"]
            assert "warnings" not in response
            assert response["patch"]
