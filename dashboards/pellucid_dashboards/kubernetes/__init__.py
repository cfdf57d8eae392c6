"""Manifests for Kubernetes: what `pellucid export kubernetes` writes, and what the Helm chart renders."""

from pellucid_dashboards.kubernetes.folder import manifests, write_folder
from pellucid_dashboards.kubernetes.setup import Setup

__all__ = ["Setup", "manifests", "write_folder"]
