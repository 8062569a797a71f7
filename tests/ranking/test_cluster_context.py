"""A net with attention in the running service: what it sees, when it looks again, and what it does with no sense."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from extender.core.policies.kerf import KerfWeights
from extender.core.valuenet import attention
from extender.core.valuenet.attention import Attention
from extender.core.valuenet.features import FEATURES, node_states
from extender.core.valuenet.potentials import Potential
from extender.ranking import files
from extender.ranking.files import _read_actor
from extender.ranking.service import _Pace
from model.simulations.looks import _Board
from tests.api.bodies import pod
from tests.api.services import Kerf
from tests.core.learning import only
from tests.core.valuenet.builders import random_attention
from tests.e2e.traces import expected, offered
from tests.ranking.test_service import NODES, decided, look, write
from tests.ranking.test_service import serving as serving_at_its_pace


def net(slope: list[float], level: list[float], weights: list[float]) -> Attention:
    """A net that sees how much of the cluster's GPU is free: a wholly idle node is worth `weights` of
    tanh(slope x free + level)."""
    arrays = {name: np.zeros(shape) for name, shape in attention.shapes(1, 0, len(slope)).items()}
    arrays["hidden"][0] = slope
    arrays["hidden_bias"][:] = level
    arrays["out"][:, FEATURES.index("node_idle")] = weights
    arrays["reach"][:] = 1.0
    arrays["begin"][-1] = np.log(0.1)  # the quantum
    return Attention(**arrays)


TURNS = net([10.0], [-7.5], [1.0])
"""Wholly idle nodes are kept while more than three quarters of the GPUs are free, then broken into first."""
OVERFLOWS = net([1.0, -1.0], [0.0, 100.0], [1.2e308, 1.2e308])
"""Finite where the file is checked, far from all that there is; nowhere in between."""


def drawn() -> Attention:
    """One that attends to nodes and pods, has a net of its own for V, and stays near the released weights."""
    rng = np.random.default_rng(1)
    seeing = random_attention(rng, net=3)
    begun = files.read(files.RELEASED).potential
    return seeing._replace(
        begin=np.append(begun.weights, np.log(begun.quantum[0])), reach=np.full(len(FEATURES) + 1, 0.02),
        node_shift=np.zeros(len(FEATURES)), node_scale=np.full(len(FEATURES), 0.1), value_out=seeing.value_out * 0.1,
    )  # fmt: skip


@contextmanager
def serving(path: Path, objects: Any = NODES, **flags: Any) -> Iterator[Kerf]:
    """Kerf with a net that is evaluated only when the test calls `look`."""
    with serving_at_its_pace(path, objects, **flags) as kerf:
        kerf.run(kerf.service.rank.stop())
        yield kerf


def served(kerf: Kerf) -> Potential:
    prospect = kerf.service.rank.score.served
    assert prospect is not None
    return prospect.potential


def bits(potential: Potential) -> list[Any]:
    return [array.tolist() for array in potential]


def place(kerf: Kerf, name: str, gpus: int) -> str:
    return decided(kerf, pod(name, gpus))


def test_a_net_serves(tmp_path: Path) -> None:
    with serving(write(tmp_path / "net", drawn())) as kerf:
        look(kerf)
        state = kerf.get("/model").json()
        assert (state["served"], state["model"]["kind"]) == ("model", "attention")
        place(kerf, "one", 1)
        ranking = kerf.get("/explain/pod/default/one").json()["ranking"]
        assert ranking["served"] == "model"
        moved = sum(part["movedGPUs"] for part in ranking["features"])
        assert moved == pytest.approx(ranking["gainGPUs"], abs=1e-5)


@pytest.mark.slow
def test_it_gives_the_potential_that_the_simulator_gives(tmp_path: Path) -> None:
    """On the empty cluster, and once forty pods have been placed by the first one, shares among them."""
    trace = offered(12, 40, seed=3)
    path = write(tmp_path / "net", drawn())
    actor = _read_actor(path).attention
    typical = [
        {"cpu_milli": each.cpu_milli, "gpus": each.gpus, "gpu_milli": each.gpu_milli, "count": each.count}
        for each in expected()
    ]
    flags: dict[str, Any] = {"decisions__typical_pods": typical, "model__prior_pods": 1e9}
    with serving(path, trace.node_manifests, **flags) as kerf:
        kerf.service.rank.weights = KerfWeights(live=0.0)
        look(kerf)
        prospect, cluster = kerf.service.rank.score.served, kerf.service.placer.snapshot()
        assert prospect is not None
        rows = np.array([cluster.row_of[name] for name in trace.workload.node_names])
        simulated = _Board(trace.workload, prospect.outlook)
        first = attention.point(simulated.sight(), actor)
        assert bits(served(kerf)) == bits(attention.potential_at(first, actor))

        simulated.place(len(trace.pod_manifests), actor, first)
        names = list(trace.workload.node_names)
        for manifest in trace.pod_manifests:
            manifest["metadata"]["uid"] = manifest["metadata"]["name"]
            kerf.filter(kerf.create(manifest), names)
        now = node_states(kerf.service.placer.snapshot(), rows, prospect.num_models)
        assert now.gpu_free_milli.tolist() == simulated.nodes.gpu_free_milli.tolist()
        look(kerf)
        second = attention.point(simulated.sight(), actor)
        assert not np.allclose(first, second)
        assert bits(served(kerf)) == bits(attention.potential_at(second, actor))


FIRM: Final[dict[str, Any]] = {"model__prior_pods": 500.0}
"""Some pods more change nothing that is expected."""


def num_looks(kerf: Kerf) -> int:
    look(kerf)
    return int(kerf.metric("kerf_model_looks_total"))


def test_it_looks_again_when_so_much_gpu_was_given_away(tmp_path: Path) -> None:
    path = write(tmp_path / "net", TURNS)
    with serving(path, [*NODES, pod("held", 1, node_name="b")]) as kerf:
        kerf.service.rank.pace = _Pace(look_frac=0.3, look_s=1e9)
        begun = num_looks(kerf)
        assert served(kerf).weights[FEATURES.index("node_idle")] > 0.5
        assert place(kerf, "six", 6) == "b"  # 7 of 24, and 6 of them since the look
        assert num_looks(kerf) == begun
        assert place(kerf, "one", 1) == "b"  # between two looks the potential stays
        assert kerf.metric("kerf_model_looks_total") == begun
        assert place(kerf, "two", 2) == "a"  # 9 since
        assert num_looks(kerf) == begun + 1
        assert served(kerf).weights[FEATURES.index("node_idle")] < 0
        assert place(kerf, "three", 1) == "c"  # which is wholly idle, and a is not
        assert num_looks(kerf) == begun + 1


def test_it_looks_again_after_a_time_when_anything_has_changed(tmp_path: Path) -> None:
    with serving(write(tmp_path / "net", TURNS), **FIRM) as kerf:
        kerf.service.rank.pace = _Pace(look_frac=1.0, look_s=60.0)
        begun = num_looks(kerf)
        kerf.clock.now += 100
        assert num_looks(kerf) == begun  # nothing has
        place(kerf, "one", 1)
        assert num_looks(kerf) == begun + 1
        assert kerf.get("/model").json()["looks"] == {"number": begun + 1, "ageSeconds": 0.0}
        place(kerf, "two", 1)
        kerf.clock.now += 30
        assert num_looks(kerf) == begun + 1
        assert kerf.metric("kerf_model_look_age_seconds") == 30.0


def test_weights_that_are_not_finite_are_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "net", OVERFLOWS)
    with serving(path) as kerf:
        with caplog.at_level(logging.CRITICAL):
            begun = num_looks(kerf)
        assert place(kerf, "one", 1) == "a"
        state = kerf.get("/model").json()
        assert state["served"] == "tightest" and "not finite" in state["reason"]
        assert state["reason"] in kerf.get("/readyz").json()["degraded"][0]
        assert (kerf.metric("kerf_model_loaded"), kerf.metric("kerf_model_serving")) == (1, 0)
        assert num_looks(kerf) == begun  # not again and again
        write(path, TURNS)
        assert num_looks(kerf) > begun
        assert kerf.get("/readyz").json() == {"status": "ok"}


def test_a_released_kind_of_model_has_no_need_to_look_again(tmp_path: Path) -> None:
    files.write(tmp_path / "model", only(node_idle=1.0), 1.0, {"mode": "by hand"}, ())
    with serving(tmp_path / "model", **FIRM) as kerf:
        kerf.service.rank.pace = _Pace(look_frac=0.01, look_s=0.01)
        begun = num_looks(kerf)
        place(kerf, "one", 8)
        kerf.clock.now += 100
        assert num_looks(kerf) == begun
