"""What a pod asks by annotation, written as node affinity: what autoscalers read, and never less than it could have."""

import base64
import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from extender.core.resources.nodes import nominal_mib
from extender.parts.webhook.node_affinity import _REQUIRED, _least_reported_mib
from extender.settings.load import SettingsError, load_settings
from tests.api.bodies import Manifest, node, pod, review
from tests.api.services import Kerf, running

PRODUCT, MEMORY, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.count"
A100, A100_40, T4 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB", "Tesla-T4"
NODES = [node("a", 8), node("b", 4, "a100-40"), node("t", 2, "t4")]


def patched(kerf: Kerf, manifest: Manifest, path: str = "/gate") -> tuple[Any, list[str]]:
    """The pod's required node affinity after the webhook, and the warnings."""
    response = kerf.post(path, json.dumps(review(manifest)).encode()).json()["response"]
    assert response["allowed"] is True
    for operation in json.loads(base64.b64decode(response.get("patch", "") or "W10=")):
        if "/affinity" in operation["path"]:
            assert operation["op"] == "add"
            *parents, last = operation["path"].strip("/").split("/")
            at = manifest
            for name in parents:
                at = at[name]
            at[last] = operation["value"]
    affinity = (manifest["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms"), response.get("warnings", [])


Terms = Callable[..., Any]


@pytest.fixture(name="terms", scope="module")
def terms_fixture() -> Iterator[Terms]:
    """Tells the terms of a pod after the webhook of a Kerf that is started once for each settings and nodes."""
    started: dict[str, Kerf] = {}
    with ExitStack() as opened:

        def terms(manifest: Manifest, nodes: Sequence[Manifest] = NODES, path: str = "/gate", **settings: Any) -> Any:
            of = json.dumps([nodes, settings])
            if of not in started:
                started[of] = opened.enter_context(running(nodes, **{"webhook__write_affinity": True, **settings}))
            return patched(started[of], manifest, path)[0]

        yield terms


def asks(gpus: int | None = 1, **annotations: str) -> Manifest:
    found = {f"kerf.dev/gpu-{key.replace('_', '-')}": value for key, value in annotations.items()}
    return pod("p", gpus, annotations=found)


def term(*expressions: tuple[str, str, list[str]]) -> Manifest:
    return {"matchExpressions": [{"key": key, "operator": how, "values": to} for key, how, to in expressions]}


AT_LEAST_1 = (COUNT, "Gt", ["0"])
IN_A100 = (PRODUCT, "In", sorted([A100, A100_40, f"{A100}-SHARED", f"{A100_40}-SHARED"]))


ASKED = (
    (asks(1), None),
    (asks(1, model="a100"), [term(IN_A100)]),  # as nodes that share GPUs call it, too
    (asks(None, model="a100"), [term((PRODUCT, "In", [A100_40, A100]), AT_LEAST_1)]),
    (asks(1, model_exclude="t4"), [term((PRODUCT, "NotIn", [T4]))]),
    (asks(1, memory_each="40Gi"), [term((MEMORY, "Gt", ["40140"]))]),  # 40536 MiB are 40 GiB
    (asks(None, count="4"), [term((COUNT, "Gt", ["3"]))]),  # where no resource says it
    (asks(None, memory_total="100Gi"), None),  # says nothing of one node's label
    (asks(1, memory_each="lots"), None),
)


def test_what_is_asked_by_annotation_is_written(terms: Terms) -> None:
    for manifest, expected in ASKED:
        for path in ("/gate", "/mutate"):
            assert terms(copy.deepcopy(manifest), path=path) == expected
    assert terms(asks(1, model="a100"), webhook__write_affinity=False) is None
    assert terms(asks(1, memory_each="40Gi"), [node("cpu")]) is None, "nobody has the labels"


def test_a_pod_that_opts_out_or_has_its_node_is_left_alone(terms: Terms) -> None:
    out = asks(1, model="a100")
    out["metadata"]["labels"] = {"kerf.dev/inject": "disabled"}
    assert terms(out, path="/mutate") is None
    assert terms(pod("p", 1, annotations={"kerf.dev/gpu-model": "a100"}, node_name="a")) is None
    daemon = asks(1, model="a100")
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]
    assert terms(daemon) is None


def test_each_of_its_own_terms_is_narrowed_and_one_that_matches_nothing_goes_on_doing_so(terms: Terms) -> None:
    zone = {"key": "zone", "operator": "In", "values": ["z"]}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n"]}]
    own = [{"matchExpressions": [zone]}, {"matchFields": fields}, {}]
    manifest = asks(1, model="t4")
    manifest["spec"]["affinity"] = {"podAffinity": {}, "nodeAffinity": {"x": 1, _REQUIRED: {"nodeSelectorTerms": own}}}
    of_t4 = term((PRODUCT, "In", [T4, f"{T4}-SHARED"]))["matchExpressions"]
    assert terms(manifest) == [
        {"matchExpressions": [zone, *of_t4]},
        {"matchFields": fields, "matchExpressions": of_t4},
        {},
    ]
    assert manifest["spec"]["affinity"]["nodeAffinity"]["x"] == 1
    nothing: list[Manifest] = [{}, {"nodeAffinity": {}}, {"nodeAffinity": {"x": []}}]
    for empty in nothing:
        manifest = asks(1, model="t4")
        manifest["spec"]["affinity"] = empty
        assert terms(manifest) == [{"matchExpressions": of_t4}]


def test_labels_that_the_pod_speaks_of_itself_are_its_own(terms: Terms) -> None:
    manifest = asks(1, model="a100", memory_each="30Gi")
    manifest["spec"]["nodeSelector"] = {PRODUCT: A100}
    assert terms(manifest) == [term((MEMORY, "Gt", ["30105"]))]
    own = [term((MEMORY, "Gt", ["1"]), (PRODUCT, "In", [A100]))]
    many = [term(("zone", "In", [str(number)])) for number in range(100)]  # more than anybody writes
    for written in (own, many):
        manifest = asks(1, model="a100", memory_each="30Gi")
        manifest["spec"]["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": written}}}
        assert terms(manifest) == written


def annotated(manifest: Manifest) -> Manifest:
    """A node whose annotation says that its GPUs are A100."""
    gpus = [{"index": index, "model": A100, "memory_mib": 81920} for index in range(2)]
    manifest["metadata"]["annotations"] = {"kerf.dev/gpus": json.dumps(gpus)}
    return manifest


def test_nodes_without_labels_stay_allowed_where_the_pod_could_run_there(terms: Terms) -> None:
    described = annotated(node("d", 2))
    described["metadata"]["labels"] = {}
    unlabelled = {"matchExpressions": [{"key": PRODUCT, "operator": "DoesNotExist"}]}
    assert terms(asks(1, model="a100"), [*NODES, described]) == [term(IN_A100), unlabelled]
    assert terms(asks(1, model="t4"), [*NODES, described]) == [term((PRODUCT, "In", [T4, f"{T4}-SHARED"]))]


def test_what_a_node_contradicts_on_which_the_pod_could_run_is_not_written(terms: Terms) -> None:
    odd = annotated(node("odd", 2, "t4"))  # an annotation knows better than the labels
    assert terms(asks(1, model="a100"), [*NODES, odd]) is None
    assert terms(asks(1, memory_each="40Gi"), [*NODES, odd]) is None
    sizeless = node("sizeless", 2)
    del sizeless["metadata"]["labels"][MEMORY]  # known by its product
    assert terms(asks(1, memory_each="40Gi"), [*NODES, sizeless]) is None


def test_time_slices_keep_their_name(terms: Terms) -> None:
    sliced = node("s", 4)
    sliced["metadata"]["labels"] |= {PRODUCT: f"{A100}-SHARED", "nvidia.com/gpu.replicas": "4", COUNT: "1"}
    assert terms(asks(1, model="a100"), [sliced]) == [term((PRODUCT, "In", [f"{A100}-SHARED"]))]
    assert terms(asks(2, model="a100"), [sliced]) == [term((PRODUCT, "In", [f"{A100}-SHARED"]))]


def test_products_of_pools_without_a_node_are_told_by_a_setting(terms: Terms) -> None:
    with running(NODES, webhook__write_affinity=True) as kerf:
        found, warnings = patched(kerf, asks(1, model="h100"))
    assert found is None
    assert "webhook.products" in warnings[0]
    h100 = "NVIDIA-H100-80GB-HBM3"
    assert terms(asks(1, model="h100"), webhook__products=[h100]) == [term((PRODUCT, "In", [h100, f"{h100}-SHARED"]))]
    assert terms(asks(1, model_exclude="t4"), [node("cpu")], webhook__products=[h100, T4]) == [
        term((PRODUCT, "NotIn", [T4]))
    ]


def test_a_second_webhook_adds_nothing(terms: Terms) -> None:
    manifest = asks(1, model="a100")
    once = terms(manifest)
    assert terms(manifest, path="/mutate") == once


def test_nodes_that_come_are_known_a_moment_later() -> None:
    with running([node("t", 2, "t4")], webhook__write_affinity=True) as kerf:
        assert patched(kerf, asks(1, model="a100"))[0] is None
        kerf.create(node("a", 8))
        assert patched(kerf, asks(1, model="a100"))[0] == [term((PRODUCT, "In", [A100, f"{A100}-SHARED"]))]


def test_the_least_memory_reported_is_the_least_that_counts() -> None:
    random = np.random.default_rng(7)
    for tolerance_frac in (0.0, 0.02, 0.1):
        for asked in [1, 1023, 1024, 1025, 15_360, 40_960, 81_920, *random.integers(1, 2**18, 40).tolist()]:
            least = _least_reported_mib(asked, tolerance_frac)
            assert nominal_mib(least, tolerance_frac) >= asked
            assert all(nominal_mib(least - less, tolerance_frac) < asked for less in range(1, 30) if least > less)


def test_products_are_values_of_labels() -> None:
    for product in ("", "with space", "-a", "x" * 64):
        with pytest.raises(SettingsError, match="not a valid label value"):
            load_settings(flags={"webhook.products": [product]})
