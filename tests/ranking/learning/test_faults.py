"""What can go wrong while fitted models are tried: it costs nobody a decision, and no model comes further by it."""

import json
from pathlib import Path

from extender.core.policies.registry import CANDIDATE
from extender.ranking.learning.shelf import COURSE
from tests.api.bodies import pod
from tests.ranking.learning.rigs import NAMES, PACKS, SPREADS, objects_of, rig, sha, written


def test_pods_drawn_for_a_model_that_is_gone_are_placed_by_the_one_that_serves(tmp_path: Path) -> None:
    one = written(tmp_path / "one", PACKS)
    with rig(tmp_path, SPREADS) as at:
        kerf, placer = at.kerf, at.kerf.service.placer
        at.hand_in(one)
        at.config_map["metadata"]["annotations"] = {COURSE: json.dumps({"candidate": sha(one), "stage": "canary"})}
        at.look()
        drawn, waits = [], []
        for number in range(40):
            manifest = kerf.create(pod(f"drawn-{number}", 1))
            kerf.filter(manifest, NAMES)
            kept = placer.decided.last("default", manifest["metadata"]["name"])
            assert kept is not None
            if kept.decision.policy == CANDIDATE:
                drawn.append(manifest)
            placer.release(manifest["metadata"]["uid"])
            manifest = kerf.create(pod(f"waits-{number}", 8))
            kerf.filter(manifest, NAMES)
            waits += [manifest] if placer.read_request(objects_of(manifest)).policy == CANDIDATE else []
        assert drawn and waits
        at.config_map["binaryData"] = {}
        assert at.look()["candidate"] is None
        assert kerf.bind(drawn[0], NAMES[0]) == ""
        assert kerf.get(f"/explain/pod/default/{drawn[1]['metadata']['name']}").status == 200
        remembered = placer.remembered(waits[0]["metadata"]["uid"])
        assert remembered is not None and not placer.fits_somewhere(remembered)  # as the waker asks


def test_no_pod_chooses_to_be_placed_by_a_model_on_trial(tmp_path: Path) -> None:
    one = written(tmp_path / "one", PACKS)
    with rig(tmp_path, SPREADS) as at:
        at.hand_in(one)
        assert at.look()["stage"] == "shadow"
        chooses = pod("chooses", 1, annotations={"kerf.dev/policy": CANDIDATE})
        (why,) = set(at.kerf.filter(chooses, NAMES)["FailedAndUnresolvableNodes"].values())
        assert why.startswith(f'kerf.dev/policy: "{CANDIDATE}" is not a policy; use one of tightest')
        assert why.count(CANDIDATE) == 1
