"""The Dockerfile's steps, run without a container engine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from extender import __version__
from tests.controlplane.kerf import ROOT
from tests.controlplane.processes import clean_environment

pytestmark = pytest.mark.nightly(of=("Dockerfile", "pyproject.toml", "requirements/", "release/", "tests/install/"))

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


def make_image(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(ROOT), "--no-print-directory", "image", *arguments]
    environment = clean_environment(**variables)
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def printing(folder: Path, name: str) -> str:
    """A builder that prints what it is told."""
    program = folder / name
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    return f"BUILDER={program}"


def test_make_image_takes_what_works_and_says_so_where_nothing_does(tmp_path: Path) -> None:
    built = make_image(printing(tmp_path, "builder"), "IMAGE=registry/kerf:1", "BASE=debian", "ARGS=--quiet")
    words = built.stdout.split()
    assert words[:3] == ["build", "--tag", "registry/kerf:1"]
    assert words[words.index("--build-arg") + 1] == "BASE=debian"
    assert words[-2:] == ["--quiet", "."]
    none = make_image("BUILDER=")
    assert none.returncode != 0
    assert "needs docker, podman or buildah" in none.stderr


@pytest.mark.parametrize(
    ("builder", "start"),
    [
        ("docker", "buildx build --platform linux/amd64,linux/arm64 --tag registry/kerf:1 "),
        ("buildah", "build --platform linux/amd64,linux/arm64 --manifest registry/kerf:1 "),
        ("podman", "build --platform linux/amd64,linux/arm64 --manifest registry/kerf:1 "),
    ],
)
def test_make_image_builds_for_several_platforms_as_each_builder_does(tmp_path: Path, builder: str, start: str) -> None:
    """Only docker needs another program for it; the others name a list of images, not one."""
    printing(tmp_path, builder)
    where = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    platforms = "PLATFORMS=linux/amd64,linux/arm64"
    built = make_image(f"BUILDER={builder}", "IMAGE=registry/kerf:1", platforms, **where)
    assert built.stdout.startswith(start), built.stderr


def labels_of(words: list[str]) -> dict[str, str]:
    """What an image is told to say of itself."""
    given = [words[index + 1] for index, word in enumerate(words) if word == "--label"]
    return {
        name.removeprefix("org.opencontainers.image."): value for name, _, value in (x.partition("=") for x in given)
    }


def test_an_image_says_which_version_of_which_commit_and_time_it_is(tmp_path: Path) -> None:
    builder, at = printing(tmp_path, "builder"), {"SOURCE_DATE_EPOCH": "1795241852"}
    labels = labels_of(make_image(builder, "BASE=debian:12", **at).stdout.split())
    assert labels.keys() == {"version", "revision", "created", "base.name"}
    assert labels["version"] == __version__
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["revision"])
    assert (labels["created"], labels["base.name"]) == ("2026-11-21T06:17:32Z", "debian:12")
    dated = labels_of(make_image(builder).stdout.split())
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", dated["created"])  # of the commit
    # Where the source is only whoever publishes it knows.
    source = labels_of(make_image(builder, "SOURCE=https://forge.example/o/r").stdout.split())
    assert source["source"] == "https://forge.example/o/r"
    assert re.findall(r'org\.opencontainers\.image\.(\w+)="', DOCKERFILE) == ["title", "description", "licenses"]


def test_what_each_purpose_installs_is_in_the_build() -> None:
    """Of requirements the builder is sent only what .dockerignore lets through."""
    let_through = set(re.findall(r"^!(requirements/.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    purposes = {f"requirements/{name}.txt" for name in ("serve", "fit")}
    assert let_through == purposes | {"requirements/build.txt"}


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
