"""What nodes need of the machine, and the places for them on it: each is one node's at a time."""

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.controlplane.binaries import BuildError, cache_root, cached, go_build, module_folder
from tests.controlplane.processes import wait_until

_CONTAINERD = "github.com/containerd/containerd/v2@v2.4.2"
_PROGRAMS = {"runc": "runc", "ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CGROUPS = Path("/sys/fs/cgroup")
_NUM_PLACES = 32
NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc")
# Is it allowed to make namespaces, and to mount overlays in them?
_PROBE = """
mount -t tmpfs probe "$0" && cd "$0" && mkdir a b c d
mount -t overlay -o lowerdir=a,upperdir=b,workdir=c probe d
"""


@functools.cache
def lacking() -> str:
    """Why no node can run on this machine; "" where one can."""
    if os.geteuid() != 0:
        return "a real node needs root"
    missing = {package for program, package in _PROGRAMS.items() if not shutil.which(program)}
    if cni_folder() is None:
        missing.add("containernetworking-plugins")
    if missing:
        return f"a real node needs Debian's packages {', '.join(sorted(missing))}"
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", *NAMESPACES, "--fork", "sh", "-euc", _PROBE, folder]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        return f"a real node needs namespaces and overlayfs: {result.stderr.strip()}"
    probe = f"kerf-probe-{os.getpid()}"  # tests in other processes probe at the same time
    try:
        _make_cgroups(probe)
        _remove_cgroups(probe)
    except OSError as error:
        return f"a real node needs cgroups: {error}"
    return ""


def cni_folder() -> Path | None:
    """Where the network plugins lie."""
    return next((folder for folder in _CNI_FOLDERS if (folder / "ptp").exists()), None)


def find_containerd() -> Path:
    """The folder of containerd, its shim and ctr; building takes minutes, once. Raises BuildError."""

    def build(into: Path) -> None:
        commands = [f"./cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")]
        go_build(module_folder(_CONTAINERD), into, commands, tags="no_btrfs no_zfs no_devmapper")

    return cached(f"containerd-{_CONTAINERD.rpartition('@')[2]}", build)


@dataclass(frozen=True)
class Place:
    """One node's folder, addresses and names on this machine."""

    number: int

    @property
    def folder(self) -> Path:
        """Short, since sockets lie in it."""
        return cache_root().parent / "nodes" / str(self.number)

    @property
    def cgroup(self) -> str:
        return f"kerf-node-{self.number}"

    @property
    def interface(self) -> str:
        """The machine's end of the line to the node."""
        return f"kerf-node{self.number}"

    @property
    def gateway(self) -> str:
        """The machine's address, as the node sees it. 198.18.0.0/15 is for tests of networks: RFC 2544."""
        return f"198.18.{self.number}.1"

    @property
    def address(self) -> str:
        return f"198.18.{self.number}.2"

    @property
    def pods(self) -> str:
        """The addresses of its pods."""
        return f"198.19.{self.number}.0/24"

    def connect(self, pid: int) -> None:
        """A line between the machine and the network of a process, the node's first; it goes with that network."""
        for command in (
            f"link add {self.interface} type veth peer name eth0 netns {pid}",
            f"address add {self.gateway}/30 dev {self.interface}",
            f"link set {self.interface} up",
            f"route add {self.pods} via {self.address}",
        ):
            run(["ip", *command.split()])
        for command in (
            f"address add {self.address}/30 dev eth0",
            "link set eth0 up",
            f"route add default via {self.gateway}",
        ):
            run([*entering(pid), "ip", *command.split()])

    def prepare(self) -> None:
        """An empty folder and cgroup, whatever a node that was killed has left."""
        self.clear()
        _make_cgroups(self.cgroup)
        for part in ("cni", "lib/kubelet", "lib/containerd", "log", "run"):
            (self.folder / part).mkdir(parents=True)

    def clear(self) -> None:
        """Wait for the end of the node's processes, and remove what does not end with them."""
        interface = Path("/sys/class/net", self.interface)
        wait_until(lambda: not interface.exists(), 20.0, f"end of all processes on the network of {self.interface}")
        _remove_cgroups(self.cgroup)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def taken_place(*numbers: int) -> Iterator[Place]:
    """A place, of these or any, that nobody else has before the end of the block, in this process or another."""
    for number in numbers or range(_NUM_PLACES):
        if lock := _lock(Place(number).folder.with_suffix(".lock")):
            with lock:
                yield Place(number)
                return
    raise BuildError("all places for nodes are taken")


def _lock(path: Path) -> IO[str] | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def entering(pid: int) -> Sequence[str]:
    """A command that runs the command after it in the namespaces of a process."""
    return ("nsenter", "--target", str(pid), *NAMESPACES, "--")


def run(command: Sequence[str]) -> str:
    """What a command prints. Raises BuildError."""
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def _hierarchies() -> list[Path]:
    """The one of version 2, or those of version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _make_cgroups(name: str) -> None:
    """A cgroup of every hierarchy. Raises OSError."""
    for hierarchy in _hierarchies():
        if (hierarchy / "cgroup.controllers").exists():
            for controller in (hierarchy / "cgroup.controllers").read_text().split():
                (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")
        (hierarchy / name).mkdir(exist_ok=True)


def _remove_cgroups(name: str) -> None:
    for hierarchy in _hierarchies():
        folders = [path for path in (hierarchy / name).rglob("*") if path.is_dir()]
        for folder in [*sorted(folders, reverse=True), hierarchy / name]:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
