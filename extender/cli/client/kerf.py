"""What commands share that ask a running Kerf: where it is, one HTTP request, and its answer as table, JSON or YAML."""

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
from http.client import HTTPException
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
    typer.Option("--ca-file", envvar="KERF_SERVER_CA_FILE", help="File with the CA of its certificate."),
]
_TOKEN_FILE, _CERT_FILE, _KEY_FILE = "KERF_SERVER_TOKEN_FILE", "KERF_SERVER_CERT_FILE", "KERF_SERVER_KEY_FILE"
"""Variables that name files with what a Kerf beyond loopback asks for: a token, or a certificate with its key."""

_STDIN = "-"
_TEXT = re.compile(r"^manifest\[(\d{1,4})\], ")

FAILED, USAGE, PENDING, UNKNOWN, UNCHECKED = 1, 2, 3, 4, 5
"""Exit statuses: no Kerf answers or it can't; wrong usage; a pod stays pending; Kerf does not know it; all find a node,
and not all of what they ask for was checked."""


class AnswerError(Exception):
    """Kerf has answered with a status that means no: the command fails with what it says, unless it knows better."""

    def __init__(self, status: int, detail: str, hint: str = "") -> None:
        super().__init__(detail + hint)
        self.status = status
        self.ends_with = USAGE if status in _WRONG_QUESTION else FAILED
        """The exit status of a command that can do nothing about it."""
        self.detail = detail
        """What Kerf says, without the hint of what to do about it."""


class Kerf:
    """A running Kerf: that at an address, or that of a cluster, by a port-forward for as long as the command runs."""

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
        """What a person types to give another command."""
        self._as_kubectl = bool(context.obj or kubeconfig or kube_context or kerf_namespace)
        self._forwards = self._as_kubectl and not server
        self._address = server or ("" if self._as_kubectl else _DEFAULT_SERVER)
        """"" until it has been found in the cluster."""
        self._trusted = bool(server or kerf_namespace)
        """Whether a token may go there: not to whatever calls itself Kerf in some namespace."""
        self._ca_file = ca_file
        self._opened = ExitStack()
        self.blind = ""
        """Of a Kerf that can't see the cluster, by its last answer that spoke of it: that in a sentence."""
        self.shows_blind = False
        """Whether the command shows that itself; else it is said on standard error, before anything is printed."""

    def __enter__(self) -> "Kerf":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def namespace(self) -> str:
        """Of pods that are named without one: as kubectl where its cluster is asked."""
        return self._cluster.namespace() if self._as_kubectl else "default"

    def announce(self) -> None:
        """Say which Kerf is about to be told to write, in which cluster and as whom, before it is asked anything."""
        address = self._base()
        by = f" by {self._cluster.told()}" if self._forwards else ""
        echo(f"writes through Kerf at {address}{by}", err=True)

    def manifests(self, files: Sequence[str]) -> dict[str, Any]:
        """What a question says of the manifests in files; ends the command where one can't be read."""
        return {"manifest": [_read_text(name) for name in files], "namespace": self.namespace} if files else {}

    def ask(
        self,
        path: str,
        body: Any = None,
        timeout_s: float = _TIMEOUT_S,
        wrong: Callable[[str], str] = str,
        files: Sequence[str] = (),
    ) -> Any:
        """GET, or POST where there is a body; the JSON of the answer. Raises AnswerError; where the question was wrong,
        or a manifest of `files`, in the words that `wrong` makes of Kerf's.

        Ends the command with a sentence where no Kerf answers, and as wrong usage where the question is wrong: `wrong`
        says that in the command's own words, of Kerf's.
        """
        address = self._base()
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json", **self._credentials()}
            request = Request(address + path, data, headers)  # noqa: S310 - checked by _base
            with self._opener().open(request, timeout=timeout_s) as response:
                answer = json.load(response)
                if not isinstance(answer, dict):
                    raise ValueError(f"{path} answers no object")
        except HTTPError as error:
            told = _body(error)
            self._look_at(told)
            if self.blind and error.code == _UNAVAILABLE:
                fail(self.blind if self.shows_blind else told["notReady"], FAILED)
            detail = _detail(told)
            if error.code == _NOT_FOUND and detail in ("", "Not Found"):  # of a path that every Kerf has
                fail(f"the server at {address} is not Kerf, or of another version: there is no {path}", FAILED)
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
        self._look_at(answer)
        return answer

    def _look_at(self, answer: Any) -> None:
        """Say so if it is one of a Kerf that can't see the cluster, once."""
        if not isinstance(answer, dict) or "notReady" not in answer:
            return
        said, self.blind = self.blind, f"{blind_for(answer['staleSeconds'])} (kerf doctor)"
        if not said and not self.shows_blind:
            echo(self.blind, err=True)

    def is_other(self, missing: KeyError) -> NoReturn:
        """End the command: an answer lacks what every Kerf of this version tells."""
        fail(f"the server at {self._base()} is not Kerf, or of another version: its answer has no {missing}", FAILED)

    def _base(self) -> str:
        """The address, looked for once."""
        if not self._address:
            try:
                self._address = self._leader(self._cluster.find())
            except ClusterError as error:
                fail(f"{error}\nOr give an address with --server or KERF_SERVER_URL.", FAILED)
        parts = urlsplit(self._address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            fail(f"--server {self._address}: write an address such as {_DEFAULT_SERVER}", USAGE)
        return self._address.rstrip("/")

    def _leader(self, pods: Sequence[KerfPod]) -> str:
        """The forwarded address of the pod that leads, which alone knows the cluster. Raises ClusterError."""
        said = f"see /readyz of {pods[0].name}"
        for pod in pods:
            forward = ExitStack()
            host = forward.enter_context(self._cluster.forwarded(pod))
            for address in (f"http://{host}", f"https://{host}"):
                try:
                    if self._opener().open(f"{address}/readyz", timeout=_TIMEOUT_S).status == _OK:
                        self._opened.push(forward)
                        return address
                except HTTPError as error:
                    told = _body(error)
                    said = f"{pod.name}: {told.get('status') or error.code}" if isinstance(told, dict) else said
                except (OSError, HTTPException):
                    continue
            forward.close()
        raise ClusterError(f"none of the {len(pods)} Kerf pods is ready to decide: {said}")

    def _opener(self) -> OpenerDirector:
        """Without the proxies of the environment: Kerf is on loopback, or behind a Service. Raises OSError."""
        return build_opener(ProxyHandler({}), Https(context=self._tls()))

    def _tls(self) -> ssl.SSLContext:
        """What is trusted, and the certificate to show where the environment names one. Raises OSError."""
        context = ssl.create_default_context(cafile=str(self._ca_file) if self._ca_file else None)
        if self._forwards:  # its certificate names no loopback; and the tunnel ends in the very pod
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED if self._ca_file else ssl.CERT_NONE
        if certificate := os.environ.get(_CERT_FILE):
            context.load_cert_chain(certificate, os.environ.get(_KEY_FILE) or None)
        return context

    def _token_hint(self, status: int) -> str:
        """What to do where Kerf asks who calls, "" for another answer."""
        if status != _UNAUTHORIZED:
            return ""
        if not os.environ.get(_TOKEN_FILE):
            return f"; name a file with it in {_TOKEN_FILE}"
        return (
            f" ({_TOKEN_FILE})"
            if self._trusted
            else f"; that of {_TOKEN_FILE} goes to --server or --kerf-namespace alone"
        )

    def _credentials(self) -> dict[str, str]:
        """The header with the first token of the file that the environment names; ends the command if it has none."""
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


def asks_kerf(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of Kerf in place of its first parameter, which is one."""
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
                kerf.is_other(error)
            if kerf.blind:
                raise typer.Exit(FAILED)

    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (*own, *shared)]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def show(answer: Any, output: Output | Form, table: Callable[[Console], None], sheet: Callable[[], str] = str) -> None:
    """Print an answer; `table` does it for people, `sheet` makes CSV."""
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
    """End the command with a sentence on standard error."""
    echo(text, err=True)
    raise typer.Exit(status)


def _read_text(name: str) -> str:
    """What a file holds, or standard input for `-`; ends the command where it can't be read."""
    try:
        return sys.stdin.read() if name == _STDIN else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{name}: {error}", USAGE)


def with_file(text: str, files: Sequence[str]) -> str:
    """What begins with a place in a request, with that in the file in its stead."""
    found = _TEXT.match(text)
    if found is None or int(found[1]) >= len(files):
        return text
    name = files[int(found[1])]
    return f"{'standard input' if name == _STDIN else name}: {text[found.end() :]}"


def _body(error: HTTPError) -> Any:
    """The JSON of an answer that says no, None where it has none."""
    try:
        return json.loads(error.read())
    except ValueError:
        return None


def _detail(told: Any) -> str:
    """What Kerf says of it, "" where it is not as Kerf says it."""
    detail = told.get("detail") or told.get("Error") or told.get("status") if isinstance(told, dict) else None
    if isinstance(detail, list):  # FastAPI's, of parameters out of range
        detail = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in detail)
    return str(detail or "")
