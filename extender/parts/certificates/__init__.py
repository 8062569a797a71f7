"""Certificates that Kerf makes and renews itself: docs/parts/certificates.md."""
