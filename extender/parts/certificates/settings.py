"""Settings of the certificates part."""

from typing import Final, Self

from pydantic import Field, model_validator

from extender.settings.parts import Part
from extender.settings.section import Section


class CertificateSettings(Section):
    """Certificates that Kerf issues and renews itself, and shares between its replicas in a Secret: see
    docs/guides/install.md."""

    GONE = {
        "valid_days": "always 90",
    }

    secret: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9.]*)?$")
    """NAMESPACE/NAME of the Secret. Kerf then writes the files of server.tls_cert_file, server.tls_key_file and
    server.tls_client_ca_file; empty: the files are provided."""
    hosts: list[str] = []
    """Host names and IP addresses that the server's certificate is for."""
    client: str = ""
    """Common name of a client certificate to issue as well, such as kube-scheduler; empty: none."""
    webhooks: list[str] = []
    """MutatingWebhookConfigurations by which the API server calls this Kerf; their caBundle is kept up to date."""

    @model_validator(mode="after")
    def _has_hosts(self) -> Self:
        if self.secret and not self.hosts:
            raise ValueError("secret needs hosts: the names by which Kerf is called")
        return self


PART: Final = Part(
    name="certificates",
    settings=CertificateSettings,
    wanted=lambda certificates: bool(certificates.secret),
    module="extender.parts.certificates.part",
    beside_one_alone=True,
)
