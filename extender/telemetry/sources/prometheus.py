"""Samples from a Prometheus, or what speaks its API: asked in few aggregated queries.

Prometheus behind prometheus-api-client: with time-outs, a session of its own, no retries, and narrow decoding.

The client decodes answers into Python's general objects: 40,000 series are 60 MB of them. Its session is given a
decoder that keeps only the labels that matter.

PromQL: aggregated on the server, one query for each metric name, so that no answer is large.

Measured on 48,000 series: whole series 629 ms and 19.6 MB, aggregated by GPU 487 ms and 6.5 MB.
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
_MAX_WORDS_CHARS: Final = 200
_MAX_SKEW_S: Final = 1e10
_CHUNK_BYTES: Final = 2**18


class Series(msgspec.Struct, gc=False):
    """One element of an instant query's answer."""

    metric: Labels
    value: tuple[float, str]
    """Time of evaluation in Unix seconds, and the value as text."""


class Counted(msgspec.Struct, gc=False):
    """One element of an answer whose labels are asked for by name."""

    metric: dict[str, str]
    value: tuple[float, str]


class Counts(msgspec.Struct, gc=False):
    """One element of a range query's answer."""

    metric: dict[str, str]
    values: list[tuple[float, str]]
    """Of each time of evaluation that has one."""


class _Data(TypedDict, Generic[ElementT]):
    result: list[ElementT]


class _Answer(TypedDict, Generic[ElementT]):
    data: _Data[ElementT]


_series_decoder: Final = msgspec.json.Decoder(_Answer[Series])
_counted_decoder: Final = msgspec.json.Decoder(_Answer[Counted])
_counts_decoder: Final = msgspec.json.Decoder(_Answer[Counts])


class Prometheus:
    """One Prometheus, or what speaks its API. Not thread-safe."""

    def __init__(self, url: str, access: Access) -> None:
        self.url = url.rstrip("/")
        self._session = _Session(access)
        self._session.lead_to(self.url)
        self._client = PrometheusConnect(
            url=self.url, session=self._session, retry=Retry(total=0, redirect=3, raise_on_status=False)
        )

    def close(self) -> None:
        """Let go of the connections."""
        self._session.close()

    def build_info(self) -> str:
        """Version of a server that speaks the API, "" when it does not say. Raises SourceError."""
        content = self._get("/api/v1/status/buildinfo", {}, missing_is_empty=True)
        if not content:
            return ""  # VictoriaMetrics' and Thanos' older releases have no such page
        try:
            answer = msgspec.json.decode(content, type=dict[str, Any])
            return printable(str(dict(answer.get("data") or {}).get("version", ""))[:_MAX_VERSION_CHARS])
        except (msgspec.DecodeError, ValueError, TypeError):
            raise SourceError(f"{self.url} answers, but not as Prometheus does") from None

    def label_names(self, selector: str) -> set[str]:
        """Names of all labels of the series that a selector matches. Raises SourceError."""
        content = self._get("/api/v1/labels", {"match[]": selector})
        try:
            answer = msgspec.json.decode(content, type=dict[str, Any])
            return {str(name) for name in answer.get("data") or ()}
        except (msgspec.DecodeError, TypeError):
            raise SourceError(f"{self.url}: the labels can't be read") from None

    def series(self, query: str) -> list[Series]:
        """An instant query. Raises SourceError."""
        return self._query(query, _series_decoder)

    def counted(self, query: str) -> list[Counted]:
        """An instant query with few elements. Raises SourceError."""
        return self._query(query, _counted_decoder)

    def counted_over(self, query: str, first: int, last: int, step_s: int) -> list[Counts]:
        """A range query with few elements, from one Unix time to another. Raises SourceError."""
        begin, end = (datetime.fromtimestamp(at, UTC) for at in (first, last))
        ask = partial(self._client.custom_query_range, query, begin, end, str(step_s))
        return self._asked(ask, _counts_decoder)

    def skew(self) -> tuple[float, float]:
        """Seconds that its clock is ahead of ours, and how uncertain that is: half of the round trip that read it.

        Raises SourceError.
        """
        began = time.time()
        answer = self.counted("vector(time())")
        ended = time.time()
        if not answer:
            raise SourceError(f"{self.url} does not report its time")
        skew_s = answer[0].value[0] - (began + ended) / 2
        if not abs(skew_s) < _MAX_SKEW_S:
            raise SourceError(f"{self.url}: its time is no time: {answer[0].value[0]:g}")
        return skew_s, (ended - began) / 2

    def _query(self, query: str, decoder: msgspec.json.Decoder[_Answer[ElementT]]) -> list[ElementT]:
        return self._asked(partial(self._client.custom_query, query), decoder)

    def _asked(self, ask: Callable[[], Any], decoder: msgspec.json.Decoder[_Answer[ElementT]]) -> list[ElementT]:
        self._session.decoder = decoder
        self._session.read_secrets()
        try:
            result: list[ElementT] = ask()
            return result
        except PrometheusApiClientException:
            raise self._refusal() from None
        except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise SourceError(f"{self.url}: the answer can't be read: {str(error)[:200]}") from None
        except (requests.RequestException, OSError, ValueError) as error:
            raise UnreachableError(f"{self.url}: {describe(error)}") from None

    def _refusal(self) -> SourceError:
        """What an answer that is none says, and which setting may help."""
        status, words = self._session.status, _words(self._session.content)
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
    """A session with time-outs, secrets read again for every call, bounded answers and a decoder of its own."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self.access = access
        self.status, self.content = 0, b""
        """Of the last answer."""
        self.decoder: msgspec.json.Decoder[Any] = _counted_decoder
        self.trust_env = (
            False  # ~/.netrc of the machine is not meant for this, and the proxy not for what is in the cluster
        )
        self.verify = False if access.insecure_skip_verify else access.ca_file or True
        if access.cert_file:
            self.cert = (access.cert_file, access.key_file) if access.key_file else access.cert_file
        # Compressing an answer of megabytes takes both sides longer than sending it.
        self.headers.update({"User-Agent": "kerf", "Accept-Encoding": "identity", **access.headers})

    def lead_to(self, url: str) -> None:
        """Go by the proxy of the environment, as to the API server, where a server is outside the cluster. Raises
        SourceError."""
        parts = urlsplit(url)
        if _is_inside(parts.hostname or ""):
            return
        try:
            proxy = proxy_of(url, "", os.environ)
        except CredentialsError as error:
            raise SourceError(str(error)) from None
        self.proxies = {parts.scheme: proxy} if proxy else {}

    def read_secrets(self) -> None:
        """Take up the secrets as they are now. Raises SourceError."""
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
        """As the client calls it; whatever it says of time-outs and authentication, ours hold."""
        kwargs["timeout"] = (self.access.connect_timeout_s, self.access.timeout_s)
        kwargs["stream"] = True
        if kwargs.get("auth") is None:
            kwargs.pop("auth", None)
        response = super().request(method, url, *args, **kwargs)
        most = self.access.bounds.answer_bytes
        content = _bounded(response, time.monotonic() + 2 * self.access.timeout_s, most)
        self.status, self.content = response.status_code, content
        response._content = content  # noqa: SLF001 - requests takes a body that others have read no other way
        response.json = lambda **_: self.decoder.decode(response.content)  # type: ignore[method-assign]
        return response

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where an answer leads to, on the same host. Raises SourceError for another host: that is a login, mostly, and
        no place for what is asked."""
        target = super().get_redirect_target(resp)
        host, other = urlsplit(resp.url).hostname, urlsplit(target or "").hostname
        if target and other and other != host:
            settings = "telemetry.url to an address that needs no login in a browser"
            raise SourceError(
                f"{resp.url.partition('?')[0]} leads to {printable(other)}, a login perhaps: set {settings}"
            )
        return target


def _is_inside(host: str) -> bool:
    """Whether a host is the cluster's: a Service by its name or address."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith(".svc") or ".svc." in host


def open_session(access: Access) -> requests.Session:
    """A session as Prometheus is asked through, for other pages. Raises SourceError."""
    session = _Session(access)
    session.read_secrets()
    return session


def _bounded(response: requests.Response, deadline: float, most: int) -> bytes:
    """The body: requests' time-out holds between two bytes only, and sets no limit to their number."""
    chunks: list[bytes] = []
    size = 0
    with response:
        for chunk in response.iter_content(_CHUNK_BYTES):
            size += len(chunk)
            if size > most:
                raise SourceError(f"the answer is larger than {most >> 20} MiB")
            if time.monotonic() > deadline:
                raise SourceError("the response does not end")
            chunks.append(chunk)
    return b"".join(chunks)


def describe(error: BaseException) -> str:
    """A fault of the connection in few words: requests' own texts name addresses of objects."""
    if isinstance(error, requests.ConnectTimeout):
        return "no connection within the time-out"
    if isinstance(error, requests.Timeout) or "Read timed out" in str(error):
        return "no answer within the time-out"
    if isinstance(error, requests.exceptions.SSLError):
        return f"TLS: {_innermost(error)}"
    if isinstance(error, requests.ConnectionError):
        return f"no connection: {_innermost(error)}"
    if isinstance(error, requests.exceptions.InvalidHeader):  # its text is the header's: a token
        return "a header has invalid characters: check telemetry.headers and the token file"
    return str(error)[:200] or type(error).__name__


def _words(content: bytes) -> str:
    """What a server says with a refusal, on one line; "" for a page for people."""
    text = content[: 20 * _MAX_WORDS_CHARS].decode(errors="replace").strip()
    try:
        told = msgspec.json.decode(content, type=dict[str, Any])
        text = str(told.get("error") or told.get("message") or text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return "" if text.startswith("<") else printable(" ".join(text.split()))[:_MAX_WORDS_CHARS]


def _innermost(error: BaseException) -> str:
    while isinstance(error.args[0] if error.args else None, BaseException):
        error = error.args[0]
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _innermost(reason)
    return str(error).rpartition(": ")[2][:200] or type(error).__name__


def to_float(text: str) -> float:
    """A value as Prometheus writes it; what is none is NaN."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _quoted(text: str) -> str:
    """A string of PromQL."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _any_of(names: Iterable[str], *matchers: str) -> str:
    """A selector of all series of these names that match."""
    return _selector("", "__name__=~" + _quoted("|".join(names)), *matchers)


def _selector(name: str, *matchers: str) -> str:
    """A selector of the series of a name that match all of these, each one or several label matchers, or ""."""
    joined = ", ".join(text for given in matchers if (text := given.rstrip(", ")))
    return f"{name}{{{joined}}}" if joined else name


_LEAST: Final = frozenset({Gauge.MEMORY_FREE})
"""Of several series of one GPU the least is the careful answer; of all other gauges the most."""
_SERIES_AT_ONCE: Final = 12_000


def _every_name(matchers: str = "") -> str:
    """Selector of everything that the table of aliases knows."""
    return _any_of((alias.name for alias in ALIASES), matchers)


def _present_names(matchers: str = "") -> str:
    """How many series there are of each known name."""
    return f"count by (__name__) ({_every_name(matchers)})"


def _num_series(alias: Metric, matchers: str = "") -> str:
    """How many series there are of one name: for servers that match names exactly alone, as Google's does."""
    return f"count({_selector(alias.name, matchers)})"


def _kept_labels(present: Iterable[str]) -> list[str]:
    """The labels to aggregate by, of those that a source has."""
    found = set(present)
    kept: list[str] = [label for label in LABELS if label in found]
    return [*kept, *(model for instance, model in MODEL_OF.items() if instance in found and model in found)]


def _samples_query(alias: Metric, labels: Sequence[str], shard: str = "", matchers: str = "") -> str:
    """One sample of each GPU, of all or of one shard."""
    reduce = "min" if alias.gauge in _LEAST else "max"
    return f"{reduce} by ({', '.join(labels)}) ({_sharded(alias, shard, matchers)})"


def _shards(num_series: int, labels: Sequence[str]) -> list[str]:
    """Selectors that split the series of one name by index on the node, where they are so many that their answer
    would cost much memory."""
    index = next((label for label in SHARD_LABELS if label in labels), "")
    if num_series <= _SERIES_AT_ONCE or not index:
        return [""]
    pairs = [f'{{{index}=~"{number}|{number + 1}"}}' for number in range(0, 8, 2)]
    return [*pairs, f'{{{index}!~"[0-7]"}}']


def _sample_times(alias: Metric, labels: Sequence[str], matchers: str = "") -> str:
    """Unix time of each node's oldest sample of one name: all series of a target are scraped at one time."""
    by = [label for label in labels if label in HOST_LABELS or label == "instance"]
    return f"min by ({', '.join(by)}) (timestamp({_selector(alias.name, matchers)}))"


def _pod_usage(alias: Metric, present: Iterable[str], shard: str = "", matchers: str = "") -> str:
    """One sample of each GPU of each pod; "" where series name no pods. Added up by whoever asks: another exporter's
    series of the same GPU is no second one."""
    found = set(present)
    by = [label for label in POD_LABELS if label in found]
    if not {"pod", "exported_pod"} & found:
        return ""
    named = "" if "exported_pod" in found else 'pod!=""'
    return f"max by ({', '.join([*by, *_kept_labels(found)])}) ({_sharded(alias, shard, named, matchers)})"


def _sharded(alias: Metric, shard: str, *matchers: str) -> str:
    return _selector(alias.name, shard[1:-1], *matchers)


_SURVEY_EVERY_S: Final = 300.0
_BAD_QUERY: Final = (400, 422)
"""Google's server answers so where a name is matched by a regular expression."""
_MOST_SERIES: Final = 10**9
_NUM_SPARE: Final = 1000
"""Devices no more heard of that are carried along before everything is numbered afresh."""


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
        """Its address."""
        return self._prometheus.url

    def close(self) -> None:
        self._prometheus.close()

    def survey(self) -> Mapping[str, int]:
        """Which known names it has, with the number of their series. Raises SourceError."""
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
        """As `survey`, of a server that takes no regular expression for a name. Raises SourceError."""
        self._names, self._labels = {}, EVERY_LABEL
        for alias in ALIASES:
            try:
                counted = self._prometheus.counted(_num_series(alias, self._matchers))
            except RefusedError:
                raise refused from None  # it is something else that it does not take
            if num := sum(map(self._count, counted)):
                self._names[alias.name] = num

    def _count(self, item: Counted) -> int:
        """A number of series, as a server counts them. Raises SourceError."""
        count = to_float(item.value[1])
        if not 0 <= count <= _MOST_SERIES:
            raise SourceError(f"{self.url} counts {item.value[1][:40]!r} series of a name, which is no number of them")
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
        heard_of = np.zeros(len(self._table.devices), np.bool_)
        for plane in values.values():
            heard_of |= ~np.isnan(plane)
        if not heard_of.any():
            self._surveyed_at = float("-inf")  # whatever was there is gone or renamed: look again
        if len(heard_of) - int(heard_of.sum()) > _NUM_SPARE + len(heard_of) // 4:
            self._table = DeviceTable(self._most)
        report.read_s, report.cpu_s = time.monotonic() - began, time.process_time() - used
        return samples

    def _add(self, values: dict[Gauge, Floats], alias: Metric, query: str, report: Report) -> None:
        """Put the answer to one query beside what is known."""
        series = self._prometheus.series(query)
        report.series[alias.name] = report.series.get(alias.name, 0) + len(series)
        raw = np.fromiter((to_float(item.value[1]) for item in series), np.float64, len(series))
        merge(values, alias, *self._table.fold(alias, [item.metric for item in series], raw), report)

    def _ages(self, aliases: Sequence[Metric], kept: Sequence[str]) -> Floats:
        """(H,) ages, by one name after another until every host has one; memory, which all exporters tell, first."""
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
        asked: set[Gauge] = set()
        for alias in aliases:
            if alias.gauge not in (Gauge.LOAD, Gauge.MEMORY_USED) or alias.gauge in asked:
                continue
            for shard in _shards(self._names[alias.name], kept):
                query = _pod_usage(alias, self._labels, shard, self._matchers)
                if not query:
                    break
                asked.add(alias.gauge)
                for item in self._prometheus.series(query):
                    pods.add(alias, item.metric, self._table.device(item.metric), to_float(item.value[1]))
        return pods


def _choose_source(
    urls: Sequence[str], access: Access, given_up: dict[str, SourceError] | None = None
) -> _PrometheusSource:
    """The first Prometheus that has series of GPUs, else the first that answers; those that can't be read are added to
    `given_up`. Raises SourceError."""
    faults: dict[str, SourceError] = {} if given_up is None else given_up
    answering: _PrometheusSource | None = None
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
            if answering is not None:
                answering.close()
            return source
        if answering is None:
            answering = source
        else:
            source.close()
    if answering is None:
        raise SourceError("; ".join(map(str, faults.values())) or "no address of a Prometheus is known")
    return answering


class Candidates:
    """The first of several that has series of GPUs and can be read; whatever one answers, the next is asked."""

    def __init__(self, urls: Sequence[str], access: Access) -> None:
        self._urls, self._access = [url.rstrip("/") for url in urls], access
        self._source: _PrometheusSource | None = None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None

    def read(self) -> Samples:
        """All samples now. Raises SourceError with what is wrong with each."""
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
                answered = {url: error for url, error in given_up.items() if not isinstance(error, UnreachableError)}
                samples.report.given_up = {url: str(error) for url, error in answered.items()}
                return samples
        raise SourceError("; ".join(map(str, given_up.values())) or "no address of a Prometheus is known")
