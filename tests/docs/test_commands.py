"""Every command of the README and of docs/guides/getting-started.md, run as it stands there, against the real thing.

What is said of a sample cluster is asked of the one that `make demo` starts. What is said of a cluster goes to a real
API server through real helm and kubectl; what a kubelet would do (start what the chart has installed, end pods) is
played.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from extender.core.faces import faces
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import answers, clean_environment, free_port, start_process, wait_until
from tests.docs.kubectl import find_kubectl
from tests.docs.kubelets import Kubelet
from tests.docs.pages import DOCS, README, ROOT, Command, commands, outputs, sections
from tests.install.helm import find_helm

GETTING_STARTED = (DOCS / "guides" / "getting-started.md").read_text()
ADDRESS = "http://localhost:8888"
NAMESPACE = "kerf-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kerf"
BIN = Path(sys.executable).parent
WITHIN_S = 30.0
MAKE_DEMO = ["make", "-C", str(ROOT), "demo"]

ELSEWHERE = {
    "make demo": "started by the fixture `demo`",
    "make test": "the run that this test is a part of",
    "make image": "tests/install/test_image.py runs the steps of the Dockerfile, tests/realnode what they make",
    "docker push": "there is no registry",
    "kubectl -n kerf-system port-forward": "the kubelet forwards; kerf is asked where it listens",
}
"""Commands that are not run here, by how they begin, and why."""


@dataclass
class Shell:
    """Runs commands one by one, and keeps what they printed."""

    url: str
    """Of Kerf, wherever a page has its address."""
    environment: Mapping[str, str] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)

    def run(self, command: Command, expected: str = "") -> str:
        """What a command prints; tried again until that is what is expected. Fails as the command does."""
        text = command.text.replace(ADDRESS, self.url)
        own = {"PATH": f"{BIN}:{os.environ['PATH']}", "KERF_SERVER_URL": self.url}
        environment = clean_environment(**{**own, **self.environment})

        def attempt() -> subprocess.CompletedProcess[str] | None:
            result = subprocess.run(
                ["bash", "-c", text], check=False, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment
            )
            assert result.returncode == command.status, f"{text}\n{result.stdout}{result.stderr}"
            return result if re.search(expected, result.stdout) else None

        result = wait_until(attempt, WITHIN_S, f"{text!r} prints {expected!r}", interval_s=0.2)
        assert result is not None
        self.printed[command.text] = result.stdout
        return result.stdout

    def said(self, start: str) -> str:
        """What the first command that begins so has printed."""
        return next(printed for text, printed in self.printed.items() if text.startswith(start))


def runs_here(command: Command) -> bool:
    """Whether a command is run by these tests."""
    return not any(command.text.startswith(start) for start in ELSEWHERE)


def test_what_make_test_is_given_does_not_reach_make_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test ARGS="-k words"` exports its own variables to every `make` below it."""
    monkeypatch.setenv("ARGS", "--words")
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--words")

    def words(environment: Mapping[str, str]) -> str:
        """What `make demo` would run."""
        command = [*MAKE_DEMO, "--dry-run"]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=dict(environment)).stdout

    assert "--words" in words(os.environ)
    assert "kerf demo" in words(clean_environment())
    assert "--words" not in words(clean_environment())


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Shell]:
    """A shell beside a running `make demo`."""
    if not (ROOT / ".venv" / ".kerf-setup").exists():
        pytest.skip("`make demo` would set up a .venv here: run the tests by `make test`")
    port = free_port()
    url = f"http://localhost:{port}"
    process = start_process("demo", MAKE_DEMO, tmp_path / "demo.log", url, clean_environment(KERF_PORT=str(port)))
    try:
        process.wait_ready(lambda: answers(f"{url}/readyz"))
        yield Shell(url)
    finally:
        process.stop(grace_s=5)


def check_output(shell: Shell, text: str) -> None:
    """What a page shows of an output is what was printed; `...` stands for more."""
    for block, lines in outputs(text):
        printed = " ".join("".join(shell.printed[command.text] for command in block).split())
        for line in lines:
            shown = " ".join(line.partition("...")[0].split()).rstrip(",")
            assert shown in printed, f"{shown!r} is not in {printed!r}"


def test_the_readme_on_a_sample_cluster(demo: Shell) -> None:
    text = README.read_text()
    assert re.findall(r"http://localhost:\d+", text)[0] == ADDRESS
    for command in filter(runs_here, commands(sections(text)["Try it"])):
        demo.run(command)
    check_output(demo, text)
    assert json.loads(demo.said(f"curl -s {ADDRESS}/filter"))["NodeNames"] == ["a100-0"]


def test_getting_started_on_a_sample_cluster(demo: Shell) -> None:
    text = sections(GETTING_STARTED)["On your machine: a sample cluster"]
    for command in filter(runs_here, commands(text)):
        demo.run(command)
    check_output(demo, text)
    assert json.loads(demo.said(f"curl -s {ADDRESS}/bind")) == {"Error": ""}
    sentences = r"rank equal; the first by name|On a100-0: 1 GPU left over|a100-0 has 3 GPUs free and would keep 1"
    assert re.search(sentences, demo.said("kerf explain default/train-0"))
    assert "used by unknown processes" in demo.said("kerf explain default/train-1")
    assert "would find a node" in demo.said("kerf what-if")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Shell]:
    """A shell with helm and kubectl for a cluster with GPU nodes, on which a kubelet is played."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in (find_helm(), find_kubectl()):
        (tools / tool.name).symlink_to(tool)
    with ExitStack() as running:
        users = {"kerf": ACCOUNT, "scheduler": ACCOUNT}
        plane = running.enter_context(ControlPlane(tmp_path / "plane", users=users))
        plane.apply(
            gpu_node("a100-0"),
            gpu_node("v100-0", 4, product="Tesla-V100-SXM2-32GB", memory_mib=32510),
            cpu_node("cpu-0"),
        )
        kubelet = running.enter_context(Kubelet(plane, NAMESPACE))
        homes = {f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
        yield Shell(
            kubelet.url,
            {
                **homes,
                "PATH": f"{tools}:{BIN}:{os.environ['PATH']}",
                "KUBECONFIG": str(plane.kubeconfig("admin")),
            },
        )


EXPECTED = {
    "kubectl get pod one-gpu": r"^\d$",
    "kubectl get events": r"needs 1 GPU with 500 GiB, best here: ",
    "kubectl kerf explain": r"default/too-big: pending",
    "kubectl kerf top": r"a100-0",
}
"""What commands print, by how they begin, once the scheduler has got so far."""


@pytest.mark.e2e
@pytest.mark.controlplane
@pytest.mark.slow
def test_getting_started_in_a_cluster(cluster: Shell) -> None:
    for command in filter(runs_here, commands(sections(GETTING_STARTED)["In a cluster"])):
        start = next((start for start in EXPECTED if command.text.startswith(start)), "")
        cluster.run(command, EXPECTED.get(start, ""))
    assert "schedulerName: kerf-scheduler" in cluster.said("helm install")
    assert "successfully rolled out" in cluster.said("kubectl -n kerf-system rollout")
    assert "500 GiB" in cluster.said("kubectl kerf explain")


def test_every_command_is_run_here_or_elsewhere() -> None:
    """Those of parts of the pages that no test above goes through would be forgotten."""
    gone_through = [sections(README.read_text())["Try it"], *sections(GETTING_STARTED).values()]
    run = {command.text for part in gone_through for command in commands(part)}
    told = [*commands(README.read_text()), *commands(GETTING_STARTED)]
    assert not [command.text for command in told if command.text not in run]
    assert not [start for start in ELSEWHERE if not any(command.text.startswith(start) for command in told)]


def test_the_commands_that_open_all_gates_without_kerf(tmp_path: Path) -> None:
    page = (DOCS / "guides" / "queueing.md").read_text()
    (opening,) = (block for block in re.findall(r"^```sh\n(.*?)^```$", page, re.S | re.M) if "kubectl patch" in block)
    gate, other = {"name": "kerf.dev/queue"}, {"name": "example.com/other"}
    with ControlPlane(tmp_path) as plane:
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        created: tuple[tuple[str, str, list[dict[str, str]]], ...] = (
            ("team", "one", [gate]),
            ("default", "two", [other, gate]),
            ("team", "none", []),
        )
        for namespace, name, gates in created:
            body = pod(name, namespace=namespace, schedulingGates=gates)
            plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        environment = os.environ | {
            "PATH": f"{find_kubectl().parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig()),
        }
        result = subprocess.run(["bash", "-c", opening], check=True, capture_output=True, text=True, env=environment)
        left = {item["metadata"]["name"]: item["spec"] for item in plane.request("GET", "/api/v1/pods")["items"]}
    assert result.stdout.count("patched") == 2
    gates_left = {name: spec.get("schedulingGates", []) for name, spec in left.items()}
    assert gates_left == {"one": [], "two": [other], "none": []}


def test_every_command_is_on_its_page() -> None:
    """Those of the kernel on that of commands, those of parts on their own (`tests/parts/test_parts.py`)."""
    page = (DOCS / "reference" / "cli.md").read_text().partition("\n## ")[0]
    of_parts = {command for face in faces().values() for command in face.commands}
    shown = subprocess.run([BIN / "kerf", "--help"], check=True, capture_output=True, text=True).stdout
    commands_of_kerf = set(re.findall(r"^│ ([a-z][a-z-]*) ", shown.partition("Commands")[2], re.MULTILINE))
    assert commands_of_kerf - of_parts == set(re.findall(r"`kerf ([a-z][a-z-]*)", page)) - of_parts
