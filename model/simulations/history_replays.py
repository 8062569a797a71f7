"""What the weeks of a history would have been under other policies: the same pods at the same times, first come first
served with skipping."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from extender.core.clusters import WHOLE_MILLI
from extender.history.records import History
from extender.ranking.files import Model
from model.simulations import pasts
from model.simulations.baselines import baseline
from model.simulations.departures import churn_measures, simulate_churn
from model.simulations.online import Follower, Seen, Watch
from model.simulations.pasts import Past, actual, past

MEASURES: Final = (*pasts.MEASURES, "fragments")
LEARNED: Final = "kerf"


def replay(history: History, policies: Sequence[str], model: Model, tell: Callable[[str], None]) -> dict[str, Any]:
    """Figures by policy, and what is known to have happened.

    `kerf` is what ships: it is told nothing, and expects what it has seen. Raises HistoryError, ValueError.
    """
    known = past(history)
    found: dict[str, Mapping[str, float]] = {}
    for name in policies:
        tell(f"replay under {name}")
        offered = known.offered
        policy = _follower(known, model) if name == LEARNED else baseline(name)
        measured = churn_measures(offered, simulate_churn(offered, policy, "fifo", 0))
        found[name] = {measure: measured[measure] for measure in MEASURES}
    about = history.about
    return {
        "history": {
            "source": about.source, "days": round((about.until_s - about.since_s) / 86400, 3),
            "nodes": len(known.nodes.names), "gpus": known.nodes.gpu_milli // WHOLE_MILLI,
            "pods": len(known.pods.names), "left_out": known.offered.left_out,
            "duration_guessed": known.duration_guessed, "missing": list(about.missing),
        },
        "policies": found,
        "actual": actual(history),
    }  # fmt: skip


def _follower(known: Past, model: Model) -> Follower:
    offered = known.offered
    load = model.manifest.foresight_load
    seen = Seen(offered.nodes, offered.tasks.asks, offered.model_names, Watch(), load)
    return Follower(model.potential, seen, Watch())
