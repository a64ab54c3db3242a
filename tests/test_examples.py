"""The example programs run and say what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMISES = {
    "recommend.py": "recommended: i",
    "regret_by_method.py": "OTM-mixed",
    "where_the_beam_went_wrong.py": "retrieved",
    "your_own_method.py": "beam-and-children",
    "your_own_scorer.py": "recall",
    "your_own_tree.py": "recall@50",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_example_runs(name, tmp_path):
    done = subprocess.run([sys.executable, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert PROMISES[name] in done.stdout
