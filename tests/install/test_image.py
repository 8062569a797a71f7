"""The Dockerfile's steps, run without a container engine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.kerf import ROOT
from tests.controlplane.processes import clean_environment

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def steps() -> list[str]:
    """The RUN instructions, their lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(r"^RUN (.*)$", joined, re.MULTILINE)


def test_two_stages_no_root_and_the_service_s_own_dependencies_alone() -> None:
    assert re.search(r"^ARG BASE=python:\S+-slim$", DOCKERFILE, re.MULTILINE)
    assert len(re.findall(r"^FROM \$\{BASE\}", DOCKERFILE, re.MULTILINE)) == 2
    assert re.search(r"^USER (\d+)", DOCKERFILE, re.MULTILINE)
    serving = (ROOT / "requirements" / "serve.txt").read_text()
    for name in ("torch", "gymnasium", "pytest", "matplotlib"):
        assert not re.search(rf"^{name}==", serving, re.MULTILINE), f"{name} is in the serving image"


def make_image(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(ROOT), "--no-print-directory", "image", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=clean_environment())


def test_make_image_takes_what_works_and_says_so_where_nothing_does(tmp_path: Path) -> None:
    printing = tmp_path / "builder"
    printing.write_text('#!/bin/sh\necho "$@"\n')
    printing.chmod(0o755)
    built = make_image(f"BUILDER={printing}", "IMAGE=registry/kerf:1", "BASE=debian", "ARGS=--quiet")
    assert built.stdout.strip() == "build --tag registry/kerf:1 --build-arg BASE=debian --quiet ."
    none = make_image("BUILDER=")
    assert none.returncode != 0
    assert "needs docker, podman or buildah" in none.stderr


@pytest.mark.slow
def test_what_the_image_holds_serves(tmp_path: Path) -> None:
    """Each step as it stands there, with the image's folders below a temporary one and this Python for the image's."""
    source = tmp_path / "src"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "extender", "model", "requirements"):
        assert re.search(rf"^COPY .*\b{re.escape(name)}", DOCKERFILE, re.MULTILINE), f"{name} is not copied"
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    for step in steps():
        command = re.sub(r"(/opt|/dist)\b", rf"{tmp_path}\1", step).replace(
            "python -m venv", f"{sys.executable} -m venv"
        )
        result = subprocess.run(
            ["bash", "-euc", command],
            check=False,
            capture_output=True,
            text=True,
            cwd=source,
            env=_environment(),
        )
        assert result.returncode == 0, f"{step}\n{result.stderr[-2000:]}"
    kerf = str(tmp_path / "opt" / "kerf" / "bin" / "kerf")
    shown = subprocess.run([kerf, "version"], check=True, capture_output=True, text=True, cwd="/")
    assert shown.stdout.strip()
    packages = {path.name for path in (tmp_path / "opt" / "kerf" / "lib").glob("python3*/site-packages/*")}
    assert "extender" in packages
    assert not packages & {"torch", "pip", "pytest"}


def _environment() -> dict[str, str]:
    """This process's variables without those of its own virtual environment."""
    own = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    arguments = dict(re.findall(r"^ARG (FOR)=(\S+)$", DOCKERFILE, re.MULTILINE))
    return {**{key: value for key, value in os.environ.items() if key not in own}, **arguments}
