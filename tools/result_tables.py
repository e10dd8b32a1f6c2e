"""The tables of recorded benchmarks as Markdown: short ones for the README, whole ones for docs/performance.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.bench.records.record import Content, batches, fastest, headline, kinds, peers, precisions, select, version

_COMPILED = {"torch autocast bf16": "bf16", "torch as it comes (TF32)": "TF32"}  # the ways that are compiled
_CALLED, _GRAPH = "batch 1, as called", "CUDA graph"  # the column of the public API, and the way that it shows
RESULTS = Path(__file__).resolve().parents[1] / "testbench" / "results"

# Milliseconds per image, 3x244x244, that the report which started this project published for its own machines.
PUBLISHED = (
    ("naive kernels, partial sums on the host", 20803),
    ("sums in shared memory", 1198),
    ("onnxruntime, a PC's CPU", 229),
)


@dataclass(frozen=True)
class Match:
    """Ours in one precision beside the fastest peer of one arithmetic at every batch size; None where there is none."""

    precision: str
    arithmetic: str  # "TF32" of peers in fp32, else the precision
    ours: tuple[Content | None, ...]
    theirs: tuple[Content | None, ...]

    @property
    def rival(self) -> str:
        """What the peers are called."""
        random = any(record and record["unchecked"] for record in self.theirs)
        return f"best {self.arithmetic} peer{', random data' if random else ''}"

    @property
    def ratios(self) -> tuple[float | None, ...]:
        """Their time by ours at every batch size."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return tuple(b["median_s"] / a["median_s"] if a and b else None for a, b in pairs)

    @property
    def error(self) -> float | None:
        """The largest of the peers; None where nothing was checked."""
        return max((each["error"] for each in self.theirs if each and each["error"] is not None), default=None)


def matches(bench: Content) -> list[Match]:
    """Everything that is to be compared, in order; without peers ours alone."""
    return [match for precision in precisions(bench) for match in _matches(bench, precision)]


def _matches(bench: Content, precision: str) -> Iterator[Match]:
    records = [headline(bench, precision, batch, Method.BACK_TO_BACK) for batch in batches(bench)]
    ours = tuple(fastest(record for record in found if record["name"] == NAME) for found in records)
    strict = "strict fp32" if precision == "fp32" else precision
    yield Match(precision, strict, ours, tuple(fastest(peers(found)) for found in records))
    tf32 = tuple(fastest(peers(found, tf32=True)) for found in records)
    if any(tf32):
        yield Match(precision, "TF32", ours, tf32)


def figure(value: float) -> str:
    """Three significant digits, trailing zeros kept."""
    return f"{value:#.3g}".rstrip(".")


def row(label: str, cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {label} | {' | '.join(cells)} |\n"


def head(bench: Content, title: str, first: Sequence[str] = ()) -> str:
    """The first lines of a table with a column for each batch size, behind those of `first`."""
    names = [*first, *(f"batch {batch}{_load(bench, batch)}" for batch in batches(bench))]
    return row(title, names) + row("---", ["---:"] * len(names))


def shape(bench: Content) -> str:
    """Of an image."""
    return "x".join(map(str, bench["model"]["input_shape"]))


def _load(bench: Content, batch: int) -> str:
    """What a batch size's column says of the regime."""
    shown = [headline(bench, precision, batch, Method.BACK_TO_BACK) for precision in precisions(bench)]
    loaded = any(records and records[0]["regime"] == Regime.SUSTAINED for records in shown)
    return f", {Regime.SUSTAINED}" if loaded else ""


def _ms(record: Content) -> str:
    return figure(1000 * record["median_s"])


# For the README


def short_table(bench: Content, public: Content | None = None) -> str:
    """Return a row for each precision and arithmetic of one card, ours and the best peer's in one cell.

    `public` is a record of testbench/measure/public_api.py of the same card: a column of what a caller gets at batch 1.
    """
    text = head(bench, "ms per batch: **ours** / best peer's", [_CALLED] if public else [])
    for match in matches(bench):
        called = public and called_ms(public, match.precision)
        text += _short_row(match, [figure(called) if called else ""] if public else [])
    return text


def called_ms(public: Content, precision: str) -> float | None:
    """Return the milliseconds of a replayed CUDA graph of `Engine.run` at batch 1; None where it was not measured."""
    wanted = {"precision": precision, "batch": 1, "way": _GRAPH}
    found = [call["median_ms"] for call in public["calls"] if "median_ms" in call and wanted.items() <= call.items()]
    return found[0] if found else None


def _require_same_columns(benches: Sequence[Content]) -> None:
    for bench in benches:
        if batches(bench) != batches(benches[0]):
            raise ValueError(f"{bench['device']['name']} was measured at batch {batches(bench)}: no rows of one table")


def _short_row(match: Match, first: Sequence[str]) -> str:
    pairs = zip(match.ours, match.theirs, strict=True)
    cells = [" / ".join([*([f"**{_ms(a)}**"] if a else []), *([_named(b)] if b else [])]) for a, b in pairs]
    return row(f"{match.precision}{f' / {match.rival}' if any(match.theirs) else ''}", [*first, *cells])


def short_text(bench: Content, public: Content | None = None) -> str:
    """Return what the columns are, who took part and where ours is not the fastest, in a sentence each."""
    called = (
        f' "As called" is ours alone: `Engine.run(x, out=out, wait=False)`, captured in a CUDA graph ({_when(public)}).'
        if public
        else ""
    )
    return (
        f"VGG16, {shape(bench)}, one {bench['device']['name']} ({_when(bench)}).{called} All other times are of "
        f"kernels alone, input in place; a peer's time is that of its fastest variant. Bold is ours, also where it is "
        f"slower; sustained is after seconds of load. {_peers(bench)} {_lost_to(bench)}".rstrip()
        + "\n"
    )


def _peers(bench: Content) -> str:
    """Return the peers that were timed on the device, with their versions, and those that were not."""
    timed = {each["name"]: None for each in select(bench, method=Method.BACK_TO_BACK) if each["name"] != NAME}
    missing = dict.fromkeys(each["name"] for each in bench["absent"] if each["name"] not in timed)
    text = f"Peers: {', '.join(f'{name} {version(bench, name)}'.strip() for name in timed) or 'none'}"
    return f"{text}; not timed: {', '.join(missing)}." if missing else f"{text}."


def _named(record: Content) -> str:
    return f"{_ms(record)} {record['name']}"


def _lost_to(bench: Content) -> str:
    """Where a peer is faster, in a sentence."""
    found = matches(bench)
    lost = []
    for match in found:
        faster = [
            str(batch)
            for batch, a, b in zip(batches(bench), match.ours, match.theirs, strict=True)
            if a and b and b["median_s"] < a["median_s"]
        ]
        if faster:
            errors = "" if match.arithmetic == match.precision else f" ({_errors(bench, match)})"
            lost.append(f"{match.precision} than the {match.rival}{errors} at batch {', '.join(faster)}")
    if lost:
        return f"Here ours is slower in {'; '.join(lost)}."
    if not any(any(match.theirs) for match in found):
        return ""
    untried = "" if any(match.arithmetic == "TF32" for match in found) else " TF32 was not measured."
    return f"Here ours is the fastest everywhere.{untried}"


def _errors(bench: Content, match: Match) -> str:
    ours = bench["verification"]["worst_errors"].get(match.precision)
    texts = [f"{who} {error:.0e}" for who, error in (("error", match.error), ("ours", ours)) if error is not None]
    return ", ".join(texts)


# For docs/performance.md


def whole_table(bench: Content) -> str:
    """Ours, the best peer and the ratio, by precision, arithmetic and batch size."""
    text = head(bench, f"VGG16, {shape(bench)}, ms per batch on one {bench['device']['name']}, back to back")
    seen: set[str] = set()
    for match in matches(bench):
        if match.precision not in seen:
            text += row(
                f"**{match.precision}, vgg16gpu**", [f"**{_ms(record)}**" if record else "" for record in match.ours]
            )
        seen.add(match.precision)
        if any(match.theirs):
            text += row(_rivals(bench, match), [_named(record) if record else "" for record in match.theirs])
            text += row("ratio", [f"{each:.2f}x" if each else "" for each in match.ratios])
            if any(cells := [_energies(*pair) for pair in zip(match.ours, match.theirs, strict=True)]):
                text += row("mJ per image, ours / theirs", cells)
    return text


def _energies(ours: Content | None, theirs: Content | None) -> str:
    """What the card takes for an image, median power times median time, where power was read of both; else nothing."""
    first, second = _millijoules(ours), _millijoules(theirs)
    return f"{figure(first)} / {figure(second)}" if first and second else ""


def _millijoules(record: Content | None) -> float | None:
    watts = (record["gpu"] or {}).get("power_w") if record else None
    return 1000 * watts * record["median_s"] / record["batch"] if record and watts else None


def _rivals(bench: Content, match: Match) -> str:
    tf32 = match.arithmetic == "TF32"
    candidates = peers(select(bench, precision=match.precision, method=Method.BACK_TO_BACK), tf32=tf32)
    listed = ", ".join(f"{name} {version(bench, name)}".strip() for name, _ in kinds(candidates))
    error = "" if match.error is None else f", error {match.error:.1e}"
    return f"{match.rival} of {listed}{error}"


def whole_text(bench: Content) -> str:
    """When and how a record was made, what is missing in it, and ours in short bursts."""
    where: dict[str, Any] = bench["environment"]
    text = (
        f"Measured {_when(bench)}, driver {where['cuda']['driver']}, CUDA {where['cuda']['cuda']}, "
        f"PyCUDA {where['versions']['pycuda']}. Errors of ours: {_our_errors(bench)}."
    )
    if bench["cold_start"]:
        text += f" Cold start to answer: {1000 * bench['cold_start']['to_result_s']:.0f} ms."
    if failures := [failure.partition(":")[0] for failure in bench["failures"]]:
        text += f" Not timed, for the reasons in the record: {'; '.join(failures)}."
    text += f" Peers: {bench['methods']['peers']}."
    if select(bench, regime=Regime.SUSTAINED):
        text += f" Sustained: {bench['methods'][Regime.SUSTAINED.value].partition(';')[0]}."
    return "".join([text, "\n", *_bursts(bench), *map(_gap, bench["absent"])])


def _our_errors(bench: Content) -> str:
    errors = bench["verification"]["worst_errors"].items()
    return ", ".join(f"{error:.1e} ({precision})" for precision, error in errors if error is not None) or "not checked"


def _bursts(bench: Content) -> Iterator[str]:
    """Ours in the cool regime, at the sizes whose columns have the other one."""
    sizes = [batch for batch in batches(bench) if _load(bench, batch)]
    keys = {"name": NAME, "method": Method.BACK_TO_BACK, "regime": Regime.COOL}
    parts = []
    for precision in precisions(bench):
        found = [fastest(select(bench, precision=precision, batch=batch, **keys)) for batch in sizes]
        if any(found):
            parts.append(f"{precision} {' and '.join(_ms(record) for record in found if record)}")
    if parts:
        shown = " and ".join(map(str, sizes))
        yield f"\nIn short bursts, before the card is warm, batch {shown}: {', '.join(parts)}.\n"


def _gap(absent: Content) -> str:
    where = [absent["precision"] or "", f"batch {absent['batch']}" if absent["batch"] else "", absent["variant"]]
    return f"\nWithout a time: {', '.join([absent['name'], *filter(None, where)])}: {absent['reason']}.\n"


def plain_table(plain: Content) -> str:
    """Return the layers of a record of testbench.measure.plain_path beside the engine's, a pool with what it pools."""
    engines = list(plain["engine"])
    text = row("ms", ["kernels/plain", *(f"engine, {precision}" for precision in engines)])
    text += row("---", ["---:"] * (1 + len(engines)))
    fresh = {precision: set[int]() for precision in engines}  # the engine's layers that have their cell
    for name, layers in _named_layers(plain["plain"]["layers"]):
        cells = [figure(sum(layer["ms"] for layer in layers))]
        for precision in engines:
            found = plain["engine"][precision]["layers"]
            index = next(i for i, other in enumerate(found) if layers[0]["name"] in other["names"])
            cells.append("with the one above" if index in fresh[precision] else figure(found[index]["ms"]))
            fresh[precision].add(index)
        text += row(name, cells)
    whole = [figure(plain["plain"]["ms"]), *(figure(plain["engine"][precision]["ms"]) for precision in engines)]
    worst = [f"{max(found['errors']):.1e}" for found in (plain["plain"], *plain["engine"].values())]
    text += row("**whole net**", [f"**{cell}**" for cell in whole]) + row("worst error of ten pictures", worst)
    where = plain["environment"]
    return (
        f"{text}\nOne image on one {where['device']['name']}, measured {_when(plain)}. Layers of the engine were timed "
        "alone; a whole net of it is one CUDA graph.\n"
    )


def _named_layers(layers: Sequence[Content]) -> Iterator[tuple[str, list[Content]]]:
    """Yield VGG's names and the layers that they cover: a convolution with the pool behind it is one."""
    block, place, fc = 1, 0, 5
    for i, layer in enumerate(layers):
        shape = "x".join(map(str, layer["output"]))
        if layer["kernel"] == "conv3x3_relu":
            place += 1
            pools = layers[i + 1]["kernel"] == "maxpool2x2"
            yield f"conv{block}_{place}{' and pool' if pools else ''}, {shape}", [*layers[i : i + 1 + pools]]
            if pools:
                block, place = block + 1, 0
        elif layer["kernel"] == "gemm_reduce":
            fc += 1
            yield f"fc{fc}, {shape}", [layer]


def lpips_table(record: Content) -> str:
    """Return a row for each way of a record of testbench/measure/lpips_step.py, and a column for each form and size.

    Of torch's two orders of memory the faster one stands in a cell. Memory and the gradient's distance are of the most
    pictures, and of the form that is fastest there.
    """
    steps = record["lpips"]
    cases = list(dict.fromkeys((step["count"], step["size"]) for step in steps))
    forms = list(dict.fromkeys(step["form"] for step in steps))
    names = [f"{count}x{size}x{size}, {form}" for count, size in cases for form in forms]
    text = row("ms a step", [*names, "memory, GiB", "gradient's distance"]) + row("---", ["---:"] * (len(names) + 2))
    for by in dict.fromkeys(step["by"] for step in steps):
        fastest_of = [_lpips_step(record, by, case, form) for case in cases for form in forms]
        last = _lpips_step(record, by, cases[-1])
        cells = [figure(step["median_ms"]) if step else "" for step in fastest_of]
        if last:
            cells += [figure(last["memory_nbytes"] / 2**30), f"{last['distance']:.1e}"]
        label = f"**{by}**" if by.startswith(NAME) else by
        text += row(label, cells)
    where = record["environment"]
    return (
        f"{text}\nOne {where['device']['name']}, torch {where['versions']['torch']}, measured {_when(record)}; "
        "of torch the faster order of memory.\n"
    )


def lpips_short_table(record: Content) -> str:
    """Return a row for each size of a step of LPIPS: ours by precision, torch's compiled ways in their best form."""
    precisions = ("bf16", "fp16", "fp32")
    names = [f"**ours {name}**" for name in precisions] + [f"torch.compile, {name}" for name in _COMPILED.values()]
    text = row("ms per step of LPIPS with its gradient", names) + row("---", ["---:"] * len(names))
    for case in dict.fromkeys((step["count"], step["size"]) for step in record["lpips"]):
        ways = [*(f"{NAME} {precision}" for precision in precisions), *_COMPILED]
        found = [_lpips_step(record, by, case) for by in ways]
        text += row(f"{case[0]}x{case[1]}x{case[1]}", [figure(step["median_ms"]) if step else "" for step in found])
    return text


def _lpips_step(record: Content, by: str, case: tuple[int, int], form: str | None = None) -> Content | None:
    """Return the fastest step of a way at (pictures, pixels a side), in one form or in any; None without one."""
    found = [
        step
        for step in record["lpips"]
        if (step["by"], step["count"], step["size"]) == (by, *case)
        and form in (None, step["form"])
        and "median_ms" in step
    ]
    return min(found, key=lambda step: step["median_ms"], default=None)


def sweep_table(benches: Sequence[Content]) -> str:
    """The best peer's time by ours at every batch of each sweep.

    Raises ValueError unless all have the batch sizes of the first, which name the columns.
    """
    _require_same_columns(benches)
    text = head(benches[0], "best peer's time by ours")
    for bench in benches:
        for match in matches(bench):
            cells = [f"{each:.2f}" if each else "" for each in match.ratios]
            text += row(f"{bench['device']['name']}, {match.rival}, {shape(bench)}", cells)
    return f"{text}\nMeasured {', '.join(sorted({_when(bench) for bench in benches}))}, back to back.\n"


def report_table(testbench: Content, laptop: Content) -> str:
    """Ours beside the published figures of the report that started the project."""
    times = testbench["mean_run_s"]
    most = max(times, key=int)
    text = row("VGG16, 3x244x244, mean of 10 inputs, host to host", ["ms per image"]) + row("---", ["---:"])
    text += row(
        f"**vgg16gpu**, {testbench['environment']['device']['name']} (x {most} iterations)",
        [f"**{figure(1000 * times[most])}**"],
    )
    cpu = laptop["mean_run_s"]
    text += row(
        f"vgg16gpu on {laptop['environment']['cores']} CPU cores",
        [f"{1000 * cpu[max(cpu, key=int)]:.0f}"],
    )
    for label, ms in PUBLISHED:
        text += row(f"published: {label}", [f"{ms}"])
    return (
        f"{text}\nMeasured {_when(testbench)} on the GPU, {_when(laptop)} on the CPU. "
        '"Published" is the report that this project started from, each figure on its authors\' own machine.\n'
    )


def _when(record: Content) -> str:
    where = record["environment"]
    return f"{where['date'][:10]} at commit {where['commit']['hash'][:10]}"


def load(name: str) -> Content:
    """A recorded result of the testbench."""
    content: Content = json.loads((RESULTS / name).read_text())
    return content
