"""Checks against the programs that publish and read the same streams: see ``README.md``."""
