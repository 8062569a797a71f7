"""The learned rank in the running service: served, refused, loaded again, tried on some pods, or only watched."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.core.policies.kerf import KerfWeights
from extender.core.resources.requests import GpuRequest
from extender.core.valuenet.attention import Attention
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


def write(directory: Path, weights: Potential | Attention) -> Path:
    files.write(directory, weights, 1.0, {"mode": "by hand"}, ())
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model", KEEPS_WHOLE)


def serving(path: Path | None, objects: Sequence[Manifest] = NODES, **flags: Any) -> Any:
    given: dict[str, Any] = {"model__mode": "serve", "model__prices": "plain", "model__check_s": 3600.0}
    given["model__path"] = str(path) if path else None
    return running(objects, **{**given, **flags})


def look(kerf: Kerf) -> None:
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
        assert (kerf.metric("kerf_model_loaded"), kerf.metric("kerf_model_serving")) == (1, 1)
        assert kerf.service.rank.mix.num_gpus == 24
        assert kerf.metric("kerf_model_info", kind="potential", sha256=state["model"]["sha256"]) == 1


OBSERVED: dict[str, Any] = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}


def test_metrics_alone_change_the_winner_while_a_model_serves(model: Path) -> None:
    feed = FakeFeed(Clock())

    def observe(kerf: Kerf, **loads: float) -> None:
        """Samples of all nodes, idle unless they have a load."""
        assert kerf.service.observer is not None
        feed.clock = kerf.clock
        feed.gauges = {name: {Gauge.LOAD: [loads.get(name, 0.0)] * 8, Gauge.MEMORY_USED: [400.0] * 8} for name in NAMES}
        kerf.clock.now += 20
        kerf.run(kerf.service.observer.round())

    with serving(model, feed=feed, decisions__mode="scores", **OBSERVED) as kerf:
        look(kerf)
        for loads, best in (({"a": 0.9, "c": 0.9}, "b"), ({"a": 0.9, "b": 0.9}, "c")):
            observe(kerf, **loads)
            manifest = kerf.create(pod(f"best-is-{best}", 1))
            scores = kerf.prioritize(manifest, NAMES)
            assert [name for name in NAMES if scores[name] == 10] == [best]
            kerf.service.placer.release(manifest["metadata"]["uid"])
        assert explained(kerf, "best-is-c")["ranking"]["headroom"] == 0.8  # half of what nobody samples
    for live, best in ((1.0, "b"), (0.0, "a")):
        feed = FakeFeed(Clock())
        with serving(model, feed=feed, **OBSERVED) as kerf:
            kerf.service.rank.weights = KerfWeights(live=live)
            look(kerf)
            observe(kerf, a=0.9)
            assert decided(kerf, pod("one", 1)) == best


def test_without_a_model_best_fit_ranks_and_its_absence_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "RELEASED", tmp_path / "none")
    with serving(None) as kerf:
        look(kerf)
        assert kerf.get("/version").json()["policy"] == "tightest"
        (degraded,) = kerf.get("/readyz").json()["degraded"]
        assert degraded.startswith("model: the model was refused: ") and "manifest.json: No such file" in degraded
        assert kerf.metric("kerf_model_loaded") == 0
    with serving(None, model__mode="off", decisions__policy="kerf") as kerf:
        look(kerf)
        assert kerf.get("/readyz").json()["degraded"] == ["model: no model is loaded; tightest ranks instead"]
        decided(kerf, pod("one", 1))
        assert explained(kerf, "one")["ranking"] == {"served": "tightest", "reason": "no model is loaded"}


def test_the_released_model_is_loaded_for_policies_that_rank_by_one() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "kerf", "model"),
        ({"model__mode": "shadow", "decisions__policy": "fgd"}, "fgd", "model"),
        ({"decisions__policy": "tightest"}, "tightest", "tightest"),
    ]
    for flags, policy, served in cases:
        with serving(None, **flags) as kerf:
            look(kerf)
            state = kerf.get("/model").json()
            assert (state["served"], state["path"]) == (served, str(files.RELEASED) if served == "model" else None)
            assert kerf.get("/readyz").json() == {"status": "ok"}
            assert kerf.get("/version").json()["policy"] == policy
            assert kerf.metric("kerf_model_loaded") == (served == "model")


def test_a_cluster_without_nodes_is_no_degradation() -> None:
    with serving(None, []) as kerf:
        look(kerf)
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert kerf.metric("kerf_model_serving") == 0
        for manifest in NODES:
            kerf.create(manifest)
        look(kerf)
        assert kerf.metric("kerf_model_serving") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("prices", "num_nodes"), [("plain", (1, 1, 6)), ("plain", (6, 1, 1)), ("lp", (6, 1, 1))])
def test_a_small_pod_goes_on_the_smallest_gpu_that_will_do(prices: str, num_nodes: tuple[int, ...]) -> None:
    """While nobody has asked for larger ones, and however many there are of each. By name the largest would win."""
    if prices == "lp":
        pytest.importorskip("scipy")
    models = zip(("a100", "a100-40", "t4"), num_nodes, strict=True)
    nodes = [node(f"{model}-{number}", 4, model) for model, count in models for number in range(count)]
    names = [manifest["metadata"]["name"] for manifest in nodes]
    pods = {
        "t4-0": [pod("whole", 1), pod("share", annotations={"kerf.dev/gpu-share": "500"})],
        "a100-40-0": [pod("large", 1, annotations={"kerf.dev/gpu-memory-each": "20Gi"})],
    }
    with serving(None, nodes, model__prices=prices) as kerf:
        look(kerf)
        state = kerf.get("/model").json()
        assert (state["served"], state["prices"]["of"], state["prices"]["fault"]) == ("model", prices, None)
        assert kerf.metric("kerf_prices_by_lp") == (prices == "lp")
        for place, manifests in pods.items():
            for manifest in manifests:
                kerf.create(manifest)
                assert kerf.filter(manifest, names)["NodeNames"] == [place]
                kerf.service.placer.release(manifest["metadata"]["uid"])


def test_a_model_that_does_not_match_is_refused_and_best_fit_ranks(model: Path) -> None:
    (model / files.WEIGHTS).unlink()
    with serving(model, [*NODES, held()]) as kerf:
        look(kerf)
        assert kerf.get("/version").json()["policy"] == "tightest"
        (degraded,) = kerf.get("/readyz").json()["degraded"]
        assert degraded.startswith("model: ") and "weights.safetensors: No such file" in degraded
        assert (kerf.metric("kerf_model_refused"), kerf.metric("kerf_model_serving")) == (1, 0)
        assert decided(kerf, pod("one", 1, annotations={"kerf.dev/policy": "kerf"})) == "b"
        ranking = explained(kerf, "one")["ranking"]
        assert ranking["served"] == "tightest" and "No such file" in ranking["reason"]


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
        assert "not finite" in degraded
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
        other = pod("other", 1, labels={"team": "speech"})
        for manifest, policy in ((in_lab, "kerf"), (by_label, "kerf"), (by_annotation, "spread"), (other, "tightest")):
            decided(kerf, manifest)
            path = "/explain/pod/{namespace}/{name}".format_map(manifest["metadata"])
            assert kerf.get(path).json()["policy"] == policy


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


def test_without_prices_the_model_serves_with_plain_worth(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model, model__prices="lp") as kerf:
        kerf.service.rank.pace = _Pace(refresh_max_s=0.001)
        look(kerf)
        (degraded,) = kerf.get("/readyz").json()["degraded"]
        assert degraded.startswith("model: no LP prices")
        assert kerf.get("/model").json()["served"] == "model"


def test_s1_a_pod_takes_more_than_its_part_by_the_prices_that_serve(model: Path) -> None:
    with serving(model, model__prices="plain") as kerf:
        rank = kerf.service.rank
        share, whole = GpuRequest(1, milli=810), GpuRequest(1)
        assert not rank.wastes_gpu(share)  # nothing serves yet
        look(kerf)
        assert not rank.wastes_gpu(share)  # by plain worth nobody does
        served = rank.score.served
        assert served is not None
        worth = served.outlook.worth
        worth = worth._replace(left=np.where(np.arange(1001) >= 500, worth.left, 0.0))
        rank.score.served = served._replace(outlook=served.outlook._replace(worth=worth))
        assert rank.wastes_gpu(share) and not rank.wastes_gpu(whole)
