"""A rank fitted to a history: trained on its first days, judged on the others, written only if it is better."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.history import files as history_files
from extender.history.records import HistoryError
from extender.ranking import files
from extender.ranking.files import _read_manifest
from model.simulations.learned import Foresight
from model.training import fitting
from model.training.fitting import Fitted
from model.training.runs import TrainingError
from model.training.tasks import Tasks
from model.workloads.histories import Part, lists
from model.workloads.sources import source_lookup
from tests.history.builders import history, nodes, pods
from tests.model.cli.calls import kerf

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
    assert sorted([*learned, *judged]) == sorted(whole.pods["pod"].tolist())
    times = dict(zip(whole.pods["pod"].tolist(), whole.pods["submitted_s"].tolist(), strict=True))
    assert max(times[name] for name in learned) < min(times[name] for name in judged)
    first, again = (source_lookup(None)(f"history:judge:{folder}")(7) for _ in range(2))
    assert first.nodes.num_gpus.sum() == 26
    assert first.arrivals().pods.tolist() == again.arrivals().pods.tolist()


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


def fitted(folder: Path, out: Path, episodes: int, jobs: int = 1, *, resume: bool = False) -> Fitted:
    return fitting.fit(folder, out, episodes, 12, lambda _: None, resume=resume, jobs=jobs)


@pytest.mark.slow
def test_a_fit_says_what_it_found_and_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    whole = fitted(folder, tmp_path / "whole", 24)
    fitted(folder, tmp_path / "parts", 12)
    (tmp_path / "parts" / files.MANIFEST).unlink(missing_ok=True)
    assert fitted(folder, tmp_path / "parts", 24, resume=True) == whole
    assert fitted(folder, tmp_path / "beside", 24, jobs=2) == whole
    (row,) = _read_manifest(tmp_path / "whole" / "run" / "model").evaluation
    task = Tasks(source_lookup(None), Foresight()).task(fitting.config_of(folder).validation[0], row.seeds[0])
    assert row.fgd["100"][0] == task.fgd[0]
    assert row.start["100"][0] == task.allocations(files.read(files.RELEASED).potential)[0]
    assert (tmp_path / "whole" / files.MANIFEST).exists() == whole.better


def test_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, out = tmp_path / "told.json", tmp_path / "out"
    fit = ("fit", "--history", folder, "--out", out, "--episodes", "12", "--jobs", "1", "--json", told)
    done = kerf(*fit)
    assert done.exit_code == 0, done.output
    report = json.loads(told.read_text())
    assert report["better"] == (report["model"] is not None) == (out / files.MANIFEST).exists()
    assert set(report["over_fgd"]) == {"100", "130"}
    assert ("no model was written" in done.stderr) != report["better"]
    monkeypatch.setattr(Fitted, "better", property(lambda self: True))
    assert kerf(*fit, "--resume").exit_code == 0
    assert files.read(out).manifest.training["mode"] == "es"
    with pytest.raises(TrainingError, match="already has a model"):
        fitted(folder, out, 12, resume=True)
