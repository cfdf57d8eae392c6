"""The `view` subcommand."""
