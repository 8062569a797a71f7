"""Discovers Prometheus servers and exporters' pods through the API server."""

import ipaddress
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.core.vendors.registry import VENDORS
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.transport import PODS_PATH
from extender.kube.watches import Lister

logger = logging.getLogger(__name__)

_SERVICES_PATH: Final = "/api/v1/services"

_SELECTORS: Final = (
    "operated-prometheus=true",
    "app.kubernetes.io/name in (prometheus,thanos-query,vmsingle)",
    "app=kube-prometheus-stack-prometheus",
    "app=prometheus,component=server",
)
"""Labels of the Services of Prometheus Operator, its chart, Thanos, VictoriaMetrics and the community chart."""
_NAMES: Final = frozenset({"prometheus-server", "prometheus-operated", "prometheus-k8s", "prometheus"})
_PORT_NAMES: Final = ("http-web", "web", "http", "http-9090", "https-web", "https")
_PORTS: Final = (9090, 10902, 8429, 8428, 80)
_MAX_ADDRESSES: Final = 8
_MAX_PASSED_OVER: Final = 5
_EXPORTER_NAMES: Final = ",".join(name for vendor in VENDORS if vendor.exporter for name in vendor.exporter.names)
EXPORTER_SELECTORS: Final = (f"app.kubernetes.io/name in ({_EXPORTER_NAMES})", f"app in ({_EXPORTER_NAMES})")
"""Label selectors of the vendors' exporters."""


class _Port(objects.Object):
    name: str = ""
    port: int = 0
    protocol: str = "TCP"


class _Spec(objects.Object):
    ports: list[_Port] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    """"None" for a headless Service."""


class _Service(objects.Named):
    spec: _Spec = msgspec.field(default_factory=_Spec)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a discovery."""

    addresses: Sequence[str] = ()
    """URLs of Services that may be a Prometheus, most likely first."""
    passed_over: Sequence[str] = ()
    """The first few such URLs in other, untrusted namespaces."""
    fault: str = ""
    """Why discovery failed; "" if it did not."""


async def find_prometheus(transport: Transport, namespaces: Collection[str]) -> Found:
    """Services that may be a Prometheus. Only those in `namespaces` are trusted: anyone may create one elsewhere.

    URLs with DNS names come before URLs with cluster IPs, which work without the cluster's DNS, as in the host network.
    """
    by_name: list[str] = []
    by_ip: list[str] = []
    others: list[str] = []
    for selector in (*_SELECTORS, ""):
        try:
            query = {"labelSelector": selector} if selector else None
            services = (await Lister(transport, _SERVICES_PATH, _Service, query).all()).items
        except (ClusterError, msgspec.DecodeError) as error:
            if isinstance(error, ApiError) and error.status == 404:
                return Found()  # a cluster without Services, such as the demo's
            return Found(fault=f"Services can't be listed: {error}")
        candidates = [service for service in services if selector or service.metadata.name in _NAMES]
        trusted = [service for service in candidates if service.metadata.namespace in namespaces]
        untrusted = [service for service in candidates if service.metadata.namespace not in namespaces]
        others += [_url(service, port, by_ip=False) for service in untrusted for port in _port(service)]
        by_name = by_name or [_url(service, port, by_ip=False) for service in trusted for port in _port(service)]
        by_ip = [_url(service, port, by_ip=True) for service in trusted if _has_ip(service) for port in _port(service)]
        if by_name and by_ip:
            break
    return Found(
        list(dict.fromkeys([*by_name, *by_ip]))[:_MAX_ADDRESSES], list(dict.fromkeys(others))[:_MAX_PASSED_OVER]
    )


def _port(service: _Service) -> list[_Port]:
    """The port that is most likely the API's, as a list; empty if there is none."""
    ports = [port for port in service.spec.ports or () if port.protocol in ("", "TCP") and port.name != "grpc"]
    ports.sort(key=lambda port: (_position(port.port, _PORTS), _position(port.name, _PORT_NAMES)))
    return ports[:1]


def _has_ip(service: _Service) -> bool:
    try:
        return bool(ipaddress.ip_address(service.spec.cluster_ip))
    except ValueError:
        return False


def _url(service: _Service, port: _Port, *, by_ip: bool) -> str:
    address = service.spec.cluster_ip if by_ip else f"{service.metadata.name}.{service.metadata.namespace}.svc"
    scheme = "https" if port.name.startswith("https") else "http"
    return f"{scheme}://{f'[{address}]' if ':' in address else address}:{port.port}"


def _position(item: str | int, known: Sequence[str | int]) -> int:
    """The index of an item in `known`; its length for an unknown item."""
    return known.index(item) if item in known else len(known)


async def find_exporters(transport: Transport) -> dict[str, str]:
    """Nodes by the name and by the IP of their exporter's pods; empty if pods can't be listed.

    Series have a pod's name without its namespace. Of several pods with one name the oldest counts, since an imitation
    is created later. Of several pods with one IP the newest counts, since IPs are reused.
    """
    pods: list[objects.Pod] = []
    for selector in EXPORTER_SELECTORS:
        try:
            pods += (await Lister(transport, PODS_PATH, objects.Pod, {"labelSelector": selector}).all()).items
        except (ClusterError, msgspec.DecodeError) as error:
            logger.debug("exporters' pods can't be listed: %s", error)
            break
    nodes: dict[str, str] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp):
        name, node = pod.metadata.name, pod.spec.node_name
        if node:
            if not name.replace(".", "").isdecimal():  # a pod's name may look like an IP address
                nodes.setdefault(name, node)
            if pod.status.pod_ip:
                nodes[pod.status.pod_ip] = node
    return nodes
