"""Exporters for Pellucid."""
