# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import copy
import os
import random

import h5py
import numpy as np
import torch

from utils.data_utils import read_client_data


class Server:
    def __init__(self, args, times):
        self.args = args
        self.device = args.device
        self.dataset = args.dataset
        self.num_classes = args.num_classes
        self.global_rounds = args.global_rounds
        self.local_epochs = args.local_epochs
        self.batch_size = args.batch_size
        self.learning_rate = args.local_learning_rate
        self.global_model = copy.deepcopy(args.model)
        self.num_clients = args.num_clients
        self.join_ratio = args.join_ratio
        self.random_join_ratio = args.random_join_ratio
        self.num_join_clients = int(self.num_clients * self.join_ratio)
        self.current_num_join_clients = self.num_join_clients
        self.few_shot = args.few_shot
        self.algorithm = args.algorithm
        self.time_select = args.time_select
        self.goal = args.goal
        self.time_threthold = args.time_threthold
        self.save_folder_name = args.save_folder_name
        self.top_cnt = args.top_cnt
        self.auto_break = args.auto_break
        self.clients, self.selected_clients = [], []
        self.train_slow_clients, self.send_slow_clients = [], []
        self.uploaded_weights, self.uploaded_ids, self.uploaded_models = [], [], []
        self.rs_test_acc, self.rs_test_auc, self.rs_train_loss = [], [], []
        self.times = times
        self.eval_gap = args.eval_gap
        self.client_drop_rate = args.client_drop_rate
        self.train_slow_rate = args.train_slow_rate
        self.send_slow_rate = args.send_slow_rate
        self.dlg_eval = args.dlg_eval
        self.dlg_gap = args.dlg_gap
        self.batch_num_per_client = args.batch_num_per_client
        self.num_new_clients = args.num_new_clients
        self.new_clients = []
        self.eval_new_clients = False
        self.fine_tuning_epoch_new = args.fine_tuning_epoch_new

    def _make(self, clientObj, i, train_slow, send_slow):
        sizes = [len(read_client_data(self.dataset, i, is_train, self.few_shot)) for is_train in (True, False)]
        return clientObj(
            self.args,
            id=i,
            train_samples=sizes[0],
            test_samples=sizes[1],
            train_slow=train_slow,
            send_slow=send_slow,
        )

    def set_clients(self, clientObj):
        slow = zip(self.train_slow_clients, self.send_slow_clients, strict=True)
        self.clients += [self._make(clientObj, i, *flags) for i, flags in enumerate(slow)]

    def select_slow_clients(self, slow_rate):
        chosen = set(random.sample(range(self.num_clients), int(slow_rate * self.num_clients)))
        return [i in chosen for i in range(self.num_clients)]

    def set_slow_clients(self):
        self.train_slow_clients = self.select_slow_clients(self.train_slow_rate)
        self.send_slow_clients = self.select_slow_clients(self.send_slow_rate)

    def select_clients(self):
        if self.random_join_ratio:
            self.current_num_join_clients = random.randint(self.num_join_clients, self.num_clients)
        return list(np.random.choice(self.clients, self.current_num_join_clients, replace=False))

    def send_models(self):
        for client in self.clients:
            client.set_parameters(self.global_model)

    def receive_models(self):
        active = random.sample(self.selected_clients, int((1 - self.client_drop_rate) * self.current_num_join_clients))
        self.uploaded_ids, self.uploaded_weights, self.uploaded_models = [], [], []
        for client in active:
            spent = (client.train_time_cost, client.send_time_cost)
            cost = sum(time["total_cost"] / max(time["num_rounds"], 1) for time in spent)
            if cost <= self.time_threthold:
                self.uploaded_ids.append(client.id)
                self.uploaded_weights.append(client.train_samples)
                self.uploaded_models.append(client.model)
        total = sum(self.uploaded_weights)
        self.uploaded_weights = [weight / total for weight in self.uploaded_weights]

    def aggregate_parameters(self):
        self.global_model = copy.deepcopy(self.uploaded_models[0])
        for value in self.global_model.parameters():
            value.data.zero_()
        for w, client_model in zip(self.uploaded_weights, self.uploaded_models, strict=True):
            self.add_parameters(w, client_model)

    def add_parameters(self, w, client_model):
        for total, value in zip(self.global_model.parameters(), client_model.parameters(), strict=True):
            total.data += value.data * w

    def _model_path(self):
        return os.path.join("models", self.dataset, f"{self.algorithm}_server.pt")

    def save_global_model(self):
        os.makedirs(os.path.dirname(self._model_path()), exist_ok=True)
        torch.save(self.global_model, self._model_path())

    def load_model(self):
        self.global_model = torch.load(self._model_path(), weights_only=False)

    def model_exists(self):
        return os.path.exists(self._model_path())

    def save_results(self):
        os.makedirs("../results", exist_ok=True)
        name = f"../results/{self.dataset}_{self.algorithm}_{self.goal}_{self.times}.h5"
        if self.rs_test_acc:
            with h5py.File(name, "w") as file:
                for key in ("rs_test_acc", "rs_test_auc", "rs_train_loss"):
                    file.create_dataset(key, data=getattr(self, key))

    def save_item(self, item, item_name):
        os.makedirs(self.save_folder_name, exist_ok=True)
        torch.save(item, os.path.join(self.save_folder_name, f"server_{item_name}.pt"))

    def load_item(self, item_name):
        return torch.load(os.path.join(self.save_folder_name, f"server_{item_name}.pt"))

    def test_metrics(self):
        if self.eval_new_clients and self.num_new_clients > 0:
            self.fine_tuning_new_clients()
            return self.test_metrics_new_clients()
        return self._scores(self.clients)

    def _scores(self, clients):
        rows = [client.test_metrics() for client in clients]
        correct, samples, auc = (list(column) for column in zip(*rows, strict=True))
        return [c.id for c in clients], samples, correct, [a * n for a, n in zip(auc, samples, strict=True)]

    def train_metrics(self):
        if self.eval_new_clients and self.num_new_clients > 0:
            return [0], [1], [0]
        losses, samples = zip(*(client.train_metrics() for client in self.clients), strict=True)
        return [c.id for c in self.clients], list(samples), list(losses)

    def evaluate(self, acc=None, loss=None):
        _, samples, correct, auc = self.test_metrics()
        _, train_samples, losses = self.train_metrics()
        test_acc = sum(correct) / sum(samples)
        train_loss = sum(losses) / sum(train_samples)
        (self.rs_test_acc if acc is None else acc).append(test_acc)
        (self.rs_train_loss if loss is None else loss).append(train_loss)
        self.print_(test_acc, sum(auc) / sum(samples), train_loss)
        print(f"Std Test Accuracy: {np.std([c / n for c, n in zip(correct, samples, strict=True)]):.4f}")

    def print_(self, test_acc, test_auc, train_loss):
        print(f"Averaged Train Loss: {train_loss:.4f}")
        print(f"Averaged Test Accuracy: {test_acc:.4f}")
        print(f"Averaged Test AUC: {test_auc:.4f}")

    def check_done(self, acc_lss, top_cnt=None, div_value=None):
        return all(top_cnt is None or len(accuracies) - int(np.argmax(accuracies)) > top_cnt for accuracies in acc_lss)

    def call_dlg(self, R):
        pass

    def set_new_clients(self, clientObj):
        ids = range(self.num_clients, self.num_clients + self.num_new_clients)
        self.new_clients += [self._make(clientObj, i, False, False) for i in ids]

    def fine_tuning_new_clients(self):
        for client in self.new_clients:
            client.set_parameters(self.global_model)
            optimizer = torch.optim.SGD(client.model.parameters(), lr=self.learning_rate)
            loader = client.load_train_data()
            client.model.train()
            for _ in range(self.fine_tuning_epoch_new):
                for x, y in loader:
                    loss = client.loss(client.model(x.to(client.device)), y.to(client.device))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

    def test_metrics_new_clients(self):
        return self._scores(self.new_clients)
