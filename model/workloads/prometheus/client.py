"""Prometheus, asked politely: one query at a time, with time-outs and retries, and faults in a sentence."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.util.retry import Retry

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Line = tuple[Labels, dict[float, float]]
"""Labels, and values by time in seconds since 1970."""
AnswerT = TypeVar("AnswerT")

_TIMEOUT_S: Final = 150
"""Longer than Prometheus' own limit to a query, two minutes, so that it is Prometheus who says so."""
_RETRIES: Final = Retry(total=3, backoff_factor=1, status_forcelist=(429, 502, 504), raise_on_status=False)
_ADVICE: Final = {
    400: "--match has to be label matchers such as cluster=\"prod\"",
    401: "it asks who you are: --token-file or --basic-auth-file",
    403: "these credentials may not read it: --token-file or --basic-auth-file",
    404: "there is no Prometheus API at this URL; it may need a path such as /prometheus",
}  # fmt: skip


class PrometheusError(ValueError):
    """What went wrong with Prometheus, and what to do, on one line."""


class TooMuchError(PrometheusError):
    """A query that Prometheus found too large, or that took too long: one of less time may do."""


@dataclass(frozen=True)
class Access:
    """How to get at a Prometheus."""

    token_file: Path | None = None
    basic_auth_file: Path | None = None
    """A line "user:password"."""
    ca_file: Path | None = None
    insecure: bool = False
    """Whether any certificate will do."""


class Prometheus:
    """One Prometheus, or what speaks its API. Raises OSError where a file of the access can't be read."""

    def __init__(self, url: str, access: Access) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PrometheusError(f"--prometheus {url}: write a URL such as http://localhost:9090")
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        session = requests.Session()
        session.trust_env = False  # ~/.netrc is not meant for this
        session.verify = str(access.ca_file) if access.ca_file else not access.insecure
        if access.token_file:
            session.headers["Authorization"] = f"Bearer {access.token_file.read_text().strip()}"
        if access.basic_auth_file:
            user, _, password = access.basic_auth_file.read_text().strip().partition(":")
            session.auth = (user, password)
        elif parts.username:
            session.auth = (unquote(parts.username), unquote(parts.password or ""))
        self._client = PrometheusConnect(url=self.url, session=session, retry=_RETRIES, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def time_s(self) -> float:
        """Its own time, in seconds since 1970. Raises PrometheusError."""
        return self.instant("vector(time())", None)[0][1]

    def instant(self, query: str, at_s: float | None) -> list[Sample]:
        """The elements of an instant query at a time, or now. Raises PrometheusError."""
        given = {} if at_s is None else {"time": repr(at_s)}
        answer: list[dict[str, Any]] = self._ask(lambda: self._client.custom_query(query, given))
        return [(element["metric"], float(element["value"][1])) for element in answer]

    def ranged(self, query: str, since_s: float, until_s: float, step_s: int) -> list[Line]:
        """The elements of a range query. Raises PrometheusError."""
        since, until = (datetime.fromtimestamp(at_s, UTC) for at_s in (since_s, until_s))
        answer = self._ask(lambda: self._client.custom_query_range(query, since, until, str(step_s)))
        return [
            (element["metric"], {float(at_s): float(value) for at_s, value in element["values"]}) for element in answer
        ]

    def label_names(self, selector: str, since_s: float, until_s: float) -> set[str]:
        """Names of the labels of some series in a time. Raises PrometheusError."""
        given = {"match[]": selector, "start": repr(since_s), "end": repr(until_s)}
        return set(self._ask(lambda: self._client.get_label_names(given)))

    def _ask(self, call: Callable[[], AnswerT]) -> AnswerT:
        try:
            return call()
        except PrometheusApiClientException as error:
            raise self._refusal(str(error)) from None
        except (KeyError, TypeError, requests.JSONDecodeError):
            raise PrometheusError(f"{self.url} answers, but not as Prometheus does: check --prometheus") from None
        except requests.Timeout:
            raise TooMuchError(f"{self.url}: no answer within {_TIMEOUT_S} s: try a shorter --since") from None
        except requests.exceptions.SSLError as error:
            raise PrometheusError(f"{self.url}: TLS: {_innermost(error)}: --ca-file, or --insecure") from None
        except requests.exceptions.InvalidHeader:  # its text is the token
            raise PrometheusError("--token-file: the token has characters that no token has") from None
        except requests.RequestException as error:
            raise PrometheusError(f"{self.url}: no connection: {_innermost(error)}: check --prometheus") from None

    def _refusal(self, told: str) -> PrometheusError:
        """The client tells `HTTP Status Code 422 (b'{...}')`."""
        head, _, quoted = told.partition(" (")
        status = int(head.rpartition(" ")[2])
        try:
            reason = str(msgspec.json.decode(ast.literal_eval(quoted[:-1]))["error"])
        except (msgspec.DecodeError, ValueError, SyntaxError, KeyError, TypeError):
            reason = ""
        if status in (422, 503):
            return TooMuchError(f"{self.url}: HTTP status {status}: {reason[:200]}: try a shorter --since")
        advice = _ADVICE.get(status) or "try again, or ask who runs it"
        return PrometheusError(f"{self.url}: HTTP status {status}{reason and f': {reason[:200]}'}: {advice}")


def _innermost(error: BaseException) -> str:
    """The cause of a fault of the connection: the texts around it name addresses of objects."""
    causes = (getattr(error, "reason", None), *error.args)
    inner = next((cause for cause in causes if isinstance(cause, BaseException)), None)
    return _innermost(inner) if inner is not None else str(error).rpartition(": ")[2][:200] or type(error).__name__
