"""Which way of running Kerf is whose: told once, in the install guide, and the same as `kerf install check` says."""

import re

import pytest

from extender.cli.install.schedulers import _VENDORS
from tests.docs.pages import DOCS, README, ROOT, anchors, links, pages, sections, tracked

INSTALL = (DOCS / "guides" / "install.md").read_text()
PART = "Which way is mine"
WAYS = {"static pod", "service", "scheduler", "planner"}


def rows(number: int) -> list[list[str]]:
    """Cells of a table of that part, without its head."""
    tables = re.findall(r"(?:^\|.*\n)+", sections(INSTALL)[PART], re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in tables[number].splitlines()[2:]]


CLUSTERS = {name: row for row in rows(0) for name in row[0].split(", ")}


def ways_of(row: list[str]) -> set[str]:
    """The ways that a cluster has, by its row."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(row[1:3]))
    return {way for way in WAYS if re.search(rf"(^|\W){way}(\W|$)", plain)}


@pytest.mark.parametrize("vendor", _VENDORS, ids=lambda vendor: str(vendor.name))
def test_the_check_and_the_guide_agree(vendor: object) -> None:
    (found,) = (one for one in _VENDORS if one is vendor)
    row = CLUSTERS[found.name]
    assert ("service" in ways_of(row)) == bool(found.how)
    assert {"planner", "scheduler"} <= ways_of(row)
    for quoted in re.findall(r"`[^`]+`", found.how):
        assert quoted in row[3]


def test_clusters_that_are_configured_by_kubeadm_have_all_ways() -> None:
    for name in ("kubeadm", "kind"):
        assert ways_of(CLUSTERS[name]) == WAYS
        assert "kubeadm.md" in CLUSTERS[name][1]


def test_every_way_is_told_with_what_it_can_not() -> None:
    told = {re.sub(r"[`\[\]]|\(.*", "", row[0]).strip() for row in rows(1)}
    assert told == WAYS


def test_other_pages_lead_there_and_tell_nothing_else() -> None:
    for page, link in (
        (README, "docs/guides/install.md#which-way-is-mine"),
        (DOCS / "guides" / "managed-clusters.md", "install.md#which-way-is-mine"),
    ):
        assert link in links(page.read_text()), page
    assert "which-way-is-mine" in anchors(INSTALL)
    named = set(re.findall(r"kubeadm|kind|k3s|RKE2|EKS|GKE|AKS|OpenShift", README.read_text()))
    assert named == CLUSTERS.keys() - {"any", "to try Kerf"}


def test_values_of_a_newer_chart_are_not_lost_by_an_upgrade() -> None:
    told = [path.read_text() for path in (*pages(), *tracked("extender/*.py", "manifests/*"))]
    assert not [text for text in told if " --reuse-values" in text]
    assert len([text for text in told if " --reset-then-reuse-values" in text]) > 3


def test_what_the_check_names_is_there() -> None:
    for path in tracked("extender/cli/install/*.py"):
        for page, anchor in re.findall(r"(docs/guides/[a-z-]+\.md)#?([a-z-]*)", path.read_text()):
            assert not anchor or anchor in anchors((ROOT / page).read_text()), path
