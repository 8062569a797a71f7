"""`make mutants`: mutmut breaks the rules in thousands of ways, and at least 90 % of them must make a test fail; of
those in the fit, what-if, the cache, the commit and the queue 95 %.

Which modules are broken, and which tests should notice, stands in pyproject.toml. What mutmut has found before it keeps
in mutants/: a run that was stopped goes on, and after a change only what changed is tried again.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

_AIMS = {
    **dict.fromkeys(
        ("extender.core.fit.", "extender.explain.", "extender.kube.", "extender.parts.", "extender.queueing."), 0.95
    ),
    "": 0.9,
}
"""By how the names of mutants begin; "" for all together."""
_MUTMUT = (sys.executable, "-m", "mutmut")
_DETECTED = ("killed", "timeout", "segfault")
_SURVIVED = ("survived", "suspicious", "no tests")


def main(arguments: list[str]) -> int:
    """Exit status: 0 when the aims are reached, 1 when one is missed or mutmut could not run."""
    if status := subprocess.run([*_MUTMUT, "run", *arguments], check=False).returncode:
        return status
    found = subprocess.run([*_MUTMUT, "results", "--all", "true"], check=True, capture_output=True, text=True)
    states = states_of(found.stdout.splitlines())
    survivors = (name for name, state in states.items() if state in _SURVIVED)
    for function, number in Counter(name.partition("__mutmut_")[0] for name in survivors).most_common():
        print(f"{number:4} survive in {function}")
    reached = [_tell(start, aim, states) for start, aim in _AIMS.items()]
    print("mutmut show NAME prints one, mutmut results lists the others")
    return int(not all(reached))


def states_of(lines: Iterable[str]) -> dict[str, str]:
    """What became of mutants, by their names, of what mutmut lists."""
    pairs = (line.strip().rpartition(": ") for line in lines)
    return {name: state for name, _, state in pairs if name}


def counted(start: str, states: Mapping[str, str]) -> tuple[int, int]:
    """How many mutants whose names begin so made a test fail, and how many were tried."""
    counts = Counter(state for name, state in states.items() if name.startswith(start))
    detected = sum(counts[state] for state in _DETECTED)
    return detected, detected + sum(counts[state] for state in _SURVIVED)


def _tell(start: str, aim: float, states: Mapping[str, str]) -> bool:
    """Tell how many were noticed; whether that will do."""
    detected, tried = counted(start, states)
    whose = f"of {start}*" if start else "in all"
    print(f"{detected} of {tried} mutants {whose} made a test fail: {detected / max(tried, 1):.1%} (aim: {aim:.0%})")
    return detected >= aim * tried


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
