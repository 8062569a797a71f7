"""The webhook: what it injects, and that it never stands in the way."""

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.bodies import Manifest, node, pod, review
from tests.api.damage import mutated as damaged
from tests.api.services import Kerf, running

NAME = "NVIDIA_VISIBLE_DEVICES"
INDICES, UUIDS = (f"metadata.annotations['kerf.dev/assigned-{kind}']" for kind in ("gpus", "uuids"))
VOID = {"name": NAME, "value": "void"}


@pytest.fixture(name="kerf", scope="module")
def kerf_fixture() -> Iterator[Kerf]:
    """A cluster in which nothing is requested of a device plugin; no review changes anything."""
    with running(webhook__resource=False) as kerf:
        yield kerf


def assigned(field: str = INDICES) -> Manifest:
    return {"name": NAME, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}


def asking(*containers: Manifest, **options: Any) -> Manifest:
    """A pod that asks for two GPUs by annotation alone."""
    annotations = {"kerf.dev/gpu-count": "2", **options.pop("annotations", {})}
    manifest = pod("train", annotations=annotations, **options)
    if containers:
        manifest["spec"]["containers"] = list(containers)
    del manifest["metadata"]["name"], manifest["metadata"]["uid"]  # as of a pod with generateName that is not stored
    manifest["metadata"]["generateName"] = "train-"
    return manifest


def respond(kerf: Kerf, body: Manifest | bytes) -> Manifest:
    """The response, which has to allow."""
    answer = kerf.post("/mutate", body if isinstance(body, bytes) else json.dumps(body).encode())
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    decoded = answer.json()
    assert decoded.keys() == {"apiVersion", "kind", "response"}
    assert (decoded["apiVersion"], decoded["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Manifest = decoded["response"]
    assert response["allowed"] is True
    assert response.keys() <= {"uid", "allowed", "patchType", "patch", "warnings"}
    assert ("patch" in response) == ("patchType" in response)
    assert all(len(warning) <= 256 and warning.isascii() and warning.isprintable() for warning in warnings(response))
    return response


def warnings(response: Manifest) -> list[str]:
    found: list[str] = response.get("warnings", [])
    return found


def patched(manifest: Manifest, response: Manifest) -> Manifest:
    """The pod as the API server stores it."""
    result = copy.deepcopy(manifest)
    if "patch" not in response:
        return result
    assert response["patchType"] == "JSONPatch"
    for operation in json.loads(base64.b64decode(response["patch"])):
        *parents, last = (part.replace("~1", "/") for part in operation["path"].removeprefix("/").split("/"))
        holder: Any = result
        for key in parents:
            holder = holder[int(key)] if isinstance(holder, list) else holder[key]
        match operation["op"], holder:
            case "add", list():
                holder.insert(int(last), operation["value"])
            case "add", dict():
                holder[last] = operation["value"]
            case "replace", list():
                holder[int(last)] = operation["value"]
            case "remove", list():
                del holder[int(last)]
            case _:
                raise AssertionError(operation)
    return result


def mutated(kerf: Kerf, manifest: Manifest) -> Manifest:
    """The pod as it is stored; a second call changes nothing more."""
    result = patched(manifest, respond(kerf, review(manifest)))
    again = respond(kerf, review(result))
    assert "patch" not in again
    return result


def env_of(manifest: Manifest, kind: str = "containers") -> dict[str, Any]:
    return {container["name"]: container.get("env") for container in manifest["spec"][kind]}


# What is injected


def test_the_answer_byte_for_byte(kerf: Kerf) -> None:
    patch = (
        b'[{"op":"add","path":"/spec/containers/0/env","value":[{"name":"NVIDIA_VISIBLE_DEVICES","valueFrom":'
        b'{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.annotations[\'kerf.dev/assigned-gpus\']"}}}]},'
        b'{"op":"add","path":"/spec/containers/0/resources/limits/kerf.dev~1gpu","value":"1"}]'
    )
    assert kerf.post("/mutate", json.dumps(review(asking())).encode()).content == (
        b'{"response":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","allowed":true,"patchType":"JSONPatch","patch":"'
        + base64.b64encode(patch)
        + b'"},"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}'
    )


def test_all_containers_but_init_containers_get_the_gpus(kerf: Kerf) -> None:
    manifest = asking({"name": "a"}, {"name": "b", "env": []}, initContainers=[{"name": "i"}])
    stored = mutated(kerf, manifest)
    assert env_of(stored) == {"a": [assigned()], "b": [assigned()]}
    assert env_of(stored, "initContainers") == {"i": [VOID]}


def test_a_container_that_is_not_there_is_told(kerf: Kerf) -> None:
    response = respond(kerf, review(asking({"name": "a"}, annotations={"kerf.dev/gpu-containers": "b"})))
    (warning,) = warnings(response)
    assert warning.startswith("kerf: kerf.dev/gpu-containers: ")


def test_other_variables_stay_and_may_refer_to_it(kerf: Kerf) -> None:
    env = [{"name": "SEEN", "value": f"$({NAME})"}]
    assert env_of(mutated(kerf, asking({"name": "a", "env": env})))["a"] == [assigned(), *env]


def test_who_wants_to_see_other_gpus_is_told(kerf: Kerf) -> None:
    for own in (
        {"value": "all"},
        {"value": "0"},
        {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}},
        {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ):
        manifest = asking({"name": "a", "env": [{"name": "X", "value": "x"}, {"name": NAME, **own}]})
        assert env_of(mutated(kerf, manifest))["a"] == [{"name": "X", "value": "x"}, assigned()]
        (warning,) = warnings(respond(kerf, review(manifest)))
        assert warning.startswith(f"kerf: {NAME} of container a is replaced")


def test_a_share_and_genius_labels_are_requests_too(kerf: Kerf) -> None:
    share, labels = {"kerf.dev/gpu-share": "500"}, {"genius/gpu-number": "1"}
    for manifest in (pod("share", annotations=share), pod("genius", labels=labels)):
        assert env_of(mutated(kerf, manifest)) == {"c": [assigned()]}


# UUIDs or indices


def uuid_node(name: str) -> Manifest:
    manifest = node(name, 2)
    gpus = [{"index": index, "uuid": f"GPU-{name}-{index}"} for index in range(2)]
    manifest["metadata"]["annotations"] = {"kerf.dev/gpus": json.dumps(gpus)}
    return manifest


def test_uuids_where_they_are_known() -> None:
    for nodes, devices, field in (
        ([uuid_node("a"), node("cpu")], "auto", UUIDS),
        ([uuid_node("a"), node("b", 2)], "auto", INDICES),
        ([node("cpu")], "auto", INDICES),
        ([uuid_node("a")], "indices", INDICES),
        ([node("b", 2)], "uuids", UUIDS),
    ):
        with running(nodes, webhook__devices=devices, webhook__resource=False) as kerf:
            assert env_of(mutated(kerf, asking({"name": "a"}))) == {"a": [assigned(field)]}
            # What a replica with another view has injected stays.
            for other in (INDICES, UUIDS):
                stored = {"name": "a", "env": [assigned(other)], "resources": {"limits": MARKED}}
                assert "patch" not in respond(kerf, review(asking(stored)))


# Requested of the device plugin


@pytest.fixture(scope="module")
def native() -> Iterator[Kerf]:
    """A node of NVIDIA's plugin, and one without any."""
    with running([node("a", 2), node("cpu")]) as kerf:
        yield kerf


def test_a_number_of_whole_gpus_is_requested_of_the_plugin(native: Kerf) -> None:
    manifest = asking({"name": "a"}, {"name": "b"}, initContainers=[{"name": "i"}])
    stored = mutated(native, manifest)
    assert limits_of(stored) == [{"nvidia.com/gpu": "2"}, None]
    assert env_of(stored) == {"a": None, "b": [VOID]}, "the plugin says which they are"
    (warning,) = warnings(respond(native, review(manifest)))
    assert warning.startswith("kerf: only container a gets the GPUs")


def test_the_container_that_the_pod_names_requests_them(native: Kerf) -> None:
    limits = {"cpu": "1"}
    named = asking(
        {"name": "a"}, {"name": "b", "resources": {"limits": limits}}, annotations={"kerf.dev/gpu-containers": "b"}
    )
    assert limits_of(mutated(native, named)) == [None, {"cpu": "1", "nvidia.com/gpu": "2"}]


def test_where_no_container_is_to_have_the_gpus_the_pod_is_marked_and_waits_for_kerf(native: Kerf) -> None:
    stored = mutated(native, asking({"name": "a"}, annotations={"kerf.dev/gpu-containers": "b"}))
    assert (env_of(stored), limits_of(stored)) == ({"a": [VOID]}, [MARKED])


def test_the_label_of_another_system_and_a_size_are_requested_as_well(native: Kerf) -> None:
    by_label = pod("p", labels={"genius/gpu-number": "1"})
    by_size = pod("p", annotations={"kerf.dev/gpu-memory-each": "40Gi"})
    for manifest in (by_label, by_size):
        assert limits_of(mutated(native, manifest)) == [{"nvidia.com/gpu": "1"}]


def test_what_a_container_would_rather_see_is_left_to_the_plugin(native: Kerf) -> None:
    own = [{"name": NAME, "value": "all"}, {"name": "X", "value": "x"}, {"name": NAME, "value": "0"}]
    manifest = asking({"name": "a", "env": own})
    assert env_of(mutated(native, manifest)) == {"a": [{"name": "X", "value": "x"}]}
    (warning,) = warnings(respond(native, review(manifest)))
    assert warning.startswith(f"kerf: {NAME} of container a is left")


def test_what_no_number_of_gpus_says_is_told_by_the_assignment(native: Kerf) -> None:
    for annotations in ({"kerf.dev/gpu-share": "500"}, {"kerf.dev/gpu-memory-total": "80Gi"}):
        stored = mutated(native, pod("p", annotations=annotations))
        assert (env_of(stored), limits_of(stored)) == ({"c": [assigned()]}, [MARKED])


def test_without_nvidias_plugin_nothing_is_requested_of_it() -> None:
    plugin, other, sliced = [uuid_node("a"), node("cpu")], [node("cpu")], [node("time-sliced", shared=4)]
    for nodes, resource in ((plugin, False), (other, True), (sliced, True)):
        with running(nodes, webhook__resource=resource) as kerf:
            assert limits_of(mutated(kerf, asking({"name": "a"}))) == [MARKED]


# What is left alone


def limited(limits: Manifest) -> Manifest:
    """A pod that asks for GPUs by the resources of a device plugin."""
    manifest = pod("by-resource")
    manifest["spec"]["containers"][0]["resources"]["limits"] = limits
    return manifest


def test_others_are_left_alone(kerf: Kerf) -> None:
    conditions = {"kerf.dev/gpu-model": "a100"}
    for body in (
        review(pod("web")),
        review(pod("gpu", 2)),
        review(pod("gpu", 2, annotations=conditions)),
        review(limited({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k"})),
        review(limited({"aliyun.com/gpu-mem": "1"})),
        review(asking(), operation="UPDATE"),
        review(asking(), subResource="ephemeralcontainers"),
        review(asking(), kind={"group": "apps", "version": "v1", "kind": "Deployment"}),
        review(asking(), kind={"group": "x.io", "version": "v1", "kind": "Pod"}),
    ):
        assert respond(kerf, body) == {"uid": body["request"]["uid"], "allowed": True}


def test_nothing_is_asked_of_the_mirror() -> None:
    with running(webhook__resource=False) as kerf:
        kerf.stop_mirror()
        assert env_of(mutated(kerf, asking({"name": "a"}))) == {"a": [assigned()]}


# Bad input


def test_what_cannot_be_understood_is_allowed_with_a_warning(kerf: Kerf) -> None:
    not_one, older = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}, "admission.k8s.io/v1beta1"
    for body, fault in (
        (b"", "can't be read"),
        (b"\xff", "can't be read"),
        (b"[]", "can't be read"),
        (b'{"request":' + b"[" * 100_000, "can't be read"),
        ({}, "not an AdmissionReview"),
        (not_one, "not an AdmissionReview"),
        (review(asking()) | {"apiVersion": older}, "not an AdmissionReview of admission.k8s.io/v1"),
        (review(asking(), uid=7), "can't be read"),
        (review({"spec": 7}), "the pod can't be read"),
        (review(asking(), object=None), "the pod can't be read"),
        (review(pod("p", annotations={"kerf.dev/gpu-count": "zwölf\n"})), 'kerf.dev/gpu-count: "zw?lf" is not'),
        (b" " * (4 * 1024 * 1024 + 1), "larger than 4 MiB"),
    ):
        response = respond(kerf, body)
        patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
        assert [operation["path"] for operation in patch] in ([], ["/spec/containers/0/resources/limits/kerf.dev~1gpu"])
        (warning,) = warnings(response)
        assert fault in warning


def test_warnings_are_few_and_short(kerf: Kerf) -> None:
    loud = [{"name": f"c{number}" * 60, "env": [{"name": NAME, "value": "all"}]} for number in range(50)]
    response = respond(kerf, review(asking(*loud)))
    assert len(warnings(response)) == 8
    assert len(json.loads(base64.b64decode(response["patch"]))) == 50 + 1  # and the marker


VARIABLES = st.one_of(
    st.sampled_from([assigned(), assigned(UUIDS), {"name": NAME}]),
    st.sampled_from([{"name": NAME, "value": value} for value in ("void", "none", "", "all")]),
    st.builds(lambda name, value: {"name": name, "value": value}, st.text(max_size=3), st.text(max_size=3)),
)


CONTAINER_LISTS = st.lists(
    st.fixed_dictionaries({}, optional={"env": st.none() | st.lists(VARIABLES, max_size=4)}), max_size=4
)


@settings(max_examples=2 * settings().max_examples)
@given(containers=CONTAINER_LISTS, init_containers=CONTAINER_LISTS, chosen=st.sets(st.integers(0, 9)))
def test_any_pod_ends_with_its_own_gpus_or_none(
    kerf: Kerf, containers: list[Manifest], init_containers: list[Manifest], chosen: set[int]
) -> None:
    named = [{"name": f"c{number}", **item} for number, item in enumerate([*containers, *init_containers])]
    names = ",".join(f"c{number}" for number in chosen)
    manifest = asking(initContainers=named[len(containers) :], annotations={"kerf.dev/gpu-containers": names})
    manifest["spec"]["containers"] = named[: len(containers)]
    stored = mutated(kerf, manifest)
    for position, before in enumerate(named):
        late = position - len(containers)
        kind, at = ("containers", position) if late < 0 else ("initContainers", late)
        after = stored["spec"][kind][at]
        shown = [variable for variable in after["env"] if variable["name"] == NAME][-1]
        gets = position in chosen if chosen else kind == "containers"
        if shown.get("value", "") in ("void", "none", "") and "valueFrom" not in shown:
            assert not gets or shown in (before.get("env") or [])
        else:
            assert gets
            assert shown in (assigned(), assigned(UUIDS))
        others = [variable for variable in before.get("env") or [] if variable["name"] != NAME]
        assert [variable for variable in after["env"] if variable["name"] != NAME] == others
        assert {**after, "env": None, "resources": None} == {**before, "env": None, "resources": None}
        assert ("resources" in after) == (kind == "containers" and at == 0)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_anything_is_allowed(kerf: Kerf, data: st.DataObject) -> None:
    body = data.draw(st.one_of(st.binary(max_size=100), damaged(review(asking({"name": "a", "env": [VOID]})))))
    respond(kerf, body)


# The marker

MARKED = {"kerf.dev/gpu": "1"}


def limits_of(manifest: Manifest) -> list[Any]:
    return [container.get("resources", {}).get("limits") for container in manifest["spec"]["containers"]]


def test_a_pod_that_asks_by_annotation_alone_is_marked_once(kerf: Kerf) -> None:
    for first, limits in (
        ({}, MARKED),
        ({"resources": {}}, MARKED),
        ({"resources": {"requests": {"cpu": "1"}}}, MARKED),
        ({"resources": {"limits": {"cpu": "1"}}}, {"cpu": "1", **MARKED}),
        ({"resources": {"limits": {"kerf.dev/gpu": 1}}}, {"kerf.dev/gpu": 1}),
    ):
        assert limits_of(mutated(kerf, asking({"name": "a", **first}, {"name": "b"}))) == [limits, None]


def test_whoever_asks_is_marked_whatever_is_injected(kerf: Kerf) -> None:
    none = {"annotations": {"kerf.dev/gpu-count": ""}}
    for change, marked in (
        ({"labels": {"kerf.dev/inject": "disabled"}}, True),
        ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, True),
        ({"spec": {"nodeName": "node"}}, False),
        ({"annotations": {"kerf.dev/gpu-count": "many"}}, True),  # else it would be placed while nobody can refuse it
        ({"annotations": {"kerf.dev/gpu-count": "0"}}, False),
        ({"annotations": {"kerf.dev/gpu-count": " "}}, False),
        ({"annotations": {"kerf.dev/gpu-count": "", "kerf.dev/gpu-model": "0"}}, True),
        (none | {"labels": {"genius/gpu-memory-each": "16000"}}, True),
        (none | {"labels": {"genius/priority": "3"}}, False),
    ):
        manifest = asking({"name": "a"}, annotations=change.get("annotations", {}))
        manifest["metadata"]["labels"] = change.get("labels", {})
        manifest["spec"] |= change.get("spec", {})
        response = respond(kerf, review(manifest))
        assert limits_of(patched(manifest, response)) == [MARKED if marked else None]


def test_who_asks_by_resource_needs_no_marker(kerf: Kerf) -> None:
    for resource in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpumem", "aliyun.com/gpu-mem"):
        for kind in ("containers", "initContainers"):
            manifest = asking({"name": "a"})
            manifest["spec"].setdefault(kind, []).append({"name": "b", "resources": {"limits": {resource: "2"}}})
            response = respond(kerf, review(manifest))
            assert limits_of(patched(manifest, response))[0] is None
