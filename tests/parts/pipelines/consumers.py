"""What pipelines hear of: nothing that the account of pods, nodes and namespaces has."""

from collections.abc import Sequence
from typing import Final

from tests.kube.consumers.table import Consumer

CONSUMERS: Final[Sequence[type[Consumer]]] = ()
LEFT_OUT: Final = {
    "extender/parts/pipelines/controller.py: self.jobs.subscribe(self._job_changed)": "of Jobs",
    "extender/parts/pipelines/controller.py: self.pipelines.subscribe(self._pipeline_changed)": "of Pipelines",
    "extender/parts/pipelines/mlflow.py: pipelines.subscribe(self._pipeline_changed)": "of Pipelines",
    "extender/parts/pipelines/mlflow.py: self.flows.subscribe(self._flow_changed)": "of flows",
}
