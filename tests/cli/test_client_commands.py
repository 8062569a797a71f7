"""Commands that ask a running Kerf, against a demo."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import ssl
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from extender.cli.client import kubectl_plugin
from extender.cli.main import app
from tests.api.bodies import args, pod
from tests.api.demos import Demo, demo_here
from tests.api.processes import request
from tests.controlplane.processes import wait_until
from tests.telemetry.servers import serving

PENDING, UNKNOWN, UNCHECKED, USAGE, FAILED = 3, 4, 5, 2, 1


pytestmark = pytest.mark.usefixtures("answered_here")


@pytest.fixture(scope="module")
def server() -> Iterator[Demo]:
    """A demo that has decided on two pods: one placed, one that asks for more than its candidates have."""
    with demo_here() as server:
        with server.connection() as connection:
            for name, gpus in (("placed", 1), ("pending", 8)):
                body = args(pod(name, gpus), ["a100-0", "t4-1", "cpu-0"])
                assert request(connection, "POST", "/filter", body).status == 200
        yield server


def kerf(server: Demo, *arguments: str, text: str | None = None) -> Result:
    """A command that asks the demo, with a text on standard input."""
    environment = {"KERF_SERVER_URL": f"http://127.0.0.1:{server.port}"}
    return CliRunner().invoke(app, [*arguments], env=environment, input=text)


def test_explain_a_placed_pod(server: Demo) -> None:
    result = kerf(server, "explain", "default/placed")
    assert result.exit_code == 0, result.output
    assert "default/placed: placed on " in result.output
    assert "\nOn a100-0, the only one of 3 candidates with room.\n" in result.output
    assert "1 x needs 1 GPU, no GPUs here" in result.output
    assert "now: " in result.output


@pytest.mark.parametrize(
    "answer", [(404, b"page not found"), (404, b'{"detail": "Not Found"}'), (200, b"[]"), (200, b"{}")]
)
@pytest.mark.parametrize("command", [["top", "--once"], ["pending"], ["usage"]])
def test_what_is_not_kerf_is_called_so(command: list[str], answer: tuple[int, bytes]) -> None:
    with serving(lambda *_: answer) as other:
        result = CliRunner().invoke(app, [*command, "--server", other.url])
    assert result.exit_code == FAILED
    assert f"the server at {other.url} is not Kerf" in result.output


def test_no_ca_files_are_read_for_http(server: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self, *_: loads.append(self))
    assert kerf(server, "pending").exit_code == 0
    assert not loads


def test_who_has_to_send_a_token_is_told_how(tmp_path: Path) -> None:
    refusal = (401, b'{"detail": "send a token, as `Authorization: Bearer TOKEN`"}')
    token = tmp_path / "token"
    token.write_text("t")
    with serving(lambda *_: refusal) as guarded:
        bare = CliRunner().invoke(app, ["top", "--once", "--server", guarded.url])
        sent = CliRunner().invoke(
            app, ["top", "--once", "--server", guarded.url], env={"KERF_SERVER_TOKEN_FILE": str(token)}
        )
    assert (bare.exit_code, sent.exit_code) == (FAILED, FAILED)
    assert "send a token" in bare.output
    assert "; set KERF_SERVER_TOKEN_FILE to a file with the token" in bare.output
    assert "(KERF_SERVER_TOKEN_FILE)" in sent.output


def test_explain_by_another_policy(server: Demo) -> None:
    result = kerf(server, "explain", "default/placed", "--policy", "binpack")
    assert result.exit_code == 0, result.output
    assert "By policy binpack: On " in result.output
    assert "part of its GPUs that is not free" in " ".join(result.output.split())
    unknown = kerf(server, "explain", "default/placed", "--policy", "nosuch")
    assert unknown.exit_code == USAGE
    assert '"nosuch" is not a policy; use one of tightest, ' in unknown.output


@pytest.mark.parametrize("arguments", [["default/pending"], ["pending"], ["pending", "-n", "default"]])
def test_explain_a_pending_pod(server: Demo, arguments: list[str]) -> None:
    result = kerf(server, "explain", *arguments)
    assert result.exit_code == PENDING, result.output
    assert "default/pending: pending" in result.output
    assert "needs 8 GPUs, best here: 2 installed" in result.output
    assert "\nneeds 8 GPUs; a100-0 has " in result.output
    assert "What helps\n  - a100-1 has room, but was not offered: its node selector, " in result.output
    assert "  - wait for default/job-" in result.output
    assert "It would fit with" in result.output
    assert "GPUs instead of 8: " in result.output


def test_explain_lists_first_where_others_are_in_the_way(server: Demo) -> None:
    """Not what has most of another kind free."""
    result = kerf(server, "explain", "default/train-2")
    listed = result.output.partition("\nNODE")[2].splitlines()[1:]
    names = [line.split()[0] for line in listed if line]
    assert names[:3] == ["h100-1", "h100-4", "h100-5"]
    assert names.index("t4-shared-0") > 5


def test_explain_as_data(server: Demo) -> None:
    as_json = kerf(server, "explain", "default/pending", "-o", "json")
    assert as_json.exit_code == PENDING
    as_yaml = kerf(server, "explain", "default/pending", "-o", "yaml")
    told, again = json.loads(as_json.output), yaml.safe_load(as_yaml.output)
    assert told["verdict"] == again["verdict"] == "rejected"
    assert told["reasons"] == again["reasons"]


def test_explain_a_pod_of_which_nothing_is_known(server: Demo) -> None:
    result = kerf(server, "explain", "default/nobody")
    assert result.exit_code == UNKNOWN
    assert "no recent decision about pod default/nobody" in result.output
    assert "there is no pod of that name" in result.output


def test_explain_a_running_pod_of_which_no_decision_is_kept(server: Demo) -> None:
    result = kerf(server, "explain", "default/job-8")
    assert result.exit_code == 0, result.output
    where, has, why, *rest = result.output.splitlines()
    assert re.fullmatch(r"default/job-8: running on h100-\d, GPU \d(, \d)*", where)
    assert re.fullmatch(r"\d x h100-80gb-hbm3(, load \d+ %)?, \w+ old, of \w+/[-\w]+", has)
    assert (why, rest) == (
        "no decision about it is kept: Kerf keeps the last 128 that it has made since it started",
        [],
    )


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["a/b/c"], id="two slashes"),
        pytest.param(["/name"], id="no namespace"),
        pytest.param(["default/"], id="no name"),
        pytest.param(["default/name", "-n", "other"], id="two namespaces"),
        pytest.param(["default/name", "--server", "localhost:8888"], id="no scheme"),
        pytest.param(["default/name", "--server", "file:///etc/passwd"], id="another scheme"),
        pytest.param(["default/name", "-o", "xml"], id="no such form"),
        pytest.param([], id="nothing"),
    ],
)
def test_wrong_usage(server: Demo, arguments: list[str]) -> None:
    assert kerf(server, "explain", *arguments).exit_code == USAGE


def test_nobody_answers() -> None:
    result = CliRunner().invoke(app, ["explain", "default/name", "--server", "http://127.0.0.1:1"])
    assert result.exit_code == FAILED
    assert "can't reach Kerf at http://127.0.0.1:1" in result.output
    assert "port-forward" in result.output


POD = """
kind: Pod
metadata: {name: train}
spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    """A pod that asks for 8 GPUs."""
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return str(path)


def test_what_if(server: Demo, manifest: str) -> None:
    result = kerf(server, "what-if", "-f", manifest)
    assert result.exit_code == 0, result.output
    assert "1 of 1 pods would find a node, with 8 GPUs" in result.output
    result = kerf(server, "what-if", "-f", manifest, "--replicas", "40")
    assert result.exit_code == PENDING, result.output
    assert "would stay pending" in result.output
    assert "x needs 8 GPUs, best node: " in result.output


def test_what_if_with_other_nodes(server: Demo, manifest: str) -> None:
    asked = ["what-if", "-f", manifest, "--replicas", "30", "--add-node", "h100-0=40", "-o", "json"]
    told = json.loads(kerf(server, *asked).output)
    assert (told["placed"], told["unassigned"]) == (30, [])
    told = json.loads(kerf(server, "what-if", "--drain", "a100-0", "-o", "json").output)
    assert told["moved"]
    assert all(entry["node"] != "a100-0" for entry in told["assignments"])
    assert (
        "there are no pods to place: none is pending or on a drained node"
        in kerf(server, "what-if", "--drain", "cpu-0").output
    )


def test_what_if_finds_the_nodes_that_are_missing(server: Demo, manifest: str, tmp_path: Path) -> None:
    result = kerf(server, "what-if", "-f", manifest, "--replicas", "10", "--add-node", "auto")
    assert result.exit_code == 0, result.output
    assert re.search(r"missing: \d+ nodes of 8 x ", result.output)
    told = json.loads(kerf(server, "what-if", "--waiting", "--add-node", "auto", "-o", "json").output)
    assert {"nodes", "sentence", "stillUnplaced"} <= told["missing"].keys()
    path = tmp_path / "node.yaml"
    path.write_text(NODE)
    told = json.loads(
        kerf(server, "what-if", "-f", f"{path}", "-f", manifest, "--add-node", "auto", "-o", "json").output
    )
    assert told["missing"]["nodes"] == [], "what is given is a candidate, and added where it is missing alone"
    assert kerf(server, "what-if", "-f", f"{path}", "-f", manifest).exit_code == 0


UNCHECKED_POD = """
kind: Pod
metadata: {name: train}
spec:
  runtimeClassName: nvidia
  containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]
"""


def test_what_if_says_by_its_status_that_it_did_not_look_at_everything(server: Demo, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(UNCHECKED_POD)
    result = kerf(server, "what-if", "-f", f"{path}")
    assert result.exit_code == UNCHECKED, result.output
    assert "1 of 1 pods would find a node" in result.output
    assert "not checked: what its RuntimeClass adds to it (1 pod)" in result.output
    assert kerf(server, "what-if", "-f", f"{path}", "--replicas", "40").exit_code == PENDING
    told = json.loads(kerf(server, "what-if", "-f", f"{path}", "-o", "json").output)
    assert told["notChecked"] == {"what its RuntimeClass adds to it": 1}


def test_what_if_of_what_the_api_server_would_refuse(server: Demo, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD.replace("nvidia.com/gpu", "gpu"))
    result = kerf(server, "what-if", "-f", f"{path}")
    assert result.exit_code == USAGE, result.output
    assert "the API server refuses it: gpu: not a standard resource" in result.output
    path.write_text(POD.replace("nvidia.com/gpu", "amd.com/gpu"))
    result = kerf(server, "what-if", "-f", f"{path}")
    assert result.exit_code == PENDING, result.output
    assert "1 x no node has amd.com/gpu" in result.output


JOB = """
# of two documents
kind: Service
metadata: {name: train}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  template:
    spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}
"""


def test_what_if_of_a_job_from_standard_input_and_of_several_files(server: Demo, manifest: str) -> None:
    result = kerf(server, "what-if", "-f", "-", "-f", manifest, text=JOB)
    assert result.exit_code == 0, result.output
    assert "3 of 3 pods would find a node, with 24 GPUs" in result.output
    assert re.search(r"^Job default/train: 2 of 2 pods; on \S+ \(1\), \S+ \(1\)$", result.output, re.MULTILINE), (
        result.output
    )
    assert "left out, as they create no pods: Service train" in result.output
    told = json.loads(kerf(server, "what-if", "-f", manifest, "-f", "-", "-o", "json", text=JOB).output)
    places = [entry["place"] for entry in told["objects"]]
    assert places == [f"{manifest}: document 1", "standard input: document 2"]
    result = kerf(server, "what-if", "-f", "-", "--replicas", "20", text=JOB)
    assert result.exit_code == PENDING
    assert re.search(r"^Job default/train-19: 0 of 2 pods; pending: needs 8 GPUs, best", result.output, re.MULTILINE)


def test_nodes_are_added_for_the_pods_that_wait_where_nothing_else_is_asked_about(server: Demo) -> None:
    told = json.loads(kerf(server, "what-if", "--add-node", "h100-0=2", "-o", "json").output)
    assert told["pods"] == json.loads(kerf(server, "what-if", "--waiting", "-o", "json").output)["pods"]


def test_room_is_made_for_the_pods_of_a_job(server: Demo) -> None:
    result = kerf(server, "defrag", "-f", "-", text=JOB.replace("parallelism: 2", "parallelism: 1"))
    assert result.exit_code == 0, result.output
    result = kerf(server, "defrag", "-f", "-", text=JOB.replace("parallelism: 2", "parallelism: x"))
    assert result.exit_code == USAGE
    assert "standard input: document 2, line 10 (Job train): spec.parallelism: Expected `int" in result.output


NODE = """
metadata: {name: big}
kind: Node
status: {allocatable: {cpu: "64", memory: 512Gi, nvidia.com/gpu: 16}}
"""


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        pytest.param([], "nothing to place", id="nothing"),
        pytest.param(["-f", "/nowhere.yaml"], "/nowhere.yaml", id="no file"),
        pytest.param(["--drain", "moon"], "no node is named moon", id="no such node"),
        pytest.param(["--drain", "a100-0", "--add-node", "x=y"], "NODE=3", id="number"),
    ],
)
def test_wrong_what_ifs(server: Demo, arguments: list[str], fault: str) -> None:
    result = kerf(server, "what-if", *arguments)
    assert result.exit_code == USAGE
    assert fault in result.output


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param(JOB + "---\na: [1", "wrong.yaml: document 3, invalid YAML: ", id="syntax"),
        pytest.param(JOB + "---\nkind: Foo", "wrong.yaml: document 3, line 14 (Foo): kind: Foo is not", id="kind"),
        pytest.param(
            "kind: Service", "wrong.yaml: document 1, line 1 (Service): neither it nor any other object", id="no pods"
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(
    server: Demo, manifest: str, tmp_path: Path, text: str, fault: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    files = ["-f", manifest, "-f", str(path)] if "Foo" in text or "[" in text else ["-f", str(path)]
    result = kerf(server, "what-if", *files)
    assert result.exit_code == USAGE
    assert fault in result.output


def test_top_in_a_terminal_is_painted_again_and_again_until_interrupted(server: Demo) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 140, 0, 0))
    environment = os.environ | {"TERM": "xterm", "KERF_SERVER_URL": f"http://127.0.0.1:{server.port}"}
    # Interrupts are ignored by what a script has started in the background, and by all that this starts.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "extender", "top", "--interval", "0.5"]
    seen = ""

    def read_on() -> None:
        """Nobody can write to a terminal that nobody reads."""
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # its other end is closed
                seen += os.read(ours, 65536).decode(errors="replace")

    def painted() -> int:
        read_on()
        return len(re.findall(r"\d+ nodes, \d+ with GPUs", seen))

    def has_ended() -> bool:
        read_on()
        return process.poll() is not None

    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        try:
            os.close(theirs)
            wait_until(lambda: painted() >= 3, 60.0, "it is painted three times")
            process.send_signal(signal.SIGINT)
            wait_until(has_ended, 30.0, "it has ended")
            assert process.returncode == 0
        finally:
            process.kill()
    os.close(ours)
    assert "more nodes (--once prints all)" in seen, "no more rows than the screen has"
    assert "Traceback" not in seen


def test_top(server: Demo) -> None:
    result = kerf(server, "top", "--once")
    assert result.exit_code == 0, result.output
    assert " GPUs booked" in result.output
    assert "h100-0" in result.output
    assert "cpu-0" not in result.output
    assert "cpu-0" in kerf(server, "top", "--all").output
    told = json.loads(kerf(server, "top", "-o", "json").output)
    assert len(told["items"]) == told["totals"]["gpuNodes"] == 34


def test_the_kubectl_plugin(server: Demo) -> None:
    environment = {"KERF_SERVER_URL": f"http://127.0.0.1:{server.port}"}
    for arguments in (["top", "--once"], ["what-if", "--drain", "cpu-0"], ["explain", "default/placed"]):
        result = CliRunner().invoke(kubectl_plugin.app, arguments, env=environment)
        assert result.exit_code == 0, result.output
