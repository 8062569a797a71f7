"""Child processes that log to a file, tell when they are ready, and never outlive the tests."""

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import urllib3

Value = TypeVar("Value")

# PR_SET_PDEATHSIG (1) with SIGKILL (9) holds across execv, so a crashed or killed test run leaves no servers behind.
# The child asks for it itself: preexec_fn is unsafe, and warned about, in a parent with threads. It is the death of
# the *thread* that started the child that counts: start processes from a thread that lives as long as they should.
_LAUNCH = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


_CONFIGURES = re.compile(r"KUBE|KERF_|(GNU)?MAKE|MFLAGS$|ARGS$", re.IGNORECASE)
"""Names of variables that tell where Kubernetes is, are settings of Kerf, or are make's: `make test ARGS=...` exports
its own to every `make` below it."""


class ProcessError(Exception):
    """A process ended early or did not get ready; the message ends with the tail of its log."""


class Process:
    """A running child. `url` is where it serves, empty where nobody said.

    One that `forks` runs what it is told in a child of its own and waits for that, as `nsenter --pid` has to: `pid` and
    signals are the grandchild's.
    """

    def __init__(
        self, name: str, popen: subprocess.Popen[bytes], log: Path, url: str = "", forks: bool = False
    ) -> None:
        self.name = name
        self.log = log
        self.url = url
        self._popen = popen
        self._forks = forks

    @property
    def pid(self) -> int:
        return (self._forks and _child_of(self._popen.pid)) or self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def tail(self, num_lines: int = 30) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until `ready` says yes; raise ProcessError if the process ends before that, or time is up."""
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self.running or ready(), timeout_s, f"{self.name} ready", interval_s=0.02)
            if self.running:
                return
        state = f"not ready after {timeout_s:g} s" if self.running else f"ended with {self._popen.returncode}"
        raise ProcessError(f"{self.name} {state}; end of {self.log}:\n{self.tail()}")

    def signal(self, number: int) -> None:
        """Send a signal; to one that has ended, none."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pause(self) -> None:
        """SIGSTOP; return when all of its threads stand still, which on a busy machine takes a moment."""
        self.signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.pid}/stat")
        if state.exists():
            wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", 20.0, f"{self.name} is stopped")

    def kill(self) -> None:
        """kill -9, stopped or not; return when it is gone."""
        self.signal(signal.SIGKILL)
        self._popen.wait()

    def ended_within(self, limit_s: float) -> bool:
        """Wait for its end; whether it came in time."""
        try:
            self._popen.wait(max(0.0, limit_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, grace_s: float = 1.0) -> None:
        """End it: SIGTERM, then SIGKILL after the grace."""
        stop_processes([self], grace_s)


def _child_of(pid: int) -> int:
    """The only child of a process, 0 where there is none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text() or 0)
    return 0


def start_process(
    name: str,
    command: Sequence[str | Path],
    log: Path,
    url: str = "",
    env: Mapping[str, str] | None = None,
    forks: bool = False,
) -> Process:
    """Start a command whose output goes to the log file, and which dies with this process."""
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *map(str, command)]
    with log.open("ab") as output:
        popen = subprocess.Popen(
            launcher, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env and dict(env)
        )
    return Process(name, popen, log, url, forks)


def clean_environment(**settings: str) -> dict[str, str]:
    """The caller's variables without those that would configure what is started, and with these settings."""
    return {name: value for name, value in os.environ.items() if not _CONFIGURES.match(name)} | settings


def own_hostname(hostname: str) -> tuple[str, ...]:
    """A command that runs the command after it under another host's name; none where namespaces are not allowed."""
    unshare = ("unshare", "--uts", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    command = (*unshare, "sh", "-c", 'hostname "$0" && exec "$@"', hostname)
    try:
        allowed = subprocess.run((*command, "true"), capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    return command if allowed else ()


def stop_processes(processes: Sequence[Process], grace_s: float = 1.0) -> None:
    """End them together, so that they share one grace."""
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for process in processes:
        if not process.ended_within(deadline - time.monotonic()):
            process.kill()


def retry_taken_port(start: Callable[[], Value]) -> Value:
    """Call `start`, once more if a port was taken between its choice and its use."""
    try:
        return start()
    except ProcessError as error:
        if "address already in use" not in str(error):
            raise
        return start()


def answers(url: str, certificate: Path | None = None) -> bool:
    """Whether a server answers 200; no is also that its certificate file is not there yet."""
    if certificate is not None and not certificate.exists():
        return False
    with urllib3.PoolManager(ca_certs=certificate and str(certificate), retries=False, timeout=1.0) as pool:
        try:
            return pool.request("GET", url).status == 200
        except urllib3.exceptions.HTTPError:
            return False


_PORTS = range(11_000, 30_000)
"""Below the ports that outgoing connections get, and those of Kubernetes' NodePorts."""
_ports = itertools.cycle(random.Random(os.getpid()).sample(_PORTS, len(_PORTS)))


def free_port() -> int:
    """A port that is free on all addresses, and that this process has not returned lately."""
    while True:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def wait_until(predicate: Callable[[], Value], timeout_s: float, what: str, interval_s: float = 0.05) -> Value:
    """Return the predicate's first true value; raise TimeoutError with `what` and the last value when time is up."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for: {what}; last seen: {value!r}")
        time.sleep(interval_s)
    return value
