"""Export of a search as one file that torch opens without this package."""

from beamtree.export.artifact import check_name, export_program, write_artifact

__all__ = ["check_name", "export_program", "write_artifact"]
