"""PPO runs, and their commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from extender.core.valuenet.potentials import Potential, fragments_only
from extender.ranking import files
from model.simulations import learned, looks
from model.simulations.configs import EpisodeConfig
from model.simulations.learned import Foresight, allocations
from model.training import runs
from model.training.runs import _LOG, TrainingError
from model.training.tasks import Tasks
from model.workloads.sources import source_lookup
from tests.model.cli.calls import figures, kerf

torch = pytest.importorskip("torch", reason="no torch: make setup-train")

from model.training import nets, ppo_rollouts, ppo_runs  # noqa: E402 - needs torch
from model.training.ppo_runs import _CURVES, _beginning, _weights_of  # noqa: E402

CONFIGS = Path(ppo_runs.__file__).parent / "configs"
CONFIG = """
train: [small, "mix:usual"]
validation: [small]
validation_seeds: [3, 4]
forms: [{num_nodes: 5, num_pods: 24}, {num_nodes: 5, num_pods: 0, departures: false}]
scenarios: 2
lists: 1
times: 2
decisions: 200
embedding: 3
queries: 2
hidden: 4
net: 3
"""


def config(tmp_path: Path, text: str = CONFIG) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def trained(traces: Path, tmp_path: Path, name: str, updates: int, *, resume: bool = False, text: str = CONFIG) -> Path:
    out = tmp_path / name
    run = ppo_runs.Run(traces, ppo_runs.read_config(config(tmp_path, text)), out)
    run.train(updates, 2, lambda _: None, resume=resume)
    return out


def same(one: Path, other: Path) -> None:
    for name in (f"model/{files.MANIFEST}", f"model/{files.WEIGHTS}", _LOG, _CURVES):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_equal_configurations_give_equal_models_interrupted_or_not(traces: Path, tmp_path: Path) -> None:
    whole = trained(traces, tmp_path, "whole", 4)
    trained(traces, tmp_path, "parts", 2)
    same(whole, trained(traces, tmp_path, "parts", 4, resume=True))
    log = [json.loads(line) for line in (whole / _LOG).read_text().splitlines()]
    assert [line["update"] for line in log] == [1, 2, 3, 4]
    with pytest.raises(TrainingError, match="already has a checkpoint"):
        trained(traces, tmp_path, "whole", 6)
    with pytest.raises(TrainingError, match="nothing to resume"):
        trained(traces, tmp_path, "nowhere", 6, resume=True)
    (tmp_path / "whole" / runs.CHECKPOINT).write_bytes(b"PK")
    with pytest.raises(TrainingError, match="nothing to resume"):
        trained(traces, tmp_path, "whole", 6, resume=True)


@pytest.mark.parametrize("form", ["", "looks", "by_context"])
def test_the_manifest_says_what_the_model_reaches(traces: Path, tmp_path: Path, form: str) -> None:
    out = trained(traces, tmp_path, "out", 2, text=CONFIG + (f"{form}: true\n" if form else ""))
    model = files.read_any(out / runs.MODEL)
    assert isinstance(model, files.Actor) == (form == "looks")
    (row,) = model.manifest.evaluation
    assert (row.trace, row.seeds) == ("small", (3, 4))
    began = files.read(files.RELEASED).potential
    tasks = Tasks(source_lookup(traces), Foresight())
    for i, seed in enumerate(row.seeds):
        task = tasks.task("small", seed)
        if isinstance(model, files.Actor):
            placed = looks.replay(task.offered, task.outlook, model.attention).placed
        else:
            assert len(model.potential.out) == 3
            assert model.potential.by_context.any() == (form == "by_context")
            placed = learned.replay(task.offered, task.outlook, model.potential).placed
        assert allocations(task.offered, placed) == (row.kerf["100"][i], row.kerf["130"][i])
        assert row.fgd["100"][i] == task.fgd[0]
        assert row.start["100"][i] == task.allocations(began)[0]


def test_training_begins_at_the_potential_that_it_is_told(traces: Path, tmp_path: Path) -> None:
    began = {"released": files.read(files.RELEASED).potential, "fgd": fragments_only()}
    files.write(tmp_path / "m", began["released"]._replace(quantum=np.array([0.7])), 1.0, {}, ())
    began[str(tmp_path / "m")] = files.read(tmp_path / "m").potential
    plain = ppo_runs.PpoConfig(train=("small",), validation_seeds=(1,), forms=(EpisodeConfig(num_nodes=6, num_pods=9),))
    for name, potential in began.items():
        chosen = msgspec.structs.replace(plain, start=name)
        begun = _beginning(chosen, traces)
        found = _weights_of(nets.initial(begun, chosen.net, np.random.default_rng(0)), chosen)
        assert isinstance(found, Potential)
        assert found.weights == pytest.approx(potential.weights)
        assert found.quantum == pytest.approx(potential.quantum)
    with pytest.raises(TrainingError, match="start: "):
        _beginning(msgspec.structs.replace(plain, start="nowhere"), traces)


def test_processes_beside_each_other_play_the_same(traces: Path, tmp_path: Path) -> None:
    one = trained(traces, tmp_path, "one", 1)
    chosen = ppo_runs.read_config(config(tmp_path))
    with ppo_rollouts.beside(traces, 2) as play:
        ppo_runs.Run(traces, chosen, tmp_path / "two", play=play).train(1, 2, lambda _: None, resume=False)
    same(one, tmp_path / "two")


def test_configurations_that_can_not_be(tmp_path: Path) -> None:
    for text, reason in (
        ("{train: [small], validation_seeds: [42]}", "seeds \\[42\\] are held out"),
        ("{train: [], validation_seeds: [2]}", "must not be empty"),
        ("{train: [small], validation_seeds: [2], times: 1}", "times 2 or more"),
        ("{train: [small], validation_seeds: [2], lists: 0}", "lists"),
        ("{train: [small], validation_seeds: [2], looks: true, by_context: true}", "exclude each other"),
        ("{train: [small], validation_seeds: [2], temperature: 0}", "temperature"),
        ("{train: [small], validation_seeds: [1000000]}", "below 1000000"),
        ("{train: [small], validation_seeds: [2], forms: [{num_nodes: 2}, {num_nodes: 3}]}", "the same num_nodes"),
        ("{train: [small], validation_seeds: [2], learning: {clip: 0}}", "clip"),
    ):
        with pytest.raises(TrainingError, match=reason):
            ppo_runs.read_config(config(tmp_path, text))


def test_the_configurations_that_come_along_are_valid() -> None:
    for path in CONFIGS.glob("ppo*.yaml"):
        chosen = ppo_runs.read_config(Path(path.stem))
        assert ppo_runs.num_updates(chosen, chosen.episodes_per_update + 1) == 2


def test_the_commands_train_and_evaluate(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("--traces", traces, "--config", config(tmp_path), "--out", out, "--mode", "ppo", "--episodes", "3")
    result = kerf("train", *given, "--save-interval", "1", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "Validation" in result.output and "gain from training at 100 %: " in result.stderr
    compared = ("--traces", traces, "--trace", "small", "--seeds", "3-4", "--policies", f"ppo={out / runs.MODEL},fgd")
    policies = figures("evaluate", *compared)["policies"]
    (row,) = files.read(out / runs.MODEL).manifest.evaluation
    assert policies["ppo"]["100"] == list(row.kerf["100"]) and policies["ppo"]["refused"] == [0, 0]
    assert policies["fgd"]["130"] == list(row.fgd["130"])


@pytest.mark.slow
def test_two_learners_learn_what_one_does(traces: Path, tmp_path: Path) -> None:
    one = trained(traces, tmp_path, "one", 2)
    two = tmp_path / "two"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "extender",
        "train", "--traces", str(traces), "--config", str(config(tmp_path)), "--out", str(two), "--mode", "ppo",
        "--episodes", "16", "--save-interval", "8", "--jobs", "1",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = (files.read(out / runs.MODEL).potential for out in (one, two))
    for name, array, other in zip(ours._fields, ours, theirs, strict=True):
        assert array == pytest.approx(other, abs=1e-9), name
    assert np.abs(ours.out).max() > 0


@pytest.mark.slow
def test_a_ray_cluster_plays_the_same_episodes(traces: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="no Ray: make setup-train")
    from ray.cluster_utils import Cluster

    here = trained(traces, tmp_path, "here", 2)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        out = tmp_path / "ray"
        chosen = ppo_runs.read_config(config(tmp_path))
        run = ppo_runs.Run(traces, chosen, out, play=ppo_rollouts.on_ray(traces, cluster.address))
        run.train(2, 2, lambda _: None, resume=False)
        same(here, out)
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()
