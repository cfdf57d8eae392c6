"""`pellucid store`: size, compaction and export of the local store."""
