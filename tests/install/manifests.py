"""Writes the plain manifests from the chart, and the chart's generated files: `make manifests`."""

import json
import re
import tempfile
from pathlib import Path

import yaml

from extender.core.annotations import _SIZES
from extender.core.keys import _KEYS as KEYS
from extender.core.keys import _PREFIX, _WRITTEN_BEGIN, _Kind, _names_on, _On
from extender.settings.schema import settings_schema
from tests.install.dashboards import DASHBOARD, render_dashboard
from tests.install.helm import CHART, Helm

MANIFESTS = CHART.parents[1]
SCHEMA = CHART / "values.schema.json"
KEYS_FILE = CHART / "keys.yaml"
MUTATING = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
"""The API that the chart checks for: served by default since 1.36."""
DRA_POLICY = CHART.parents[2] / "extender" / "parts" / "dra" / "policies.yaml"

_INSTALL = """\
# A second kube-scheduler with Kerf as its sidecar, and the queue, all in one file:
#
#   kubectl apply -f manifests/install.yaml
#
# It places pods with `schedulerName: kerf-scheduler`; see manifests/samples/. Of these, pods with the label
# genius/priority wait in the queue by priority, as do pods and namespaces with kerf.dev/queue=enabled
# (docs/guides/queueing.md). Kerf issues the webhook's certificate. The queue has the right to change pods
# (SECURITY.md): to remove it, set queue.enabled to false in kerf.yaml below and delete the objects kerf-scheduler-queue
# and kerf-scheduler-webhook.
#
# Written from the chart in manifests/helm/kerf by `make manifests`; with Helm, use the chart. Set the image below, in
# two places: `make image` builds it; push it to a registry that the nodes can reach.
"""
_RBAC = """\
# Kerf's rights beside the cluster's own kube-scheduler: for the service account kerf, and for a static pod, which runs
# as the user system:kube-scheduler. manifests/install.yaml has its own service account and does not need this file.
# Written from the chart in manifests/helm/kerf by `make manifests`.
#
# For another namespace, replace kube-system throughout.
"""
_POLICY = """\
# Keeps authors of pods from writing the annotations of Kerf and of the device plugins: SECURITY.md. For a Kerf beside
# the cluster's own kube-scheduler, with the account of manifests/rbac.yaml or as a static pod (user
# system:kube-scheduler); manifests/install.yaml has its own policy. Written from the chart in manifests/helm/kerf by
# `make manifests`.
#
# The lists below name who else may write: add plugins that run in another namespace.
"""
_WEBHOOK = """\
# The webhook that tells containers which GPUs they got, and the server for it and for manifests/queue/webhook.yaml.
# docs/guides/webhook.md explains how to install them, what they do, and what is not enforced. Written from the chart in
# manifests/helm/kerf by `make manifests`; with Helm, use the chart (inject.enabled), which issues the certificate too.
#
#   kubectl apply -f manifests/webhook.yaml
#   kubectl label namespace TEAM kerf.dev/inject=enabled
#
# Needs the Secret kerf-webhook (tls.crt, tls.key, ca.crt), and the CA in the caBundle fields below. Set the image.
"""
_KEYS = """\
# Keys of kerf.dev/ on pods, for templates/keys-policy.yaml: written from extender/core/keys.py by `make manifests`.
"""
_MARKER = """\
# Rejects pods that request GPUs by annotation or label only and lack the marker kerf.dev/gpu: while Kerf is down they
# would be placed without GPUs. For Kubernetes 1.30 or newer, and a Kerf beside the cluster's own kube-scheduler
# (manifests/install.yaml has its own policy). Written from the chart in manifests/helm/kerf by `make manifests`.
"""
_MARKER_ADDED = """\
# Like manifests/marker-policy.yaml, and adds the marker: for Kubernetes 1.36 or newer (MutatingAdmissionPolicy).
# Written from the chart in manifests/helm/kerf by `make manifests`.
"""
_AGENT = """\
# The node agent, for nodes with NVIDIA's device plugin, and the policy that restricts it to one annotation of its own
# node: docs/guides/nvidia-plugin.md. Written from the chart in manifests/helm/kerf by `make manifests`; with Helm, use
# the chart (agent.enabled). Set the image.
"""
_QUEUE_RBAC = """\
# Additional rights for the queue (setting queue.enabled), for the service account and the static pod of
# manifests/rbac.yaml. For another namespace or account change the subject. Written from the chart in
# manifests/helm/kerf by `make manifests`.
"""
_STATIC_QUEUE = """\
# The queue for Kerf as a static pod (docs/guides/kubeadm.md): its rights, and the webhook that adds the gate, with a
# certificate that Kerf issues. Replaces manifests/queue/rbac.yaml, manifests/webhook.yaml and queue/webhook.yaml.
#
#   kubectl apply -f manifests/static-pod/queue.yaml
#   kubectl label namespace TEAM kerf.dev/queue=enabled
#
# Written from the chart in manifests/helm/kerf by `make manifests`. Set the image.
"""
_STATIC_MONITORING = """\
# Metrics and alerts of Kerf as a static pod, for the Prometheus operator; docs/guides/kubeadm.md explains how to do
# without the operator. ServiceMonitor and PrometheusRule may need the label by which your Prometheus selects them, such
# as `release: kube-prometheus-stack`. Written from the chart in manifests/helm/kerf by `make manifests`.
"""
_QUEUE_WEBHOOK = """\
# Served by manifests/webhook.yaml, with its certificate: put the CA into the caBundle fields. Written from the chart in
# manifests/helm/kerf by `make manifests`.
"""
_PIPELINES = """\
# The Pipeline CRD, and additional rights for pipelines (setting pipelines.enabled): docs/guides/pipelines.md. For
# another namespace or service account change the subject. Written from the chart in manifests/helm/kerf by
# `make manifests`.
"""

_MLFLOWS = """\
# The MLFlow CRD of MLTaskScheduler, the policy for it, and additional rights (setting pipelines.mlflows), besides
# pipelines.yaml: docs/guides/pipelines.md. For another namespace or service account change the subject. Written from
# the chart in manifests/helm/kerf by `make manifests`.
"""
_DRA_RBAC = """\
# Additional rights for allocating devices of DRA drivers (setting dra.allocate): docs/guides/dra.md. For another
# namespace or service account change the subject. Written from the chart in manifests/helm/kerf by `make manifests`.
"""
_DRA_POLICY = """\
# Keeps claims from requesting devices that only Kerf allocates. `kerf install dra` applies it if the chart has not.
# Written from the chart in manifests/helm/kerf by `make manifests`.
"""

_IMAGE = {"image__repository": "kerf"}


def render_schema() -> str:
    """The chart's schema of values, with its line `config` written from Kerf's settings."""
    line = f'    "config": {json.dumps(settings_schema())},'
    return re.sub(r'^    "config": .*,$', lambda _: line, SCHEMA.read_text(), count=1, flags=re.MULTILINE)


def render_keys() -> str:
    """The chart's keys.yaml: the keys that the warning policy knows."""
    words = _names_on(_On.POD, _Kind.ANNOTATION, _Kind.LABEL)
    asked = [key.name for key in KEYS if key.name in words and key.on is _On.POD and not key.written]
    told = {
        "annotations": _names_on(_On.POD, _Kind.ANNOTATION),
        "labels": _names_on(_On.POD, _Kind.LABEL),
        "resources": _names_on(_On.POD, _Kind.RESOURCE),
        "gates": _names_on(_On.POD, _Kind.GATE),
        "written": list(_WRITTEN_BEGIN),
        "sizes": list(_SIZES),
        "pairs": {name: _pairs(name.removeprefix(_PREFIX)) for name in dict.fromkeys(asked)},
    }
    return _KEYS + yaml.safe_dump(told, sort_keys=False, width=160)


def _pairs(word: str) -> list[str]:
    """Pairs of adjacent letters."""
    return [word[at : at + 2] for at in range(len(word) - 1)]


def render_manifests(helm: Helm) -> dict[Path, str]:
    """The text of each file."""

    def render(release: str, *templates: str, **values: str) -> str:
        served = [f"--api-versions={values.pop('api_versions')}"] if "api_versions" in values else []
        shown = [f"--show-only=templates/{name}.yaml" for name in templates]
        settings = [f"--set={key.replace('__', '.')}={value}" for key, value in {**_IMAGE, **values}.items()]
        common = ("--namespace", "kube-system", "--kube-version", "v1.36.1", str(CHART))
        return _plain(helm("template", "--name-template", release, *common, *shown, *settings, *served))

    queue, static = MANIFESTS / "queue", MANIFESTS / "static-pod"
    # Certificates are not shipped: for a manual installation of the webhook, the user creates the Secret.
    certificate = {"webhook__tls__secretName": "kerf-webhook"}
    static_pod = {
        "admissionPolicy__users": "{system:kube-scheduler}",
        "admissionPolicy__keys": "{kerf.dev/epoch-kube-scheduler}",
    }
    users = {"rbac__users": "{system:kube-scheduler}"}
    inject = {"inject__enabled": "true", **certificate}
    queued = {"queue__enabled": "true"}
    monitored = {"serviceMonitor__enabled": "true", "prometheusRule__enabled": "true"}
    allocated = {**queued, "mode": "planner", "dra__enabled": "true"}
    piped = {**queued, "queue__pipelines": "true"}
    return {
        MANIFESTS / "install.yaml": _INSTALL + render("kerf-scheduler", **queued),
        MANIFESTS / "rbac.yaml": _RBAC + render("kerf", "serviceaccount", "rbac", mode="service", **users),
        MANIFESTS / "admission-policy.yaml": _POLICY
        + render("kerf", "admission-policy", "keys-policy", mode="service", **static_pod),
        MANIFESTS / "agent.yaml": _AGENT + render("kerf", "agent", agent__enabled="true"),
        MANIFESTS / "webhook.yaml": _WEBHOOK + render("kerf", "webhook", "webhook-inject", **inject),
        MANIFESTS / "marker-policy.yaml": _MARKER + render("kerf", "marker-policy", mode="service"),
        MANIFESTS / "marker-policy-mutating.yaml": _MARKER_ADDED
        + render("kerf", "marker-policy", api_versions=MUTATING, mode="service"),
        queue / "rbac.yaml": _QUEUE_RBAC + render("kerf", "queue-rbac", **queued, **users),
        queue / "webhook.yaml": _QUEUE_WEBHOOK
        + render("kerf", "webhook-queue", mode="service", **queued, **certificate),
        MANIFESTS / "dra" / "rbac.yaml": _DRA_RBAC + render("kerf", "dra", **allocated),
        **({DRA_POLICY: _DRA_POLICY + render("kerf", "dra-policy", **allocated)} if DRA_POLICY.parent.is_dir() else {}),
        queue / "pipelines.yaml": _PIPELINES + render("kerf", "pipelines", **piped, **users),
        queue / "mlflows.yaml": _MLFLOWS + render("kerf", "mlflows", **piped, **users, queue__mlflows="true"),
        static / "queue.yaml": _STATIC_QUEUE
        + render("kerf", "queue-rbac", "webhook", "webhook-queue", mode="service", **queued, **users),
        static / "monitoring.yaml": _STATIC_MONITORING + render("kerf", "monitoring", **monitored),
    }


def main() -> None:
    """Write the files, the chart's own first."""
    DASHBOARD.write_text(render_dashboard())
    SCHEMA.write_text(render_schema())
    KEYS_FILE.write_text(render_keys())
    with tempfile.TemporaryDirectory(prefix="kerf-helm-") as home:
        for path, text in render_manifests(Helm(Path(home))).items():
            path.write_text(text)


def _plain(rendered: str) -> str:
    """Rendered text without Helm's own comments and labels."""
    dropped = ("# Source:", "    helm.sh/chart:", "        helm.sh/chart:")
    kept = [line for line in rendered.splitlines() if not line.startswith(dropped)]
    return "\n".join(line.replace("managed-by: Helm", "managed-by: kubectl") for line in kept).strip() + "\n"


if __name__ == "__main__":
    main()
