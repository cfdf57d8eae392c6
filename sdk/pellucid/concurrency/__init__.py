"""Tasks, threads and forks; see README.md beside this file. Nothing else in the SDK touches an event loop."""
