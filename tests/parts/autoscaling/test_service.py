"""Letting pods go for autoscalers in a service: its metric, and the settings that it needs."""

from typing import Any

import pytest

from extender.queueing.roomless import RoomlessReleaser
from extender.settings.load import SettingsError, load_settings
from tests.api.bodies import node
from tests.api.services import running
from tests.parts.pages import assert_its_metrics_are_on_its_page

NODES = [node("n-0", 1)]
QUEUE: dict[str, Any] = {"queue__enabled": True}


def test_its_metric_is_on_its_page() -> None:
    with running(NODES, **QUEUE) as without, running(NODES, **QUEUE, autoscaling__enabled=True) as kerf:
        assert_its_metrics_are_on_its_page("autoscaling", without, kerf)
        assert RoomlessReleaser in kerf.service.contributions["autoscaling"].offers


def test_without_a_queue_there_is_nothing_to_let_go() -> None:
    with pytest.raises(SettingsError, match=r"autoscaling: enabled needs queue\.enabled"):
        load_settings(flags={"autoscaling.enabled": True})
