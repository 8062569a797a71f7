import re

import pytest

from tests.plugins.goldens import golden, golden_names


@pytest.mark.parametrize("name", golden_names())
def test_every_golden_file_names_what_it_was_checked_against(name: str) -> None:
    checked = golden(name)["checked_against"]

    assert checked
    for source in checked:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", source["commit"])
        assert source["files"]
