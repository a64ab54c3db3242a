"""Run the same benchmarks in this checkout and in another one, in turn, to show what a change costs.

python benchmarks/speed/against.py OTHER_CHECKOUT --device cuda
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[2]
NAMES = ("bench", "items", "batch", "threads", "beam_size")  # keys that identify a record


def commands(device: str) -> list[list[str]]:
    """The benchmarks behind docs/speed.md."""
    if device == "cpu":
        return [
            ["bench_step.py", "--device", "cpu"],
            ["bench_search.py", "--items", "100000", "--threads", "1"],
        ]
    return [
        ["bench_step.py", "--device", device],
        ["bench_search.py", "--device", device, "--batch", "1,64,256", "--threads", "1"],
        ["bench_scale.py", "--device", device, "--from", "16", "--to", "22", "--steps-to", "22", "--batch", "100"],
    ]


def run(checkout: Path, words: list[str]) -> dict[tuple[str, ...], float]:
    """The milliseconds of each record, by its keys."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.json"
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        script = next((checkout / "benchmarks").rglob(words[0]))  # older checkouts have no folders there
        command = [sys.executable, str(script), *words[1:], "--json", str(out)]
        subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
        records = json.loads(out.read_text())
    times = {}
    for record in records:
        name = tuple(str(record[key]).replace("tdm-uniform", "tdm") for key in NAMES if key in record)
        times[name] = float(record["ours_ms"])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="another checkout of this repository")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="of step, search, scale")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    times: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for words in commands(args.device):
        if args.only and not any(name in words[0] for name in args.only):
            continue
        for turn in range(args.rounds):
            pair = [("other", args.other.resolve()), ("here", HERE)]
            for side, checkout in pair if turn % 2 == 0 else pair[::-1]:
                measured = run(checkout, words)
                print(f"{words[0]} {side}: {measured}", file=sys.stderr, flush=True)
                for name, ms in measured.items():
                    times.setdefault(name, {"here": [], "other": []})[side].append(ms)
    print(f"{'':<40} {'other':>9} {'here':>9} {'ratio':>7}   medians of {args.rounds}, ms")
    lines = []
    for name, sides in times.items():
        other, here = (statistics.median(sides[side]) for side in ("other", "here"))
        print(f"{' '.join(name):<40} {other:>9.3f} {here:>9.3f} {here / other:>7.3f}")
        lines.append({"name": " ".join(name), **sides, "ratio": here / other})
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
