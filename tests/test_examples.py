"""The example programs run and say what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMISES = {
    "recommend.py": "recommended to u",
    "regret_by_method.py": "OTM-mixed",
    "trace_beam.py": "retrieved",
    "custom_method.py": "beam-and-children",
    "custom_part.py": " recent ",
    "custom_scorer.py": "recall",
    "custom_tree.py": "recall@50",
}


def run(name, folder):
    done = subprocess.run([sys.executable, EXAMPLES / name], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert PROMISES[name] in done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({path.name for path in EXAMPLES.glob("*.py")} - {"regret_by_method.py", "load_artifact.py"})
)
def test_the_example_runs(name, tmp_path):
    run(name, tmp_path)


@pytest.mark.slow
def test_the_example_of_regret_shows_what_the_paper_claims(tmp_path):
    found = re.findall(r"^(\S+) .* regret@20 ([\d.]+)$", run("regret_by_method.py", tmp_path), flags=re.M)
    lost = {name: float(value) for name, value in found}
    assert lost["OTM-mixed"] < lost["OTM"] < lost["TDM"]
