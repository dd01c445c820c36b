"""The subcommands of `python -m parity`, a module each: HELP, EXAMPLE, `add_arguments` and `run`."""
