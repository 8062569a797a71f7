"""The live term in the simulator: what GPUs really do counts, and pods are placed as the service would."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.policies.kerf import KerfWeights
from extender.core.valuenet.features import Outlook, Worth
from model.simulations import learned
from model.simulations.loads import LOADS, Outcome, Scene, Synthetic, outcomes, scenes
from tests.core.learning import only
from tests.model.builders import write_openb

POTENTIAL = only(worth=1.0, gpus_idle=0.2, fragment=-0.5)
WEIGHTS = {"off": KerfWeights(live=0.0), "on": KerfWeights(live=4.0)}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_openb(tmp_path_factory.mktemp("openb"), num_nodes=12, num_pods=120)


def drawn(traces: Path, synthetic: Synthetic) -> Scene:
    (scene,) = scenes(traces, "small", 1.0, 12, [7], synthetic)
    return scene


def test_without_loads_nothing_slows_and_pods_go_where_the_simulator_puts_them(traces: Path) -> None:
    scene = drawn(traces, Synthetic(hot_frac=0.0, used=(0.0, 0.0)))
    found = outcomes(scene, POTENTIAL, {"off": WEIGHTS["off"]}, 5)["off"]
    assert found.effective == pytest.approx(found.allocated)
    done = learned.replay(scene.offered, _narrow(scene), POTENTIAL)
    placed = np.cumsum(np.where(done.placed >= 0, scene.offered.asked_milli, 0)) / scene.offered.gpu_milli
    arrived = np.cumsum(scene.offered.asked_milli) / scene.offered.gpu_milli
    ends = np.searchsorted(arrived, np.array(LOADS) / 100, side="right") - 1
    assert found.allocated == pytest.approx(100 * placed[ends])


def test_the_live_term_spares_pods_the_load_of_others(traces: Path) -> None:
    scene = drawn(traces, Synthetic(hot_frac=0.4, refresh_pods=1))
    found = outcomes(scene, POTENTIAL, WEIGHTS, 1)
    assert all(fast < held for fast, held in zip(found["off"].effective, found["off"].allocated, strict=True))
    assert found["on"].effective[0] > found["off"].effective[0]
    assert Outcome((1.0,) * 3, (1.0, 2.0, 6.0)).mean == 3


def _narrow(scene: Scene) -> Outlook:
    """The outlook without the row for models that come later."""
    outlook = scene.outlook
    tables = {
        name: getattr(outlook, name)._replace(weight=np.delete(getattr(outlook, name).weight, -2, axis=0))
        for name in ("typical", "one", "many")
    }
    worth = Worth(*(np.delete(prices, -2, axis=0) for prices in outlook.worth))
    return outlook._replace(worth=worth, wanted=np.delete(outlook.wanted, -2), **tables)
