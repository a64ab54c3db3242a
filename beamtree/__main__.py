"""The command `beamtree`, also as `python -m beamtree`."""

import sys


def main() -> None:
    """Run the command, or print which library is missing."""
    try:
        from beamtree.cli import main as command
        from beamtree.cli.errors import run_guarded
    except ImportError as error:
        missing = error.name or str(error)
        print(f"beamtree: the command needs {missing}: pip install 'beamtree[cli]'", file=sys.stderr)
        sys.exit(2)
    run_guarded(command, sys.argv[1:])


if __name__ == "__main__":
    main()
