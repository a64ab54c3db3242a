"""The command line: one file per command. Nothing here computes."""

from beamtree.cli.app import main

__all__ = ["main"]
