"""FedKTL: class directions, the loss around them, the generator's file, the server's training, and what travels."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import train_generator
from flcore.clients.clientktl import clientKTL
from flcore.experiment import Experiment
from flcore.servers.serverktl import batches_of_two_or_more
from flcore.trainmodel.ktl import ImageGenerator, arcface_loss, like_clients, simplex_etf
from flcore.utils.errors import UsageError
from flcore.utils.seeds import torch_generator
from support import same_tensors

FAST = ("-se", "3")


# ---- directions and loss ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_class_directions_have_length_1_and_equal_angles(num_classes):
    etf = simplex_etf(num_classes)
    expected = torch.full((num_classes, num_classes), -1 / (num_classes - 1)).fill_diagonal_(1)
    assert torch.allclose(etf.T @ etf, expected, atol=1e-5)


def test_two_classes_are_opposite():
    etf = simplex_etf(2)
    assert torch.allclose(etf[:, 0], -etf[:, 1], atol=1e-6)


def test_arcface_by_hand():
    """Angle 60 degrees to the true class, 90 to the other; scale 2, margin 30 degrees: logits (0, 0), loss ln 2."""
    loss = arcface_loss(torch.tensor([[0.5, 0.0]]), torch.tensor([0]), scale=2.0, margin=math.pi / 6)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    without = arcface_loss(torch.tensor([[0.5, 0.0]]), torch.tensor([0]), scale=2.0, margin=0.0)
    assert without.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-6)


@pytest.mark.parametrize("cosine", [1.0, 1.0000001, -1.0, -1.0000001, 0.99999994])
def test_arcface_is_finite_where_rounding_takes_cosines_to_1_and_beyond(cosine):
    cosines = torch.tensor([[cosine, 0.0]], requires_grad=True)
    loss = arcface_loss(cosines, torch.tensor([0]))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(cosines.grad).all()


def test_gradients_are_clipped_by_their_length_network_and_projector_apart():
    grads = {"head.weight": torch.tensor([300.0, 0.0]), "base.weight": torch.tensor([400.0])}
    grads["transfer.projector.bias"] = torch.tensor([3.0])
    clipped = clientKTL.local_grad(grads, {}, {}, {}, {})
    assert torch.allclose(clipped["head.weight"], torch.tensor([60.0, 0.0])) and clipped["base.weight"] == 80
    assert clipped["transfer.projector.bias"] == 3
    assert grads["base.weight"] == 400


# ---- the generator's file --------------------------------------------------------------------------------------------


class WithMapping(nn.Module):
    """Latents of two numbers -> images of that grey; typical latents are 5 + noise."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w.mean(1)[:, None, None, None].expand(-1, 3, 4, 4)

    @torch.jit.export
    def mapping(self, noise: torch.Tensor) -> torch.Tensor:
        return noise + 5


class Linear(nn.Module):
    """Latents (n, 4) -> images (n, 1, 2, 2), as an exported program takes them: n = 1 alone."""

    def forward(self, w):
        return w.reshape(w.shape[0], 1, 2, 2)


def script(net, file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(net).save(str(file))
    return str(file)


def test_torchscript_with_its_mapping(tmp_path):
    generator = ImageGenerator(script(WithMapping(), tmp_path / "g.pt"), 2, (3, 4, 4), "cpu")
    noise = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(generator.latents(3, torch.Generator().manual_seed(1)), noise + 5)
    images = generator.images(torch.tensor([[0.25, 0.75], [9.0, 9.0]]))
    assert images.shape == (2, 3, 4, 4)
    assert images[0].eq(0.5).all() and images[1].eq(1).all()  # cut off at 1


def test_a_program_of_torch_export(tmp_path):
    file = tmp_path / "g.pt2"
    torch.export.save(torch.export.export(Linear(), (torch.zeros(1, 4),)), str(file))
    with pytest.raises(UsageError, match="can run any code.*--trust_generator"):
        ImageGenerator(str(file), 4, (1, 2, 2), "cpu")
    generator = ImageGenerator(str(file), 4, (1, 2, 2), "cpu", trusted=True)
    images = generator.images(torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 3))  # one at a time
    assert torch.allclose(images, torch.tensor([[0.1, 0.2], [0.3, 0.4]]).expand(3, 1, 2, 2))
    noise = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(generator.latents(2, torch.Generator().manual_seed(1)), noise)


@pytest.mark.parametrize(("name", "message"), [("g.pt", "not TorchScript"), ("g.pt2", "can run any code")])
def test_a_pickle_is_refused_without_executing_it(tmp_path, name, message):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    file = tmp_path / name
    torch.save({"net": Trap()}, file)
    with pytest.raises(UsageError, match=message):
        ImageGenerator(str(file), 4, (1, 2, 2), "cpu")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("net", "size", "shape", "message"),
    [
        (nn.Linear(3, 5), 4, (1, 2, 2), "latent vectors of 4 numbers.*-nd"),
        (nn.Linear(4, 5), 4, (1, 2, 2), r"gave \(1, 5\), not finite images"),
        (nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (2, 2, 2))), 4, (3, 2, 2), "3 channels of its images' 2"),
        (nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (3, 2, 2))), 4, (2, 2, 2), "2 channels of its images' 3"),
    ],
)
def test_a_generator_that_does_not_fit_is_refused(tmp_path, net, size, shape, message):
    with pytest.raises(UsageError, match=message):
        ImageGenerator(script(net, tmp_path / "g.pt"), size, shape, "cpu")


@pytest.mark.parametrize("name", ["missing.pt", "empty.pt", "empty.pt2"])
def test_a_missing_or_damaged_file_is_a_users_mistake(tmp_path, name):
    if name.startswith("empty"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=r"--generator .*" + name):
        ImageGenerator(str(tmp_path / name), 4, (1, 2, 2), "cpu", trusted=name.endswith("2"))


class Writes(nn.Module):
    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        torch.ops.aten.save(latents, "written_by_a_generator")
        return latents[:1, None, None]


class Reads(nn.Module):
    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return torch.from_file("secret", False, 4, dtype=torch.uint8)[None, None, None].float() / 255


class WritesWhileLoading(nn.Module):
    @torch.jit.export
    def __getstate__(self) -> int:
        return 0

    @torch.jit.export
    def __setstate__(self, state: int) -> None:
        self.training = False
        torch.ops.aten.save(torch.zeros(1), "written_by_a_generator")

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return latents[:1, None, None]


@pytest.mark.parametrize("net", [Writes(), Reads(), WritesWhileLoading()], ids=lambda net: type(net).__name__)
def test_torchscript_that_uses_files_is_refused_before_it_runs(tmp_path, monkeypatch, net):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(b"1234")
    file = script(net, tmp_path / "g.pt")
    with pytest.raises(UsageError, match="can read or write files.*--trust_generator"):
        ImageGenerator(file, 4, (1, 1, 1), "cpu")
    written = tmp_path / "written_by_a_generator"
    assert not written.exists()
    ImageGenerator(file, 4, (1, 1, 1), "cpu", trusted=True)  # the threat is real
    assert written.exists() or isinstance(net, Reads)


def test_without_a_generator_it_says_what_to_do(data_root):
    experiment = Experiment(algorithm="FedKTL", dataset="Tiny", data_dir=data_root, results_dir=None)
    with pytest.raises(UsageError, match="--generator FILE.*train_generator.py"):
        experiment.server()


def test_images_get_the_clients_channels_and_size():
    colour = torch.tensor([1.0, 0.0, -1.0])[None, :, None, None].expand(1, 3, 4, 4)
    grey = like_clients(colour, (1, 4, 4))
    assert torch.allclose(grey, torch.full((1, 1, 4, 4), 0.299 - 0.114))
    assert torch.equal(like_clients(torch.ones(2, 1, 4, 4), (3, 4, 4)), torch.ones(2, 3, 4, 4))
    assert torch.equal(like_clients(colour, (3, 4, 4)), colour)


def test_images_are_resized_without_distortion_and_cropped_in_the_middle():
    wide = torch.zeros(1, 1, 4, 8)
    wide[..., 2:6] = 1  # the middle half
    assert torch.equal(like_clients(wide, (1, 4, 4)), torch.ones(1, 1, 4, 4))
    for shape in [(1, 28, 28), (1, 3, 5), (1, 5, 3), (1, 7, 7)]:
        assert like_clients(torch.rand(2, 1, 8, 8), shape).shape == (2, *shape)


def test_the_small_generator_is_trained_fast_and_fits_the_digits(tmp_path, capsys):
    loaded = []
    for name in ("one.pt", "again.pt", "program.pt2"):
        assert train_generator.main(["--epochs", "2", "--latent_dim", "5", "--out", str(tmp_path / "new" / name)]) == 0
        generator = ImageGenerator(str(tmp_path / "new" / name), 5, (1, 28, 28), "cpu", trusted=name.endswith("2"))
        loaded.append(generator.images(torch.ones(2, 5)))
    assert "-nd 5" in capsys.readouterr().out
    assert torch.equal(loaded[0], loaded[1]) and torch.allclose(loaded[0], loaded[2], atol=1e-6)
    assert loaded[0].mean() < -0.2 and loaded[0].std() > 0.2  # a digit on black, no noise around 0
    assert len(list((tmp_path / "new").iterdir())) == 3  # no partial file is left
    with pytest.raises(SystemExit) as end:
        train_generator.main(["--epochs", "0"])
    assert end.value.code == 2


# ---- client and server -----------------------------------------------------------------------------------------------


def test_first_round_is_arcface_alone_and_then_the_pairs_come_in(make_server):
    server = make_server("FedKTL", "-gr", "1", "-mu", "3", *FAST)
    client = server.clients[0]
    x, y = (part[:6] for part in client.data)

    def both():
        drawn = client.local_draw(torch_generator(5), client.forward, 6, client.hp)
        loss = client.local_loss(
            client.forward, client.params, x, y, client.shared, {**client.state, **drawn}, client.hp
        )
        net, etf = client.forward.net, client.params["transfer.etf"]
        net.load_state_dict(client.params)
        u = net.head(net.base(x))
        u = u / u.norm(dim=1, keepdim=True)
        logits = 64 * u @ etf
        angle = (u * etf.T[y]).sum(1).arccos()
        logits[range(6), y] = 64 * (angle + 0.5).cos()
        arcface = -logits.log_softmax(1)[range(6), y].mean()
        return loss, arcface, net

    loss, arcface, _ = both()
    assert loss.item() == pytest.approx(arcface.item(), rel=1e-4)
    server.train()
    loss, arcface, net = both()
    images, latents = client.shared["images"], client.shared["latents"]
    assert images.shape == (4, 1, 20, 20) and latents.shape == (4, 6)
    pairs = ((net.transfer.projector(net.base(images)) - latents) ** 2).mean()  # four pairs fit into a batch of six
    assert loss.item() == pytest.approx((arcface + 3 * pairs).item(), rel=1e-4)


def test_a_small_batch_sees_different_pairs_and_never_one_twice(make_server):
    server = make_server("FedKTL", "-gr", "1", *FAST)
    server.train()
    client, seen = server.clients[0], []
    original = client.forward.features

    def look(params, x, frozen=False):
        if frozen:
            seen.append(x)
        return original(params, x, frozen)

    client.forward.features = look
    x, y = (part[:3] for part in client.data)
    for step in range(5):
        drawn = client.local_draw(torch_generator(step), client.forward, 3, client.hp)
        client.local_loss(client.forward, client.params, x, y, client.shared, drawn, client.hp)
    places = [[int((client.shared["images"] == i).flatten(1).all(1).nonzero()[0]) for i in step] for step in seen]
    assert all(len(set(step)) == 3 for step in places) and len(set(map(tuple, places))) > 1


def test_the_projector_restarts_and_directions_are_the_same_for_all(make_server):
    server = make_server("FedKTL", "-gr", "2", *FAST)
    start, trained = dict(server.clients[0].params), []
    original = server.receive_models

    def look():
        trained.append(server.clients[0].params["transfer.projector.weight"])
        original()

    server.receive_models = look
    server.train()
    name = "transfer.projector.weight"
    assert torch.equal(trained[0], start[name])  # no pairs yet
    assert not torch.equal(trained[1], start[name])
    for client in server.clients:
        assert torch.equal(client.params[name], start[name])
        assert torch.equal(client.params["transfer.etf"], start["transfer.etf"])


def test_pairs_do_not_move_the_head(make_server):
    server = make_server("FedKTL", "-gr", "1", *FAST)
    server.train()
    client = server.clients[0]
    params = {name: value.clone().requires_grad_(value.is_floating_point()) for name, value in client.params.items()}
    drawn = client.local_draw(torch_generator(0), client.forward, 4, client.hp)
    x, y = (part[:4] for part in client.data)
    with_pairs, without = (
        client.local_loss(client.forward, params, x, y, client.shared, drawn, replace(client.hp, mu=mu))
        for mu in (1, 0)
    )
    grads = torch.autograd.grad(with_pairs - without, [params["head.weight"], params["base.fc1.0.weight"]])
    assert grads[0].abs().max() < 1e-6 < grads[1].abs().max()


def test_prototypes_are_normalised_means_of_normalised_points(make_server):
    server = make_server("FedKTL", "-gr", "1", *FAST, dataset="Skewed")
    server.train()
    for client, upload in zip(server.clients, server.uploaded_models, strict=True):
        x, y = client.data
        u = client.forward(client.params, x)[0]
        u = u / u.norm(dim=1, keepdim=True)
        for c in range(4):
            assert upload["counts"][c] == int((y == c).any())
            if (y == c).any():
                mean = u[y == c].mean(0)
                assert torch.allclose(upload["prototypes"][c], mean / mean.norm(), atol=1e-5)


def test_prediction_is_the_nearest_direction(make_server):
    client = make_server("FedKTL").clients[0]
    x, _ = client.tensors(is_train=False)
    scores = client.local_predict(client.forward, client.params, x, {}, client.state, client.hp)
    u = client.forward(client.params, x)[0]
    for i in range(len(x)):
        for c in range(4):
            cosine = torch.cosine_similarity(u[i], client.params["transfer.etf"][:, c], dim=0)
            assert scores[i, c].item() == pytest.approx(cosine.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("number", "size", "sizes"), [(5, 2, [2, 3]), (4, 2, [2, 2]), (3, 100, [3]), (1, 2, []), (201, 100, [100, 101])]
)
def test_no_batch_of_one_upload(number, size, sizes):
    pieces = batches_of_two_or_more(torch.randperm(number), size)
    assert [len(piece) for piece in pieces] == sizes
    assert not pieces or torch.cat(pieces).sort().values.tolist() == list(range(number))


def test_a_single_upload_trains_nothing_and_still_gives_a_pair(make_server):
    server = make_server("FedKTL", "-gr", "1", *FAST, dataset="Skewed")
    server.select_clients = lambda: [server.clients[1]]  # holds class 1 alone
    before = {name: value.clone() for name, value in server.transformer.state_dict().items()}
    server.train()
    assert same_tensors(before, dict(server.transformer.state_dict()))
    assert server.seen.tolist() == [False, True, False, False]
    expected = server.transformer.eval()(server.uploaded_models[0]["prototypes"][1:2])
    assert torch.allclose(server.pairs["latents"], expected, atol=1e-6)
    assert server.pairs["images"].shape == (1, 1, 20, 20)


def test_classes_never_uploaded_have_no_pair_and_absent_ones_keep_theirs(make_server):
    server = make_server("FedKTL", "-gr", "3", *FAST, dataset="Skewed")
    server.select_clients = lambda: [server.clients[(1, 0, 2, 3)[server.current_round]]]
    pairs = []
    server.end_round = lambda: pairs.append((server.seen.tolist(), server.pairs["latents"]))
    server.train()
    assert [seen for seen, _ in pairs] == [
        [False, True, False, False],
        [True, True, False, False],
        [True] * 3 + [False],
    ]
    assert [len(latents) for _, latents in pairs] == [1, 2, 3]
    assert torch.equal(pairs[1][1][1], pairs[2][1][1])  # client 2 holds classes 2 and 0


def test_the_server_trains_its_own_parameters_towards_typical_latents(make_server):
    """On the same uploads, longer training brings F(P) nearer to what the generator's mapping gives."""
    from flcore.trainmodel.mmd import squared_mmd
    from flcore.trainmodel.prototypes import as_samples, stack_uploads

    server = make_server("FedKTL", "-gr", "1", "-se", "1", "-lam", "0")
    server.train()
    points, y = as_samples(*stack_uploads(server.uploaded_models))
    typical = server.generator.latents(500, torch.Generator().manual_seed(9))

    def distance():
        with torch.no_grad():
            return squared_mmd(server.transformer.train()(points), typical)

    before = distance()
    server.hp = replace(server.hp, server_epochs=100)
    server.fit(points, y)
    assert distance() < before / 2


def test_without_pairs_clients_are_on_their_own(make_server):
    one, other = make_server("FedKTL", "-mu", "0", *FAST), make_server("FedKTL", "-mu", "0", "-se", "0", "-jr", "1")
    one.train()
    other.train()
    for first, second in zip(one.clients, other.clients, strict=True):
        assert same_tensors(first.params, second.params)
    start = one.global_params["base.fc1.0.weight"]
    assert torch.equal(start, make_server("FedKTL").global_params["base.fc1.0.weight"])


def test_generated_images_leave_batchnorm_alone(make_server):
    server = make_server("FedKTL", "-gr", "1", *FAST, "-lbs", "4", dataset="Colour", model="ResNet18")
    server.train()  # grey 8 x 8 images become 3 x 32 x 32
    client = server.clients[0]
    drawn = client.local_draw(torch_generator(0), client.forward, 4, client.hp)
    x, y = (part[:4] for part in client.data)
    means = []
    for mu in (0, 50):
        params = {name: value.clone() for name, value in client.params.items()}
        client.forward.set_training(("",))
        client.local_loss(client.forward, params, x, y, client.shared, drawn, replace(client.hp, mu=mu))
        means.append(params["base.bn1.running_mean"])
    assert torch.equal(*means) and not torch.equal(means[0], client.params["base.bn1.running_mean"])
