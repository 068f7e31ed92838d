"""Splits Cifar10 among clients: `python generate_Cifar10.py noniid - dir`. All settings: --help."""

from flcore.data.command import main

if __name__ == "__main__":
    main("Cifar10")
