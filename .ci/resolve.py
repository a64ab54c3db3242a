"""Whether the package index alone has all that `make setup` installs, for each supported Python on x86 and ARM Linux.

    python .ci/resolve.py UV    # where the program uv is

Nothing is installed, and local wheels are left aside, since a newcomer has none: beside a local build of torch, a
conflict between two pins can stay unseen.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")


def resolve(uv: str, python: str, platform: str) -> tuple[bool, str]:
    """Whether all goes together, and the versions of torch and Triton, or why not."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    words = ["pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate", "--python-version", python]
    words += ["--python-platform", platform, "--constraint", "constraints.txt", "--extra", "dev", "--extra", "docs"]
    done = subprocess.run([uv, *words, "pyproject.toml"], cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = done.stdout.split()
    shown = [line for line in lines if line.startswith(("torch==", "triton=="))]
    found = f"{len(lines)} packages, {', '.join(shown)}" if done.returncode == 0 else done.stderr.strip()
    return done.returncode == 0, f"Python {python}, {platform.partition('-')[0]}: {found}"


def main(uv: str) -> int:
    """Try all, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda each: resolve(uv, *each), product(PYTHONS, PLATFORMS)))
    for _, line in results:
        print(line)
    return 0 if all(works for works, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
