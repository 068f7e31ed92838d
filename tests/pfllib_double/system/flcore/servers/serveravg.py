# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import time

from flcore.clients.clientavg import clientAVG
from flcore.servers.serverbase import Server


class FedAvg(Server):
    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_slow_clients()
        self.set_clients(clientAVG)
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
            if self.dlg_eval and i % self.dlg_gap == 0:
                self.call_dlg(i)
            self.aggregate_parameters()
            self.Budget.append(time.time() - start)
            if self.auto_break and self.check_done(acc_lss=[self.rs_test_acc], top_cnt=self.top_cnt):
                break
        print(f"\nBest accuracy.\n{max(self.rs_test_acc)}")
        print(f"\nAverage time cost per round.\n{sum(self.Budget[1:]) / len(self.Budget[1:])}")
        self.save_results()
        self.save_global_model()
        if self.num_new_clients > 0:
            self.eval_new_clients = True
            self.set_new_clients(clientAVG)
            self.evaluate()
