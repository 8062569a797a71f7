"""Assembles the certificates part."""

from datetime import UTC, datetime

from extender.api.contributions import Contribution, Kernel, PartError
from extender.parts.certificates.keeper import CertificateKeeper
from extender.parts.certificates.settings import CertificateSettings
from extender.server.certificates import CertificateFiles


def build(kernel: Kernel, wanted: CertificateSettings) -> Contribution:
    """A controller of the certificate files, which the server waits for. Raises PartError."""
    server = kernel.settings.server
    if server.tls_cert_file is None or server.tls_key_file is None:
        raise PartError("certificates.secret needs server.tls_cert_file and server.tls_key_file, to write them")
    files = CertificateFiles(
        certificate=server.tls_cert_file, key=server.tls_key_file, client_ca=server.tls_client_ca_file
    )
    keeper = CertificateKeeper(kernel.base.transport, wanted, files, lambda: datetime.now(UTC))
    return Contribution(work=[keeper], ready=keeper.ready)
