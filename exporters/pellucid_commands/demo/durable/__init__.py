"""`pellucid demo durable`: a run whose worker is killed, and which another worker continues."""
