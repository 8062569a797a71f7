"""`python -m tests.tools.dra --cases 10000 --seed 1`: Kerf beside kube-scheduler's allocator, with figures."""

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.tools.dra.cases import case_of
from tests.tools.dra.differential import compare, confirm, find, pinned
from tests.tools.dra.oracle import Oracle
from tests.tools.dra.speed import lines
from tests.tools.dra.table import table_cases

Json = dict[str, Any]


@dataclass
class Figures:
    """What came of the cases."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of Kerf and of kube-scheduler, by node."""
    refused: Counter[str] = field(default_factory=Counter)
    differences: list[tuple[str, str]] = field(default_factory=list)
    """Where, and what."""
    seconds: float = 0.0

    @property
    def num_nodes(self) -> int:
        """Nodes looked at."""
        return self.outcomes.total()

    def lines(self) -> list[str]:
        """The figures, to be read."""
        counts = [
            f"  Kerf {ours}, kube-scheduler {theirs}: {num}" for (ours, theirs), num in sorted(self.outcomes.items())
        ]
        kinds = [f"  refused for {kind}: {num}" for kind, num in self.refused.most_common()]
        share = 100 * self.refused.total() / max(self.num_nodes, 1)
        return [
            f"{self.num_nodes} nodes, {len(self.differences)} differences, {share:.1f} % refused, "
            f"{1000 * self.seconds / max(self.num_nodes, 1):.2f} ms of Kerf's each",
            *counts,
            *kinds,
            *(f"  {where}: {what}" for where, what in self.differences),
        ]


def check(oracle: Oracle, where: str, case: Json, figures: Figures) -> None:
    """One case, node by node."""
    for node, theirs in zip(case["nodes"], oracle.ask(case), strict=True):
        started = time.perf_counter()
        found = find(case, node["metadata"]["name"])
        figures.seconds += time.perf_counter() - started
        figures.outcomes[found.outcome, theirs["outcome"]] += 1
        if found.outcome == "refused":
            figures.refused[found.why] += 1
        difference = compare(theirs, found)
        if not difference and found.allocation:
            difference = confirm(theirs, oracle.ask(pinned(case, node, found))[0], found, case)
        if difference:
            figures.differences.append((f"{where} on {node['metadata']['name']}", difference))


def main() -> int:
    """Run the cases; 1 where there is a difference, or more than 5 % are refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="the table tests of kube-scheduler's allocator instead")
    parser.add_argument("--speed", action="store_true", help="how long the choice takes on 5,000 nodes instead")
    arguments = parser.parse_args()
    if arguments.speed:
        print("\n".join(lines()))
        return 0
    figures = Figures()
    with Oracle() as oracle:
        if arguments.table:
            for number, case in enumerate(table_cases()):
                check(oracle, f"case {number}", case, figures)
        else:
            for seed in range(arguments.seed, arguments.seed + arguments.cases):
                check(oracle, f"seed {seed}", case_of(seed), figures)
                if seed % 500 == 0:
                    print(f"seed {seed}: {figures.lines()[0]}", file=sys.stderr)
    print("\n".join(figures.lines()))
    return int(bool(figures.differences) or figures.refused.total() > 0.05 * figures.num_nodes)


if __name__ == "__main__":
    sys.exit(main())
