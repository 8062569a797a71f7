"""The page in a real browser, on the demo's cluster."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from extender.demo.cluster import sample_cluster
from extender.ranking import files
from tests.api import bodies
from tests.api.bodies import Manifest
from tests.api.processes import Server, demo, request
from tests.changes import PAGE
from tests.controlplane import wait_until
from tests.core.learning import only
from tests.page.conftest import Opener

pytestmark = pytest.mark.nightly(of=PAGE)

NODES = [item["metadata"]["name"] for item in sample_cluster() if item["kind"] == "Node"]
expect.set_options(timeout=30_000)  # ms; a busy machine is no fault
GPU_NODES = [name for name in NODES if not name.startswith("cpu")]
_DOWN = ["ArrowDown", "ArrowDown"]
"""From the first of two lines of tiles into the next group."""
WITH_MARKUP = "<img src=x onerror=alert(1)>"


def post(server: Server, verb: str, body: bytes) -> Any:
    with server.connection() as connection:
        return json.loads(request(connection, "POST", f"/{verb}", body).content)


def pod(name: str, gpus: int, **annotations: str) -> Manifest:
    """One of the demo's pending pods, or one that it does not have."""
    named = bodies.pod(
        name, gpus, annotations={f"kerf.dev/{key.replace('_', '-')}": v for key, v in annotations.items()}
    )
    named["metadata"]["uid"] = f"sample-{name}"
    return named


def colours(page: Page) -> set[str]:
    """All colours on the canvases, as #rrggbb."""
    found = page.evaluate(
        """() => {
          const seen = new Set();
          for (const canvas of document.querySelectorAll('#map canvas')) {
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            for (let at = 0; at < data.length; at += 4) seen.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
          }
          return [...seen];
        }"""
    )
    return {f"#{colour:06x}" for colour in found}


def theme(page: Page, *names: str) -> set[str]:
    """Colours of the style sheet."""
    style = "getComputedStyle(document.documentElement)"
    return {page.evaluate(f"{style}.getPropertyValue('--{name}').trim()") for name in names}


@pytest.mark.verdict
def test_the_map_and_the_table_show_every_node(open_page: Opener) -> None:
    page = open_page()
    expect(page.get_by_role("status").first).to_have_text("ready")
    expect(page.locator("#map h3").first).to_have_text(
        re.compile(r"^a100-sxm4-80gb 80 GiB, 8 nodes, \d+ of 64 GPUs booked$")
    )
    assert colours(page) >= theme(page, "free", "booked", "used", "fragment", "over")
    assert not colours(page) & theme(page, "error")
    page.get_by_role("tab", name="Table").click()
    table = page.get_by_role("table", name="Nodes, with bookings and load of their GPUs")
    expect(table.get_by_role("rowheader")).to_have_count(len(NODES))
    assert set(table.get_by_role("rowheader").all_inner_texts()) == set(NODES)
    expect(table.get_by_role("row", name="cpu-0")).to_contain_text("no GPUs")
    expect(table.get_by_role("row", name="a100-0 ")).to_contain_text("1 used without a booking")


def test_the_table_is_sorted_and_searched(open_page: Opener) -> None:
    page = open_page()
    page.get_by_role("tab", name="Table").click()
    page.get_by_role("searchbox", name="Find nodes").fill("H100")
    table = page.get_by_role("table", name="Nodes, with")
    expect(table.get_by_role("rowheader")).to_have_count(6)
    table.get_by_role("button", name="Booked").click()
    table.get_by_role("button", name="Booked").click()
    expect(table.get_by_role("columnheader", name="Booked")).to_have_attribute("aria-sort", "descending")
    expect(table.get_by_role("rowheader").first).to_have_text("h100-0")  # the only full one
    page.get_by_role("tab", name="Map").click()
    expect(page.locator("#map h3")).to_have_count(1)


@pytest.mark.verdict
def test_a_booking_appears_without_a_reload(open_page: Opener, server: Server) -> None:
    page = open_page()
    heading = page.locator("#map h3").first
    expect(heading).to_contain_text("31 of 64 GPUs booked")
    asking = pod("train-0", 2, gpu_model="a100", gpu_memory_each="40Gi")
    assert post(server, "filter", bodies.args(asking, ["a100-0", "a100-1"]))["NodeNames"] == ["a100-0"]
    assert post(server, "bind", bodies.binding_args(asking, "a100-0")) == {"Error": ""}
    expect(heading).to_contain_text("33 of 64 GPUs booked")
    feed = page.get_by_role("list", name="Decisions, newest first")
    expect(feed.get_by_role("listitem").first).to_contain_text("default/train-0")
    expect(feed.get_by_role("listitem").first).to_contain_text("a100-0 GPU 4, 5")
    feed.get_by_role("link", name="a100-0").click()
    held = page.get_by_role("dialog").get_by_role("table", name="GPUs of a100-0").get_by_role("row")
    expect(held.nth(5)).to_contain_text("default/train-0")


def test_a_running_pod_of_which_no_decision_is_kept_is_where_it_is(open_page: Opener) -> None:
    page = open_page(viewport={"width": 1000, "height": 600})
    page.goto(page.url + "#pod/default/job-8")
    dialog = page.get_by_role("dialog", name="default/job-8")
    expect(dialog).to_contain_text(re.compile(r"running on h100-\d, GPU \d"))
    expect(dialog).to_contain_text(re.compile(r"\d × h100-80gb-hbm3(, load \d+ %)?, \d+ \w+ old, of \w+/[-\w]+"))
    expect(dialog).to_contain_text("no decision about it is kept")
    expect(dialog.get_by_role("link", name=re.compile("h100-"))).to_have_count(1)


def test_what_is_reserved_is_told_beside_what_is_booked(open_page: Opener, server: Server) -> None:
    page = open_page()
    booked = page.locator("#totals .tile").first
    expect(booked).to_contain_text(" of 176")
    before = booked.locator("dd").first.inner_text()
    post(server, "filter", bodies.args(pod("reserves", 2), ["t4-4"]))
    expect(booked).to_contain_text("2 reserved")
    expect(booked.locator("dd").first).to_have_text(before)
    expect(page.get_by_text(re.compile(r"^t4.*booked, 2 reserved"))).to_be_visible()


@pytest.mark.verdict
def test_a_pending_pod_is_explained_by_keyboard(open_page: Opener, server: Server) -> None:
    page = open_page()
    post(server, "filter", bodies.args(pod("train-9", 9), ["a100-0", "a100-1", "t4-0", "cpu-0"]))
    waiting = page.get_by_role("table", name="Pending pods")
    link = waiting.get_by_role("link", name="default/train-9", exact=True)
    row = waiting.get_by_role("row").filter(has=page.get_by_role("link", name="default/train-9", exact=True))
    expect(row).to_contain_text("needs 9 GPUs; a100-0 is nearest with 8 installed")
    expect(row).to_contain_text("add a node with 9 GPUs")
    for _ in range(40):
        page.keyboard.press("Tab")
        if link.evaluate("(link) => link === document.activeElement"):
            break
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="default/train-9")
    expect(dialog).to_contain_text("pending")
    expect(dialog.locator(".sentence")).to_have_text("needs 9 GPUs; a100-0 is nearest with 8 installed")
    expect(dialog.get_by_role("listitem").first).to_have_text("request 8 GPUs instead of 9: fits on a100-1 now")
    expect(dialog.get_by_role("heading", name="0 of 4 candidates had room")).to_be_hidden()
    dialog.get_by_text("Details", exact=True).click()
    expect(dialog.get_by_role("heading", name="0 of 4 candidates had room")).to_be_visible()
    expect(dialog.get_by_role("table", name="Candidates, best first").get_by_role("row")).to_have_count(5)
    assert page.url.endswith("#pod/default/train-9")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(link).to_be_focused()
    expect(page).not_to_have_url(re.compile("#"))


def test_the_map_is_walked_by_keyboard(open_page: Opener) -> None:
    page = open_page()
    cluster_map = page.get_by_role("application", name="Cluster map")
    told = page.locator("#map-node")
    cluster_map.focus()
    expect(told).to_contain_text("a100-0: ")
    for keys, node in ((["ArrowRight"], "a100-1"), (["End"], "t4-shared-1"), (["Home"], "a100-0"), (_DOWN, "h100-0")):
        for key in keys:
            page.keyboard.press(key)
        expect(told).to_contain_text(f"{node}: ")
    seen = set()
    page.keyboard.press("Home")
    for _ in GPU_NODES:
        seen.add(told.inner_text().partition(":")[0])
        page.keyboard.press("ArrowRight")
    assert seen == set(GPU_NODES)
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="a100-0")).to_contain_text("of 8 GPUs booked")


def test_what_if_of_pods(open_page: Opener) -> None:
    card = open_page().locator("#what-if")
    form = card.get_by_role("tabpanel")
    form.get_by_label("Number of pods").fill("20")
    form.get_by_label("GPUs each").fill("8")
    card.get_by_role("button", name="Run").click()
    told = card.locator("#what-if-result")
    expect(told).to_contain_text("3 of 20 pods would be placed")
    expect(told).to_contain_text(re.compile(r"stranded GPUs: \d+\.\d % now, \d+\.\d % after"))
    form.get_by_label("With nodes added").fill("a100-0=2")
    card.page.keyboard.press("Enter")
    expect(told).to_contain_text("5 of 20 pods would be placed")
    drained = form.get_by_label("With nodes drained")
    drained.fill("nowhere")
    card.page.keyboard.press("Enter")
    expect(drained).to_have_accessible_description("drain: no node is named nowhere")
    expect(drained).to_be_focused()
    expect(told).to_be_empty()


def test_room_is_offered_where_moves_can_help(open_page: Opener) -> None:
    card = open_page().locator("#what-if")
    form, told = card.get_by_role("tabpanel"), card.locator("#what-if-result")
    room = told.get_by_role("button", name="Make room for all of them")
    card.get_by_role("tab", name="YAML").click()
    asking = "{kind: Pod, metadata: {name: p}, spec: {containers: [{resources: {limits: {nvidia.com/gpu: %s}}}]}}"
    form.get_by_label("Manifests").fill(asking % "lots")
    card.get_by_role("button", name="Run").click()
    expect(told).to_contain_text('"lots" is not a quantity')
    expect(room).to_have_count(0)
    form.get_by_label("Manifests").fill(asking % "99")
    card.get_by_role("button", name="Run").click()
    expect(told).to_contain_text("needs 99 GPUs")
    expect(room).to_have_count(0)
    pod = "{spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}}"
    job = f"{{apiVersion: batch/v1, kind: Job, metadata: {{name: j}}, spec: {{parallelism: 5, template: {pod}}}}}"
    form.get_by_label("Manifests").fill(job)
    card.get_by_role("button", name="Run").click()
    expect(told).to_contain_text("of 5 pods")
    room.click()
    expect(told).to_contain_text("would have to move", timeout=60_000)


JOBS = """
kind: Service
metadata: {name: front}
---
apiVersion: batch/v1
kind: Job
metadata: {name: fits}
spec: {parallelism: 2, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: <b>never</b>}
spec: {template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 99}}}]}}}
"""


def test_what_if_of_manifests_that_are_pasted_or_opened(open_page: Opener) -> None:
    card = open_page().locator("#what-if")
    form = card.get_by_role("tabpanel")
    card.get_by_role("tab", name="Pods").press("ArrowRight")
    expect(card.get_by_role("tab", name="YAML")).to_be_focused()
    text, told = form.get_by_label("Manifests"), card.locator("#what-if-result")
    text.fill(JOBS)
    card.get_by_role("button", name="Run").click()
    expect(text).to_have_accessible_description(
        "document 3, line 12 (Job <b>never</b>): metadata.name: '<b>never</b>' is not a valid name"
    )
    selected = text.evaluate("box => box.value.slice(box.selectionStart, box.selectionEnd)")
    assert selected == "metadata: {name: <b>never</b>}", "the line that is at fault"
    content = JOBS.replace("<b>never</b>", "never").encode()
    form.get_by_label("Open a file").set_input_files({"name": "jobs.yaml", "mimeType": "text/yaml", "buffer": content})
    expect(text).to_have_value(content.decode())
    card.get_by_role("button", name="Run").click()
    fits, never = (told.get_by_role("region", name=f"Job default/{name}") for name in ("fits", "never"))
    expect(fits).to_contain_text(re.compile(r"2 of 2 pods.*: fits-0"))
    expect(never).to_contain_text("0 of 1 podpending: 1 × needs 99 GPUs, best node: 8 installed")
    expect(told).to_contain_text("left out, as they create no pods: Service front")
    expect(told.get_by_role("button", name="Make room")).to_have_count(0)  # no move makes room for 99 GPUs


def test_what_if_nodes_are_drained_or_added_alone(open_page: Opener) -> None:
    card = open_page().locator("#what-if")
    form = card.get_by_role("tabpanel")
    told = card.locator("#what-if-result")
    card.get_by_role("tab", name="Drain").click()
    form.get_by_label("Nodes to drain").fill("a100-0, h100-0")
    card.get_by_role("button", name="Run").click()
    expect(told).to_contain_text(re.compile(r"\d+ of \d+ pods would find another node"))
    card.get_by_role("tab", name="Add nodes").click()
    expect(told).to_be_empty()
    like = form.get_by_label("Like node")
    like.fill("nowhere")
    card.page.keyboard.press("Enter")
    expect(like).to_have_accessible_description("addNodes: no node is named nowhere")
    like.fill("h100-0")
    form.get_by_label("How many").fill("0")
    card.page.keyboard.press("Enter")
    expect(form.get_by_label("How many")).to_have_accessible_description(re.compile("Expected `int` >= 1"))
    form.get_by_label("How many").fill("2")
    card.page.keyboard.press("Enter")
    expect(told).to_contain_text(re.compile(r"(\d+) of \1 pending pods would be placed"))  # tests before it place some


def test_room_is_asked_for_beside_a_pending_pod(open_page: Opener, server: Server) -> None:
    page = open_page()
    page.get_by_role("link", name="Make room for default/train-1").first.click()
    dialog = page.get_by_role("dialog", name="Make room for default/train-1")
    expect(dialog).to_contain_text("there is room already", timeout=60_000)
    expect(dialog).to_contain_text("default/train-1 then goes to ")


def test_the_moves_that_would_make_room_are_shown(open_page: Opener, server: Server) -> None:
    page = open_page()
    page.get_by_role("link", name="Make room for default/train-2").first.click()
    dialog = page.get_by_role("dialog", name="Make room for default/train-2")
    costs = re.compile(r"1 pod would have to move, which loses 3\d\.\d GPU hours of work")  # more with each minute
    expect(dialog).to_contain_text(costs, timeout=60_000)
    row = dialog.get_by_role("table", name="Moves, in order").get_by_role("row").nth(1)
    expect(row).to_contain_text(re.compile(r"^default/job-\d+h100-\d"))
    expect(dialog).to_contain_text(re.compile(r"default/train-2 then goes to h100-\d"))


def test_moves_that_would_help_are_told_above_the_pending_pods(open_page: Opener, server: Server) -> None:
    moves = {"target": WITH_MARKUP, "moves": 2, "cost_gpu_s": 5400.0, "why_not": "it only tells"}
    item = {"pod": "default/big", "request": "8 GPUs", "why": "no room", "where": "queue", "since": 0, "priority": 0}
    sections = {"waiting": {"total": 1, "more": False, "items": [item]}, "moves": moves}
    page = open_page()
    shown = page.evaluate(
        """async (sections) => {
          const panel = (await import('/page/panels/waiting.js')).default;
          const [head, body] = [document.createElement('div'), document.createElement('div')];
          const store = Object.assign(new EventTarget(), { sections });
          panel.build({ head, body, store });
          store.dispatchEvent(new Event('moves'));
          return body.querySelector('.hint').textContent;
        }""",
        sections,
    )
    told = f"{WITH_MARKUP} would fit if 2 pods moved, which loses 1.5 GPU hours of work."
    assert shown == f"{told} Not done automatically: it only tells."


@pytest.mark.verdict
def test_what_pods_say_is_text(open_page: Opener, server: Server) -> None:
    page = open_page()
    ran: list[str] = []
    page.on("dialog", lambda dialog: ran.append(dialog.message))
    post(server, "filter", bodies.args(pod("evil", 1, gpu_model=WITH_MARKUP), ["a100-0"]))
    expect(page.locator("#waiting")).to_contain_text(WITH_MARKUP)
    page.get_by_role("table", name="Pending pods").get_by_role("link", name="default/evil", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text(WITH_MARKUP)
    assert page.locator("img[src=x]").count() == 0
    assert ran == []


def test_the_http_api_has_a_page_and_nothing_is_loaded_from_elsewhere(open_page: Opener, server: Server) -> None:
    """Swagger UI comes from Kerf itself; the policy that the page is sent with would stop it elsewhere."""
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda call: asked.append(call.url))
    page.reload()
    page.locator("#map canvas").first.wait_for()
    page.goto(f"http://127.0.0.1:{server.port}/docs")
    expect(page.locator(".opblock-summary-path")).to_contain_text(["/filter", "/prioritize", "/bind"])
    paths = page.locator(".opblock-summary-path").evaluate_all("all => all.map(one => one.dataset.path)")
    with server.connection() as connection:
        described = json.loads(request(connection, "GET", "/openapi.json").content)["paths"]
    assert sorted(set(paths)) == sorted(described)
    page.get_by_role("button", name="GET /version Version").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    assert any(url.endswith("swagger-ui-bundle.js") for url in asked)
    assert [url for url in asked if not url.startswith((f"http://127.0.0.1:{server.port}/", "data:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(open_page: Opener, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) for part in re.findall(r"\d+", background))
    assert (red + green + blue > 600) == (scheme == "light")
    wait_until(lambda: colours(page) >= theme(page, "card", "free", "booked"), 30.0, "it is drawn")
    before = theme(page, "card", "free", "booked")
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    wait_until(lambda: theme(page, "card", "free", "booked") != before, 30.0, "the other theme")
    wait_until(lambda: colours(page) >= theme(page, "card", "free", "booked"), 30.0, "it is drawn anew in it")


@pytest.mark.parametrize("width", [320, 390, 768, 1100, 1920])
def test_no_window_scrolls_sideways(open_page: Opener, server: Server, width: int) -> None:
    long_name = "a-pod-with-a-rather-long-name-as-controllers-make-them-5d8c7b9f4-x7z9k"
    post(server, "filter", bodies.args(pod(long_name, 9), ["a100-0", "t4-0"]))
    page = open_page(viewport={"width": width, "height": 800})
    expect(page.locator("#waiting")).to_contain_text(long_name)
    page.get_by_role("tab", name="Table").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(page.url + f"#pod/default/{long_name}")
    expect(page.get_by_role("dialog")).to_contain_text("pending")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_rules_hold(open_page: Opener, server: Server, scheme: str) -> None:
    """Those of axe-core: names, roles, contrast, landmarks, focus order."""
    post(server, "filter", bodies.args(pod("train-1", 9), ["a100-0", "t4-0"]))
    post(server, "filter", bodies.args(pod("notebook-0", 1), ["a100-0", "t4-0"]))
    page = open_page(color_scheme=scheme, reduced_motion="reduce")
    expect(page.get_by_role("table", name="Pending pods")).to_contain_text("default/train-1")
    expect(page.get_by_role("list", name="Decisions, newest first")).to_contain_text("default/notebook-0")
    check(page)
    page.get_by_role("tab", name="Table").click()
    card = page.locator("#what-if")
    card.get_by_role("tab", name="YAML").click()
    card.get_by_label("Manifests").fill(JOBS)
    card.get_by_role("button", name="Run").click()
    expect(card).to_contain_text("is not a valid name")
    check(page)
    card.get_by_label("Manifests").fill(JOBS.replace("<b>never</b>", "never"))
    card.get_by_role("button", name="Run").click()
    expect(card).to_contain_text("needs 99 GPUs")
    check(page)
    page.get_by_role("table", name="Pending pods").get_by_role("link", name="default/train-1", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("pending")
    check(page)


def check(page: Page) -> None:
    """Fail with what axe-core finds."""
    violations = Axe().run(page).response["violations"]
    assert [(item["id"], [node["html"] for node in item["nodes"]]) for item in violations] == []


def test_a_learned_rank_is_told_of(open_page: Opener, tmp_path: Path) -> None:
    files.write(tmp_path / "model", only(node_idle=1.0), 1.0, {"mode": "by hand"}, ())
    options = [f"--set=model.path={tmp_path / 'model'}", "--set=model.prices=plain"]
    with demo(tmp_path / "log", options) as process:
        server = Server(process, tmp_path / "log")
        server.wait_for(lambda: server.get("/model").json()["served"] == "model")
        page = open_page(at=server)
        expect(page.locator("#facts")).to_contain_text("serve")
        post(server, "filter", bodies.args(pod("train-0", 2), ["a100-1"]))
        page.get_by_role("link", name="default/train-0", exact=True).click()
        dialog = page.get_by_role("dialog", name="default/train-0")
        dialog.get_by_text("Details", exact=True).click()
        expect(dialog.get_by_role("table", name="Features of the node, and what each adds")).to_contain_text(
            "node_idle"
        )


def test_a_service_that_goes_and_comes_back(open_page: Opener, tmp_path: Path) -> None:
    with demo(tmp_path / "first") as process:
        first = Server(process, tmp_path / "first")
        page = open_page(at=first)
        health = page.get_by_role("status").first
        expect(health).to_have_text("ready")
    expect(health).to_have_text("no connection to Kerf")
    with demo(tmp_path / "second", port=first.port) as process:
        second = Server(process, tmp_path / "second")
        expect(health).to_have_text("ready", timeout=30_000)
        post(second, "filter", bodies.args(pod("train-0", 2), ["a100-1"]))
        expect(page.get_by_role("list", name="Decisions, newest first")).to_contain_text("default/train-0")


def test_five_thousand_nodes(open_page: Opener, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with demo(tmp_path / "log", module="tests.page.large") as process:
        server = Server(process, tmp_path / "log")
        server.wait_for(lambda: server.get("/readyz").status == 200, 120)
        page = open_page(at=server)
        expect(page.locator("#map h3")).to_have_text(
            ["h100-80gb-hbm3 80 GiB, 5,000 nodes, 20,000 of 40,000 GPUs booked"]
        )
        with capsys.disabled():
            print(f"\n5,000 nodes of 8 GPUs: {page.evaluate(TIMES)}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.get_by_role("application", name="Cluster map").focus()
        page.keyboard.press("End")
        expect(page.locator("#map-node")).to_contain_text("n-4999: ")
        page.get_by_role("tab", name="Table").click()
        expect(page.get_by_role("table", name="Nodes, with").get_by_role("rowheader")).to_have_count(50)
        expect(page.locator("#cluster .pager")).to_contain_text("5,000 nodes, page 1 of 100")
        page.evaluate("location.hash = '#workloads?by=pod'")
        expect(page.locator("#workloads .pager")).to_contain_text("5,000 pods, page 1 of 100")
        expect(page.locator("#workloads tbody tr")).to_have_count(50)


TIMES = """() => {
  const after = (name) => `${Math.round(performance.getEntriesByName(name)[0].startTime)} ms`;
  return `first paint after ${after('first-contentful-paint')}, the whole map after ${after('map')}`;
}"""
