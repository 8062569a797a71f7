"""`kerf plan` on files: row M9, and faults in what it is given."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from extender.cli.main import app

NODES = """
apiVersion: v1
kind: NodeList
items:
- {metadata: {name: n0}, status: {allocatable: {cpu: "8", memory: 16384Mi}}}
- {metadata: {name: n1}, status: {allocatable: {cpu: "8", memory: 16384Mi}}}
- metadata: {name: g0, labels: {nvidia.com/gpu.product: Tesla-T4}}
  status: {allocatable: {cpu: "8", memory: 16384Mi, nvidia.com/gpu: "2"}}
---
kind: Pod
metadata: {name: runs}
spec: {nodeName: g0, containers: [{resources: {limits: {nvidia.com/gpu: 1, cpu: 2, memory: 4Gi}}}]}
"""
PODS = """
kind: Pod
metadata: {name: web}
spec: {containers: [{resources: {requests: {cpu: "4", memory: 4Gi}}}]}
---
kind: Pod
metadata: {name: train, annotations: {kerf.dev/gpu-model: t4}}
spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}, requests: {cpu: "2", memory: 4Gi}}}]}
---
kind: Pod
metadata: {name: huge}
spec: {containers: [{resources: {requests: {cpu: "9", memory: 1Gi}}}]}
---
kind: Pod
metadata: {name: odd, annotations: {kerf.dev/gpu-count: lots}}
spec: {containers: [{resources: {}}]}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, text in (("nodes", NODES), ("pods", PODS)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return ["-f", str(tmp_path / "nodes.yaml"), "-f", str(tmp_path / "pods.yaml")]


@pytest.mark.parametrize("planner", ["greedy", "genetic", "q-learning", "exact"])
def test_m9_json(files: list[str], planner: str) -> None:
    result = CliRunner().invoke(app, ["plan", *files, "--planner", planner, "-o", "json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["planner"], report["pods"], report["placed"]) == (planner, 3, 2)
    assert {entry["pod"]: entry["reason"] for entry in report["unassigned"]} == {
        "default/huge": "needs 9 CPU and 1024 MiB, no node has that much",
        "default/odd": 'kerf.dev/gpu-count: "lots" is not a quantity; write a whole number of GPUs such as "2"',
    }
    nodes = {node["node"]: node for node in report["nodes"]}
    assert "default/train" in nodes["g0"]["pods"]
    assert nodes["g0"]["gpuPercent"] == 100.0  # one runs, one is planned, of two
    assert nodes["g0"]["cpuPercent"] >= 50.0  # 2 + 2 of 8
    placed = {entry["pod"]: entry["node"] for entry in report["assignments"]}
    assert nodes[placed["default/web"]]["memoryPercent"] >= 25.0  # 4 of 16 GiB


def test_m9_table_and_picture(files: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    result = CliRunner().invoke(app, ["plan", *files, "--picture", str(picture)])
    assert result.exit_code == 0, result.output
    assert "greedy: 2 of 3 pods" in result.output
    assert "unassigned default/huge: needs 9 CPU" in result.output
    tree = ElementTree.fromstring(picture.read_text())  # noqa: S314 - our own
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"g0", "n0", "n1", "greedy: 2 of 3 pods"} <= set(texts)


def test_reserve_and_namespace(files: list[str]) -> None:
    result = CliRunner().invoke(app, ["plan", *files, "--reserve", "0.6", "-o", "json"])
    assert json.loads(result.output)["placed"] == 0  # 8 * 0.4 = 3.2 CPU free on a plain node, 1.2 beside `runs`
    result = CliRunner().invoke(app, ["plan", *files, "-n", "elsewhere", "-o", "json"])
    assert json.loads(result.output)["pods"] == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Service", "kind 'Service' can't be planned; write nodes and pods"),
        ("- 1", "expected a Kubernetes object, not list"),
        ("kind: Pod\nspec: {containers: 3}", "Expected `array | null`, got `int` - at `$.spec.containers`"),
        ("kind: Pod\nmetadata: {}", "metadata.name: a pod needs a name"),
        ("kind: [", "while parsing"),
    ],
)
def test_faults_of_files(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["plan", "-f", str(path)])
    assert result.exit_code == 2
    assert fault in result.output


def test_faults_of_options(files: list[str]) -> None:
    result = CliRunner().invoke(app, ["plan", *files, "--planner", "tarot"])
    assert result.exit_code == 2
    assert "use one of greedy, genetic, q-learning, exact" in result.output
    result = CliRunner().invoke(app, ["plan", *files, "--apply"])
    assert result.exit_code == 2
    assert "leave nodes out of -f" in result.output


def test_a_member_of_a_gang_that_runs_draws_the_others_to_its_domain(tmp_path: Path) -> None:
    gang = "{kerf.dev/gang: g, kerf.dev/gang-size: '2', kerf.dev/gang-topology: rack}"
    spec = "containers: [{resources: {requests: {cpu: '2'}}}]"
    node = "{{kind: Node, metadata: {{name: n{0}, labels: {{rack: r{1}}}}}, status: {{allocatable: {{cpu: '{2}'}}}}}}"
    documents = [
        *(node.format(number, number // 2, cpu) for number, cpu in enumerate((2, 2, 4, 4))),
        f"{{kind: Pod, metadata: {{name: runs, annotations: {gang}}}, spec: {{nodeName: n2, {spec}}}}}",
        f"{{kind: Pod, metadata: {{name: waits, annotations: {gang}}}, spec: {{{spec}}}}}",
    ]
    path = tmp_path / "gang.yaml"
    path.write_text("\n---\n".join(documents))
    result = CliRunner().invoke(app, ["plan", "-f", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    [placed] = json.loads(result.output)["assignments"]
    assert placed["node"] in ("n2", "n3")  # the fuller nodes are those of the other rack
