"""The commands `cases` and `experiment`."""
