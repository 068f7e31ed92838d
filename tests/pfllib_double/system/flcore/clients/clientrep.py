# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import time

import torch

from flcore.clients.clientbase import Client


class clientRep(Client):
    def __init__(self, args, id, train_samples, test_samples, **kwargs):
        super().__init__(args, id, train_samples, test_samples, **kwargs)
        gamma = args.learning_rate_decay_gamma
        self.optimizer = torch.optim.SGD(self.model.base.parameters(), lr=self.learning_rate)
        self.learning_rate_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=gamma)
        self.optimizer_per = torch.optim.SGD(self.model.head.parameters(), lr=self.learning_rate)
        self.learning_rate_scheduler_per = torch.optim.lr_scheduler.ExponentialLR(self.optimizer_per, gamma=gamma)
        self.plocal_epochs = args.plocal_epochs

    def set_parameters(self, base):
        for new, old in zip(base.parameters(), self.model.base.parameters()):  # noqa: B905  (a whole model may come)
            old.data = new.data.clone()

    def train(self):
        loader = self.load_train_data()
        start = time.time()
        self.model.train()
        for part, other, optimizer, epochs in (
            (self.model.head, self.model.base, self.optimizer_per, self.plocal_epochs),
            (self.model.base, self.model.head, self.optimizer, self.local_epochs),
        ):
            part.requires_grad_(True)
            other.requires_grad_(False)
            for _ in range(epochs):
                for x, y in loader:
                    loss = self.loss(self.model(x.to(self.device)), y.to(self.device))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        if self.learning_rate_decay:
            self.learning_rate_scheduler.step()
            self.learning_rate_scheduler_per.step()
        self.train_time_cost["num_rounds"] += 1
        self.train_time_cost["total_cost"] += time.time() - start
