"""python -m beamtree."""

from beamtree.cli import main

if __name__ == "__main__":
    main()
