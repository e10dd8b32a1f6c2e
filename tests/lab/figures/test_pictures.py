"""lab/figures/pictures.py: the numbers in the pictures, and text that can be read where they are small."""

import pytest

from vgg16gpu_lab.figures.pictures import LANES, lessons, loads_an_output, passes, sectors

NARROW = 368 / 96  # inches: what a picture has of a page of 400 pixels
SMALLEST = 6.5  # points, as they are shown there


def test_sectors_banks_and_halos():
    assert sectors([0, 4, 28, 32]) == {0: {0, 1, 7}, 1: {0}}
    assert len(sectors([4 * lane for lane in range(LANES)])) == 4
    assert len(sectors([4 * lane + 4 for lane in range(LANES)])) == 5
    assert passes(range(32))[1] == 1
    assert passes([32 * lane for lane in range(32)])[1] == 32
    assert passes([33 * lane for lane in range(32)])[1] == 1
    assert passes([7] * 32)[1] == 1  # one word for all is handed to all
    assert passes([2 * lane for lane in range(32)])[1] == 2
    assert loads_an_output(4) == 36 / 16
    assert loads_an_output(16) == 324 / 256


@pytest.mark.every_case
@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.title)
def test_text_fits_and_can_be_read(lesson):
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = lesson.draw()
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    renderer = canvas.get_renderer()
    scale = min(1.0, NARROW / figure.get_figwidth())
    for axes in figure.axes:
        shown = [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        shown += [*axes.get_xticklabels(), *axes.get_yticklabels()] if axes.axison else []
        texts = [text for text in shown if text.get_text() and text.get_visible()]
        boxes = [text.get_window_extent(renderer) for text in texts]
        for text, box in zip(texts, boxes, strict=True):
            assert text.get_fontsize() * scale >= SMALLEST
            assert box.x0 >= -1
            assert box.x1 <= figure.bbox.width + 1, text
        for at, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[at + 1 :]), texts[at]
    titles = [axes._left_title.get_window_extent(renderer) for axes in figure.axes]
    assert not any(one.overlaps(other) for at, one in enumerate(titles) for other in titles[at + 1 :])
