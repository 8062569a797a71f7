"""A client of the API server with a pod's service account, without the 30 MB of the official client."""

import os
import ssl
from pathlib import Path
from typing import Final

import aiohttp

from extender.kube.http_transport import HEADERS, HttpTransport
from extender.kube.transport import CredentialsError

_TIMEOUT_S: Final = 10.0


class ServiceAccount(HttpTransport):
    """Calls the API server with the pod's token."""

    def __init__(self, directory: Path) -> None:
        """`directory` has the token and the CA."""
        super().__init__(_TIMEOUT_S)
        self._directory = directory

    async def start(self) -> None:
        """Open a session. Raises CredentialsError."""
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            tls = ssl.create_default_context(cafile=str(self._directory / "ca.crt"))
        except (KeyError, OSError) as error:
            raise CredentialsError(f"no service account ({error}): run in a pod, or give a kubeconfig") from None
        self._host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=HEADERS)

    async def renew(self) -> None:
        """Nothing to do, as the token is read for each request."""

    async def authorization(self) -> str:
        """The header `Authorization`. Raises CredentialsError."""
        try:
            return f"Bearer {(self._directory / 'token').read_text().strip()}"
        except OSError as error:
            raise CredentialsError(f"the service account's token can't be read: {error}") from None
