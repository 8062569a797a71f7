"""What commands share that ask a running Kerf: one HTTP request, and its answer as table, JSON or YAML."""

import json
import os
import ssl
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler as Https
from urllib.request import ProxyHandler, Request, build_opener

import typer
import yaml
from rich.console import Console

_TIMEOUT_S = 30.0
_PLAIN_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


class Output(StrEnum):
    """Form of an answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


ServerOption = Annotated[
    str, typer.Option("--server", "-s", envvar="KERF_SERVER_URL", help="Address of a running Kerf.")
]
CaOption = Annotated[
    Path | None, typer.Option("--ca-file", envvar="KERF_SERVER_CA_FILE", help="Authority that signed its certificate.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table, json or yaml.")]
DEFAULT_SERVER = "http://127.0.0.1:8888"
TOKEN_FILE, CERT_FILE, KEY_FILE = "KERF_SERVER_TOKEN_FILE", "KERF_SERVER_CERT_FILE", "KERF_SERVER_KEY_FILE"
"""Variables that name files with what a Kerf beyond loopback asks for: a token, or a certificate with its key."""

FAILED, USAGE, PENDING, UNKNOWN = 1, 2, 3, 4
"""Exit statuses: no Kerf answers or it can't; wrong usage; a pod stays pending; Kerf does not know it."""


class AnswerError(Exception):
    """Kerf has answered with a status that means no."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def ask(server: str, path: str, ca_file: Path | None = None, body: Any = None) -> Any:
    """GET, or POST where there is a body; the JSON of the answer. Raises AnswerError.

    Ends the command with a sentence where no Kerf answers.
    """
    address = server.rstrip("/")
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
        fail(f"--server {server}: write an address such as {DEFAULT_SERVER}", USAGE)
    try:
        context = _tls(ca_file)
        # Without the proxies of the environment: Kerf is on loopback, or behind a Service.
        opener = build_opener(ProxyHandler({}), Https(context=context))
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **_credentials()}
        request = Request(address + path, data, headers)  # noqa: S310 - checked above
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except HTTPError as error:
        raise AnswerError(error.code, _detail(error)) from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        fail(
            f"no Kerf answers at {address}: {reason}\n"
            "Is it running? Try one of\n"
            "  kerf demo                                                             # a sample cluster, here\n"
            "  kubectl -n kube-system port-forward deployment/kerf-scheduler 8888  # the one of a cluster\n"
            "and say where with --server or KERF_SERVER_URL.",
            FAILED,
        )
    except ValueError as error:
        fail(f"what answers at {address} is no Kerf: {error}", FAILED)


def _tls(ca_file: Path | None) -> ssl.SSLContext | None:
    """What is trusted, and the certificate to show where the environment names one. Raises OSError."""
    certificate = os.environ.get(CERT_FILE)
    if not ca_file and not certificate:
        return None
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    if certificate:
        context.load_cert_chain(certificate, os.environ.get(KEY_FILE) or None)
    return context


def _credentials() -> dict[str, str]:
    """The header with the first token of the file that the environment names; ends the command where it has none."""
    path = os.environ.get(TOKEN_FILE)
    if not path:
        return {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{TOKEN_FILE}={path}: {error}", USAGE)
    tokens = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not tokens or not tokens[0].isascii():
        fail(f"{TOKEN_FILE}={path}: there is no token in that file", USAGE)
    return {"authorization": f"Bearer {tokens[0]}"}


def show(answer: Any, output: Output, table: Callable[[Console], None]) -> None:
    """Print an answer; `table` does it for people."""
    match output:
        case Output.JSON:
            typer.echo(json.dumps(answer, indent=2))
        case Output.YAML:
            typer.echo(yaml.safe_dump(answer, sort_keys=False, allow_unicode=True).rstrip())
        case Output.TABLE:
            table(console())


def console() -> Console:
    """Standard output: in colour on a terminal only, and never with NO_COLOR."""
    found = Console(highlight=False, no_color=bool(os.environ.get("NO_COLOR")) or None)
    return found if found.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def fail(text: str, status: int) -> NoReturn:
    """End the command with a sentence on standard error."""
    typer.echo(text, err=True)
    raise typer.Exit(status)


def _detail(error: HTTPError) -> str:
    try:
        told = json.loads(error.read())
    except ValueError:
        return f"status {error.code}"
    detail = told.get("detail") or told.get("Error") if isinstance(told, dict) else None
    return str(detail or f"status {error.code}")
