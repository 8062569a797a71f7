"""Runs in processes of their own, several side by side: each has a control plane, and gets one seed after another.

`python -m tests.tools.chaos.workers DIRECTORY COMMIT [options of a `Mode`]` is such a process: it reads seeds from
standard input and answers each with a line of the account. It ends at once when its input does, and all that it has
started with it.
"""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import urllib3

from tests.controlplane import ApiError, ProcessError
from tests.tools.chaos import draws
from tests.tools.chaos.accounts import ROOT, Entry, failed, read_entry
from tests.tools.chaos.clusters import Cluster, HarnessError
from tests.tools.chaos.modes import Mode
from tests.tools.chaos.runs import Run

_RUNS_PER_PLANE = 25
"""Then a fresh control plane: what earlier runs have left in etcd must not slow later ones down."""
_TRIES = 2
_FAILURES = (HarnessError, ApiError, ProcessError, TimeoutError, OSError, urllib3.exceptions.HTTPError)


class Worker:
    """One such process, from entry to exit."""

    def __init__(self, directory: Path, commit: str, *, kubernetes: str, mode: Mode) -> None:
        module = "tests.tools.chaos.workers"
        self._command = [sys.executable, "-m", module, str(directory), commit, *mode.options]
        self._mode = mode
        # Go collects garbage less often: there is memory enough, and the cores are what limits the number of runs.
        self._environment = {"GOGC": "400", **os.environ, "KERF_TEST_KUBERNETES": kubernetes}
        self._directory = directory
        self._commit = commit
        self._kubernetes = kubernetes
        self._popen: subprocess.Popen[str] | None = None

    def run(self, seed: int) -> Entry:
        """Carry out the run of a seed."""
        if self._popen is None:
            self._popen = self._start()
        if self._popen.stdin is None or self._popen.stdout is None:
            raise RuntimeError("a worker is talked to by pipes")
        line = ""
        with contextlib.suppress(OSError):
            self._popen.stdin.write(f"{seed}\n")
            self._popen.stdin.flush()
            line = self._popen.stdout.readline()
        if line:
            return read_entry(line)
        self.end()
        log = self._directory / "worker.log"
        return failed(seed, self._kubernetes, self._commit, f"it ended: see {log}", self._mode)

    def end(self) -> None:
        """End it, whatever it does."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.communicate()
            self._popen = None

    def _start(self) -> subprocess.Popen[str]:
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "worker.log").open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for who handed out the seeds
            )


def carry_out(workers: Iterable[Worker], seeds: Iterator[int], enter: Callable[[Entry], None]) -> None:
    """Carry out the runs of all seeds, side by side in all workers, and enter each as it ends."""
    workers, lock = list(workers), threading.Lock()
    stopped = threading.Event()

    def work(worker: Worker) -> None:
        while not stopped.is_set():
            with lock:
                seed = next(seeds, None)
            if seed is None:
                return
            entry = worker.run(seed)
            with lock:
                if not stopped.is_set():
                    enter(entry)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stopped.set()
        for worker in workers:
            worker.end()


class _Runs:
    """One run after another, on a control plane that is replaced when it has served or failed."""

    def __init__(self, directory: Path, commit: str, mode: Mode) -> None:
        self._mode = mode
        self._directory = directory
        self._commit = commit
        self._cluster: Cluster | None = None
        self._num_planes = 0
        self._num_runs = 0
        self._release = os.environ.get("KERF_TEST_KUBERNETES", "")

    def entry(self, seed: int) -> Entry:
        """The run of a seed; one that fails is tried once more."""
        error = ""
        for _ in range(_TRIES):
            try:
                return self._tried(seed)
            except _FAILURES as failure:
                error = str(failure) or type(failure).__name__
                print(f"seed {seed}: {error}", file=sys.stderr, flush=True)
                self.close()
        first_line = error.partition("\n")[0]
        return failed(seed, self._release, self._commit, first_line, self._mode)

    def close(self) -> None:
        """End the control plane."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            with contextlib.suppress(*_FAILURES):
                cluster.__exit__(None, None, None)

    def _tried(self, seed: int) -> Entry:
        if self._num_runs >= _RUNS_PER_PLANE:
            self.close()
        plan = draws.draw(seed, **asdict(self._mode))
        outcome = Run(self._opened(), plan).execute()
        self._num_runs += 1
        return Entry(
            seed,
            self._release,
            self._mode.queue,
            self._commit,
            {str(kind): number for kind, number in sorted(outcome.faults.items())},
            tuple(outcome.violations),
            outcome.pods,
            outcome.pods_bound,
            round(outcome.load_frac, 3),
            outcome.seconds,
            extender=self._mode.extender,
            dra=self._mode.dra,
            defrag=self._mode.defrag,
            without=self._mode.without,
        )

    def _opened(self) -> Cluster:
        if self._cluster is None:
            self._num_planes += 1
            self._num_runs = 0
            # Every second one has gates open that are shut by default.
            directory, groups = self._directory / f"plane-{self._num_planes}", self._num_planes % 2 == 1
            cluster = Cluster(directory, self._mode, groups=groups)
            self._cluster = cluster.__enter__()
            self._release = str(cluster.plane.request("GET", "/version")["gitVersion"]).removeprefix("v")
        return self._cluster


def main() -> None:
    """Answer every seed."""
    directory, commit, *options = sys.argv[1:]
    seeds: queue.SimpleQueue[int] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            seeds.put(int(line))
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    runs = _Runs(Path(directory), commit, Mode.read(options))
    while True:
        print(runs.entry(seeds.get()).line(), end="", flush=True)


if __name__ == "__main__":
    main()
