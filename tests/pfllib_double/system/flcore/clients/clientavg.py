# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import time

from flcore.clients.clientbase import Client


class clientAVG(Client):
    def train(self):
        loader = self.load_train_data()
        self.model.train()
        start = time.time()
        for _ in range(self.local_epochs):
            for x, y in loader:
                loss = self.loss(self.model(x.to(self.device)), y.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        if self.learning_rate_decay:
            self.learning_rate_scheduler.step()
        self.train_time_cost["num_rounds"] += 1
        self.train_time_cost["total_cost"] += time.time() - start
