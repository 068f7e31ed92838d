"""Networks as users write them, for samples (1, 20, 20) of four classes: some odd, some that cannot be trained here."""

from collections import OrderedDict, namedtuple

import torch
from torch import nn
from torch.nn import functional as F

Outputs = namedtuple("Outputs", ["logits", "aux"])


class Base(nn.Module):
    """Two convolutions and a linear layer, to be varied."""

    def __init__(self, num_classes=4):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 4, 5, stride=2), nn.Conv2d(4, 4, 3, stride=2)
        self.out = nn.Linear(36, num_classes)

    def embed(self, x):
        return self.two(self.one(x).relu()).relu().flatten(1)

    def forward(self, x):
        return self.out(self.embed(x))


# ---- trained ---------------------------------------------------------------------------------------------------------


class Frozen(Base):
    """The first convolution stays as it is."""

    def __init__(self):
        super().__init__()
        self.one.requires_grad_(False)


class FrozenNorm(Base):
    """A BatchNorm with fixed weights keeps its statistics."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(self.one, nn.BatchNorm2d(4))
        self.one.requires_grad_(False)


class FrozenBase(Base):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)
        self.out.requires_grad_(True)


class FrozenHead(Base):
    def __init__(self):
        super().__init__()
        self.out.requires_grad_(False)


class Dropout(Base):
    def __init__(self):
        super().__init__()
        self.two = nn.Sequential(nn.Dropout2d(0.3), self.two, nn.Dropout(0.1, inplace=True))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.out(self.drop(self.embed(x)))


class Noisy(Base):
    """Draws by functions: dropout, normal noise, and the skipped layers of stochastic depth."""

    def forward(self, x):
        z = self.embed(x)
        if self.training:
            z = F.dropout(z, 0.2) + 0.1 * torch.randn_like(z)
            z = z * torch.empty(len(z), 1).bernoulli_(0.9) * (0.5 + torch.rand(len(z), 1))
        return self.out(z)


class UsedTwice(Base):
    """One convolution in two places of the forward pass, whose last map counts."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(4, 4, 3, padding=1)

    def embed(self, x):
        return self.two(self.mix(self.mix(self.one(x).relu()).relu())).relu().flatten(1)


class InTwoPlaces(Base):
    """One layer under two names, with buffers, and a parameter of another under a third."""

    def __init__(self):
        super().__init__()
        self.norm = self.again = nn.BatchNorm2d(4)
        self.mix, self.back = nn.Linear(36, 36), nn.Linear(36, 36)
        self.back.weight = self.mix.weight

    def embed(self, x):
        z = self.two(self.again(self.norm(self.one(x)))).relu().flatten(1)
        return self.back(self.mix(z).relu()).relu()


class Tuple(Base):
    """Embedding first, scores second."""

    def forward(self, x):
        z = self.embed(x)
        return z, self.out(z)


class Dict(Base):
    def forward(self, x):
        z = self.embed(x)
        return OrderedDict(embedding=z, logits=self.out(z))


class Auxiliary(Base):
    """As torchvision's Inception: a second head in training alone, which nothing trains here."""

    def __init__(self):
        super().__init__()
        self.aux = nn.Linear(36, 4)

    def forward(self, x):
        z = self.embed(x)
        return Outputs(self.out(z), self.aux(z)) if self.training else self.out(z)


class NoMaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(400, 12), nn.Tanh(), nn.Linear(12, 4))

    def forward(self, x):
        return self.layers(x)


class BatchNorm(Base):
    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(self.one, nn.BatchNorm2d(4), nn.ReLU(inplace=True))


class GroupNorm(Base):
    layout = "NHWC"  # means nothing here

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(self.one, nn.GroupNorm(2, 4), nn.ReLU())
        self.scale = nn.Parameter(torch.tensor(0.5))

    def embed(self, x):
        return super().embed(x) * self.scale


class Lazy(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.LazyConv2d(3, 4), nn.ReLU(), nn.AdaptiveMaxPool2d(3), nn.Flatten())
        self.out = nn.LazyLinear(num_classes)

    def forward(self, x):
        return self.out(self.body(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.LSTM(20, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.rows(x.squeeze(1))[0][:, -1])


class Branches(Base):
    """What it computes depends on the numbers: no vmap."""

    def embed(self, x):
        z = super().embed(x)
        return z / 2 if float(z.detach().abs().max()) > 1 else z


class WeightNorm(Base):
    def __init__(self):
        super().__init__()
        self.two = nn.utils.parametrizations.weight_norm(self.two)


class AllAtOnce(Dropout):
    """Frozen, with dropout and BatchNorm, a tied layer and two outputs."""

    def __init__(self):
        super().__init__()
        self.one.requires_grad_(False)
        self.norm = self.again = nn.BatchNorm2d(4)
        self.mix = nn.Linear(36, 36)

    def embed(self, x):
        z = self.two(self.again(self.norm(self.one(x)))).relu().flatten(1)
        return self.mix(self.mix(z).relu()).relu()

    def forward(self, x):
        z = self.embed(x)
        return z, self.out(self.drop(z))


TRAINED = [Frozen, FrozenNorm, FrozenBase, Dropout, Noisy, UsedTwice, InTwoPlaces, Tuple, Dict, Auxiliary, NoMaps]
TRAINED += [BatchNorm, GroupNorm, Lazy, Recurrent, Branches, WeightNorm]
LOOP = {"Recurrent", "Branches"}  # of them what vmap refuses


# ---- refused ---------------------------------------------------------------------------------------------------------


class Softmax(Base):
    def forward(self, x):
        return super().forward(x).log_softmax(1)


class SoftmaxInTraining(Base):
    def forward(self, x):
        return super().forward(x).log_softmax(1) if self.training else super().forward(x)


class Thousand(Base):
    def __init__(self):
        super().__init__(1000)


class AllFrozen(Base):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Attention(Base):
    """Dropout inside attention is drawn where nothing in Python sees it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, dropout=0.5, batch_first=True)

    def embed(self, x):
        rows = super().embed(x).unflatten(1, (9, 4))
        return self.attention(rows, rows, rows)[0].flatten(1)


class Counts(Base):
    calls = 0

    def embed(self, x):
        self.calls += 1
        return super().embed(x) / self.calls


class InPlace(Base):
    def embed(self, x):
        return super().embed(x.sub_(0.5))


class OfTheBatch(Base):
    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(self.one, nn.BatchNorm2d(4, track_running_stats=False))


class Squeezes(Base):
    def forward(self, x):
        return self.out(self.embed(x)).squeeze()


class HeadTied(Base):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(36, 4, bias=False)
        self.out.weight = self.first.weight

    def embed(self, x):
        z = super().embed(x)
        return z + self.first(z).sum(1, keepdim=True)


class Large(Base):
    def __init__(self):
        super().__init__()
        self.two = nn.Conv2d(4, 4, 30)


class Text(Base):
    def forward(self, x):
        return "a cat"


class Detached(Base):
    def forward(self, x):
        return self.out(self.embed(x)).detach()


class DrawsAlways(Base):
    def embed(self, x):
        return F.dropout(super().embed(x), 0.5)


class HeadTwice(Base):
    def embed(self, x):
        z = super().embed(x)
        return z + self.out(z).mean(1, keepdim=True)


class WrongStages(Base):
    feature_stages = ("one", "three")


class Broken(Base):
    def embed(self, x):
        raise KeyError("weights")


class Copies(Base):
    """Computes with a copy of its weights that no training reaches."""

    def __init__(self):
        super().__init__()
        self.mine = [self.out.weight.detach().clone()]

    def embed(self, x):
        z = super().embed(x)
        return z + 0 * self.two.weight.sum() + F.linear(z, self.mine[0]).mean(1, keepdim=True)


REFUSED = [
    (Softmax, "not the output of a linear layer"),
    (SoftmaxInTraining, "let the head come last, in training too"),
    (Thousand, r"gives a sample \(1000,\) scores, and the data have 4 classes"),
    (AllFrozen, "nothing to train"),
    (Attention, "dropout inside attention"),
    (Counts, "other scores the second time"),
    (InPlace, "changes its input in place"),
    (OfTheBatch, "depend on the others in its batch"),
    (Squeezes, "not the output of a linear layer"),
    (HeadTied, "give each its own parameters"),
    (Large, r"cannot take samples of 1x20x20: RuntimeError: .*Kernel size can't be greater"),
    (Text, "neither a tensor nor a tuple"),
    (Detached, "not the output of a linear layer"),
    (DrawsAlways, "draws random numbers or counts calls"),
    (HeadTwice, "is used 2 times"),
    (WrongStages, "feature_stages name three, which is none of its layers"),
    (Broken, r"KeyError: 'weights' \(networks.py, line \d+\)"),
]
