"""TLS of the server: the certificates that the files hold now, looked at again for every new connection."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """Files that no TLS server can be made of."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the server's certificate and key are, and the CA that clients' certificates have to be from (or none)."""

    certificate: Path
    key: Path
    client_ca: Path | None

    def stamp(self) -> _Stamp:
        """Changes when a file does: links are followed, as Kubernetes replaces a mounted Secret. Raises OSError."""
        states = [path.stat() for path in self._paths()]
        return tuple((state.st_mtime_ns, state.st_ino, state.st_size) for state in states)

    def load(self) -> ssl.SSLContext:
        """A server's context. Raises CertificateError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A resumed session would be trusted by what was trusted when it began.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
                # Optional here, since probes have no certificate: the verbs insist on one.
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:
            raise CertificateError(f"{', '.join(map(str, self._paths()))}: {error}") from error
        return context

    def _paths(self) -> tuple[Path, ...]:
        return (self.certificate, self.key, *([self.client_ca] if self.client_ca else []))


class Certificates:
    """The context for new connections. Files that can't be used, such as half-written ones, change nothing."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._stamp: _Stamp = ()
        self._context: ssl.SSLContext | None = None

    def listen(self) -> ssl.SSLContext:
        """A context for the listener: each handshake goes on with the newest one. Raises CertificateError."""
        self._refresh()
        listener = self._files.load()

        def newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            try:
                self._refresh()
            except CertificateError as error:
                logger.warning("changed certificates could not be loaded: %s", error)
            if self._context is not None:
                connection.context = self._context

        listener.sni_callback = newest  # called for clients that name no server, too
        return listener

    def _refresh(self) -> None:
        """Raises CertificateError."""
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return
            context = self._files.load()
        except OSError as error:
            raise CertificateError(str(error)) from error
        if self._context is not None:
            logger.info("new certificates are in use")
        self._context, self._stamp = context, stamp
