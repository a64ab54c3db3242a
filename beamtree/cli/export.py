"""`beamtree export`: the search of a run as one file that runs without beamtree."""

import json
from pathlib import Path
from typing import Annotated

import typer

from beamtree import __version__
from beamtree.cli import options
from beamtree.cli.console import note, write
from beamtree.data import HISTORY
from beamtree.files.atomic import check_writable
from beamtree.parts.sequence import SEQUENCE
from beamtree.storage.exported import check_name, write_artifact
from beamtree.storage.runs import ids_of, open_model
from beamtree.storage.settings import fingerprint


def export_run(
    run: options.RunFolder,
    output: Annotated[Path, typer.Option("--out", help="The file to write; its name ends in .pt2.")],
    beam_size: options.BeamText = options.DEFAULT_BEAM,
    m: options.Size = 10,
    device: options.Device = "cpu",
) -> None:
    """Write the search of a run as one file that torch loads without beamtree.

    The input is a batch of histories as item numbers, int64 [users, 69], newest first and padded with -1. A model with
    a context part also takes the numbers of its values, int64 [users, columns]. The output is the m best items and
    their probabilities. The beam and m are fixed. The file also holds the item ids and a description:
    examples/load_artifact.py reads them in twenty lines.
    """
    check_name(output)
    beam = options.parse_beam(beam_size, run)
    options.check_size(m, beam)
    check_writable(output)
    model = open_model(run, device)
    ids_of(run, model)
    part = model.scorer.scorers().get(SEQUENCE)
    if part is not None and (part.reads_clock or part.history > HISTORY):
        read = f"{part.history} events" + (" and their times" if part.reads_clock else "")
        given = f"the exported search reads the newest {HISTORY} events and no times"
        note(f"note: {given}; the sequence part of this run reads {read}")
    note("exporting the search: this takes a moment")
    about = {"run": run.resolve().name, "model": fingerprint(run), "beamtree": __version__}
    description = write_artifact(model, output, beam_size=beam, m=m, about=about)
    write(f"Saved {output} ({output.stat().st_size / 2**20:,.1f} MiB)", json.dumps(description))
