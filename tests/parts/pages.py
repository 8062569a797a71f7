"""Compares a part's page with its routes and metrics."""

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.api.services import Kerf
from tests.docs.pages import DOCS

_ROUTE = re.compile(r"^### (?:GET|POST) (/\S+)$", re.MULTILINE)
_METRIC = re.compile(r"`(kerf_\w+)`")


def page_of(name: str) -> str:
    """The text of a part's page."""
    return (DOCS / "parts" / f"{name}.md").read_text()


def paths_of_parts() -> set[str]:
    """The routes of all parts, as on their pages."""
    return {path for page in DOCS.glob("parts/*.md") for path in _ROUTE.findall(page.read_text())}


def metrics_of(kerf: Kerf) -> set[str]:
    """Names of the metrics that a Kerf serves."""
    families = text_string_to_metric_families(kerf.get("/metrics").content.decode())
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def assert_its_metrics_are_on_its_page(name: str, without: Kerf, kerf: Kerf) -> None:
    """Assert that the page names exactly the metrics that the part adds."""
    assert set(_METRIC.findall(page_of(name))) == metrics_of(kerf) - metrics_of(without)
