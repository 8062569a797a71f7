"""Checks and their findings, and how they are run and printed."""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from extender.cli.client.kerf import FAILED
from extender.kube.client import ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.watches import Lister

T = TypeVar("T")

KERF: Final = "app.kubernetes.io/name=kerf"
ANY: Final = Decoder(dict[str, Any])
_SIGNS: Final = {"ok": "[green]ok[/green]    ", "note": "[yellow]note[/yellow]  ", "broken": "[red]broken[/red]"}


class Verdict(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Works, but less well than it could; or could not be checked."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check."""

    what: str
    """Subject; if empty, the check's name."""
    verdict: Verdict
    told: str
    fix: str = ""
    """A command, or a change to make."""


def ok(told: str, what: str = "") -> Finding:
    """A finding that all is well."""
    return Finding(what, Verdict.OK, told)


def note(told: str, fix: str = "", what: str = "") -> Finding:
    """A finding that something works less well than it could."""
    return Finding(what, Verdict.NOTE, told, fix)


def broken(told: str, fix: str = "", what: str = "") -> Finding:
    """A finding that something does not work."""
    return Finding(what, Verdict.BROKEN, told, fix)


class Needs(StrEnum):
    """The input that a check needs."""

    CLUSTER = "cluster"
    """An API server accessed as administrator: a `Look`."""
    SETTINGS = "settings"
    """Kerf's settings, and access to what they name: a `KerfView`."""
    SERVER = "server"
    """The answers of a running Kerf, in a `KerfView`."""


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One check."""

    name: str
    needs: Needs
    find: Callable[[T], AsyncIterator[Finding]]
    """Yields findings. Raises ClusterError, msgspec.DecodeError for what it can't read."""
    unread: str = "can't be read"
    """Message in that case, "" for no finding."""
    fix: str = "run this as an administrator"
    """Fix in that case."""
    blind: Verdict = Verdict.NOTE
    """Verdict in that case."""


async def findings_of(checks: Iterable[Check[T]], given: T) -> list[Finding]:
    """All findings of some checks, in order."""
    findings: list[Finding] = []
    for check in checks:
        try:
            async for finding in check.find(given):
                findings.append(replace(finding, what=finding.what or check.name))
        except (ClusterError, msgspec.DecodeError) as error:
            if check.unread:
                findings.append(Finding(check.name, check.blind, f"{check.unread}: {error}", check.fix))
    return findings


def finish(findings: Iterable[Finding]) -> None:
    """Exit with status 1 if something is broken."""
    if any(finding.verdict is Verdict.BROKEN for finding in findings):
        raise typer.Exit(FAILED)


def print_findings(findings: Iterable[Finding], console: Console) -> None:
    """Print each finding, followed by its fix."""
    for finding in findings:
        console.print(f"{_SIGNS[finding.verdict]}  [bold]{finding.what}[/bold]: {escape(finding.told)}", soft_wrap=True)
        if finding.fix:
            console.print(f"          {escape(finding.fix)}", soft_wrap=True)


async def listed(transport: Transport, path: str, selector: str = "", fields: str = "") -> list[dict[str, Any]]:
    """Objects at a path that match a label selector and a field selector. Raises ClusterError, msgspec.DecodeError."""
    query = {name: value for name, value in (("labelSelector", selector), ("fieldSelector", fields)) if value}
    return (await Lister(transport, path, dict[str, Any], query).all()).items
