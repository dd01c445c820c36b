"""Runs `python -m reports.audit`."""

if __name__ == "__main__":  # each process that it starts imports this module again, and needs nothing of it
    from reports.audit.command import main

    raise SystemExit(main())
