"""Whether another extender comes after Kerf, where kube-scheduler's configuration can be seen."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import yaml

from extender.cli.install.findings import Finding, Verdict, listed
from extender.cli.install.kerf import Installed
from extender.core.annotations import MARKER
from extender.kube.client import ClusterError, Transport

_WHAT: Final = "order of extenders"
_KIND: Final = "KubeSchedulerConfiguration"
_MAX_CHARS: Final = 256 * 1024


async def extender_order(transport: Transport, installed: Installed | None) -> AsyncIterator[Finding]:
    """What rejects nodes after Kerf has chosen one; nothing is said of a configuration that is in no ConfigMap."""
    namespaces = dict.fromkeys(["kube-system", *([installed.namespace] if installed else [])])
    try:
        found = [
            item
            for namespace in namespaces
            for item in await listed(transport, f"/api/v1/namespaces/{namespace}/configmaps")
        ]
    except (ClusterError, msgspec.DecodeError):
        return
    for item in found:
        for key, text in (item.get("data") or {}).items():
            if later := list(_after_kerf(text)):
                where = f"ConfigMap {item['metadata']['namespace']}/{item['metadata']['name']}, {key}"
                told = (
                    f"{where}: {', '.join(later)} filters after Kerf, and may reject the one node that Kerf has chosen"
                )
                yield Finding(_WHAT, Verdict.NOTE, told, "put the two entries of Kerf last under `extenders`")


def _after_kerf(text: Any) -> Iterator[str]:
    """The addresses of extenders that filter after Kerf in kube-scheduler's configuration; none of any other text."""
    if not isinstance(text, str) or _KIND not in text or len(text) > _MAX_CHARS:
        return
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return
    for document in documents:
        entries = document.get("extenders") if isinstance(document, dict) and document.get("kind") == _KIND else None
        kerf: set[str] = set()
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, Mapping):
                continue
            address = str(entry.get("urlPrefix") or "")
            if _is_kerfs(entry):
                kerf.add(_server(address))
            elif kerf and entry.get("filterVerb") and _server(address) not in kerf:
                yield address


def _is_kerfs(entry: Mapping[str, Any]) -> bool:
    resources = entry.get("managedResources")
    return isinstance(resources, list) and any(
        isinstance(item, Mapping) and item.get("name") == MARKER for item in resources
    )


def _server(address: str) -> str:
    try:
        return urlsplit(address).netloc
    except ValueError:
        return address
