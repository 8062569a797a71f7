"""PPO runs: repeatable, resumable, alike on Ray and among several learners, kept away from the published seeds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extender.ranking import files
from model.cli.learning_commands import evaluate_app, train_app
from model.simulations.baselines import BASELINES
from model.simulations.learned import Foresight, allocations
from model.simulations.replays import replay
from model.training import runs
from model.training.runs import TrainingError
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import workload

torch = pytest.importorskip("torch", reason="no torch: make setup-train")

from model.training import ppo_episodes, ppo_rollouts, ppo_runs  # noqa: E402 - needs torch

CONFIG = """
train: [small]
validation_seeds: [3, 4]
num_nodes: 5
steps: 3
scenes: 1
times: 2
embedding: 3
queries: 2
hidden: 4
"""


def config(tmp_path: Path, text: str = CONFIG) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def trained(traces: Path, tmp_path: Path, name: str, updates: int, *, resume: bool = False) -> Path:
    out = tmp_path / name
    run = ppo_runs.Run(traces, ppo_runs.read_config(config(tmp_path)), out)
    run.train(updates, 2, lambda _: None, resume=resume)
    return out


def same(one: Path, other: Path) -> None:
    for name in (f"model/{files.MANIFEST}", f"model/{files.WEIGHTS}", runs.LOG, ppo_runs.CURVES):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_equal_configurations_give_equal_models_interrupted_or_not(traces: Path, tmp_path: Path) -> None:
    whole = trained(traces, tmp_path, "whole", 4)
    trained(traces, tmp_path, "parts", 2)
    same(whole, trained(traces, tmp_path, "parts", 4, resume=True))
    log = [json.loads(line) for line in (whole / runs.LOG).read_text().splitlines()]
    assert [line["update"] for line in log] == [1, 2, 3, 4]
    with pytest.raises(TrainingError, match="there is a checkpoint"):
        trained(traces, tmp_path, "whole", 6)
    with pytest.raises(TrainingError, match="nothing to resume"):
        trained(traces, tmp_path, "nowhere", 6, resume=True)
    (tmp_path / "whole" / runs.CHECKPOINT).write_bytes(b"PK")
    with pytest.raises(TrainingError, match="nothing to resume"):
        trained(traces, tmp_path, "whole", 6, resume=True)


def test_the_manifest_says_what_the_model_reaches(traces: Path, tmp_path: Path) -> None:
    actor = files.read_actor(trained(traces, tmp_path, "out", 1) / runs.MODEL)
    (row,) = actor.manifest.evaluation
    assert (row.trace, row.seeds) == ("small", (3, 4))
    known = ppo_episodes.source(traces, "small", Foresight())
    for i, seed in enumerate(row.seeds):
        offered = workload(traces, "small", seed, read_nodes(traces), read_pods(traces, "small"))
        ours = allocations(offered, ppo_episodes.replay(offered, known.outlook, actor.attention).placed)
        assert ours == (row.kerf["100"][i], row.kerf["130"][i])
        assert row.fgd["100"][i] == allocations(offered, replay(offered, BASELINES["fgd"], seed).placed)[0]


def test_the_first_actor_packs_as_its_start_does(traces: Path) -> None:
    # Begun at FGD's potential, the same steps and ties: what differs is rounding by a sigmoid.
    chosen = ppo_runs.PpoConfig(train=("small",), validation_seeds=(1,), start="fgd", num_nodes=6)
    known = ppo_episodes.source(traces, "small", Foresight())
    actor = ppo_runs.beginning(chosen, [known], np.random.default_rng(0))
    scenes = [ppo_episodes.scene(known, 6, 4, np.random.default_rng(seed)) for seed in range(8)]
    gains = [ppo_episodes.episode(drawn, actor, np.zeros((len(drawn.ends), 1))).rewards.sum() for drawn in scenes]
    assert abs(np.mean(gains)) < 1.0


def test_rewards_add_up_to_the_gain_at_both_loads(traces: Path) -> None:
    known = ppo_episodes.source(traces, "small", Foresight())
    drawn = ppo_episodes.scene(known, 6, 4, np.random.default_rng(1))
    chosen = ppo_runs.PpoConfig(train=("small",), validation_seeds=(1,))
    actor = ppo_runs.beginning(chosen, [known], np.random.default_rng(0))
    found = ppo_episodes.episode(drawn, actor, np.zeros((len(drawn.ends), 1)))
    offered = drawn.offered
    arrived = np.cumsum(offered.asked_milli) / offered.gpu_milli
    whole = int(np.searchsorted(arrived, 1.0, side="right"))
    assert whole in drawn.ends.tolist() and drawn.ends[-1] == len(offered.classes)
    fgd = replay(offered, BASELINES["fgd"], 0).placed
    board = ppo_episodes.replay(offered, known.outlook, actor).placed  # the looks differ, the actor's point does not
    gains = [
        (np.where(placed[:end] >= 0, offered.asked_milli[:end], 0).sum() * 100 / offered.gpu_milli)
        for placed in (board, fgd)
        for end in (whole, len(board))
    ]
    assert found.rewards.sum() == pytest.approx((gains[0] - gains[2] + gains[1] - gains[3]) / 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{train: [small], validation_seeds: [42]}", "seeds \\[42\\] are the published"),
        ("{train: [], validation_seeds: [2]}", "must not be empty"),
        ("{train: [small], validation_seeds: [2], times: 3}", "times must be even"),
        ("{train: [small], validation_seeds: [2], start: none}", "Invalid enum value 'none'"),
        ("{train: [small], validation_seeds: [2], learning: {clip: 0}}", "clip, sigma"),
        ("{train: [small], validation_seeds: [2], more: 1}", "unknown field `more`"),
    ],
)
def test_configurations_that_can_not_be(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(TrainingError, match=reason):
        ppo_runs.read_config(config(tmp_path, text))


def test_the_configuration_that_comes_along_is_valid() -> None:
    chosen = ppo_runs.read_config(Path(ppo_runs.__file__).parent / "configs" / "ppo.yaml")
    assert chosen.episodes_per_update == 7 * 2 * 8
    assert ppo_runs.num_updates(chosen, 113) == 2


def test_the_commands_train_and_evaluate(traces: Path, tmp_path: Path) -> None:
    out, found = tmp_path / "out", tmp_path / "found.json"
    given = ["--traces", str(traces), "--config", str(config(tmp_path)), "--out", str(out), "--mode", "ppo"]
    result = CliRunner().invoke(train_app, [*given, "--episodes", "3", "--save-interval", "1"])
    assert result.exit_code == 0, result.output
    assert "Validation" in result.output
    given = ["--traces", str(traces), "--trace", "small", "--seeds", "3-4", "--json", str(found)]
    result = CliRunner().invoke(evaluate_app, [*given, "--policies", f"ppo={out / runs.MODEL},fgd"])
    assert result.exit_code == 0, result.output
    policies = json.loads(found.read_text())["policies"]
    (row,) = files.read_actor(out / runs.MODEL).manifest.evaluation
    assert policies["ppo"]["100"] == list(row.kerf["100"])
    assert policies["ppo"]["refused"] == [0, 0]
    assert policies["fgd"]["130"] == list(row.fgd["130"])


@pytest.mark.slow
def test_two_learners_learn_what_one_does(traces: Path, tmp_path: Path) -> None:
    one = trained(traces, tmp_path, "one", 2)
    two = tmp_path / "two"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "extender",
        "train", "--traces", str(traces), "--config", str(config(tmp_path)), "--out", str(two), "--mode", "ppo",
        "--episodes", "4", "--save-interval", "2",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = (files.read_actor(out / runs.MODEL).attention for out in (one, two))
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
        run = ppo_runs.Run(traces, chosen, out, playing=lambda sources: ppo_rollouts.on_ray(sources, cluster.address))
        run.train(2, 2, lambda _: None, resume=False)
        same(here, out)
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()
