"""Many runs, one after the other, and the account of them."""

import contextlib
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import plans
from tests.chaos.clusters import Cluster, HarnessError
from tests.chaos.runs import Outcome, Run
from tests.controlplane import ApiError, ProcessError

_RUNS_PER_PLANE = 25
"""Then a fresh control plane: what earlier runs have left in etcd must not slow later ones down."""


@dataclass
class Account:
    """What all runs have shown."""

    outcomes: list[Outcome] = field(default_factory=list)
    """Runs in which at least one fault took effect, or a promise was broken."""
    unharmed: list[int] = field(default_factory=list)
    """Seeds of runs in which none did: they do not count."""
    errors: dict[int, str] = field(default_factory=dict)
    """Seeds of runs that could not be carried out, and why."""

    @property
    def num_violations(self) -> int:
        """Of all runs."""
        return sum(len(outcome.violations) for outcome in self.outcomes)

    @property
    def faults(self) -> Counter[plans.Kind]:
        """Those that took effect, by kind."""
        return sum((outcome.faults for outcome in self.outcomes), Counter())

    def report(self) -> dict[str, object]:
        """JSON data."""
        seconds = [outcome.seconds for outcome in self.outcomes] or [0.0]
        return {
            "runs": len(self.outcomes),
            "violations": self.num_violations,
            "seeds": [outcome.seed for outcome in self.outcomes],
            "faults": {str(kind): self.faults[kind] for kind in plans.Kind},
            "pods": sum(outcome.pods for outcome in self.outcomes),
            "pods_bound": sum(outcome.pods_bound for outcome in self.outcomes),
            "least_load_frac": round(min((outcome.load_frac for outcome in self.outcomes), default=0.0), 3),
            "seconds": {"median": statistics.median(seconds), "max": max(seconds)},
            "violations_found": [
                {"seed": outcome.seed, "promise": found.promise, "subject": found.subject, "detail": found.detail}
                for outcome in self.outcomes
                for found in outcome.violations
            ],
            "runs_without_faults": self.unharmed,
            "errors": [{"seed": seed, "error": error} for seed, error in self.errors.items()],
        }


def carry_out(
    num_runs: int, first_seed: int, tell: Callable[[str], None], account: Account, *, queue: bool = False
) -> None:
    """Carry out the runs of consecutive seeds, with `queue` through Kerf's, and enter them into the account.

    One that fails is entered as an error; the next one begins on a fresh control plane.
    """
    seeds = list(range(first_seed, first_seed + num_runs))
    with _workspace(account) as directory:
        while seeds:
            plane_directory = directory / f"from-seed-{seeds[0]}"
            batch, failed = seeds[:_RUNS_PER_PLANE], 0
            try:
                with Cluster(plane_directory, queue=queue) as cluster:
                    for seed in batch:
                        failed = seed
                        tell(f"seed {seed}")
                        _enter(account, Run(cluster, plans.draw(seed, queue=queue)).execute())
                        seeds.remove(seed)
            except (HarnessError, ApiError, ProcessError, TimeoutError, OSError) as error:
                seed = failed or batch[0]
                account.errors[seed] = str(error)
                seeds.remove(seed)


def _enter(account: Account, outcome: Outcome) -> None:
    if outcome.faults or outcome.violations:
        account.outcomes.append(outcome)
    else:
        account.unharmed.append(outcome.seed)


@contextlib.contextmanager
def _workspace(account: Account) -> Iterator[Path]:
    """A folder for logs; it is kept where there is something to find in them."""
    directory = Path(tempfile.mkdtemp(prefix="kerf-chaos-"))
    yield directory
    if not account.num_violations and not account.errors:
        shutil.rmtree(directory, ignore_errors=True)
