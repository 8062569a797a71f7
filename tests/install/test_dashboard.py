"""The Grafana dashboard: of Grafana's schema, and every query of it answered by Prometheus from a running Kerf."""

import itertools
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import urllib3
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.api import bodies
from tests.api.processes import Server, ready_demo, request
from tests.controlplane.processes import Process, wait_until
from tests.install.dashboards import DASHBOARD, render_dashboard
from tests.install.helm import CHART, Helm, only
from tests.telemetry.prometheuses import Job, prometheus

pytestmark = pytest.mark.nightly(of=("manifests/helm/", "extender/metrics/", "extender/parts/", "tests/install/"))

FILE = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in FILE["panels"] if panel["type"] != "row"]
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}: {target['legendFormat']}")
    for panel in PANELS
    for target in panel["targets"]
]


def test_the_file_is_written_by_make_manifests() -> None:
    assert DASHBOARD.read_text() == render_dashboard()


def test_grafana_s_schema_knows_all_of_it() -> None:
    """What the models of Grafana's own SDK read and write again is the whole file."""
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(FILE)))
    assert list(lost(FILE, again)) == []
    assert list(lost({"tittle": 1}, json.loads(JSONEncoder().encode(Dashboard.from_json({"tittle": 1}))))) == [
        ".tittle"
    ]


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Places of what is given and not kept."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{place}.{key}"
            else:
                yield from lost(value, kept[key], f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif given != kept:
        yield place


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in FILE["panels"]}) == len(FILE["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in FILE["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))
        assert max(columns) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_chart_carries_it(tmp_path: Path) -> None:
    objects = Helm(tmp_path).render("dashboard.enabled=true", "dashboard.labels.grafana_dashboard=yes")
    (config_map,) = (item for item in objects if item["metadata"]["name"].endswith("-dashboard"))
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "yes"
    assert json.loads(config_map["data"]["kerf.json"]) == FILE
    assert config_map["kind"] == "ConfigMap"
    only([item for item in Helm(tmp_path).render() if item["kind"] == "ConfigMap"], "ConfigMap")  # off by default


def test_with_the_page_s_address_it_links_to_the_page(tmp_path: Path) -> None:
    objects = Helm(tmp_path).render("dashboard.enabled=true", "page.url=https://kerf.example.com/")
    (config_map,) = (item for item in objects if item["metadata"]["name"].endswith("-dashboard"))
    found = json.loads(config_map["data"]["kerf.json"])
    assert [link["url"] for link in found.pop("links")] == ["https://kerf.example.com/"]
    linked = {
        panel["title"]: links[0]["url"].removeprefix("https://kerf.example.com/")
        for panel in found["panels"]
        if (links := panel.get("fieldConfig", {}).get("defaults", {}).pop("links", []))
    }
    of_node, of_namespace = "#node/${__field.labels.node}", "#usage?since=24h&by=namespace"
    assert linked == {
        title: of_node if title.endswith("by node") else of_namespace
        for panel in PANELS
        if (title := panel["title"]).endswith(("by node", "by namespace"))
    }
    assert found == FILE, "all else is as it was"
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(config_map["data"]["kerf.json"]))))
    assert list(lost(json.loads(config_map["data"]["kerf.json"]), again)) == []


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Prometheus, which has scraped a demo while it was called, and evaluates the alerts."""
    folder = tmp_path_factory.mktemp("dashboard")
    with ready_demo(folder / "log", "queue.enabled=true") as server:
        job = Job("kerf", f"127.0.0.1:{server.port}/metrics")
        with prometheus(folder, [job], rules=[CHART / "alerts.yaml"]) as running:
            wait_until(lambda: bool(answer(running, "kerf_nodes")), 60, "a first scrape")
            rates = partial(answer, running, "rate(kerf_booked_gpu_seconds_total[1m])")
            wait_until(rates, 60, "GPU-hours are counted")
            for _ in range(2):  # twice, so that there are rates
                use(server)
                known = f"sum({COUNT}) >= {answered(server)}"
                wait_until(partial(answer, running, known), 60, "a scrape since then")
            yield running


def use(server: Server) -> None:
    """Call every verb, so that each has a latency."""
    asking, waiting = bodies.pod("train-0", 2), bodies.pod("train-1", 9)
    asking["metadata"]["uid"] = "sample-train-0"
    calls = (
        ("filter", bodies.args(waiting, ["a100-0"])),
        ("filter", bodies.args(asking, ["a100-0"])),
        ("prioritize", bodies.args(asking, ["a100-0"])),
        ("others/filter", bodies.args(asking, ["a100-0"])),
        ("others/prioritize", bodies.args(asking, ["a100-0"])),
        ("preempt", bodies.preemption_args(waiting, {"a100-0": ["sample-job-17"]})),
        ("bind", bodies.binding_args(asking, "a100-0")),
        *((verb, b"{}") for verb in ("mutate", "gate", "what-if", "defrag")),
    )
    with server.connection() as connection:
        for verb, body in calls:
            request(connection, "POST", f"/{verb}", body)


COUNT = "kerf_request_seconds_count"


def answered(server: Server) -> float:
    """Calls that Kerf has answered, by its own count."""
    lines = server.get("/metrics").content.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(COUNT))


def answer(running: Process, query: str) -> list[Any]:
    """Series of an instant query."""
    response = urllib3.request("GET", f"{running.url}/api/v1/query", fields={"query": query})
    told = response.json()
    assert told["status"] == "success", told
    return list(told["data"]["result"])


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_every_query_returns_numbers(monitored: Process, query: str) -> None:
    asked = query.replace("$__rate_interval", "1m").replace("$job", ".+")
    series = answer(monitored, asked)
    assert series, asked
    assert all(math.isfinite(float(one["value"][1])) for one in series), series


@pytest.mark.slow
def test_the_variable_finds_the_job(monitored: Process) -> None:
    response = urllib3.request("GET", f"{monitored.url}/api/v1/label/job/values", fields={"match[]": "kerf_nodes"})
    assert response.json()["data"] == ["kerf"]


@pytest.mark.slow
def test_every_alert_is_evaluated_and_quiet(monitored: Process) -> None:
    def rules() -> list[Any]:
        groups = urllib3.request("GET", f"{monitored.url}/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), 30, "every rule evaluated")
    firing = {rule["name"] for rule in rules() if rule["state"] == "firing"}
    assert firing <= {"KerfBadRequests"}
