"""The parts that `Client` is composed of."""
