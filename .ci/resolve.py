"""Whether the public package index has every pinned version, for each supported Python that is on this machine.

    python .ci/resolve.py                # the Pythons that are here
    python .ci/resolve.py python3.13     # this one

Nothing is installed. Local wheels and other settings of pip are left aside, since a newcomer has none of them: with a
local build of torch alone, a conflict between two pins can stay unseen.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("python3.11", "python3.12", "python3.13")
PIP = "pip==26.3"  # an old one takes ten times as long


def resolve(python: str, folder: Path) -> str:
    """Resolve all that `make setup` installs with a Python; what it would install, or why it cannot, in a few words."""
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    environment["PIP_CONFIG_FILE"] = os.devnull
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True, capture_output=True)
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, PIP], check=True, env=environment)
    report = folder / "report.json"
    asked = ["--dry-run", "--ignore-installed", "--report", report, "--constraint", "constraints.txt", ".[dev,docs]"]
    done = subprocess.run([*pip, *asked], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python}: the pinned versions do not go together:\n{done.stderr}")
    packages = {
        each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(report.read_text())["install"]
    }
    return f"{len(packages)} packages, torch {packages['torch']}, triton {packages.get('triton', 'none')}"


def works(python: str) -> bool:
    """Whether such a Python is here; the name alone may be that of a stand-in for a version that is not."""
    return bool(shutil.which(python)) and subprocess.run([python, "--version"], capture_output=True).returncode == 0


def main() -> None:
    """Resolve with each Python that is named, or with all that are here."""
    for python in sys.argv[1:] or SUPPORTED:
        if not works(python):
            print(f"{python}: not on this machine, so not tried", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            print(f"{python}: {resolve(python, Path(folder))}", flush=True)


main()
