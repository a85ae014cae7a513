"""``python -m cephalo_cli`` is the ``cephalo`` command."""

from cephalo_cli.cli import main

main()
