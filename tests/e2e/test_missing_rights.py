"""A right that Kerf lacks, and an API server that is away, are said where somebody looks, and in the log once.

On a control plane, as the users whom the documented ways of running Kerf make it.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import clean_environment, wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

GATED: dict[str, Any] = {"schedulingGates": [{"name": "kerf.dev/queue"}]}
USERS = {"deployment": SERVICE_ACCOUNT, "static pod": "system:kube-scheduler", "nobody": "mallory"}
NAMESPACES = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]}
GATES = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}


@pytest.fixture(params=["deployment", "static pod"])
def way(request: pytest.FixtureRequest) -> str:
    """As whom Kerf runs."""
    return str(request.param)


@contextmanager
def opened(folder: Path, user: str, *settings: str) -> Iterator[tuple[KerfCluster, str]]:
    """A cluster whose Kerf has its queue, and not the queue's rights; with the user's name."""
    name = USERS[user]
    with ControlPlane(folder, users={"kerf": name}) as plane:
        plane.apply(RBAC)
        clusters = Clusters(plane)
        flags = [f"--set={one}" for one in ("queue.enabled=true", *settings)]
        try:
            yield clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *flags), name
        finally:
            clusters.close()


def warnings_of(log: Path) -> list[str]:
    """What was logged as a warning or worse, without time."""
    return [line.partition(" ")[2].partition(" ")[2] for line in log.read_text().splitlines() if " INFO " not in line]


def pending(cluster: KerfCluster, name: str) -> Any:
    return next((one for one in cluster.kerf.get("/pending")["pods"] if one["pod"] == f"default/{name}"), {})


def test_a_queue_that_may_open_no_gate(tmp_path: Path, way: str) -> None:
    with opened(tmp_path, way) as (cluster, user):
        cluster.plane.grant("kerf", NAMESPACES)  # kube-scheduler has that right already
        cluster.add_nodes(gpu_node("node", gpus=8))
        names = [f"q{number}" for number in range(3)]
        for name in names:
            cluster.submit(name, gpus=1, **GATED)
        said = f"Kerf may not patch pods: user {user} lacks that right, which manifests/queue/rbac.yaml gives"

        def silent() -> list[str]:
            told = (pending(cluster, name).get("sentence", "") for name in names)
            return [sentence for sentence in told if said not in sentence]

        wait_until(lambda: not silent(), WITHIN_S, "/pending says it")

        def explained(name: str) -> Any:
            """None while it is tried again: then it says where it is to go."""
            told = cluster.kerf.get(f"/explain/pod/default/{name}")
            return told if said in told["sentence"] else None

        for name in names:
            told = wait_until(partial(explained, name), WITHIN_S, "explain says it")
            assert not any("next round" in remedy["text"] for remedy in told["remedies"])
            assert "as in manifests/queue/rbac.yaml" in told["remedies"][0]["text"]
        degraded = cluster.kerf.get("/readyz")["degraded"]
        assert [one.partition(":")[0] for one in degraded] == ["the queue may not patch pods"]
        assert f"user {user}" in degraded[0]

        time.sleep(10)  # it has gone on trying
        tries = cluster.kerf.metric("kerf_queue_errors_total")
        assert 2 <= tries <= 60
        lines = warnings_of(cluster.kerf.log)
        assert sum("could not release pod" in line for line in lines) == 1, lines
        assert sum("the queue may not patch pods: user" in line for line in lines) == 1
        assert len(lines) == len(set(lines))

        cluster.plane.grant("kerf", NAMESPACES, GATES)
        wait_until(lambda: all(one["spec"].get("nodeName") for one in cluster.pods()), 90.0, "it goes on by itself")
        assert "degraded" not in cluster.kerf.get("/readyz")


def test_what_helps_a_deployment_is_the_file_that_is_named(tmp_path: Path) -> None:
    with opened(tmp_path, "deployment") as (cluster, user):
        cluster.add_nodes(gpu_node("node", gpus=1))
        cluster.submit("waits", gpus=1, **GATED)
        said = f"Kerf may not list namespaces: user {user} lacks that right, which manifests/queue/rbac.yaml gives"
        wait_until(lambda: pending(cluster, "waits").get("sentence") == said, WITHIN_S, "/pending says it")
        degraded = cluster.kerf.get("/readyz")["degraded"]
        assert degraded == ["the queue may not list namespaces" + said.removeprefix("Kerf may not list namespaces")]
        cluster.plane.apply(QUEUE_RBAC)
        wait_until(lambda: cluster.pod("waits")["spec"].get("nodeName"), 90.0, "it goes on by itself")


def test_a_kerf_without_any_right(tmp_path: Path) -> None:
    with ControlPlane(tmp_path, users={"kerf": USERS["nobody"]}) as plane:
        kerf = KerfProcess(plane, "kerf", ready_path="/healthz")
        try:
            time.sleep(10)
            status, told = refused(kerf, "/nodes")
            assert status == 503
            assert told["detail"].startswith("Kerf has heard nothing from the API server yet and decides nothing: ")
            assert 'User "mallory" cannot list resource "pods"' in told["detail"]
            lines = warnings_of(kerf.log)
            assert "Kerf may not list pods: user mallory lacks that right, which manifests/rbac.yaml gives" in " ".join(
                lines
            )
            assert sum("pods being placed were not marked" in line for line in lines) == 1
            assert len(lines) == len(set(lines)) < 15, lines
        finally:
            kerf.stop()


def test_an_api_server_whose_certificate_is_not_trusted(tmp_path: Path) -> None:
    with ControlPlane(tmp_path, users={"kerf": SERVICE_ACCOUNT}) as plane:
        config = json.loads(plane.kubeconfig("kerf").read_text())
        del config["clusters"][0]["cluster"]["certificate-authority"]
        untrusting = tmp_path / "untrusting.kubeconfig"
        untrusting.write_text(json.dumps(config))
        kerf = KerfProcess(plane, "kerf", "--kubeconfig", str(untrusting), ready_path="/healthz")
        try:
            time.sleep(5)
            found = asked(kerf, "top", "--once")
            assert (found.returncode, found.stdout) == (1, "")
            assert found.stderr.startswith(
                "Kerf has heard nothing from the API server yet and decides nothing (kerf doctor)"
            )
            assert "certificate" in found.stderr
            lines = warnings_of(kerf.log)
            assert sum("certificate" in line for line in lines) == len(set(lines)) <= 5, lines
        finally:
            kerf.stop()


def test_an_api_server_that_is_frozen(tmp_path: Path) -> None:
    """Commands say so; the log does once; and it is over by itself."""
    with opened(tmp_path, "deployment", "cluster.max_age_s=5") as (cluster, _):
        cluster.add_nodes(gpu_node("node", gpus=1))
        cluster.create(pod("large", 2))
        wait_until(lambda: pending(cluster, "large"), WITHIN_S, "Kerf knows the pod")
        assert asked(cluster.kerf, "top", "--once").returncode == 0
        server = next(one for one in cluster.plane.running if "apiserver" in one.name)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: cluster.kerf.get("/nodes").get("notReady"), 60.0, "Kerf knows that it is blind")
            for command in (("top", "--once"), ("pending",), ("pending", "-o", "json")):
                found = asked(cluster.kerf, *command)
                assert found.returncode == 1
                assert found.stderr.startswith("Kerf has heard nothing from the API server for ")
                assert found.stderr.splitlines()[0].endswith(" s and decides nothing (kerf doctor)")
                assert "json" not in command or json.loads(found.stdout)["staleSeconds"] > 5
            assert refused(cluster.kerf, "/readyz")[0] == 503
            time.sleep(15)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: "notReady" not in cluster.kerf.get("/nodes"), 60.0, "it is over")
        assert asked(cluster.kerf, "pending").returncode == 0
        lines = warnings_of(cluster.kerf.log)
        assert sum("mirror of /api/v1/nodes interrupted" in line for line in lines) <= 3, lines


def refused(kerf: KerfProcess, path: str) -> tuple[int, Any]:
    """Status and body of an answer that says no."""
    try:
        raise AssertionError(kerf.get(path))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def asked(kerf: KerfProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command as its user gives it."""
    command = [sys.executable, "-m", "extender", *arguments]
    environment = clean_environment(KERF_SERVER_URL=kerf.url)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
