"""Tables of the tiles that were measured to be fastest on a card: where they lie, how they are read and written.

The package ships a table for each card in `TABLES`; `vgg16gpu tune` writes one into the user's cache folder. Both hold
only for the card whose exact name they bear. The user's own word on a problem goes before the package's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vgg16gpu.io.files import atomic_writer
from vgg16gpu.program.device_properties import Tiles

TABLES: Final = Path(__file__).parents[1] / "data" / "tuned"
FOLDER: Final = "tuned"  # in the cache folder

_log = logging.getLogger(__name__)


def table(gpu: str, cache: Path, package: Path = TABLES) -> Tiles:
    """The tiles known for the card of this name, by problem. A damaged table is passed over, with a warning."""
    return {**_read(package / file_name(gpu), gpu), **_read(own_path(gpu, cache), gpu)}


def own_path(gpu: str, cache: Path) -> Path:
    """Where the user's own table of a card lies, in the cache folder `cache`."""
    return cache / FOLDER / file_name(gpu)


def file_name(gpu: str) -> str:
    """What the table of a card is called."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", gpu) + ".json"


def write(path: Path, gpu: str, tiles: Tiles, made: Mapping[str, Any]) -> None:
    """Write a table; what another table at `path` says of other problems stays. Raises ModelError."""
    merged = {**_read(path, gpu), **tiles}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(merged[name])}" for name in sorted(merged))
    text = f'{{\n "gpu": {json.dumps(gpu)},\n "made": {json.dumps(made)},\n "tiles": {{\n{lines}\n }}\n}}\n'
    with atomic_writer(path) as stream:
        stream.write(text.encode())


def _read(path: Path, gpu: str) -> Tiles:
    try:
        content = json.loads(path.read_bytes())
        if content["gpu"] != gpu:
            return {}
        tiles = content["tiles"]
        if not all(isinstance(entry, dict) and _is_flat(entry) for entry in tiles.values()):
            raise TypeError("an entry is no tile")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("%s is no table of tiles (%s); it is ignored: delete it, or run tune again", path, error)
        return {}
    return dict(tiles)


def _is_flat(entry: Mapping[str, object]) -> bool:
    return all(isinstance(value, int | str) for value in entry.values())
