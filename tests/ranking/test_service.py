"""The learned rank in the running service: served, refused, loaded again, tried on some pods, or only watched."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.core.policies.kerf import KerfWeights
from extender.core.resources.requests import GpuRequest
from extender.core.valuenet.potentials import Potential
from extender.ranking import files
from extender.ranking.service import _Pace
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Clock, Kerf, running
from tests.core.learning import only
from tests.telemetry.feeds import FakeFeed

KEEPS_WHOLE = only(node_idle=1.0)
"""Wholly idle nodes are worth a GPU: they are broken into last."""
BREAKS_UP = only(node_idle=-1.0)
NODES = [node("a", 8), node("b", 8), node("c", 8)]
NAMES = ["a", "b", "c"]


def write(directory: Path, potential: Potential) -> Path:
    files.write(directory, potential, 1.0, {"mode": "by hand"}, ())
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model", KEEPS_WHOLE)


def serving(path: Path | None, objects: Sequence[Manifest] = NODES, **flags: Any) -> Any:
    given: dict[str, Any] = {"model__mode": "serve", "model__prices": "plain", "model__check_s": 3600.0}
    given["model__path"] = str(path) if path else None
    return running(objects, **{**given, **flags})


def look(kerf: Kerf) -> None:
    """One look at files, nodes and mix."""
    kerf.run(kerf.service.rank.round())


def held(name: str = "held", where: str = "b") -> Manifest:
    """A pod that has a GPU of a node already."""
    return pod(name, 1, node_name=where)


def decided(kerf: Kerf, manifest: Manifest) -> str:
    kerf.create(manifest)
    names: list[str] = kerf.filter(manifest, NAMES)["NodeNames"]
    return names[0]


def explained(kerf: Kerf, name: str) -> dict[str, Any]:
    told: dict[str, Any] = kerf.get(f"/explain/pod/default/{name}").json()
    return told


def test_a_model_is_served_to_all_by_default(model: Path) -> None:
    with serving(model, [*NODES, held()]) as kerf:
        look(kerf)
        assert kerf.get("/version").json()["policy"] == "kerf"
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert decided(kerf, pod("one", 1)) == "b"  # a and c stay whole
        told = explained(kerf, "one")
        assert (told["policy"], told["ranking"]["served"]) == ("kerf", "model")
        state = kerf.get("/model").json()
        assert (state["served"], state["mode"], state["prices"]["of"]) == ("model", "serve", "plain")
        assert state["model"]["training"] == {"mode": "by hand"}
        for metric in ("kerf_model_loaded", "kerf_model_serving"):
            assert kerf.metric(metric) == 1
        assert kerf.metric("kerf_model_info", kind="potential", sha256=state["model"]["sha256"]) == 1


def test_the_value_alone_changes_the_winner_of_filter_and_prioritize(tmp_path: Path) -> None:
    winners = {}
    for name, potential in (("keeps", KEEPS_WHOLE), ("breaks", BREAKS_UP)):
        path = write(tmp_path / name, potential)
        with serving(path, [*NODES, held()]) as kerf:
            look(kerf)
            filtered = decided(kerf, pod("one", 1))
        with serving(path, [*NODES, held()], decisions__mode="scores") as kerf:
            look(kerf)
            scores = kerf.prioritize(pod("one", 1), NAMES)
        winners[name] = filtered, sorted(place for place in NAMES if scores[place] == 10)
    assert winners == {"keeps": ("b", ["b"]), "breaks": ("a", ["a", "c"])}


@pytest.fixture
def feed() -> FakeFeed:
    return FakeFeed(Clock())


def observe(kerf: Kerf, feed: FakeFeed, loads: Mapping[str, float]) -> None:
    """Samples of all nodes: idle, unless a load is told."""
    assert kerf.service.observer is not None
    feed.clock = kerf.clock
    feed.gauges = {name: {Gauge.LOAD: [loads.get(name, 0.0)] * 8, Gauge.MEMORY_USED: [400.0] * 8} for name in NAMES}
    kerf.clock.now += 20
    kerf.run(kerf.service.observer.round())


OBSERVED: dict[str, Any] = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}


@pytest.mark.parametrize("mode", ["decisive", "scores"])
def test_metrics_alone_change_the_winner_while_a_model_serves(model: Path, feed: FakeFeed, mode: str) -> None:
    """A2: the same cluster, the same pod, other metrics, another node."""

    def winner(kerf: Kerf, name: str) -> str:
        manifest = kerf.create(pod(name, 1))
        if mode == "decisive":
            names: list[str] = kerf.filter(manifest, NAMES)["NodeNames"]
            kerf.service.placer.release(manifest["metadata"]["uid"])
            return names[0]
        scores = kerf.prioritize(manifest, NAMES)
        kerf.service.placer.release(manifest["metadata"]["uid"])
        (best,) = [place for place in NAMES if scores[place] == 10]
        return best

    with serving(model, feed=feed, decisions__mode=mode, **OBSERVED) as kerf:
        look(kerf)
        observe(kerf, feed, {"a": 0.9, "c": 0.9})
        assert winner(kerf, "first") == "b"
        observe(kerf, feed, {"a": 0.9, "b": 0.9})
        assert winner(kerf, "second") == "c"
        assert explained(kerf, "second")["ranking"]["headroom"] == 0.8  # half of what nobody samples
    # Not by their means where the live term counts nothing.
    with serving(model, feed=feed, **OBSERVED) as kerf:
        kerf.service.rank.weights = KerfWeights(live=0.0)
        look(kerf)
        observe(kerf, feed, {"a": 0.9})
        assert decided(kerf, pod("first", 1)) == "a"


def test_without_a_model_best_fit_ranks_and_its_absence_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "RELEASED", tmp_path / "none")
    with serving(None) as kerf:
        look(kerf)
        assert kerf.get("/version").json()["policy"] == "tightest"
        (degraded,) = kerf.get("/readyz").json()["degraded"]
        assert degraded.startswith("model: the model was refused: ") and "manifest.json: No such file" in degraded
        assert kerf.metric("kerf_model_loaded") == 0
    with serving(None, model__mode="off") as kerf:  # nor does anybody miss it
        look(kerf)
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert kerf.get("/model").json()["reason"] == "no model is loaded"
    with serving(None, model__mode="off", decisions__policy="kerf") as kerf:
        look(kerf)
        assert kerf.get("/readyz").json()["degraded"] == ["model: no model is loaded; tightest ranks instead"]
        decided(kerf, pod("one", 1))
        assert explained(kerf, "one")["ranking"] == {"served": "tightest", "reason": "no model is loaded"}


ASKED: list[dict[str, Any]] = [{}, {"decisions__policy": "kerf"}, {"model__mode": "shadow", "decisions__policy": "fgd"}]


@pytest.mark.parametrize("asked", ASKED)
def test_the_model_that_comes_with_a_version_is_the_default(asked: dict[str, Any]) -> None:
    with serving(None, **asked) as kerf:
        look(kerf)
        state = kerf.get("/model").json()
        assert (state["served"], state["path"]) == ("model", str(files.RELEASED))
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert kerf.get("/version").json()["policy"] == asked.get("decisions__policy", "kerf")


@pytest.mark.parametrize("flags", [{"model__mode": "off"}, {"decisions__policy": "tightest"}])
def test_nothing_is_loaded_for_another_policy(flags: dict[str, Any]) -> None:
    with serving(None, **flags) as kerf:
        look(kerf)
        assert kerf.get("/version").json()["policy"] == "tightest"
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert kerf.metric("kerf_model_loaded") == 0


def test_a_cluster_without_nodes_is_no_degradation() -> None:
    with serving(None, []) as kerf:
        look(kerf)
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert kerf.metric("kerf_model_serving") == 0
        for manifest in NODES:
            kerf.create(manifest)
        look(kerf)
        assert kerf.metric("kerf_model_serving") == 1


SMALL: dict[str, Manifest] = {
    "whole": pod("whole", 1),
    "share": pod("share", annotations={"kerf.dev/gpu-share": "500"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prices", "num_nodes"),
    [("plain", (1, 1, 1)), ("plain", (1, 1, 6)), ("plain", (6, 1, 1)), ("plain", (1, 6, 1)), ("lp", (6, 1, 1))],
)
def test_a_small_pod_goes_on_the_smallest_gpu_that_will_do(prices: str, num_nodes: tuple[int, ...]) -> None:
    """While nobody has asked for larger ones, and however many there are of each. By name the largest would win."""
    if prices == "lp":
        pytest.importorskip("scipy")
    nodes = [
        node(f"{model}-{number}", 4, model)
        for model, count in zip(("a100", "a100-40", "t4"), num_nodes, strict=True)
        for number in range(count)
    ]
    names = [manifest["metadata"]["name"] for manifest in nodes]
    with serving(None, nodes, model__prices=prices) as kerf:
        look(kerf)
        assert kerf.get("/model").json()["served"] == "model"
        for manifest, place in ((SMALL["whole"], "t4-0"), (SMALL["share"], "t4-0"), (at_least(20), "a100-40-0")):
            kerf.create(manifest)
            assert kerf.filter(manifest, names)["NodeNames"] == [place]
            kerf.service.placer.release(manifest["metadata"]["uid"])


def at_least(gib: int) -> Manifest:
    """A pod of a GPU with so much memory."""
    return pod(f"at-least-{gib}", 1, annotations={"kerf.dev/gpu-memory-each": f"{gib}Gi"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"features_version": 99}, "trained on features version 99"),
        ({"sha256": "00"}, "SHA-256"),
        ({"kind": "tree"}, "a model of kind 'tree'"),
        (None, "weights.safetensors: No such file"),
    ],
)
def test_a_model_that_does_not_match_is_refused_and_best_fit_ranks(
    model: Path, change: dict[str, Any] | None, reason: str
) -> None:
    if change is None:
        (model / files.WEIGHTS).unlink()
    else:
        path = model / files.MANIFEST
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with serving(model, [*NODES, held()]) as kerf:
        look(kerf)
        assert kerf.get("/version").json()["policy"] == "tightest"
        (degraded,) = kerf.get("/readyz").json()["degraded"]
        assert degraded.startswith("model: the model was refused: ") and reason in degraded
        assert degraded.endswith("; tightest ranks instead")
        assert kerf.metric("kerf_model_refused") == 1
        assert kerf.metric("kerf_model_serving") == 0
        manifest = pod("one", 1, annotations={"kerf.dev/policy": "kerf"})
        assert decided(kerf, manifest) == "b"
        ranking = explained(kerf, "one")["ranking"]
        assert ranking["served"] == "tightest" and reason in ranking["reason"]


def test_values_that_are_not_finite_take_the_model_out(tmp_path: Path) -> None:
    """The file passes every check; what one node's huge CPU makes of it does not."""
    huge = node("huge", 8)
    huge["status"]["allocatable"]["cpu"] = "1000000000000"
    path = write(tmp_path / "model", only(cpu_square=1e301))
    with serving(path, [*NODES, huge]) as kerf:
        look(kerf)
        kerf.run(kerf.service.rank.stop())  # a look of its own would have the model tried again
        kerf.create(pod("one", 1))
        assert kerf.filter(pod("one", 1), [*NAMES, "huge"])["NodeNames"] == ["a"]
        (degraded,) = kerf.get("/readyz").json()["degraded"]
        assert degraded == "model: the model gives values that are not finite; tightest ranks instead"
        assert kerf.metric("kerf_model_serving") == 0


def test_a_model_that_changes_is_loaded_again(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(model, [*NODES, held()]) as kerf:
        look(kerf)
        assert decided(kerf, pod("one", 1)) == "b"
        write(model, BREAKS_UP)
        look(kerf)
        assert decided(kerf, pod("two", 1)) == "a"
        assert kerf.metric("kerf_model_loads_total") == 2
        # A broken one is refused as at the start, and a sound one is taken again.
        with caplog.at_level(logging.CRITICAL):
            (model / files.WEIGHTS).write_bytes(b"")
            look(kerf)
        assert "SHA-256" in kerf.get("/readyz").json()["degraded"][0]
        write(model, KEEPS_WHOLE)
        look(kerf)
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert kerf.get("/model").json()["served"] == "model"


def test_a_canary_is_chosen_by_namespace_or_label(model: Path) -> None:
    flags = {"model__mode": "canary", "model__canary_namespaces": ["lab"], "model__canary_labels": {"team": "vision"}}
    with serving(model, [*NODES, held()], **flags) as kerf:
        look(kerf)
        in_lab = pod("in-lab", 1)
        in_lab["metadata"]["namespace"] = "lab"
        by_label = pod("by-label", 1, labels={"team": "vision"})
        by_annotation = pod("by-annotation", 1, labels={"team": "vision"}, annotations={"kerf.dev/policy": "spread"})
        policies = {}
        for manifest in (in_lab, by_label, by_annotation, pod("other", 1, labels={"team": "speech"})):
            decided(kerf, manifest)
            metadata = manifest["metadata"]
            policies[metadata["name"]] = kerf.get(f"/explain/pod/{metadata['namespace']}/{metadata['name']}").json()[
                "policy"
            ]
        assert policies == {"in-lab": "kerf", "by-label": "kerf", "by-annotation": "spread", "other": "tightest"}


def test_the_mix_is_that_of_the_pods_seen(model: Path) -> None:
    with serving(model, [*NODES, held(), held("plain", "c")], model__prior_pods=10.0) as kerf:
        look(kerf)
        assert kerf.metric("kerf_mix_pods_seen_total") == 2
        assert kerf.metric("kerf_mix_drift") == 0
        for number in range(60):
            manifest = pod(f"p{number}", 2)
            for _ in range(3):  # retries count once
                kerf.filter(manifest, NAMES)
        assert kerf.metric("kerf_mix_pods_seen_total") == 62
        assert kerf.metric("kerf_mix_drift") > 0.8
        serial = kerf.service.rank.score
        look(kerf)
        assert kerf.service.rank.score is serial  # not so soon
        kerf.service.rank.priced = replace(kerf.service.rank.priced, cpu_s=4.0)
        kerf.clock.now += 35  # they may have a tenth of a core
        look(kerf)
        assert kerf.service.rank.score is serial
        kerf.clock.now += 2
        look(kerf)
        assert kerf.service.rank.score is not serial
        assert kerf.metric("kerf_mix_drift") == 0


def test_what_is_guessed_counts_by_the_gpus_of_the_cluster(model: Path) -> None:
    with serving(model, [node(f"n{number}", 8) for number in range(50)]) as kerf:
        look(kerf)
        assert kerf.get("/model").json()["mix"]["pods"] == 0.03 * 400


@pytest.mark.slow
def test_prices_are_worked_out_in_a_process(model: Path) -> None:
    pytest.importorskip("scipy")
    with serving(model, model__prices="lp") as kerf:
        look(kerf)
        state = kerf.get("/model").json()["prices"]
        assert state["of"] == "lp" and state["fault"] is None
        assert kerf.metric("kerf_prices_by_lp") == 1


def test_without_prices_plain_worth_serves_and_that_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model, model__prices="lp") as kerf:
        kerf.service.rank.pace = _Pace(refresh_max_s=0.001)
        look(kerf)
        (degraded,) = kerf.get("/readyz").json()["degraded"]
        assert degraded.startswith("model: no LP prices, using face value instead: ")
        assert kerf.get("/model").json()["served"] == "model"


def test_s1_the_prices_that_serve_say_who_takes_more_than_his_part(model: Path) -> None:
    with serving(model, model__prices="plain") as kerf:
        rank = kerf.service.rank
        share, whole = GpuRequest(1, milli=810), GpuRequest(1)
        assert not rank.takes_more(share)  # nothing serves yet
        look(kerf)
        assert not rank.takes_more(share)  # by plain worth nobody does
        served = rank.score.served
        assert served is not None
        worth = served.outlook.worth
        worth = worth._replace(left=np.where(np.arange(1001) >= 500, worth.left, 0.0))
        rank.score.served = served._replace(outlook=served.outlook._replace(worth=worth))
        assert rank.takes_more(share) and not rank.takes_more(whole)


@pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
def test_pods_that_belong_to_their_node_are_not_of_the_mix(model: Path, kind: str) -> None:
    own = held("own")
    own["metadata"]["ownerReferences"] = [{"kind": kind, "name": "o", "uid": "u", "controller": True}]
    with serving(model, [*NODES, held(), own]) as kerf:
        assert kerf.metric("kerf_mix_pods_seen_total") == 1
