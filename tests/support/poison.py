"""Clients that train on, or send, values that are not finite."""

NAN = float("nan")


def poison_training(client, bad_rounds):
    """NaN in the client's training data, while it trains in these rounds."""
    train = client.train

    def poisoned():
        x, y = kept = client.tensors(is_train=True)
        if client.round in bad_rounds:
            client._tensors[True] = (x * NAN, y)
        try:
            train()
        finally:
            client._tensors[True] = kept

    client.train = poisoned


def poison_message(client, bad_rounds, value=NAN):
    message = client.message

    def poisoned(shares):
        sent = message(shares)
        if client.round in bad_rounds:
            sent = {name: v * value if v.is_floating_point() else v for name, v in sent.items()}
        return sent

    client.message = poisoned
