"""Imports only go down, and the core stands on torch and numpy alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "beamtree"

# From the top down. A room may import rooms of lower rows, and itself.
ROWS = [
    {"__main__"},
    {"cli"},
    {"__init__"},
    {"serve", "paper"},
    {"compare"},
    {"train"},
    {"methods", "evaluate", "inspect"},
    {"candidates", "builders"},
    {"targets", "beam"},
    {"model"},
    {"scorers", "theory", "baselines"},
    {"loss", "metrics", "data", "kernels", "record", "distributed", "config"},
    {"tree", "_version"},
]
HEIGHT = {room: -index for index, row in enumerate(ROWS) for room in row}
CORE = {room for row in ROWS[4:] for room in row} - {"baselines"}
ALSO = {  # rooms of the core that need one library more
    "train/checkpoint.py": {"safetensors"},
    **{f"kernels/{name}.py": {"triton"} for name in ("labels", "rows", "score", "select", "tiles")},
    "data/interactions.py": {"polars"},
    "data/items.py": {"polars"},
    "data/opening.py": {"polars"},
    "data/simulate.py": {"polars"},
}


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path):
    """(module, ...) of every import, `from beamtree import x` counted as beamtree.x where x is a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write imports in full"
            for alias in node.names:
                below = PACKAGE.parent.joinpath(*node.module.split("."), alias.name)
                is_module = below.is_dir() or below.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_go_down(path):
    room = room_of(path)
    assert room in HEIGHT, f"{room} has no row: give it one, or a better room"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "beamtree":
            continue
        other = parts[1] if len(parts) > 1 else "__init__"
        assert other == room or HEIGHT[other] < HEIGHT[room], f"{path.name} imports {name}: that arrow runs up"


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) in CORE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_stands_on_torch_and_numpy(path):
    allowed = {"beamtree", "torch", "numpy", *sys.stdlib_module_names, *ALSO.get(str(path.relative_to(PACKAGE)), ())}
    for name in imports_of(path):
        assert name.split(".")[0] in allowed, f"{path.name} imports {name}"


def test_the_front_door_opens_without_the_command_lines_libraries():
    code = (
        "import sys;"
        "sys.modules.update(dict.fromkeys(['typer', 'rich', 'matplotlib', 'polars', 'implicit', 'tensorboard']));"
        "import beamtree;"
        "import beamtree.paper.synthetic, beamtree.paper.toy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_prepare_brings_polars_when_it_is_asked_for():
    code = (
        "import sys; import beamtree; assert 'polars' not in sys.modules;"
        "assert 'prepare' in dir(beamtree); assert not hasattr(beamtree, 'prepared');"
        "from beamtree import prepare; assert 'polars' in sys.modules;"
        "from beamtree.data import interactions; assert beamtree.prepare is prepare is interactions.prepare"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
