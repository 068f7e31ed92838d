"""FedPer, client half. Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818, 2019, "Federated Learning with
Personalization Layers".

Algorithms 1 and 2: base and personal layers train together on the cross-entropy; only the base travels.

One personal layer, the head (the paper studies one to four; PFLlib has the head, too). Scored after the download the
head meets an extractor it was not trained with: expect a dip against the score after local training.
"""

from flcore.clients.clientbase import Client


class clientPer(Client):
    pass
