"""Checks and what they find: one row for each check, one form for all findings, one way to run and to print them."""

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
    """Works, less well than it could; or could not be looked at."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    """The check's name where that is empty."""
    verdict: Verdict
    told: str
    fix: str = ""
    """A command, or what to write where."""


def ok(told: str, what: str = "") -> Finding:
    """What is as it should be."""
    return Finding(what, Verdict.OK, told)


def note(told: str, fix: str = "", what: str = "") -> Finding:
    """What works less well than it could."""
    return Finding(what, Verdict.NOTE, told, fix)


def broken(told: str, fix: str = "", what: str = "") -> Finding:
    """What does not work."""
    return Finding(what, Verdict.BROKEN, told, fix)


class Needs(StrEnum):
    """What a check looks at."""

    CLUSTER = "cluster"
    """An API server that an administrator asks: a `Look`."""
    SETTINGS = "settings"
    """What Kerf's settings name, from where it runs: a `Site`."""
    SERVER = "server"
    """A Kerf that runs: what it has said at a `Site`."""


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One row of the list."""

    name: str
    needs: Needs
    find: Callable[[T], AsyncIterator[Finding]]
    """Raises ClusterError, msgspec.DecodeError for what it may not see."""
    unread: str = "can't be read"
    """How that is told, "" where it is not."""
    fix: str = "run this as an administrator"
    """What helps then."""
    blind: Verdict = Verdict.NOTE
    """How much that matters."""


async def findings_of(checks: Iterable[Check[T]], given: T) -> list[Finding]:
    """All findings of some checks, in their order."""
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
    """End the command: with status 1 if something is broken."""
    if any(finding.verdict is Verdict.BROKEN for finding in findings):
        raise typer.Exit(FAILED)


def print_findings(findings: Iterable[Finding], console: Console) -> None:
    """A line for each, and one for what helps."""
    for finding in findings:
        console.print(f"{_SIGNS[finding.verdict]}  [bold]{finding.what}[/bold]: {escape(finding.told)}", soft_wrap=True)
        if finding.fix:
            console.print(f"          {escape(finding.fix)}", soft_wrap=True)


async def listed(transport: Transport, path: str, selector: str = "", fields: str = "") -> list[dict[str, Any]]:
    """Objects at a path, those that a label selector and a field selector choose. Raises ClusterError,
    msgspec.DecodeError."""
    query = {name: value for name, value in (("labelSelector", selector), ("fieldSelector", fields)) if value}
    return (await Lister(transport, path, dict[str, Any], query).all()).items
