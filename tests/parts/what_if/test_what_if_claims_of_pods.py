"""Which claims a pod of a question has, what of them Kerf allocates, and what nobody looks at."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from extender.core.dra.devices import NodeDevices
from extender.core.resources.requests import RequestError
from extender.dra.objects import DeviceClass, ResourceClaim
from extender.dra.pod_claims import PodClaims
from extender.kube.objects import Pod
from extender.parts.what_if.claims import (
    AskedClaims,
    DeviceFacts,
    names_of,
    pack,
    pods_of,
    read_claims,
    read_templates,
)
from extender.queueing.pods.objects import decode_pod
from tests.core.dra.machines import DRIVER, a100_node
from tests.dra.builders import device_class
from tests.parts.what_if.what_if_facts import Manifest

INVENTORY = a100_node("n", 2, mig=False)
DEVICES = {"n": pack(NodeDevices.of(INVENTORY), pickle.dumps(INVENTORY))}
CLASSES: Mapping[str, DeviceClass] = {"gpu": device_class()}


def spec(*device_classes: str, count: int = 1) -> Manifest:
    """Of a claim that asks devices of some classes, a request each."""
    requests = [
        {"name": f"r{number}", "exactly": {"deviceClassName": name, "count": count}}
        for number, name in enumerate(device_classes)
    ]
    return {"devices": {"requests": requests}}


def claim(name: str, *, has: str = "", **more: Any) -> Manifest:
    """A claim, with a device if it has one."""
    result = {"request": "r0", "driver": DRIVER, "pool": "n", "device": has}
    status = {"allocation": {"devices": {"results": [result]}}} if has else {}
    metadata = {"name": name, "namespace": "ns", "uid": f"u-{name}"}
    return {"metadata": metadata, "spec": more.get("spec", spec("gpu")), "status": status}


def pod(name: str, *claims: Mapping[str, str], gpus: int = 0, on: str = "") -> Pod:
    """A pod that names claims or templates; `gpus` are asked by resource."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    named = [{"name": f"c{number}"} | dict(one) for number, one in enumerate(claims)]
    manifest = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}"},
        "spec": {"containers": [{"resources": {"limits": limits}}], "resourceClaims": named, "nodeName": on or None},
    }
    return decode_pod(manifest)


def named(name: str) -> Mapping[str, str]:
    return {"resourceClaimName": name}


def from_template(name: str) -> Mapping[str, str]:
    return {"resourceClaimTemplateName": name}


def asking(
    *in_cluster: Manifest,
    given: Sequence[Manifest] = (),
    templates: Mapping[str, Manifest] | None = None,
    allocates: bool = True,
) -> AskedClaims:
    """The claims of a question, given beside it or in the cluster."""
    known = read_claims(in_cluster)
    made = [
        {"metadata": {"name": name, "namespace": "ns"}, "spec": {"spec": one}}
        for name, one in (templates or {}).items()
    ]
    facts = DeviceFacts(DEVICES, known, CLASSES) if allocates else None
    return AskedClaims(facts, read_claims(given), read_templates(made))


def names(claims: Sequence[ResourceClaim]) -> list[str]:
    return [one.metadata.name for one in claims]


def test_a_pod_without_claims_has_none() -> None:
    asked = asking()
    assert asked.of(pod("p")) == asked.of(pod("p", gpus=1)) == PodClaims()
    assert not asked.unchecked


def test_claims_with_devices_and_without_are_told_apart_and_what_the_latter_ask() -> None:
    asked = asking(claim("has", has="gpu-0"), claim("free"), templates={"t": spec("gpu", count=2)})
    found = asked.of(pod("p", named("free"), named("has"), from_template("t")))
    assert (names(found.allocated), names(found.unallocated)) == (["has"], ["free", "p-c2"])
    assert found.asked is not None
    assert [request.alternatives[0].count for one in found.asked.claims for request in one.requests] == [1, 2]
    made = found.unallocated[1].metadata
    assert (made.namespace, made.uid) == ("ns", "u-p/c2")
    assert not asked.unchecked
    only = asked.of(pod("q", named("has")))
    assert (names(only.allocated), only.unallocated, only.asked) == (["has"], (), None)


def test_a_claim_given_beside_the_pod_goes_before_that_of_the_cluster() -> None:
    asked = asking(claim("c", has="gpu-0"), given=[claim("c", spec=spec("gpu", count=2))])
    found = asked.of(pod("p", named("c")))
    assert (names(found.allocated), names(found.unallocated)) == ([], ["c"])


def test_what_a_pod_with_a_node_has_it_has_to_get_anew_and_its_claims_are_those_of_its_status() -> None:
    asked = asking(claim("made", has="gpu-0"))
    running = pod("p", from_template("gone"), on="n")
    running.status = msgspec.convert(
        {"resourceClaimStatuses": [{"name": "c0", "resourceClaimName": "made"}]}, type(running.status)
    )
    found = asked.of(running)
    assert (names(found.allocated), names(found.unallocated)) == ([], ["made"])
    with pytest.raises(RequestError, match="is allocated for ns/p: it must go to these devices"):
        asked.of(pod("q", named("made"), on="n"))
    assert names(asked.of(pod("r", named("made"))).allocated) == ["made"]


def test_devices_that_a_claim_has_are_for_all_pods_that_name_it_and_else_for_the_first() -> None:
    asked = asking(claim("has", has="gpu-0"), claim("free"))
    for name in ("p", "q"):
        assert names(asked.of(pod(name, named("has"))).allocated) == ["has"]
    for _ in range(2):
        assert names(asked.of(pod("p", named("free"))).unallocated) == ["free"]
    fault = r"^its ResourceClaim free is allocated for ns/p: it must go to these devices$"
    with pytest.raises(RequestError, match=fault):
        asked.of(pod("q", named("free")))


def test_of_claims_beside_gpus_by_resource_those_of_others_are_not_looked_at() -> None:
    for others in (spec("nic"), spec("gpu", count=3)):  # a class of no node, and more than any node has
        asked = asking(claim("mine"), templates={"others": others})
        found = asked.of(pod("p", from_template("others"), named("mine"), gpus=1))
        assert names(found.unallocated) == ["mine"]
        assert found.asked is not None
        assert asked.unchecked == {"ns/p"}
        alone = asked.of(pod("q", from_template("others"), gpus=1))
        assert (alone, asked.unchecked) == (PodClaims(), {"ns/p", "ns/q"})
        assert names(asked.of(pod("p", named("mine"), gpus=1)).unallocated) == ["mine"]
        assert asked.unchecked == {"ns/p", "ns/q"}


def test_a_claim_that_nobody_knows_is_not_looked_at_beside_gpus_by_resource_and_refused_else() -> None:
    asked = asking(claim("mine"))
    found = asked.of(pod("p", named("gone"), from_template("gone"), named("mine"), gpus=1))
    assert (names(found.unallocated), asked.unchecked) == (["mine"], {"ns/p"})
    for one, fault in (
        (named("gone"), r"^its ResourceClaim gone is neither in the cluster nor given$"),
        (from_template("gone"), r"^its ResourceClaimTemplate gone is not given$"),
    ):
        with pytest.raises(RequestError, match=fault):
            asked.of(pod("q", one))
    with pytest.raises(RequestError, match="nic"):
        asking(templates={"t": spec("nic")}).of(pod("q", from_template("t")))
    assert asked.unchecked == {"ns/p"}


def alternatives(*device_classes: str) -> Manifest:
    """Of a claim that asks a device of one class or another."""
    found = [{"name": f"a{number}", "deviceClassName": name} for number, name in enumerate(device_classes)]
    return {"devices": {"requests": [{"name": "r", "firstAvailable": found}]}}


def test_where_kerf_allocates_nothing_claims_of_others_are_not_looked_at() -> None:
    given = [claim("nic", spec=spec("nic.example.com")), claim("mig", spec=spec("mig.nvidia.com"))]
    given += [claim("alternatives", spec=alternatives("nic", "gpu.x.com"))]
    given += [claim("cards", spec=alternatives("nic", "dpu")), claim("nothing", spec={})]
    templates = {
        "nics": spec("nic", "dpu"),
        "gpus": spec("nic", "gpu.nvidia.com"),
        "gpu-first": spec("gpu.nvidia.com", "nic"),
        "imaginary": spec("gpus-not", "migrate"),
    }
    for claims, gpus in (
        ([named("nic")], 0),
        ([from_template("nics")], 0),
        ([from_template("imaginary")], 0),
        ([named("cards")], 0),
        ([named("gone")], 1),
    ):
        asked = asking(given=given, templates=templates, allocates=False)
        assert asked.of(pod("p", *claims, gpus=gpus)) == PodClaims()
        assert asked.unchecked == {"ns/p"}
    for claims in (
        [named("nic"), from_template("gpus")],
        [named("mig")],
        [named("alternatives")],
        [from_template("gpu-first")],
        [named("gone")],
        [named("nic"), from_template("gone")],
        [named("nothing")],
    ):
        asked = asking(given=given, templates=templates, allocates=False)
        with pytest.raises(RequestError, match=r"dra\.allocate"):
            asked.of(pod("p", *claims))
        assert not asked.unchecked


def test_what_is_given_without_a_namespace_or_a_uid_gets_one() -> None:
    (found,) = read_claims([{"metadata": {"name": "c"}, "spec": spec("gpu")}]).values()
    assert (found.key, found.metadata.uid) == ("default/c", "given/default/c")
    (other,) = read_claims([claim("c")]).values()
    assert (other.key, other.metadata.uid) == ("ns/c", "u-c")
    given = {"metadata": {"name": "t"}, "spec": {"spec": spec("gpu")}}
    elsewhere = {"metadata": {"name": "t", "namespace": "ns"}, "spec": {"spec": spec("nic")}}
    assert {
        key: [request.exactly.device_class_name for request in one.devices.requests or () if request.exactly]
        for key, one in read_templates([given, elsewhere]).items()
    } == {"default/t": ["gpu"], "ns/t": ["nic"]}


def test_claims_are_named_once_and_pods_that_cannot_be_read_name_none() -> None:
    def naming(*claims: Mapping[str, str], **metadata: str) -> Manifest:
        return {"metadata": metadata, "spec": {"resourceClaims": [{"name": "c", **one} for one in claims]}}

    pods = [naming(named("x"), named("y")), {"spec": 7}, naming(from_template("t"), namespace="ns"), naming(named("x"))]
    assert names_of([*pods, {"metadata": {"name": "r"}, "spec": {}}]) == ["default/x", "default/y", "ns/"]
    assert len(pods_of(pods)) == 3
