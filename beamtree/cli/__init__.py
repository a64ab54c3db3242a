"""The command line: arguments in, tables, pictures and progress out. Nothing here computes."""

from beamtree.cli.front import main

__all__ = ["main"]
