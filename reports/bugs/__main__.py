"""Runs `python -m reports.bugs`."""

from reports.bugs.command import main

if __name__ == "__main__":
    raise SystemExit(main())
