"""`vgg16gpu cache`: what is kept: compiled kernels, the net that the lab has trained, PyCUDA's wheel."""

from __future__ import annotations

import click

from vgg16gpu.cli.common.options import json_option
from vgg16gpu.cli.common.show import add_row, console, print_json, table
from vgg16gpu.devices.cache import KernelCache, cache_dir
from vgg16gpu.devices.cuda.install.wheel import CACHE_KIND

KINDS = ("cpu", "cuda", "lenet", CACHE_KIND)


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove every file.")
@json_option
def cache_command(clear: bool, as_json: bool) -> None:
    """Show where compiled kernels, the lab's trained net and PyCUDA's wheel are kept, and their size; or remove them.

    VGG16GPU_CACHE names another folder.
    """
    caches = {kind: KernelCache(kind) for kind in KINDS}
    removed = sum(cache.clear() for cache in caches.values()) if clear else 0
    kinds = {kind: {"entries": len(cache.entries()), "nbytes": cache.size()} for kind, cache in caches.items()}
    if as_json:
        print_json({"path": str(cache_dir()), "removed": removed, "kinds": kinds})
        return
    screen = console()
    screen.print(str(cache_dir()), markup=False, soft_wrap=True)
    if clear:
        screen.print(f"Removed {removed} files.")
    shown = table(["for", "files", "MB"], right=["files", "MB"])
    for kind, sizes in kinds.items():
        add_row(shown, kind, sizes["entries"], f"{sizes['nbytes'] / 1e6:.1f}")
    screen.print(shown)
