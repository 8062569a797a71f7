"""Models handed in that can't be evaluated: withdrawn with a reason, counted, and in nobody's way."""

import json
from pathlib import Path
from typing import Any

import pytest

from extender.parts.learning import controller
from extender.ranking import files
from extender.ranking.aside import AsideError
from tests.parts.learning.rigs import PACKS, SPREADS, rig, sha, written

ROW = {"trace": "t", "seeds": [1], "kerf": {"100": [1.0]}, "fgd": {"100": [1.0]}, "start": {"100": [0.5]}}
ODD: dict[str, dict[str, Any]] = {
    "a load that is no number": {"start": {"full": [0.5]}, "kerf": {"full": [1.0]}},
    "a load that it was not tried at": {"start": {"90": [0.5]}},
    "no seeds": {"start": {"100": []}},
    "none of its own": {"kerf": {"100": []}},
    "no number": {"kerf": {"100": [1e308, 1e308, 1e308]}, "start": {"100": [-1e308, -1e308]}},
}


@pytest.mark.parametrize("odd", ODD)
def test_a_candidate_with_an_odd_evaluation_is_withdrawn_and_says_why(tmp_path: Path, odd: str) -> None:
    better, next_one = written(tmp_path / "fitted", PACKS), written(tmp_path / "next", {"node_idle": 2.0})
    manifest = json.loads(better[files.MANIFEST]) | {"evaluation": [ROW | ODD[odd]]}
    with rig(tmp_path, SPREADS) as at:
        at.hand_in({**better, files.MANIFEST: json.dumps(manifest).encode()})
        told = at.look()
        assert (told["candidate"], told["trials"], told["takenBack"]) == (None, 0, 1)
        assert told["refused"] == [sha(better)[:12]]
        assert "its evaluation can't be read" in told["said"]
        assert not at.config_map["binaryData"]
        assert at.kerf.metric("kerf_learning_rollbacks_total") == 1
        at.hand_in(next_one)
        assert at.look()["candidate"] == sha(next_one)


def test_a_candidate_whose_trials_come_to_no_end_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends(*_: Any) -> Any:
        raise AsideError("it took longer than 1800 s")

    monkeypatch.setattr(controller, "tried_aside", ends)
    better = written(tmp_path / "fitted", PACKS)
    with rig(tmp_path, SPREADS) as at:
        at.hand_in(better)
        at.look()
        at.see(40)
        for _ in range(2):
            assert at.look()["candidate"] == sha(better)
            at.kerf.clock.now += 1_000
        told = at.look()
        assert (told["candidate"], told["takenBack"]) == (None, 1)
        assert "3 trials of it failed" in told["said"]
