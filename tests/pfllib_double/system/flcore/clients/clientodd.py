# Test double, not PFLlib's code: a client with the traits that have broken pairs.
import time

import torch

from flcore.clients.clientbase import Client
from flcore.optimizers.oddoptimizer import HalfSGD


class clientOdd(Client):
    def __init__(self, args, id, train_samples, test_samples, **kwargs):
        super().__init__(args, id, train_samples, test_samples, **kwargs)
        self.optimizer = HalfSGD(self.model.parameters(), lr=self.learning_rate)
        self.calibration = None  # the server sets it for those that train, not for those that come later

    def train(self):
        start = time.time()
        self.model.train()
        for _ in range(self.local_epochs):
            for x, y in self.load_train_data():
                loss = self.loss(self.model(x.to(self.device)) - self.calibration, y.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        self.train_time_cost["num_rounds"] += 1
        self.train_time_cost["total_cost"] += time.time() - start

    def take_arrays(self, arrays):
        self.model.load_state_dict({name: torch.tensor(value) for name, value in arrays.items()})
