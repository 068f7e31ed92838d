"""A linear classifier without training: ridge regression on embeddings has its best weights in closed form."""

import torch
from torch import Tensor


def ridge_classifier(z: Tensor, y: Tensor, num_classes: int, strength: float) -> tuple[Tensor, Tensor]:
    """Weight W (C,K) and bias b (C,) of the classifier whose scores W z + b come closest to the one-hot labels.

    With x_i = z_i - mean(z), t_i = onehot(y_i) - mean(onehot(y)) and s the mean square of the elements of all x_i,

        W = argmin  1/n sum_i |W x_i - t_i|^2 + strength * s * |W|^2,      b = mean(onehot(y)) - W mean(z),

    so that ``strength`` means the same for embeddings of any scale (a head in closed form: Bertinetto et al., ICLR
    2019). z (n,K), y (n,) int64; what comes out is in at least float32. If all z are equal, W is 0 and b holds the
    frequencies of the classes; without samples both are 0. Values that are not finite give such values, and no error.
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    labels = (y[:, None] == torch.arange(num_classes, device=y.device)).to(z.dtype)
    n = max(len(z), 1)
    mean, frequencies = z.sum(0) / n, labels.sum(0) / n
    x, targets = z - mean, labels - frequencies
    penalty = (strength * x.square().sum() / (n * z.shape[1])).clamp_min(torch.finfo(z.dtype).tiny)
    few = (
        len(z) < z.shape[1]
    )  # the system of equations is that of the samples or that of the elements, whichever is smaller
    products = (x @ x.T if few else x.T @ x) / n
    system = products + penalty * torch.eye(len(products), dtype=z.dtype, device=z.device)
    known = targets if few else x.T @ targets / n
    solution = torch.linalg.solve_ex(system, known).result  # which raises nothing
    weight = (x.T @ solution / n if few else solution).T.contiguous()
    return weight, frequencies - weight @ mean
