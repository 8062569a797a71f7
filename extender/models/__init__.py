"""Learned ranks as files, and the outlook that they are served with: read by the service, written by training."""
