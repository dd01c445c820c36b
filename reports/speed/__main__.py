"""Runs `python -m reports.speed`."""

if __name__ == "__main__":  # each process that it starts imports this module again, and must not load torch by it
    from reports.speed.command import main

    raise SystemExit(main())
