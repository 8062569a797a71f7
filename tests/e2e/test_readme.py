"""The README's command lines, run as they stand there against what `make demo` starts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.service.settings import describe_settings
from tests.controlplane.processes import answers, free_port, start_process
from tests.e2e.clusters import ROOT

README = (ROOT / "README.md").read_text()
ADDRESS = "http://localhost:8888"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[str]:
    """The address of a running demo."""
    port = free_port()
    url = f"http://localhost:{port}"
    environment = os.environ | {"KERF_PORT": str(port)}
    process = start_process("demo", [sys.executable, "-m", "extender", "demo"], tmp_path / "demo.log", url, environment)
    try:
        process.wait_ready(lambda: answers(f"{url}/readyz"))
        yield url
    finally:
        process.stop(grace_s=5)


def test_the_first_localhost_address_is_the_service() -> None:
    assert re.findall(r"http://localhost:\d+", README)[0] == ADDRESS


def test_every_curl_line_works(demo: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    commands = [line for block in blocks for line in re.split(r"\n(?=curl)", block) if line.startswith("curl")]
    assert len(commands) >= 6
    answers_of = {}
    for command in commands:
        result = subprocess.run(
            ["bash", "-c", command.replace(ADDRESS, demo)], capture_output=True, text=True, check=True, timeout=20
        )
        answers_of[re.findall(rf"{ADDRESS}/(\w+)", command)[0]] = result.stdout
    answer = json.loads(answers_of["filter"])
    assert answer["NodeNames"] == ["a100-0"]
    assert answers_of["filter"].startswith(re.findall(r"```json\n(.*?), \.\.\.", README)[0])
    assert json.loads(answers_of["bind"]) == {"Error": ""}
    assert json.loads(answers_of["explain"])["node"] == "a100-0"
    scores = {line["Host"]: line["Score"] for line in json.loads(answers_of["prioritize"])}
    assert max(scores.values()) == 10
    assert json.loads(answers_of["readyz"]) == {"status": "ok"}
    assert "kerf_gpu_units_free" in answers_of["metrics"]


def test_configuration_page_is_what_the_command_prints() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text().endswith(describe_settings().rstrip() + "\n")
