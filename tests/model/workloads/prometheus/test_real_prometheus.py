"""Histories from a real Prometheus with weeks of a generated cluster."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.history import files
from extender.history.records import History
from model.pasts.happened import happened
from model.pasts.pasts import past
from tests.controlplane.processes import Process
from tests.model.cli.calls import kerf
from tests.model.workloads.prometheus.kube_states import SCRAPE_S, MadeNode, MadePod, Page, tell_node, tell_pod
from tests.telemetry.prometheuses import backfill, prometheus

pytestmark = pytest.mark.slow

HOUR, DAY = 3600.0, 86_400.0
UNTIL = time.time() // 600 * 600
SINCE = UNTIL - 14 * DAY
STEP = SCRAPE_S
# No stale markers in OpenMetrics' text: a series that ends is looked back for no longer than to its last sample.
FLAGS = (f"--query.lookback-delta={SCRAPE_S}s", "--storage.tsdb.retention.time=60d")
OUTAGE = (SINCE + 5 * DAY, SINCE + 5 * DAY + 3 * HOUR)


@dataclass(frozen=True)
class Made:
    """What Prometheus was given."""

    pods: Sequence[MadePod]
    process: Process

    def history(self, out: Path, *options: str) -> History:
        done = kerf("history", "--prometheus", self.process.url, "--out", out, *options)
        assert done.exit_code == 0, done.output
        return files.read(out)


def usual_pods(number: int) -> list[MadePod]:
    """Jobs of all lengths that complete, and linger or go at once."""
    rng = np.random.default_rng(1)
    made = []
    for idx in range(number):
        created = SINCE + 60 + float(rng.integers(0, int(13 * DAY)))
        scheduled = created + float(rng.integers(0, 4000))
        ended = scheduled + float(rng.integers(400, 40_000))
        lingers = idx % 3 == 0
        made.append(
            MadePod(
                f"usual-{idx}", created, scheduled, ended if lingers else None, ended + (7000 if lingers else 0),
                gpus=int(rng.choice([1, 1, 2, 8])), node=f"node-{idx % 5}", owner=f"job-{idx % 9}-29384{idx:03}",
                namespace=f"team-{'ab'[idx % 2]}", cpu=(1.5, 0.5) if idx % 2 else (4.0,),
            )
        )  # fmt: skip
    return made


def special_pods() -> list[MadePod]:
    at = SINCE + 3 * DAY
    group = {"label_scheduling_x_k8s_io_pod_group": "ring"}
    return [
        MadePod("before", SINCE - 9 * DAY, SINCE - 9 * DAY + 30, None, at, kind="ReplicaSet", owner="web-5d4f7c9b8"),
        MadePod("long-done", SINCE - 9 * DAY, SINCE - 9 * DAY, SINCE - DAY, at),
        MadePod("running", at, at + 900),
        MadePod("pending", at + 10, node=""),
        MadePod("given-up", at + 20, None, None, at + 20 + 2 * HOUR, node=""),
        MadePod("evicted", at, at + 60, at + 9 * HOUR, at + 40 * HOUR, phase="Failed", completion=False),
        MadePod("short", at, at + 5, at + 130, at + 140),
        MadePod("daemon", at, at + 5, kind="DaemonSet", owner="exporter"),
        MadePod("mirror", at, at + 5, kind="Node", owner="node-0"),
        MadePod("bare", at, at + 5, kind="", owner="shell", gpus=0, priority_class="system-cluster-critical"),
        MadePod("urgent", at, at + 5, priority_class="urgent"),
        *(MadePod(f"ring-{n}", at + n, at + 99, at + HOUR, at + 2 * HOUR, labels=group) for n in range(3)),
        *(MadePod(f"again-{n}", at + DAY + n, at + DAY + 99, labels=group) for n in range(3)),
        MadePod(
            "share", at, at + 5, annotations={
                "annotation_kerf_dev_gpu_share": "250", "annotation_kerf_dev_gpu_memory_each": "4Gi",
                "annotation_kerf_dev_gpu_model": "a100|h100",
            },
        ),
        MadePod("prepares", at, at + 5, init_gpus=4),
        MadePod("any-v100", at, at + 5, labels={"label_genius_gpu_model": "v100"}),
        MadePod("through-outage", OUTAGE[0] - DAY, OUTAGE[0] - DAY, None, OUTAGE[1] + DAY),
    ]  # fmt: skip


def nodes() -> list[MadeNode]:
    there = [(SINCE, UNTIL)]
    at = SINCE + 6 * DAY
    return [
        *(MadeNode(f"node-{number}", there) for number in range(3)),
        MadeNode("node-3", there, product="Tesla-T4"),
        MadeNode("node-4", [(SINCE, at), (at + DAY, at + 3 * DAY + HOUR), (at + 3 * DAY + 9 * HOUR, UNTIL)]),
        MadeNode("node-5", [(at + 7 * HOUR, UNTIL)], no_gpus=(at + 2 * DAY, at + 2 * DAY + 5 * HOUR)),
        MadeNode("node-6", there, no_gpus=(at, at + SCRAPE_S)),
        MadeNode("node-7", [(SINCE, at)]),
        MadeNode("node-8", [(SINCE + 2 * SCRAPE_S, UNTIL)]),
        MadeNode("cpu-0", there, gpus=0),
    ]


@contextlib.contextmanager
def serving(
    folder: Path, pods: Sequence[MadePod], *, left_out: Sequence[str] = (), labels: bool = True
) -> Iterator[Process]:
    page = Page(SINCE, UNTIL, [OUTAGE])
    for node in nodes():
        tell_node(page, node, labels=labels)
    for pod in pods:
        tell_pod(page, pod, UNTIL)
    backfill(folder, page.text(left_out))
    with prometheus(folder, [], flags=FLAGS) as process:
        yield process


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    pods = [*usual_pods(120), *special_pods()]
    with serving(tmp_path_factory.mktemp("prometheus"), pods) as process:
        yield Made(pods, process)


@pytest.fixture(scope="module")
def history(made: Made, tmp_path_factory: pytest.TempPathFactory) -> History:
    return made.history(tmp_path_factory.mktemp("history"))


def row(history: History, uid: str) -> dict[str, Any]:
    (at,) = np.flatnonzero(history.pods["pod"] == uid)
    return {name: column[at] for name, column in history.pods.items()}


def test_every_pod_is_there_with_its_times(made: Made, history: History) -> None:
    expected = [pod for pod in made.pods if pod.uid not in ("long-done", "daemon", "mirror")]
    assert set(history.pods["pod"]) == {pod.uid for pod in expected}
    for pod in expected:
        found = row(history, pod.uid)
        assert found["submitted_s"] == pod.created_s
        assert found["started_s"] == pod.scheduled_s or (np.isnan(found["started_s"]) and pod.scheduled_s is None)
        assert (found["gpus"], found["cpu_milli"]) == (pod.init_gpus or pod.gpus, sum(pod.cpu) * 1000)
        assert found["memory_mib"] == pod.memory_gib * 1024
        assert (found["node"], found["namespace"]) == (pod.node, pod.namespace)
        ended_s = pod.ended_s if pod.ended_s is not None else pod.gone_s
        if ended_s is None:
            assert np.isnan(found["ended_s"]), pod
        elif pod.ended_s is not None and pod.completion and (pod.gone_s or UNTIL) - pod.ended_s >= SCRAPE_S:
            assert found["ended_s"] == ended_s, pod
        elif OUTAGE[0] <= ended_s < OUTAGE[1]:
            assert OUTAGE[0] - STEP <= found["ended_s"] <= ended_s, pod
        else:
            assert abs(found["ended_s"] - ended_s) <= STEP, pod
    assert (np.diff(history.pods["submitted_s"]) >= 0).all()


def test_owners_priorities_gangs_and_requests_of_pods(history: History) -> None:
    for uid, column, value in (
        ("before", "owner", "team-a/ReplicaSet/web"),
        ("bare", "owner", "team-a/Pod/shell-bare"),
        ("usual-3", "owner", "team-b/Job/job-3"),
        ("bare", "gpu_milli", 0),
        ("running", "gpu_milli", 1000),
        ("bare", "priority", 2_000_000_000),
        ("urgent", "priority", 0),
        ("ring-2", "gang", "team-a/ring"),
        ("again-2", "gang", "team-a/ring#2"),
        ("share", "gpu_milli", 250),
        ("share", "gpu_memory_mib", 4096),
        ("share", "gpu_models", "a100-sxm4-80gb"),
        ("any-v100", "gpu_models", "v100"),  # no node has one
    ):
        assert row(history, uid)[column] == value, (uid, column)


def test_nodes_have_a_row_for_each_time_that_they_came_to_be_so(history: History) -> None:
    table = history.nodes
    rows: dict[str, list[tuple[int, float, float]]] = {}
    for name, *row in zip(*(table[name].tolist() for name in ("node", "gpus", "from_s", "until_s")), strict=True):
        rows.setdefault(name, []).append((row[0], row[1], row[2]))
    since, at, still = history.about.since_s, SINCE + 6 * DAY, np.nan
    again = at + 3 * DAY + HOUR  # within a slice of a day
    gone, back = at + 2 * DAY, at + 2 * DAY + 5 * HOUR
    expected = {
        **{f"node-{number}": [(8, since, still)] for number in (0, 1, 2, 3, 6, 8)},
        "cpu-0": [(0, since, still)],
        "node-4": [(8, since, at), (8, at + DAY, again), (8, again + 8 * HOUR, still)],
        "node-5": [(8, at + 7 * HOUR, gone), (0, gone, back), (8, back, still)],
        "node-7": [(8, since, at)],
    }
    assert rows.keys() == expected.keys()
    for name, made in expected.items():
        assert np.allclose(rows[name], made, rtol=0, atol=STEP, equal_nan=True), (name, rows[name])
        assert made[0][1] != since or rows[name][0][1] == since  # exactly: it is there from the simulation's start
    assert [until_s for *_, until_s in rows["node-5"][:2]] == [from_s for _, from_s, _ in rows["node-5"][1:]]
    models = dict(zip(table["node"], table["gpu_model"], strict=True))
    assert (models["node-0"], models["node-3"], models["cpu-0"]) == ("a100-sxm4-80gb", "t4", "")
    assert set(table["gpu_memory_mib"]) == {81920, 0}
    assert set(table["cpu_milli"]) == {64_000} and set(table["memory_mib"]) == {524_288}


def test_what_is_missing_is_said(history: History) -> None:
    about = history.about
    assert about.source == "prometheus" and not about.hashed
    assert abs(about.since_s - SINCE) <= STEP and abs(about.until_s - UNTIL) <= STEP
    assert about.since_s % STEP == about.until_s % STEP == 0
    told = "\n".join(about.missing)
    assert f"to within {STEP} s" in told
    assert f"between two scrapes ({SCRAPE_S} s)" in told
    assert "2.9 hours in which" in told or "3.0 hours in which" in told
    assert "30d were requested" in told
    assert "values of 1 PriorityClasses" in told
    assert "gangs" not in told and "GPU models" not in told and "started" not in told


def test_it_can_be_replayed_beside_what_happened(history: History) -> None:
    known = past(history)
    told = happened(history, known)
    assert told is not None and told.delay_s.mean() > 0
    assert known.offered.left_out == 1  # the pod that wants a V100


def test_a_shorter_time_and_names_that_nobody_can_read(made: Made, tmp_path: Path) -> None:
    found = made.history(tmp_path, "--since", "4d", "--hash-owners")
    since_s = found.about.since_s
    assert found.about.hashed and abs(since_s - (UNTIL - 4 * DAY)) < HOUR
    assert "running" not in found.pods["pod"] and all(len(name) == 16 for name in found.pods["owner"])
    pods = [pod for pod in made.pods if pod.uid not in ("daemon", "mirror")]
    after_s = np.array([(pod.ended_s or pod.gone_s or UNTIL) - since_s for pod in pods])
    assert abs(len(found.pods["pod"]) - (after_s > 0).sum()) <= (abs(after_s) <= STEP).sum()
    assert (found.pods["submitted_s"] < since_s).any()


def test_without_the_optional_series(tmp_path: Path) -> None:
    optional = [
        "kube_pod_status_scheduled_time", "kube_pod_completion_time", "kube_pod_labels", "kube_pod_annotations",
        "kube_pod_status_phase",
    ]  # fmt: skip
    pods = special_pods()
    with serving(tmp_path, pods, left_out=optional, labels=False) as process:
        found = Made(pods, process).history(tmp_path / "history")
        told = "\n".join(found.about.missing)
        for words in ("when pods started", "when pods completed", "gangs", "GPU models of 9 nodes", "by annotation"):
            assert words in told
        assert set(found.nodes["gpu_model"]) == {"GPU", ""}
        assert row(found, "share")["gpu_milli"] == 1000
        assert np.isnan(found.pods["started_s"]).all() and happened(found, past(found)) is None
        assert_refused(process.url, tmp_path, "check that it scrapes kube-state-metrics", "--match", 'cluster="b"')
        assert_refused(process.url, tmp_path, "--match must", "--match", "cluster=b")
        assert_refused(f"{process.url}/nowhere", tmp_path, "no Prometheus API")


def test_labels_that_a_scrape_has_renamed_and_models_from_dcgm(tmp_path: Path) -> None:
    """Without `honorLabels`, namespace, pod, node and container are those of kube-state-metrics' own pod."""
    page = Page(SINCE + 13 * DAY, UNTIL, renamed=True)
    for node in nodes():
        tell_node(page, node, labels=False)
        gpu = {"Hostname": node.name, "modelName": "NVIDIA A100-SXM4-80GB", "UUID": f"GPU-{node.name}"}
        page.add("DCGM_FI_DEV_FB_USED", gpu, 1, [node.there[-1]] if node.gpus else [])
    for pod in special_pods():
        tell_pod(page, pod, UNTIL)
    backfill(tmp_path, page.text())
    with prometheus(tmp_path, [], flags=FLAGS) as process:
        found = Made([], process).history(tmp_path / "history", "--since", "1d")
    assert set(found.nodes["node"]) == {node.name for node in nodes()} - {"node-7"}
    assert set(found.nodes["gpu_model"]) == {"a100-sxm4-80gb", ""}
    assert set(found.nodes["gpu_memory_mib"]) == {81920, 0}  # of the product
    running, pending = row(found, "running"), row(found, "pending")
    assert (running["node"], running["namespace"], running["gpus"]) == ("node-0", "team-a", 1)
    assert pending["node"] == "" and np.isnan(pending["started_s"])
    assert row(found, "bare")["owner"] == "team-a/Pod/shell-bare"


def test_without_needed_series(tmp_path: Path) -> None:
    with serving(tmp_path, special_pods(), left_out=["kube_pod_created"]) as process:
        assert_refused(process.url, tmp_path, "no kube_pod_created in the last 30d")


def assert_refused(url: str, folder: Path, words: str, *options: str) -> None:
    done = kerf("history", "--prometheus", url, *options, "--out", folder / "x")
    (line,) = done.stderr.strip().splitlines()
    assert done.exit_code == 2 and words in line
