"""A rank of a cluster's own: trained on its first days, judged on the others, written only where it is better."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from extender.history import files as history_files
from extender.history.records import HistoryError
from extender.ranking import files
from extender.ranking.files import _read_manifest
from model.cli.history_commands import fit_app
from model.simulations.learned import Foresight
from model.training import fitting
from model.training.fitting import Fitted
from model.training.runs import TrainingError
from model.training.tasks import Tasks
from model.workloads.histories import Part, lists
from model.workloads.sources import named
from tests.history.builders import history, nodes, pods

RNG = np.random.default_rng(0)
SHAPES = [(1, 300, 4_000), (1, 700, 4_000), (1, 1000, 8_000), (4, 1000, 30_000), (0, 0, 6_000)]


def past(num_pods: int = 200) -> tuple[dict[str, Any], ...]:
    rows: list[dict[str, Any]] = []
    for at in np.sort(RNG.random(num_pods)):
        gpus, milli, cpu = SHAPES[int(RNG.choice(5, p=[0.25, 0.25, 0.3, 0.1, 0.1]))]
        rows.append({"submitted_s": float(at) * 86400, "gpus": gpus, "gpu_milli": milli, "cpu_milli": cpu})
    return tuple(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("history")
    history_files.write(made, history(pods(*past()), nodes(8, 8, 4, 4, 2)))
    return made


def test_the_days_that_judge_are_not_learned_from(folder: Path) -> None:
    whole = history_files.read(folder)
    learned, judged = (lists(folder, part)[1].names for part in Part)
    assert not set(learned) & set(judged)
    assert sorted([*learned, *judged]) == sorted(whole.pods["pod"].tolist())
    times = dict(zip(whole.pods["pod"].tolist(), whole.pods["submitted_s"].tolist(), strict=True))
    assert max(times[name] for name in learned) < min(times[name] for name in judged)
    offer = named(None)(f"history:judge:{folder}")(7)
    assert offer.nodes.num_gpus.sum() == 26
    first, again = offer.arrivals(), named(None)(f"history:judge:{folder}")(7).arrivals()
    assert first.pods.tolist() == again.pods.tolist()


def test_too_little_is_refused(tmp_path: Path) -> None:
    history_files.write(tmp_path, history(pods(*past(40)), nodes(8)))
    with pytest.raises(HistoryError, match=r"the judge part of the history has .*; 20 are needed"):
        lists(tmp_path, Part.JUDGE)
    history_files.write(tmp_path, history(pods(*past(40)), nodes(0)))
    with pytest.raises(HistoryError, match="no nodes with GPUs"):
        lists(tmp_path, Part.LEARN)


def verdict(start: list[float], late: list[float]) -> bool:
    ours: dict[str, tuple[float, ...]] = {"100": (90.0, 91.0, 92.0), "130": (90.0, 91.0, 92.0)}
    return Fitted(files.Evaluation("t", (1, 2, 3), ours, ours, {"100": tuple(start), "130": tuple(late)})).better


def test_better_is_what_is_beyond_chance_and_loses_nothing_later() -> None:
    assert verdict([89.0, 90.1, 90.9], [90.0, 91.0, 92.0])
    assert not verdict([90.0, 91.0, 92.0], [89.0, 90.0, 91.0])
    assert not verdict([85.0, 95.0, 90.0], [90.0, 91.0, 92.0])
    assert not verdict([89.0, 90.1, 90.9], [91.0, 92.1, 92.9])


@pytest.mark.slow
def test_a_fit_says_what_it_found_and_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    config = fitting.config_of(folder)
    whole = fitting.fit(folder, tmp_path / "whole", 24, 12, lambda _: None, resume=False, jobs=1)
    fitting.fit(folder, tmp_path / "parts", 12, 12, lambda _: None, resume=False, jobs=1)
    again = tmp_path / "parts" / files.MANIFEST
    again.unlink(missing_ok=True)
    assert fitting.fit(folder, tmp_path / "parts", 24, 12, lambda _: None, resume=True, jobs=1) == whole
    # One list a generation: its candidates are played side by side.
    assert fitting.fit(folder, tmp_path / "beside", 24, 12, lambda _: None, resume=False, jobs=2) == whole
    (row,) = _read_manifest(tmp_path / "whole" / "run" / "model").evaluation
    task = Tasks(named(None), Foresight()).task(config.validation[0], row.seeds[0])
    assert row.fgd["100"][0] == task.fgd[0]
    assert row.start["100"][0] == task.allocations(files.read(files.RELEASED).potential)[0]
    assert (tmp_path / "whole" / files.MANIFEST).exists() == whole.better


def test_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, out = tmp_path / "told.json", tmp_path / "out"
    given = ["--history", str(folder), "--out", str(out), "--episodes", "12", "--jobs", "1", "--json", str(told)]
    done = CliRunner().invoke(fit_app, given)
    assert done.exit_code == 0, done.output
    report = json.loads(told.read_text())
    assert report["better"] == (report["model"] is not None) == (out / files.MANIFEST).exists()
    assert set(report["over_fgd"]) == {"100", "130"}
    assert ("no model was written" in done.stderr) != report["better"]
    monkeypatch.setattr(Fitted, "better", property(lambda self: True))
    done = CliRunner().invoke(fit_app, [*given, "--resume"])
    assert done.exit_code == 0, done.output
    assert files.read(out).manifest.training["mode"] == "es"
    with pytest.raises(TrainingError, match="already has a model"):
        fitting.fit(folder, out, 12, 12, lambda _: None, resume=True, jobs=1)
