"""The maximum mean discrepancy."""

import pytest
import torch

from flcore.trainmodel.mmd import squared_mmd


def test_mmd_by_hand():
    """One sample each at squared distance 20: 4 + 4 - 2 * (e^-1 + e^-2/3 + e^-1/2 + e^-1/5) = 3.386883."""
    a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[4.0, 2.0]])
    assert squared_mmd(a, b).item() == pytest.approx(3.386883, abs=1e-5)
    assert squared_mmd(b, b).item() == 0
    many = torch.tensor([[0.0, 0.0], [4.0, 2.0]])  # kernel means: 1/2 * (4 + 2.306558) inside, and so across
    assert squared_mmd(many, many).item() == pytest.approx(0, abs=1e-6)
    assert squared_mmd(a, many).item() == pytest.approx(3.386883 / 4, abs=1e-5)


def test_mmd_never_sees_a_negative_distance():
    """Squares of large close vectors cancel: without a bound the kernel would exceed its maximum of 4."""
    a = (1000 + torch.randn(20, 64, generator=torch.Generator().manual_seed(0)) * 1e-3).requires_grad_()
    loss = squared_mmd(a, -a.detach())  # two tight groups far apart: 4 + 4
    loss.backward()
    assert 6 < loss <= 8 and a.grad.isfinite().all()
