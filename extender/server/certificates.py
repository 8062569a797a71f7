"""TLS of the server; changed certificate files are loaded at the next connection."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """The certificate files can't be used for a TLS server."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of the server's certificate, its key, and optionally the CA of client certificates."""

    certificate: Path
    key: Path
    client_ca: Path | None

    def stamp(self) -> _Stamp:
        """Changes when a file does. Follows symlinks, by which Kubernetes updates a mounted Secret. Raises OSError."""
        states = [path.stat() for path in self._paths()]
        return tuple((state.st_mtime_ns, state.st_ino, state.st_size) for state in states)

    def load(self) -> ssl.SSLContext:
        """Return a server's TLS context. Raises CertificateError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A resumed session would keep the trust of the time it began.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
                # Optional, since probes have no certificate; the verbs require one.
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:
            raise CertificateError(f"{', '.join(map(str, self._paths()))}: {error}") from error
        return context

    def _paths(self) -> tuple[Path, ...]:
        return (self.certificate, self.key, *([self.client_ca] if self.client_ca else []))


class Certificates:
    """The TLS context for new connections; unusable files, such as half-written ones, are ignored."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._stamp: _Stamp = ()
        self._context: ssl.SSLContext | None = None

    def listen(self) -> ssl.SSLContext:
        """Return a context for the listener, whose handshakes use the newest certificates. Raises CertificateError."""
        self._refresh()
        listener = self._files.load()

        def newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            try:
                self._refresh()
            except CertificateError as error:
                logger.warning("changed certificates could not be loaded: %s", error)
            if self._context is not None:
                connection.context = self._context

        listener.sni_callback = newest  # also called without SNI
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
