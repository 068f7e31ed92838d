"""Local training: nothing travels."""

from flcore.clients.clientlocal import clientLocal
from flcore.servers.serverbase import Server


class Local(Server):
    rule = clientLocal
    shares = ()
