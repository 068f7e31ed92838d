"""FedPA, server half (see clients/clientpa.py): averaged weights, prototypes, and the generator of hard features.

Each round the server first trains the generator G with the clients' heads as they come and the prototypes P of the
round before, then averages weights and prototypes. G minimises, over batches of labels that some participant met,

    alpha_t * sum over participants of mean(w * CE(g_i(G(y)), y)) - 0.15 * MSE(G(y), P_y) + diversity

by Adam (weight decay 0.01, learning rate falling by 0.98 a round), as the authors' code does; the parts are in
trainmodel/pa.py. Samples of a class without prototype add nothing to the second term, which is limited here to 10 times
the prototypes' mean square: the code's has no bound, so that G runs away once alpha_t is small. A class that nobody met
keeps its prototype; the code sets it to 0 and pulls features there.
"""

import copy
from dataclasses import replace
from typing import Any

import torch

from flcore.clients.clientpa import DECAY, alpha, clientPA
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server
from flcore.trainmodel.pa import choose, distance_to_prototypes, diversity, fidelity
from flcore.trainmodel.prototypes import stack_uploads
from flcore.utils.seeds import torch_generator

AWAY = 0.15  # weight of the push from the prototypes
WEIGHT_DECAY = 1e-2
BATCH = 32  # the authors'; taken where -lbs names none


class FedPA(PrototypeServer, Server):
    rule = clientPA
    shares = ("base.", "head.")
    weighting = "count"
    remembers = ("generator", "optimizer")

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.generator = copy.deepcopy(self.clients[0].forward.net.generator).train()
        self.optimizer = torch.optim.Adam(
            self.generator.parameters(), lr=self.hp.generator_learning_rate, weight_decay=WEIGHT_DECAY
        )

    def send_models(self) -> None:
        message, known = self.shared_weights(), self.known()
        if known:
            generator = {name: value for name, value in self.global_params.items() if name.startswith("generator.")}
            message |= known | generator
        self.broadcast(message)

    def aggregate_parameters(self) -> None:
        self.train_generator()
        super().aggregate_parameters()

    def train_generator(self) -> None:
        """``--pa_gen_steps`` steps; nothing if no participant met a sample."""
        _, counts = stack_uploads(self.uploaded_models)
        met = counts.sum(0) > 0
        if not met.any():
            return
        client, known = self.clients[0], self.known()
        hp = replace(client.hp, round=self.current_round)
        head = {name: value for name, value in self.global_params.items() if name.startswith("head.")}
        heads = {  # a frozen one stays everywhere what it was
            name: torch.stack([upload.get(name, value) for upload in self.uploaded_models])
            for name, value in head.items()
        }
        client.forward.set_training(())  # no dropout in a head
        size = max(2, self.batch_size if self.batch_size > 0 else BATCH)  # BatchNorm needs two
        draw = torch_generator(self.args.seed, self.times, self.current_round, "generator")
        for group in self.optimizer.param_groups:
            group["lr"] = self.hp.generator_learning_rate * DECAY**self.current_round
        for _ in range(self.hp.pa_gen_steps):
            noise = torch.rand(size, hp.noise_dim, generator=draw).to(self.device)
            labels = choose(torch.rand(size, generator=draw).to(self.device), met)
            features = self.generator(noise, labels)
            logits = torch.func.vmap(lambda head, z=features: client.forward.call("head", head, z))(heads)
            loss = alpha(hp) * fidelity(logits, labels, counts) + diversity(noise, features, labels)
            if known:
                loss = loss - AWAY * distance_to_prototypes(features, labels, **known)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        trained = {f"generator.{name}": value.clone() for name, value in self.generator.state_dict().items()}
        self.global_params = {**self.global_params, **trained}
