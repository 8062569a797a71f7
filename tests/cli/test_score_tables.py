"""What scores are made of, as `kerf explain` prints it: the parts add up to what is shown, and nothing is left out that
decides."""

import io
import re
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from extender.cli.explain import _scores
from extender.core.texts import in_figures

TERMS = {"value": "learned score", "live": "headroom", "memory": "a hair for each GiB"}


def node(rank: int, **terms: float) -> dict[str, Any]:
    return {"node": f"n-{rank}", "rank": rank, "score": sum(terms.values()), "scoreTerms": terms}


def printed(nodes: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Of each line the numbers."""
    text = io.StringIO()
    Console(file=text, width=200).print(_scores(TERMS, nodes))
    lines = text.getvalue().splitlines()[1:]
    return {line.split()[0]: [float(one) for one in re.findall(r"-?\d[\d.e+-]*", line)] for line in lines}


def test_what_comes_to_nothing_is_left_out() -> None:
    told = printed([node(1, value=-64, live=1.8, memory=-7.6e-5), node(2, value=-65, live=1.8, memory=-7.6e-5)])
    assert told == {"value": [-64, -65], "live": [1.8, 1.8], "score": [-62.2, -63.2]}


def test_what_decides_is_shown_however_small() -> None:
    told = printed([node(1, value=-64, live=0.0, memory=-1.4e-5), node(2, value=-64, live=0.0, memory=-7.6e-5)])
    assert told["memory"] == [0, -0.0001]
    assert told["score"][0] > told["score"][1]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shown_adds_up_but_for_the_last_digit(seed: int) -> None:
    random = np.random.default_rng(seed)
    scales = {"value": 50.0, "live": 2.0, "memory": 1e-4}
    told = printed(
        [node(rank, **{name: -random.random() * scale for name, scale in scales.items()}) for rank in (1, 2)]
    )
    for at in (0, 1):
        parts = sum(adds[at] for name, adds in told.items() if name != "score")
        assert parts == pytest.approx(told["score"][at], abs=0.02)


def test_numbers_are_told_apart() -> None:
    assert in_figures((-62.2000763, -63.2)) == ["-62.2", "-63.2"]
    assert in_figures((-24.00007, -31.0)) == ["-24", "-31"]
    assert in_figures((-1.4e-5, -7.6e-5)) == ["0", "-0.0001"]
    assert in_figures((1.0, 1.0)) == ["1", "1"]
