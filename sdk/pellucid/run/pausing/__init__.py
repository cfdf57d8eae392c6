"""What pauses a run and continues it: approvals, calls outside, calls in the background, the journal."""
