"""The adapter on Prometheus' API: whatever the other side does ends in time, with a sentence."""

import json
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from urllib3.exceptions import InsecureRequestWarning

from extender.core.gauges import Gauge
from extender.telemetry.errors import SourceError
from extender.telemetry.series import ALIAS_OF, labels_of
from extender.telemetry.sources.prometheus import Candidates, Prometheus, _choose_source, _PrometheusSource
from extender.telemetry.sources.source import Access, Bounds, PodTable
from extender.telemetry.tables import DeviceTable, Most
from tests.api.certificates import Authority
from tests.telemetry.servers import Page, serving

EMPTY = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()


def vector(*items: tuple[Mapping[str, str], str], at: float = 1000.0) -> Page:
    result = [{"metric": labels, "value": [at, value]} for labels, value in items]
    return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def test_a_query_is_decoded_to_the_labels_that_matter() -> None:
    labels = {"__name__": "X", "gpu": "3", "UUID": "GPU-a", "Hostname": "n1", "pod": "p", "job": "dcgm"}
    with serving(lambda *_: vector((labels, "1.5"))) as server:
        (series,) = Prometheus(server.url, Access()).series("X")
    assert series.value == (1000.0, "1.5")
    assert series.metric.device() == (3, "GPU-a")
    assert series.metric.host().names == ("n1",)


def test_faults_are_sentences() -> None:
    for page, fault in (
        ((401, b"no"), "401"),
        ((503, b"down"), "503"),
        ((200, b"<html>login</html>"), "can't be read"),
        ((200, b'{"status":"success"}'), "can't be read"),
        ((200, b'{"data":{"result":[{"metric":{"gpu":1},"value":[1,"2"]}]}}'), "can't be read"),
        ((200, b"\xff\xfe"), "can't be read"),
    ):
        with serving(lambda *_, page=page: page) as server, pytest.raises(SourceError, match=fault) as caught:
            Prometheus(server.url, Access()).series("X")
        assert server.url in str(caught.value)


def test_a_stalled_server_costs_one_time_out_and_no_retries() -> None:
    with serving(lambda *_: None) as server:
        with pytest.raises(SourceError, match="no response within the timeout"):
            Prometheus(server.url, Access(timeout_s=0.3)).series("X")
        assert len(server.asked) == 1


def test_a_dead_server_is_a_sentence_without_retries() -> None:
    with serving(lambda *_: (200, EMPTY)) as server:
        url = server.url
    with pytest.raises(SourceError, match=r"no connection: .*refused"):
        Prometheus(url, Access()).series("X")


def test_the_proxy_is_asked_only_for_servers_outside_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    with serving(lambda *_: (200, b'{"status": "success", "data": {"version": "9"}}')) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        for host, no_proxy, proxied in (
            ("prometheus.example.com", "", True),
            ("prometheus.example.com", "example.com", False),
            ("prometheus.monitoring.svc", "", False),
            ("prometheus.monitoring.svc.cluster.local", "", False),
            ("127.0.0.1", "", False),
        ):
            monkeypatch.setenv("NO_PROXY", no_proxy)
            proxy.asked.clear()
            prometheus = Prometheus(f"http://{host}:1", Access(connect_timeout_s=0.5, timeout_s=1))
            try:
                version = prometheus.build_info()
            except SourceError:
                version = ""
            finally:
                prometheus.close()
            assert (version, len(proxy.asked)) == (("9", 1) if proxied else ("", 0))


def test_secrets_are_read_again_for_every_call(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    with serving(lambda *_: (200, EMPTY)) as server:
        prometheus = Prometheus(server.url, Access(bearer_token_file=str(token), headers={"X-Scope-OrgID": "gpu"}))
        prometheus.series("X")
        token.write_text("two\n")
        prometheus.series("X")
        sent = [headers["Authorization"] for _, _, headers in server.asked]
        assert sent == ["Bearer one", "Bearer two"]
        assert server.asked[0][2]["X-Scope-OrgID"] == "gpu"
        Prometheus(server.url, Access(username="kerf", password_file=str(token))).series("X")
        assert server.asked[-1][2]["Authorization"] == "Basic a2VyZjp0d28="  # kerf:two
        token.unlink()
        with pytest.raises(SourceError, match="credentials can't be read"):
            prometheus.series("X")


def test_mutual_tls_with_a_ca_of_its_own(tmp_path: Path) -> None:
    """G12: both sides show a certificate, and a CA that nobody else knows signs them."""
    authority, stranger = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "other", "other")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(*authority.issue("prometheus"))
    certificate, key = map(str, authority.issue("kerf"))
    ours = Access(ca_file=str(authority.certificate), cert_file=certificate, key_file=key)
    unknown = [
        Access(cert_file=certificate, key_file=key),
        Access(ca_file=str(stranger.certificate), cert_file=certificate, key_file=key),
        Access(ca_file=str(authority.certificate)),
    ]
    with serving(lambda *_: (200, EMPTY), tls) as server:
        assert Prometheus(server.url, ours).series("X") == []
        unverified = Access(insecure_skip_verify=True, cert_file=certificate, key_file=key)
        with pytest.warns(InsecureRequestWarning):
            assert Prometheus(server.url, unverified).series("X") == []
        assert len(server.asked) == 2
        for access in unknown:
            # By TLS 1.3 a client that shows none learns of it after the handshake, or finds the connection ended.
            with pytest.raises(SourceError, match=r"TLS: .*certificate|TLS: EOF|connection"):
                Prometheus(server.url, access).series("X")
        assert len(server.asked) == 2


def test_a_path_prefix_is_kept() -> None:
    with serving(lambda *_: (200, EMPTY)) as server:
        Prometheus(f"{server.url}/prometheus/", Access()).series("X")
        assert server.asked[0][0] == "/prometheus/api/v1/query"


def test_probing_takes_the_one_with_gpus() -> None:
    def with_gpus(path: str, query: Mapping[str, str], _: Mapping[str, str]) -> Page:
        if path == "/api/v1/labels":
            return 200, b'{"status":"success","data":["gpu","Hostname"]}'
        if query.get("query", "").startswith("count by"):
            return vector(({"__name__": "DCGM_FI_DEV_GPU_UTIL"}, "8"))
        return 200, EMPTY

    with serving(lambda *_: (200, EMPTY)) as empty, serving(with_gpus) as right:
        source = _choose_source(["http://127.0.0.1:9", empty.url, right.url], Access())
        assert isinstance(source, _PrometheusSource)
        assert source.survey() == {"DCGM_FI_DEV_GPU_UTIL": 8}
        assert _choose_source([empty.url], Access()).survey() == {}
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:9"):
        _choose_source(["http://127.0.0.1:9"], Access())


def test_a_clock_that_is_ahead_is_measured() -> None:
    ahead = 120.0
    with serving(lambda *_: vector(({}, "0"), at=time.time() + ahead)) as server:
        skew_s, uncertainty_s = Prometheus(server.url, Access()).skew()
    assert skew_s == pytest.approx(ahead, abs=uncertainty_s + 1)


GPU_0 = {"gpu": "0", "UUID": "GPU-a", "Hostname": "n1"}


class Fake:
    """Speaks Prometheus' API, with one odd answer."""

    def __init__(
        self, *, count: str = "1", at: float | None = None, value: str = "50", odd: Page | None = None
    ) -> None:
        self.count, self.at, self.value, self.odd = count, at, value, odd

    def __call__(self, path: str, query: Mapping[str, str], _: Mapping[str, str]) -> Page:
        asked = query.get("query", "")
        if path == "/api/v1/labels":
            return 200, b'{"status":"success","data":["gpu","UUID","Hostname"]}'
        if asked.startswith("count"):
            return vector(({"__name__": "DCGM_FI_DEV_GPU_UTIL"}, self.count))
        if asked.startswith("vector"):
            return vector(({}, "0"), at=time.time() if self.at is None else self.at)
        if self.odd and "DCGM" in asked:
            return self.odd
        return vector((GPU_0, self.value), at=time.time())


def test_whatever_one_answers_the_next_is_asked() -> None:
    def result(content: str) -> Page:
        return 200, b'{"data":{"result":' + content.encode() + b"}}"

    for odd in (
        Fake(count="+Inf"),
        Fake(count="NaN"),
        Fake(count="-1"),
        Fake(count="1e300"),
        Fake(count="many"),
        Fake(at=1e300),
        Fake(odd=(200, b"[" * 100_000)),
        Fake(odd=result("null")),
        Fake(odd=result('[{"metric":{},"value":[1e999,"1"]}]')),
        Fake(odd=result('[{"metric":{},"value":["1","1"]}]')),
        Fake(odd=result('[{"metric":{},"value":[1]}]')),
    ):
        with serving(odd) as first, serving(Fake()) as second:
            source = Candidates([first.url, second.url + "/"], Access())
            for _ in range(2):
                samples = source.read()
                assert samples.report.source == second.url
                assert samples.values[Gauge.LOAD].tolist() == [0.5]
            with pytest.raises(SourceError, match=first.url):
                Candidates([first.url], Access()).read()
            given_up = Candidates([first.url, second.url], Access()).read().report.given_up
            assert list(given_up) == [first.url]
            assert given_up[first.url].startswith(first.url)


def test_odd_values_are_none() -> None:
    for value in ("NaN", "-Inf", "1e308", "9" * 400, "", "0x10", "-1"):
        with serving(Fake(value=value)) as server:
            samples = Candidates([server.url], Access()).read()
        assert np.isnan(samples.values[Gauge.LOAD]).all()
        assert samples.report.refused == {"DCGM_FI_DEV_GPU_UTIL": 1}


def test_a_refusal_has_the_servers_words_and_the_setting() -> None:
    for status, body, access, words, setting in (
        (401, b"no org id\n", Access(), "401: no org id", "X-Scope-OrgID"),  # Mimir
        (401, b'{"error":"who are you?"}', Access(), "401: who are you?", "telemetry.bearer_token_file"),
        (403, b"<html>Sign in</html>", Access(username="kerf"), "403;", "telemetry.password_file"),
        (401, b"no org id", Access(bounds=Bounds(is_found=True)), "401: no org id", "telemetry.url"),
        (429, b"too many\x1b[2J calls", Access(), "429: too many\\x1b[2J calls", ""),
        (400, b'{"error":"bad query"}', Access(), "400: bad query", ""),
    ):
        with serving(lambda *_, status=status, body=body: (status, body)) as server:
            prometheus = Prometheus(server.url, access)
            calls: list[Callable[[], object]] = [partial(prometheus.series, "X"), prometheus.build_info]
            for call in calls[:1] if status == 400 else calls:  # an old server has no build information
                with pytest.raises(SourceError) as caught:
                    call()
                for part in (f"{server.url}: ", words, setting):
                    assert part in str(caught.value)


def test_a_server_that_matches_names_exactly_alone_is_read_by_name() -> None:
    """As Google's Managed Service for Prometheus does: "Only exact matching on metric names is supported"."""

    def exact(path: str, query: Mapping[str, str], _: Mapping[str, str]) -> Page:
        asked = query.get("query", query.get("match[]", ""))
        if "__name__" in asked:
            return 400, b'{"status":"error","error":"unsupported regular expression on __name__"}'
        if path == "/api/v1/labels":
            return 404, b""
        if asked == 'count(DCGM_FI_DEV_GPU_UTIL{cluster="a"})':
            return vector(({}, "1"))
        if asked.startswith("count("):
            return 200, EMPTY
        if asked.startswith("vector"):
            return vector(({}, "0"), at=time.time())
        return vector((GPU_0 | {"exported_pod": "p", "exported_namespace": "team"}, "50"), at=time.time())

    with serving(exact) as server:
        samples = Candidates([server.url], Access(matchers='cluster="a"')).read()
        assert samples.values[Gauge.LOAD].tolist() == [0.5]
        assert samples.pods["team", "p"][0] == 0.5
        assert all('cluster="a"' in query["query"] for _, query, _ in server.asked if "DCGM" in query.get("query", ""))


def test_a_server_that_takes_no_query_at_all_says_why() -> None:
    def never(path: str, *_: object) -> Page:
        return (400, b'{"error":"quota of the project"}') if path == "/api/v1/query" else (404, b"")

    with serving(never) as server, pytest.raises(SourceError, match="HTTP status 400: quota of the project"):
        Candidates([server.url], Access()).read()


def test_an_answer_larger_than_its_bound_is_a_fault_of_its_source() -> None:
    small = Access(bounds=Bounds(answer_bytes=2**20))
    with serving(Fake(odd=(200, b" " * (2**20 + 1)))) as first, serving(Fake()) as second:
        samples = Candidates([first.url, second.url], small).read()
    assert "larger than 1 MiB" in samples.report.given_up[first.url]


def test_more_hosts_or_gpus_than_the_cluster_can_have_are_a_fault_of_their_source() -> None:
    many = vector(*((GPU_0 | {"Hostname": f"n{at}", "UUID": f"GPU-{at}"}, "1") for at in range(3)), at=time.time())
    for most, of in ((Most(hosts=2), "hosts"), (Most(devices=2), "GPUs")):
        with serving(Fake(odd=many)) as first, serving(Fake()) as second:
            samples = Candidates([first.url, second.url], Access(bounds=Bounds(most=most))).read()
        assert f"more than 2 {of}" in samples.report.given_up[first.url]
        assert "telemetry.matchers" in samples.report.given_up[first.url]


def test_a_pods_gpus_count_once_however_many_exporters_have_them() -> None:
    """Two GPUs, each with two exporters, of which one does not honour labels: by UUID they are two."""
    used = ALIAS_OF["DCGM_FI_DEV_FB_USED"]
    pods = PodTable()
    for at, exporter in ((0, "a"), (1, "a"), (0, "b"), (1, "b")):
        of_pod = {"exported_namespace": "team", "exported_pod": "p"} if exporter == "b" else {}
        labels = {"namespace": "team", "pod": "p" if exporter == "a" else "dcgm-exporter-x", **of_pod}
        pods.add(used, labels_of(GPU_0 | {"UUID": f"GPU-{at}", "instance": exporter} | labels), at, 15_000.0)
    assert pods.usage()["team", "p"][1] == 30_000
    assert pods.devices() == {("team", "p"): [0, 1]}


def test_mig_instances_that_several_pods_share_count_once() -> None:
    """As an exporter's own page has them: a series for each pod."""
    used = ALIAS_OF["DCGM_FI_DEV_FB_USED"]
    labels = [labels_of(GPU_0 | {"GPU_I_ID": str(at), "GPU_I_PROFILE": "1g.10gb"}) for at in (1, 1, 1, 2)]
    folded, _ = DeviceTable().fold(used, labels, np.array([1000.0, 1000.0, 1000.0, 500.0]))
    assert folded.tolist() == [1500]
