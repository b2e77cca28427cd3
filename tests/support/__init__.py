"""What tests of several folders share. The folder ``tests`` is on the path (``pythonpath`` in pyproject.toml)."""
