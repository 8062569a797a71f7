"""What a cluster lacks for Kerf, each with the command that fixes it. Only reads; asks as whoever runs it."""

import re
from typing import Final

import msgspec

from extender.cli.install.access import admission_policy, rights
from extender.cli.install.control_planes import control_plane
from extender.cli.install.devices import devices, telemetry
from extender.cli.install.dra.state import devices_of_kerf
from extender.cli.install.extender_order import extender_order
from extender.cli.install.findings import ANY, Finding, Verdict
from extender.cli.install.kerf import find_kerf, scheduling
from extender.kube.client import ClusterError, Transport

_OLDEST_MINOR: Final = 29
_TESTED_MINORS: Final = (33, 37)


async def check_cluster(transport: Transport, account: str = "") -> list[Finding]:
    """Everything that was looked at; `account` is NAMESPACE/NAME of Kerf's service account, "" for the found Kerf's.

    Raises UnreachableError, CredentialsError.
    """
    minor = await _minor(transport)
    found = [_supported(minor)]
    try:
        installed, told = await find_kerf(transport)
        found += told
    except (ClusterError, msgspec.DecodeError) as error:
        installed = None
        found.append(Finding("Kerf", Verdict.NOTE, f"what is installed can't be read: {error}"))
    if installed is not None:
        found += scheduling(installed, minor)
    for part in (
        control_plane(transport, installed),
        extender_order(transport, installed),
        rights(transport, installed, account),
        admission_policy(transport, installed),
        devices(transport),
        devices_of_kerf(transport, installed),
        telemetry(transport, installed),
    ):
        found += [finding async for finding in part]
    return found


async def _minor(transport: Transport) -> int:
    answer = ANY.decode(await transport.get("/version"))
    return int(re.sub(r"\D.*", "", str(answer.get("minor", ""))) or 0)


def _supported(minor: int) -> Finding:
    oldest, newest = _TESTED_MINORS
    if minor < _OLDEST_MINOR:
        told = f"1.{minor}: Kerf needs 1.{_OLDEST_MINOR} or newer"
        return Finding("Kubernetes", Verdict.BROKEN, told, "upgrade the cluster")
    if not oldest <= minor <= newest:
        return Finding("Kubernetes", Verdict.NOTE, f"1.{minor}: tested with 1.{oldest} to 1.{newest}")
    return Finding("Kubernetes", Verdict.OK, f"1.{minor}")
