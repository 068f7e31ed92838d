"""Local training without a server: the lower bound that every personalised method has to beat.

Weights are never overwritten, since nothing is ever sent (`Local.shares` is empty).
"""

from flcore.clients.clientbase import Client


class clientLocal(Client):
    pass
