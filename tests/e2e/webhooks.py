"""A Kerf that serves a webhook of the shipped manifests, and the API server that calls it."""

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.api.certificates import Authority
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfProcess, Manifest

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"


@contextlib.contextmanager
def served(
    plane: ControlPlane, configuration: Manifest, authority: Authority, *arguments: str
) -> Iterator[KerfProcess]:
    """A MutatingWebhookConfiguration as it is shipped, but for its address; gone afterwards."""
    certificate, key = authority.issue("server")
    files = ("--set", f"server.tls_cert_file={certificate}", "--set", f"server.tls_key_file={key}")
    kerf = KerfProcess(plane, "kerf-webhook", *files, *arguments, certificate=authority.certificate)
    try:
        for hook in configuration["webhooks"]:
            hook["clientConfig"] = {
                "url": kerf.url + hook["clientConfig"]["service"]["path"],
                "caBundle": base64.b64encode(authority.certificate.read_bytes()).decode(),
            }
        plane.apply(configuration)
        yield kerf
    finally:
        path = _CONFIGURATIONS + configuration["metadata"]["name"]
        if plane.exists(path):
            plane.request("DELETE", path)
        kerf.stop()


@contextlib.contextmanager
def gating(plane: ControlPlane, directory: Path, *arguments: str) -> Iterator[KerfProcess]:
    """manifests/queue/webhook.yaml in effect: pods that opt in get the gate."""
    configuration = yaml.safe_load((ROOT / "manifests" / "queue" / "webhook.yaml").read_text())
    for hook in configuration["webhooks"]:
        hook["timeoutSeconds"] = 10  # of a machine that is busy with other tests
    probe = pod("probe", labels={"kerf.dev/queue": "enabled"})

    def gates() -> bool:
        return bool(gates_of(plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)))

    with served(plane, configuration, Authority(directory, "kerf"), *arguments) as kerf:
        wait_until(gates, WITHIN_S, "the webhook is in effect")
        yield kerf


def gates_of(found: Manifest) -> list[Manifest]:
    """The scheduling gates of a pod."""
    gates: list[Manifest] = found["spec"].get("schedulingGates", [])
    return gates
