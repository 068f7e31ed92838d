"""FedKTL's parts: the fixed class directions, the loss around them, and the image generator on the server.

B samples, C classes, K embedding size, W size of the generator's latent vectors.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass
from torch.nn import functional as F

from flcore.utils.errors import UsageError
from flcore.utils.safe_load import most_unpacked

SCALE, MARGIN = 64.0, 0.5  # of ArcFace, the authors' values
LARGEST_COSINE = 1 - 1e-7  # arccos has no finite slope at 1
GREY = (0.299, 0.587, 0.114)  # shares of red, green and blue in brightness (ITU-R BT.601)


class Transfer(nn.Module):
    """What every client has beside its own network, the same for all: embeddings (B, K) -> latent vectors (B, W).

    ``etf`` (C, C) holds the class directions of a simplex equiangular tight frame as columns, see `simplex_etf`.
    """

    etf: Tensor

    def __init__(self, size: int, latent_dim: int, num_classes: int) -> None:
        super().__init__()
        self.projector = nn.Linear(size, latent_dim)
        self.register_buffer("etf", simplex_etf(num_classes))

    def forward(self, z: Tensor) -> Tensor:
        return self.projector(z)


def simplex_etf(num_classes: int) -> Tensor:
    """sqrt(C / (C - 1)) * U (I - 11'/C) with U a random orthonormal matrix, drawn from the global generator -> (C, C).

    The columns have length 1, and any two of them the cosine -1 / (C - 1). Two classes are opposite vectors.
    """
    orthonormal, _ = torch.linalg.qr(torch.randn(num_classes, num_classes))
    centred = torch.eye(num_classes) - 1 / num_classes
    return (num_classes / (num_classes - 1)) ** 0.5 * orthonormal @ centred


def arcface_loss(cosines: Tensor, y: Tensor, scale: float = SCALE, margin: float = MARGIN) -> Tensor:
    """Cross-entropy of scale * cosines (B, C), where the true class's angle is made larger by ``margin`` -> scalar.

    Deng et al., CVPR 2019, without the exception for angles that the margin takes beyond pi.
    """
    true = torch.arange(cosines.shape[1], device=y.device) == y[:, None]
    angles = cosines.clamp(-LARGEST_COSINE, LARGEST_COSINE).arccos()
    return F.cross_entropy(scale * torch.where(true, torch.cos(angles + margin), cosines), y)


class ImageGenerator:
    """A frozen generator from a file, whose images are made to look like those of the clients.

    Args:
        file: what ``--generator`` names; docs/fedktl.md says what may be in it and whom to trust.
        trusted: load it without the checks of `checked_torchscript`, also a program of torch.export.
        latent_dim: W.
        shape: channels, height and width of the clients' images.
        device: where to run it.

    Raises:
        UsageError: there is no such file, it holds something else, or it does not take latent vectors of that size.
    """

    def __init__(
        self, file: Path | str, latent_dim: int, shape: tuple[int, ...], device: Any, trusted: bool = False
    ) -> None:
        self.latent_dim, self.shape, self.device = latent_dim, shape, device
        self.module = load_generator(Path(file), device, trusted)
        self.mapping: Callable[[Tensor], Tensor] | None = getattr(self.module, "mapping", None)
        try:
            latents = self.latents(2, torch.Generator().manual_seed(0))
            made = self._run(latents[:1])
        except Exception as error:
            raise UsageError(
                f"--generator {file}: it does not take latent vectors of {latent_dim} numbers (their size is -nd): "
                f"{last_line(error)}"
            ) from error
        if latents.shape != (2, latent_dim):
            raise UsageError(f"--generator {file}: its mapping makes {tuple(latents.shape)} of (2, {latent_dim})")
        if made.dim() != 4 or len(made) != 1 or not bool(made.isfinite().all()):
            raise UsageError(
                f"--generator {file}: one latent vector gave {tuple(made.shape)}, not finite images (1, channels, "
                "height, width)"
            )
        if made.shape[1] not in (1, shape[0]) and (made.shape[1], shape[0]) != (3, 1):
            raise UsageError(f"--generator {file}: cannot make {shape[0]} channels of its images' {made.shape[1]}")

    def latents(self, count: int, draw: torch.Generator) -> Tensor:
        """Typical latent vectors (count, W): standard normal, through the generator's ``mapping`` if it has one."""
        noise = torch.randn(count, self.latent_dim, generator=draw).to(self.device)
        with torch.no_grad():
            return noise if self.mapping is None else self.mapping(noise).float()

    def images(self, latents: Tensor) -> Tensor:
        """Images (n, C, H, W) in [-1, 1], shaped like the clients', of latent vectors (n, W)."""
        made = torch.cat([self._run(latent[None]) for latent in latents])  # one by one: any exported batch size of 1
        return like_clients(made.clamp(-1, 1), self.shape)

    def _run(self, latents: Tensor) -> Tensor:
        with torch.no_grad():
            return self.module(latents).float()


# What TorchScript can reach the disk with; any operator of a namespace other than torch's own might.
_REACHES_OUT = re.compile(rb"\b(save|from_file|classes)\b|\bops\s*\.\s*(?!(?:aten|prim|quantized)\b)\w*")


def checked_torchscript(file: Path) -> io.BytesIO:
    """The archive in ``file``, written anew so that torch finds in it what was looked at here, and nothing else.

    Raises:
        UsageError: its code, which runs as soon as it is loaded, names an operator that can read or write files.
    """
    checked = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(checked, "w") as copy:
        if sum(member.file_size for member in archive.infolist()) > most_unpacked(file):
            raise ValueError("it would unpack to far more than its size")
        for member in archive.infolist():
            if member.filename.endswith(".debug_pkl"):  # lines of the author's Python, for error messages
                continue
            content = archive.read(member)
            found = "code/" in member.filename.lower() and _REACHES_OUT.search(content)
            if found:
                raise UsageError(
                    f"--generator {file} is refused: its code uses {found[0].decode()!r}, which can read or write "
                    "files; --trust_generator loads it all the same"
                )
            copy.writestr(member.filename, content)
    checked.seek(0)
    return checked


def load_generator(file: Path, device: Any, trusted: bool = False) -> Callable[[Tensor], Tensor]:
    """The module in ``file``: torch.export's if it ends in .pt2, TorchScript otherwise. Nothing else is unpickled.

    Raises:
        UsageError: there is no such file, it holds something else, or it must be ``trusted`` and is not.
    """
    if not file.is_file():
        raise UsageError(f"--generator {file}: there is no such file")
    exported = file.suffix == ".pt2"
    if exported and not trusted:
        raise UsageError(
            f"--generator {file}: loading a program of torch.export can run any code; for a file from people whose "
            "Python you would run, add --trust_generator, otherwise take TorchScript"
        )
    log = logging.getLogger("torch.export")
    disabled, log.disabled = log.disabled, True  # it writes a traceback of what is said below
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions of torch advise against TorchScript
            if exported:
                program = torch.export.load(str(file))
                return move_to_device_pass(program, device).module()  # also what its code makes or holds as constants
            return torch.jit.load(str(file) if trusted else checked_torchscript(file), map_location=device).eval()
    except UsageError:
        raise
    except Exception as error:
        kind = "a program of torch.export.save" if exported else "TorchScript of torch.jit.save"
        raise UsageError(
            f"--generator {file}: not {kind} ({last_line(error)}); docs/fedktl.md says how to make one"
        ) from error
    finally:
        log.disabled = disabled


def last_line(error: Exception) -> str:
    """The last line of an error's message, where TorchScript says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def like_clients(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images (n, c, h, w) with the channels and the size ``shape`` (C, H, W): grey or tripled, resized, centre-cropped.

    The size is changed by one factor, so that nothing is distorted, until the images just cover the wanted area.
    """
    channels, height, width = shape
    if images.shape[1] == 3 and channels == 1:
        images = (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    elif images.shape[1] == 1:
        images = images.expand(-1, channels, -1, -1)
    factor = max(height / images.shape[2], width / images.shape[3])
    size = (max(height, round(images.shape[2] * factor)), max(width, round(images.shape[3] * factor)))
    if size != tuple(images.shape[2:]):
        images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return images[:, :, top : top + height, left : left + width].contiguous()
