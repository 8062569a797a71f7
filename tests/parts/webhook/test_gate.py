"""The queue's webhook: who gets the gate, and that it never stands in the way."""

import asyncio
import base64
import json
from typing import Any

import msgspec

from extender.api.calls import Endpoint, calls_of
from extender.api.reviews import Operation, RewritesRequests
from extender.parts.webhook.gate import gate
from tests.api.bodies import Manifest, node, pod, review
from tests.api.services import call, running

GATE = {"name": "kerf.dev/queue"}


class Rewriter:
    """Has every pod ask for nothing any more."""

    def operations(self, body: msgspec.Raw, *, annotated: bool) -> tuple[list[Operation], list[str]]:
        return [{"op": "remove", "path": "/spec/containers/0/resources"}], ["rewritten", str(annotated)]


def answer(
    manifest: Manifest, rewrites: RewritesRequests | None = None, **request: Any
) -> tuple[list[Manifest], list[str]]:
    """The operations of the patch, and the warnings."""
    response = json.loads(gate(json.dumps(review(manifest, **request)).encode(), rewrites))["response"]
    assert response["allowed"] is True
    patch = json.loads(base64.b64decode(response.get("patch", "") or "W10="))
    return patch, response.get("warnings", [])


def waits(spec: Manifest | None = None, **metadata: Any) -> Manifest:
    manifest = pod("p")
    manifest["metadata"] = {"name": "p", **metadata}
    manifest["spec"] |= spec or {}
    return manifest


def test_who_gets_the_gate() -> None:
    enabled, disabled, priority = (
        {"kerf.dev/queue": "enabled"},
        {"kerf.dev/queue": "disabled"},
        {"genius/priority": "3"},
    )
    for labels, by in (({}, "namespace"), (enabled, "label"), (priority, "priority"), (priority | enabled, "label")):
        assert answer(waits(labels=labels)) == (
            [
                {"op": "add", "path": "/spec/schedulingGates", "value": [GATE]},
                {"op": "add", "path": "/metadata/annotations", "value": {"kerf.dev/queued-by": by}},
            ],
            [],
        )
    assert answer(waits(labels=disabled | priority)) == ([], [])


def test_what_those_that_wait_ask_for_is_rewritten_after_the_gate() -> None:
    patch, warnings = answer(waits(), Rewriter())
    assert patch[0]["value"] == [GATE]
    assert patch[-1] == {"op": "remove", "path": "/spec/containers/0/resources"}
    assert warnings == ["kerf: rewritten", "kerf: True"]
    assert answer(waits({"schedulingGates": [GATE]}), Rewriter())[1] == ["kerf: rewritten", "kerf: False"]
    for stays in (waits(labels={"kerf.dev/queue": "disabled"}), waits({"nodeName": "n"})):
        assert answer(stays, Rewriter()) == ([], [])


def test_what_is_there_already_stays() -> None:
    patch, _ = answer(waits({"schedulingGates": [{"name": "other"}]}, annotations={"a": "b"}))
    assert patch == [
        {"op": "add", "path": "/spec/schedulingGates/-", "value": GATE},
        {"op": "add", "path": "/metadata/annotations/kerf.dev~1queued-by", "value": "namespace"},
    ]
    assert answer(waits({"schedulingGates": [GATE]})) == ([], [])
    assert answer(waits({"nodeName": "n"})) == ([], [])  # a gate would be refused there
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}, {"name": "nic", "resourceClaimName": "nic"}]
    patch, warnings = answer(waits({"resourceClaims": claims}))
    assert (patch[0]["value"], warnings) == ([GATE], [])


def test_other_objects_and_broken_ones_pass() -> None:
    assert answer(waits(), operation="UPDATE") == ([], [])
    assert answer(waits(), kind={"group": "apps", "version": "v1", "kind": "Deployment"}) == ([], [])
    patch, [warning] = answer(waits({"schedulingGates": 3}))
    assert (patch, warning.startswith("kerf: the pod can't be read")) == ([], True)
    assert json.loads(gate(b"{"))["response"]["allowed"] is True


def test_calls_of_one_address_are_limited() -> None:
    body = json.dumps(review(pod("p"))).encode()
    with running([node("n-0", 1)]) as kerf:
        (asked,) = (each for each in calls_of(kerf.service) if each.path == "/gate")
        endpoint = Endpoint(asked, kerf.service, webhooks_per_s=1)
        statuses = [asyncio.run(call(endpoint, "POST", "/gate", (body,), {})).status for _ in range(6)]
        assert statuses == [200] * 4 + [429] * 2
