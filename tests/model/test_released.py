"""The released model: it is what its manifest says, packs better than FGD, and equally each time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.core.valuenet.features import FEATURES, FEATURES_VERSION
from extender.ranking import files
from model.training.tasks import PUBLISHED_SEEDS, potential_at
from tests.model.builders import PUBLISHED, needs_traces, write_openb
from tests.model.cli.calls import figures


def evaluated(traces: Path, trace: str, seeds: str, *arguments: str) -> Any:
    return figures("evaluate", "--traces", traces, "--trace", trace, "--seeds", seeds, *arguments)["policies"]


def test_it_loads_and_matches_this_program() -> None:
    model = files.read(files.RELEASED)  # refuses another hash, other features and shapes
    assert (model.manifest.features, model.manifest.features_version) == (FEATURES, FEATURES_VERSION)
    log = [json.loads(line) for line in (files.RELEASED / "log.jsonl").read_text().splitlines()]
    assert len(log) == model.manifest.training["generations"]
    config = model.manifest.training["config"]
    assert not PUBLISHED_SEEDS & {*config["train_seeds"], *config["validation_seeds"]}
    assert np.isfinite(model.potential.weights).all()


def test_it_beats_fgd_on_every_trace_of_its_validation() -> None:
    for row in files.read(files.RELEASED).manifest.evaluation:
        for load in ("100", "130"):
            assert np.mean(row.kerf[load]) > np.mean(row.fgd[load]), (row.trace, load)


@pytest.mark.slow
@pytest.mark.nightly(of=("model/", "extender/core/", "tests/model/"))
def test_it_packs_pods_that_it_never_saw_better_than_fgd_and_equally_each_time(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=60, num_pods=700)
    found = evaluated(tmp_path, "small", "3-8")
    assert evaluated(tmp_path, "small", "3-8") == found
    assert list(found) == ["kerf", "kerf-online", "fgd"]
    for load in ("100", "130"):
        assert np.mean(found["kerf"][load]) > np.mean(found["fgd"][load])
    assert not sum(found["kerf"]["refused"]) + sum(found["kerf-online"]["refused"])


@pytest.mark.slow
def test_the_simulator_knows_it_with_and_without_departures(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=60, num_pods=700)
    for more in ([], ["--departures", "--load", "1.0"]):
        kerf, fgd = (
            figures("simulate", "openb", "--traces", tmp_path, "--trace", "small", "--policy", policy, *more)
            for policy in ("kerf", "fgd")
        )
        assert kerf.keys() == fgd.keys() and kerf["decisions"] > 0
        assert {**kerf, "policy": ""} != {**fgd, "policy": ""}


def test_a_search_begins_elsewhere() -> None:
    """The released weights were found by the search."""
    weights = files.read(files.RELEASED).potential.weights
    assert not np.allclose(weights, potential_at(np.zeros(len(FEATURES) + 1)).weights, atol=0.05)


@needs_traces
@pytest.mark.slow
def test_it_beats_fgd_on_gpuspec33_in_an_order_of_its_own() -> None:
    found = evaluated(PUBLISHED, "gpuspec33", "3001", "--policies", "kerf,fgd")
    assert found["kerf"]["100"][0] > found["fgd"]["100"][0] + 3
