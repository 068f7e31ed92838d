"""Ray's calls in one process, at once and in order; all that would travel is pickled on its way."""

import pickle
from types import SimpleNamespace

from ray import cloudpickle


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class ActorDiedError(RayError):
    pass


class Reference:
    """To the outcome of a call, or what was put."""

    def __init__(self, outcome=None, error=None):
        self.content, self.error = cloudpickle.dumps(outcome, protocol=5), error

    def __reduce__(self):  # goes along as what it refers to, which is never nested here but in a message's list
        return Fetched, (pickle.loads(self.content),)


class Fetched:
    def __init__(self, value):
        self.value = value


class RayDouble:
    """
    Args:
        dies: takes an actor's number, the method's and its first argument; true: the actor is lost in this call.
    """

    def __init__(self, cores=2, dies=lambda number, method, what: False):
        self.cores, self.dies, self.actors, self.dead = cores, dies, 0, set()
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.cloudpickle = cloudpickle

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": float(self.cores)}

    def nodes(self):
        return [{}]

    def put(self, value):
        return Reference(value)

    def get(self, reference):
        if isinstance(reference, Fetched):
            return reference.value
        if reference.error:
            raise reference.error
        return pickle.loads(reference.content)

    def wait(self, references, num_returns=1, timeout=None):
        return references[:num_returns], references[num_returns:]

    def kill(self, handle):
        self.dead.add(handle.number)

    def remote(self, made):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *args: Handle(self, made, args)))


class Handle:
    def __init__(self, ray, made, args):
        self.ray, self.number = ray, ray.actors
        ray.actors += 1
        self.actor = made(*(ray.get(arg) if isinstance(arg, Reference) else arg for arg in args))

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *args: self._call(method, args))

    def _call(self, method, args):
        args = pickle.loads(cloudpickle.dumps(args, protocol=5))
        if self.number in self.ray.dead:
            return Reference(error=ActorDiedError(f"actor {self.number} is dead"))
        try:
            outcome = getattr(self.actor, method)(*args)
        except Exception as error:
            return Reference(error=RayTaskError(error))
        if self.ray.dies(self.number, method, *args[:1] or [None]):
            self.ray.dead.add(self.number)
            return Reference(error=ActorDiedError(f"actor {self.number} has died"))
        return Reference(outcome)
