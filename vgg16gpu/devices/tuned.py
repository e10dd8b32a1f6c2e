"""Tables of the tiles that were measured to be fastest on a card: where they lie, how they are read and written.

The package ships tables of some cards in `TABLES`; `vgg16gpu tune` writes one into the user's cache folder, which holds
only for the card whose exact name it bears. A card without a table in the package takes that of the nearest card of its
compute capability. The user's own word on a problem goes before the package's.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vgg16gpu.errors import DeviceError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.documents import OTHER_FORM, read_json
from vgg16gpu.io.foreign.lines import NotReadError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import Tiles

TABLES: Final = Path(__file__).parents[1] / "data" / "tuned"
FOLDER: Final = "tuned"  # in the cache folder
FLOAT32: Final = "float32"  # the entry of a card, not of a layer: the kernels that are faster in float32
FLOAT32_KERNELS: Final = ("mma", "ffma")  # pairs of float16 on tensor cores, or float32 products
ENVIRONMENT: Final = "VGG16GPU_FLOAT32"  # one of these, whatever the table says

_log = logging.getLogger(__name__)


class Kin(NamedTuple):
    """What makes a card the relative of another one."""

    compute_capability: tuple[int, int]
    multiprocessors: int


def table(gpu: str, cache: Path, package: Path = TABLES, kin: Kin | None = None) -> Tiles:
    """Return the tiles known for the card of this name, by problem. A damaged table is ignored, with a warning.

    kin: what is known of the card; with it the nearest card's table of the package is taken where the card has none.
    """
    path = package / file_name(gpu)
    shipped = read(path, gpu) if path.exists() or kin is None else nearest(kin, package)
    return {**shipped, **read(own_path(gpu, cache), gpu)}


def nearest(kin: Kin, package: Path = TABLES, without: str = "") -> Tiles:
    """Return the table of the card with the nearest number of multiprocessors, of the same compute capability.

    Of two as near it is the first by name: the H100's, whose nets take as long with the H200's. without: the name of a
    card whose table is not looked at.
    """
    found: list[tuple[int, str, Tiles]] = []
    for path in package.glob("*.json"):
        if (content := _content(path)) and content["gpu"] != without:
            device = content["made"].get("device", {})
            if tuple(device.get("compute_capability", ())) == kin.compute_capability:
                distance = abs(device.get("multiprocessors", 0) - kin.multiprocessors)
                found.append((distance, content["gpu"], content["tiles"]))
    tiles = min(found, key=lambda entry: entry[:2])[2] if found else {}
    return {name: entry for name, entry in tiles.items() if name != FLOAT32}  # cards differ in more than their size


def float32_kernels(tiles: Tiles) -> str | None:
    """Return the kernels, of FLOAT32_KERNELS, that a card is to use in float32; None where nobody has measured it.

    The environment's word goes before the table's. Raises DeviceError where it is none of these.
    """
    if asked := os.environ.get(ENVIRONMENT):
        if asked not in FLOAT32_KERNELS:
            raise DeviceError(
                f"environment variable {ENVIRONMENT} is {shown(asked)}; accepted: {', '.join(FLOAT32_KERNELS)}"
            )
        return asked
    found = tiles.get(FLOAT32, {}).get("kernels")
    return found if isinstance(found, str) and found in FLOAT32_KERNELS else None


def own_path(gpu: str, cache: Path) -> Path:
    """Return the path of the user's own table of a card, in the cache folder `cache`."""
    return cache / FOLDER / file_name(gpu)


def file_name(gpu: str) -> str:
    """Return the file name of a card's table."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", gpu) + ".json"


def write(path: Path, gpu: str, tiles: Tiles, made: Mapping[str, Any]) -> None:
    """Write a table; what another table at `path` says of other problems stays. Raises ModelError."""
    merged = {**read(path, gpu), **tiles}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(merged[name])}" for name in sorted(merged))
    text = f'{{\n "gpu": {json.dumps(gpu)},\n "made": {json.dumps(made)},\n "tiles": {{\n{lines}\n }}\n}}\n'
    with atomic_writer(path) as stream:
        stream.write(text.encode())


def read(path: Path, gpu: str) -> Tiles:
    """Return the tiles of this card's table; none of another's, or where there is no such file."""
    content = _content(path)
    return dict(content["tiles"]) if content and content["gpu"] == gpu else {}


def _content(path: Path) -> dict[str, Any] | None:
    """Return a table's content; None without one, or where it is damaged, which is logged."""
    try:
        content: dict[str, Any] = read_json(path)
        if not all(isinstance(entry, dict) and _is_flat(entry) for entry in content["tiles"].values()):
            raise TypeError("an entry is no tile")
        return {"gpu": str(content["gpu"]), "made": dict(content.get("made", {})), "tiles": content["tiles"]}
    except OTHER_FORM as error:
        if isinstance(error, NotReadError) and error.is_missing:
            return None
        _log.warning("%s is no table of tiles (%s); it is ignored: delete it, or run tune again", path, error)
        return None


def _is_flat(entry: Mapping[str, object]) -> bool:
    return all(isinstance(value, int | str) for value in entry.values())
