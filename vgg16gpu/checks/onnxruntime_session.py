"""The one place that opens onnxruntime, so that its answers are the same on every processor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vgg16gpu.devices.cpu.device import named_threads
from vgg16gpu.errors import Error, ModelError

CPU_PROVIDER: Final = "CPUExecutionProvider"

# An x86 CPU without VNNI adds pairs of u8 * s8 products in 16 bits, which saturate; this asks for the exact way there.
EXACT_INTEGERS: Final = "session.x64quantprecision"
_WEIGHTS_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_ERRORS_ONLY, _FATAL_ONLY = 3, 4  # onnxruntime's log severities


def open_session(
    model: Path | bytes,
    *,
    provider: str = CPU_PROVIDER,
    settings: Mapping[str, str] | None = None,
    weights_folder: Path | None = None,
    threads: int | None = None,
    optimise: bool = True,
    arena: bool = True,
    quiet: bool = False,
) -> Any:
    """Open an onnxruntime.InferenceSession of a model file, or of a model's bytes.

    `settings`: the provider's own options. `weights_folder`: where external data of a model given as bytes lies.
    `threads`: of one operator and of the session (default: VGG16GPU_THREADS, else onnxruntime's choice). Without
    `optimise` each node is computed as it stands. Without `arena` memory is freed at once. `quiet`: not even errors are
    logged; what stops the session is raised in any case. Raises Error when onnxruntime is missing, and ModelError when
    it refuses the model.
    """
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY if quiet else _ERRORS_ONLY
    options.add_session_config_entry(EXACT_INTEGERS, "1")
    options.enable_cpu_mem_arena = arena
    threads = threads or _threads_from_environment()
    if threads:
        options.intra_op_num_threads = options.inter_op_num_threads = threads
    if not optimise:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if isinstance(model, Path) and not _is_utf8(model):  # onnxruntime takes no other name
        weights_folder = weights_folder or model.parent
        model = model.read_bytes()
    if weights_folder is not None and _is_utf8(weights_folder):
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights_folder))
    source = model if isinstance(model, bytes) else str(model)
    try:
        return runtime.InferenceSession(source, options, providers=[(provider, dict(settings or {}))])
    except Exception as error:  # its exceptions share no base class but this one
        raise ModelError(f"onnxruntime refuses the model: {first_line(error)}") from error


def import_onnxruntime() -> Any:
    """Import onnxruntime. Raises Error where it is not installed."""
    try:
        import onnxruntime  # noqa: PLC0415 - needed by checks only
    except ImportError as error:
        raise Error(
            "onnxruntime is not installed, and it computes the references: `pip install onnxruntime`, "
            "or give --references"
        ) from error
    return onnxruntime


def _is_utf8(path: Path) -> bool:
    """Return whether the file system's name of a path, which may be any bytes, is UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _threads_from_environment() -> int:
    """Return the threads of the cpu device; 0 where they are not limited (or not understood: the device says so)."""
    return named_threads() or 0


def first_line(error: Exception) -> str:
    """Return onnxruntime's message without the lines about its own sources."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
