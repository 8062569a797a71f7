"""What mutmut is told to break is there: a module that has moved would be left out without a word."""

import tomllib
from pathlib import Path

import pytest

from tests.tools.mutants import counted, states_of

ROOT = Path(__file__).parents[2]
MUTMUT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]


@pytest.mark.parametrize(
    "pattern",
    [
        *MUTMUT["only_mutate"],
        *MUTMUT["do_not_mutate"],
        *MUTMUT["also_copy"],
        *MUTMUT["pytest_add_cli_args_test_selection"],
    ],
)
def test_it_names_what_is_there(pattern: str) -> None:
    assert list(ROOT.glob(pattern))


def test_what_became_of_mutants_is_counted_by_where_they_are() -> None:
    states = states_of(
        [
            "    extender.kube.cache.x_a__mutmut_1: killed",
            "    extender.kube.cache.x_a__mutmut_2: timeout",
            "    extender.kube.cache.x_a__mutmut_3: survived",
            "    extender.core.x_b__mutmut_1: no tests",
            "    extender.core.x_b__mutmut_2: segfault",
            "    extender.core.x_b__mutmut_3: not checked",
        ]
    )
    assert counted("extender.kube.", states) == (2, 3)
    assert counted("", states) == (3, 5)
    assert counted("extender.queueing.", states) == (0, 0)
