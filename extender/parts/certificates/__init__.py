"""Certificates that Kerf issues and renews itself: docs/parts/certificates.md."""
