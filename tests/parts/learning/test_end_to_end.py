"""The whole circle on a real control plane, compressed: a history is written while pods are scheduled, a rank is fitted
to it, handed in, tried in shadow and as a canary, and serves. Kerf is killed in between."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.history import files as histories
from extender.parts.learning.model_store import _PIN
from extender.ranking.files import _read_manifest
from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.processes import clean_environment, wait_until
from tests.e2e.clusters import KerfCluster
from tests.e2e.fixtures import Clusters
from tests.install.helm import MATRIX, Helm

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

LEARNED = "kerf-learned"
MAP = f"/api/v1/namespaces/kube-system/configmaps/{LEARNED}"
MERGE = "application/merge-patch+json"
WITHIN_S = 120.0
NUM_NODES = 32
"""So many that what a fit gains stands clear of chance: on 16 its interval was at times as wide as the gain."""


class Work:
    """Pods that come, stay for a while and go: one GPU with much memory, or four with little.

    The released rank spoils GPUs of such a mix: it is not what it was trained on.
    """

    def __init__(self, cluster: KerfCluster) -> None:
        self.cluster = cluster
        self.chance = random.Random(11)
        self.there: list[str] = []
        self.num = 0

    def go_on(self, num_pods: int) -> None:
        """So many more, each in the place of one that ends."""
        for _ in range(num_pods):
            name = f"work-{self.num}"
            self.num += 1
            large = self.chance.random() < 0.5
            gpus, memory = (4, "20000Mi") if large else (1, "200000Mi")
            manifest = pod(name, gpus, cpu="4", memory=memory)
            self.cluster.create(manifest)
            self.there.append(name)
            if len(self.there) > 14:
                gone = self.there.pop(self.chance.randrange(5))
                self.cluster.delete_pod(gone)
        for name in self.there[-3:]:
            self.cluster.bound(name)


def learning(cluster: KerfCluster) -> dict[str, Any]:
    told: dict[str, Any] = cluster.kerf.get("/model")["learning"]
    return told


def kerf(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extender", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=clean_environment())


def model_of(cluster: KerfCluster) -> str:
    """The model that ranks."""
    sha: str = cluster.kerf.get("/model")["model"]["sha256"]
    return sha


def ranks(cluster: KerfCluster, sha: str) -> None:
    wait_until(lambda: model_of(cluster) == sha, WITHIN_S, f"model {sha[:12]} ranks; {learning(cluster)}")


def test_the_whole_circle(clusters: Clusters, tmp_path: Path) -> None:
    plane = clusters.plane
    chart = Helm(tmp_path / "helm").render(*next(values for values in MATRIX if "learning.enabled=true" in values))
    wanted = ("Role", "RoleBinding", "ConfigMap")
    plane.apply(
        *(item for item in chart if item["kind"] in wanted and item["metadata"]["name"] in ("kerf-fit", LEARNED))
    )
    settings = (
        "model.mode=serve", "model.prices=plain", "learning.config_map=kube-system/kerf-learned", "model.check_s=0.5",
        "learning.stage_s=1", "learning.stage_pods=80", "learning.canary_frac=0.5", "model.prior_pods=0",
        f"history.path={tmp_path / 'history'}", "history.flush_s=0.5", "history.roll_s=2",
    )  # fmt: skip
    given = [argument for setting in settings for argument in ("--set", setting)]
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *given)
    cluster.add_nodes(
        *(
            gpu_node(f"node-{number}", 8, "Tesla-T4", 15360, "64", "262144Mi", allocatable={"pods": "250"})
            for number in range(NUM_NODES)
        )
    )
    released, work = model_of(cluster), Work(cluster)
    write_history(clusters, work, tmp_path / "history")
    fitted = fit(clusters, tmp_path)
    come_to_serve(clusters, work, fitted)

    # A person has the say.
    plane.request("PATCH", MAP, {"metadata": {"annotations": {_PIN: "released"}}}, MERGE)
    ranks(cluster, released)
    plane.request("PATCH", MAP, {"metadata": {"annotations": {_PIN: None}}}, MERGE)
    ranks(cluster, fitted)

    assert cluster.kerf.get("/readyz") == {"status": "ok"}
    for name in work.there[-5:]:
        cluster.bound(name)


def write_history(clusters: Clusters, work: Work, folder: Path) -> None:
    """Pods come and go; of what was written before Kerf is killed nothing is lost."""
    cluster = work.cluster

    def is_written() -> bool:
        uid = cluster.pod(work.there[-1])["metadata"]["uid"]
        return uid in histories.read(folder).pods["pod"].tolist()

    work.go_on(60)
    wait_until(is_written, WITHIN_S, "the last pod is in the history")
    cluster.kerf.process.kill()
    clusters.restart_kerf()
    work.go_on(440)
    there = [cluster.bound(name)["metadata"]["uid"] for name in work.there]

    def are_told_to_run() -> bool:
        pods = histories.read(folder).pods
        return int(np.isfinite(pods["started_s"][np.isin(pods["pod"].astype(str), there)]).sum()) == len(there)

    wait_until(are_told_to_run, WITHIN_S, "all that run do so in the history")
    wait_until(lambda: cluster.kerf.metric("kerf_history_rolls_total") >= 2, WITHIN_S, "columns are made")
    assert len(histories.read(folder).pods["pod"]) == work.num


def fit(clusters: Clusters, folder: Path) -> str:
    """As the chart's job does it; the SHA-256 of the model."""
    rank, report = folder / "rank", folder / "fit.json"
    done = kerf(
        *("fit", "--history", str(folder / "history"), "--out", str(rank), "--json", str(report)),
        *("--episodes", "160"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["better"], f"this mix leaves room to be better in: {found}"
    config = clusters.plane.kubeconfig("fit")
    done = kerf("hand-in", "--model", str(rank), "--to", "kube-system/kerf-learned", "--kubeconfig", str(config))
    assert done.returncode == 0, done.stderr
    return _read_manifest(rank).sha256


def come_to_serve(clusters: Clusters, work: Work, fitted: str) -> None:
    """Shadow, canary, service: each on pods that come meanwhile, and another process goes on where one has ended."""
    cluster = work.cluster
    wait_until(lambda: learning(cluster)["stage"] == "shadow", WITHIN_S, "it is tried in shadow")
    stages = ["shadow"]

    def serves() -> bool:
        work.go_on(10)
        told = learning(cluster)
        if told["stage"] != stages[-1]:
            stages.append(told["stage"])
            if told["stage"] == "canary":
                cluster.kerf.process.kill()
                clusters.restart_kerf()
                wait_until(lambda: learning(cluster)["stage"] == "canary", WITHIN_S, "the next one goes on there")
        return bool(told["serving"] == fitted)

    wait_until(serves, 300.0, f"it serves; {learning(cluster)}")
    assert stages == ["shadow", "canary", "none"]
    assert "the fit had +" in learning(cluster)["said"]
    ranks(cluster, fitted)
    placed_by = {item["metadata"]["annotations"].get("kerf.dev/assigned-by", "").split()[-1] for item in cluster.pods()}
    assert placed_by <= {"kerf", "kerf-candidate"}
