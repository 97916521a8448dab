"""Benchmarks of what the README promises: speed, token gaps, health and memory.

``python -m contrib.bench [name ...]`` runs them and exits non-zero when a target
is missed. The method and the figures are in ``docs/explanation/performance.md``.
"""
