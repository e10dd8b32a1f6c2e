"""What explains the lab's kernels: four pictures, what each kernel takes, and what Nsight Compute has read of it."""

from __future__ import annotations

from vgg16gpu_lab.figures.pictures import Lesson, lessons
from vgg16gpu_lab.measure.profile import Profile, told
from vgg16gpu_lab.report.folder import Content, Record, Results, each
from vgg16gpu_lab.report.html.markup import Html, element, fold, joined, missing, paragraph, table
from vgg16gpu_lab.report.html.pictures import picture
from vgg16gpu_lab.report.kinds import Kind
from vgg16gpu_lab.report.sections.benchmark import origin
from vgg16gpu_lab.report.sections.links import to_kernel, to_source, to_variant


def learning(results: Results) -> Html:
    """Return all of it; lines in the place of missing records."""
    lab = results.folder / "lab"
    taken = each(results.records(Kind.USAGE), _usage)
    profiles = each(results.records(Kind.PROFILE), _profile)
    return joined(
        [
            element("div", *map(_lesson, lessons()), class_="lessons"),
            *(
                taken
                or [missing("what the lab's kernels take", f"vgg16gpu lab list --kernels --json > {lab}/usage.json")]
            ),
            *(profiles or [missing("a profile", f"vgg16gpu lab profile NAME --output {lab}/profile-NAME.json")]),
        ]
    )


def _lesson(lesson: Lesson) -> Html:
    return picture(lesson.title, (), lesson.draw, f"{lesson.title}. {lesson.caption}")


def _usage(record: Record) -> Html:
    """Return the resources of each kernel, on one card or as one compiler says."""
    content = record.content
    where = content["card"] or f"Compute capability {'.'.join(map(str, content['capability']))}, without a card"
    numbers = ["registers", "shared memory (B)", "blocks", "occupancy (%)"]
    kernels = {usage["kernel"]: usage for usage in content["kernels"]}.values()
    rows = [
        (
            to_source(usage["source"], usage["kernel"].split("<")[0]),
            *(usage["registers"], f"{usage['shared_nbytes']:,}", usage["resident_blocks"]),
            f"{100 * usage['occupancy']:.0f}",
            usage["bound"],
        )
        for usage in kernels
    ]
    shown = table(["kernel", *numbers, "bound by"], rows, right=numbers)
    return fold(
        f"What each kernel takes: {where}, nvcc {content['nvcc']}", paragraph(content["note"]), shown, _origin(content)
    )


def _profile(record: Record) -> Html:
    """Return the ten readings of each kernel of a variant."""
    content, parts = record.content, []
    for launch in content["kernels"]:
        found = Profile(launch["kernel"], launch["grid"], launch["block"], launch["values"])
        setting = f", grid {found.grid}, block {found.block}: bound by {found.bound}"
        head = element("h4", to_kernel(found.kernel), setting)
        parts += [head, table(["reading", "value", "what it says"], told(found))]
    p = content["problem"]
    size = f"{p['height']}x{p['width']}, {p['kernel']}x{p['kernel']}, {p['channels']} channels to {p['outputs']}"
    where = content["environment"]["device"]["name"]
    summary = f"Profile of {content['variant']}: {size}, on {where}"
    source = paragraph("Variant: ", to_variant(content["variant"], content["variant"]))
    return fold(summary, source, *parts, paragraph(f"{content['method']}."), _origin(content))


def _origin(content: Content) -> Html:
    return element("p", origin(content["environment"]), class_="soft")
