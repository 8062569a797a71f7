"""What there is to see of violations while all that runs still runs, beside the logs."""

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Final
from urllib.parse import quote

from tests.tools.chaos.checker import Violation
from tests.tools.chaos.clusters import Cluster
from tests.tools.chaos.journals import Journal
from tests.tools.chaos.witnesses import NAMESPACE

_MAX_SUBJECTS: Final = 8
_ALWAYS: Final = ("claims", "maps", "budgets")


def keep(cluster: Cluster, name: str, found: Collection[Violation], journal: Journal | None) -> None:
    """Write a file of that name; with a `journal` each version of what violations are about is in it, and of claims."""
    seen = cluster.witness.seen
    subjects = sorted({violation.subject for violation in found})[:_MAX_SUBJECTS]
    told = {
        "violations": [str(violation) for violation in found],
        "kerf": {subject: cluster.kerf_answers(f"/explain/pod/{NAMESPACE}/{quote(subject)}") for subject in subjects},
        "audit": cluster.audited(subjects),
        "metrics": cluster.kerf_answers("/metrics"),
        "overview": (overview := cluster.kerf_answers("/nodes")),
        "reserved": {name: cluster.kerf_answers(f"/nodes/{name}") for name in sorted(_with_reserved(overview))},
        "pending": cluster.kerf_answers("/pending"),
        "nodes": cluster.loop.call(lambda: list(seen.nodes.values())),
        "pods": cluster.loop.call(lambda: list(seen.pods.values())),
        "bound": cluster.loop.call(lambda: list(seen.bound.values())),
        "journal": list(_versions(journal, subjects)) if journal is not None else [],
    }
    (cluster.plane.directory / f"{name}.json").write_text(json.dumps(told, indent=1))


def _with_reserved(answers: Iterable[str]) -> set[str]:
    """Nodes of which something is reserved for a pod without a node; a Kerf that knows of none yet tells of none."""
    return {node["node"] for text in answers for node in json.loads(text).get("items", ()) if node["gpusReserved"]}


def _versions(journal: Journal, subjects: Iterable[str]) -> Iterator[str]:
    for event in journal:
        if event.kind in _ALWAYS or event.manifest["metadata"]["name"] in subjects:
            gone = "gone" if event.gone else ""
            yield f"{event.version} {event.at_s:.3f} {event.kind} {gone} {json.dumps(event.manifest)}"
