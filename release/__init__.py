"""Makes a release: what .github/workflows/release.yaml runs, step by step, and anybody else can run by hand.

The standard library alone: it runs before anything is installed. `python3 -m release --help` lists the steps; what a
step finds out (a version, a digest) it prints, and tells later steps where GitHub Actions wants that.
"""
