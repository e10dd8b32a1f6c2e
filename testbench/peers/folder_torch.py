"""A folder of pictures through torch and torchvision: what a user would write in place of `infer`.

`python -m testbench.peers.folder_torch ASKED.json ANSWER.json`, started by folder.py. The model computes channels
last with cudnn.benchmark; the five best classes of each picture come to the host. Two ways of getting there:

DataLoader: Pillow and torchvision's transforms in one process a core, pinned memory, four batches ahead for each.
nvJPEG: threads read files, torchvision decodes batches of them on the GPU, each picture is resized by itself there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, PILToTensor, Resize

from testbench.peers.folder import BATCH, LOADER, TOP, FolderSetting
from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.torch import TYPES, arithmetic
from vgg16gpu.bench.peers.torch_net import module, tensor
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.preprocessing import resize_target

Tensor: TypeAlias = Any
Classes: TypeAlias = Callable[[Tensor], Tensor]

_AHEAD = 4  # batches of each process
_WARM_UP = 3  # runs: cuDNN tries its algorithms in the first


class Pictures(Dataset):  # type: ignore[misc]  # torch is not typed here
    """The folder's files as pixels of the network's size, uint8 (C, H, W)."""

    def __init__(self, setting: FolderSetting) -> None:
        self._files, self._mode = setting.files, "L" if setting.shape[0] == 1 else "RGB"
        self._transform = Compose([*_fitting(setting), PILToTensor()])

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self._files[index]) as picture:
            return self._transform(picture.convert(self._mode))


def main(asked: str, answer: str) -> None:
    """Run the way that is asked for; write what was found, or why it refuses."""
    try:
        found: dict[str, Any] = _measured(FolderSetting.from_json(Path(asked).read_text()))
    except PeerError as error:
        found = {"refused": str(error)}
    Path(answer).write_text(json.dumps(found))


def _measured(setting: FolderSetting) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise PeerError("torch is installed without CUDA, or does not see the GPU")
    torch.backends.cudnn.benchmark = True
    device = torch.device(f"cuda:{setting.ordinal}")
    with torch.cuda.device(device), torch.no_grad():
        classes = _network(setting, device)
    with torch.cuda.device(device), torch.inference_mode(), arithmetic(tf32=False):
        blank = torch.zeros((BATCH, *setting.shape), dtype=torch.uint8, device=device)
        for count in (BATCH, len(setting.files) % BATCH or BATCH):  # the last batch is another problem to cuDNN
            for _ in range(_WARM_UP):
                classes(blank[:count])
        if setting.way != LOADER:  # the decoder of the card starts with its first picture
            next(_decoded_there(replace(setting, files=setting.files[:1]), device))
        torch.cuda.synchronize()
        batches = _loaded(setting, device) if setting.way == LOADER else _decoded_there(setting, device)
        start = time.perf_counter()
        found = [classes(batch).cpu() for batch in batches]
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "best": torch.cat(found)[:, 0].tolist()}


def _network(setting: FolderSetting, device: Any) -> Classes:
    """uint8 (N, C, H, W) on the card to the best classes of each, (N, TOP)."""
    type_ = TYPES[setting.precision]

    def make(array: Array) -> Tensor:
        made = tensor(array).to(device, type_)
        return made.to(memory_format=torch.channels_last) if array.ndim == 4 else made

    net = module(Model(setting.model).graph(), make)
    preprocess = setting.fitting
    mean, std = (
        255 * torch.tensor(values, device=device).view(1, -1, 1, 1)
        for values in (preprocess.unit_mean, preprocess.unit_std)
    )

    def classes(pixels: Tensor) -> Tensor:
        x = pixels.flip(1) if preprocess.channel_order == "bgr" else pixels
        x = ((x.float() - mean) / std).to(type_).contiguous(memory_format=torch.channels_last)
        scores = net(x).float()
        return scores.topk(min(TOP, scores.shape[1])).indices

    return classes


def _loaded(setting: FolderSetting, device: Any) -> Iterator[Tensor]:
    loader = DataLoader(
        Pictures(setting), batch_size=BATCH, num_workers=setting.workers, pin_memory=True, prefetch_factor=_AHEAD
    )
    for batch in loader:
        yield batch.to(device, non_blocking=True)


def _decoded_there(setting: FolderSetting, device: Any) -> Iterator[Tensor]:
    mode = ImageReadMode.GRAY if setting.shape[0] == 1 else ImageReadMode.RGB
    transform = Compose(_fitting(setting))
    with ThreadPoolExecutor(setting.workers) as threads:
        for files in _in_batches(threads.map(read_file, setting.files)):
            pictures = decode_jpeg(files, mode=mode, device=device)
            yield torch.stack([transform(picture) for picture in pictures])


def _in_batches(items: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    batch: list[Tensor] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _fitting(setting: FolderSetting) -> list[Any]:
    """Resize and crop, or stretch, as the model wants it: by Pillow on its pictures, antialiased on tensors too."""
    height, width = setting.shape[1:]
    preprocess = setting.fitting
    interpolation = InterpolationMode[preprocess.interpolation.upper()]
    if preprocess.fit == "stretch":
        return [Resize((height, width), interpolation, antialias=True)]
    if height != width:
        raise PeerError(f"torchvision crops squares from the shorter side, and the model takes {height}x{width}")
    return [Resize(resize_target((height, width))[0], interpolation, antialias=True), CenterCrop((height, width))]


if __name__ == "__main__":
    main(*sys.argv[1:])
