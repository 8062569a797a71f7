"""Training: repeatable, resumable, kept away from the published seeds; its commands."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from extender.core.clusters import Floats
from extender.core.valuenet.features import CONTEXT, FEATURES
from extender.core.valuenet.potentials import linear
from extender.ranking import files
from model.cli.console import seed_range
from model.cli.learning_commands import evaluate_app, train_app
from model.simulations.baselines import BASELINES
from model.simulations.learned import Foresight, allocations
from model.simulations.measures import num_refused
from model.simulations.replays import replay
from model.training import runs
from model.training.runs import _LOG, TrainConfig, TrainingError, _successes
from model.training.tasks import SeedError, Tasks, num_parameters, point_of, potential_at
from model.workloads.sources import named
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import workload

CONFIG = "{train: [small], train_seeds: [1, 2], validation_seeds: [3, 4], population: 4}"


def config(tmp_path: Path, text: str = CONFIG) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def trained(traces: Path, tmp_path: Path, name: str, generations: int, *, resume: bool = False) -> Path:
    out = tmp_path / name
    chosen = runs.read_config(config(tmp_path))
    runs.train(traces, chosen, generations, 2, out, lambda _: None, resume=resume)
    return out


@pytest.mark.slow
def test_equal_configurations_give_equal_models_interrupted_or_not(traces: Path, tmp_path: Path) -> None:
    whole = trained(traces, tmp_path, "whole", 4)
    trained(traces, tmp_path, "parts", 2)
    parts = trained(traces, tmp_path, "parts", 4, resume=True)
    for name in (f"model/{files.MANIFEST}", f"model/{files.WEIGHTS}", _LOG):
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    log = [json.loads(line) for line in (whole / _LOG).read_text().splitlines()]
    assert [line["generation"] for line in log] == [1, 2, 3, 4]


def test_the_manifest_says_what_the_model_reaches(traces: Path, tmp_path: Path) -> None:
    model = files.read(trained(traces, tmp_path, "out", 1) / "model")
    (row,) = model.manifest.evaluation
    assert (row.trace, row.seeds) == ("small", (3, 4))
    tasks = Tasks(named(traces), Foresight())
    for i, seed in enumerate(row.seeds):
        task = tasks.task("small", seed)
        assert task.allocations(model.potential) == (row.kerf["100"][i], row.kerf["130"][i])
        offered = workload(traces, "small", seed, read_nodes(traces), read_pods(traces, "small"))
        placed = replay(offered, BASELINES["fgd"], seed).placed
        assert row.fgd["100"][i] == allocations(offered, placed)[0]
        began = task.allocations(potential_at(np.zeros(num_parameters(by_context=False))))
        assert began == (row.start["100"][i], row.start["130"][i])


def test_what_is_worse_than_fgd_on_a_trace_counts_double() -> None:
    # Two traces, +1 and -1 point at both loads: mean 0, less a quarter of the point lost.
    chosen = TrainConfig(train=("a", "b"), train_seeds=(1,), validation_seeds=(2,))
    gains = np.array([[[1.0, 1.0], [-1.0, -1.0]], [[0.5, 0.5], [0.5, 0.5]]])
    assert _successes(gains, chosen).tolist() == [-0.25, 0.5]
    # 2 points at 100 % and 1 at 130 %, three quarters and one of them.
    early = msgspec.structs.replace(chosen, early_weight=0.75)
    assert _successes(np.array([[[2.0, 1.0], [2.0, 1.0]]]), early).tolist() == [1.75]


def test_what_is_left_out_has_no_weight(traces: Path, tmp_path: Path) -> None:
    text = CONFIG.replace("population: 4", "population: 4, without: [fragment, gpu_wanted], prices: false")
    runs.train(traces, runs.read_config(config(tmp_path, text)), 1, 1, tmp_path / "out", lambda _: None, resume=False)
    weights = dict(zip(FEATURES, files.read(tmp_path / "out" / "model").potential.weights.tolist(), strict=True))
    assert {name for name, weight in weights.items() if weight == 0} == {"fragment", "gpu_wanted"}


def test_weights_may_depend_on_what_kind_of_pods_are_expected(traces: Path, tmp_path: Path) -> None:
    text = CONFIG.replace("population: 4", "population: 4, by_context: true, without: [fragment]")
    runs.train(traces, runs.read_config(config(tmp_path, text)), 1, 1, tmp_path / "out", lambda _: None, resume=False)
    potential = files.read(tmp_path / "out" / "model").potential
    assert potential.by_context.shape == (len(CONTEXT), len(FEATURES) + 1)
    assert not potential.by_context[:, FEATURES.index("fragment")].any()
    assert potential.by_context[:, FEATURES.index("worth")].all()
    assert potential.by_context[:, -1].all()


@pytest.mark.parametrize("by_context", [False, True])
def test_a_run_may_begin_at_a_model(traces: Path, tmp_path: Path, by_context: bool) -> None:
    text = CONFIG.replace(
        "population: 4", f"population: 4, sigma: 1.0e-9, start: released, by_context: {str(by_context).lower()}"
    )
    runs.train(traces, runs.read_config(config(tmp_path, text)), 1, 1, tmp_path / "out", lambda _: None, resume=False)
    found, released = (files.read(folder).potential for folder in (tmp_path / "out" / "model", files.RELEASED))
    assert np.allclose(found.weights, released.weights, atol=1e-6)
    assert np.allclose(found.quantum, released.quantum)
    assert len(found.by_context) == len(CONTEXT) * by_context
    assert np.abs(found.by_context).max(initial=0) < 1e-6


def test_the_point_of_a_potential_is_where_it_was_found() -> None:
    rng = np.random.default_rng(1)
    for by_context in (False, True):
        point = rng.normal(size=num_parameters(by_context))
        assert np.allclose(point_of(potential_at(point), by_context), point)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": np.ones((len(FEATURES), 1)), "bias": np.zeros(1), "out": np.ones(1)}, "has a net"),
        ({"by_context": np.zeros((len(CONTEXT), len(FEATURES) + 1))}, "by_context must be true"),
        (None, "start: .*nowhere"),
    ],
)
def test_what_no_search_can_begin_at_is_refused(
    traces: Path, tmp_path: Path, change: dict[str, Floats] | None, message: str
) -> None:
    folder = tmp_path / "nowhere"
    if change is not None:
        files.write(folder, linear(np.ones(len(FEATURES)), 0.1)._replace(**change), 1.0, {}, ())
    chosen = runs.read_config(config(tmp_path, CONFIG.replace("population: 4", f"start: {folder}")))
    with pytest.raises(TrainingError, match=message):
        runs.train(traces, chosen, 1, 1, tmp_path / "out", lambda _: None, resume=False)


def test_without_prices_what_is_left_is_worth_as_much_as_it_is(traces: Path) -> None:
    plain, priced = (Tasks(named(traces), Foresight(by_lp=by_lp)).task("small", 1).outlook for by_lp in (False, True))
    assert np.array_equal(plain.worth.left[0], np.arange(1001) / 1000)
    assert not plain.worth.compute.any()
    assert not np.array_equal(priced.worth.left, plain.worth.left)
    assert plain.cpu_need_milli == priced.cpu_need_milli


def test_traces_take_turns() -> None:
    chosen = TrainConfig(train=("a", "b", "c"), train_seeds=(1,), validation_seeds=(2,), traces_per_generation=2)
    tried = [chosen.episodes_of(generation) for generation in range(3)]
    assert tried == [[("a", 1), ("b", 1)], [("c", 1), ("a", 1)], [("b", 1), ("c", 1)]]
    everything = msgspec.structs.replace(chosen, traces_per_generation=0)
    assert [trace for trace, _ in everything.episodes_of(5)] == ["a", "b", "c"]


def test_mixes_are_drawn_anew_in_each_generation_and_never_those_of_the_validation() -> None:
    chosen = TrainConfig(train=("mix:usual", "mix:choosy"), validation_seeds=(1, 2), mixes_per_generation=3)
    seen = [chosen.episodes_of(generation) for generation in range(20)]
    assert all([kind for kind, _ in episodes] == ["mix:usual"] * 3 + ["mix:choosy"] * 3 for episodes in seen)
    seeds = [{seed for _, seed in episodes} for episodes in seen]
    assert len(set().union(*seeds)) == 60 and min(min(each) for each in seeds) > 2
    with pytest.raises(ValueError, match="validation_seeds must be below 1000000"):
        msgspec.structs.replace(chosen, validation_seeds=(1_000_000,))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{train: [small], train_seeds: [42], validation_seeds: [3]}", "seeds \\[42\\] are held out"),
        ("{train: [small], train_seeds: [1], validation_seeds: [51]}", "seeds \\[51\\] are held out"),
        ("{train: [small], train_seeds: [1], validation_seeds: [1]}", "in both train_seeds and validation_seeds"),
        ("{train: [], train_seeds: [1], validation_seeds: [2]}", "must not be empty"),
        ("{train: [small], train_seeds: [1], validation_seeds: [2], more: 1}", "unknown field `more`"),
        ("{train: [small], train_seeds: [1], validation_seeds: [2], population: 1}", "population 0 or at least 2"),
        ("{train: [small], train_seeds: [1], validation_seeds: [2], without: [luck]}", "there are frag"),
        ("[", "config.yaml: "),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(TrainingError, match=reason):
        runs.read_config(config(tmp_path, text))


def test_the_configurations_that_come_along_are_valid() -> None:
    paths = [
        path for path in (Path(runs.__file__).parent / "configs").glob("*.yaml") if not path.stem.startswith("ppo")
    ]
    assert paths
    for path in paths:
        assert runs.num_generations(runs.read_config(path), 336) > 1


def test_published_seeds_make_no_task(traces: Path) -> None:
    with pytest.raises(SeedError, match="seed 47"):
        Tasks(named(traces), Foresight()).task("small", 47)


def test_a_run_is_neither_overwritten_nor_resumed_with_another_configuration(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="nothing to resume"):
        trained(traces, tmp_path, "out", 1, resume=True)
    out = trained(traces, tmp_path, "out", 1)
    with pytest.raises(TrainingError, match="continue with --resume"):
        trained(traces, tmp_path, "out", 1)
    other = TrainConfig(train=("small",), train_seeds=(1,), validation_seeds=(3,), population=4)
    with pytest.raises(TrainingError, match="belongs to another configuration"):
        runs.train(traces, other, 1, 1, out, lambda _: None, resume=True)


def test_episodes_are_whole_generations() -> None:
    chosen = TrainConfig(train=("a", "b"), train_seeds=(1,), validation_seeds=(2,), population=10)
    assert [runs.num_generations(chosen, episodes) for episodes in (1, 20, 21)] == [1, 1, 2]


def test_commands_train_and_evaluate(traces: Path, tmp_path: Path) -> None:
    out, figures = tmp_path / "run", tmp_path / "figures.json"
    call = [
        "--traces",
        str(traces),
        "--config",
        str(config(tmp_path)),
        "--out",
        str(out),
        "--episodes",
        "4",
        "--jobs",
        "1",
    ]
    done = CliRunner().invoke(train_app, call)
    assert done.exit_code == 0, done.output
    call = ["--traces", str(traces), "--trace", "small", "--seeds", "3-4", "--json", str(figures)]
    done = CliRunner().invoke(evaluate_app, [*call, "--model", str(out / "model")])
    assert done.exit_code == 0, done.output
    found = json.loads(figures.read_text())
    assert (found["trace"], found["seeds"], list(found["policies"])) == (
        "small",
        [3, 4],
        ["kerf", "kerf-online", "fgd"],
    )
    (row,) = files.read(out / "model").manifest.evaluation
    assert found["policies"]["kerf"] == {"100": list(row.kerf["100"]), "130": list(row.kerf["130"]), "refused": [0, 0]}
    assert found["policies"]["fgd"] == {"100": list(row.fgd["100"]), "130": list(row.fgd["130"]), "refused": [0, 0]}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--policies", "fgd,kerf,fgd"], "named twice"),
        (["--policies", "best"], "no policy 'best'"),
        (["--policies", "fgd", "--seeds", "5-3"], "a range must be ascending"),
        (["--policies", "kerf", "--model", "/nowhere"], "No such file"),
    ],
)
def test_evaluate_refuses_with_the_reason(traces: Path, arguments: list[str], reason: str) -> None:
    done = CliRunner().invoke(evaluate_app, ["--traces", str(traces), "--trace", "small", *arguments])
    assert done.exit_code == 2
    assert reason in done.output


def test_only_modes_that_are_there(traces: Path, tmp_path: Path) -> None:
    call = ["--traces", str(traces), "--config", str(config(tmp_path)), "--mode", "dqn"]
    done = CliRunner().invoke(train_app, call)
    assert done.exit_code == 2
    assert "there is es, ppo" in done.output


def test_seeds() -> None:
    assert seed_range("42-44, 7") == [42, 43, 44, 7]
    for wrong in ("", "x", "1-", "3-1", "1,1", "1-2,2", "0-9999"):
        with pytest.raises(ValueError, match="--seeds"):
            seed_range(wrong)


def test_a_pod_that_fitted_and_was_not_placed_counts_as_refused(traces: Path) -> None:
    offered = workload(traces, "small", 3, read_nodes(traces), read_pods(traces, "small"))
    done = replay(offered, BASELINES["fgd"], 3)
    assert num_refused(offered, done) == 0
    done.placed[np.flatnonzero(done.placed >= 0)[-1]] = -1
    assert num_refused(offered, done) >= 1


def test_mixes_are_judged_on_without_any_file(tmp_path: Path) -> None:
    mixes = tmp_path / "mixes.yaml"
    base = {
        "gpus": [24, 40], "cpu_load": 0.6, "pods": {"shares": {"gpus": 1, "milli": [200, 800]}, "fours": {"gpus": 4}},
        "nodes": [{"model": "A", "gpus": 8, "cores": 64, "memory_gib": 256}],
    }  # fmt: skip
    mixes.write_text(yaml.safe_dump({"base": base, "kinds": {"usual": {}, "odd": {"cpu_load": 1.3}}}))
    found = tmp_path / "found.json"
    call = ["--trace", "mix:odd", "--mixes", str(mixes), "--seeds", "5-7", "--policies", "kerf,fgd"]
    done = CliRunner().invoke(evaluate_app, [*call, "--json", str(found)])
    assert done.exit_code == 0, done.output
    report = json.loads(found.read_text())
    assert len(report["ceiling"]["100"]) == 3
    for policy in ("kerf", "fgd"):
        for mine, most in zip(report["policies"][policy]["100"], report["ceiling"]["100"], strict=True):
            assert most is None or mine <= most + 0.5
    churning = [*call[:-1], "fgd", "--departures", "--load", "1.0"]
    assert CliRunner().invoke(evaluate_app, churning).exit_code == 0
    missing = CliRunner().invoke(evaluate_app, ["--trace", "mix:none", "--mixes", str(mixes)])
    assert (missing.exit_code, "no kind 'none' of mixes; there are odd, usual" in missing.output) == (2, True)
    other = CliRunner().invoke(evaluate_app, [*call, "--nodes", "half"])
    assert (other.exit_code, "--nodes applies to traces only" in other.output) == (2, True)
    nothing = CliRunner().invoke(evaluate_app, ["--trace", "default"], env={"KERF_TRACES": ""})
    assert (nothing.exit_code, "--traces is missing" in nothing.output) == (2, True)


@pytest.mark.slow
def test_mixes_are_trained_on_without_any_file_in_any_number_of_processes(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("train: ['mix:usual']\nvalidation_seeds: [3]\nmixes_per_generation: 1\npopulation: 2\n")
    out = tmp_path / "out"
    trained = CliRunner().invoke(
        train_app, ["--config", str(config), "--out", str(out), "--episodes", "4", "--jobs", "1"]
    )
    assert trained.exit_code == 0, trained.output
    assert json.loads((out / "log.jsonl").read_text().splitlines()[-1])["by_trace"].keys() == {"mix:usual"}
    beside = tmp_path / "beside"
    trained = CliRunner().invoke(
        train_app, ["--config", str(config), "--out", str(beside), "--episodes", "4", "--jobs", "2"]
    )
    assert trained.exit_code == 0, trained.output
    assert (beside / "log.jsonl").read_text() == (out / "log.jsonl").read_text()


@pytest.mark.parametrize("name", ["demo", "released"])
def test_what_comes_with_kerf_goes_by_name(name: str, tmp_path: Path) -> None:
    assert runs.read_config(Path(name)).validation_seeds
    own = tmp_path / name
    own.write_text("train: ['mix:usual']\nvalidation_seeds: [77]\n")
    assert runs.read_config(own).validation_seeds == (77,)
