"""Client for the history of a running Kerf."""

import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from extender.history import files
from extender.history.records import History, HistoryError
from model.workloads.prometheus.client import Access

_TIMEOUT_S: Final = 60
_ADVICE: Final = {
    401: "a token is required: --token-file",
    403: "only clients on loopback have access: use kubectl port-forward, or --token-file",
}


def fetch(url: str, access: Access, on_step: Callable[[str], None]) -> History:
    """Fetch the history of the Kerf at a URL. Raises HistoryError, OSError."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise HistoryError(f"--server {url}: write a URL such as http://127.0.0.1:8888")
    headers = {"Authorization": f"Bearer {access.token_file.read_text().strip()}"} if access.token_file else {}
    verify = str(access.ca_file) if access.ca_file else not access.insecure
    on_step(f"fetch the history of {url}")
    with TemporaryDirectory() as folder, requests.Session() as session:
        session.trust_env = False  # ignore ~/.netrc and proxies
        try:
            with session.get(
                f"{url.rstrip('/')}/history", headers=headers, verify=verify, timeout=_TIMEOUT_S, stream=True
            ) as response:
                if not response.ok:
                    raise HistoryError(f"{url}: {response.status_code}: {_detail(response)}")
                with tarfile.open(fileobj=response.raw, mode="r|") as archive:
                    archive.extractall(folder, filter="data")
        except (tarfile.TarError, HTTPError) as error:  # HTTPError: the connection was interrupted
            raise HistoryError(f"{url}: the history is incomplete ({error}): try again") from None
        except requests.RequestException as error:
            raise HistoryError(f"{url}: no connection: {error}: check --server") from None
        return files.read(Path(folder))


def _detail(response: requests.Response) -> str:
    advice = _ADVICE.get(response.status_code)
    if advice:
        return advice
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return "the server does not answer as Kerf: check --server"
