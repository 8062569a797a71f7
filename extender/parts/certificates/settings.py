"""Which certificates Kerf makes itself, and where it keeps them."""

from typing import Final, Self

from pydantic import Field, model_validator

from extender.settings.parts import Part
from extender.settings.section import Section


class CertificateSettings(Section):
    """Certificates that Kerf makes and renews itself, and shares among its replicas by a Secret: see
    docs/guides/install.md."""

    GONE = {
        "valid_days": "always 90",
    }

    secret: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9.]*)?$")
    """NAMESPACE/NAME of the Secret. The files of server.tls_cert_file, server.tls_key_file and
    server.tls_client_ca_file are then written by Kerf; empty: they are given."""
    hosts: list[str] = []
    """Host names and IP addresses that the server's certificate is for."""
    client: str = ""
    """Name in a client certificate that is made as well, such as kube-scheduler; empty: none."""
    webhooks: list[str] = []
    """MutatingWebhookConfigurations by which the API server calls this Kerf: their caBundle is kept."""

    @model_validator(mode="after")
    def _for_somebody(self) -> Self:
        if self.secret and not self.hosts:
            raise ValueError("secret needs hosts: by which names Kerf is called")
        return self


PART: Final = Part(
    name="certificates",
    settings=CertificateSettings,
    wanted=lambda certificates: bool(certificates.secret),
    module="extender.parts.certificates.part",
    beside_one_alone=True,
)
