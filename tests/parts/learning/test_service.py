"""Learning in a service: a model in shadow, its metrics and settings, and that it can be turned off."""

from pathlib import Path
from typing import Any

import pytest

from extender.settings.load import SettingsError, load_settings
from tests.api.bodies import pod
from tests.api.services import running
from tests.ledger.builders import until
from tests.parts.learning.rigs import judges_of
from tests.parts.pages import assert_its_metrics_are_on_its_page
from tests.ranking.test_service import BREAKS_UP, KEEPS_WHOLE, NAMES, NODES, decided, held, look, serving, write


def test_a_shadow_changes_no_answer_and_counts_what_it_would_have_done(tmp_path: Path) -> None:
    path = write(tmp_path / "model", BREAKS_UP)
    with serving(path, [*NODES, held()], model__mode="shadow") as kerf:
        look(kerf)
        shadow = judges_of(kerf).shadow
        assert shadow is not None
        assert kerf.get("/version").json()["policy"] == "tightest"
        assert decided(kerf, pod("one", 1)) == "b"  # best fit; the model would break up a
        assert decided(kerf, pod("whole", 8)) == "a"  # both

        kerf.run(until(lambda: shadow.counts.same + shadow.counts.other == 2))  # it works beside, at its own pace
        counts = {verdict: kerf.metric("kerf_shadow_decisions_total", verdict=verdict) for verdict in ("same", "other")}
        assert counts == {"same": 1, "other": 1}
        assert kerf.metric("kerf_shadow_gain_gpus_total") == 1.0  # V of a: from -1 to 0
        assert kerf.num_reservations == 2


def test_a_shadow_that_falls_behind_leaves_decisions_out(tmp_path: Path) -> None:
    with serving(write(tmp_path / "model", KEEPS_WHOLE), model__mode="shadow") as kerf:
        shadow = judges_of(kerf).shadow
        assert shadow is not None
        vars(shadow)["_frac"] = 0.001
        look(kerf)
        for _ in range(80):
            kerf.filter(pod("one", 1), NAMES)
        assert kerf.metric("kerf_shadow_decisions_total", verdict="left_out") >= 80 - 64 - 4


def test_its_metrics_are_on_its_page() -> None:
    serves: dict[str, Any] = {"model__mode": "serve"}
    off: dict[str, Any] = {"learning__enabled": False, **serves}
    on: dict[str, Any] = {"learning__config_map": "a/b", **serves}
    with running(NODES, **off) as without, running(NODES, **on) as kerf:
        course = judges_of(kerf).course
        assert course is not None
        course.last = 1.0, 0.1
        assert_its_metrics_are_on_its_page("learning", without, kerf)


def test_turned_off_it_is_gone_and_the_model_serves() -> None:
    with running(NODES, learning__enabled=False) as kerf:
        told = kerf.get("/model").json()
        assert (told["evidence"], told["learning"]) == (None, None)


def test_what_nobody_would_try_is_not_named() -> None:
    with pytest.raises(SettingsError, match="config_map needs enabled"):
        load_settings(flags={"learning.enabled": False, "learning.config_map": "ns/learned"})
