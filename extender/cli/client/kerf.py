"""The client of a running Kerf: finds its address, sends a request, and prints the answer as table, JSON or YAML."""

import inspect
import json
import os
import re
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import wraps
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler as Https
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

import typer
from rich.console import Console

from extender.cli.client.port_forwards import Cluster, ClusterError, KerfPod
from extender.cli.consoles import console
from extender.cli.printing import as_json, as_yaml, echo
from extender.explain.sentences.blind import blind_for

_TIMEOUT_S = 30.0


class Output(StrEnum):
    """Form of an answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Form(StrEnum):
    """Form of a report."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table, json or yaml.")]
FormOption = Annotated[Form, typer.Option("--output", "-o", help="table, json or csv.")]
_OK, _UNAUTHORIZED, _NOT_FOUND, _UNAVAILABLE = 200, 401, 404, 503
_WRONG_QUESTION = 400, 422
_DEFAULT_SERVER = "http://127.0.0.1:8888"
CaFileOption = Annotated[
    Path | None,
    typer.Option("--ca-file", envvar="KERF_SERVER_CA_FILE", help="CA file for Kerf's certificate."),
]
_TOKEN_FILE, _CERT_FILE, _KEY_FILE = "KERF_SERVER_TOKEN_FILE", "KERF_SERVER_CERT_FILE", "KERF_SERVER_KEY_FILE"
"""Environment variables with credential files for a remote Kerf: a token, or a client certificate with its key."""

_STDIN = "-"
_TEXT = re.compile(r"^manifest\[(\d{1,4})\], ")

FAILED, USAGE, PENDING, UNKNOWN, UNCHECKED = 1, 2, 3, 4, 5
"""Exit statuses: Kerf is unreachable or fails; wrong usage; a pod is pending; Kerf does not know the pod; all pods fit,
but not all their conditions were checked."""


class AnswerError(Exception):
    """Kerf answered with an error status. By default the command fails with its message."""

    def __init__(self, status: int, detail: str, hint: str = "") -> None:
        super().__init__(detail + hint)
        self.status = status
        self.ends_with = USAGE if status in _WRONG_QUESTION else FAILED
        """The command's exit status if it does not handle the error."""
        self.detail = detail
        """Kerf's message, without the hint."""


class Kerf:
    """A running Kerf, at an address or in a cluster, through a port-forward that lasts as long as the command."""

    def __init__(
        self,
        context: typer.Context,
        *,
        server: Annotated[
            str | None,
            typer.Option(
                "--server",
                "-s",
                envvar="KERF_SERVER_URL",
                help="Address of a running Kerf; default: http://127.0.0.1:8888.",
            ),
        ] = None,
        ca_file: CaFileOption = None,
        kubeconfig: Annotated[
            str | None, typer.Option(help="Ask Kerf in this kubeconfig's cluster, through a port-forward.")
        ] = None,
        kube_context: Annotated[
            str | None, typer.Option("--context", help="Ask Kerf in this context's cluster, through a port-forward.")
        ] = None,
        kerf_namespace: Annotated[
            str | None, typer.Option(envvar="KERF_NAMESPACE", help="Namespace of Kerf; default: found by its labels.")
        ] = None,
    ) -> None:
        self._cluster = Cluster(kubeconfig, kube_context, kerf_namespace)
        self.program = "kubectl kerf" if context.obj else "kerf"
        """The program's name in suggested commands."""
        self._as_kubectl = bool(context.obj or kubeconfig or kube_context or kerf_namespace)
        self._forwards = self._as_kubectl and not server
        self._address = server or ("" if self._as_kubectl else _DEFAULT_SERVER)
        """"" until it has been found in the cluster."""
        self._trusted = bool(server or kerf_namespace)
        """Whether a token may be sent there: not to a pod in an arbitrary namespace that is labelled as Kerf."""
        self._ca_file = ca_file
        self._opened = ExitStack()
        self.blind = ""
        """A sentence if Kerf's last answer reported a stale view of the cluster, else ""."""
        self.shows_blind = False
        """Whether the command shows `blind` itself; else it is printed on standard error first."""

    def __enter__(self) -> "Kerf":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def namespace(self) -> str:
        """Default namespace of pods: kubectl's if its cluster is used, else `default`."""
        return self._cluster.namespace() if self._as_kubectl else "default"

    def announce(self) -> None:
        """Print which Kerf is about to write, in which cluster and as which user, before the first request."""
        address = self._base()
        through = f", reached through {self._cluster.told()}" if self._forwards else ""
        echo(f"writes through Kerf at {address}{through}", err=True)

    def manifests(self, files: Sequence[str]) -> dict[str, Any]:
        """The part of a question with the manifests of some files; exits if one can't be read."""
        return {"manifest": [_read_text(name) for name in files], "namespace": self.namespace} if files else {}

    def ask(
        self,
        path: str,
        body: Any = None,
        timeout_s: float = _TIMEOUT_S,
        wrong: Callable[[str], str] = str,
        files: Sequence[str] = (),
    ) -> Any:
        """GET a path, or POST if there is a body, and return the JSON of the answer.

        Raises AnswerError for an error status. For an invalid question, `wrong` rewords Kerf's message; messages about
        manifests name the file of `files`. Exits with an error message if no Kerf answers.
        """
        address = self._base()
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json", **self._credentials()}
            request = Request(address + path, data, headers)  # noqa: S310 - checked by _base
            with self._opener().open(request, timeout=timeout_s) as response:
                answer = json.load(response)
                if not isinstance(answer, dict):
                    raise ValueError(f"the answer to {path} is not an object")
        except HTTPError as error:
            body_of_error = _body(error)
            self._check_blind(body_of_error)
            if self.blind and error.code == _UNAVAILABLE:
                fail(self.blind if self.shows_blind else body_of_error["notReady"], FAILED)
            detail = _detail(body_of_error)
            if error.code == _NOT_FOUND and detail in ("", "Not Found"):  # every Kerf of this version has the path
                fail(f"the server at {address} is not Kerf, or is another version: it has no {path}", FAILED)
            detail = detail or f"status {error.code}"
            detail = wrong(with_file(detail, files)) if error.code in _WRONG_QUESTION else detail
            raise AnswerError(error.code, detail, self._token_hint(error.code)) from None
        except (URLError, OSError) as error:
            fail(
                f"can't reach Kerf at {address}: {getattr(error, 'reason', error)}\n"
                "Is it running? Try one of\n"
                "  kerf demo  # a sample cluster on this machine\n"
                f"  {self._cluster.command()}  # Kerf in a cluster\n"
                "or give its address with --server or KERF_SERVER_URL.",
                FAILED,
            )
        except ValueError as error:
            fail(f"the server at {address} is not Kerf: {error}", FAILED)
        self._check_blind(answer)
        return answer

    def _check_blind(self, answer: Any) -> None:
        """Set and print `blind`, once, if an answer reports a stale view of the cluster."""
        if not isinstance(answer, dict) or "notReady" not in answer:
            return
        was_blind, self.blind = self.blind, f"{blind_for(answer['staleSeconds'])} (kerf doctor)"
        if not was_blind and not self.shows_blind:
            echo(self.blind, err=True)

    def fail_wrong_version(self, missing: KeyError) -> NoReturn:
        """Exit because an answer lacks a key that every Kerf of this version sends."""
        fail(f"the server at {self._base()} is not Kerf, or is another version: its answer has no {missing}", FAILED)

    def _base(self) -> str:
        """The address, found once."""
        if not self._address:
            try:
                self._address = self._leader(self._cluster.find())
            except ClusterError as error:
                fail(f"{error}\nOr give an address with --server or KERF_SERVER_URL.", FAILED)
        parts = urlsplit(self._address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            fail(f"--server {self._address}: use an address such as {_DEFAULT_SERVER}", USAGE)
        return self._address.rstrip("/")

    def _leader(self, pods: Sequence[KerfPod]) -> str:
        """The forwarded address of the leader, the only pod that knows the cluster. Raises ClusterError."""
        why = f"see /readyz of {pods[0].name}"
        for pod in pods:
            forward = ExitStack()
            host = forward.enter_context(self._cluster.forwarded(pod))
            for address in (f"http://{host}", f"https://{host}"):
                try:
                    if self._opener().open(f"{address}/readyz", timeout=_TIMEOUT_S).status == _OK:
                        self._opened.push(forward)
                        return address
                except HTTPError as error:
                    body = _body(error)
                    why = f"{pod.name}: {body.get('status') or error.code}" if isinstance(body, dict) else why
                except (OSError, HTTPException):
                    continue
            forward.close()
        raise ClusterError(f"none of the {len(pods)} Kerf pods is ready to decide: {why}")

    def _opener(self) -> OpenerDirector:
        """Ignores proxies of the environment: Kerf is on loopback or behind a Service."""
        return build_opener(ProxyHandler({}), _LazyHttps(self._tls))

    def _tls(self) -> ssl.SSLContext:
        """The trusted CAs, and the environment's client certificate if there is one. Raises OSError."""
        context = ssl.create_default_context(cafile=str(self._ca_file) if self._ca_file else None)
        if self._forwards:  # its certificate does not cover loopback, and the tunnel ends in the pod itself
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED if self._ca_file else ssl.CERT_NONE
        if certificate := os.environ.get(_CERT_FILE):
            context.load_cert_chain(certificate, os.environ.get(_KEY_FILE) or None)
        return context

    def _token_hint(self, status: int) -> str:
        """The hint for a 401, "" for other statuses."""
        if status != _UNAUTHORIZED:
            return ""
        if not os.environ.get(_TOKEN_FILE):
            return f"; set {_TOKEN_FILE} to a file with the token"
        return (
            f" ({_TOKEN_FILE})"
            if self._trusted
            else f"; the token of {_TOKEN_FILE} is only sent with --server or --kerf-namespace"
        )

    def _credentials(self) -> dict[str, str]:
        """The header with the first token of the environment's token file; exits if the file has none."""
        path = os.environ.get(_TOKEN_FILE)
        if not path or not self._trusted:
            return {}
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"{_TOKEN_FILE}={path}: {error}", USAGE)
        tokens = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not tokens or not tokens[0].isascii():
            fail(f"{_TOKEN_FILE}={path}: there is no token in that file", USAGE)
        return {"authorization": f"Bearer {tokens[0]}"}


class _LazyHttps(Https):
    """Reads CA and certificate files only when an https URL is opened."""

    def __init__(self, tls: Callable[[], ssl.SSLContext]) -> None:
        super().__init__(context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # without one it would read the CA files
        self._tls = tls

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(HTTPSConnection, req, context=self._tls())


def asks_kerf(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's first parameter, a `Kerf`, by the options that create it."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = list(inspect.signature(Kerf, eval_str=True).parameters.values())

    @wraps(command)
    def run(**given: Any) -> None:
        with Kerf(given.pop("context"), **{option.name: given.pop(option.name) for option in shared[1:]}) as kerf:
            try:
                command(kerf, **given)
            except typer.Exit as ended:
                raise typer.Exit(FAILED if kerf.blind else ended.exit_code) from None
            except AnswerError as error:
                fail(str(error), FAILED if kerf.blind else error.ends_with)
            except KeyError as error:
                kerf.fail_wrong_version(error)
            if kerf.blind:
                raise typer.Exit(FAILED)

    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (*own, *shared)]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def show(answer: Any, output: Output | Form, table: Callable[[Console], None], sheet: Callable[[], str] = str) -> None:
    """Print an answer in the chosen form; `table` prints the table, `sheet` makes the CSV."""
    match output.value:
        case "json":
            echo(as_json(answer))
        case "yaml":
            echo(as_yaml(answer))
        case "csv":
            echo(sheet(), nl=False)
        case _:
            table(console())


def fail(text: str, status: int) -> NoReturn:
    """Exit with a message on standard error."""
    echo(text, err=True)
    raise typer.Exit(status)


def _read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`; exits if it can't be read."""
    try:
        return sys.stdin.read() if name == _STDIN else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{name}: {error}", USAGE)


def with_file(text: str, files: Sequence[str]) -> str:
    """A message that begins with `manifest[N], `, with that replaced by the name of the file."""
    match = _TEXT.match(text)
    if match is None or int(match[1]) >= len(files):
        return text
    name = files[int(match[1])]
    return f"{'standard input' if name == _STDIN else name}: {text[match.end() :]}"


def _body(error: HTTPError) -> Any:
    """The JSON of an error answer, None if it has none."""
    try:
        return json.loads(error.read())
    except ValueError:
        return None


def _detail(body: Any) -> str:
    """Kerf's message in an error answer, "" if it has none."""
    detail = body.get("detail") or body.get("Error") or body.get("status") if isinstance(body, dict) else None
    if isinstance(detail, list):  # FastAPI's, for parameters out of range
        detail = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in detail)
    return str(detail or "")
