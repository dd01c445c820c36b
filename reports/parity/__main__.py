"""Runs `python -m reports.parity`."""

from reports.parity.command import main

if __name__ == "__main__":
    raise SystemExit(main())
