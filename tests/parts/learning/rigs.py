"""A Kerf to which fitted models are handed in."""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import linear
from extender.kube import objects
from extender.kube.memory import MemoryCluster
from extender.parts.learning.controller import ModelTrialController
from extender.parts.learning.part import _Judges
from extender.ranking import files
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running

NODES = [node(f"n-{number}", 4) for number in range(8)]
NAMES = [f"n-{number}" for number in range(8)]
PACKS, SPREADS = {"node_idle": 1.0, "gpus_idle": 0.01}, {"node_idle": -1.0, "gpu_square": -1.0}


Contents = dict[str, bytes]
"""The files of a model."""


def written(folder: Path, weights: dict[str, float]) -> Contents:
    potential = linear(np.array([weights.get(name, 0.0) for name in FEATURES]), 0.001)
    files.write(folder, potential, 1.0, {"mode": "by hand"}, ())
    return {name: (folder / name).read_bytes() for name in (files.MANIFEST, files.WEIGHTS)}


def objects_of(manifest: dict[str, Any]) -> objects.Pod:
    return msgspec.convert(manifest, objects.Pod)


def sha(contents: Contents) -> str:
    told: str = json.loads(contents[files.MANIFEST])["sha256"]
    return told


def judges_of(kerf: Kerf) -> _Judges:
    """What the part does."""
    judges = kerf.service.judges
    assert isinstance(judges, _Judges)
    return judges


class Rig:
    """A Kerf whose released rank is known, and a ConfigMap."""

    def __init__(self, kerf: Kerf, config_map: dict[str, Any]) -> None:
        self.kerf, self.config_map = kerf, config_map
        self.num_pods = 0

    @property
    def learning(self) -> ModelTrialController:
        course = judges_of(self.kerf).course
        assert course is not None
        return course

    def hand_in(self, contents: Contents, slot: str = "candidate") -> None:
        data = {f"{slot}.{name}": b64encode(content).decode() for name, content in contents.items()}
        self.config_map["binaryData"] = {**self.config_map.get("binaryData", {}), **data}

    def look(self) -> dict[str, Any]:
        """A round of the learning, then of the rank."""
        self.kerf.run(self.learning.round())
        self.kerf.run(self.kerf.service.rank.round())
        told: dict[str, Any] = self.kerf.get("/model").json()["learning"]
        return told

    def see(self, num_pods: int = 40) -> set[str]:
        """Ones and fours come by; by which policies they were placed."""
        policies = set()
        self.kerf.clock.now += 1e-6
        for _ in range(num_pods):
            self.num_pods += 1
            manifest = pod(f"p{self.num_pods}", 1 if self.num_pods % 4 else 4)
            self.kerf.filter(manifest, NAMES)
            kept = self.kerf.service.placer.decided.last("default", manifest["metadata"]["name"])
            assert kept is not None
            policies.add(kept.decision.policy)
            self.kerf.service.placer.release(manifest["metadata"]["uid"])
        return policies

    def serving(self) -> str:
        model = self.kerf.service.rank.model
        assert model is not None
        return model.manifest.sha256


@contextmanager
def rig(
    tmp_path: Path, released: dict[str, float], cluster: MemoryCluster | None = None, **flags: Any
) -> Iterator[Rig]:
    path = tmp_path / "released"
    if not path.exists():
        written(path, released)
    cluster = cluster or MemoryCluster(NODES)
    config_map = cluster.keep_config_map("kerf-system", "kerf-learned")
    given = {
        "model__mode": "serve", "model__prices": "plain", "model__check_s": 3600.0, "model__path": str(path),
        "model__prior_pods": 0.0, "learning__config_map": "kerf-system/kerf-learned", "learning__stage_s": 1e-9,
        "learning__stage_pods": 30, "learning__canary_frac": 0.5, **flags,
    }  # fmt: skip
    with running(cluster, **given) as kerf:
        kerf.run(kerf.service.rank.round())
        yield Rig(kerf, config_map)
