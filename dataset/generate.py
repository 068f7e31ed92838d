"""Splits your own data among clients: `python generate.py --name Birds --source PATH` (docs/data.md, --help)."""

from flcore.data.command import main

if __name__ == "__main__":
    main()
