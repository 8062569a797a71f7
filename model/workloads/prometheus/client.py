"""Prometheus client: one query at a time, with timeouts, retries and readable errors."""

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
"""Longer than Prometheus' own query timeout of two minutes, so that Prometheus reports it."""
_RETRIES: Final = Retry(total=3, backoff_factor=1, status_forcelist=(429, 502, 504), raise_on_status=False)
_ADVICE: Final = {
    400: "--match must be label matchers such as cluster=\"prod\"",
    401: "authentication is required: --token-file or --basic-auth-file",
    403: "the credentials have no read access: --token-file or --basic-auth-file",
    404: "there is no Prometheus API at this URL; it may need a path such as /prometheus",
}  # fmt: skip


class PrometheusError(ValueError):
    """A failure of Prometheus; the message is one line with a remedy."""


class TooMuchError(PrometheusError):
    """A query that is too large or took too long; a shorter period may succeed."""


@dataclass(frozen=True)
class Access:
    """Credentials and TLS settings for a server."""

    token_file: Path | None = None
    basic_auth_file: Path | None = None
    """File with a line "user:password"."""
    ca_file: Path | None = None
    insecure: bool = False
    """Whether to accept any certificate."""


class Prometheus:
    """A Prometheus, or a compatible API. Raises OSError if a file in `access` can't be read."""

    def __init__(self, url: str, access: Access) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PrometheusError(f"--prometheus {url}: write a URL such as http://localhost:9090")
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        session = requests.Session()
        session.trust_env = False  # ignore ~/.netrc
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
        """Close the connections."""
        self._client.close()

    def time_s(self) -> float:
        """Return the server's Unix time in seconds. Raises PrometheusError."""
        return self.instant("vector(time())", None)[0][1]

    def instant(self, query: str, at_s: float | None) -> list[Sample]:
        """Return the elements of an instant query at a time, or now. Raises PrometheusError."""
        parameters = {} if at_s is None else {"time": repr(at_s)}
        answer: list[dict[str, Any]] = self._ask(lambda: self._client.custom_query(query, parameters))
        return [(element["metric"], float(element["value"][1])) for element in answer]

    def ranged(self, query: str, since_s: float, until_s: float, step_s: int) -> list[Line]:
        """Return the elements of a range query. Raises PrometheusError."""
        since, until = (datetime.fromtimestamp(at_s, UTC) for at_s in (since_s, until_s))
        answer = self._ask(lambda: self._client.custom_query_range(query, since, until, str(step_s)))
        return [
            (element["metric"], {float(at_s): float(value) for at_s, value in element["values"]}) for element in answer
        ]

    def label_names(self, selector: str, since_s: float, until_s: float) -> set[str]:
        """Return the label names of matching series in a period. Raises PrometheusError."""
        parameters = {"match[]": selector, "start": repr(since_s), "end": repr(until_s)}
        return set(self._ask(lambda: self._client.get_label_names(parameters)))

    def _ask(self, call: Callable[[], AnswerT]) -> AnswerT:
        try:
            return call()
        except PrometheusApiClientException as error:
            raise self._refusal(str(error)) from None
        except (KeyError, TypeError, requests.JSONDecodeError):
            raise PrometheusError(f"{self.url} does not answer as Prometheus: check --prometheus") from None
        except requests.Timeout:
            raise TooMuchError(f"{self.url}: no answer within {_TIMEOUT_S} s: try a shorter --since") from None
        except requests.exceptions.SSLError as error:
            raise PrometheusError(f"{self.url}: TLS: {_innermost(error)}: --ca-file, or --insecure") from None
        except requests.exceptions.InvalidHeader:  # its text contains the token
            raise PrometheusError("--token-file: the token has invalid characters") from None
        except requests.RequestException as error:
            raise PrometheusError(f"{self.url}: no connection: {_innermost(error)}: check --prometheus") from None

    def _refusal(self, text: str) -> PrometheusError:
        """Parse the client's `HTTP Status Code 422 (b'{...}')`."""
        head, _, quoted = text.partition(" (")
        status = int(head.rpartition(" ")[2])
        try:
            reason = str(msgspec.json.decode(ast.literal_eval(quoted[:-1]))["error"])
        except (msgspec.DecodeError, ValueError, SyntaxError, KeyError, TypeError):
            reason = ""
        if status in (422, 503):
            return TooMuchError(f"{self.url}: HTTP status {status}: {reason[:200]}: try a shorter --since")
        advice = _ADVICE.get(status) or "try again, or ask its administrator"
        return PrometheusError(f"{self.url}: HTTP status {status}{reason and f': {reason[:200]}'}: {advice}")


def _innermost(error: BaseException) -> str:
    """Return the root cause of a connection error, because outer texts contain object addresses."""
    causes = (getattr(error, "reason", None), *error.args)
    inner = next((cause for cause in causes if isinstance(cause, BaseException)), None)
    return _innermost(inner) if inner is not None else str(error).rpartition(": ")[2][:200] or type(error).__name__
