import re

from tests.plugins.goldens import FOLDER, golden


def test_every_golden_file_names_what_it_was_checked_against() -> None:
    for path in FOLDER.glob("*.json"):
        checked = golden(path.stem)["checked_against"]
        assert checked, path.stem
        for source in checked:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", source["repository"])
            assert re.fullmatch(r"[0-9a-f]{40}", source["commit"])
            assert source["files"]
