"""`vgg16gpu cache`: the compiled kernels that are kept."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vgg16gpu.devices.cache import KernelCache, cache_dir

KINDS = ("cpu", "cuda")


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove every compiled kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cache_command(clear: bool, as_json: bool) -> None:
    """Show where compiled kernels are kept, how many there are and how large; or remove them.

    VGG16GPU_CACHE names another folder.
    """
    caches = {kind: KernelCache(kind) for kind in KINDS}
    removed = sum(cache.clear() for cache in caches.values()) if clear else 0
    kinds = {kind: {"entries": len(cache.entries()), "nbytes": cache.size()} for kind, cache in caches.items()}
    if as_json:
        click.echo(json.dumps({"path": str(cache_dir()), "removed": removed, "kinds": kinds}, indent=1))
        return
    console = Console()
    console.print(escape(str(cache_dir())), highlight=False, soft_wrap=True)
    if clear:
        console.print(f"Removed {removed} compiled kernels.", highlight=False)
    table = Table("device", "kernels", "MB", box=None, pad_edge=False)
    for kind, sizes in kinds.items():
        table.add_row(kind, str(sizes["entries"]), f"{sizes['nbytes'] / 1e6:.1f}")
    console.print(table)
