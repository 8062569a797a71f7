"""Training data from a history: no tenant counts for more than its work."""

import numpy as np

from model.workloads.histories import _fairly
from tests.history.builders import history, nodes, pods


def test_a_tenant_that_floods_counts_no_more_than_its_work() -> None:
    honest = [{"namespace": f"team-{number % 4}", "gpus": 4, "ended_s": 40_000.0} for number in range(400)]
    flood = [{"namespace": "flood", "gpu_milli": 130, "cpu_milli": 63_000, "ended_s": 60.0} for _ in range(6000)]
    known = history(pods(*honest, *flood), nodes(8))
    everybody = np.ones(6400, np.bool_)
    kept = _fairly(known, everybody)
    assert kept[:400].sum() > 380  # honest teams do not lose by it
    assert 0 < kept[400:].sum() / kept.sum() < 0.04  # it has a thousandth of the work: the part that everybody has
    assert _fairly(known, everybody).tolist() == kept.tolist()
    late = np.arange(6400) >= 400
    assert not _fairly(known, ~late)[400:].any()


def test_who_works_as_much_as_others_loses_nothing() -> None:
    known = history(pods(*({"namespace": f"team-{number % 4}"} for number in range(400))), nodes(8))
    assert _fairly(known, np.ones(400, np.bool_)).all()
    unnamed = history(pods(*({"gpus": 1 + number % 8} for number in range(400))), nodes(8))
    assert _fairly(unnamed, np.ones(400, np.bool_)).all()  # public traces have no namespaces
