"""``python -m loms``: the same as the ``loms`` script."""

from loms.cli import main

main()
