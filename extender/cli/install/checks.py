"""The list of checks, including those of parts (`Face.checks`). `kerf install check` and `kerf doctor` each run those
whose inputs they have. All checks are read-only."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

from extender.cli.install.access import admission_policy, rights
from extender.cli.install.devices import EXPORTER, devices, telemetry
from extender.cli.install.findings import Check, Finding, Needs, Verdict, broken
from extender.cli.install.running import certificate, reading, running, stopped
from extender.cli.install.schedulers import configuration, control_plane, extender_order, kerf, kubernetes, version_skew
from extender.core.faces import faces, named

_UNSEEN: Final = "the queue's gate, its webhook and node agents can't be checked"

_BEFORE: Final[tuple[Check[Any], ...]] = (
    Check("Kubernetes", Needs.CLUSTER, kubernetes),
    Check("Kerf", Needs.CLUSTER, kerf, unread="what is installed can't be read", fix=""),
    Check("scheduler configuration", Needs.CLUSTER, configuration),
    Check("version skew", Needs.CLUSTER, version_skew),
    Check("kube-scheduler", Needs.CLUSTER, control_plane),
    Check("order of extenders", Needs.CLUSTER, extender_order, unread=""),
    Check("rights", Needs.CLUSTER, rights),
    Check("admission policy", Needs.CLUSTER, admission_policy),
    Check("device plugin", Needs.CLUSTER, devices, unread="nodes can't be read", fix=""),
)
_AFTER: Final[tuple[Check[Any], ...]] = (
    Check(EXPORTER, Needs.CLUSTER, telemetry, unread="pods can't be read", fix=""),
    Check("telemetry", Needs.SETTINGS, reading),
    Check("certificate", Needs.SETTINGS, certificate),
    Check("queue and agents", Needs.SETTINGS, stopped, unread=_UNSEEN, blind=Verdict.BROKEN),
    Check("running Kerf", Needs.SERVER, running),
)


def checks_of(*needs: Needs) -> list[Check[Any]]:
    """The checks with one of these needs."""
    return [check for check in (*_BEFORE, *_of_parts(), *_AFTER) if check.needs in needs]


def _of_parts() -> Iterator[Check[Any]]:
    for name, face in faces().items():
        if not face.checks:
            continue
        try:
            yield from named(face.checks)()
        except (ImportError, AttributeError) as error:
            yield Check(f"part {name}", Needs.CLUSTER, partial(_not_loaded, str(error)))


async def _not_loaded(why: str, look: Any) -> AsyncIterator[Finding]:
    yield broken(f"its checks can't be loaded: {why}", "reinstall the part's package, or remove it")
