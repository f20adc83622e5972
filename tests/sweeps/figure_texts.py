"""The texts of a figure and whether they can be read, its lines and colours."""

from matplotlib.backends.backend_agg import FigureCanvasAgg

from mixerlab.sweeps.figures.sheet import figure_style


def legend_texts(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def texts_of(figure):
    """Where each text of the figure lies, in pixels, if the figure is drawn as it is saved."""
    canvas = FigureCanvasAgg(figure)
    with figure_style():
        canvas.draw()
        found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
        for panel in figure.axes:
            found += [panel.title, panel.xaxis.label, panel.yaxis.label, *panel.texts]
            for place, axis in enumerate((panel.xaxis, panel.yaxis)):
                low, high = sorted(axis.get_view_interval())  # ticks beyond it are not drawn
                found += [text for text in axis.get_ticklabels() if low <= text.get_position()[place] <= high]
        boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in found if text.get_text()]
    return [(text, box) for text, box in boxes if box.width and box.height]


def assert_legible(figure):
    """No text lies over another, or beyond the sheet."""
    boxes = texts_of(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for number, (text, box) in enumerate(boxes):
        assert box.x0 >= -1 and box.x1 <= width + 1 and box.y0 >= -1 and box.y1 <= height + 1, text
        for other, place in boxes[number + 1 :]:
            apart = box.x1 <= place.x0 + 1 or place.x1 <= box.x0 + 1 or box.y1 <= place.y0 + 1 or place.y1 <= box.y0 + 1
            assert apart, (text, other)


def points_of(panel, style):
    """(x, y): is it hollow? of the markers of a column."""
    marks = [line for line in panel.lines if line.get_marker() == style.marker and style.colour in _colours(line)]
    return {
        (float(x), float(y)): line.get_markerfacecolor() == "white"
        for line in marks
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


def _colours(line):
    return line.get_markerfacecolor(), line.get_markeredgecolor(), line.get_color()


def lines_of(panel, colour):
    """The values of the curves of a colour that have several points."""
    return [list(line.get_ydata()) for line in panel.lines if line.get_color() == colour and len(line.get_xdata()) > 1]
