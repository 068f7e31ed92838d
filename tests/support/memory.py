"""How much memory tensors hold."""


def bytes_held(*groups):
    """Bytes of the distinct storages behind all these tensors."""
    storages = (tensor.untyped_storage() for group in groups for tensor in group)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def own_tensors(client):
    return [*client.params.values(), *client.state.values(), *client.shared.values(), *client.upload.values()]
