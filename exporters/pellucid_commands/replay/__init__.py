"""`pellucid replay` and `pellucid test`: recorded runs, played again."""
