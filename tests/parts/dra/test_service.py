"""Allocation of devices in a service: what it is made of, its metrics, and the settings that it needs."""

from contextlib import nullcontext
from typing import Any

import pytest

from extender.api.reviews import RewritesRequests
from extender.kube.transport import Right
from extender.parts.dra.extended_resources import Rewriting
from extender.parts.dra.keeper import ClaimKeeper
from extender.settings.load import SettingsError, load_settings
from tests.api.bodies import node
from tests.api.services import running
from tests.parts.pages import assert_its_metrics_are_on_its_page

NODES = [node("n-0", 1)]
QUEUE: dict[str, Any] = {"queue__enabled": True}
ON: dict[str, Any] = {**QUEUE, "dra__allocate": True}
CLASSES = {"nvidia.com/gpu": "gpu.class"}


def test_the_allocator_uses_the_shared_parts() -> None:
    with running(NODES, **ON, dra__rewrite_extended_resources=CLASSES, cluster__max_age_s=77.0) as kerf:
        parts = kerf.app.state.parts
        keeper, base = parts.queue.claims, parts.base
        assert isinstance(keeper, ClaimKeeper)
        assert (keeper.mirror, keeper.ledger, keeper.owned) == (base.mirror, base.ledger, base.ledger.rows.owned)
        assert (keeper.fence, keeper.resolver, keeper.transport) == (base.fence, base.resolver, base.transport)
        assert (keeper.clock, keeper.max_age_s, keeper.classes_to_make) == (base.clock, 77.0, {"gpu.class"})
        assert parts.capabilities.get(RewritesRequests) == Rewriting(CLASSES)
        right = Right("patch", "resource.k8s.io", "resourceclaims/status")
        assert parts.queue.dispatcher.rights.manifest(right) == "manifests/dra/rbac.yaml"


def test_its_metrics_are_on_its_page() -> None:
    with running(NODES, **QUEUE) as without, running(NODES, **ON) as kerf:
        assert_its_metrics_are_on_its_page("dra", without, kerf)


def test_rewriting_alone_allocates_nothing() -> None:
    with running(NODES, dra__rewrite_extended_resources=CLASSES) as kerf:
        parts = kerf.app.state.parts
        assert parts.base.ledger.rows.owned is None
        assert parts.capabilities.get(RewritesRequests) == Rewriting(CLASSES)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"dra.allocate": True}, "dra: allocate needs queue.enabled"),
        ({"dra.rewrite_extended_resources": CLASSES, "queue.enabled": True}, "needs allocate"),
        ({"dra.rewrite_extended_resources": CLASSES}, ""),
        ({"dra.rewrite_extended_resources": CLASSES, "queue.enabled": True, "dra.allocate": True}, ""),
    ],
)
def test_contradicting_settings_are_refused(flags: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told) if told else nullcontext():
        load_settings(flags=flags)
