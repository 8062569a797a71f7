"""The history in a process in which the package of docs/examples/kerf-amd is installed: run by tests/vendors."""

from extender.core.resources.gpu_models import describe_model
from extender.parts.history.recorder import PodRows
from extender.plugins.pods import read_pod_request
from tests.ledger.builders import pod_object


def test_a_recorded_pod_names_the_models_of_its_vendor() -> None:
    models = (describe_model("Tesla-T4", {}), describe_model("Instinct_MI210", {}))
    rows = PodRows(read_pod_request, lambda pod: ("", 0), lambda: models, None)
    row = rows.row(pod_object("p", 1, resource="amd.com/gpu"), 0.0)
    assert row is not None
    assert "mi210" in row
    assert not any("t4" in str(value) for value in row)
