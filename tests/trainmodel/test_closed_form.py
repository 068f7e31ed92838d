"""Ridge regression on labels: by hand, against gradient descent, and at the ends of its strength."""

import pytest
import torch

from flcore.trainmodel.closed_form import ridge_classifier


def test_two_points_by_hand():
    """z = 0 and 2 with labels 0 and 1: x = -1, 1, s = 1, so the slope is cov / (1 + strength) = +-0.5 / 2."""
    weight, bias = ridge_classifier(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]), 2, 1.0)
    torch.testing.assert_close(weight, torch.tensor([[-0.25], [0.25]]))
    torch.testing.assert_close(bias, torch.tensor([0.75, 0.25]))


@pytest.mark.parametrize("samples", [6, 30], ids=["fewer samples than elements", "more"])
def test_its_gradient_is_zero(samples):
    z, y = torch.randn(samples, 10, dtype=torch.float64), torch.arange(samples) % 4
    weight, bias = (part.requires_grad_() for part in ridge_classifier(z, y, 4, 0.3))
    x = z - z.mean(0)
    error = (z @ weight.T + bias - torch.eye(4, dtype=torch.float64)[y]).square().sum() / samples
    loss = error + 0.3 * x.square().mean() * weight.square().sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_it_does_not_depend_on_the_scale_of_the_embeddings():
    z, y = torch.randn(8, 5), torch.arange(8) % 3
    (weight, bias), (small, same) = ridge_classifier(z, y, 3, 1.0), ridge_classifier(z * 1e-3, y, 3, 1.0)
    torch.testing.assert_close(small * 1e-3, weight)
    torch.testing.assert_close(same, bias)


def test_what_says_nothing_gives_the_frequencies_of_the_classes():
    frequencies = torch.tensor([0.75, 0.25, 0.0])
    for z, strength in ((torch.ones(4, 5), 1.0), (torch.randn(4, 5), 1e12)):
        weight, bias = ridge_classifier(z, torch.tensor([0, 0, 1, 0]), 3, strength)
        torch.testing.assert_close(weight, torch.zeros(3, 5), atol=1e-6, rtol=0)
        torch.testing.assert_close(bias, frequencies, atol=1e-5, rtol=0)


def test_without_samples_all_is_zero():
    weight, bias = ridge_classifier(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), 3, 1.0)
    assert weight.shape == (3, 5) and not weight.any() and not bias.any()


def test_one_sample_and_values_that_are_not_finite_raise_nothing():
    weight, bias = ridge_classifier(torch.randn(1, 5), torch.tensor([2]), 3, 1.0)
    assert not weight.any() and bias.tolist() == [0, 0, 1]
    assert not ridge_classifier(torch.full((4, 5), torch.nan), torch.tensor([0, 1, 2, 0]), 3, 1.0)[0].isfinite().any()
