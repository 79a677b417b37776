"""Run every cell of a notebook and keep what they showed; what programs told on standard error is left out.

    python -m tests.spark.notebook docs/pipeline.ipynb [OUTPUT]

Exit status 1 if a cell failed; the notebook is not written then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import nbformat
from nbclient.exceptions import CellExecutionError

from tests import notebooks


def main(argv: Sequence[str]) -> int:
    """The command."""
    source, target = argv[0], argv[-1]
    notebook = nbformat.read(source, 4)
    try:
        notebooks.execute(notebook)
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    nbformat.write(notebook, target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
