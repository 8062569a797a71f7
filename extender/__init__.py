"""Kerf: a kube-scheduler extender that puts GPU pods on the right GPUs.

import-linter checks the layers (pyproject.toml); CONTRIBUTING.md describes each package.
"""

__version__ = "0.1.0"
