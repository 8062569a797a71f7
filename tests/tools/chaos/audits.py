"""What the API server writes down of its calls."""

import contextlib
from pathlib import Path

_PODS_AUDITED = {"resources": [{"group": "", "resources": ["pods", "pods/eviction"]}], "namespaces": ["default"]}
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "delete", "deletecollection"], **_PODS_AUDITED},
        {"level": "None"},
    ],
}
"""Who has created and deleted which pods: for the case that one is gone."""


def size(log: Path) -> int:
    """Bytes written so far."""
    return log.stat().st_size if log.exists() else 0


def lines(log: Path, since: int) -> list[str]:
    """What was written behind so many bytes, whole lines alone."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(since)
        return [line.decode(errors="replace") for line in file if line.endswith(b"\n")]
    return []
