# Test double, not PFLlib's code: a helper that a pair brings along.


def to_arrays(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}
