# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
from flcore.clients.clientavg import clientAVG
from flcore.servers.serverbase import Server


class Local(Server):
    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_slow_clients()
        self.set_clients(clientAVG)

    def train(self):
        for i in range(self.global_rounds + 1):
            self.selected_clients = self.select_clients()
            if i % self.eval_gap == 0:
                self.evaluate()
            for client in self.selected_clients:
                client.train()
        self.save_results()
