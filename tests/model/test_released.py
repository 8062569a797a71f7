"""The released model: it is what its manifest says, packs better than FGD, and equally each time."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extender.core.valuenet.features import FEATURES, FEATURES_VERSION
from extender.ranking import files
from model.cli.commands import simulate_app
from model.cli.learning_commands import evaluate_app
from model.training.tasks import PUBLISHED_SEEDS, potential_at
from tests.model.builders import PUBLISHED, needs_traces, write_openb

SEEDS = "3-8"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_openb(tmp_path_factory.mktemp("openb"), num_nodes=60, num_pods=700)


def figures(traces: Path, out: Path, *arguments: str) -> bytes:
    call = ["--traces", str(traces), *arguments, "--json", str(out)]
    done = CliRunner().invoke(evaluate_app, call)
    assert done.exit_code == 0, done.output
    return out.read_bytes()


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
def test_it_packs_pods_that_it_never_saw_better_than_fgd_and_equally_each_time(traces: Path, tmp_path: Path) -> None:
    call = ["--trace", "small", "--seeds", SEEDS]
    text = figures(traces, tmp_path / "one.json", *call)
    assert figures(traces, tmp_path / "two.json", *call) == text
    found = json.loads(text)["policies"]
    assert list(found) == ["kerf", "kerf-online", "fgd"]
    for load in ("100", "130"):
        assert np.mean(found["kerf"][load]) > np.mean(found["fgd"][load])
    assert not sum(found["kerf"]["refused"]) + sum(found["kerf-online"]["refused"])


@pytest.mark.slow
def test_the_simulator_knows_it_with_and_without_departures(traces: Path, tmp_path: Path) -> None:
    for more in ([], ["--departures", "--load", "1.0"]):
        by_policy = {}
        for policy in ("kerf", "fgd"):
            out = tmp_path / "figures.json"
            call = ["openb", "--traces", str(traces), "--trace", "small", "--policy", policy, *more, "--json", str(out)]
            done = CliRunner().invoke(simulate_app, call)
            assert done.exit_code == 0, done.output
            by_policy[policy] = json.loads(out.read_text())
        assert by_policy["kerf"].keys() == by_policy["fgd"].keys()
        assert by_policy["kerf"]["decisions"] > 0
        assert {**by_policy["kerf"], "policy": ""} != {**by_policy["fgd"], "policy": ""}


def test_a_search_begins_elsewhere() -> None:
    """What is released was found, and is not where the search began."""
    weights = files.read(files.RELEASED).potential.weights
    assert not np.allclose(weights, potential_at(np.zeros(len(FEATURES) + 1)).weights, atol=0.05)


@needs_traces
@pytest.mark.slow
def test_it_beats_fgd_on_gpuspec33_in_an_order_of_its_own(tmp_path: Path) -> None:
    text = figures(
        PUBLISHED, tmp_path / "found.json", "--trace", "gpuspec33", "--seeds", "3001", "--policies", "kerf,fgd"
    )
    found = json.loads(text)["policies"]
    assert found["kerf"]["100"][0] > found["fgd"]["100"][0] + 3
