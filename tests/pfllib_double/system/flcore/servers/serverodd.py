# Test double, not PFLlib's code: a server with the traits that have broken pairs.
import copy
import os

import h5py

from flcore.clients.clientodd import clientOdd
from flcore.servers.serverbase import Server
from utils.oddhelper import to_arrays


class Odd(Server):
    """Means of arrays in a dict, results in lists and a file of its own, times of sending that it divides by."""

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_slow_clients()
        self.set_clients(clientOdd)
        self.start = copy.deepcopy(args.model)
        self.rs_test_acc_per = []
        for client in self.clients:
            client.calibration = 0.0

    def train(self):
        for i in range(self.global_rounds + 1):
            self.selected_clients = self.select_clients()
            if i == 0:
                self.send_models()
            for client in self.selected_clients:
                client.train()
                client.send_time_cost["total_cost"] / client.send_time_cost["num_rounds"]
            uploads = [to_arrays(client.model) for client in self.selected_clients]
            self.global_model = {name: sum(one[name] for one in uploads) / len(uploads) for name in uploads[0]}
            for client in self.clients:
                client.take_arrays(self.global_model)
            _, samples, correct, _ = self.test_metrics()
            self.rs_test_acc_per.append(sum(correct) / sum(samples))
        self.save_results()
        self.save_global_model()
        if self.num_new_clients > 0:
            self.global_model = self.start
            self.eval_new_clients = True
            self.set_new_clients(clientOdd)
            self.evaluate()

    def save_results(self):
        os.makedirs("../results", exist_ok=True)
        with h5py.File(f"../results/{self.dataset}_{self.algorithm}_{self.goal}_{self.times}.h5", "w") as file:
            file["rs_test_acc"] = self.rs_test_acc_per
