"""What each recipe of CONTRIBUTING.md adds, used, and what the example package does.

`python -m tests.docs.recipe_uses RECIPE`, in a checkout where it was carried out; fails where it has changed nothing.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from extender.core.gauges import Gauge
from extender.planning.planners import PLANNERS
from extender.settings.load import load_settings
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Clock, Kerf, running
from tests.telemetry.feeds import FakeFeed

SKIPPED: Final = 77
"""Exit status where the machine lacks what is needed; the reason is on standard output."""


def annotated(manifest: Manifest, **annotations: Any) -> Manifest:
    """An object with annotations of Kerf's; `_` for `-`."""
    told = {f"kerf.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    manifest["metadata"].setdefault("annotations", {}).update(told)
    return manifest


def chosen(kerf: Kerf, name: str, gpus: int, nodes: Sequence[str], **annotations: str) -> list[str]:
    """Where a new pod may go."""
    answer = kerf.filter(kerf.create(annotated(pod(name, gpus), **annotations)), nodes)
    return list(answer["NodeNames"] or ())


def use_filter() -> None:
    """A node of two models takes one GPU's pods, and turns those of two away with a reason."""
    gpus = [{"index": 0, "model": "Tesla-T4"}, {"index": 1, "model": "A100-SXM4-40GB"}]
    with running([annotated(node("mixed", 2), gpus=json.dumps(gpus)), node("alike", 2)]) as kerf:
        answer = kerf.filter(kerf.create(pod("two", 2)), ["mixed", "alike"])
        assert answer["NodeNames"] == ["alike"]
        assert answer["FailedAndUnresolvableNodes"]["mixed"] == "needs 2 GPUs, best here: 1 of one model"
        assert chosen(kerf, "one", 1, ["mixed"]) == ["mixed"]


def use_device_plugin() -> None:
    """Its nodes offer GPUs, and a pod's are written where it finds them; other nodes' are not."""
    own = node("own", 2)
    own["metadata"]["labels"]["example.com/gpu-plugin"] = "yes"
    with running([own, node("other", 2)]) as kerf:
        for name, where, told in (("a", "own", "0,1"), ("b", "other", None)):
            asking = kerf.create(pod(name, 2))
            assert kerf.filter(asking, [where])["NodeNames"] == [where]
            assert kerf.bind(asking, where) == ""
            annotations = kerf.cluster.pod("default", name)["metadata"]["annotations"]
            assert annotations.get("example.com/gpus") == told
        assert chosen(kerf, "c", 1, ["own"]) == []


def use_score_term() -> None:
    """The node whose encoder is idle comes first, whichever it is."""
    for busy, best in (("b", "a"), ("a", "b")):
        feed = FakeFeed(Clock())
        feed.gauges = {name: {Gauge.ENCODER: [0.9 if name == busy else 0.1]} for name in ("a", "b")}
        flags: dict[str, Any] = {"telemetry__url": "http://prometheus", "telemetry__interval_s": 3600}
        with running([node("a", 1), node("b", 1)], feed=feed, decisions__policy="live", **flags) as kerf:
            feed.clock = kerf.clock
            assert kerf.service.observer is not None
            kerf.run(kerf.service.observer.round())
            assert chosen(kerf, "pod", 1, ["a", "b"]) == [best], busy


def use_policy() -> None:
    """The settings choose it, a pod does, and the simulator runs it."""
    from model.simulations.baselines import baseline
    from model.simulations.replays import replay
    from model.workloads.traces import read_nodes, read_pods
    from model.workloads.workloads import workload
    from tests.model.builders import write_openb

    objects = [node("small", 2), node("large", 8), pod("held", 5, node_name="large")]
    for policy, best in (("roomiest", "large"), ("tightest", "small")):
        with running(objects, decisions__policy=policy) as kerf:
            assert chosen(kerf, "asks", 1, ["small", "large"]) == [best]
            assert chosen(kerf, "names", 1, ["small", "large"], policy="roomiest") == ["large"]
    with tempfile.TemporaryDirectory() as folder:
        traces = write_openb(Path(folder), num_nodes=6, num_pods=40)
        arrivals = workload(traces, "small", 1, read_nodes(traces), read_pods(traces, "small"))
        placed = replay(arrivals, baseline("roomiest"), 1).placed
    assert arrivals.nodes.num_gpus[int(placed[0])] == arrivals.nodes.num_gpus.max()
    assert (placed >= 0).sum() > 5


def use_planner() -> None:
    """The settings know it, and it plans a batch within the rules."""
    from tests.queueing.builders import check, gpu_pod, gpu_view

    assert load_settings(flags={"queue.planner": "first-fit"}).queue.planner == "first-fit"
    view, pods = gpu_view(2, gpus=4), [gpu_pod("a", 3), gpu_pod("b", 2), gpu_pod("c", 1), gpu_pod("d", 4)]
    plan = PLANNERS["first-fit"].make(view, pods)
    check(view, pods, plan)
    assert plan.rows == (0, 1, 0, -1)


def use_telemetry_source() -> None:
    """The reading process reads it where the settings say, again and again, and says what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loads.json"
        flags = {"source": "load-file", "addresses": [str(path)], "interval_s": 3600}
        settings: dict[str, Any] = {f"telemetry__{name}": value for name, value in flags.items()}
        with running([node("a", 2), node("b", 2)], **settings) as kerf:
            observer = kerf.service.observer
            assert observer is not None
            for loads in ([0.5, 0.25], [0.75, 7.0], None):
                path.write_text(json.dumps({"a": loads}) if loads else "{")
                kerf.run(asyncio.wait_for(observer.round(), 30))
                told = kerf.get("/telemetry").json()
                if loads is None:
                    assert (told["state"], told["gpusMatched"]) == ("degraded", 2)
                    assert str(path) in told["fault"]
                    continue
                assert (told["state"], told["source"], told["gpusMatched"]) == ("ok", str(path), 2)
                snapshot = kerf.service.placer.snapshot()
                assert snapshot.observed is not None
                seen = snapshot.observed.gauge(Gauge.LOAD)[snapshot.row_of["a"]].tolist()
                read = [load for load in loads if load <= 1]
                assert seen[: len(read)] == read
                assert told["refused"] == ({} if read == loads else {"load": 1})


def use_panel() -> None:
    """The page has it, with the demo's models in it."""
    from playwright.sync_api import expect, sync_playwright

    from tests.api.processes import Server, demo
    from tests.controlplane.binaries import BuildError
    from tests.page.browsers import find_chromium

    try:
        chromium = find_chromium()
    except BuildError as error:
        print(error)
        sys.exit(SKIPPED)
    with (
        tempfile.TemporaryDirectory() as folder,
        demo(Path(folder) / "log") as process,
        sync_playwright() as playwright,
    ):
        server = Server(process, Path(folder) / "log")
        server.wait_for(lambda: server.get("/readyz").status == 200)
        browser = playwright.chromium.launch(
            executable_path=chromium.executable, env=dict(chromium.environment), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        table = page.get_by_role("region", name="GPU models").get_by_role("table")
        expect(table.get_by_role("row", name="a100-sxm4-80gb")).to_contain_text("64", timeout=20_000)
        browser.close()


def use_example_package() -> None:
    """Its policy chooses among the nodes of its device plugin, which is told the GPU; by the settings and by a pod."""
    mib = "example.com/gpu-mib"

    def slots_node(name: str, *gpus: str) -> Manifest:
        manifest = node(name)
        manifest["metadata"]["annotations"] = {"example.com/gpus": ",".join(f"{gpu}=16384" for gpu in gpus)}
        return manifest

    def slots_pod(name: str, asked: str, **annotations: str) -> Manifest:
        manifest = annotated(pod(name), **annotations)
        manifest["spec"]["containers"][0]["resources"] = {"limits": {mib: asked}, "requests": {mib: asked}}
        return manifest

    nodes = [slots_node("small", "GPU-a"), slots_node("large", "GPU-b", "GPU-c"), node("native", 8)]
    asks = [({}, "12000", "small", "GPU-a"), ({"policy": "roomiest"}, "12000", "large", "GPU-b"), ({}, "20000", "", "")]
    for policy, expected in (("tightest", asks), ("roomiest", asks[1:])):
        with running(nodes, decisions__policy=policy) as kerf:
            for number, (annotations, asked, best, gpu) in enumerate(expected):
                asking = kerf.create(slots_pod(f"pod-{number}", asked, **annotations if policy == "tightest" else {}))
                assert kerf.filter(asking, ["small", "large", "native"])["NodeNames"] == ([best] if best else [])
                if best:
                    assert kerf.bind(asking, best) == ""
                    bound = kerf.cluster.pod("default", f"pod-{number}")["metadata"]["annotations"]
                    assert bound["example.com/gpu"] == gpu


def use_part() -> None:
    """Where its setting wants it, it has a route, a metric and a panel; else its route says how to turn it on."""
    owned = pod("a-0", 1)
    owned["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "a", "uid": "a", "controller": True}]
    with running([node("n", 2)], crowds__most=1) as kerf:
        for manifest in (owned, pod("b", 1), owned | {"metadata": owned["metadata"] | {"name": "a-1", "uid": "a-1"}}):
            kerf.create(manifest)
        assert kerf.get("/crowds").json() == {"owners": {"default/Job/a": 2}}
        assert kerf.metric("kerf_crowds") == 1
        assert "import of_crowds from './parts/crowds/panel.js';" in kerf.get("/page/parts.js").content.decode()
        assert kerf.get("/page/parts/crowds/panel.js").status == 200
    with running([node("n", 2)]) as kerf:
        answer = kerf.get("/crowds")
        assert (answer.status, answer.json()["detail"]) == (404, "waiting pods are not counted (setting crowds.most)")
        assert b"crowds" not in kerf.get("/page/parts.js").content


def use_vendor() -> None:
    """Its GPUs are placed by model, and a pod that asks for one vendor's gets none of the other's."""
    acme, asks = node("own"), pod("a")
    acme["metadata"]["labels"] = {"acme.example/gpu.product": "Acme-X1", "acme.example/gpu.memory-mib": "65536"}
    for counts in (acme["status"]["allocatable"], acme["status"].get("capacity", {})):
        counts["acme.example/gpu"] = "4"
    asks["spec"]["containers"][0]["resources"] = {"limits": {"acme.example/gpu": "2"}}
    with running([acme, node("other", 4)]) as kerf:
        asking = kerf.create(annotated(asks, gpu_model="x1"))
        assert kerf.filter(asking, ["own", "other"])["NodeNames"] == ["own"]
        assert kerf.bind(asking, "own") == ""
        assert kerf.gpus_of(asking) == "0,1"
        assert kerf.metric("kerf_gpus_booked_by_model", gpu_model="x1") == 2
        assert chosen(kerf, "b", 1, ["own"]) == []


def use_webhook() -> None:
    """It warns of a pod with GPUs that names no team, and of no other; what can't be read is allowed."""

    def asked(kerf: Kerf, manifest: Manifest) -> list[str]:
        request = {"uid": "u", "operation": "CREATE", "kind": {"group": "", "kind": "Pod"}, "object": manifest}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer = kerf.post("/teams", json.dumps(review).encode()).json()["response"]
        assert answer["allowed"]
        return list(answer.get("warnings", ()))

    named = pod("b", 1)
    named["metadata"]["labels"] = {"team": "a"}
    with running([node("n", 2)], teams__warn=True) as kerf:
        assert asked(kerf, pod("a", 1)) == ["kerf: label team is missing: nobody knows whose GPUs these are"]
        assert asked(kerf, named) == asked(kerf, pod("c")) == []
        assert kerf.post("/teams", b"{").json()["response"]["allowed"]
    with running([node("n", 2)]) as kerf:
        assert kerf.post("/teams", b"{}").status == 404


def use_command() -> None:
    """It is in help, and prints the demo's models as a table and as JSON."""
    from typer.testing import CliRunner

    from extender.cli.main import app
    from tests.api.processes import Server, demo

    assert " models " in CliRunner().invoke(app, ["--help"]).output
    with tempfile.TemporaryDirectory() as folder, demo(Path(folder) / "log") as process:
        server = Server(process, Path(folder) / "log")
        server.wait_for(lambda: server.get("/readyz").status == 200)
        command = ["models", "--server", f"http://127.0.0.1:{server.port}"]
        table = CliRunner().invoke(app, command)
        assert (table.exit_code, "h100-80gb-hbm3" in table.output) == (0, True), table.output
        assert json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).output)["h100-80gb-hbm3"][0] == 48


def use_settings_key() -> None:
    """While fewer pods wait nothing is asked; where as many do it is."""
    for least, asks in ((3, False), (2, True)):
        with running([node("n", 2)], missing__after_s=1, missing__least_pods=least) as kerf:
            for name in ("a", "b"):
                waits = pod(name, 8)
                waits["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
                kerf.create(waits)
            (looks,) = kerf.service.contributions["missing"].work
            kerf.run(looks.look())  # type: ignore[attr-defined]
            assert bool(kerf.service.contributions["missing"].shown["missing"]()) is asks


EXAMPLE: Final = "example package"
USES: Final[dict[str, Callable[[], None]]] = {
    "filter": use_filter,
    "device plugin": use_device_plugin,
    "score term": use_score_term,
    "policy": use_policy,
    "planner": use_planner,
    "telemetry source": use_telemetry_source,
    "part": use_part,
    "vendor": use_vendor,
    "webhook": use_webhook,
    "command": use_command,
    "settings key": use_settings_key,
    "panel of the page": use_panel,
}

if __name__ == "__main__":
    (USES | {EXAMPLE: use_example_package})[sys.argv[1]]()
