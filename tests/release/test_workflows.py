"""The workflows: actionlint, permissions, and each step of a release as it runs."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.__main__ import parser
from release.krew import PLATFORMS
from tests.controlplane.binaries import BuildError, cached, go_command
from tests.docs.pages import ROOT, tracked
from tests.install.helm import Helm, find_helm
from tests.install.licences import locked
from tests.release.steps import WORKFLOWS, Runner, load, steps_of
from tests.telemetry.servers import serving

_OF = ("release/", ".github/", "Dockerfile", "Makefile", "pyproject.toml", "requirements/", "manifests/helm/")
pytestmark = [pytest.mark.slow, pytest.mark.nightly(of=(*_OF, "tests/release/"))]

NAMES = sorted(path.name for path in WORKFLOWS.iterdir())
VERSION = "0.1.0"
DIGESTS = {name: f"sha256:{hashlib.sha256(name.encode()).hexdigest()}" for name in ("base", "serve", "fit", "chart")}
CONTEXTS = {
    "github.ref": f"refs/tags/v{VERSION}",
    "github.ref_name": f"v{VERSION}",
    "github.repository": "Example/Kerf",
    "github.server_url": "https://forge.example",
    "github.token": "a-token",
    "vars.REGISTRY": "registry.example",
}
_ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"
_KREW = "sigs.k8s.io/krew/cmd/validate-krew-manifest@v0.4.3"


def find_program(package: str) -> Path:
    """A program built once from its Go module. Raises BuildError."""
    path, _, version = package.partition("@")
    name = path.rpartition("/")[2]

    def build(into: Path) -> None:
        command = [go_command(), "install", "-trimpath", package]
        environment = os.environ | {"CGO_ENABLED": "0", "GOBIN": str(into)}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise BuildError(f"go install of {name} failed:\n{done.stderr[-4000:]}")

    return cached(f"{name}-{version}", build) / name


def test_actionlint_finds_nothing() -> None:
    command = [str(find_program(_ACTIONLINT)), "-no-color", *(str(WORKFLOWS / name) for name in NAMES)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_actions_are_pinned_and_jobs_have_the_permissions_that_they_name() -> None:
    for name in NAMES:
        workflow = load(name)
        for line in (WORKFLOWS / name).read_text().splitlines():
            _, uses, action = line.partition("uses:")
            pinned = r"(?:\./\.github/.*|[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)"
            assert not uses or re.fullmatch(pinned, action.strip()), line
        assert workflow["permissions"] in ({}, {"contents": "read"})
        assert "pull_request_target" not in workflow["on"]
        for job in workflow["jobs"].values():
            assert "permissions" in job or workflow["permissions"]
        for _, step in steps_of(workflow):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_what_is_tested_is_what_is_tested_here() -> None:
    """CI and the release run what a change has to pass."""
    runs = [step["run"] for _, step in steps_of(load("ci.yaml")) if "run" in step]
    assert [run.split()[-1] for run in runs] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    release = load("release.yaml")["jobs"]
    assert release["test"]["uses"] == "./.github/workflows/ci.yaml"
    assert release["packages"]["needs"] == "test"


def test_the_sbom_is_made_with_the_python_that_the_image_has() -> None:
    """Some packages have another version for another Python."""
    (base,) = re.findall(r"^ARG BASE=python:(\S+)-slim$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    steps = load("release.yaml")["jobs"]["packages"]["steps"]
    pythons = [step["with"] for step in steps if step.get("uses", "").startswith("actions/setup-python@")]
    assert [python["python-version"] for python in pythons] == [base]


PLAYED = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([{name!r}, *words]) + "\\n")
{does}
"""
DOES = {
    "docker": """
if words[:3] == ["buildx", "imagetools", "inspect"]:
    print(json.dumps({"digest": DIGESTS["base"]}))
for word in words:
    if word.startswith("--metadata-file="):
        digest = DIGESTS["fit" if any("FOR=fit" == each for each in words) else "serve"]
        pathlib.Path(word.partition("=")[2]).write_text(json.dumps({"containerimage.digest": digest}))
""",
    "helm": """
if words[0] == "push":
    print("Pushed: registry.example/example/charts/kerf:0.1.0\\nDigest: " + DIGESTS["chart"])
else:
    import os
    os.execv(HELM, [HELM, *words])
""",
    "cosign": """
if "--bundle" in words:
    pathlib.Path(words[words.index("--bundle") + 1]).write_text("{}")
""",
    "gh": """
if words[:2] == ["release", "view"]:
    sys.exit(1)
""",
}
"""What is played, and what it does: nothing of it may leave this machine."""


class Release:
    """A checkout in which every step of release.yaml has run, and what was called meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self._log = folder / "log"
        self._log.touch()
        self.tools = folder / "tools"
        self.tools.mkdir()
        python = self.tools / "python3"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        for name in DOES:
            self.play(self.tools / name)
        copied = [path for path in tracked() if path.relative_to(ROOT).parts[0] not in ("docs", "tests", "model")]
        for path in [*copied, *tracked("model/*.py")]:
            target = self.checkout / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        changelog = self.checkout / "CHANGELOG.md"
        changelog.write_text(changelog.read_text().replace("## [Unreleased]", f"## [{VERSION}] - 2026-12-01"))
        git = partial(subprocess.run, check=True, capture_output=True, cwd=self.checkout)
        git(["git", "init", "--quiet"])
        git(["git", "add", "--all"])
        git(["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "--quiet", "-m", "All"])
        self.ran = Runner(self.checkout, self.tools, CONTEXTS).run(load("release.yaml"))

    def play(self, path: Path) -> None:
        """Put a program that notes what it is told in the place of one that would reach elsewhere."""
        does = f"DIGESTS = {DIGESTS!r}\nHELM = {str(find_helm())!r}\n{DOES[path.name]}"
        path.unlink(missing_ok=True)
        path.write_text(PLAYED.format(python=sys.executable, log=str(self._log), name=path.name, does=does))
        path.chmod(0o755)

    def calls(self, program: str, *words: str) -> list[list[str]]:
        """How a program was called with these words first."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line[1:] for line in lines if line[: 1 + len(words)] == [program, *words]]

    @property
    def dist(self) -> Path:
        return self.checkout / "dist"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(tmp_path_factory.mktemp("release"))


def test_every_step_of_a_release_runs(release: Release) -> None:
    """Each command that the workflow runs, in its order; and there is none that it does not run but `notes`."""
    (steps,) = (action.choices for action in parser()._actions if action.choices)  # noqa: SLF001
    assert set(release.ran) == set(steps or ()) - {"notes"}


def test_images_are_built_for_all_platforms_on_a_base_by_digest_and_pushed(release: Release) -> None:
    serve, fit = release.calls("docker", "buildx", "build")
    for words, name in ((serve, "registry.example/example/kerf"), (fit, "registry.example/example/kerf-fit")):
        assert words[words.index("--platform") + 1] == "linux/amd64,linux/arm64"
        assert words[words.index("--tag") + 1] == f"{name}:{VERSION}"
        assert f"BASE=python:3.12-slim@{DIGESTS['base']}" in words
        assert {"--push", "--sbom=true", "--provenance=mode=max"} <= set(words)
        labels = dict(word.split("=", 1) for word in words if word.startswith("org.opencontainers.image."))
        assert labels["org.opencontainers.image.version"] == VERSION
        assert labels["org.opencontainers.image.source"] == "https://forge.example/Example/Kerf"
        assert re.fullmatch(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["org.opencontainers.image.created"])
    assert "FOR=fit" in fit
    assert "FOR=fit" not in serve


def test_everything_that_is_pushed_is_signed_by_its_digest(release: Release) -> None:
    signed = [words[-1] for words in release.calls("cosign", "sign")]
    assert signed == [
        f"registry.example/example/kerf@{DIGESTS['serve']}",
        f"registry.example/example/kerf-fit@{DIGESTS['fit']}",
        f"registry.example/example/charts/kerf@{DIGESTS['chart']}",
    ]
    (attested,) = release.calls("cosign", "attest")
    assert attested[-1] == signed[0]
    assert json.loads(Path(attested[attested.index("--predicate") + 1]).read_text())["bomFormat"] == "CycloneDX"
    subjects = {
        step["with"]["subject-name"]
        for _, step in steps_of(load("release.yaml"))
        if "attest-build-provenance" in step.get("uses", "") and "subject-name" in step["with"]
    }
    assert len(subjects) == len(signed)


def test_the_published_chart_installs_those_images_by_digest_and_nothing_need_be_said(
    release: Release, tmp_path: Path
) -> None:
    (packed,) = release.dist.glob("kerf-*.tgz")
    learns = ("--set", "history.enabled=true,learning.enabled=true,history.volume.emptyDir=null")
    claim = ("--set", "history.volume.persistentVolumeClaim.claimName=h")
    template = ("template", "kerf", str(packed), "--kube-version", "v1.36.1")
    text = Helm(tmp_path)(*template, *learns, *claim)
    images = {
        line.split("image: ")[1] for line in text.splitlines() if " image: " in line and "kube-scheduler" not in line
    }
    assert images == {
        f"registry.example/example/kerf@{DIGESTS['serve']}", f"registry.example/example/kerf-fit@{DIGESTS['fit']}",
    }  # fmt: skip
    mine = Helm(tmp_path)(*template, "--set-string", "image.repository=mine/kerf,image.tag=7")
    assert "image: mine/kerf:7" in mine
    (pushed,) = release.calls("helm", "push")
    assert Path(pushed[1]).name == packed.name
    assert pushed[2] == "oci://registry.example/example/charts"


def test_the_sbom_has_what_the_image_s_python_has(release: Release) -> None:
    found = json.loads((release.dist / "kerf.cdx.json").read_text())
    held = {(item["name"].lower().replace("_", "-"), item["version"]) for item in found["components"]}
    lock = {(item.name.lower(), item.version) for item in locked(ROOT / "requirements" / "serve.txt")}
    assert held - {("kerf", VERSION)} <= lock
    assert {name for name, _ in lock} - {name for name, _ in held} <= {"colorama"}  # of Windows
    assert found["metadata"]["component"]["name"] == "kerf"
    assert all(item["purl"].startswith("pkg:pypi/") for item in found["components"] if item["name"] != "kerf")


def test_kubectls_plugin_runs_from_its_archive_and_krew_finds_it(release: Release, tmp_path: Path) -> None:
    (archive,) = release.dist.glob("kubectl-kerf-*.tar.gz")
    manifest = yaml.safe_load((release.dist / "kerf.krew.yaml").read_text())
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("kerf", f"v{VERSION}")
    platforms = manifest["spec"]["platforms"]
    selected = [tuple(item["selector"]["matchLabels"][key] for key in ("os", "arch")) for item in platforms]
    assert tuple(selected) == PLATFORMS
    for item in platforms:
        assert item["uri"] == f"https://forge.example/Example/Kerf/releases/download/v{VERSION}/{archive.name}"
        assert item["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    shutil.copy(release.dist / "kerf.krew.yaml", own := tmp_path / "kerf.yaml")  # krew wants the plugin's name
    validate = [str(find_program(_KREW)), f"-manifest={own}", "-skip-install"]
    validated = subprocess.run(validate, check=False, capture_output=True, text=True)
    assert validated.returncode == 0, validated.stderr
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["LICENSE", "kubectl-kerf"]
        packed.extractall(tmp_path, filter="data")
    program = str(tmp_path / "kubectl-kerf")
    with serving(lambda *_: (200, b'{"pods": ["x"]}')) as kerf:
        for words, said in (
            (["--help"], "what-if"),
            (["explain", "--help"], "NAMESPACE/NAME"),
            (["what-if", "-f", str(tmp_path / "pod.yaml")], "pod.yaml"),
            (["pending", "-o", "json", "--server", kerf.url], '"x"'),
            (["pending", "-o", "yaml", "--server", kerf.url], "- x"),
        ):
            command = [sys.executable, "-I", "-S", program, *words]
            done = subprocess.run(command, check=False, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
            assert said in done.stdout + done.stderr, done.stderr
            assert "Traceback" not in done.stderr


def test_what_is_published_is_complete_and_each_file_has_its_signature(release: Release) -> None:
    (created,) = release.calls("gh", "release", "create")
    assert created[2:5] == [f"v{VERSION}", "--draft", "--verify-tag"]
    (uploaded,) = release.calls("gh", "release", "upload")
    names = {Path(word).name for word in uploaded if word.startswith("/")}
    bundles = {name for name in names if name.endswith(".sigstore.json")}
    assert {f"{name}.sigstore.json" for name in names - bundles} == bundles
    assert {Path(name).suffix for name in names - bundles} == {".whl", ".gz", ".tgz", ".json", ".yaml"}
    assert release.calls("gh", "release", "edit") == [["release", "edit", f"v{VERSION}", "--draft=false"]]


def test_the_same_commit_makes_the_same_plugin(release: Release, tmp_path: Path) -> None:
    """Byte for byte: krew's checksum is of the commit, not of the moment."""
    (first,) = release.dist.glob("kubectl-kerf-*.tar.gz")
    before = first.read_bytes()
    first.unlink()
    command = [sys.executable, "-m", "release", "plugin", "--home", "https://forge.example/Example/Kerf"]
    path: Any = {"PATH": f"{release.tools}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(command, check=True, capture_output=True, cwd=release.checkout, env=os.environ | path)
    assert first.read_bytes() == before
