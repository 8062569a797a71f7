"""Devices of ResourceClaims on the page: a cluster with a real control plane, in a real browser."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.claims import DRIVER
from tests.e2e.clusters import KerfCluster
from tests.e2e.fixtures import Clusters
from tests.e2e.test_queueing import skipped
from tests.parts.dra.test_end_to_end import GPU_CLASS, gpus, publish
from tests.parts.dra.test_seen_devices import MIG_CLASS, MODEL, ask, publish_partitions, with_classes

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

SMALL = f"device.attributes['{DRIVER}'].profile == '1g.10gb'"


@pytest.fixture
def owner(clusters: Clusters) -> Iterator[KerfCluster]:
    """A node with a GPU in partitions, one with two whole GPUs, a pod with a partition and one that waits."""
    with with_classes(clusters) as cluster:
        publish_partitions(cluster, "parts")
        publish(cluster, "whole", gpus(2))
        ask(cluster, "small", MIG_CLASS, SMALL)
        cluster.bound("small")
        ask(cluster, "wants", GPU_CLASS, f"{MODEL} == 'H200'")
        skipped(cluster, "wants", "no device meets")
        yield cluster


def test_partitions_their_claims_and_what_is_free_are_shown(owner: KerfCluster, open_page: Callable[..., Page]) -> None:
    page = open_page(SimpleNamespace(port=owner.kerf.port))
    page.get_by_role("tab", name="Table").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="parts"))
    expect(row).to_contain_text("devices free: 2g.20gb, 1g.10gb")
    expect(row).to_contain_text("0.25")  # of the one GPU: a quarter of its memory
    row.get_by_role("link", name="parts").click()
    drawer = page.locator("#drawer-body")
    expect(drawer).to_contain_text("devices that Kerf can allocate to ResourceClaims: 2g.20gb, 1g.10gb")
    expect(drawer).to_contain_text("(1g.10gb): claim default/small of default/small")
    expect(drawer).to_contain_text("free: 2g.20gb, 1g.10gb")


def test_the_tip_of_a_gpu_names_claims_and_what_is_free(owner: KerfCluster, open_page: Callable[..., Page]) -> None:
    page = open_page(SimpleNamespace(port=owner.kerf.port))
    canvas = page.locator("#map canvas").first
    box = canvas.bounding_box()
    assert box is not None
    tip = page.locator("#map .tip")
    for x in range(4, 300, 4):  # until the pointer is on the node
        for y in (8, 16, 24, 32, 40):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if (told := tip.text_content() or "").startswith("parts") and "GPU 0" in told:
                expect(tip).to_contain_text("claim default/small of default/small")
                expect(tip).to_contain_text("free: 2g.20gb, 1g.10gb")
                return
    raise AssertionError(tip.text_content())


def test_a_pod_that_waits_for_devices_is_explained(owner: KerfCluster, open_page: Callable[..., Page]) -> None:
    page = open_page(SimpleNamespace(port=owner.kerf.port))
    page.goto(f"http://127.0.0.1:{owner.kerf.port}/#pod/default/wants")
    drawer = page.locator("#drawer-body")
    expect(drawer).to_contain_text(f"no device meets {MODEL} == 'H200'; nearest: gpu-0 of node parts")
    expect(drawer).to_contain_text(f"without the condition {MODEL} == 'H200' for request gpu")
