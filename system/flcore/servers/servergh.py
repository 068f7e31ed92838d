"""FedGH, server half: a head trained on the clients' class means (see clients/clientgh.py).

``-se`` passes of mini-batch SGD (batch ``-lbs``, rate ``-slr``, 100 and 0.01 as in HtFLlib) over all (mean, class)
pairs of the round; every client and class has one vector, however many samples are behind it. The paper steps once per
pair. Not copied: the released code's optimiser, built over another network, so that the head never moves; and PFLlib's
server head, which is the same object as client 0's, with a default rate of 1 that makes it diverge.
"""

from typing import Any

import torch
from torch.nn import functional as F

from flcore.clients.clientgh import clientGH
from flcore.servers.serverbase import Server
from flcore.trainmodel.prototypes import as_samples, shuffled, stack_uploads
from flcore.utils.errors import UsageError
from flcore.utils.seeds import torch_generator


class FedGH(Server):
    rule = clientGH
    shares = ("head.",)

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        if not self.shared_weights():
            raise UsageError("FedGH trains the head at the server, and that of this network is frozen (requires_grad)")

    def aggregate_parameters(self) -> None:
        z, y = as_samples(*stack_uploads(self.uploaded_models))
        generator = torch_generator(self.args.seed, self.times, self.current_round, "head")
        forward = self.clients[0].forward
        forward.set_training(())  # no dropout in a head
        head = {name: value.clone().requires_grad_() for name, value in self.shared_weights().items()}
        optimizer = torch.optim.SGD(head.values(), lr=self.hp.server_learning_rate)
        for _ in range(self.hp.server_epochs):
            for part in shuffled(len(y), self.batch_size, generator, self.device):
                optimizer.zero_grad()
                F.cross_entropy(forward.call("head", head, z[part]), y[part]).backward()
                optimizer.step()
        self.global_params = {**self.global_params, **{name: value.detach() for name, value in head.items()}}
