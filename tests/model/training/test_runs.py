"""Training by evolution strategy, and its commands."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from extender.core.valuenet.features import CONTEXT, FEATURES
from extender.core.valuenet.potentials import Potential, linear
from extender.ranking import files
from model.cli.console import seed_range
from model.simulations.baselines import BASELINES
from model.simulations.learned import Foresight, allocations
from model.simulations.replays import replay
from model.training import runs
from model.training.runs import _LOG, TrainConfig, TrainingError, _successes
from model.training.tasks import SeedError, Tasks, num_parameters, point_of, potential_at
from model.workloads.sources import source_lookup
from tests.model.cli.calls import figures, kerf, refused

CONFIG = "{train: [small], train_seeds: [1, 2], validation_seeds: [3, 4], population: 4}"


def config(tmp_path: Path, text: str = CONFIG) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def trained(traces: Path, out: Path, generations: int = 1, more: str = "", *, resume: bool = False) -> Potential:
    """A run in a folder, with more settings."""
    chosen = runs.read_config(config(out.parent, CONFIG.replace("population: 4", f"population: 4{more}")))
    runs.train(traces, chosen, generations, 2, out, lambda _: None, resume=resume)
    return files.read(out / "model").potential


@pytest.mark.slow
@pytest.mark.nightly(of=("model/", "tests/model/"))
def test_equal_configurations_give_equal_models_interrupted_or_not(traces: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(traces, whole, 4)
    trained(traces, parts, 2)
    trained(traces, parts, 4, resume=True)
    for name in (f"model/{files.MANIFEST}", f"model/{files.WEIGHTS}", _LOG):
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    log = [json.loads(line) for line in (whole / _LOG).read_text().splitlines()]
    assert [line["generation"] for line in log] == [1, 2, 3, 4]


def test_a_run_is_neither_overwritten_nor_resumed_with_another_configuration(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(TrainingError, match="nothing to resume"):
        trained(traces, out, resume=True)
    trained(traces, out)
    with pytest.raises(TrainingError, match="continue with --resume"):
        trained(traces, out)
    with pytest.raises(TrainingError, match="belongs to another configuration"):
        trained(traces, out, more=", seed: 7", resume=True)


def test_the_manifest_says_what_the_model_reaches(traces: Path, tmp_path: Path) -> None:
    potential = trained(traces, tmp_path / "out")
    (row,) = files.read(tmp_path / "out" / "model").manifest.evaluation
    assert (row.trace, row.seeds) == ("small", (3, 4))
    tasks = Tasks(source_lookup(traces), Foresight())
    for i, seed in enumerate(row.seeds):
        task = tasks.task("small", seed)
        assert task.allocations(potential) == (row.kerf["100"][i], row.kerf["130"][i])
        assert row.fgd["100"][i] == allocations(task.offered, replay(task.offered, BASELINES["fgd"], seed).placed)[0]
        began = task.allocations(potential_at(np.zeros(num_parameters(by_context=False))))
        assert began == (row.start["100"][i], row.start["130"][i])
    with pytest.raises(SeedError, match="seed 47"):  # of the published experiment
        tasks.task("small", 47)


def test_what_is_worse_than_fgd_on_a_trace_counts_double() -> None:
    # Two traces, +1 and -1 point at both loads: mean 0, less a quarter of the point lost.
    chosen = TrainConfig(train=("a", "b"), train_seeds=(1,), validation_seeds=(2,))
    gains = np.array([[[1.0, 1.0], [-1.0, -1.0]], [[0.5, 0.5], [0.5, 0.5]]])
    assert _successes(gains, chosen).tolist() == [-0.25, 0.5]
    # 2 points at 100 % and 1 at 130 %, three quarters and one of them.
    early = msgspec.structs.replace(chosen, early_weight=0.75)
    assert _successes(np.array([[[2.0, 1.0], [2.0, 1.0]]]), early).tolist() == [1.75]


def test_what_is_left_out_has_no_weight(traces: Path, tmp_path: Path) -> None:
    weights = trained(traces, tmp_path / "plain", more=", without: [fragment, gpu_wanted], prices: false").weights
    assert {name for name, weight in zip(FEATURES, weights, strict=True) if weight == 0} == {"fragment", "gpu_wanted"}
    by_context = trained(traces, tmp_path / "by", more=", by_context: true, without: [fragment]").by_context
    assert by_context.shape == (len(CONTEXT), len(FEATURES) + 1)
    assert not by_context[:, FEATURES.index("fragment")].any()
    assert by_context[:, FEATURES.index("worth")].all() and by_context[:, -1].all()


def test_a_run_may_begin_at_a_model(traces: Path, tmp_path: Path) -> None:
    released = files.read(files.RELEASED).potential
    for by_context in (False, True):
        more = f", sigma: 1.0e-9, start: released, by_context: {str(by_context).lower()}"
        found = trained(traces, tmp_path / str(by_context), more=more)
        assert np.allclose(found.weights, released.weights, atol=1e-6)
        assert np.allclose(found.quantum, released.quantum)
        assert len(found.by_context) == len(CONTEXT) * by_context
        assert np.abs(found.by_context).max(initial=0) < 1e-6
        point = np.random.default_rng(1).normal(size=num_parameters(by_context))
        assert np.allclose(point_of(potential_at(point), by_context), point)


def test_what_no_search_can_begin_at_is_refused(traces: Path, tmp_path: Path) -> None:
    plain = linear(np.ones(len(FEATURES)), 0.1)
    net = plain._replace(hidden=np.ones((len(FEATURES), 1)), bias=np.zeros(1), out=np.ones(1))
    files.write(tmp_path / "net", net, 1.0, {}, ())
    files.write(tmp_path / "by", plain._replace(by_context=np.zeros((len(CONTEXT), len(FEATURES) + 1))), 1.0, {}, ())
    for name, reason in (("net", "has a net"), ("by", "by_context must be true"), ("nowhere", "start: .*nowhere")):
        with pytest.raises(TrainingError, match=reason):
            trained(traces, tmp_path / "out", more=f", start: {tmp_path / name}")


def test_traces_take_turns() -> None:
    chosen = TrainConfig(train=("a", "b", "c"), train_seeds=(1,), validation_seeds=(2,), traces_per_generation=2)
    tried = [chosen.episodes_of(generation) for generation in range(3)]
    assert tried == [[("a", 1), ("b", 1)], [("c", 1), ("a", 1)], [("b", 1), ("c", 1)]]
    everything = msgspec.structs.replace(chosen, traces_per_generation=0, population=10)
    assert [trace for trace, _ in everything.episodes_of(5)] == ["a", "b", "c"]
    assert [runs.num_generations(everything, episodes) for episodes in (1, 30, 31)] == [1, 1, 2]


def test_mixes_are_drawn_again_in_each_generation_and_never_those_of_the_validation() -> None:
    chosen = TrainConfig(train=("mix:usual", "mix:choosy"), validation_seeds=(1, 2), mixes_per_generation=3)
    seen = [chosen.episodes_of(generation) for generation in range(20)]
    assert all([kind for kind, _ in episodes] == ["mix:usual"] * 3 + ["mix:choosy"] * 3 for episodes in seen)
    seeds = [{seed for _, seed in episodes} for episodes in seen]
    assert len(set().union(*seeds)) == 60 and min(min(each) for each in seeds) > 2
    with pytest.raises(ValueError, match="validation_seeds must be below 1000000"):
        msgspec.structs.replace(chosen, validation_seeds=(1_000_000,))


def test_configurations_that_are_refused(tmp_path: Path) -> None:
    for text, reason in (
        ("{train: [small], train_seeds: [42], validation_seeds: [3]}", "seeds \\[42\\] are held out"),
        ("{train: [small], train_seeds: [1], validation_seeds: [51]}", "seeds \\[51\\] are held out"),
        ("{train: [small], train_seeds: [1], validation_seeds: [1]}", "in both train_seeds and validation_seeds"),
        ("{train: [], train_seeds: [1], validation_seeds: [2]}", "must not be empty"),
        ("{train: [small], train_seeds: [1], validation_seeds: [2], population: 1}", "population 0 or at least 2"),
        ("{train: [small], train_seeds: [1], validation_seeds: [2], without: [luck]}", "there are frag"),
        ("[", "config.yaml: "),
    ):
        with pytest.raises(TrainingError, match=reason):
            runs.read_config(config(tmp_path, text))


def test_configurations_that_come_with_kerf_go_by_name(tmp_path: Path) -> None:
    names = {path.stem for path in (Path(runs.__file__).parent / "configs").glob("*.yaml")}
    assert names >= {"demo", "released"}
    for name in names:
        assert name.startswith("ppo") or runs.num_generations(runs.read_config(Path(name)), 336) > 1
    own = tmp_path / "demo"
    own.write_text("train: ['mix:usual']\nvalidation_seeds: [77]\n")
    assert runs.read_config(own).validation_seeds == (77,)


def test_commands_train_and_evaluate(traces: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "run", ("--traces", traces)
    done = kerf("train", *folder, "--config", config(tmp_path), "--out", out, "--episodes", "4", "--jobs", "1")
    assert done.exit_code == 0, done.output
    found = figures("evaluate", *folder, "--trace", "small", "--seeds", "3-4", "--model", out / "model")
    assert (found["trace"], found["seeds"]) == ("small", [3, 4])
    assert list(found["policies"]) == ["kerf", "kerf-online", "fgd"]
    (row,) = files.read(out / "model").manifest.evaluation
    for name, reached in (("kerf", row.kerf), ("fgd", row.fgd)):
        assert found["policies"][name] == {load: list(reached[load]) for load in ("100", "130")} | {"refused": [0, 0]}
    refused("No such file", "evaluate", *folder, "--trace", "small", "--policies", "kerf", "--model", "/nowhere")
    refused("there are es, ppo", "train", *folder, "--config", config(tmp_path), "--mode", "dqn")


def test_seeds() -> None:
    assert seed_range("42-44, 7") == [42, 43, 44, 7]
    for wrong in ("", "x", "1-", "3-1", "1,1", "1-2,2", "0-9999"):
        with pytest.raises(ValueError, match="--seeds"):
            seed_range(wrong)


def test_mixes_are_judged_on_without_any_file(tmp_path: Path) -> None:
    mixes = tmp_path / "mixes.yaml"
    base = {
        "gpus": [24, 40], "cpu_load": 0.6, "pods": {"shares": {"gpus": 1, "milli": [200, 800]}, "fours": {"gpus": 4}},
        "nodes": [{"model": "A", "gpus": 8, "cores": 64, "memory_gib": 256}],
    }  # fmt: skip
    mixes.write_text(yaml.safe_dump({"base": base, "kinds": {"usual": {}, "odd": {"cpu_load": 1.3}}}))
    odd = ("evaluate", "--trace", "mix:odd", "--mixes", mixes, "--seeds", "5-7", "--policies")
    report = figures(*odd, "kerf,fgd")
    assert len(report["ceiling"]["100"]) == 3
    for policy in ("kerf", "fgd"):
        for mine, most in zip(report["policies"][policy]["100"], report["ceiling"]["100"], strict=True):
            assert most is None or mine <= most + 0.5
    assert figures(*odd, "fgd", "--departures", "--load", "1.0")["loads"]
    refused("no kind 'none' of mixes; there are odd, usual", "evaluate", "--trace", "mix:none", "--mixes", mixes)
    refused("--nodes applies to traces only", *odd, "kerf,fgd", "--nodes", "half")
    nothing = kerf("evaluate", "--trace", "default", KERF_TRACES="")
    assert (nothing.exit_code, "--traces is missing" in nothing.output) == (2, True)


@pytest.mark.slow
def test_mixes_are_trained_on_without_any_file_in_any_number_of_processes(tmp_path: Path) -> None:
    text = "train: ['mix:usual']\nvalidation_seeds: [3]\nmixes_per_generation: 1\npopulation: 2\n"
    logs = []
    for jobs in ("1", "2"):
        call = ("train", "--config", config(tmp_path, text), "--out", tmp_path / jobs, "--episodes", "4")
        done = kerf(*call, "--jobs", jobs)
        assert done.exit_code == 0, done.output
        logs.append((tmp_path / jobs / "log.jsonl").read_text())
    assert logs[0] == logs[1]
    assert json.loads(logs[0].splitlines()[-1])["by_trace"].keys() == {"mix:usual"}
