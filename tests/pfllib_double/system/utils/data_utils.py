# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import os
from collections import defaultdict

import numpy as np
import torch


def read_data(dataset, idx, is_train=True):
    path = os.path.join("..", "dataset", dataset, "train" if is_train else "test", f"{idx}.npz")
    with np.load(path, allow_pickle=True) as file:
        return file["data"].tolist()


def read_client_data(dataset, idx, is_train=True, few_shot=0):
    data = read_data(dataset, idx, is_train)
    x = torch.tensor(data["x"], dtype=torch.float32)
    y = torch.tensor(data["y"], dtype=torch.int64)
    samples = list(zip(x, y, strict=True))
    if is_train and few_shot > 0:
        by_class = defaultdict(list)
        for sample in samples:
            by_class[sample[1].item()].append(sample)
        samples = [sample for group in by_class.values() for sample in group[:few_shot]]
    return samples
