"""The adapter on Prometheus' API: whatever the other side does ends in time, with a sentence."""

import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from urllib3.exceptions import InsecureRequestWarning

from extender.telemetry.errors import SourceError
from extender.telemetry.sources.prometheus import PrometheusSource, choose_source
from extender.telemetry.sources.prometheus_client import Prometheus
from extender.telemetry.sources.source import Access
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


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ((401, b"no"), "401"),
        ((503, b"down"), "503"),
        ((200, b"<html>login</html>"), "can't be read"),
        ((200, b'{"status":"success"}'), "can't be read"),
        ((200, b'{"data":{"result":[{"metric":{"gpu":1},"value":[1,"2"]}]}}'), "can't be read"),
        ((200, b"\xff\xfe"), "can't be read"),
    ],
    ids=["401", "503", "not JSON", "no data", "wrong types", "not UTF-8"],
)
def test_faults_are_sentences(page: Page, told: str) -> None:
    with serving(lambda *_: page) as server, pytest.raises(SourceError, match=told) as caught:
        Prometheus(server.url, Access()).series("X")
    assert server.url in str(caught.value)


def test_values_that_are_no_numbers_are_nan() -> None:
    page = vector(({"gpu": "0"}, "NaN"), ({"gpu": "1"}, "+Inf"), ({"gpu": "2"}, "garbage"))
    with serving(lambda *_: page) as server:
        assert len(Prometheus(server.url, Access()).series("X")) == 3


def test_a_stalled_server_costs_one_time_out_and_no_retries() -> None:
    with serving(lambda *_: None) as server:
        with pytest.raises(SourceError, match="no answer within the time-out"):
            Prometheus(server.url, Access(timeout_s=0.3)).series("X")
        assert len(server.asked) == 1


def test_a_dead_server_is_a_sentence_without_retries() -> None:
    with serving(lambda *_: (200, EMPTY)) as server:
        url = server.url
    with pytest.raises(SourceError, match=r"no connection: .*refused"):
        Prometheus(url, Access()).series("X")


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
        token.unlink()
        with pytest.raises(SourceError, match="credentials can't be read"):
            prometheus.series("X")


def test_basic_authentication(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    with serving(lambda *_: (200, EMPTY)) as server:
        Prometheus(server.url, Access(username="kerf", password_file=str(password))).series("X")
        assert server.asked[0][2]["Authorization"] == "Basic a2VyZjpzZWNyZXQ="  # kerf:secret


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
        source = choose_source(["http://127.0.0.1:9", empty.url, right.url], Access())
        assert isinstance(source, PrometheusSource)
        assert source.survey() == {"DCGM_FI_DEV_GPU_UTIL": 8}
        assert choose_source([empty.url], Access()).survey() == {}
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:9"):
        choose_source(["http://127.0.0.1:9"], Access())


def test_a_clock_that_is_ahead_is_measured() -> None:
    ahead = 120.0
    with serving(lambda *_: vector(({}, "0"), at=time.time() + ahead)) as server:
        skew_s, uncertainty_s = Prometheus(server.url, Access()).skew()
    assert skew_s == pytest.approx(ahead, abs=uncertainty_s + 1)
