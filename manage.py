#!/usr/bin/env python
"""Django's command line for gpupool."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext

#: Commands that read no database; with GPUPOOL_EMBEDDED=1 they start no server either.
WITHOUT_SERVERS = {
    "check",
    "makemigrations",
    "collectstatic",
    "makemessages",
    "compilemessages",
    "help",
    "version",
}


def servers() -> AbstractContextManager[object]:
    """With GPUPOOL_EMBEDDED=1 and no DATABASE_URL, the private pair for as long as the command runs."""
    wanted = os.environ.get("GPUPOOL_EMBEDDED") and not os.environ.get("DATABASE_URL")
    if not wanted or len(sys.argv) < 2 or sys.argv[1] in WITHOUT_SERVERS or sys.argv[1].startswith("-"):
        return nullcontext()
    from portal import embedded

    running = embedded.start(embedded.state_folder())
    os.environ.update(running.environment())
    return running


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    from django.core.management import execute_from_command_line

    from portal.processes import Fault

    try:
        with servers():
            execute_from_command_line(sys.argv)
    except Fault as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main()
