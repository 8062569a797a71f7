"""`make mutants`: mutmut breaks the rules in thousands of ways, and at least 90 % of them must make a test fail.

Which modules are broken, and which tests should notice, stands in pyproject.toml. What mutmut has found before it keeps
in mutants/: a run that was stopped goes on, and after a change only what changed is tried again.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

AIM = 0.9
_MUTMUT = (sys.executable, "-m", "mutmut")
_STATS = Path("mutants/mutmut-cicd-stats.json")
_DETECTED = ("killed", "timeout", "segfault")


def main(arguments: list[str]) -> int:
    """Exit status: 0 when the aim is reached, 1 when it is missed or mutmut could not run."""
    if status := subprocess.run([*_MUTMUT, "run", *arguments], check=False).returncode:
        return status
    subprocess.run([*_MUTMUT, "export-cicd-stats"], check=True, stdout=subprocess.DEVNULL)
    counts = json.loads(_STATS.read_text())
    tried = sum(counts[state] for state in (*_DETECTED, "survived", "suspicious", "no_tests"))
    detected = sum(counts[state] for state in _DETECTED)
    survivors = [line.split(":")[0].strip() for line in _results() if line.endswith(("survived", "no tests"))]
    for function, number in Counter(name.partition("__mutmut_")[0] for name in survivors).most_common():
        print(f"{number:4} survive in {function}")
    print(f"{detected} of {tried} mutants made a test fail: {detected / max(tried, 1):.1%} (aim: {AIM:.0%});", end=" ")
    print("mutmut show NAME prints one, mutmut results lists the others")
    return int(detected < AIM * tried)


def _results() -> list[str]:
    found = subprocess.run([*_MUTMUT, "results"], check=True, capture_output=True, text=True)
    return found.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
