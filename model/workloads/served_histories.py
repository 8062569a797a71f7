"""The history that a running Kerf keeps, fetched from it."""

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
    401: "it asks for a token: --token-file",
    403: "it is open to clients on loopback: kubectl port-forward, or --token-file",
}


def fetch(url: str, access: Access, tell: Callable[[str], None]) -> History:
    """The history of the Kerf at a URL. Raises HistoryError, OSError."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise HistoryError(f"--server {url}: write a URL such as http://127.0.0.1:8888")
    headers = {"Authorization": f"Bearer {access.token_file.read_text().strip()}"} if access.token_file else {}
    verify = str(access.ca_file) if access.ca_file else not access.insecure
    tell(f"fetch the history of {url}")
    with TemporaryDirectory() as folder, requests.Session() as session:
        session.trust_env = False  # neither ~/.netrc nor a proxy is meant for this
        try:
            with session.get(
                f"{url.rstrip('/')}/history", headers=headers, verify=verify, timeout=_TIMEOUT_S, stream=True
            ) as answer:
                if not answer.ok:
                    raise HistoryError(f"{url}: {answer.status_code}: {_detail(answer)}")
                with tarfile.open(fileobj=answer.raw, mode="r|") as archive:
                    archive.extractall(folder, filter="data")
        except (tarfile.TarError, HTTPError) as error:  # the latter: the connection broke off
            raise HistoryError(f"{url}: the history came incomplete ({error}): try again") from None
        except requests.RequestException as error:
            raise HistoryError(f"{url}: no connection: {error}: check --server") from None
        return files.read(Path(folder))


def _detail(answer: requests.Response) -> str:
    advice = _ADVICE.get(answer.status_code)
    if advice:
        return advice
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return "it answers, but not as Kerf does: check --server"
