"""Imports only go down, and the core stands on torch and numpy alone."""

import ast
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command import WITHOUT

import beamtree as bt

PACKAGE = Path(__file__).parent.parent / "beamtree"

# From the top down. A room may import rooms of lower rows, and itself.
ROWS = [
    {"__main__"},
    {"cli"},
    {"research", "serve", "batch", "distributed"},
    {"__init__"},
    {"recommender"},
    {"live"},
    {"query"},
    {"train", "diagnose"},
    {"parts"},
    {"closed_form", "classify"},
    {"ingest"},
    {"storage", "methods", "evaluate"},
    {"losses"},
    {"candidates", "builders"},
    {"targets", "beam"},
    {"search"},
    {"model"},
    {"scorers", "theory"},
    {"data"},
    {"kernels"},
    {"tree"},
    {"mask", "files", "progress"},
    {"errors"},
]
HEIGHT = {room: -index for index, row in enumerate(ROWS) for room in row}
# The command line, pictures and baselines bring libraries of their own; so do these files.
RIM = {"__main__", "cli", "research"}
ALSO = {
    "storage/models.py": {"safetensors"},
    "storage/sharded_files.py": {"safetensors"},
    "storage/tensors.py": {"safetensors"},
    "data/frames.py": {"polars"},
    "data/attributes.py": {"polars"},
    "data/expressions.py": {"polars"},
    "data/values.py": {"polars"},
    **{
        f"serve/http/{path.name}": {"fastapi", "starlette", "pydantic", "pydantic_core", "uvicorn", "prometheus_client"}
        for path in (PACKAGE / "serve" / "http").glob("*.py")
    },
    "batch/files.py": {"polars"},
    "batch/ray_cluster.py": {"polars", "ray"},
    "kernels/compiled_layers.py": {"numba", "llvmlite"},
    "kernels/compiled_sequence.py": {"numba", "llvmlite"},
    "kernels/compiled_shared.py": {"numba", "llvmlite"},
    "kernels/compiled_sparse.py": {"numba"},
    "kernels/compiling.py": {"numba"},
    **{
        f"kernels/{name}.py": {"triton"}
        for name in ("best_child_gpu", "deep_gpu", "dots", "maxima", "scan_gpu", "select", "sparse_adam_gpu")
    },
    **{f"ingest/{path.name}": {"polars", "pyarrow"} for path in (PACKAGE / "ingest").glob("*.py")},
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


@pytest.mark.parametrize(
    "path", [p for p in MODULES if room_of(p) not in RIM], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_the_core_stands_on_torch_and_numpy(path):
    allowed = {"beamtree", "torch", "numpy", *sys.stdlib_module_names, *ALSO.get(str(path.relative_to(PACKAGE)), ())}
    for name in imports_of(path):
        assert name.split(".")[0] in allowed, f"{path.name} imports {name}"


def run_without(names, code):
    """Run code on a machine that does not have some libraries."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=list(names)) + code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


RIM_LIBRARIES = (
    "typer",
    "rich",
    "matplotlib",
    "polars",
    "implicit",
    "faiss",
    "scipy",
    "tensorboard",
    "pandas",
    "pyarrow",
    "fastapi",
    "prometheus_client",
    "ray",
)


def test_the_front_door_opens_without_the_command_lines_libraries():
    run_without(RIM_LIBRARIES, "import beamtree, beamtree.research.paper.synthetic, beamtree.research.paper.toy")


@pytest.mark.extended
def test_every_module_is_imported_on_a_system_without_unix_modules_and_signals():
    """Windows has neither; what needs them asks for them when it runs."""
    run_without(
        ("resource", "fcntl"),
        "import importlib, os, pkgutil, signal\n"
        "for name in ('SIGKILL', 'SIGBUS', 'SIGHUP'): delattr(signal, name)\n"
        "for name in ('fork', 'wait4', 'sched_getaffinity', 'O_DIRECTORY'): delattr(os, name)\n"
        "import beamtree\n"
        "modules = [each.name for each in pkgutil.walk_packages(beamtree.__path__, 'beamtree.')]\n"
        "assert len(modules) > 100\n"
        "for name in modules:\n"
        "    if name != 'beamtree.__main__': importlib.import_module(name)\n",
    )


def test_load_and_recommend_need_torch_numpy_and_safetensors_alone(tmp_path):
    """A run is written here, and read where Polars is not."""
    data = bt.gaussian(num_items=30, dim=4, bias=-2.0, train=50, test=5)
    log = {"user": [], "item": []}
    for user, row in enumerate(data.train.y.tolist()):
        log["user"] += [f"u{user}" for item in row if item != bt.PAD]
        log["item"] += [f"i{item}" for item in row if item != bt.PAD]
    shop = bt.Recommender(steps=2, beam_size=5, batch_size=10).fit(pl.DataFrame(log), min_events=2)
    shop.save(tmp_path / "run")
    best = shop.recommend(["i3", "i4"], m=4)["item"].to_list()
    run_without(
        RIM_LIBRARIES,
        f"import beamtree as bt; shop = bt.Recommender.load({str(tmp_path / 'run')!r});"
        f"assert shop.recommend(['i3', 'i4'], m=4)['item'] == {best!r};"
        "assert len(shop.recommend(users=['u1'], m=3)['rank']) == 3",
    )


def test_prepare_brings_polars_when_it_is_asked_for():
    code = (
        "import sys; import beamtree; assert 'polars' not in sys.modules;"
        "assert 'prepare' in dir(beamtree); assert not hasattr(beamtree, 'prepared');"
        "from beamtree import prepare; assert 'polars' in sys.modules;"
        "from beamtree.ingest import prepare as room; assert beamtree.prepare is prepare is room.prepare"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_test_imports_another():
    """What tests share is in `conftest.py` and the modules beside it."""
    for path in Path(__file__).parent.glob("*.py"):
        assert not [name for name in imports_of(path) if name.startswith("test_")], path.name
