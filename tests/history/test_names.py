"""Names in a history: generated suffixes are removed, and hashes show only which names are equal."""

import numpy as np

from extender.history.records import _HASHED_COLUMNS, POD_COLUMNS, hash_names, owner_name
from tests.history.builders import pods


def test_generated_suffixes_are_removed() -> None:
    for name, kept in (
        ("web-5d4f7c9b8", "web"),
        ("train-29384756", "train"),
        ("resnet-50", "resnet"),
        ("work", "work"),
    ):
        assert owner_name("a", "Job", name) == f"a/Job/{kept}"


def test_equal_names_have_equal_hashes_and_everything_else_stays() -> None:
    table = pods({"owner": "a/Job/x", "namespace": "a"}, {"owner": "a/Job/x", "namespace": "b"}, {"node": "node-0"})
    made = hash_names(table, b"salt")
    assert list(made) == list(POD_COLUMNS)
    assert made["owner"][0] == made["owner"][1] != ""
    assert made["owner"][2] == made["gang"][0] == ""  # no name is none
    assert len(set(made["pod"])) == 3
    assert made["namespace"][0] != made["namespace"][1]
    for name in _HASHED_COLUMNS:
        assert not set(made[name]) & set(table[name]) - {""}
        assert made[name].dtype == object and all(isinstance(value, str) for value in made[name])
    for name in POD_COLUMNS.keys() - set(_HASHED_COLUMNS):
        assert np.array_equal(made[name], table[name], equal_nan=made[name].dtype == np.float64)
    owners = [hash_names(table, salt)["owner"][0] for salt in (b"salt", b"salt", b"other")]
    assert owners[0] == owners[1] != owners[2]
