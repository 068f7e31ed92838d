"""The parts that `Server` is composed of, a page each."""
