"""Splits FashionMNIST among clients: `python generate_FashionMNIST.py noniid - dir`. All settings: --help."""

from flcore.data.command import main

if __name__ == "__main__":
    main("FashionMNIST")
