"""Splits Cifar100 among clients: `python generate_Cifar100.py noniid - dir`. All settings: --help."""

from flcore.data.command import main

if __name__ == "__main__":
    main("Cifar100")
