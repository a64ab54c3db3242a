"""`beamtree export`: one file with the search inside, for where beamtree is not."""

import json as text
from pathlib import Path
from typing import Annotated

import typer

from beamtree import __version__
from beamtree.beam import as_text
from beamtree.cli.options import BeamText, Device, RunFolder, beam_of, most_items
from beamtree.cli.screen import err, out
from beamtree.files.atomic import check_writable
from beamtree.serve.export import check_name, write_artifact
from beamtree.storage.settings import fingerprint
from beamtree.train.runs import ids_of, open_model


def export_run(
    run: RunFolder,
    output: Annotated[Path, typer.Option("--out", help="The file, whose name ends in .pt2.")],
    beam_size: BeamText = "400",
    m: Annotated[int, typer.Option(min=1, help="How many items it retrieves.")] = 10,
    device: Device = "cpu",
) -> None:
    """Write the search of a run as one file that torch opens without beamtree.

    It takes histories as numbers, int64 [users, 69], newest first and -1 where there are fewer, and gives the m best
    items and their probabilities. The beam and m are fixed in it. The ids of the items and a description lie inside:
    examples/load_artifact.py reads them in twenty lines.
    """
    check_name(output)
    beam = beam_of(beam_size, run)
    if m > most_items(beam):
        raise ValueError(f"--m {m} with --beam-size {as_text(beam)}: the beam holds fewer items than that")
    check_writable(output)
    model = open_model(run, device)
    ids_of(run, model)
    err.print("writing the search down: this takes a moment", highlight=False)
    about = {"run": run.resolve().name, "model": fingerprint(run), "beamtree": __version__}
    description = write_artifact(model, output, beam_size=beam, m=m, about=about)
    out.print(f"Saved {output} ({output.stat().st_size / 2**20:,.1f} MiB)", highlight=False, soft_wrap=True)
    out.print(text.dumps(description), highlight=False, soft_wrap=True, markup=False)
