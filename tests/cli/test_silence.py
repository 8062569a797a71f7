"""What `kerf doctor` says of things that have stopped without a word."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender.cli.install.checks import checks_of
from extender.cli.install.findings import Needs, findings_of
from extender.cli.install.running import KerfView
from extender.kube.memory import MemoryCluster
from extender.settings.load import load_settings
from tests.api import bodies
from tests.api.certificates import Authority

Manifest = dict[str, Any]
NOW = datetime(2026, 1, 2, tzinfo=UTC)
GATES = [{"name": "kerf.dev/queue"}]
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kerf"


class Cluster(MemoryCluster):
    """With namespaces that opt in, and a Lease."""

    def __init__(self, objects: Sequence[Manifest], enabled: Sequence[str] = (), renewed_at: str = "") -> None:
        super().__init__(objects)
        self._enabled, self._renewed_at = enabled, renewed_at

    async def get(self, path: str, query: Any = None) -> bytes:
        if path == "/api/v1/namespaces":
            labels = {"kerf.dev/queue": "enabled"}
            items = [{"metadata": {"name": name, "uid": name, "labels": labels}} for name in self._enabled]
            return msgspec.json.encode({"items": items})
        if path == LEASE and self._renewed_at:
            return msgspec.json.encode({"spec": {"holderIdentity": "a", "renewTime": self._renewed_at}})
        return await super().get(path, query)


def waiting(name: str, *, gated: bool = True, made: str = "2026-01-01T00:00:00Z", **annotations: str) -> Manifest:
    said = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    manifest = bodies.pod(name, 1, annotations=said)
    manifest["metadata"]["creationTimestamp"] = made
    if gated:
        manifest["spec"]["schedulingGates"] = GATES
    return manifest


def faults(cluster: Cluster, **flags: Any) -> list[str]:
    settings = load_settings(flags={name.replace("__", "."): value for name, value in flags.items()})
    findings = asyncio.run(findings_of(checks_of(Needs.SETTINGS), KerfView(settings, cluster, NOW)))
    return [finding.told for finding in findings if finding.what != "telemetry"]


def test_a_gate_that_nobody_opens_is_told() -> None:
    pods = [waiting(f"p{number}") for number in range(4)]
    assert faults(Cluster(pods)) == [
        "pods default/p0, default/p1, default/p2 and 1 more wait behind the gate kerf.dev/queue, and no queue reports "
        "why: the queue is off (queue.enabled), or Kerf is not running"
    ]
    assert faults(Cluster([waiting("young", made="2026-01-01T23:59:30Z")])) == []
    assert faults(Cluster([waiting("said", skipped="no room")])) == []


@pytest.mark.parametrize(
    ("renewed_at", "told"),
    [
        ("2026-01-01T23:59:50Z", ""),
        ("2026-01-01T23:50:00Z", "Lease kube-system/kerf was renewed 600 s ago"),
        ("", "there is no Lease kube-system/kerf"),
    ],
)
def test_a_queue_that_nobody_leads_any_more_is_told(renewed_at: str, told: str) -> None:
    found = faults(Cluster([waiting("said", skipped="no room")], renewed_at=renewed_at), leader_election__mode="own")
    expected = f"pod default/said waits behind the gate kerf.dev/queue, and Kerf has no leader: {told}"
    assert found == ([expected] if told else [])


def test_pods_that_the_webhook_has_not_seen_are_told() -> None:
    pods = [waiting("passed", gated=False), waiting("let-go", gated=False, planned_by="greedy")]
    assert faults(Cluster(pods)) == []
    assert faults(Cluster(pods, enabled=["default"])) == [
        "pod default/passed waits, and opted in to the queue by its namespace's label kerf.dev/queue: enabled, and "
        "came without its gate: the webhook was not asked in time"
    ]


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (timedelta(days=30), ""),
        (timedelta(days=13), "ends on 2026-01-15 00:00 UTC, and was not renewed"),
        (timedelta(days=-1), "has ended on 2026-01-01 00:00 UTC, and was not renewed"),
    ],
)
def test_a_certificate_that_was_not_renewed_is_told(tmp_path: Path, left: timedelta, told: str) -> None:
    valid = timedelta(days=90)
    path, _ = Authority(tmp_path, "ca").issue("kerf", begins=NOW + left - valid, ends=NOW + left)
    flags = {"server__tls_cert_file": str(path), "server__tls_key_file": str(tmp_path / "tls.key")}
    assert faults(Cluster([]), **flags) == ([f"certificate {path} {told}"] if told else [])
    path.write_bytes(b"none")
    assert "can't be read" in faults(Cluster([]), **flags)[0]


def test_a_node_whose_agent_has_stopped_is_told() -> None:
    def reporting(name: str) -> Manifest:
        manifest = bodies.node(name, 2)
        manifest["metadata"]["annotations"] = {"kerf.dev/node-report": '{"version": 1}'}
        return manifest

    def agent(name: str, on: str, *, ready: bool = True) -> Manifest:
        manifest = bodies.pod(name, labels={"app.kubernetes.io/name": "kerf-agent"}, node_name=on)
        conditions = [{"type": "Ready", "status": str(ready)}]
        manifest["status"] = {"phase": "Running", "conditions": conditions}
        return manifest

    nodes = [reporting("at-work"), reporting("not-ready"), reporting("gone"), bodies.node("without", 2)]
    agents = [agent("a", "at-work"), agent("b", "not-ready", ready=False)]
    stopped = "its agent has stopped, so its report may be out of date"
    assert faults(Cluster([*nodes, *agents])) == [f"node gone: {stopped}", f"node not-ready: {stopped}"]
