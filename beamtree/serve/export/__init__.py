"""An artefact with the search inside, for where this package is not."""

from beamtree.serve.export.archive import check_name, program_of, write_artifact

__all__ = ["check_name", "program_of", "write_artifact"]
