"""The rule contract: phases, batches, feature maps, and one step of SGD by hand."""

import copy
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from flcore.clients.localrule import LocalRule, Phase, build_forward, head_loss, train_step
from flcore.clients.support.batches import Batches
from flcore.clients.support.metrics import micro_auc
from flcore.hyperparams import Settings
from flcore.trainmodel.build import build_model, split_head
from flcore.trainmodel.forward import Forward, feature_stages, first_pass, tensors_of
from flcore.trainmodel.models import BaseHeadSplit
from flcore.trainmodel.optimizers import LocalOptimizer
from flcore.utils.seeds import torch_generator


@pytest.mark.parametrize(
    ("model", "shape", "channels"),
    [
        ("CNN", (3, 32, 32), [32, 64]),
        ("ResNet18", (3, 32, 32), [64, 128, 256]),  # the last stage has one pixel, which is no map
        ("ResNet18", (1, 64, 64), [64, 128, 256, 512]),
        ("DNN", (1, 28, 28), []),
        ("MLR", (1, 28, 28), []),
    ],
)
def test_feature_maps_are_found(model, shape, channels):
    net = split_head(build_model(model, shape, 10))
    forward = Forward(net, torch.zeros(1, *shape))
    assert forward.channels == channels
    net.eval()
    logits, z, maps = forward(dict(net.state_dict()), torch.randn(2, *shape))
    assert torch.equal(logits, net.head(z))
    assert [m.shape[:2] for m in maps] == [(2, c) for c in channels]


def test_feature_maps_of_fedavgcnn_have_the_published_sizes():
    net = split_head(build_model("CNN", (3, 32, 32), 10))
    _, z, maps = Forward(net, torch.zeros(1, 3, 32, 32))(dict(net.state_dict()), torch.zeros(5, 3, 32, 32))
    assert z.shape == (5, 512)
    assert [tuple(m.shape) for m in maps] == [(5, 32, 14, 14), (5, 64, 5, 5)]


def test_a_model_may_name_its_stages_and_plain_convolutions_are_the_last_resort():
    def stages(net):
        return feature_stages(net, first_pass(net, torch.zeros(1, 1, 8, 8))[1])

    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 5, 3), nn.Flatten())
    assert stages(plain) == [("0", 2), ("2", 5)]
    wrapped = nn.Sequential(nn.Sequential(*plain[:3]), plain[3])  # one block: what it is made of says more
    assert stages(wrapped) == [("0.0", 2), ("0.2", 5)] and stages(nn.Sequential(wrapped[0][:1], plain[3])) == [("0", 2)]
    plain.feature_stages = ("2",)
    assert stages(plain) == [("2", 5)]
    plain.feature_stages = ("9",)
    with pytest.raises(ValueError, match="feature_stages name 9"):
        stages(plain)


def test_a_teachers_pass_gives_the_same_maps_and_ends_with_the_last_one():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
            self.after = nn.Linear(3, 2)

        def forward(self, x):
            return self.after(self.two(self.two(self.one(x)).relu()).mean((2, 3)))

    torch.manual_seed(0)
    net = BaseHeadSplit(Net(), nn.Linear(2, 2))
    forward, reached = Forward(net, torch.zeros(1, 1, 6, 6)), []
    net.base.after.register_forward_hook(lambda *call: reached.append(1))
    forward.set_training(("",))
    params, x = tensors_of(net), torch.randn(4, 1, 6, 6)
    whole = forward.features(params, x, frozen=True)[1]
    assert reached == [1] and len(whole) == 2 and not torch.equal(whole[0], whole[1])
    for _ in range(2):
        assert all(torch.equal(one, other) for one, other in zip(forward.maps(params, x), whole, strict=True))
    assert reached == [1] and net.base.training
    assert forward.features(params, x)[0].shape == (4, 2)  # a whole pass again
    assert Forward(BaseHeadSplit(nn.Flatten(), nn.Linear(36, 2)), x).maps({}, x) == []


def test_a_copied_network_keeps_its_maps_to_itself():
    """Threads get copies: maps of one must never show up in another."""
    net = split_head(build_model("CNN", (1, 28, 28), 3))
    forward = Forward(net, torch.zeros(1, 1, 28, 28))
    twin = copy.deepcopy(forward)
    params = dict(net.state_dict())
    assert twin.net is not forward.net
    assert len(twin.features(params, torch.zeros(1, 1, 28, 28))[1]) == 2
    assert len(forward.features(params, torch.zeros(1, 1, 28, 28))[1]) == 2


class OneClient(LocalRule):
    """A rule around a model and data, without any framework: as small as PFLlib's Client gets."""

    def __init__(self, model, x, y, batch_size, rule_args):
        self.model, self.device, self.train_samples = model, "cpu", len(y)
        self.train_time_cost = {"num_rounds": 0, "total_cost": 0.0}
        self._batches = Batches((x, y), batch_size, torch_generator(0))
        self.setup_rule(rule_args)

    def load_train_data(self):
        return self._batches


def arguments(**changes):
    defaults = {
        "local_learning_rate": 0.5,
        "learning_rate_decay": False,
        "learning_rate_decay_gamma": 0.5,
        "local_epochs": 1,
        "num_classes": 2,
    }
    return SimpleNamespace(**{**defaults, **changes})


def linear_model():
    model = BaseHeadSplit(nn.Identity(), nn.Linear(1, 2))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    return model


def test_one_step_by_hand():
    """x = 2, y = 0, all weights 0: softmax is (1/2, 1/2), so dCE/dlogits = (-1/2, 1/2), dW = x * that, lr = 1/2."""
    client = OneClient(linear_model(), torch.tensor([[2.0]]), torch.tensor([0]), 1, arguments())
    client.train()
    assert torch.allclose(client.params["head.weight"], torch.tensor([[0.5], [-0.5]]))
    assert torch.allclose(client.params["head.bias"], torch.tensor([0.25, -0.25]))
    assert client.train_loss == (pytest.approx(0.693147, abs=1e-6), 1)  # ln 2


def test_learning_rate_decays_by_round():
    client = OneClient(linear_model(), torch.tensor([[2.0]]), torch.tensor([0]), 1, arguments(learning_rate_decay=True))
    client.receive({}, current_round=2)  # 0.5 * 0.5^2 = 1/8
    client.train()
    assert torch.allclose(client.params["head.bias"], torch.tensor([0.0625, -0.0625]))


def test_only_what_a_phase_names_moves():
    class HeadOnly(OneClient):
        @staticmethod
        def local_plan(hp):
            return [Phase(2, ("head.",))]

    model = split_head(build_model("CNN", (1, 16, 16), 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    client = HeadOnly(model, torch.randn(8, 1, 16, 16), torch.randint(2, (8,)), 4, arguments())
    client.train()
    moved = {name for name, value in client.params.items() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias"}


@pytest.mark.parametrize("plan", [[Phase(2, ("head.",))], [Phase(9, ("head.",), steps=3), Phase(1, ("base.",))]])
@pytest.mark.parametrize("loader", [Batches, list])
def test_a_head_on_cached_features_is_the_head_on_the_fixed_extractor(plan, loader):
    """BatchNorm included; with ``list``, a loader like PFLlib's, the features are made batch by batch."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    model = BaseHeadSplit(base, nn.Linear(72, 2))
    data = torch.randn(11, 1, 8, 8), torch.randint(2, (11,))
    trained = []
    for cached in (False, True):
        on_features = [p._replace(loss=head_loss, on_features=True) if p.moves == ("head.",) else p for p in plan]
        rule = type(
            "Rule", (OneClient,), {"local_plan": staticmethod(lambda hp, c=cached, o=on_features: o if c else plan)}
        )
        client = rule(copy.deepcopy(model), *data, 4, arguments())
        if loader is list:
            client._data, client._batches = data, list(client._batches)
        client.train()
        trained.append(client)
    plain, fast = trained
    assert plain.train_loss == (pytest.approx(fast.train_loss[0], rel=1e-5), fast.train_loss[1])
    for name, value in plain.params.items():
        torch.testing.assert_close(fast.params[name], value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(plain.params["head.weight"], model.head.weight)


def test_features_are_computed_once_for_all_epochs():
    class HeadOnly(OneClient):
        @staticmethod
        def local_plan(hp):
            return [Phase(5, ("head.",), loss=head_loss, on_features=True)]

    base = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    client = HeadOnly(BaseHeadSplit(base, nn.Linear(3, 2)), torch.randn(9, 4), torch.randint(2, (9,)), 4, arguments())
    sizes = []
    base.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    client.train()
    assert sizes == [9]


def test_a_step_on_stacked_clients_is_each_ones_own_step():
    """w^2 has the gradient 2w: one step at rate 1/4 halves w, for each client by itself."""
    w = torch.tensor([[1.0], [6.0]], requires_grad=True)
    loss = train_step(lambda: w.square().sum(1), dict, {"w": w}, LocalOptimizer(Settings(lr=0.25)))
    assert loss.tolist() == [1, 36] and w.tolist() == [[0.5], [3]]


def test_batchnorm_of_a_fixed_extractor_stays_still():
    class HeadOnly(OneClient):
        @staticmethod
        def local_plan(hp):
            return [Phase(1, ("head.",))]

    base = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    client = HeadOnly(
        BaseHeadSplit(base, nn.Linear(72, 2)), torch.randn(8, 1, 8, 8), torch.randint(2, (8,)), 4, arguments()
    )
    client.train()
    assert client.params["base.1.num_batches_tracked"] == 0
    assert torch.equal(client.params["base.1.running_mean"], torch.zeros(2))
    plain = OneClient(client.model, *client.data, 4, arguments())
    plain.train()
    assert plain.params["base.1.num_batches_tracked"] == 2


def test_state_of_the_client_never_aliases_what_training_changes():
    client = OneClient(linear_model(), torch.tensor([[2.0]]), torch.tensor([0]), 1, arguments())
    received = {"head.bias": torch.ones(2)}
    client.receive(received, current_round=0)
    client.train()
    assert torch.equal(received["head.bias"], torch.ones(2))


@pytest.mark.parametrize(
    ("samples", "batch_size", "sizes"),
    [
        (23, 10, [10, 10]),  # PFLlib: the incomplete last batch is dropped
        (7, 10, [7]),  # ours: a client below one batch trains on what it has
        (23, -1, [23]),
        (0, 10, []),
        (1, 10, [1]),
    ],
)
def test_batch_sizes(samples, batch_size, sizes):
    data = torch.arange(samples)[:, None].float(), torch.arange(samples)
    batches = Batches(data, batch_size, torch_generator(1))
    assert [len(y) for _, y in batches] == sizes
    assert len(batches) == len(sizes)
    assert all(torch.equal(x[:, 0].long(), y) for x, y in batches)


def test_every_pass_shuffles_anew_and_evaluation_sees_everything_in_order():
    data = torch.arange(40.0)[:, None], torch.arange(40)
    batches = Batches(data, 10, torch_generator(1))
    first, second = (torch.cat([y for _, y in batches]) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, torch.arange(40))
    assert torch.equal(torch.cat([y for _, y in Batches(data, 16)]), torch.arange(40))


def test_batchnorm_never_sees_a_single_sample():
    assert len(Batches((torch.zeros(1, 2), torch.zeros(1)), 10, torch_generator(1), smallest=2)) == 0


def test_auc_by_hand():
    """Pairs (sample, class), positives 0.9 and 0.4, negatives 0.1 and 0.6: three of four pairs in order."""
    scores = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    assert micro_auc(scores, torch.tensor([0, 1])) == pytest.approx(0.75)
    assert micro_auc(scores * float("nan"), torch.tensor([0, 1])) != micro_auc(scores, torch.tensor([0, 1]))


def test_auc_is_that_of_scikit_learn_also_with_ties():
    torch.manual_seed(0)
    for classes in (2, 5):
        scores, y = torch.randn(40, classes).round(decimals=1), torch.randint(classes, (40,))
        hot = torch.nn.functional.one_hot(y, classes)
        expected = roc_auc_score(hot.ravel().numpy(), scores.ravel().numpy())
        assert micro_auc(scores, y) == pytest.approx(expected, abs=1e-12)


def test_extra_modules_do_not_move_the_global_generator():
    class Extra(LocalRule):
        @staticmethod
        def local_modules(forward, hp):
            return {"extra": nn.Linear(3, 3)}

    model = linear_model()
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    forward = build_forward(Extra, model, torch.zeros(1, 1), Settings(module_seed=5))
    assert torch.equal(torch.rand(1), expected)
    assert "extra.weight" in forward.net.state_dict()


def test_images_lie_as_the_model_wants_them_also_in_a_batch(make_server):
    """Changes the speed on a CPU, and nothing else: the values are the same."""
    client = make_server("FedAvg").clients[0]
    x, _ = client.data
    (batch, _), *_ = client.load_train_data()
    for images in (x, batch, *x.split(7)):
        assert images.stride()[1] == 1 and images.shape[1:] == (1, 20, 20)
    fresh, _ = client.dataset.tensors(0)
    assert fresh.is_contiguous() and torch.equal(x, fresh)
    assert make_server("FedAvg", model="MLR").clients[0].data[0].stride()[1] == 400
