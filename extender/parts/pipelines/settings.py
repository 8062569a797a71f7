"""Settings of the pipelines part, and the rights that it needs."""

from typing import Any, Final

from extender.kube.rights import Need, Rights
from extender.settings.parts import Part
from extender.settings.section import Section


class PipelineSettings(Section):
    """Pipelines of Jobs: see docs/guides/pipelines.md."""

    EXPERIMENTAL = frozenset({"mlflows"})

    enabled: bool = False
    """Whether Kerf runs Pipeline objects; their pods wait in the queue."""
    mlflows: bool = False
    """Whether Kerf runs MLTaskScheduler's MLFlow objects as pipelines; needs pipelines.enabled."""


def _lacking(settings: Any) -> str:
    if settings.pipelines.mlflows and not settings.pipelines.enabled:
        return "mlflows needs enabled: MLFlows are run as pipelines"
    return "" if settings.queue.enabled else "enabled needs queue.enabled: their pods wait in the queue"


_WITHOUT: Final = "no pipeline runs"
_FLOWS_WITHOUT: Final = "no MLFlow runs"

PART: Final = Part(
    name="pipelines",
    settings=PipelineSettings,
    wanted=lambda pipelines: pipelines.enabled or pipelines.mlflows,
    module="extender.parts.pipelines.part",
    lacks=_lacking,
    renamed={"queue.pipelines": "pipelines.enabled", "queue.mlflows": "pipelines.mlflows"},
    rights=(
        Rights(
            capability="pipelines",
            manifest="manifests/queue/pipelines.yaml",
            needs=(
                Need("kerf.dev", "pipelines", ("list", "watch"), _WITHOUT),
                Need("kerf.dev", "pipelines/status", ("patch",), _WITHOUT),
                Need("batch", "jobs", ("get", "watch", "create", "patch"), _WITHOUT),
            ),
        ),
        Rights(
            capability="pipelines",
            manifest="manifests/queue/mlflows.yaml",
            needs=(
                Need("kopf.dev", "mlflows", ("list", "watch"), _FLOWS_WITHOUT),
                Need("kopf.dev", "mlflows/status", ("patch",), _FLOWS_WITHOUT),
                Need("kerf.dev", "pipelines", ("create", "patch"), _FLOWS_WITHOUT),
            ),
            wanted=lambda pipelines: pipelines.mlflows,
        ),
    ),
)
