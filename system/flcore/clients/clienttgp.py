"""FedTGP, client half. Zhang, Liu, Hua, Cao: "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024.

At the client FedProto (which see: same loss, same pass for the prototypes, same prediction) with the prototypes that
the server has trained. lamda is the released code's 10 for a mean squared error; the paper's 0.1 is for a distance.
"""

from flcore.clients.clientproto import clientProto


class clientTGP(clientProto):
    @classmethod
    def hyperparameters(cls, args):
        return {**super().hyperparameters(args), "send_counts": False}
