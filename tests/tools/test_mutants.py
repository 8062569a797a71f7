"""What mutmut is told to break is there: a module that has moved would be left out without a word."""

import tomllib
from pathlib import Path

import pytest

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
