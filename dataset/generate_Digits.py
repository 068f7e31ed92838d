"""Splits Digits among clients: `python generate_Digits.py noniid - dir`. All settings: --help."""

from flcore.data.generate import main

if __name__ == "__main__":
    main("Digits")
