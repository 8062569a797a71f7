"""Kerf works after a part's folder, line and tests are removed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from extender.parts import NAMES
from tests.api import bodies
from tests.docs.pages import ROOT, tracked

UNIT_S = 3600.0
"""Time limit of the other tests, on a busy machine."""
TESTED_WITH = {"what_if": ("missing",)}
"""By part: parts that can't be enabled without it. Their tests are removed too, but not their code."""
ANSWERS_WITHIN_S = 60.0


class Checkout:
    """A copy of this checkout without some parts."""

    def __init__(self, folder: Path, without: Sequence[str]) -> None:
        self.folder = folder
        for path in tracked():
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        listed = folder / "extender" / "parts" / "__init__.py"
        tested_with = (other for name in without for other in TESTED_WITH.get(name, ()))
        for name in {*without, *tested_with}:
            shutil.rmtree(folder / "tests" / "parts" / name)
        for name in without:
            shutil.rmtree(listed.parent / name)
            lines = listed.read_text().splitlines(keepends=True)
            kept = [line for line in lines if f'"{name}"' not in line]
            assert len(kept) == len(lines) - 1, f"a part is one line of {listed.name}"
            listed.write_text("".join(kept))

        self._environment = {**os.environ, "PYTHONPATH": str(folder)}

    def start(self, *command: str, log: IO[str]) -> "subprocess.Popen[str]":
        """Start Python there, with its output in a log."""
        python = [sys.executable, *command]
        return subprocess.Popen(python, cwd=self.folder, env=self._environment, text=True, stdout=log, stderr=log)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run Python there until it ends."""
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=UNIT_S,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "without",
    [
        pytest.param(NAMES, id="all"),
        *(
            pytest.param((name,), id=name, marks=pytest.mark.nightly(of=("extender/parts/__init__.py",)))
            for name in NAMES
        ),
    ],
)
def test_kerf_works_without(without: Sequence[str], tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, without)
    the_demo_answers(checkout)
    the_other_tests_pass(checkout)


def the_demo_answers(checkout: Checkout) -> None:
    """`kerf demo` is ready, decides and shows its page."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = checkout.folder / "demo.log"
    with said.open("w") as log:
        demo = checkout.start("-m", "extender", "demo", "--port", str(port), log=log)
    try:
        told = asked(port, "/nodes?gpus=true", demo, said)
        names = [node["node"] for node in told["items"]]
        answer = asked(port, "/filter", demo, said, bodies.args(bodies.pod("a", 1), names))
        assert len(answer["NodeNames"]) == 1
        with urlopen(f"http://127.0.0.1:{port}/", timeout=10.0) as page:
            assert page.status == 200
    finally:
        demo.terminate()
        demo.wait(30.0)


def asked(port: int, path: str, demo: "subprocess.Popen[str]", said: Path, body: bytes | None = None) -> Any:
    """The answer, once the demo accepts connections."""
    until = time.monotonic() + ANSWERS_WITHIN_S
    while True:
        try:
            request = Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": "application/json"})
            with urlopen(request, timeout=10.0) as answer:
                return json.load(answer)
        except URLError:
            assert demo.poll() is None, said.read_text()
            assert time.monotonic() < until, "it does not answer"
            time.sleep(0.1)


def the_other_tests_pass(checkout: Checkout) -> None:
    """Runs the tests of `make test-unit`."""
    makefile = (checkout.folder / "Makefile").read_text().partition("UNIT := $(addprefix tests/,")[2].partition(")")[0]
    folders = [f"tests/{name}" for name in makefile.replace("\\\n", " ").split()]
    quick = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick")
    fast = ("-m", "not controlplane and not e2e and not slow and not nightly")
    told = checkout.run("-m", "pytest", *quick, *fast, *folders)
    assert told.returncode == 0, told.stdout[-10_000:]
