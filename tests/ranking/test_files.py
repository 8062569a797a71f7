"""Model directories: what is written is read back, and what does not match is refused with the reason."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.ranking import files
from tests.core.valuenet.builders import random_potential

EVALUATION = (files.Evaluation("small", (7, 8), {"100": (1.0, 2.0)}, {"100": (0.5, 1.5)}),)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    files.write(tmp_path / "m", random_potential(np.random.default_rng(0)), 1.0, {"seed": 3}, EVALUATION)
    return tmp_path / "m"


def edit(directory: Path, **values: Any) -> None:
    path = directory / files.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_written_model_is_read_back(written: Path) -> None:
    found = files.read(written)
    right = random_potential(np.random.default_rng(0))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found.potential, right, strict=True))
    assert found.manifest.evaluation == EVALUATION
    assert found.manifest.training == {"seed": 3}


def test_equal_models_are_equal_bytes(written: Path, tmp_path: Path) -> None:
    files.write(tmp_path / "n", random_potential(np.random.default_rng(0)), 1.0, {"seed": 3}, EVALUATION)
    for name in (files.WEIGHTS, files.MANIFEST):
        assert (tmp_path / "n" / name).read_bytes() == (written / name).read_bytes()


def test_a_manifest_that_does_not_match_is_refused(written: Path) -> None:
    known = (written / files.MANIFEST).read_text()
    for values, reason in (
        ({"format": 1}, "format 1"),
        ({"kind": "attention"}, "kind 'attention'"),
        ({"features_version": 4}, "features version 4"),
        ({"sha256": "00"}, "SHA-256 [0-9a-f]{64}"),
        ({"more": 1}, "unknown field `more`"),
        ({"evaluation": 1}, "Expected `array`"),
    ):
        edit(written, **values)
        with pytest.raises(files.ModelError, match=reason):
            files.read(written)
        (written / files.MANIFEST).write_text(known)


def test_damaged_and_missing_files_are_refused(written: Path) -> None:
    weights = written / files.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(files.ModelError, match="SHA-256"):
        files.read(written)
    weights.unlink()
    with pytest.raises(files.ModelError, match=r"weights\.safetensors: No such file"):
        files.read(written)
    weights.write_bytes(b"not tensors")
    edit(written, sha256=hashlib.sha256(b"not tensors").hexdigest())
    with pytest.raises(files.ModelError, match=r"weights\.safetensors: .*header"):
        files.read(written)
    (written / files.MANIFEST).write_text("{")
    with pytest.raises(files.ModelError, match=r"manifest\.json: "):
        files.read(written)
    (written / files.MANIFEST).unlink()
    with pytest.raises(files.ModelError, match=r"manifest\.json: No such file"):
        files.read(written)
