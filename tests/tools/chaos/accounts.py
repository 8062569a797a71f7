"""What runs have shown: the account of one call, and the one that grows from call to call and is committed.

The latter is a file of one line of JSON for each run, in the order in which they ended. It is written anew after every
run and put in the old one's place, so that whatever is killed when, a whole account is there.
"""

import fcntl
import json
import os
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tests.tools.chaos.checker import Violation
from tests.tools.chaos.faults import Kind
from tests.tools.chaos.modes import Mode

ROOT: Final = Path(__file__).parents[3]
PRODUCT: Final = ("extender", "manifests", "scheduler-config")
"""What the runs judge: a change of anything else leaves them what they are."""

AIM: Final = 1000
"""Runs after the last change of the product, without a violation,"""
AIM_EACH: Final = {"1.34": 100, "1.36": 100, "1.37": 100}
"""of which so many on each Kubernetes minor"""
AIM_QUEUE: Final = 100
"""and so many through the queue,"""
AIM_NO_EXTENDER: Final = 200
"""and through the queue without an extender,"""
AIM_DRA: Final = 200
"""and with devices that Kerf allocates,"""
AIM_DEFRAG: Final = 100
"""and in which it moves pods."""


_UNTOLD: Final = {"error": "", "extender": True, "dra": False, "defrag": False, "without": ()}
"""What an account does not have of a run."""


@dataclass(frozen=True)
class Entry:
    """One run."""

    seed: int
    kubernetes: str
    """Release, as the API server tells it."""
    queue: bool
    commit: str
    """With a + when the product was not as committed."""
    faults: dict[str, int]
    """That took effect, by kind."""
    violations: tuple[Violation, ...]
    pods: int
    pods_bound: int
    """Pods that have their node at the end."""
    load_frac: float
    """Compute booked over compute installed at the end."""
    seconds: float
    error: str = ""
    """Why it could not be carried out."""
    extender: bool = True
    """Whether kube-scheduler called Kerf."""
    dra: bool = False
    """Whether Kerf allocated devices."""
    defrag: bool = False
    """Whether Kerf moved pods."""
    without: tuple[str, ...] = ()
    """Kinds of faults that were left out."""

    @property
    def mode(self) -> Mode:
        """What Kerf did."""
        return Mode(self.queue, self.extender, self.dra, self.defrag, tuple(map(Kind, self.without)))

    @property
    def minor(self) -> str:
        """Of Kubernetes."""
        return minor_of(self.kubernetes)

    @property
    def counts(self) -> bool:
        """Whether at least one fault took effect, or a promise was broken."""
        return not self.error and bool(self.faults or self.violations)

    def line(self) -> str:
        """As the account has it."""
        found = {name: value for name, value in asdict(self).items() if value != _UNTOLD.get(name, ...)}
        return json.dumps(found, separators=(",", ":")) + "\n"


def failed(seed: int, kubernetes: str, commit: str, error: str, mode: Mode) -> Entry:
    """One that could not be carried out."""
    return Entry(
        seed=seed,
        kubernetes=kubernetes,
        queue=mode.queue,
        commit=commit,
        faults={},
        violations=(),
        pods=0,
        pods_bound=0,
        load_frac=0.0,
        seconds=0.0,
        error=error,
        extender=mode.extender,
        dra=mode.dra,
        defrag=mode.defrag,
        without=mode.without,
    )


def read_entry(line: str) -> Entry:
    """The run of a line."""
    found: dict[str, Any] = json.loads(line)
    found["violations"] = tuple(Violation(**violation) for violation in found["violations"])
    return Entry(**found | {"without": tuple(found.get("without", ()))})


def minor_of(version: str) -> str:
    """`1.36` of a release or a minor."""
    return ".".join(version.split(".")[:2])


@dataclass
class Account:
    """Runs, and where they stand where they are to stay."""

    entries: list[Entry] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def at(cls, path: Path) -> "Account":
        """The account of a file, empty where there is none."""
        lines = path.read_text().splitlines() if path.exists() else []
        return cls([read_entry(line) for line in lines if line.strip()], path)

    def claim(self) -> None:
        """Keep it from all other processes until this one ends: two would write each other's runs away.

        Raises BlockingIOError where another one has it.
        """
        if self.path is not None:
            # Never closed: the lock ends with the process, however that ends.
            lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def enter(self, entry: Entry) -> None:
        """Add a run; after that it is on the disk."""
        self.entries.append(entry)
        if self.path is None:
            return
        partial = self.path.with_name(f"{self.path.name}.partial")
        with partial.open("w") as file:
            file.writelines(found.line() for found in self.entries)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def like(self, kubernetes: str, mode: Mode) -> Iterator[Entry]:
        """Runs on a Kubernetes minor in which Kerf did the same."""
        on_minor = (entry for entry in self.entries if entry.minor == minor_of(kubernetes))
        return (entry for entry in on_minor if entry.mode == mode)

    def since(self, commit: str, now: str = "") -> Iterator[Entry]:
        """Runs that count, of the product as it is since a commit; those of what is there `now`, committed or not."""
        return (
            entry
            for entry in self.entries
            if entry.counts and ((now and entry.commit == now) or _contains(entry.commit, commit))
        )

    def report(self) -> dict[str, object]:
        """JSON data."""
        counted = [entry for entry in self.entries if entry.counts]
        seconds = [entry.seconds for entry in counted] or [0.0]
        faults = self.faults
        return {
            "runs": len(counted),
            "violations": self.num_violations,
            "seeds": [entry.seed for entry in counted],
            "faults": {str(kind): faults[kind] for kind in Kind},
            "pods": sum(entry.pods for entry in counted),
            "pods_bound": sum(entry.pods_bound for entry in counted),
            "least_load_frac": round(min((entry.load_frac for entry in counted), default=0.0), 3),
            "seconds": {"median": statistics.median(seconds), "max": max(seconds)},
            "violations_found": [
                {"seed": entry.seed, **asdict(found)} for entry in counted for found in entry.violations
            ],
            "runs_without_faults": [entry.seed for entry in self.entries if not entry.counts and not entry.error],
            "errors": [{"seed": entry.seed, "error": entry.error} for entry in self.entries if entry.error],
        }

    @property
    def num_violations(self) -> int:
        """Of all runs."""
        return sum(len(entry.violations) for entry in self.entries)

    @property
    def faults(self) -> Counter[str]:
        """Those that took effect, by kind."""
        return sum((Counter(entry.faults) for entry in self.entries), Counter())


def progress(runs: Iterable[Entry]) -> list[tuple[str, int, int]]:
    """What is aimed at: its name, runs so far, and runs wanted."""
    runs = list(runs)
    minors, modes = Counter(entry.minor for entry in runs), Counter(entry.mode for entry in runs)
    return [
        ("all", len(runs), AIM),
        *((minor, minors[minor], wanted) for minor, wanted in AIM_EACH.items()),
        ("--queue", modes[Mode(queue=True)], AIM_QUEUE),
        ("--no-extender", modes[Mode(queue=True, extender=False)], AIM_NO_EXTENDER),
        ("--dra", sum(entry.dra and not entry.without for entry in runs), AIM_DRA),
        ("--defrag", sum(entry.defrag and not entry.without for entry in runs), AIM_DEFRAG),
    ]


def commit() -> str:
    """The checkout's, with a + where the product differs from it; "" outside of a checkout."""
    changed = _git("status", "--porcelain", "--", *PRODUCT)
    return _git("rev-parse", "--short=10", "HEAD") + "+" * bool(changed)


def last_mend() -> str:
    """The last commit that changed the product."""
    return _git("log", "-1", "--format=%h", "--abbrev=10", "--", *PRODUCT)


@lru_cache
def _contains(commit: str, earlier: str) -> bool:
    """Whether the product of a commit has that of an earlier one; never, where it was not committed."""
    if not commit or not earlier or commit.endswith("+"):
        return False
    command = ["git", "merge-base", "--is-ancestor", earlier, commit]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True).returncode == 0


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""
