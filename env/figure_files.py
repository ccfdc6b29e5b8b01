"""A backend of matplotlib for machines without a screen: a figure that is shown becomes a file.

The image holds this file beside matplotlib, and the jail's environment names it (MPLBACKEND), so programs and cells
need to know nothing of it. Figures are drawn by Agg. The interface: matplotlib's `backend_template` and
`FigureManagerBase.pyplot_show`.

Invariants:
- `plt.show()` writes each open figure that has something on it to `figure-N.png` in the home directory, says so on
  standard output, and closes it, as a notebook does; what a cell leaves open is shown when it ends
  (`env.session_server`);
- N counts up from 1 in each process, and no file that is there is overwritten.
"""

# pyright: reportMissingImports=false
import os

from matplotlib import pyplot
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

_saved = 0


def show_open():
    """Write the open figures, in the order in which they were made, and close them, also if one can't be drawn."""
    try:
        for figure in [pyplot.figure(number) for number in pyplot.get_fignums()]:
            if figure.axes:
                name = _free_name()
                figure.savefig(os.path.join(os.path.expanduser("~"), name))
                print(f"[{name}]")
    finally:
        pyplot.close("all")


def _free_name():
    global _saved
    while True:
        _saved += 1
        name = f"figure-{_saved}.png"
        if not os.path.lexists(os.path.join(os.path.expanduser("~"), name)):
            return name


class FigureManager(FigureManagerBase):
    """Of figures that nobody sees."""

    @classmethod
    def pyplot_show(cls, *, block=None):
        """What `plt.show()` does; it waits for nobody."""
        show_open()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
