# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import copy
import os

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader

from utils.data_utils import read_client_data


class Client:
    def __init__(self, args, id, train_samples, test_samples, **kwargs):
        torch.manual_seed(0)
        self.model = copy.deepcopy(args.model)
        self.algorithm = args.algorithm
        self.dataset = args.dataset
        self.device = args.device
        self.id = id
        self.save_folder_name = args.save_folder_name
        self.num_classes = args.num_classes
        self.train_samples = train_samples
        self.test_samples = test_samples
        self.batch_size = args.batch_size
        self.learning_rate = args.local_learning_rate
        self.local_epochs = args.local_epochs
        self.few_shot = args.few_shot
        self.has_BatchNorm = any(isinstance(layer, nn.BatchNorm2d) for layer in self.model.children())
        self.train_slow = kwargs["train_slow"]
        self.send_slow = kwargs["send_slow"]
        self.train_time_cost = {"num_rounds": 0, "total_cost": 0.0}
        self.send_time_cost = {"num_rounds": 0, "total_cost": 0.0}
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.learning_rate)
        self.learning_rate_scheduler = torch.optim.lr_scheduler.ExponentialLR(
            self.optimizer, gamma=args.learning_rate_decay_gamma
        )
        self.learning_rate_decay = args.learning_rate_decay

    def load_train_data(self, batch_size=None):
        samples = read_client_data(self.dataset, self.id, is_train=True, few_shot=self.few_shot)
        return DataLoader(samples, batch_size or self.batch_size, shuffle=True, drop_last=True)

    def load_test_data(self, batch_size=None):
        samples = read_client_data(self.dataset, self.id, is_train=False, few_shot=self.few_shot)
        return DataLoader(samples, batch_size or self.batch_size, shuffle=True, drop_last=False)

    def set_parameters(self, model):
        self.update_parameters(self.model, model.parameters())

    def clone_model(self, model, target):
        self.update_parameters(target, model.parameters())

    def update_parameters(self, model, new_params):
        for mine, theirs in zip(model.parameters(), new_params):  # noqa: B905  (the shorter list decides, as there)
            mine.data = theirs.data.clone()

    def test_metrics(self):
        self.model.eval()
        correct, scores, truth = 0, [], []
        with torch.no_grad():
            for x, y in self.load_test_data():
                output = self.model(x.to(self.device)).cpu()
                correct += (output.argmax(1) == y).sum().item()
                scores.append(output.numpy())
                truth.append(np.eye(max(self.num_classes, 2))[y.numpy()])
        truth = np.concatenate(truth)
        return correct, len(truth), roc_auc_score(truth, np.concatenate(scores), average="micro")

    def train_metrics(self):
        self.model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for x, y in self.load_train_data():
                output = self.model(x.to(self.device))
                total += self.loss(output, y.to(self.device)).item() * len(y)
                count += len(y)
        return total, count

    def save_item(self, item, item_name, item_path=None):
        folder = item_path or self.save_folder_name
        os.makedirs(folder, exist_ok=True)
        torch.save(item, os.path.join(folder, f"client_{self.id}_{item_name}.pt"))

    def load_item(self, item_name, item_path=None):
        return torch.load(os.path.join(item_path or self.save_folder_name, f"client_{self.id}_{item_name}.pt"))
