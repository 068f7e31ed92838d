# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import random
import time

from flcore.clients.clientrep import clientRep
from flcore.servers.serverbase import Server


class FedRep(Server):
    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_slow_clients()
        self.set_clients(clientRep)
        self.Budget = []

    def train(self):
        for i in range(self.global_rounds + 1):
            start = time.time()
            self.selected_clients = self.select_clients()
            self.send_models()
            if i % self.eval_gap == 0:
                print(f"\nRound number: {i}")
                self.evaluate()
            for client in self.selected_clients:
                client.train()
            self.receive_models()
            self.aggregate_parameters()
            self.Budget.append(time.time() - start)
            if self.auto_break and self.check_done(acc_lss=[self.rs_test_acc], top_cnt=self.top_cnt):
                break
        print(f"\nBest accuracy.\n{max(self.rs_test_acc)}")
        self.save_results()
        if self.num_new_clients > 0:
            self.eval_new_clients = True
            self.set_new_clients(clientRep)
            self.evaluate()

    def receive_models(self):
        active = random.sample(self.selected_clients, int((1 - self.client_drop_rate) * self.current_num_join_clients))
        total = sum(client.train_samples for client in active)
        self.uploaded_ids = [client.id for client in active]
        self.uploaded_weights = [client.train_samples / total for client in active]
        self.uploaded_models = [client.model.base for client in active]
