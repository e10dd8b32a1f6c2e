"""What `bench` is asked for: its command line, as values, and which options go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from vgg16gpu.bench.pipeline.wanted import PEERS as FOLDER_PEERS
from vgg16gpu.bench.records.plot import check_plot
from vgg16gpu.bench.serving.peer import NAME as FASTAPI
from vgg16gpu.io.files import check_outputs


@dataclass(frozen=True)
class Options:
    """The command line, as it is."""

    model: str | None
    device: str
    devices: tuple[str, ...] | None
    precisions: tuple[str, ...]
    kernels: str
    size: tuple[int, int] | None
    outputs: tuple[str, ...] | None
    batches: tuple[int, ...]
    iterations: tuple[int, ...]
    repeats: int | None
    seconds: float | None
    sustained: float | None
    against: tuple[str, ...]
    compiled: bool
    cold_start: bool
    pipeline: Path | None
    timeline: Path | None
    memory: tuple[int, ...]
    decode: tuple[str, ...]
    server: str | None
    clients: tuple[int, ...]
    rates: tuple[int, ...]
    bodies: tuple[str, ...]
    connections: int | None
    processes: int | None
    client_cores: tuple[int, ...]
    pictures: Path | None
    token_file: Path | None
    output: Path | None
    plot: Path | None
    compare: Path | None
    threshold: float
    as_json: bool

    def check(self) -> None:
        """Complain about options and files now rather than after minutes of measuring."""
        if self.server:
            self._check_server()
        elif given := [name for name, value in self._of_a_server.items() if value is not None]:
            raise click.UsageError(f"{', '.join(given)}: of --server URL; name a server, or leave them out")
        if self.timeline:
            self._check_timeline()
        if self.devices:
            self._check_devices()
        if self.pipeline:
            self._check_pipeline()
        elif given := [name for name, value in self._of_a_folder.items() if value is not None]:
            raise click.UsageError(f"{', '.join(given)}: of --pipeline DIR; name a folder of pictures, or leave it out")
        if self.outputs and (self.against or self.cold_start):
            named = "--against" if self.against else "--cold-start"
            raise click.UsageError(f"{named} measures whole models: it goes without --outputs")
        check_outputs({"--output": self.output, "--plot": self.plot, "--timeline": self.timeline})
        if self.plot:
            check_plot(self.plot)

    @property
    def _of_one_model(self) -> dict[str, object]:
        """What only the benchmark of a model by itself takes; None where it is not given."""
        return {
            "--outputs": self.outputs,
            "--iterations": self.iterations or None,
            "--sustained": self.sustained,
            "--compile": self.compiled or None,
            "--cold-start": self.cold_start or None,
            "--plot": self.plot,
            "--compare": self.compare,
        }

    @property
    def _of_a_server(self) -> dict[str, object]:
        """What only the benchmark of a server takes; None where it is not given."""
        return {
            "--clients": self.clients or None,
            "--rates": self.rates or None,
            "--bodies": self.bodies or None,
            "--connections": self.connections,
            "--processes": self.processes,
            "--client-cores": self.client_cores or None,
            "--pictures": self.pictures,
            "--token-file": self.token_file,
            f"--against {FASTAPI}": self.against if FASTAPI in self.against else None,
        }

    @property
    def _of_a_folder(self) -> dict[str, object]:
        """What only the benchmark of one device and a folder takes; None where it is not given."""
        return {"--memory": self.memory or None, "--decode": self.decode or None}

    def _check_server(self) -> None:
        others = {**self._of_one_model, "--devices": self.devices, "--pipeline": self.pipeline, "--size": self.size}
        del others["--plot"]
        others |= {**self._of_a_folder, "--repeats": self.repeats}
        _refuse("--server measures a server that is there", others)
        self._check_one_batch("--server")
        if unknown := [name for name in self.against if name != FASTAPI]:
            raise click.UsageError(f"--against {', '.join(unknown)}: --server is compared with {FASTAPI} alone")
        if self.against and self.model is None:
            raise click.UsageError(f"--against {FASTAPI} loads the model by itself: name the MODEL that is served")

    def _check_one_batch(self, named: str) -> None:
        if len(self.batches) > 1:
            raise click.UsageError(f"{named} runs one batch size, and --batch has {len(self.batches)}; give one")

    def _check_timeline(self) -> None:
        others = {**self._of_one_model, "--devices": self.devices, "--pipeline": self.pipeline, "--server": self.server}
        del others["--outputs"]
        others |= {"--against": self.against or None, "--seconds": self.seconds, "--repeats": self.repeats}
        _refuse("--timeline draws a run of one device", others)
        self._check_one_batch("--timeline")

    def _check_devices(self) -> None:
        others: dict[str, object] = {"--against": self.against or None, **self._of_a_folder}
        if not self.pipeline:
            others |= self._of_one_model
        _refuse("--devices measures how several share the work", others)
        self._check_one_batch("--devices")

    def _check_pipeline(self) -> None:
        _refuse("--pipeline measures a folder to its rows", self._of_one_model)
        self._check_one_batch("--pipeline")
        if unknown := [name for name in self.against if name not in FOLDER_PEERS]:
            raise click.UsageError(
                f"--against {', '.join(unknown)}: --pipeline is compared with {', '.join(FOLDER_PEERS)} alone"
            )


def _refuse(what: str, others: Mapping[str, object]) -> None:
    """Raise UsageError for options that are given, and do not go with this benchmark."""
    if given := [name for name, value in others.items() if value is not None]:
        raise click.UsageError(f"{what}: it goes without {', '.join(given)}")
