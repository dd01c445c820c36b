"""Runs `python -m reports.catch_curves`."""

from reports.catch_curves.command import main

if __name__ == "__main__":
    raise SystemExit(main())
