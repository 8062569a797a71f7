"""Reads samples from a Prometheus-compatible server, with one aggregated query per metric name.

prometheus-api-client would decode 40,000 series to 60 MB of Python objects, so its session gets a decoder that keeps
only the relevant labels. Of 48,000 series, whole series take 629 ms and 19.6 MB, aggregated by GPU 487 ms and 6.5 MB.
"""

import ipaddress
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypedDict, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.util.retry import Retry

from extender.core.clusters import Floats
from extender.core.gauges import Gauge
from extender.core.texts import printable
from extender.core.vendors.vendor import Metric
from extender.kube.kubeconfigs import proxy_of
from extender.kube.transport import CredentialsError
from extender.telemetry.errors import RefusedError, SourceError, UnreachableError, bare, faults_of
from extender.telemetry.series import (
    ALIASES,
    EVERY_LABEL,
    HOST_LABELS,
    LABELS,
    MODEL_OF,
    POD_LABELS,
    SHARD_LABELS,
    Labels,
    known_names,
)
from extender.telemetry.sources.source import Access, PodTable, Report, Samples, grow, merge
from extender.telemetry.tables import DeviceTable

ElementT = TypeVar("ElementT")

_MAX_VERSION_CHARS: Final = 60
_MAX_ERROR_CHARS: Final = 200
_MAX_SKEW_S: Final = 1e10
_CHUNK_BYTES: Final = 2**18


class Series(msgspec.Struct, gc=False):
    """One element of an instant query's result."""

    metric: Labels
    value: tuple[float, str]
    """Evaluation time in Unix seconds, and the value as text."""


class Counted(msgspec.Struct, gc=False):
    """One element of an instant query's result, with arbitrary labels."""

    metric: dict[str, str]
    value: tuple[float, str]


class Counts(msgspec.Struct, gc=False):
    """One element of a range query's result."""

    metric: dict[str, str]
    values: list[tuple[float, str]]
    """Evaluation times and values; times without a value are missing."""


class _Data(TypedDict, Generic[ElementT]):
    result: list[ElementT]


class _Answer(TypedDict, Generic[ElementT]):
    data: _Data[ElementT]


_series_decoder: Final = msgspec.json.Decoder(_Answer[Series])
_counted_decoder: Final = msgspec.json.Decoder(_Answer[Counted])
_counts_decoder: Final = msgspec.json.Decoder(_Answer[Counts])


class Prometheus:
    """A client of one Prometheus-compatible server. Not thread-safe."""

    def __init__(self, url: str, access: Access) -> None:
        self.url = url.rstrip("/")
        self._session = _Session(access)
        self._session.use_proxy(self.url)
        self._client = PrometheusConnect(
            url=self.url, session=self._session, retry=Retry(total=0, redirect=3, raise_on_status=False)
        )

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def build_info(self) -> str:
        """The server's version; "" if unknown. Raises SourceError."""
        content = self._get("/api/v1/status/buildinfo", {}, missing_is_empty=True)
        if not content:
            return ""  # older releases of VictoriaMetrics and Thanos lack this endpoint
        try:
            answer = msgspec.json.decode(content, type=dict[str, Any])
            return printable(str(dict(answer.get("data") or {}).get("version", ""))[:_MAX_VERSION_CHARS])
        except (msgspec.DecodeError, ValueError, TypeError):
            raise SourceError(f"{self.url} responds, but not like Prometheus") from None

    def label_names(self, selector: str) -> set[str]:
        """The label names of all series that a selector matches. Raises SourceError."""
        content = self._get("/api/v1/labels", {"match[]": selector})
        try:
            answer = msgspec.json.decode(content, type=dict[str, Any])
            return {str(name) for name in answer.get("data") or ()}
        except (msgspec.DecodeError, TypeError):
            raise SourceError(f"{self.url}: the labels can't be read") from None

    def series(self, query: str) -> list[Series]:
        """Run an instant query. Raises SourceError."""
        return self._query(query, _series_decoder)

    def counted(self, query: str) -> list[Counted]:
        """Run an instant query with a small result. Raises SourceError."""
        return self._query(query, _counted_decoder)

    def counted_over(self, query: str, first: int, last: int, step_s: int) -> list[Counts]:
        """Run a range query with a small result, between two Unix times. Raises SourceError."""
        start, end = (datetime.fromtimestamp(at, UTC) for at in (first, last))
        send = partial(self._client.custom_query_range, query, start, end, str(step_s))
        return self._send(send, _counts_decoder)

    def skew(self) -> tuple[float, float]:
        """Seconds that the server's clock is ahead, and the uncertainty, half of the round trip. Raises SourceError."""
        began = time.time()
        result = self.counted("vector(time())")
        ended = time.time()
        if not result:
            raise SourceError(f"{self.url} does not report its time")
        skew_s = result[0].value[0] - (began + ended) / 2
        if not abs(skew_s) < _MAX_SKEW_S:
            raise SourceError(f"{self.url} reports an invalid time: {result[0].value[0]:g}")
        return skew_s, (ended - began) / 2

    def _query(self, query: str, decoder: msgspec.json.Decoder[_Answer[ElementT]]) -> list[ElementT]:
        return self._send(partial(self._client.custom_query, query), decoder)

    def _send(self, send: Callable[[], Any], decoder: msgspec.json.Decoder[_Answer[ElementT]]) -> list[ElementT]:
        self._session.decoder = decoder
        self._session.read_secrets()
        try:
            result: list[ElementT] = send()
            return result
        except PrometheusApiClientException:
            raise self._refusal() from None
        except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise SourceError(f"{self.url}: the response can't be read: {str(error)[:200]}") from None
        except (requests.RequestException, OSError, ValueError) as error:
            raise UnreachableError(f"{self.url}: {describe(error)}") from None

    def _refusal(self) -> SourceError:
        """The error for the last response, with the setting that may help."""
        status, words = self._session.status, _error_text(self._session.content)
        text = f"{self.url}: HTTP status {status}" + (f": {words}" if words else "")
        if status in (401, 403):
            text += f"; {self._session.access.remedy(words)}"
        return RefusedError(text, status)

    def _get(self, path: str, params: Mapping[str, str], *, missing_is_empty: bool = False) -> bytes:
        self._session.read_secrets()
        try:
            response = self._session.request("GET", self.url + path, params=dict(params))
        except (requests.RequestException, OSError, ValueError) as error:
            raise UnreachableError(f"{self.url}: {describe(error)}") from None
        if missing_is_empty and response.status_code in (400, 404, 405):
            return b""
        if response.status_code != 200:
            raise self._refusal()
        return bytes(response.content)


class _Session(requests.Session):
    """A session with timeouts, secrets reread for every call, size limits and a custom decoder."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self.access = access
        self.status, self.content = 0, b""
        """The last response."""
        self.decoder: msgspec.json.Decoder[Any] = _counted_decoder
        self.trust_env = False  # ~/.netrc must not be used, nor the proxy within the cluster
        self.verify = False if access.insecure_skip_verify else access.ca_file or True
        if access.cert_file:
            self.cert = (access.cert_file, access.key_file) if access.key_file else access.cert_file
        # Compressing megabytes takes longer than sending them.
        self.headers.update({"User-Agent": "kerf", "Accept-Encoding": "identity", **access.headers})

    def use_proxy(self, url: str) -> None:
        """Use the environment's proxy, as for the API server, if `url` is outside the cluster. Raises SourceError."""
        parts = urlsplit(url)
        if _is_inside(parts.hostname or ""):
            return
        try:
            proxy = proxy_of(url, "", os.environ)
        except CredentialsError as error:
            raise SourceError(str(error)) from None
        self.proxies = {parts.scheme: proxy} if proxy else {}

    def read_secrets(self) -> None:
        """Reread the secrets. Raises SourceError."""
        access = self.access
        try:
            if access.bearer_token_file:
                self.headers["Authorization"] = f"Bearer {Path(access.bearer_token_file).read_text().strip()}"
            elif access.username:
                password = Path(access.password_file).read_text().strip() if access.password_file else ""
                self.auth = (access.username, password)
        except OSError as error:
            raise SourceError(f"credentials can't be read: {error}") from None

    def request(self, method: str, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request; overrides the client's timeout and authentication."""
        kwargs["timeout"] = (self.access.connect_timeout_s, self.access.timeout_s)
        kwargs["stream"] = True
        if kwargs.get("auth") is None:
            kwargs.pop("auth", None)
        response = super().request(method, url, *args, **kwargs)
        deadline = time.monotonic() + 2 * self.access.timeout_s
        content = _read_bounded(response, deadline, self.access.bounds.answer_bytes)
        self.status, self.content = response.status_code, content
        response._content = content  # noqa: SLF001 - the only way to set a body that was read already
        response.json = lambda **_: self.decoder.decode(response.content)  # type: ignore[method-assign]
        return response

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """The redirect target, on the same host. Raises SourceError for another host, which is mostly a login."""
        target = super().get_redirect_target(resp)
        host, other = urlsplit(resp.url).hostname, urlsplit(target or "").hostname
        if target and other and other != host:
            raise SourceError(
                f"{resp.url.partition('?')[0]} redirects to {printable(other)}, perhaps a login: set telemetry.url to "
                "an address that needs no login in a browser"
            )
        return target


def _is_inside(host: str) -> bool:
    """Whether a host is in the cluster: a Service's name or a private address."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith(".svc") or ".svc." in host


def open_session(access: Access) -> requests.Session:
    """A session like that of `Prometheus`, for other requests. Raises SourceError."""
    session = _Session(access)
    session.read_secrets()
    return session


def _read_bounded(response: requests.Response, deadline: float, max_bytes: int) -> bytes:
    """The body, limited in time and size: requests' timeout only limits the time between two bytes."""
    chunks: list[bytes] = []
    size = 0
    with response:
        for chunk in response.iter_content(_CHUNK_BYTES):
            size += len(chunk)
            if size > max_bytes:
                raise SourceError(f"the response is larger than {max_bytes >> 20} MiB")
            if time.monotonic() > deadline:
                raise SourceError("the response takes too long")
            chunks.append(chunk)
    return b"".join(chunks)


def describe(error: BaseException) -> str:
    """A short description of a connection error; requests' messages contain addresses of objects."""
    if isinstance(error, requests.ConnectTimeout):
        return "no connection within the timeout"
    if isinstance(error, requests.Timeout) or "Read timed out" in str(error):
        return "no response within the timeout"
    if isinstance(error, requests.exceptions.SSLError):
        return f"TLS: {_innermost(error)}"
    if isinstance(error, requests.ConnectionError):
        return f"no connection: {_innermost(error)}"
    if isinstance(error, requests.exceptions.InvalidHeader):  # its message contains the header, perhaps a token
        return "a header has invalid characters: check telemetry.headers and the token file"
    return str(error)[:200] or type(error).__name__


def _error_text(content: bytes) -> str:
    """The message of an error response, on one line; "" for HTML."""
    text = content[: 20 * _MAX_ERROR_CHARS].decode(errors="replace").strip()
    try:
        body = msgspec.json.decode(content, type=dict[str, Any])
        text = str(body.get("error") or body.get("message") or text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return "" if text.startswith("<") else printable(" ".join(text.split()))[:_MAX_ERROR_CHARS]


def _innermost(error: BaseException) -> str:
    while isinstance(error.args[0] if error.args else None, BaseException):
        error = error.args[0]
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _innermost(reason)
    return str(error).rpartition(": ")[2][:200] or type(error).__name__


def to_float(text: str) -> float:
    """A value as Prometheus writes it; NaN if invalid."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _quoted(text: str) -> str:
    """A PromQL string literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _any_of(names: Iterable[str], *matchers: str) -> str:
    """A selector of all series with one of these names that match."""
    return _selector("", "__name__=~" + _quoted("|".join(names)), *matchers)


def _selector(name: str, *matchers: str) -> str:
    """A selector of a metric's series that match all `matchers`; each is one or several label matchers, or ""."""
    joined = ", ".join(text for given in matchers if (text := given.rstrip(", ")))
    return f"{name}{{{joined}}}" if joined else name


_MINIMIZED: Final = frozenset({Gauge.MEMORY_FREE})
"""Gauges of which the minimum of a GPU's series is the conservative value; for others it is the maximum."""
_SERIES_AT_ONCE: Final = 12_000


def _every_name(matchers: str = "") -> str:
    """A selector of all known metrics."""
    return _any_of((alias.name for alias in ALIASES), matchers)


def _present_names(matchers: str = "") -> str:
    """A query for the number of series of each known metric."""
    return f"count by (__name__) ({_every_name(matchers)})"


def _num_series(alias: Metric, matchers: str = "") -> str:
    """A query for the number of series of one metric, for servers without regular expressions on names, as Google's."""
    return f"count({_selector(alias.name, matchers)})"


def _kept_labels(present: Iterable[str]) -> list[str]:
    """The labels to aggregate by, among those that a source has."""
    names = set(present)
    kept: list[str] = [label for label in LABELS if label in names]
    return [*kept, *(model for instance, model in MODEL_OF.items() if instance in names and model in names)]


def _samples_query(alias: Metric, labels: Sequence[str], shard: str = "", matchers: str = "") -> str:
    """A query for one sample of each GPU, or of each GPU of a shard."""
    reduce = "min" if alias.gauge in _MINIMIZED else "max"
    return f"{reduce} by ({', '.join(labels)}) ({_sharded(alias, shard, matchers)})"


def _shards(num_series: int, labels: Sequence[str]) -> list[str]:
    """Selectors that split a metric's series by GPU index if they are too many for one response; else [""]."""
    index = next((label for label in SHARD_LABELS if label in labels), "")
    if num_series <= _SERIES_AT_ONCE or not index:
        return [""]
    pairs = [f'{{{index}=~"{number}|{number + 1}"}}' for number in range(0, 8, 2)]
    return [*pairs, f'{{{index}!~"[0-7]"}}']


def _sample_times(alias: Metric, labels: Sequence[str], matchers: str = "") -> str:
    """A query for the Unix time of each node's oldest sample; all series of a target are scraped at once."""
    by = [label for label in labels if label in HOST_LABELS or label == "instance"]
    return f"min by ({', '.join(by)}) (timestamp({_selector(alias.name, matchers)}))"


def _pod_usage(alias: Metric, present: Iterable[str], shard: str = "", matchers: str = "") -> str:
    """A query for one sample of each pod and GPU; "" if series name no pods.

    The caller adds them up, since several exporters may have series of one GPU.
    """
    names = set(present)
    by = [label for label in POD_LABELS if label in names]
    if not {"pod", "exported_pod"} & names:
        return ""
    has_pod = "" if "exported_pod" in names else 'pod!=""'
    return f"max by ({', '.join([*by, *_kept_labels(names)])}) ({_sharded(alias, shard, has_pod, matchers)})"


def _sharded(alias: Metric, shard: str, *matchers: str) -> str:
    return _selector(alias.name, shard[1:-1], *matchers)


_SURVEY_EVERY_S: Final = 300.0
_BAD_QUERY: Final = (400, 422)
"""Statuses of Google's server for a regular expression on a metric's name."""
_MAX_SERIES: Final = 10**9
_NUM_STALE: Final = 1000
"""Most devices without samples, plus a quarter of all, before numbering restarts."""


class _PrometheusSource:
    """Samples from one Prometheus."""

    def __init__(self, url: str, access: Access) -> None:
        self._prometheus = Prometheus(url, access)
        self._matchers, self._most = access.matchers, access.bounds.most
        self._table = DeviceTable(self._most)
        self._version = ""
        self._names: dict[str, int] = {}
        self._labels: Set[str] = set()
        self._surveyed_at = float("-inf")

    @property
    def url(self) -> str:
        """The server's address."""
        return self._prometheus.url

    def close(self) -> None:
        self._prometheus.close()

    def survey(self) -> Mapping[str, int]:
        """Find the known metrics that the server has; return the number of series of each. Raises SourceError."""
        self._version = self._prometheus.build_info()
        try:
            self._names = {
                item.metric.get("__name__", ""): self._count(item)
                for item in self._prometheus.counted(_present_names(self._matchers))
            }
            self._labels = self._prometheus.label_names(_every_name(self._matchers)) if self._names else set()
        except RefusedError as error:
            if error.status not in _BAD_QUERY:
                raise
            self._survey_by_name(error)
        self._surveyed_at = time.monotonic() if self._names else float("-inf")
        return self._names

    def _survey_by_name(self, refused: RefusedError) -> None:
        """Like `survey`, for a server without regular expressions on names. Raises SourceError."""
        self._names, self._labels = {}, EVERY_LABEL
        for alias in ALIASES:
            try:
                counted = self._prometheus.counted(_num_series(alias, self._matchers))
            except RefusedError:
                raise refused from None  # the refusal has another cause
            if num := sum(map(self._count, counted)):
                self._names[alias.name] = num

    def _count(self, item: Counted) -> int:
        """A number of series. Raises SourceError if it is invalid."""
        count = to_float(item.value[1])
        if not 0 <= count <= _MAX_SERIES:
            raise SourceError(f"{self.url} returns {item.value[1][:40]!r} as a number of series")
        return int(count)

    def read(self) -> Samples:
        began, used = time.monotonic(), time.process_time()
        if began - self._surveyed_at > _SURVEY_EVERY_S:
            self.survey()
        report = Report(source=self._prometheus.url, version=self._version)
        aliases = known_names(self._names)
        report.skew_s, report.skew_uncertainty_s = self._prometheus.skew()
        kept = _kept_labels(self._labels)
        values: dict[Gauge, Floats] = {}
        for alias in aliases:
            for shard in _shards(self._names[alias.name], kept):
                self._add(values, alias, _samples_query(alias, kept, shard, self._matchers), report)
        age_s = self._ages(aliases, kept) if aliases else np.empty(0)
        pods = self._pods(aliases, kept)
        samples = Samples(self._table, values, age_s, report, pods.usage(), pods.devices())
        grow(samples)
        has_samples = np.zeros(len(self._table.devices), np.bool_)
        for plane in values.values():
            has_samples |= ~np.isnan(plane)
        if not has_samples.any():
            self._surveyed_at = float("-inf")  # the metrics are gone or renamed: survey again
        if len(has_samples) - int(has_samples.sum()) > _NUM_STALE + len(has_samples) // 4:
            self._table = DeviceTable(self._most)
        report.read_s, report.cpu_s = time.monotonic() - began, time.process_time() - used
        return samples

    def _add(self, values: dict[Gauge, Floats], alias: Metric, query: str, report: Report) -> None:
        """Run a query and merge its result into `values`."""
        series = self._prometheus.series(query)
        report.series[alias.name] = report.series.get(alias.name, 0) + len(series)
        raw = np.fromiter((to_float(item.value[1]) for item in series), np.float64, len(series))
        merge(values, alias, *self._table.fold(alias, [item.metric for item in series], raw), report)

    def _ages(self, aliases: Sequence[Metric], kept: Sequence[str]) -> Floats:
        """(H,) ages, from one metric after another until every host has one; first memory, which all exporters have."""
        age_s = np.full(len(self._table.hosts), np.nan)
        for alias in sorted(aliases, key=lambda alias: alias.gauge is not Gauge.MEMORY_USED):
            if not np.isnan(age_s).any():
                break
            for item in self._prometheus.series(_sample_times(alias, kept, self._matchers)):
                host = self._table.host(item.metric)
                if host < len(age_s) and np.isnan(age_s[host]):
                    age_s[host] = item.value[0] - to_float(item.value[1])
        return age_s

    def _pods(self, aliases: Sequence[Metric], kept: Sequence[str]) -> PodTable:
        pods = PodTable()
        queried: set[Gauge] = set()
        for alias in aliases:
            if alias.gauge not in (Gauge.LOAD, Gauge.MEMORY_USED) or alias.gauge in queried:
                continue
            for shard in _shards(self._names[alias.name], kept):
                query = _pod_usage(alias, self._labels, shard, self._matchers)
                if not query:
                    break
                queried.add(alias.gauge)
                for item in self._prometheus.series(query):
                    pods.add(alias, item.metric, self._table.device(item.metric), to_float(item.value[1]))
        return pods


def _choose_source(
    urls: Sequence[str], access: Access, given_up: dict[str, SourceError] | None = None
) -> _PrometheusSource:
    """The first server that has GPU metrics, else the first that responds; adds failing ones to `given_up`.

    Raises SourceError if none responds.
    """
    faults: dict[str, SourceError] = {} if given_up is None else given_up
    responding: _PrometheusSource | None = None
    for url in urls:
        source = _PrometheusSource(url, access)
        try:
            with faults_of(source.url):
                has_gpus = bool(source.survey())
        except SourceError as error:
            faults[url] = bare(error)
            source.close()
            continue
        if has_gpus:
            if responding is not None:
                responding.close()
            return source
        if responding is None:
            responding = source
        else:
            source.close()
    if responding is None:
        raise SourceError("; ".join(map(str, faults.values())) or "no address of a Prometheus is known")
    return responding


class Candidates:
    """Reads the first of several servers that has GPU metrics; if one fails, tries the next."""

    def __init__(self, urls: Sequence[str], access: Access) -> None:
        self._urls, self._access = [url.rstrip("/") for url in urls], access
        self._source: _PrometheusSource | None = None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None

    def read(self) -> Samples:
        """Read all current samples. Raises SourceError with the faults of all servers."""
        given_up: dict[str, SourceError] = {}
        while left := [url for url in self._urls if url not in given_up]:
            if self._source is None:
                try:
                    self._source = _choose_source(left, self._access, given_up)
                except SourceError:
                    break
            try:
                with faults_of(self._source.url):
                    samples = self._source.read()
            except SourceError as error:
                given_up[self._source.url] = bare(error)
                self.close()
            else:
                responded = {url: error for url, error in given_up.items() if not isinstance(error, UnreachableError)}
                samples.report.given_up = {url: str(error) for url, error in responded.items()}
                return samples
        raise SourceError("; ".join(map(str, given_up.values())) or "no address of a Prometheus is known")
