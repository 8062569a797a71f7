"""The API server as a pod reaches it, by its service account; without the official client and its 30 MB."""

import os
import ssl
from pathlib import Path
from typing import Final

import aiohttp

from extender.kube.http_transport import HEADERS, HttpTransport
from extender.kube.transport import CredentialsError

_TIMEOUT_S: Final = 10.0


class ServiceAccount(HttpTransport):
    """An API server for which a pod has a token."""

    def __init__(self, directory: Path) -> None:
        """`directory` is where the kubelet keeps token and CA."""
        super().__init__(_TIMEOUT_S)
        self._directory = directory

    async def start(self) -> None:
        """Make ready to be called. Raises CredentialsError."""
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            tls = ssl.create_default_context(cafile=str(self._directory / "ca.crt"))
        except (KeyError, OSError) as error:
            raise CredentialsError(f"no service account ({error}): run in a pod, or give a kubeconfig") from None
        self._host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=HEADERS)

    async def renew(self) -> None:
        """Nothing to do: the token is read each time."""

    async def authorization(self) -> str:
        """The header `Authorization`. Raises CredentialsError."""
        try:
            return f"Bearer {(self._directory / 'token').read_text().strip()}"
        except OSError as error:
            raise CredentialsError(f"the service account's token can't be read: {error}") from None
