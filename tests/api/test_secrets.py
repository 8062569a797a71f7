"""No secret is shown in logs, metrics, answers, errors or printed settings."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import app
from extender.kube.transport import NODES_PATH, PODS_PATH
from tests.api.processes import Server, request
from tests.controlplane.processes import clean_environment
from tests.telemetry.servers import Page, serving

pytestmark = pytest.mark.slow

API_TOKEN, BEARER, PASSWORD, HEADER, READER = (
    f"secret-{name}-2f1c9e7a" for name in ("of-the-api", "bearer", "password", "header", "reader")
)
BASIC = base64.b64encode(f"kerf:{PASSWORD}".encode()).decode()
SECRETS = (API_TOKEN, BEARER, PASSWORD, HEADER, READER, BASIC)


def hidden(text: str) -> str:
    """Assert that a text has no secrets; return it."""
    for secret in SECRETS:
        assert secret not in text, f"{secret} is shown"
    return text


@contextmanager
def serve(folder: Path, api: str, prometheus: str, credentials: Mapping[str, object]) -> Iterator[Server]:
    """`kerf serve` with every secret there is, at the log level that tells most."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": api}}],
                "users": [{"name": "u", "user": {"token": API_TOKEN}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    (folder / "readers").write_text(READER)
    config = folder / "kerf.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "server": {"port": 0, "drain_s": 0},
                "cluster": {"kubeconfig": str(kubeconfig)},
                "access": {"token_file": str(folder / "readers")},
                "telemetry": {"url": prometheus, "interval_s": 0.2, **credentials},
                "log": {"level": "debug", "format": "json"},
            }
        )
    )
    command = [sys.executable, "-m", "extender", "serve", "--config", str(config)]

    log = folder / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=clean_environment()) as process:
        try:
            yield Server(process, log)
            process.terminate()
            process.wait(timeout=40)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["password", "bearer", "broken bearer"])
def test_nothing_that_is_said_holds_a_secret(tmp_path: Path, kind: str) -> None:
    seen: list[str] = []
    asked: list[str] = []

    def api(path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Page:
        seen.append(headers.get("Authorization", ""))
        asked.append(path)
        if path == PODS_PATH and asked.count(path) == 1:  # no pods are marked, which is told
            return 500, b"not even JSON"
        if path == PODS_PATH:  # and then there are none: what is mirrored from there on fails
            return 200, b'{"metadata": {"resourceVersion": "1"}, "items": []}'
        return (401, b"{}") if len(seen) % 3 == 0 else (500, b"not even JSON")

    def prometheus(path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Page:
        seen.append(headers.get("Authorization", "") + headers.get("X-Key", ""))
        return (503, b"{]") if len(seen) % 2 else (200, b"{}")

    (tmp_path / "secret").write_text({"password": PASSWORD, "bearer": BEARER}.get(kind, f"{BEARER}\n{BEARER}"))
    how: dict[str, object] = {"headers": {"X-Key": HEADER}}
    if kind == "password":
        how |= {"username": "kerf", "password_file": str(tmp_path / "secret")}
    else:
        how["bearer_token_file"] = str(tmp_path / "secret")
    with serving(api) as cluster, serving(prometheus) as metrics:
        with serve(tmp_path, cluster.url, metrics.url, how) as server, server.connection() as connection:
            reader = {"Authorization": f"Bearer {READER}"}

            def get(path: str, headers: Mapping[str, str]) -> int:
                connection.request("GET", path, headers=dict(headers))
                response = connection.getresponse()
                hidden(response.read().decode() + str(response.getheaders()))
                return response.status

            def telemetry_failed() -> bool:
                return get("/telemetry", reader) == 200 and "telemetry" in server.log

            def cluster_failed() -> bool:
                failures = ("pods being placed were not marked", f"mirror of {NODES_PATH} interrupted")
                return all(failure in server.log for failure in failures)

            server.wait_for(telemetry_failed)
            server.wait_for(cluster_failed)
            for path in (
                "/metrics",
                "/readyz",
                "/nodes",
                "/version",
                "/telemetry",
                "/openapi.json",
                "/explain/pod/a/b",
            ):
                get(path, reader)
            assert get("/nodes", {"Authorization": f"Bearer {READER}x"}) == 401
            for path, body in (("/filter", b"{}"), ("/bind", b'{"PodName": "a"}')):
                hidden(request(connection, "POST", path, body).content.decode())
            config = str(tmp_path / "kerf.yaml")
            for command in (["config", "show"], ["config", "check"], ["doctor"]):
                said = CliRunner().invoke(app, [*command, "--config", config])
                hidden(said.output + said.stderr + repr(said.exception))
        hidden((tmp_path / "log").read_text())
    told = "".join(seen)
    assert API_TOKEN in told, "the secrets were really used"
    assert kind != "bearer" or (BEARER in told and HEADER in told)
    assert len((tmp_path / "log").read_text().splitlines()) > 5


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"telemetry: {{url: 'http://kerf:{PASSWORD}@prometheus:9090'}}", "telemetry.url: "),
        (f"telemetry: {{exporters: ['http://kerf:{PASSWORD}@node:9400/metrics']}}", "telemetry.exporters: "),
        (f"telemetry: {{headers: {HEADER}}}", "telemetry.headers: "),
        (f"telemetry: {{headers: {{X-Key: [{HEADER}]}}}}", "telemetry.headers.X-Key: "),
        (f"telemetry: {{password: {PASSWORD}}}", "telemetry.password: no such setting"),
        (f'telemetry: {{headers: {{X-Key: "{HEADER}}}}}', "invalid YAML: "),
    ],
)
def test_faults_of_settings_hold_no_secret(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "kerf.yaml"
    path.write_text(text)
    said = CliRunner().invoke(app, ["config", "check", "--config", str(path)])
    assert said.exit_code == 1
    assert place in hidden(said.output)


def test_faults_of_flags_and_variables_hold_no_secret() -> None:
    flags = CliRunner().invoke(app, ["config", "check", "--set", f"telemetry.headers={{X-Key: '{HEADER}}}"])
    assert "--set telemetry.headers: invalid YAML" in hidden(flags.output)
    variables = CliRunner().invoke(app, ["config", "check"], env={"KERF_TELEMETRY__HEADERS": HEADER})
    assert "telemetry.headers: " in hidden(variables.output)


def test_a_broken_kubeconfig_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(f'users: [{{name: u, user: {{token: "{API_TOKEN}}}}}]\n')
    command = [sys.executable, "-m", "extender", "serve", "--port", "0", "--kubeconfig", str(path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "no usable credentials" in hidden(ended.stderr + ended.stdout)


def test_settings_as_printed_show_that_there_is_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "kerf.yaml"
    path.write_text(f"telemetry: {{headers: {{X-Key: {HEADER}}}}}")
    shown = yaml.safe_load(hidden(CliRunner().invoke(app, ["config", "show", "--config", str(path)]).output))
    assert set(shown["telemetry"]["headers"]["X-Key"]) == {"*"}
