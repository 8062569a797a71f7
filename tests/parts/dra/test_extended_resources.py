"""Pods that ask by an extended resource are made to ask by a ResourceClaim, which Kerf then creates."""

import copy
import json
from typing import Any

import msgspec

from extender.kube.objects import Pod
from extender.parts.dra.extended_resources import Rewriting
from extender.parts.dra.maker import _asked_of, _manifest_of
from tests.api.bodies import Manifest, pod

CLASSES = {"nvidia.com/gpu": "gpu.nvidia.com", "deviceclass.resource.kubernetes.io/mig": "mig"}
ANNOTATION = "kerf.dev/claim"


def asking(*containers: dict[str, str], init: dict[str, str] | None = None, **metadata: Any) -> Manifest:
    """A pod whose containers have these limits, as the API server completes them: requests are the same."""
    manifest = pod("p")
    manifest["metadata"] = {"name": "p", "namespace": "default", "uid": "u", **metadata}
    manifest["spec"]["containers"] = [
        {"name": f"c{index}", "resources": {"limits": dict(limits), "requests": dict(limits)}}
        for index, limits in enumerate(containers)
    ]
    if init is not None:
        manifest["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": init}}]
    return manifest


def patched(manifest: Manifest, classes: dict[str, str] | None = None) -> tuple[Manifest, list[str]]:
    """The pod as the API server makes it of the answer, and the warnings."""
    rewriting = Rewriting(CLASSES if classes is None else classes)
    operations, warnings = rewriting.operations(msgspec.Raw(msgspec.json.encode(manifest)), annotated=False)
    found = copy.deepcopy(manifest)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at: Any = found
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if operation["op"] == "remove":
            del at[last]
        elif isinstance(at, list):
            assert last == "-"
            at.append(operation["value"])
        else:
            at[last] = operation["value"]
    return found, warnings


def claim_of(found: Manifest) -> Manifest:
    """What Kerf creates for a pod, or {}."""
    read = msgspec.convert(found, Pod)
    asked = _asked_of(read, CLASSES.values())
    return {} if asked is None else _manifest_of(asked, read)


def test_containers_ask_by_requests_of_one_claim() -> None:
    found, warnings = patched(asking({"nvidia.com/gpu": "2", "cpu": "4"}, {"cpu": "1"}, {"nvidia.com/gpu": "1"}))
    assert not warnings
    (entry,) = found["spec"]["resourceClaims"]
    name = entry["resourceClaimName"]
    assert [container["resources"] for container in found["spec"]["containers"]] == [
        {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}, "claims": [{"name": name, "request": "container-0"}]},
        {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
        {"limits": {}, "requests": {}, "claims": [{"name": name, "request": "container-2"}]},
    ]
    assert entry["name"] == name
    claim = claim_of(found)
    assert claim["metadata"]["name"] == name
    requests = claim["spec"]["devices"]["requests"]
    assert [(request["name"], request["exactly"]["count"]) for request in requests] == [
        ("container-0", 2), ("container-2", 1),
    ]  # fmt: skip
    assert {request["exactly"]["deviceClassName"] for request in requests} == {"gpu.nvidia.com"}


def test_names_are_never_the_same() -> None:
    manifest = asking({"nvidia.com/gpu": "1"})
    names = {patched(manifest)[0]["spec"]["resourceClaims"][0]["name"] for _ in range(20)}
    assert len(names) == 20


def test_existing_claims_and_annotations_stay() -> None:
    manifest = asking({"deviceclass.resource.kubernetes.io/mig": "1"}, annotations={"a": "b"})
    manifest["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    manifest["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}]
    found, _ = patched(manifest)
    assert found["spec"]["resourceClaims"][0]["name"] == "nic"
    assert found["spec"]["containers"][0]["resources"]["claims"][0]["name"] == "nic"
    assert len(found["spec"]["resourceClaims"]) == len(found["spec"]["containers"][0]["resources"]["claims"]) == 2
    assert found["metadata"]["annotations"]["a"] == "b"
    assert claim_of(found)["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "mig"


def test_a_pod_that_can_not_be_rewritten_stays_as_it_is() -> None:
    for manifest, warning in (
        (asking({"nvidia.com/gpu": "1"}, init={"nvidia.com/gpu": "1"}), "init containers"),
        (asking({"nvidia.com/gpu": "1", "deviceclass.resource.kubernetes.io/mig": "1"}), "a container requests"),
        (asking({"nvidia.com/gpu": "20"}, {"nvidia.com/gpu": "13"}), "more than 32"),
        (asking({"nvidia.com/gpu": "many"}), "not a number"),
        (asking({"nvidia.com/gpu": "1"}, annotations={ANNOTATION: "{}"}), "exists already"),
        (asking({"nvidia.com/gpu": "0"}), ""),
        (asking({"example.com/fpga": "1"}), ""),
    ):
        found, warnings = patched(manifest)
        assert (len(warnings), warning in "".join(warnings)) == (bool(warning), True)
        assert found["spec"].get("resourceClaims") is None
        assert found["spec"]["containers"] == manifest["spec"]["containers"]
        assert claim_of(found) == {}


def test_without_the_setting_nothing_is_rewritten() -> None:
    found, warnings = patched(asking({"nvidia.com/gpu": "1"}), {})
    assert (warnings, found["spec"].get("resourceClaims")) == ([], None)
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_an_author_gets_no_claim_that_the_webhook_would_not_ask_for() -> None:
    def claim(value: str) -> Manifest:
        manifest = asking({}, annotations={ANNOTATION: value})
        names = ("kerf-0123456789abcdef", "kerf-0123456789ABCDEF", "another")
        manifest["spec"]["resourceClaims"] = [{"name": name.lower(), "resourceClaimName": name} for name in names]
        return claim_of(manifest)

    request: Manifest = {"name": "container-0", "class": "mig", "count": 1}
    good: Manifest = {"name": "kerf-0123456789abcdef", "requests": [request]}
    assert claim(json.dumps(good))
    wrong: list[tuple[str, Any]] = [
        ("class", "secret"), ("count", 0), ("count", 33), ("name", "x" * 300), ("adminAccess", True)
    ]  # fmt: skip
    asked: Any
    for asked in (
        good | {"name": "kerf-0123456789ABCDEF"},
        good | {"name": "another"},
        good | {"name": "kerf-fedcba9876543210"},  # a claim that the pod does not name
        good | {"requests": []},
        good | {"requests": [request, request]},
        *(good | {"requests": [request | {name: value}]} for name, value in wrong),
        good | {"requests": [request | {"count": -1}, request | {"name": "container-1", "count": 33}]},
        {},
        [],
        None,
    ):
        assert claim(json.dumps(asked)) == {}
        assert claim(json.dumps(asked)[:-1]) == {}
