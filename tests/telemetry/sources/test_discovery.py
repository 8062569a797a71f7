"""Finding Prometheus among the Services of a cluster, and the exporters' pods."""

import asyncio
import json
from typing import Any

from extender.kube.client import ApiError, Query
from extender.telemetry.sources.discovery import find_exporters, find_prometheus


class Server:
    """An API server with some Services and pods, found by one label selector each."""

    def __init__(self, objects: dict[str, list[dict[str, Any]]], error: ApiError | None = None) -> None:
        self._objects = objects
        self._error = error

    async def get(self, path: str, query: Query | None = None) -> bytes:
        if self._error:
            raise self._error
        items = self._objects.get((query or {}).get("labelSelector", ""), [])
        return json.dumps({"items": items}).encode()


def service(name: str, *ports: tuple[str, int], address: str = "None") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "monitoring"},
        "spec": {"clusterIP": address, "ports": [{"name": port, "port": number} for port, number in ports]},
    }


def found(server: Any) -> tuple[list[str], str]:
    told = asyncio.run(find_prometheus(server, {"monitoring"}))
    assert not told.passed_over
    return list(told.addresses), told.fault


def test_services_are_found_by_label_then_by_name() -> None:
    """G12: Prometheus is found in the cluster."""
    operated = service("prometheus-operated", ("http-web", 9090), ("grpc", 10901))
    named = [service("web", ("http", 80)), service("prometheus-server", ("http", 80))]
    others = [service("thanos-query", ("grpc", 10901), ("http", 10902)), service("vm", ("http", 8429))]
    for objects, urls in (
        ({"operated-prometheus=true": [operated], "": named}, ["http://prometheus-operated.monitoring.svc:9090"]),
        ({"": named}, ["http://prometheus-server.monitoring.svc:80"]),
        (
            {"app.kubernetes.io/name in (prometheus,thanos-query,vmsingle)": others},
            ["http://thanos-query.monitoring.svc:10902", "http://vm.monitoring.svc:8429"],
        ),
    ):
        assert found(Server(objects)) == (urls, "")


def test_a_missing_right_to_list_services_is_reported() -> None:
    addresses, fault = found(Server({}, ApiError(403, "Forbidden", "services is forbidden")))
    assert addresses == []
    assert "403" in fault
    assert found(Server({}, ApiError(404, "NotFound", ""))) == ([], "")


def test_an_exporters_name_or_address_taken_by_another_pod_moves_no_samples() -> None:
    def exporter(name: str, namespace: str, day: int, node: str, address: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": namespace, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}
        return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"podIP": address}}

    pods = [
        exporter("dcgm-exporter-abc", "gpu", 2, "n1", "10.1.0.7"),
        exporter("dcgm-exporter-abc", "hostile", 3, "n2", "10.2.0.1"),
        exporter("10.1.0.7", "hostile", 4, "n2", "10.2.0.2"),
        exporter("10.0.0.1", "hostile", 1, "n2", "10.1.0.7"),  # an address of n1, and one that the exporter has by now
    ]
    ours = {"dcgm-exporter-abc": "n1", "10.1.0.7": "n1"}
    all_of_them = ours | {"10.2.0.1": "n2", "10.2.0.2": "n2"}
    for listed, nodes in ((pods[:1], ours), (pods, all_of_them), (pods[::-1], all_of_them)):
        server: Any = Server({"app.kubernetes.io/name in (dcgm-exporter,nvidia-dcgm-exporter)": listed})
        assert asyncio.run(find_exporters(server)) == nodes


def test_a_service_is_also_reached_by_its_cluster_ip() -> None:
    """G12: in the host's network there is no cluster DNS. The operator's own Service has no IP, its chart's has."""
    operated = service("prometheus-operated", ("http-web", 9090))
    charts = service("kube-prometheus-stack-prometheus", ("http-web", 9090), address="10.0.0.7")
    server = Server({"operated-prometheus=true": [operated], "app=kube-prometheus-stack-prometheus": [charts]})
    assert found(server) == (["http://prometheus-operated.monitoring.svc:9090", "http://10.0.0.7:9090"], "")


def test_addresses_are_those_of_one_kind_of_service_the_likeliest() -> None:
    first = service("prometheus-operated", ("https-web", 9090), address="fd00::7")
    other = service("prometheus-server", ("http", 80), address="10.0.0.8")
    server = Server({"operated-prometheus=true": [first], "": [other]})
    expected = ["https://prometheus-operated.monitoring.svc:9090", "https://[fd00::7]:9090"]
    assert found(server) == (expected, "")


def test_invalid_addresses_are_not_asked() -> None:
    """The API server lets nobody write such; a server in between might."""
    for odd in ("", "None", "10.0.0.7/", "evil.example.com", "10.0.0.7@evil"):
        server = Server({"": [service("prometheus-server", ("http", 80), address=odd)]})
        assert found(server) == (["http://prometheus-server.monitoring.svc:80"], "")


def test_what_others_may_have_made_is_passed_over_and_named() -> None:
    own, theirs = (service("prometheus-operated", ("http-web", 9090)) for _ in range(2))
    theirs["metadata"]["namespace"] = "team-a"
    address = "http://prometheus-operated.team-a.svc:9090"
    for listed, addresses in (([theirs, own], ["http://prometheus-operated.monitoring.svc:9090"]), ([theirs], [])):
        server: Any = Server({"operated-prometheus=true": listed})
        told = asyncio.run(find_prometheus(server, {"monitoring"}))
        assert (list(told.addresses), list(told.passed_over)) == (addresses, [address])
        told = asyncio.run(find_prometheus(server, {"monitoring", "team-a"}))
        assert address in told.addresses


def test_the_services_asked_and_reported_are_bounded() -> None:
    many = [service(f"p{number}", ("http-web", 9090)) for number in range(100)]
    server: Any = Server({"operated-prometheus=true": many})
    assert len(asyncio.run(find_prometheus(server, {"monitoring"})).addresses) == 8
    assert len(asyncio.run(find_prometheus(server, {"elsewhere"})).passed_over) == 5
