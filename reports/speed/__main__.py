"""Runs `python -m reports.speed`."""

from reports.speed.command import main

if __name__ == "__main__":
    raise SystemExit(main())
