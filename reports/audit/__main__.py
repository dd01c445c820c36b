"""Runs `python -m reports.audit`."""

from reports.audit.command import main

if __name__ == "__main__":
    raise SystemExit(main())
