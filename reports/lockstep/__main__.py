"""Runs `python -m reports.lockstep`."""

from reports.lockstep.command import main

if __name__ == "__main__":
    raise SystemExit(main())
