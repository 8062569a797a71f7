"""kube-scheduler and Kerf show each other certificates, with the shipped configuration."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.api.certificates import Authority
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node
from tests.e2e.clusters import KerfCluster, KerfProcess, assigned_gpus
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

FOLDER = "/etc/kubernetes/kerf/"


def test_pods_are_bound_over_mutual_tls(clusters: Clusters, tmp_path: Path) -> None:
    clusters.close()
    plane = clusters.plane
    authority = Authority(tmp_path, "kerf")
    certificate, key = authority.issue("server")
    authority.issue("kube-scheduler")
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_client_ca_file": authority.certificate}
    arguments = [part for name, path in files.items() for part in ("--set", f"server.{name}={path}")]
    with ExitStack() as stack:
        kerf = KerfProcess(plane, "kerf-mtls", *arguments, certificate=authority.certificate)
        stack.callback(kerf.stop)
        scheduler = plane.start_scheduler(
            SCHEDULER_CONFIG / "mtls.yaml",
            name="scheduler-mtls",
            replace={FOLDER: f"{tmp_path}/"},
            extender_url=kerf.url,
        )
        stack.callback(scheduler.stop)
        cluster = KerfCluster(plane, kerf)
        stack.callback(cluster.clean)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.submit("first", gpus=1)
        assert assigned_gpus(cluster.bound("first")) == [0]
        assert (kerf.metric("kerf_binds_total"), kerf.metric("kerf_failed_binds_total")) == (1, 0)
