"""Splits TinyImagenet among clients: `python generate_TinyImagenet.py noniid - dir`. All settings: --help."""

from flcore.data.command import main

if __name__ == "__main__":
    main("TinyImagenet")
